"""Members that join: a schedule judges the first k members at each look, and is otherwise a list of
checkpoints.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import rule_reads

SCORES = ag.simulate_scores(300, steps=12, K=4, C=5, seed=1, pace=4)
TUNING = ag.simulate_scores(200, steps=12, K=4, C=5, seed=2, pace=4)
CALIBRATION, TEST = SCORES.rows(slice(100)), SCORES.rows(slice(100, 300))
pytestmark = pytest.mark.filterwarnings("ignore:Block-conditional:agreestop.CalibrationWarning")
LOOKS = [(1, 1), (1, 2), (3, 2), (4, 3), (4, 4), (8, 4), (12, 4)]
SCHEDULE = ag.Schedule(LOOKS)

RULES = [
    lambda checkpoints: ag.AgreeStop("0.8", checkpoints, 2),
    lambda checkpoints: ag.AgreeStop(
        "0.8", checkpoints, 1, fill=True, risk=ag.TopMass(ag.MergeConfidence(0.0))
    ),
    lambda checkpoints: ag.AgreeStop(
        "0.8", checkpoints, 2, risk=ag.ShapedRisk.per_time(ag.TopMass(), checkpoints, 0.5)
    ),
    lambda checkpoints: ag.AgreeStop(
        "0.8", checkpoints, 2, risk=ag.TopMass.fit(TUNING.at(checkpoints))
    ),
    lambda checkpoints: ag.AgreeStop("0.8", checkpoints, 2, gate=gate_at(checkpoints)),
    lambda checkpoints: ag.AgreeStop("0.8", checkpoints, 2, fill=True, risk=ag.FixedTime()),
    lambda checkpoints: ag.SpikeCP("0.8", checkpoints, 2, ag.MergeConfidence(1)),
    lambda checkpoints: ag.SpikeCP("0.8", checkpoints, 2, ag.MergeConfidence(1), "simultaneous"),
    lambda checkpoints: ag.SpikeCP(
        "0.8",
        checkpoints,
        2,
        calibration="stop-aware",
        score=ag.Temperature.fit(TUNING.at(checkpoints)),
    ),
    lambda checkpoints: ag.SpikeCP(
        "0.8",
        checkpoints,
        2,
        calibration="stop-aware",
        score=ag.TuningRanks.fit(TUNING.at(checkpoints)),
    ),
    lambda checkpoints: ag.DCSNN("0.8", checkpoints, 2),
    lambda checkpoints: ag.SEENN(0.9, checkpoints, 2),
]


def gate_at(checkpoints: Any) -> ag.Gate:
    return ag.Gate.fit(TUNING.at(checkpoints), target="0.8", max_set_size=2, blocks=3)


def same(one: ag.Decisions, other: ag.Decisions) -> None:
    for name in (
        "stop_index",
        "stop_time",
        "sets",
        "best",
        "first_risk",
        "block",
        "stop_members",
        "work",
    ):
        given, known = getattr(one, name), getattr(other, name)
        assert (given is None) == (known is None)
        if given is not None:
            np.testing.assert_array_equal(given, known, err_msg=name)


def test_a_schedule_is_the_tuple_of_its_times() -> None:
    assert tuple(SCHEDULE) == (1, 1, 3, 4, 4, 8, 12) and len(SCHEDULE) == 7 and SCHEDULE[-1] == 12
    assert (
        SCHEDULE.members == (1, 2, 2, 3, 4, 4, 4)
        and SCHEDULE.looks == tuple(LOOKS)
        and SCHEDULE.times == (1, 3, 4, 8, 12)
    )
    assert ag.Schedule(np.array(LOOKS)) == SCHEDULE and hash(SCHEDULE) == hash(ag.Schedule(LOOKS))
    assert repr(SCHEDULE) == f"Schedule({LOOKS})"
    assert tuple(SCHEDULE) != SCHEDULE and ag.Schedule([*LOOKS[:-1], (12, 5)]) != SCHEDULE
    assert (
        copy.deepcopy(SCHEDULE) == SCHEDULE
        and pickle.loads(pickle.dumps(SCHEDULE)).members == SCHEDULE.members
    )
    assert ag.AgreeStop("0.8", SCHEDULE, 2).checkpoints is SCHEDULE


@pytest.mark.parametrize(
    ("looks", "says"),
    [
        ([], "the schedule is empty"),
        (5, "needs pairs"),
        ([1, 2, 3], "needs pairs"),
        ([(1, 1, 1)], "needs pairs"),
        ([(2, 1), (1, 2)], r"\(1, 2\) follows \(2, 1\)"),
        ([(1, 2), (2, 1)], r"\(2, 1\) follows \(1, 2\)"),
        ([(1, 1), (1, 1)], "no look may repeat"),
        ([(0, 1)], "times must be positive"),
        ([(float("nan"), 1)], "times must be positive"),
        ([("1", 1)], "times must be positive"),
        ([(1, 0)], "holds 0 members"),
        ([(1, 1.5)], "holds 1.5 members"),
        ([(1, True)], "holds True members"),
    ],
)
def test_bad_looks_are_refused(looks: Any, says: str) -> None:
    with pytest.raises(ag.InputError, match=says) as caught:
        ag.Schedule(looks)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("make", RULES)
def test_all_members_at_every_look_is_the_plain_rule(make: Any) -> None:
    times = (1, 3, 4, 8, 12)
    plain, scheduled = (
        make(times).calibrate(CALIBRATION),
        make(ag.Schedule([(time, 4) for time in times])).calibrate(CALIBRATION),
    )
    np.testing.assert_array_equal(plain.thresholds, scheduled.thresholds)
    assert plain.fingerprint == scheduled.fingerprint and plain.guarantee == scheduled.guarantee
    same(plain.decide(TEST), scheduled.decide(TEST))


@pytest.mark.parametrize("make", RULES)
def test_every_look_reads_the_first_members(make: Any) -> None:
    """The definition: the evidence of look (t, k) is that of an ensemble of k members at time t."""
    rule = make(SCHEDULE)
    for index, (time, count) in enumerate(LOOKS):
        whole = np.ascontiguousarray(TEST.log_confidence[:, time - 1])
        found, few = (
            rule_reads(rule, index, whole),
            rule.evidence(index, np.ascontiguousarray(whole[:, :count])),
        )
        np.testing.assert_array_equal(found.values, few.values)
        np.testing.assert_array_equal(found.level, few.level)


@pytest.mark.parametrize("make", RULES)
def test_batch_stream_and_mixed_looks_agree(make: Any) -> None:
    calibrated = make(SCHEDULE).calibrate(CALIBRATION)
    decisions = calibrated.decide(TEST)
    assert decisions.stop_time.min() < 12 or isinstance(
        getattr(calibrated.rule, "risk", None), ag.FixedTime
    )
    for row in range(40):
        few, whole = calibrated.stream(row), calibrated.stream(row)
        for time, count in LOOKS:
            given = TEST.log_confidence[row, time - 1]
            one, other = few.push(given[:count]), whole.push(given)
            assert one == other
            if one is not None:
                break
        assert one == decisions[row]
        assert one is not None and one.members == decisions.stop_members[row] == LOOKS[one.index][1]
    # inputs at different looks in one call, as engines judge them
    index = np.arange(len(TEST)) % len(LOOKS)
    columns = np.array([time - 1 for time, _ in LOOKS])[index]
    mixed = rule_reads(calibrated.rule, index, TEST.log_confidence[np.arange(len(TEST)), columns])
    for row in range(len(TEST)):
        alone = rule_reads(
            calibrated.rule, int(index[row]), TEST.log_confidence[row : row + 1, columns[row]]
        )
        np.testing.assert_array_equal(mixed.values[row], alone.values[0])
        np.testing.assert_array_equal(mixed.level[row], alone.level[0])


@pytest.mark.parametrize("make", RULES)
def test_rule_files_keep_the_schedule(make: Any, tmp_path: Any) -> None:
    calibrated = make(SCHEDULE).calibrate(CALIBRATION)
    calibrated.save(tmp_path / "rule")
    loaded = ag.load_rule(tmp_path / "rule")
    assert loaded.rule.checkpoints == SCHEDULE and isinstance(loaded.checkpoints, ag.Schedule)
    same(calibrated.decide(TEST), loaded.decide(TEST))


def test_work_counts_the_members_that_joined() -> None:
    decisions = ag.AgreeStop("0.8", SCHEDULE, 2).calibrate(CALIBRATION).decide(TEST)
    looks = np.array(LOOKS)[decisions.stop_index]
    np.testing.assert_array_equal(decisions.stop_time, looks[:, 0])
    np.testing.assert_array_equal(decisions.stop_members, looks[:, 1])
    np.testing.assert_array_equal(decisions.work, looks.prod(axis=1))
    evaluation = ag.evaluate(decisions, TEST)
    assert evaluation.work == pytest.approx(looks.prod(axis=1).mean())
    assert [group.key for group in evaluation.by_stop_time] == np.unique(looks[:, 0]).tolist()
    assert sum(group.n for group in evaluation.by_stop_time) == len(TEST)


def test_without_a_schedule_all_members_work() -> None:
    decisions = ag.AgreeStop("0.8", range(1, 13), 2).calibrate(CALIBRATION).decide(TEST)
    np.testing.assert_array_equal(decisions.stop_members, np.full(len(TEST), 4))
    np.testing.assert_array_equal(decisions.work, 4 * decisions.stop_time)
    assert (
        ag.evaluate(decisions, TEST).work == pytest.approx(4 * decisions.stop_time.mean())
        and decisions[0].members == 4
    )
    bare = ag.Decisions(np.array([0]), np.array([[True, False]]), (4,))
    assert ag.evaluate(bare, [0]).work is None
    with pytest.raises(ag.InputError, match="how many members"):
        _ = bare.work


def test_scores_and_risks_are_fitted_on_the_members_that_have_joined() -> None:
    risk = ag.TopMass.fit(TUNING.at(SCHEDULE))
    assert risk.times == SCHEDULE
    for index, (time, count) in enumerate(LOOKS):
        few = ag.TopMass.fit(TUNING.log_confidence[:, time - 1 : time, :count], TUNING.labels)
        assert (
            risk.temperatures is not None
            and few.temperatures is not None
            and risk.temperatures[index] == few.temperatures[0]
        )
    for fitted in (ag.TopMass.fit(TUNING), ag.TopMass.fit(TUNING.at(SCHEDULE.times))):
        with pytest.raises(ag.InputError, match=r"fit it on scores\.at"):
            ag.AgreeStop("0.8", SCHEDULE, 2, risk=fitted)
    with pytest.raises(ag.InputError, match="plain checkpoints"):
        ag.AgreeStop("0.8", SCHEDULE.times, 2, risk=risk)
    fewer = ag.AgreeStop(
        "0.8", ag.Schedule(LOOKS[2:]), 2, risk=risk
    ).risk  # some of the looks that it was fitted at
    np.testing.assert_array_equal(fewer.temperatures, risk.temperatures[2:])  # type: ignore[attr-defined,index]
    with pytest.raises(ag.InputError, match=r"lacks the rule's checkpoint \(1, 3\)"):
        ag.AgreeStop("0.8", ag.Schedule([(1, 3), *LOOKS[3:]]), 2, risk=risk)


def test_rows_that_were_tuned_or_calibrated_on_are_recognised() -> None:
    rule = ag.AgreeStop("0.8", SCHEDULE, 2, risk=ag.TopMass.fit(TUNING.at(SCHEDULE)))
    with pytest.raises(ag.InputError, match="used for tuning"):
        rule.calibrate(TUNING)
    calibrated = rule.calibrate(CALIBRATION)
    assert calibrated.saw(CALIBRATION) and not calibrated.saw(TEST)
    with pytest.raises(ag.InputError, match="used for calibration"):
        ag.evaluate(calibrated.decide(CALIBRATION), CALIBRATION)
    assert ag.evaluate(calibrated.decide(TEST), TEST).n == len(TEST)


def test_arrays_hold_each_time_once() -> None:
    columns = [int(time) - 1 for time in SCHEDULE.times]
    array, labels = CALIBRATION.log_confidence[:, columns], CALIBRATION.labels
    calibrated = ag.AgreeStop("0.8", SCHEDULE, 2).calibrate(array, labels)
    same(calibrated.decide(TEST.log_confidence[:, columns]), calibrated.decide(TEST))
    same(calibrated.decide(TEST.at(SCHEDULE)), calibrated.decide(TEST))
    with pytest.raises(ag.InputError, match="7 checkpoints and the rule has 5"):
        calibrated.decide(np.repeat(array, 2, axis=1)[:, :7])


def test_more_members_than_there_are_is_refused(tmp_path: Any) -> None:
    rule = ag.AgreeStop("0.8", ag.Schedule([(1, 1), (12, 5)]), 2)
    with pytest.raises(ag.InputError, match="asks for 5 members and there are 4"):
        rule.calibrate(CALIBRATION)
    with pytest.raises(ag.InputError, match="has 4 members"):
        ag.repeat_splits(rule, CALIBRATION, n_calibration=50, repeats=2)
    session = ag.AgreeStop("0.8", SCHEDULE, 2).calibrate(CALIBRATION).stream()
    with pytest.raises(ag.InputError, match="has 3 members"):
        session.push(TEST.log_confidence[0, 0, :3])
    with pytest.raises(ag.InputError, match="has 4 classes"):
        session.push(TEST.log_confidence[0, 0, :1, :4])
    with pytest.raises(ag.InputError, match="save the scores that they were cut from"):
        ag.save_scores(tmp_path / "scores.npz", TEST.at(SCHEDULE))


@pytest.mark.parametrize("pooling", [ag.MergePValues(1), ag.MergeRanks(1), ag.MajorityVote()])
def test_rules_that_compare_members_one_by_one_refuse_a_schedule(pooling: Any) -> None:
    with pytest.raises(ag.InputError, match="with a schedule"):
        ag.SpikeCP("0.8", SCHEDULE, 2, pooling)


def test_members_that_never_join_are_never_read() -> None:
    """A schedule may leave members out for ever; then their scores change nothing."""
    schedule = ag.Schedule([(1, 1), (2, 2), (12, 3)])
    calibrated = ag.AgreeStop("0.8", schedule, 2).calibrate(CALIBRATION)
    other = TEST.log_confidence.copy()
    other[:, :, 3] = -1.0
    same(calibrated.decide(TEST), calibrated.decide(other, times=TEST.times))


def test_repeated_splits_measure_the_work() -> None:
    plain = ag.repeat_splits(
        ag.AgreeStop("0.8", range(1, 13), 2), SCORES, n_calibration=60, repeats=5
    )
    assert plain.work == pytest.approx(plain.normalized_latency * 4 * 12)
    assert plain.without is not None and plain.without(np.arange(300) < 20, 2).works is not None
    joined = ag.repeat_splits(ag.AgreeStop("0.8", SCHEDULE, 2), SCORES, n_calibration=60, repeats=5)
    assert joined.work is not None and 1 <= joined.work < 48 and joined.without is not None
    assert joined.without(np.arange(300) < 20, 2).works is not None


def test_the_blocks_of_a_gate_end_at_times() -> None:
    """Several looks at one time are in one block."""
    tuning = ag.simulate_scores(200, steps=12, K=4, C=5, seed=2, pace=15)
    looks = ag.Schedule([*((1, count) for count in (1, 2, 3, 4)), *((12, 4),)])
    ends = ag.Gate.fit(tuning.at(looks), target="0.5", max_set_size=3, blocks=5).ends
    assert list(ends) == sorted(set(ends)) and set(ends) <= {1, 12}
