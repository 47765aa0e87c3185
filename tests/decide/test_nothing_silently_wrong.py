"""What used to be silently wrong: reused calibration rows, vacuous rules, nan thresholds, lost
masks, other classes, forged files.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import as_array, coverage_draws
from agreestop.decide.confidence import MODEL_AVERAGE
from tests.decide.strategies import (
    LEARNED,
    Rule,
    Score,
    Shaped,
    assert_one_sentence,
    calibrate_quietly,
    decisions_of_an_engine,
    make_sample,
)

TIMES = (1, 2, 3)
RULE = ag.AgreeStop(0.8, TIMES, 1)


def scores(n: int, seed: int, tied: bool = False, **known: Any) -> ag.Scores:
    return ag.Scores(*make_sample(n, seed=seed, tied=tied), TIMES, **known)


def refused(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


# ------------------------------------------------------------------------------------------
# checkpoints that do harm


def test_calibrate_notes_where_more_checkpoints_stop_later() -> None:
    """Members that are far too sure at first: raw risks are not comparable across times, fitted
    ones are.
    """
    made, times = ag.simulate_scores(600, steps=40, K=3, C=5, seed=3), tuple(range(1, 41))
    heat = 30 / np.array(times)[:, None, None]
    rows = ag.Scores(ag.log_confidence(heat * made.log_confidence), made.labels, tuple(times))
    calibration, other = rows.split(0.5, 0.5, seed=0)
    stop_aware = ag.SpikeCP(0.9, times, 1, MODEL_AVERAGE, "stop-aware")
    for rule in (ag.AgreeStop(0.9, times, 1), stop_aware):
        (note,) = rule.calibrate(calibration).notes
        assert (
            "later on the calibration rows" in note
            and "than with 10, 20, 30, 40" in note
            and "ag.tune" in note
        )
    fitted = ag.TopMass.fit(other)
    for rule in (ag.AgreeStop(0.9, times, 1, risk=fitted), ag.AgreeStop(0.9, times[9::10], 1)):
        assert rule.calibrate(calibration).notes == ()
    assert ag.AgreeStop(0.9, times, 1).calibrate(made.rows(slice(0, 300))).notes == ()


# ------------------------------------------------------------------------------------------ rows
# that were used for calibration


@pytest.mark.parametrize("ids", [None, "own", "hashes"])
def test_evaluation_refuses_rows_that_the_rule_was_calibrated_on(
    ids: str | None, tmp_path: Path
) -> None:
    """One row in 60 is enough, from Python and through files, whether ids or scores show it."""
    kind = np.uint64 if ids == "hashes" else np.int64
    calibration, test = scores(80, 1), scores(60, 2)
    if ids is not None:
        calibration = replace(calibration, ids=np.arange(80, dtype=kind))
        test = replace(test, ids=np.arange(1000, 1060, dtype=kind))
    RULE.calibrate(calibration).save(tmp_path / "rule")
    for rule in (RULE.calibrate(calibration), ag.load_rule(tmp_path / "rule")):
        assert ag.evaluate(rule.decide(test), test).n == 60
        mixed = test.log_confidence.copy()
        mixed[7] = calibration.log_confidence[11]
        with_one = replace(test, log_confidence=mixed)
        if test.ids is not None:
            with_one = replace(test, ids=np.r_[test.ids[:7], kind(11), test.ids[8:]])
        refused(
            lambda: ag.evaluate(rule.decide(with_one), test),  # noqa: B023
            "1 of the 60 rows were used for calibration",
        )
        refused(
            lambda: ag.evaluate(rule.decide(calibration), calibration),  # noqa: B023
            "80 of the 80 rows were used for calibration",
        )


def test_ids_of_another_kind_are_not_compared_and_the_scores_are() -> None:
    calibration = scores(80, 1, ids=np.arange(80))
    reused = replace(calibration, ids=np.arange(80, dtype=np.uint64) << np.uint64(40))
    assert (
        RULE.calibrate(calibration)
        .decide(reused)
        .reuse.startswith("80 of the 80 rows were used for calibration")
    )
    tuned = replace(RULE, risk=ag.TopMass.fit(calibration))
    refused(lambda: tuned.calibrate(reused), "calibration: 80 of the 80 rows were used for tuning")


def test_what_could_not_be_checked_is_said(tmp_path: Path) -> None:
    counts = RULE.calibrate(scores(80, 1, tied=True))
    (note,) = counts.decide(scores(60, 2, tied=True)).notes
    assert "by their scores, which repeat by chance" in note
    known = replace(counts, rows=None)
    assert "does not say which rows it was calibrated on" in known.decide(scores(60, 2)).notes[0]
    (unknown,) = decisions_of_an_engine(counts, 2).notes
    assert "could not be compared" in unknown
    assert RULE.calibrate(scores(80, 1)).decide(scores(60, 2)).notes == ()
    test = scores(60, 2, tied=True)
    assert ag.evaluate(counts.decide(test), test).notes == (note,)


@pytest.mark.parametrize(
    "rule", [ag.AgreeStop(0.8, (3,), 1), ag.SpikeCP(0.8, (3,), 1), ag.SpikeCP(0.8, TIMES, 1)]
)
def test_a_tuned_rule_keeps_its_rows_whatever_was_chosen(rule: ag.AgreeStop | ag.SpikeCP) -> None:
    tuning = scores(120, 3)
    tuned = ag.tune(rule, tuning, n_calibration=40, repeats=2, exponents=(1.0,)).rule
    assert tuned.tuned is not None
    refused(lambda: tuned.calibrate(tuning), "120 of the 120 rows were used for tuning")


# ----------------------------------------------------------------------------------------------
# rules that can never stop early


def test_a_rule_that_can_never_stop_says_so() -> None:
    sample = make_sample(50)
    short = calibrate_quietly(ag.AgreeStop(0.99, TIMES, 1), sample)
    assert short.never_stops and short.examples_needed == 99 and "never stops early" in repr(short)
    assert set(short.decide(make_sample(30, seed=4).log_confidence).stop_index) == {2}
    enough = ag.AgreeStop(0.9, TIMES, 1).calibrate(*sample)
    assert not enough.never_stops and enough.examples_needed == 9


@pytest.mark.parametrize(("size", "never"), [(1, True), (2, False)])
def test_a_rare_class_stays_in_every_set_of_its_own_quantile(size: int, never: bool) -> None:
    sample = make_sample(200)
    rare = np.flatnonzero(sample.labels < 2)
    # classes 0 and 1 have one example or two
    labels = np.where(np.isin(np.arange(200), rare[2:]), 2, sample.labels)
    for calibration in ("bonferroni", "simultaneous"):
        rule = ag.SpikeCP(
            0.8, TIMES, size, ag.MergeConfidence(), calibration, class_conditional=True
        )
        with pytest.warns(ag.CalibrationWarning, match="Class-conditional"):
            assert rule.calibrate(sample.log_confidence, labels).never_stops == never
    with pytest.warns(ag.CalibrationWarning, match="Class-conditional"):
        assert (
            ag.AgreeStop(0.8, TIMES, size, class_conditional=True)
            .calibrate(sample.log_confidence, labels)
            .never_stops
        )


def test_sets_that_may_hold_all_classes_are_warned_of() -> None:
    sample = make_sample(50)
    for size in (4, 5):
        with pytest.warns(
            ag.CalibrationWarning,
            match=f"max_set_size is {size} and there are 4 classes.*give at most 3",
        ):
            ag.AgreeStop(0.8, TIMES, size).calibrate(*sample)
    with pytest.warns(ag.CalibrationWarning, match="max_set_size"):
        ag.repeat_splits(ag.AgreeStop(0.8, TIMES, 4), *sample, n_calibration=20, repeats=2)


# ------------------------------------------------------------------------------------------- what
# the draws of the data explain


def test_the_range_that_a_calibration_draw_explains_holds_most_draws() -> None:
    """W is uniform here, so coverage given the draw is Beta; 200 draws, of which a range at 90 %
    holds 180 on average (± 4.2).
    """
    rng = np.random.default_rng(0)
    n, tests, rank, inside = 50, 40, 46, 0
    draws = coverage_draws(n, rank, tests)
    low, high = np.searchsorted(draws, (0.05, 0.95))
    for _ in range(200):
        threshold = np.sort(rng.random(n))[rank - 1]
        inside += low <= np.count_nonzero(rng.random(tests) <= threshold) <= high
    assert 167 <= inside <= 200
    assert math.isclose(draws[-1], 1.0) and (np.diff(draws) > 0).all()


def test_the_law_of_a_draw_is_given_for_rules_with_one_threshold_alone() -> None:
    calibration, test = scores(80, 1), scores(60, 2)
    average = ag.MergeConfidence()
    single = (
        RULE,
        ag.SpikeCP(0.8, TIMES, 1, average, "stop-aware"),
        ag.SpikeCP(0.8, TIMES, 1, average, "simultaneous"),
        ag.AgreeStop(0.8, TIMES, 1, delta=0.1),
    )
    for rule in single:
        result = ag.evaluate(rule.calibrate(calibration).decide(test), test)
        assert result.draw_range is not None and result.draw_range[0] < 0.8 < result.draw_range[1]
        assert result.draws_this_low is not None and 0 <= result.draws_this_low <= 1
    several: list[Rule] = [
        ag.SpikeCP(0.8, TIMES, 1, pooling)
        for pooling in (average, ag.MergePValues(5), ag.MergeRanks(), ag.MajorityVote())
    ]
    several += [
        ag.AgreeStop(0.5, TIMES, 1, class_conditional=True),
        ag.DCSNN(0.8, TIMES, 1),
        ag.SEENN(0.8, TIMES, 1),
    ]
    for other in several:
        result = ag.evaluate(
            calibrate_quietly(other, make_sample(80, tied=False)).decide(test), test
        )
        assert (result.draw_range, result.draws_this_low) == (None, None)


@pytest.mark.parametrize(("n", "given"), [(3, False), (4, True)])
def test_a_threshold_that_no_calibration_example_reaches_has_no_law(n: int, given: bool) -> None:
    """At target 0.8 the threshold is the fourth smallest of n losses; with three examples it is
    infinite and covers everything.
    """
    test = scores(60, 2)
    result = ag.evaluate(calibrate_quietly(RULE, make_sample(n, tied=False)).decide(test), test)
    assert (result.draw_range is not None, result.draws_this_low is not None) == (given, given)
    assert given or float(result.coverage) == 1


def test_splits_have_an_interval_for_the_draw_of_the_pool() -> None:
    pool = ag.simulate_scores(120, steps=12, K=2, C=4)
    splits = ag.repeat_splits(
        ag.AgreeStop(0.8, range(1, 13), 1), pool, n_calibration=30, repeats=12
    )
    wide = splits.over_pools
    assert float(wide.coverage) == float(splits.coverage) and float(wide.set_size) == float(
        splits.set_size
    )
    assert wide.normalized_latency.se > 1.5 * splits.normalized_latency.se
    assert (
        wide.normalized_latency.low
        < splits.normalized_latency.low
        < splits.normalized_latency.high
        < wide.normalized_latency.high
    )
    # 12 steps, 2 members
    assert wide.work is not None and float(wide.work) == pytest.approx(
        12 * 2 * float(wide.normalized_latency)
    )
    assert wide.work.se == pytest.approx(12 * 2 * wide.normalized_latency.se)
    assert splits.figures.shape == (3, 12)
    small = ag.repeat_splits(
        ag.AgreeStop(0.8, range(1, 13), 1), pool, n_calibration=115, repeats=2
    ).over_pools
    assert math.isnan(small.coverage.se)


# ---------------------------------------------------------------------------------------------
# thresholds never come from a nan


def test_a_first_offset_of_minus_infinity_stops_nothing_and_loses_no_coverage() -> None:
    risk = ag.ShapedRisk(ag.TopMass(), np.array([-np.inf, 0.0, 0.0]), TIMES)
    for size, fill in ((1, False), (4, False), (4, True)):
        rule, pool = ag.AgreeStop(0.9, TIMES, size, fill, risk), make_sample(600, seed=1)
        assert (
            calibrate_quietly(rule, make_sample(100, seed=1)).decide(pool.log_confidence).stop_index
            > 0
        ).all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ag.CalibrationWarning)
            assert ag.repeat_splits(rule, *pool, n_calibration=100, repeats=40).coverage > 0.89


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e12, -1e12])
def test_constants_are_checked_where_they_enter(bad: float) -> None:
    numbers = np.array([1.0, bad, 1.0])
    refused(lambda: ag.Temperature(MODEL_AVERAGE, numbers), "temperatures holds")
    refused(lambda: ag.TopMass(temperatures=numbers), "temperatures holds")
    refused(lambda: Shaped(ag.LogLoss(), numbers), "offsets holds")
    refused(lambda: ag.LearnedRisk(ag.TopMass(), 1, np.ones(9), 0.0, numbers), "log_times holds")
    if not math.isfinite(bad):
        refused(lambda: ag.TuningRanks(MODEL_AVERAGE, np.full((3, 64), bad)), "quantiles holds")
    refused(lambda: ag.Spread(ag.LogLoss(), bad), "beta is")
    # a fit may need large ones
    refused(lambda: ag.LearnedRisk(ag.TopMass(), 1, np.ones(9), 1e20 * bad, np.zeros(3)), "bias is")
    refused(
        lambda: ag.LearnedRisk(ag.TopMass(), 1, np.full(9, 1e20 * bad), 0.0, np.zeros(3)),
        "weights holds",
    )
    if bad != -math.inf:
        refused(lambda: ag.ShapedRisk(ag.TopMass(), numbers), "offsets holds")


def test_temperatures_are_positive() -> None:
    for numbers in ([0.0, 1.0], [-1.0, 1.0]):
        refused(lambda: ag.TopMass(temperatures=np.array(numbers)), "greater than 0")  # noqa: B023


@dataclass(frozen=True)
class HalfKnown(Score):
    """A score of a user that is nan for one class."""

    def losses(self, index: int, log_confidence: Any) -> Any:
        values = -log_confidence[:, 0]
        values[:, 1] = np.nan
        return values


def test_a_score_that_is_nan_is_refused() -> None:
    for calibration in ("bonferroni", "simultaneous", "stop-aware"):
        rule = ag.SpikeCP(0.8, TIMES, 1, calibration=calibration, score=HalfKnown())
        refused(lambda: rule.calibrate(*make_sample(50)), "is nan for some inputs")  # noqa: B023


@pytest.mark.parametrize("r", [-math.inf, -1, 0, 1, math.inf])
def test_confidences_near_the_smallest_float_are_answered(r: float) -> None:
    assert np.isfinite(ag.MergeConfidence(r).pool(np.full((1, 3, 2), -1.7e308))).all()
    sample = make_sample(60, tied=False)
    tiny = np.where(sample.log_confidence < -1, -1.7e308, sample.log_confidence)
    fresh = make_sample(60, seed=5, tied=False).log_confidence
    tiny_fresh = np.where(fresh < -1, -1.7e308, fresh)
    rules = [
        ag.SpikeCP(0.8, TIMES, 1, ag.MergeConfidence(r), "stop-aware"),
        ag.SpikeCP(0.8, TIMES, 1, ag.MergeConfidence(r), "simultaneous"),
        ag.SpikeCP(
            0.8,
            TIMES,
            1,
            None,
            "stop-aware",
            ag.Temperature(ag.MergeConfidence(r), np.full(3, 40.0)),
        ),
        ag.AgreeStop(0.8, TIMES, 1, risk=ag.TopMass(ag.MergeConfidence(r), np.full(3, 40.0))),
    ]
    for rule in rules:
        assert (rule.calibrate(tiny, sample.labels).decide(tiny_fresh).set_size >= 1).all()


# --------------------------------------------------------------------------------------------------
# arrays of every origin


def test_masked_entries_are_refused_and_masks_without_any_are_taken() -> None:
    sample = make_sample(50)
    masked = np.ma.masked_array(sample.log_confidence, mask=False)
    assert RULE.calibrate(masked, sample.labels).fingerprint == RULE.calibrate(*sample).fingerprint
    masked[3, 0] = np.ma.masked
    refused(lambda: RULE.calibrate(masked, sample.labels), "log_confidence has masked entries")
    refused(
        lambda: RULE.calibrate(sample.log_confidence, np.ma.masked_equal(sample.labels, 1)),
        "labels has masked entries",
    )
    refused(
        lambda: RULE.calibrate(list(masked), sample.labels), "log_confidence has masked entries"
    )


def test_tensors_are_taken_with_gradient_in_bfloat16_and_in_lists() -> None:
    torch = pytest.importorskip("torch")
    sample = make_sample(50)
    tensor = torch.tensor(sample.log_confidence, requires_grad=True)
    assert (
        RULE.calibrate(tensor, torch.tensor(sample.labels)).fingerprint
        == RULE.calibrate(*sample).fingerprint
    )
    assert as_array(tensor.to(torch.bfloat16), "x").dtype == np.float32
    assert as_array([tensor, tensor], "x").shape == (2, *sample.log_confidence.shape)
    assert as_array([[tensor], [tensor]], "x").shape == (2, 1, *sample.log_confidence.shape)
    assert as_array(torch.ones(2, dtype=torch.complex64).conj().imag, "x").tolist() == [0.0, 0.0]
    assert ag.log_confidence(torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)).shape == (
        2,
        3,
    )


def test_ragged_labels_are_refused() -> None:
    ragged: Any = [[0], [1, 2], 0]
    refused(
        lambda: RULE.calibrate(make_sample(3).log_confidence, ragged),
        "labels cannot be read as one array",
    )


# --------------------------------------------------------------------------------------------------
# names, runs and streams


def test_classes_in_another_order_are_refused() -> None:
    rule = RULE.calibrate(scores(80, 1, classes=("cat", "dog", "fox", "owl")))
    assert len(rule.decide(scores(60, 2, classes=("cat", "dog", "fox", "owl")))) == 60
    assert len(rule.decide(scores(60, 2))) == 60
    refused(
        lambda: rule.decide(scores(60, 2, classes=("cat", "fox", "dog", "owl"))),
        "class 'fox' where the rule was calibrated with 'dog'",
    )


def test_evaluate_takes_a_run_and_says_what_it_needs() -> None:
    @dataclass
    class Run:
        decisions: ag.Decisions

    test = scores(60, 2)
    decisions = RULE.calibrate(scores(80, 1)).decide(test)
    assert ag.evaluate(Run(decisions), test).coverage == ag.evaluate(decisions, test).coverage
    refused(lambda: ag.evaluate([1, 2], test), "decisions is of type list")


def test_sessions_count_themselves() -> None:
    rule = ag.SpikeCP(0.8, TIMES, 1, ag.MergePValues(1, "randomized")).calibrate(scores(80, 1))
    assert [
        ag.Session(rule).number,
        rule.stream().number,
        ag.Session(rule).number,
        rule.stream(7).number,
    ] == [0, 1, 2, 7]
    refused(lambda: rule.stream(-1), "number is -1")


def test_reprs_fit_on_a_line() -> None:
    test = scores(60, 2)
    rule = RULE.calibrate(scores(80, 1))
    decisions = rule.decide(test)
    for thing in (test, rule, decisions, ag.evaluate(decisions, test)):
        assert len(repr(thing)) < 200 and "\n" not in repr(thing)
    assert repr(test) == "Scores(60 inputs at 3 times, 2 members, 4 classes with labels)"


# --------------------------------------------------------------------------------------------------
# targets and rule files


@pytest.mark.parametrize("target", ["1e-99999999", "0." + "9" * 5000, "1e99999999"])
def test_absurd_targets_are_refused_at_once(target: Any) -> None:
    with pytest.raises(ag.InputError, match="target is") as caught:
        ag.AgreeStop(target, TIMES, 1)
    assert len(str(caught.value)) < 300


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a rule file and give it the checksum that fits."""
    line, _, content = path.read_bytes().partition(b"\n")
    words = line.split(b" ")
    header = json.loads(content[: int(words[2])])
    change(header["rule"])
    text = json.dumps(header).encode()
    content = text + content[int(words[2]) :]
    path.write_bytes(
        b" ".join(
            [*words[:2], str(len(text)).encode(), hashlib.sha256(content).hexdigest().encode()]
        )
        + b"\n"
        + content
    )


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "n": lambda rule: rule.update(n="many"),
    "guarantee": lambda rule: rule.update(guarantee=5),
    "engine": lambda rule: rule.update(engine=["dense"]),
    "names": lambda rule: rule.update(class_names=[1, 2, 3, 4]),
    "members": lambda rule: rule.update(members=0),
    "classes": lambda rule: rule.update(classes=10**9),
    "other classes": lambda rule: rule.update(classes=7),
    "learned": lambda rule: rule.update({LEARNED: rule["rule"]}),
    "rule": lambda rule: rule.update(rule=rule[LEARNED]),
    "threshold": lambda rule: rule[LEARNED].update(thresholds="low"),
    "thresholds": lambda rule: rule[LEARNED].update(thresholds={"array": 2}),
    "target": lambda rule: rule["rule"].update(target={"fraction": "1e-99999999"}),
    "checkpoints": lambda rule: rule["rule"].update(checkpoints=[1, 2, 3, 4]),
    "pooling": lambda rule: rule["rule"].update(pooling=rule[LEARNED]),
    "rows": lambda rule: rule.update(rows=3),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_rules_are_refused(
    forgery: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    path = tmp_path / "rule"
    ag.SpikeCP(0.8, TIMES, 1, ag.MergeConfidence(), class_conditional=True).calibrate(
        *make_sample(200)
    ).save(path)
    ag.load_rule(path)
    forge(path, forgery)
    with pytest.raises(ag.InputError) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        ag.load_rule(path)
    assert len(str(caught.value)) < 300


def test_text_of_a_rule_file_is_not_obeyed_by_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "rule"
    RULE.calibrate(scores(80, 1, engine="dense")).save(path)
    forge(path, lambda rule: rule.update(engine="\x1b[31mred"))
    with pytest.raises(ag.InputError) as caught:
        ag.load_rule(path).decide(scores(60, 2, engine="dense"))
    assert "\x1b" not in str(caught.value)
