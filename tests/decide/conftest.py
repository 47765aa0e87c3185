"""One hypothesis profile for these tests: the same examples on every run, and no time limits."""

from hypothesis import HealthCheck, settings

SLOW_IS_FINE = [HealthCheck.too_slow]
settings.register_profile(
    "agreestop",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=SLOW_IS_FINE,
)
settings.load_profile("agreestop")
