"""Scores: what is fitted is right, what is fitted is cut to a rule's checkpoints, and rows that
were tuned on are refused afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats
from agreestop.decide.confidence import log_softmax
from agreestop.decide.leakage import ScoredRows, TunedRows
from tests.decide.strategies import Rule, Sample, Shaped, make_sample

TIMES = (2, 4, 6)


def draw_labels(logits: Floats, rng: np.random.Generator) -> Sample:
    """Labels drawn from the softmax of logits (n, C); log-confidences are those of one member at
    one checkpoint.
    """
    probabilities = np.exp(log_softmax(logits))
    labels = (
        (probabilities.cumsum(axis=1) < rng.random((len(logits), 1)))
        .sum(axis=1)
        .clip(max=logits.shape[1] - 1)
    )
    return Sample(logits[:, None, None], labels)


def log_loss(
    sample: Sample, temperature: float, pooling: ag.MergeConfidence, index: int = 0
) -> float:
    pooled = pooling.pool(sample.log_confidence[:, index])
    return float(
        -log_softmax(temperature * pooled)[np.arange(len(sample.labels)), sample.labels].mean()
    )


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_a_known_temperature_is_found(temperature: float) -> None:
    rng = np.random.default_rng(0)
    confidence = ag.log_confidence(rng.normal(scale=1.5, size=(20_000, 5)))
    drawn = draw_labels(temperature * confidence, rng)
    fitted = ag.Temperature.fit(confidence[:, None, None], drawn.labels)
    assert fitted.temperatures == pytest.approx([temperature], rel=0.05)


@pytest.mark.parametrize("r", [-1.0, 0.0, 1.0])
def test_the_temperature_has_the_least_log_loss(r: float) -> None:
    sample, pooling = make_sample(200, checkpoints=3, members=3), ag.MergeConfidence(r=r)
    fitted = ag.Temperature.fit(*sample, pooling=pooling)
    assert fitted.temperatures.shape == (3,)
    for index, temperature in enumerate(fitted.temperatures.tolist()):
        least = min(
            log_loss(sample, value, pooling, index) for value in np.geomspace(0.02, 50, 400)
        )
        assert log_loss(sample, temperature, pooling, index) <= least + 1e-12


def test_temperatures_stay_finite_where_nothing_or_everything_is_known() -> None:
    useless = Sample(np.log([[[[0.9, 0.1]]], [[[0.9, 0.1]]]]), np.array([0, 1]))
    perfect = Sample(np.log([[[[0.9, 0.1]]], [[[0.1, 0.9]]]]), np.array([0, 1]))
    assert 0 < ag.Temperature.fit(*useless).temperatures[0] < 0.01
    assert 100 < ag.Temperature.fit(*perfect).temperatures[0] < math.inf


def test_temperature_losses_are_those_of_a_softmax() -> None:
    sample = make_sample(20, members=3)
    score = ag.Temperature(ag.MergeConfidence(r=0), np.array([0.5, 2.0, 1.0]))
    pooled = ag.MergeConfidence(r=0).pool(sample.log_confidence[:, 1])
    expected = -np.log(np.exp(2 * pooled) / np.exp(2 * pooled).sum(axis=1, keepdims=True))
    assert score.losses(1, sample.log_confidence[:, 1]) == pytest.approx(expected)


def test_log_loss_is_the_negative_pooled_confidence() -> None:
    sample = make_sample(20, members=3)
    for r in (-math.inf, 0.0, 1.0):
        pooled = ag.MergeConfidence(r=r).pool(sample.log_confidence[:, 0])
        np.testing.assert_array_equal(
            ag.LogLoss(ag.MergeConfidence(r=r)).losses(0, sample.log_confidence[:, 0]), -pooled
        )
    average = np.exp(sample.log_confidence[:, 0]).mean(axis=1)
    assert ag.LogLoss().losses(0, sample.log_confidence[:, 0]) == pytest.approx(-np.log(average))


@given(st.integers(0, 1000), st.integers(2, 120))
def test_tuning_ranks_keep_the_order_of_losses(seed: int, rows: int) -> None:
    fitted = ag.TuningRanks.fit(*make_sample(rows, checkpoints=2, members=2, seed=seed))
    losses = np.linspace(0.0, 9.0, 500)
    scores = fitted.losses(1, -losses[:, None, None])[:, 0]
    assert (np.diff(scores) > 0).all()


def test_tuning_ranks_are_the_distribution_of_the_labels_losses() -> None:
    sample = make_sample(400, checkpoints=1, members=1, tied=False)
    fitted = ag.TuningRanks.fit(*sample)
    own = fitted.losses(0, sample.log_confidence[:, 0])[np.arange(400), sample.labels]
    assert np.sort(own) == pytest.approx(np.linspace(0, 1, 400), abs=0.02)


def test_tuning_ranks_of_one_repeated_loss_are_finite_and_in_order() -> None:
    flat = Sample(np.log(np.full((6, 1, 1, 2), 0.5)), np.zeros(6, dtype=np.int64))
    scores = ag.TuningRanks.fit(*flat).losses(0, np.array([[[-2.0]], [[-math.log(2)]], [[-0.1]]]))[
        :, 0
    ]
    assert np.isfinite(scores).all()
    assert scores[0] > scores[1] > scores[2]


def test_spread_adds_the_members_disagreement() -> None:
    sample = make_sample(30, members=4, tied=False)
    values = sample.log_confidence[:, 0]
    spread = ag.Spread(ag.LogLoss(), beta=0.7).losses(0, values)
    assert spread == pytest.approx(ag.LogLoss().losses(0, values) + 0.7 * values.std(axis=1))
    np.testing.assert_array_equal(
        ag.Spread(ag.LogLoss(), beta=0.0).losses(0, values), ag.LogLoss().losses(0, values)
    )
    one = values[:, :1]
    np.testing.assert_array_equal(
        ag.Spread(ag.LogLoss(), beta=3.0).losses(0, one), ag.LogLoss().losses(0, one)
    )
    np.testing.assert_array_equal(
        ag.Spread(ag.LogLoss()).losses(0, values[:, ::-1]),
        ag.Spread(ag.LogLoss()).losses(0, values),
    )


def test_shaped_takes_an_offset_off_at_each_checkpoint() -> None:
    values = make_sample(10).log_confidence
    shaped = Shaped(ag.LogLoss(), np.array([0.5, -1.0, 0.0]))
    for index, offset in enumerate((0.5, -1.0, 0.0)):
        np.testing.assert_array_equal(
            shaped.losses(index, values[:, index]),
            ag.LogLoss().losses(index, values[:, index]) - offset,
        )


SCORES: dict[str, Callable[[Sample], Any]] = {
    "temperature": lambda tuning: ag.Temperature.fit(*tuning, times=TIMES),
    "ranks": lambda tuning: ag.TuningRanks.fit(*tuning, times=TIMES),
    "spread": lambda tuning: ag.Spread(ag.Temperature.fit(*tuning, times=TIMES)),
    "shaped": lambda tuning: Shaped(
        ag.Temperature.fit(*tuning, times=TIMES), np.array([0.1, 0.7, 0.4]), TIMES
    ),
    "shaped log-loss": lambda tuning: Shaped(
        ag.LogLoss(), np.array([0.1, 0.7, 0.4]), TIMES, TunedRows.of(tuning.log_confidence)
    ),
}
every_score = pytest.mark.parametrize("make", SCORES.values(), ids=SCORES.keys())


@every_score
def test_a_score_is_cut_to_the_checkpoints_of_its_rule(make: Callable[[Sample], Any]) -> None:
    tuning, values = make_sample(60, seed=1), make_sample(5, seed=2).log_confidence
    whole = make(tuning)
    cut = ag.SpikeCP(0.9, (4, 6), 1, score=whole).score
    assert cut is not None
    for index, column in enumerate((1, 2)):
        np.testing.assert_array_equal(
            cut.losses(index, values[:, column]), whole.losses(column, values[:, column])
        )


@every_score
def test_a_score_is_refused_at_checkpoints_it_was_not_fitted_for(
    make: Callable[[Sample], Any],
) -> None:
    with pytest.raises(ag.InputError, match="times lacks the rule's checkpoint 5"):
        ag.SpikeCP(0.9, (4, 5), 1, score=make(make_sample(60, seed=1)))


def test_a_score_without_times_needs_as_many_checkpoints() -> None:
    score = ag.Temperature.fit(*make_sample(60, seed=1))
    assert ag.SpikeCP(0.9, (7, 8, 9), 1, score=score).score is not None
    with pytest.raises(ag.InputError, match="3 checkpoints and the rule has 2"):
        ag.SpikeCP(0.9, (7, 8), 1, score=score)


def test_offsets_in_a_list_are_cut_too() -> None:
    values = make_sample(5).log_confidence[:, 2]
    listed, packed = (
        ag.SpikeCP(0.9, (6,), 1, score=Shaped(ag.LogLoss(), offsets, TIMES)).score  # type: ignore[arg-type]
        for offsets in ([0.0, 1.0, 2.0], np.array([0.0, 1.0, 2.0]))
    )
    assert listed is not None and packed is not None
    np.testing.assert_array_equal(listed.losses(0, values), packed.losses(0, values))


RISKS: dict[str, Callable[[Sample], Any]] = {
    "top mass": lambda tuning: ag.TopMass.fit(*tuning, times=TIMES),
    "learned": lambda tuning: ag.LearnedRisk.fit(*tuning, max_set_size=1, times=TIMES),
    "shaped risk": lambda tuning: ag.ShapedRisk.per_time(
        ag.TopMass.fit(*tuning, times=TIMES), TIMES
    ),
}


def tuned_rule(kind: str, tuning: Sample) -> Rule:
    """A rule of each kind that remembers the rows it was tuned on."""
    if kind in RISKS:
        return ag.AgreeStop(0.8, TIMES, 1, risk=RISKS[kind](tuning))
    return ag.SpikeCP(0.8, TIMES, 1, score=SCORES[kind](tuning), calibration="stop-aware")


every_kind = pytest.mark.parametrize("kind", (*SCORES, *RISKS))
REUSED = "^{what}: 30 of the {total} rows were used for tuning"


@every_kind
def test_rows_that_were_tuned_on_are_refused(kind: str) -> None:
    tuning, fresh = make_sample(60, seed=1, tied=False), make_sample(90, seed=2, tied=False)
    rule = tuned_rule(kind, tuning)
    both = Sample(
        *(np.concatenate(pair) for pair in zip(tuning.rows(slice(30)), fresh, strict=True))
    )
    with pytest.raises(ag.InputError, match=REUSED.format(what="calibration", total=120)):
        rule.calibrate(*both)
    with pytest.raises(ag.InputError, match=REUSED.format(what="repeat_splits", total=120)):
        ag.repeat_splits(rule, *both, n_calibration=60)
    calibrated = rule.calibrate(*fresh)
    decisions = calibrated.decide(both.log_confidence)
    assert decisions.reuse
    with pytest.raises(ag.InputError, match=REUSED.format(what="evaluation", total=120)):
        ag.evaluate(decisions, both.labels)


@every_kind
def test_other_rows_are_not_refused(kind: str) -> None:
    tuning, fresh = make_sample(60, seed=1, tied=False), make_sample(150, seed=2, tied=False)
    rule = tuned_rule(kind, tuning)
    decisions = rule.calibrate(*fresh.rows(slice(100))).decide(fresh.log_confidence[100:])
    assert decisions.reuse == ""
    ag.evaluate(decisions, fresh.labels[100:])
    ag.repeat_splits(rule, *fresh, n_calibration=100, repeats=2)


def test_tuned_rows_are_found_in_a_cut_and_in_any_order() -> None:
    tuning = make_sample(60, seed=1, tied=False)
    rule = ag.SpikeCP(0.8, (4, 6), 1, score=ag.Temperature.fit(*tuning, times=TIMES))
    for sample, times in (
        (tuning.rows(np.arange(60)[::-1]), TIMES),
        (Sample(tuning.log_confidence[:, 1:], tuning.labels), None),
    ):
        with pytest.raises(ag.InputError, match="60 of the 60 rows were used for tuning"):
            rule.calibrate(*sample, times=times)


def test_a_loaded_rule_still_knows_the_rows_it_was_tuned_on(tmp_path: object) -> None:
    tuning, fresh = make_sample(60, seed=1, tied=False), make_sample(90, seed=2, tied=False)
    path = f"{tmp_path}/rule"
    ag.SpikeCP(0.8, TIMES, 1, score=ag.Temperature.fit(*tuning)).calibrate(*fresh).save(path)
    with pytest.raises(ag.InputError, match="evaluation: 60 of the 60 rows"):
        ag.evaluate(ag.load_rule(path).decide(tuning.log_confidence), tuning.labels)


def test_rows_that_repeat_by_chance_are_not_refused() -> None:
    """A few spikes at one checkpoint: most rows of any two draws coincide."""
    tuning, fresh = (
        make_sample(300, checkpoints=1, members=1, classes=2, seed=seed) for seed in (1, 2)
    )
    rule = ag.SpikeCP(0.8, (1,), 1, score=ag.Temperature.fit(*tuning), calibration="stop-aware")
    assert (
        TunedRows.of(tuning.log_confidence)
        .cut([0], 1)
        .seen(ScoredRows(fresh.log_confidence, [0]))
        .mean()
        > 0.9
    )
    calibrated = rule.calibrate(*fresh)
    decisions = calibrated.decide(fresh.log_confidence)
    assert decisions.reuse == ""
    ag.repeat_splits(rule, *fresh, repeats=2)


def test_rows_that_repeat_by_chance_are_not_refused_however_few_were_tuned_on() -> None:
    for seed in range(30):
        tuning, fresh = (
            make_sample(60, checkpoints=2, members=1, classes=3, seed=seed),
            make_sample(900, 2, 1, 3, seed=seed),
        )
        ag.SpikeCP(0.8, (1, 2), 1, score=ag.Temperature.fit(*tuning)).calibrate(*fresh)


def test_also_joins_two_sets_of_rows_once() -> None:
    first, second = make_sample(20, seed=1, tied=False), make_sample(20, seed=2, tied=False)
    rows = TunedRows.of(first.log_confidence)
    assert rows.also(None) is rows
    assert len(rows.also(rows)) == 20
    assert len(rows.also(TunedRows.of(second.log_confidence))) == 40
    numbers = TunedRows.of(first.log_confidence, np.arange(20, dtype=np.int64))
    hashes = TunedRows.of(second.log_confidence, np.arange(20, dtype=np.uint64))
    assert numbers.also(numbers).ids is not None and numbers.also(hashes).ids is None, (
        "own numbers are not compared with hashes"
    )


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: ag.Temperature.fit(*make_sample(5), pooling=ag.MergeRanks()),  # type: ignore[arg-type]
            "scores and risks pool confidences",
        ),
        (
            lambda: ag.TuningRanks.fit(*make_sample(5), times=(1, 2)),
            "times names 2 moments and log_confidence has 3 checkpoints",
        ),
        (lambda: ag.Temperature.fit(np.zeros((0, 1, 1, 2)), []), "holds nothing"),
        (lambda: ag.Spread(ag.LogLoss(), beta=math.inf), "beta is inf"),
        (lambda: ag.SpikeCP(0.9, (1,), 1, score="log-loss"), "give a fitted score"),  # type: ignore[arg-type]
        (
            lambda: ag.SpikeCP(0.9, (1,), 1, score=ag.LogLoss(), pooling=ag.MergeConfidence()),
            "give pooling=None",
        ),
    ],
)
def test_scores_refuse(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        call()
