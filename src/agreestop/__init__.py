"""agreestop: decide when an ensemble watching a stream has seen enough, and be right as
often as promised.

The names of the decision layer, which needs numpy alone, and the packages `agreestop.events`,
`agreestop.networks`, `agreestop.engines`, `agreestop.ensembles`, `agreestop.adapters`,
`agreestop.cluster`, `agreestop.export` and `agreestop.serve` load on first use.
"""

from importlib import import_module

# type checkers take it for True, as the constant of `typing`, which takes long to import
TYPE_CHECKING = False
if TYPE_CHECKING:
    from agreestop import adapters as adapters
    from agreestop import cluster as cluster
    from agreestop import engines as engines
    from agreestop import ensembles as ensembles
    from agreestop import events as events
    from agreestop import export as export
    from agreestop import networks as networks
    from agreestop import serve as serve
    from agreestop.decide import *  # noqa: F403
    from agreestop.decide import __all__ as __all__
    from agreestop.pipeline.scores_report import write_report as write_report
    from agreestop.report import plot as plot

    __version__: str

_PACKAGES = (
    "adapters",
    "cluster",
    "common",
    "decide",
    "engines",
    "ensembles",
    "events",
    "export",
    "networks",
    "serve",
)
_ELSEWHERE = {"plot": "agreestop.report.plot", "write_report": "agreestop.pipeline.scores_report"}
"""Names of the top level that are a module, or in a module, of another name."""
_GONE = {
    "majority_vote": "use SpikeCP(pooling=MajorityVote())",
    "merge_exchangeable": "use SpikeCP(pooling=MergePValues(r, form='exchangeable'))",
    "merge_randomized": "use SpikeCP(pooling=MergePValues(r, form='randomized'))",
}
"""Names of version 0.2 that were removed, and what to use in their place."""
_INNER = {
    "Alarm": "agreestop.decide.drift.monitor",
    "Estimate": "agreestop.common.estimates",
    "FrontPoint": "agreestop.decide.tuning.schedules",
    "Shaped": "agreestop.decide.risks",
    "Trial": "agreestop.decide.tuning.tune",
    "simulate_spikes": "agreestop.decide.tuning.simulated",
}
"""Names that were public in version 0.2, and the modules that have them now."""


def __getattr__(name: str) -> object:
    """Load the decision layer, or a package of the spiking half, on first use."""
    if name in _PACKAGES or name in _ELSEWHERE:
        from agreestop.common.errors import needs

        with needs(f"agreestop.{name}"):
            module = import_module(_ELSEWHERE.get(name, f"agreestop.{name}"))
            return getattr(module, name, module)
    if name == "__version__":
        from importlib.metadata import version  # slow to import

        return globals().setdefault(name, version("agreestop"))
    if name in _GONE:
        raise AttributeError(f"agreestop.{name} is gone in 0.3: {_GONE[name]}.")
    if name in _INNER:
        raise AttributeError(
            f"agreestop.{name} is not a public name any more: it is in {_INNER[name]}."
        )
    decide = import_module("agreestop.decide")
    if name != "__all__" and name not in decide.__all__:
        raise AttributeError(f"module 'agreestop' has no attribute {name!r}")
    return globals().setdefault(name, getattr(decide, name))


def __dir__() -> list[str]:
    own = globals().keys() - {"TYPE_CHECKING", "import_module"}
    return sorted({*own, *_PACKAGES, *_ELSEWHERE, *import_module("agreestop.decide").__all__})
