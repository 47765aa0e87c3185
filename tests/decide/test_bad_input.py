"""What a user may get wrong: each mistake is refused with one sentence that says what was given,
what is needed and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import (
    Rule,
    Sample,
    assert_one_sentence,
    calibrate_quietly,
    make_sample,
)

TIMES = (1, 2, 3)
SAMPLE = make_sample(60)
RULES: dict[str, Rule] = {
    "plain": ag.SpikeCP(0.8, TIMES, 1, pooling=ag.MergeConfidence()),
    "simultaneous": ag.SpikeCP(
        0.8, TIMES, 1, pooling=ag.MergeConfidence(), calibration="simultaneous"
    ),
    "stop-aware": ag.SpikeCP(0.8, TIMES, 1, pooling=ag.MergeConfidence(), calibration="stop-aware"),
    "merged p-values": ag.SpikeCP(0.8, TIMES, 1, pooling=ag.MergePValues(r=1)),
    "merged ranks": ag.SpikeCP(0.8, TIMES, 1, pooling=ag.MergeRanks()),
    "votes": ag.SpikeCP(0.8, TIMES, 1, pooling=ag.MajorityVote()),
    "agree": ag.AgreeStop(0.8, TIMES, 1),
    "dcsnn": ag.DCSNN(0.8, TIMES, 1),
    "seenn": ag.SEENN(0.8, TIMES, 1),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def refused(call: Callable[[], object], match: str) -> None:
    """The call is refused with one sentence that matches."""
    with pytest.raises(ag.InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


def spoiled(value: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The sample with one other value."""
    array = SAMPLE.log_confidence.copy()
    array[3, 1, 0, 2] = value
    return array


BAD_SCORES: dict[str, tuple[Any, str]] = {
    "nan": (
        spoiled(math.nan),
        r"log_confidence holds nan at \[3, 1, 0, 2\]: every value must be finite",
    ),
    "inf": (spoiled(math.inf), r"log_confidence holds inf at \[3, 1, 0, 2\]"),
    "minus inf": (
        spoiled(-math.inf),
        r"holds -inf at \[3, 1, 0, 2\].*exactly 0 has no finite logarithm, so clip probabilities",
    ),
    "positive": (
        spoiled(0.25),
        "reaches 0.25, but the logarithm of a confidence is at most 0: pass spike counts or logits",
    ),
    "confidences": (np.exp(SAMPLE.log_confidence), "like probabilities: give their logarithm"),
    "strings": (np.full((60, 3, 2, 4), "x"), "must hold real numbers"),
    "booleans": (np.zeros((60, 3, 2, 4), dtype=bool), "must hold real numbers"),
    "complex": (SAMPLE.log_confidence.astype(complex), "must hold real numbers"),
    "three axes": (
        SAMPLE.log_confidence[0],
        r"shape \(3, 2, 4\): 4 axes \(n, M, K, C\) are needed for inputs, checkpoints, members and "
        r"classes; if they are of one model, give log_confidence\[:, :, None, :\]",
    ),
    "a number": (-1.0, r"shape \(\): 4 axes"),
    "nothing": (None, "must hold real numbers"),
    "no rows": (SAMPLE.log_confidence[:0], "holds nothing: every axis"),
    "no classes": (SAMPLE.log_confidence[..., :0], "holds nothing"),
    "fewer checkpoints": (
        SAMPLE.log_confidence[:, :2],
        "has 2 checkpoints and the rule has 3: give as many, or pass times=",
    ),
}
bad_scores = pytest.mark.parametrize(("array", "match"), BAD_SCORES.values(), ids=BAD_SCORES.keys())


@every_rule
@bad_scores
def test_calibrate_refuses_scores(rule: Rule, array: Any, match: str) -> None:
    rows = len(array) if getattr(array, "ndim", 0) else 1
    refused(lambda: rule.calibrate(array, SAMPLE.labels[:rows]), match)


@every_rule
@bad_scores
def test_decide_refuses_scores(rule: Rule, array: Any, match: str) -> None:
    calibrated = calibrate_quietly(rule, SAMPLE)
    refused(
        lambda: calibrated.decide(array),
        "classes|holds nothing" if match == "holds nothing" else match,
    )


@bad_scores
def test_repeat_splits_refuses_scores(array: Any, match: str) -> None:
    rows = len(array) if getattr(array, "ndim", 0) else 1
    refused(lambda: ag.repeat_splits(RULES["plain"], array, SAMPLE.labels[:rows]), match)


@pytest.mark.parametrize("kind", [ag.Temperature, ag.TuningRanks, ag.TopMass, ag.LearnedRisk])
@pytest.mark.parametrize("name", sorted(set(BAD_SCORES) - {"fewer checkpoints"}))
def test_fit_refuses_scores(kind: Any, name: str) -> None:
    array, match = BAD_SCORES[name]
    rows = len(array) if getattr(array, "ndim", 0) else 1
    refused(lambda: kind.fit(array, SAMPLE.labels[:rows]), match)


BAD_LABELS: dict[str, tuple[Any, str]] = {
    "too large": (
        np.where(np.arange(60) == 7, 4, SAMPLE.labels),
        "labels holds 4, but there are 4 classes: labels run from 0 to 3",
    ),
    "negative": (np.where(np.arange(60) == 7, -1, SAMPLE.labels), "labels holds -1"),
    "too few": (SAMPLE.labels[:59], "labels has 59 entries for 60 inputs"),
    "too many": (np.append(SAMPLE.labels, 0), "labels has 61 entries for 60 inputs"),
    "floats": (
        SAMPLE.labels.astype(float),
        r"dtype float64: class indices as integers are needed; convert whole numbers with "
        r"astype\(int\)",
    ),
    "booleans": (SAMPLE.labels > 1, "dtype bool"),
    "strings": (SAMPLE.labels.astype(str), "class indices as integers"),
    "one-hot": (np.eye(4, dtype=int)[SAMPLE.labels], r"labels has shape \(60, 4\): one axis"),
    "a number": (3, r"labels has shape \(\)"),
    "nothing": ([], "labels has 0 entries"),
}
bad_labels = pytest.mark.parametrize(
    ("labels", "match"), BAD_LABELS.values(), ids=BAD_LABELS.keys()
)


@every_rule
@bad_labels
def test_calibrate_refuses_labels(rule: Rule, labels: Any, match: str) -> None:
    refused(lambda: rule.calibrate(SAMPLE.log_confidence, labels), match)


@bad_labels
def test_others_refuse_labels(labels: Any, match: str) -> None:
    decisions = calibrate_quietly(RULES["agree"], SAMPLE).decide(SAMPLE.log_confidence)
    refused(lambda: ag.evaluate(decisions, labels), match)
    refused(lambda: ag.repeat_splits(RULES["agree"], SAMPLE.log_confidence, labels), match)
    refused(lambda: ag.Temperature.fit(SAMPLE.log_confidence, labels), match)
    refused(lambda: ag.TopMass.fit(SAMPLE.log_confidence, labels), match)
    refused(lambda: ag.Scores(SAMPLE.log_confidence, labels, TIMES), match)


MAKERS: dict[str, Callable[..., Rule]] = {
    "SpikeCP": lambda target=0.9, checkpoints=TIMES, size=1, delta=None: ag.SpikeCP(
        target, checkpoints, size, delta=delta
    ),
    "AgreeStop": lambda target=0.9, checkpoints=TIMES, size=1, delta=None: ag.AgreeStop(
        target, checkpoints, size, delta=delta
    ),
    "DCSNN": lambda target=0.9, checkpoints=TIMES, size=1: ag.DCSNN(target, checkpoints, size),
    "SEENN": lambda checkpoints=TIMES, size=1: ag.SEENN(0.9, checkpoints, size),
}


@pytest.mark.parametrize("kind", ["SpikeCP", "AgreeStop", "DCSNN"])
@pytest.mark.parametrize(
    "target",
    [0, 1, 0.0, 1.0, -0.1, 1.1, 90, "1", "10/9", math.nan, math.inf, "nine tenths", "", None, True],
)
def test_a_target_outside_zero_and_one_is_refused(kind: str, target: object) -> None:
    refused(
        lambda: MAKERS[kind](target=target),
        "^target is .*(must lie strictly between 0 and 1|give a probability such as 0.9)",
    )


@pytest.mark.parametrize("kind", ["SpikeCP", "AgreeStop"])
@pytest.mark.parametrize("delta", [0, 1, -0.1, "often", math.nan])
def test_a_delta_outside_zero_and_one_is_refused(kind: str, delta: object) -> None:
    refused(lambda: MAKERS[kind](delta=delta), "^delta is")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("checkpoints", "match"),
    [
        ((), "checkpoints is empty"),
        ((1, 3, 2), "checkpoints must increase, but 2 follows 3: sort them and drop repeats"),
        ((1, 1), "checkpoints must increase, but 1 follows 1"),
        ((0, 1), "checkpoints holds 0: times must be positive"),
        ((-1, 1), "positive and finite"),
        ((1, math.inf), "positive and finite"),
        ((math.nan,), "positive and finite"),
        (("1", "2"), "give times as numbers"),
        ((True, 2), "give times as numbers"),
        ((1, None), "give times as numbers"),
    ],
)
def test_checkpoints_that_do_not_increase_are_refused(
    kind: str, checkpoints: object, match: str
) -> None:
    refused(lambda: MAKERS[kind](checkpoints=checkpoints), match)


@pytest.mark.parametrize("kind", MAKERS)
def test_checkpoints_that_are_no_list_are_refused(kind: str) -> None:
    refused(lambda: MAKERS[kind](checkpoints=None), "checkpoints is None")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("size", [0, -1, 1.0, 2.5, "3", None, True])
def test_a_largest_set_that_is_no_positive_integer_is_refused(kind: str, size: object) -> None:
    refused(lambda: MAKERS[kind](size=size), "max_set_size is .* an integer of at least 1")


@every_rule
def test_deciding_before_calibrating_is_refused(rule: Rule) -> None:
    name = type(rule).__name__
    refused(
        lambda: rule.decide(SAMPLE.log_confidence),
        f"this {name} is not calibrated yet: call its calibrate",
    )
    refused(lambda: rule.decide(SAMPLE.log_confidence, times=TIMES), "is not calibrated yet")
    refused(lambda: rule.stream(), "is not calibrated yet")


@every_rule
def test_pushing_after_the_stop_is_refused(rule: Rule) -> None:
    session = calibrate_quietly(rule, SAMPLE).stream()
    pushes = iter(SAMPLE.log_confidence[0])
    while session.push(next(pushes)) is None:
        pass
    assert session.decision is not None
    decision, time = session.decision, session.decision.time
    refused(
        lambda: session.push(SAMPLE.log_confidence[0, 0]),
        f"this input stopped at time {time}: open a new session",
    )
    assert session.decision is decision


@every_rule
def test_a_refused_push_changes_nothing(rule: Rule) -> None:
    calibrated = calibrate_quietly(rule, SAMPLE)
    clean, session = calibrated.stream(), calibrated.stream()
    for values in SAMPLE.log_confidence[5]:
        for wrong, match in (
            (values[0], r"2 axes \(K, C\)"),
            (values * math.nan, "holds nan"),
            (-values + 1, "at most 0"),
            (values[:1], "has 1 members"),
            (values[:, :3], "has 3 classes"),
        ):
            with pytest.raises(ag.InputError, match=match):
                session.push(wrong)
        decision = clean.push(values)
        assert session.push(values) == decision
        if decision is not None:
            break


@every_rule
def test_another_number_of_members_or_classes_is_refused(rule: Rule) -> None:
    calibrated = calibrate_quietly(rule, SAMPLE)
    members = (
        "log_confidence has 3 members, but the rule was calibrated with 2: give the same ensemble"
    )
    refused(lambda: calibrated.decide(make_sample(5, members=3).log_confidence), members)
    refused(
        lambda: calibrated.decide(make_sample(5, classes=5).log_confidence),
        "log_confidence has 5 classes, but .* with 4",
    )
    refused(
        lambda: calibrated.stream().push(make_sample(5, members=3).log_confidence[0, 0]), members
    )


@every_rule
def test_times_that_do_not_fit_are_refused(rule: Rule) -> None:
    calibrated = calibrate_quietly(rule, SAMPLE)
    for call in (
        lambda times: rule.calibrate(*SAMPLE, times=times),
        lambda times: calibrated.decide(SAMPLE.log_confidence, times=times),
        lambda times: ag.repeat_splits(rule, *SAMPLE, times=times),
    ):
        refused(
            lambda call=call: call((1, 2)),  # type: ignore[misc]
            "times names 2 moments and log_confidence has 3 checkpoints: give one time for each "
            "index of its second axis",
        )
        refused(
            lambda call=call: call((1, 2, 4)),  # type: ignore[misc]
            "times lacks the rule's checkpoint 3: log_confidence has 3 times from 1 to 4, so give",
        )
        refused(lambda call=call: call((1, 3, 2)), "must increase")  # type: ignore[misc]


def test_several_members_without_pooling_are_refused() -> None:
    match = r"log_confidence has 2 members but pooling is None: give pooling=MergeConfidence\(r=1\)"
    refused(lambda: ag.SpikeCP(0.8, TIMES, 1).calibrate(*SAMPLE), match)
    refused(lambda: ag.repeat_splits(ag.SpikeCP(0.8, TIMES, 1), *SAMPLE), match)


RANKED = (
    ag.MergePValues(r=1),
    ag.MergePValues(r=1, form="exchangeable"),
    ag.MergeRanks(),
    ag.MajorityVote(),
)


@pytest.mark.parametrize("pooling", RANKED, ids=repr)
@pytest.mark.parametrize("calibration", ["simultaneous", "stop-aware"])
def test_combinations_without_a_guarantee_are_refused(pooling: Any, calibration: str) -> None:
    name = type(pooling).__name__
    match = (
        rf"{name} has no guarantee with {calibration} calibration: use "
        r"calibration='bonferroni', or pooling=MergeConfidence"
    )
    refused(lambda: ag.SpikeCP(0.9, TIMES, 1, pooling=pooling, calibration=calibration), match)


@pytest.mark.parametrize("pooling", RANKED, ids=repr)
@pytest.mark.parametrize(
    "settings", [{"delta": 0.1}, {"class_conditional": True, "delta": 0.1}], ids=str
)
def test_conditional_promises_without_a_guarantee_are_refused(
    pooling: Any, settings: dict[str, Any]
) -> None:
    match = "has no training-conditional guarantee: use pooling=MergeConfidence"
    refused(lambda: ag.SpikeCP(0.9, TIMES, 1, pooling=pooling, **settings), match)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: ag.SpikeCP(0.9, TIMES, 1, calibration="holm"),
            "calibration is 'holm': choose one of bonferroni, simultaneous, stop-aware",
        ),
        (
            lambda: ag.SpikeCP(0.9, TIMES, 1, pooling="mean"),  # type: ignore[arg-type]
            "pooling is 'mean': give MergeConfidence",
        ),
        (lambda: ag.SpikeCP(0.9, TIMES, 1, pooling=ag.MergeConfidence), "pooling is <class"),  # type: ignore[arg-type]
        (
            lambda: ag.SpikeCP(0.9, TIMES, 1, score=ag.LogLoss(), pooling=ag.MergeRanks()),
            "give pooling=None",
        ),
        (lambda: ag.AgreeStop(0.9, TIMES, 1, risk=0.1), "risk is 0.1"),  # type: ignore[arg-type]
        (lambda: ag.DCSNN(0.9, TIMES, 1, grid=()), "grid must hold increasing confidences"),
        (lambda: ag.DCSNN(0.9, TIMES, 1, grid=(0.9, 0.5)), "grid must hold increasing confidences"),
        (lambda: ag.DCSNN(0.9, TIMES, 1, grid=(0.5, 0.5)), "grid must hold increasing confidences"),
        (lambda: ag.DCSNN(0.9, TIMES, 1, grid=(0.0, 0.5)), "between 0 and 1"),
        (lambda: ag.DCSNN(0.9, TIMES, 1, grid=(0.5, math.nan)), "between 0 and 1"),
        (lambda: ag.SEENN(0.0, TIMES, 1), "threshold is 0.0"),
        (lambda: ag.SEENN(1.5, TIMES, 1), "threshold is 1.5"),
        (lambda: ag.SEENN("0.9", TIMES, 1), "threshold is '0.9'"),  # type: ignore[arg-type]
        (lambda: ag.SEENN(math.nan, TIMES, 1), "threshold is nan"),
    ],
)
def test_other_settings_are_refused(call: Callable[[], object], match: str) -> None:
    refused(call, match)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(ag.AgreeStop, {"risk": ag.TopMass}), (ag.SpikeCP, {"score": ag.Temperature})],
)
def test_a_class_where_an_instance_is_needed_is_refused(
    kind: Callable[..., Rule], settings: dict[str, Any]
) -> None:
    refused(lambda: kind(0.9, TIMES, 1, **settings), "is <class")


@pytest.mark.parametrize(
    "call",
    [
        lambda: ag.DCSNN(0.9, TIMES, 1, grid=("a", "b")),  # type: ignore[arg-type]
        lambda: ag.log_confidence(["a", "b"]),
        lambda: ag.log_confidence([1.0, 2.0], axis=3),
        lambda: ag.generalized_mean(["a"], 1),
        lambda: ag.p_values(["a"], [1.0]),
        lambda: ag.repeat_splits(RULES["plain"], *SAMPLE, n_calibration=20.5),  # type: ignore[arg-type]
    ],
)
def test_mistakes_that_deserve_a_sentence(call: Callable[[], object]) -> None:
    with pytest.raises(ag.InputError):
        call()


def test_an_input_error_is_a_value_error() -> None:
    assert issubclass(ag.InputError, ValueError)
    assert issubclass(ag.CalibrationWarning, UserWarning)


@pytest.mark.parametrize(
    "rule",
    [ag.SpikeCP(0.99, TIMES, 1, pooling=ag.MergeConfidence()), ag.AgreeStop(0.99, TIMES, 1)],
    ids=["spikecp", "agree"],
)
def test_the_warning_is_one_sentence_and_points_at_the_caller(rule: Rule) -> None:
    with pytest.warns(ag.CalibrationWarning) as caught:
        rule.calibrate(*SAMPLE)
    assert len(caught) == 1
    assert_one_sentence(str(caught[0].message))
    assert caught[0].filename == __file__


def test_a_class_conditional_warning_is_one_sentence() -> None:
    few = Sample(SAMPLE.log_confidence, np.zeros(60, dtype=np.int64))
    with pytest.warns(
        ag.CalibrationWarning, match="class 1 has 0, class 2 has 0, class 3"
    ) as caught:
        ag.AgreeStop(0.9, TIMES, 1, class_conditional=True).calibrate(*few)
    assert_one_sentence(str(caught[0].message))
