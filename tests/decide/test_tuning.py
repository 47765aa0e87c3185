"""`tune` chooses only on the tuning split, repeatably, and what it returns is ready to be
calibrated.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import make_sample, tune_quickly

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
    arrays = TUNING.log_confidence, TUNING.labels, TUNING.times
    return ag.tune(
        rule,
        *arrays,
        n_calibration=40,
        exponents=(0.0, 1.0),
        repeats=4,
        seed=seed,
        only_if_better=False,
    )


@pytest.mark.parametrize("name", RULES)
def test_a_tuned_rule_calibrates_decides_and_refuses_its_tuning_rows(name: str) -> None:
    result = tuned(RULES[name])
    assert POOL.labels is not None and TUNING.labels is not None
    calibrated = result.rule.calibrate(POOL.log_confidence[:100], POOL.labels[:100], POOL.times)
    assert len(calibrated.decide(POOL.log_confidence[100:], POOL.times)) == 80
    if result.rule.tuned is None:
        # an untuned log-loss may win where the shape over time does not matter
        assert name == "bonferroni"
        return
    with pytest.raises(ag.InputError, match="160 of the 160 rows were used for tuning"):
        result.rule.calibrate(TUNING.log_confidence, TUNING.labels, TUNING.times)
    with pytest.raises(ag.InputError, match="used for tuning"):
        ag.evaluate(calibrated.decide(TUNING.log_confidence, TUNING.times), TUNING.labels)


@pytest.mark.parametrize("name", ["stop-aware", "agreestop"])
def test_tuning_is_repeatable(name: str) -> None:
    first, second = tuned(RULES[name]), tuned(RULES[name])
    assert first.trials == second.trials
    assert [trial.latency for trial in first.trials] == sorted(
        trial.latency for trial in first.trials
    )


@pytest.mark.parametrize("name", RULES)
def test_the_first_trial_is_the_chosen_one(name: str) -> None:
    result = tuned(RULES[name])
    best = result.trials[0]
    assert all(best.latency <= trial.latency for trial in result.trials)
    assert ("shaped over time" in best.name) <= (name != "bonferroni")


def test_tuning_lowers_the_latency_of_badly_scaled_scores() -> None:
    """Log-confidences sharpened more and more over time: raw risks are not comparable, tuned ones
    are.
    """
    pool, tuning = (
        ag.simulate_scores(1200, steps=20, K=2, C=4, seed=1, pace=4.0),
        ag.simulate_scores(400, steps=20, K=2, C=4, seed=2, pace=4.0),
    )
    sharpen = np.linspace(8.0, 0.2, 20)[None, :, None, None]
    plain = ag.AgreeStop(0.9, range(1, 21), 1)
    assert pool.labels is not None and tuning.labels is not None
    better = ag.tune(
        plain,
        ag.log_confidence(tuning.log_confidence * sharpen),
        tuning.labels,
        n_calibration=50,
        repeats=6,
    ).rule
    before, after = (
        ag.repeat_splits(
            rule, ag.log_confidence(pool.log_confidence * sharpen), pool.labels, repeats=20
        )
        for rule in (plain, better)
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
    result = ag.tune(
        ag.AgreeStop(0.8, (12,), 1),
        TUNING.log_confidence,
        TUNING.labels,
        TUNING.times,
        n_calibration=40,
        repeats=2,
    )
    assert not any("shaped" in trial.name for trial in result.trials)


@pytest.mark.parametrize(
    ("rule", "n", "match"),
    [
        (
            ag.SpikeCP(0.8, FEW, 1, ag.MergePValues(r=1)),
            40,
            "tune chooses a score of pooled confidences",
        ),
        (ag.DCSNN(0.8, FEW, 1), 40, "DCSNN has nothing to tune"),
        (RULES["agreestop"], 81, "at least twice as many rows"),
        (RULES["agreestop"], 0, "at least twice as many rows"),
        (
            ag.AgreeStop(0.8, TIMES, 1, gate=ag.Gate.fit(TUNING, target=0.8, max_set_size=1)),
            40,
            "tune the rule without it",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused(rule: ag.SpikeCP, n: int, match: str) -> None:
    assert TUNING.labels is not None
    with pytest.raises(ag.InputError, match=match):
        ag.tune(rule, TUNING.log_confidence, TUNING.labels, TUNING.times, n_calibration=n)


def test_a_calibrated_rule_is_not_tuned() -> None:
    with pytest.raises(ag.InputError, match="rule is calibrated"):
        ag.tune(RULES["agreestop"].calibrate(TUNING), TUNING)  # type: ignore[arg-type]


def test_an_ensemble_that_never_misses_is_tuned_without_a_learned_risk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune_quickly(monkeypatch)
    scores = ag.simulate_scores(120)
    assert scores.labels is not None
    sure = scores.log_confidence.copy()
    sure[np.arange(len(sure)), :, :, scores.labels] = 0.0
    tuned = ag.tune(
        ag.AgreeStop(0.9, (20, 80), 2), sure[:, [19, 79]], scores.labels, exponents=(1.0,)
    )
    assert "learned" not in " ".join(trial.name for trial in tuned.trials)
    assert tuned.trials


QUICK: dict[str, Any] = {"n_calibration": 40, "exponents": (1.0,), "repeats": 4}


@pytest.mark.parametrize("name", ["bonferroni", "stop-aware", "agreestop"])
def test_a_rule_that_tuning_does_not_help_decides_as_it_was_given(name: str) -> None:
    """Here nothing can help: with one checkpoint all answers come at the same time."""
    rule = replace(RULES[name], checkpoints=(12,))
    tuning, pool = (
        ag.Scores(*make_sample(160, checkpoints=1, seed=seed, tied=False), times=(12,))
        for seed in (1, 2)
    )
    result = ag.tune(rule, tuning, **QUICK)
    assert "did not help" in result.note and "+0.000" in result.note.replace("-0.000", "+0.000")
    calibration, test = pool.rows(slice(0, 100)), pool.rows(slice(100, None))
    given, kept = (
        rule.calibrate(calibration).decide(test),
        result.rule.calibrate(calibration).decide(test),
    )
    assert (given.stop_index == kept.stop_index).all() and (given.sets == kept.sets).all()
    with pytest.raises(ag.InputError, match="used for tuning"):
        result.rule.calibrate(tuning)


def test_a_rule_that_tuning_helps_is_tuned_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune_quickly(monkeypatch, steps=5)
    scores = ag.simulate_scores(400, steps=20, K=2, C=4, seed=2, pace=4.0)
    sharpened = ag.Scores(
        ag.log_confidence(scores.log_confidence * np.linspace(8.0, 0.2, 20)[None, :, None, None]),
        scores.labels,
        scores.times,
    )
    rule = ag.AgreeStop(0.9, range(1, 21), 1)
    result, always = (
        ag.tune(rule, sharpened, **QUICK, only_if_better=only) for only in (True, False)
    )
    assert result.note == "" and result.trials == always.trials
    pool = ag.simulate_scores(100, steps=20, K=2, C=4, seed=5, pace=4.0)
    first, second = (
        one.rule.calibrate(pool.rows(slice(0, 60))).decide(pool.rows(slice(60, 100)))
        for one in (result, always)
    )
    assert (first.stop_index == second.stop_index).all()


def test_a_price_on_size_buys_smaller_answers() -> None:
    scores = ag.simulate_scores(600, steps=10, K=2, C=8, seed=1, pace=15.0)
    rule = ag.AgreeStop(0.95, range(1, 11), 1)
    free, priced = (
        ag.tune(rule, scores, **QUICK, only_if_better=False, price_of_size=price)
        for price in (0.0, 0.5)
    )
    assert priced.trials[0].excess < free.trials[0].excess
    assert priced.trials[0].latency > free.trials[0].latency
    costs = [trial.cost(0.5) for trial in priced.trials]
    assert (
        costs == sorted(costs)
        and costs[0] == priced.trials[0].latency + 0.5 * priced.trials[0].excess
    )


def test_with_a_price_the_trim_factor_is_chosen_too() -> None:
    rule = ag.AgreeStop(0.8, TIMES, 2)
    result = ag.tune(rule, TUNING, **QUICK, price_of_size=0.1, only_if_better=False)
    assert isinstance(result.rule, ag.AgreeStop)
    trims = [trial for trial in result.trials if "trim" in trial.name]
    assert len(trims) == 4 and all(trial.cost(0.1) >= result.trials[0].cost(0.1) for trial in trims)
    assert (result.rule.trim < 1) == ("trim" in result.trials[0].name)
    for fixed in (ag.AgreeStop(0.8, TIMES, 2, trim=0.5), ag.AgreeStop(0.8, TIMES, 2, fill=True)):
        kept = ag.tune(fixed, TUNING, **QUICK, price_of_size=0.1, only_if_better=False)
        assert not any("trim" in trial.name for trial in kept.trials)
        assert isinstance(kept.rule, ag.AgreeStop) and kept.rule.trim == fixed.trim


@pytest.mark.parametrize("price", [-0.1, float("nan"), "0.1", None])
def test_a_price_must_be_a_number_of_at_least_0(price: object) -> None:
    with pytest.raises(ag.InputError, match="price_of_size"):
        ag.tune(RULES["agreestop"], TUNING, n_calibration=40, price_of_size=price)  # type: ignore[arg-type]


def test_blocks_of_a_gate_follow_the_number_of_examples() -> None:
    assert [ag.Gate.count_blocks(n, 0.9) for n in (20, 100, 120, 179, 180, 240, 10000)] == [
        2,
        2,
        2,
        2,
        3,
        4,
        4,
    ]
    assert [ag.Gate.count_blocks(n, "0.95") for n in (200, 360, 1000)] == [2, 3, 4]


def test_a_gate_tells_blocks_apart_even_where_an_open_gate_would_be_earlier() -> None:
    """At the end of a block the gate may have opened for at most so many times the inputs that have
    stopped.
    """
    scores = ag.simulate_scores(600, steps=20, K=2, C=4, seed=2, pace=4.0)
    gate = ag.Gate.fit(scores, target=0.9, max_set_size=1, blocks=4)
    rule = ag.AgreeStop(0.9, scores.times, 1, gate=gate)
    fresh = ag.simulate_scores(1500, steps=20, K=2, C=4, seed=3, pace=4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        decisions = rule.calibrate(fresh.rows(slice(0, 700))).decide(fresh.rows(slice(700, None)))
    assert decisions.block is not None
    for block, end in enumerate(gate.ends[:-1]):
        assert (decisions.block <= block).mean() <= 2.5 * (decisions.stop_time <= end).mean()


def test_a_gate_knows_its_tuning_rows_before_a_rule_cuts_it() -> None:
    """The rows of the gate and of its risk, which may be fitted at more times than the gate has."""
    for times in (FEW, TIMES):
        gate = ag.Gate.fit(
            POOL.at(times), target=0.8, max_set_size=1, blocks=2, risk=ag.TopMass.fit(TUNING)
        )
        rule = ag.AgreeStop(0.8, FEW, 1, gate=gate)
        assert gate.tuned is not None and rule.tuned is not None
        assert len(gate.tuned) == len(rule.tuned) == len(TUNING) + len(POOL)
