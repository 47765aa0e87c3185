"""`tune` chooses only on the tuning split, repeatably, and what it returns is ready to be calibrated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import agreestop as ag

SCORES = ag.simulate_scores(340, steps=12, K=2, C=4, seed=3, pace=3.0)
TUNING, POOL = SCORES.rows(slice(0, 160)), SCORES.rows(slice(160, None))
TIMES = tuple(range(1, 13))
FEW = (3, 6, 12)
RULES: dict[str, ag.SpikeCP | ag.AgreeStop] = {
    "bonferroni": ag.SpikeCP(0.8, FEW, 1, ag.MergeConfidence()),
    "simultaneous": ag.SpikeCP(0.8, FEW, 1, ag.MergeConfidence(), "simultaneous"),
    "stop-aware": ag.SpikeCP(0.8, TIMES, 1, ag.MergeConfidence(), "stop-aware"),
    "agreestop": ag.AgreeStop(0.8, TIMES, 1),
    "agreestop, filled": ag.AgreeStop(0.8, FEW, 2, fill=True),
}


def tuned(rule: ag.SpikeCP | ag.AgreeStop, seed: int = 0) -> ag.Tuned:
    assert TUNING.labels is not None
    return ag.tune(rule, TUNING.log_confidence, TUNING.labels, TUNING.times, n_calibration=40, exponents=(0.0, 1.0), repeats=4, seed=seed)


@pytest.mark.parametrize("name", RULES)
def test_a_tuned_rule_calibrates_decides_and_refuses_its_tuning_rows(name: str) -> None:
    result = tuned(RULES[name])
    assert POOL.labels is not None and TUNING.labels is not None
    calibrated = result.rule.calibrate(POOL.log_confidence[:100], POOL.labels[:100], POOL.times)
    assert len(calibrated.decide(POOL.log_confidence[100:], POOL.times)) == 80
    if result.rule.tuned is None:
        assert name == "bonferroni"  # an untuned log-loss may win where the shape over time does not matter
        return
    with pytest.raises(ag.InputError, match="160 of the 160 rows were used for tuning"):
        result.rule.calibrate(TUNING.log_confidence, TUNING.labels, TUNING.times)
    with pytest.raises(ag.InputError, match="used for tuning"):
        ag.evaluate(calibrated.decide(TUNING.log_confidence, TUNING.times), TUNING.labels)


@pytest.mark.parametrize("name", ["stop-aware", "agreestop"])
def test_tuning_is_repeatable(name: str) -> None:
    first, second = tuned(RULES[name]), tuned(RULES[name])
    assert first.trials == second.trials
    assert [trial.latency for trial in first.trials] == sorted(trial.latency for trial in first.trials)


@pytest.mark.parametrize("name", RULES)
def test_the_first_trial_is_the_chosen_one(name: str) -> None:
    result = tuned(RULES[name])
    best = result.trials[0]
    assert all(best.latency <= trial.latency for trial in result.trials)
    assert ("shaped over time" in best.name) <= (name != "bonferroni")


def test_tuning_lowers_the_latency_of_badly_scaled_scores() -> None:
    """Log-confidences sharpened more and more over time: raw risks are not comparable, tuned ones are."""
    pool, tuning = (
        ag.simulate_scores(1200, steps=20, K=2, C=4, seed=1, pace=4.0),
        ag.simulate_scores(400, steps=20, K=2, C=4, seed=2, pace=4.0),
    )
    sharpen = np.linspace(8.0, 0.2, 20)[None, :, None, None]
    plain = ag.AgreeStop(0.9, range(1, 21), 1)
    assert pool.labels is not None and tuning.labels is not None
    better = ag.tune(plain, ag.log_confidence(tuning.log_confidence * sharpen), tuning.labels, n_calibration=50, repeats=6).rule
    before, after = (
        ag.repeat_splits(rule, ag.log_confidence(pool.log_confidence * sharpen), pool.labels, repeats=20) for rule in (plain, better)
    )
    assert after.normalized_latency < before.normalized_latency
    assert after.coverage > 0.9 - 3 * after.coverage.se


def test_progress_is_told_from_nothing_to_all() -> None:
    told: list[float] = []
    assert TUNING.labels is not None
    ag.tune(
        RULES["agreestop, filled"],
        *(TUNING.log_confidence, TUNING.labels, TUNING.times),
        n_calibration=40,
        exponents=(1.0,),
        repeats=1,
        progress=lambda what, share: told.append(share),
    )
    assert told[0] == 0.0 and told[-1] == 1.0
    assert all(earlier <= later for earlier, later in itertools.pairwise(told))


def test_one_checkpoint_has_no_shape() -> None:
    assert TUNING.labels is not None
    result = ag.tune(ag.AgreeStop(0.8, (12,), 1), TUNING.log_confidence, TUNING.labels, TUNING.times, n_calibration=40, repeats=2)
    assert not any("shaped" in trial.name for trial in result.trials)


@pytest.mark.parametrize(
    ("rule", "n", "match"),
    [
        (ag.SpikeCP(0.8, FEW, 1, ag.MergePValues(r=1)), 40, "tune chooses a score of pooled confidences"),
        (ag.DCSNN(0.8, FEW, 1), 40, "DCSNN has nothing to tune"),
        (RULES["agreestop"], 81, "at least twice as many rows"),
        (RULES["agreestop"], 0, "at least twice as many rows"),
    ],
)
def test_what_cannot_be_tuned_is_refused(rule: ag.SpikeCP, n: int, match: str) -> None:
    assert TUNING.labels is not None
    with pytest.raises(ag.InputError, match=match):
        ag.tune(rule, TUNING.log_confidence, TUNING.labels, TUNING.times, n_calibration=n)


def test_an_ensemble_that_never_misses_is_tuned_without_a_learned_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agreestop.decide.tuning.SEARCH_STEPS", 1)
    scores = ag.simulate_scores(120)
    assert scores.labels is not None
    sure = scores.log_confidence.copy()
    sure[np.arange(len(sure)), :, :, scores.labels] = 0.0
    tuned = ag.tune(ag.AgreeStop(0.9, (20, 80), 2), sure[:, [19, 79]], scores.labels, exponents=(1.0,))
    assert "learned" not in " ".join(trial.name for trial in tuned.trials)
    assert tuned.trials
