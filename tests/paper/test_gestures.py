"""gesture-sim: people with limbs that keep their lengths, gestures that are what they are called,
and parts that share nobody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agreestop.common import Floats, InputError
from agreestop.events import EventData, EventSplits
from paper import stand_ins
from paper.stand_ins.gesture_figures import (
    ARM_REST,
    GESTURES,
    LEFT,
    LIGHTS,
    OTHERS,
    RIGHT,
    SWAY,
    Performance,
    joint_angles,
    joint_positions,
    render_frames,
)
from paper.stand_ins.gesture_sim import (
    PART,
    PEOPLE,
    SIZE,
    STEPS,
    draw_performance,
    draw_person,
    simulate_gestures,
)
from tests.decide.strategies import assert_one_sentence

TIMES = np.arange(0.0, 6.0, 0.01)
SETTLED = slice(250, None)  # every ramp is over
FEW = 10  # frames


@pytest.fixture(scope="module")
def few() -> EventSplits:
    return simulate_gestures(seed=0, sizes=(5, 2, 3), downsample=1, steps=FEW)


def parts(data: EventSplits) -> tuple[EventData, EventData, EventData]:
    return data.training, data.tuning, data.pool


def some_performances(gesture: str, count: int = 6) -> list[Performance]:
    """The first inputs, with this gesture instead of their own."""
    return [
        replace(draw_performance(number, 0), gesture=GESTURES.index(gesture), cadence=1.0)
        for number in range(count)
    ]


def hands(performance: Performance) -> Floats:
    """The fingertips (moments, 2, 3) once the gesture is under way."""
    return joint_positions(performance.person, joint_angles(performance, TIMES))[SETTLED, :, 3]


def turning(hand: Floats) -> float:
    """The area that a hand goes around, positive where it goes counter-clockwise in the picture (x
    to the right, y up).
    """
    x, y = (hand[:, :2] - hand[:, :2].mean(axis=0)).T
    return float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2


def test_the_parts_have_their_sizes_and_are_called_simulated(few: EventSplits) -> None:
    assert [len(part) for part in parts(few)] == [5, 2, 3]
    assert [part.name for part in parts(few)] == [
        "gesture-sim, training",
        "gesture-sim, tuning",
        "gesture-sim, pool",
    ]
    for part in parts(few):
        assert part.inputs.shape[1:] == (FEW, 2, *SIZE)
        assert part.inputs.dtype == np.uint8
        assert part.classes == GESTURES
        assert part.simulated
        assert "events are all simulated, nothing is recorded" in part.description
    streams = np.concatenate(
        [np.asarray(part.inputs).reshape(len(part), -1) for part in parts(few)]
    )
    assert len(np.unique(streams, axis=0)) == 10


def test_an_input_does_not_depend_on_the_others_nor_on_the_processes(few: EventSplits) -> None:
    fewer = simulate_gestures(seed=0, sizes=(1, 1, 2), downsample=1, steps=FEW)
    shared = simulate_gestures(seed=0, sizes=(5, 1, 1), downsample=1, steps=FEW, workers=2)
    for other in (fewer, shared):
        for part, whole in zip(parts(other), parts(few), strict=True):
            assert np.array_equal(part.inputs, whole.inputs[: len(part)])
            assert np.array_equal(part.labels, whole.labels[: len(part)])


def test_a_shorter_input_has_the_same_first_frames(few: EventSplits) -> None:
    start = simulate_gestures(seed=0, sizes=(1, 1, 1), downsample=1, steps=4)
    assert np.array_equal(start.pool.inputs, few.pool.inputs[:1, :4])


def test_another_seed_gives_other_inputs(few: EventSplits) -> None:
    other = simulate_gestures(seed=1, sizes=(1, 1, 1), downsample=1, steps=FEW)
    for part, whole in zip(parts(other), parts(few), strict=True):
        assert not np.array_equal(part.inputs[0], whole.inputs[0])


@pytest.mark.parametrize("downsample", [2, 4, 8])
def test_cells_count_the_events_of_their_pixels(few: EventSplits, downsample: int) -> None:
    side = SIZE[0] // downsample
    coarse = simulate_gestures(
        seed=0, sizes=(1, 1, 2), downsample=downsample, steps=FEW
    ).pool.inputs
    fine = np.asarray(few.pool.inputs[:2]).reshape(2, FEW, 2, side, downsample, side, downsample)
    assert coarse.dtype == np.uint8
    assert np.array_equal(coarse, fine.sum(axis=(4, 6)))


def test_simulating_reports_its_progress() -> None:
    shares: list[float] = []
    stand_ins.load(
        "gesture-sim",
        sizes=(5, 1, 1),
        steps=2,
        cache=False,
        progress=lambda what, share: shares.append(share),
    )
    assert shares[:3] == [0.0, 1 / 7, 2 / 7] and shares[-1] == 1.0


def test_every_input_draws_its_gesture_light_and_person_evenly() -> None:
    drawn = [draw_performance(number, 0) for number in range(1100)]
    for values, count in (
        ([one.gesture for one in drawn], 11),
        ([LIGHTS.index(one.light) for one in drawn], 3),
    ):
        shares = np.bincount(values, minlength=count) / len(drawn)
        assert np.abs(shares - 1 / count).max() < 5 * np.sqrt(1 / count / len(drawn))
    assert len({one.person for one in drawn}) == PEOPLE[0]


def test_nobody_is_in_two_parts() -> None:
    people = [
        {draw_performance(part * PART + number, 0).person for number in range(150)}
        for part in range(3)
    ]
    assert [len(some) for some in people] == list(PEOPLE)
    assert len(people[0] | people[1] | people[2]) == sum(PEOPLE)
    assert {draw_person(number, 0) for number in range(sum(PEOPLE))} == people[0] | people[
        1
    ] | people[2]


@pytest.mark.parametrize("gesture", GESTURES)
def test_limbs_keep_their_lengths(gesture: str) -> None:
    for performance in some_performances(gesture):
        person = performance.person
        joints = joint_positions(person, joint_angles(performance, TIMES))
        lengths = np.linalg.norm(np.diff(joints, axis=2), axis=3)
        assert np.allclose(lengths, [person.upper_arm, person.forearm, person.hand])
        assert np.all(joints[..., 2] < 1.0)


@pytest.mark.parametrize("gesture", GESTURES)
def test_everybody_starts_from_rest_and_without_a_jerk(gesture: str) -> None:
    for performance in some_performances(gesture):
        angles = joint_angles(performance, TIMES)
        assert np.allclose(
            angles[performance.delay >= TIMES], ARM_REST + np.array(performance.person.posture)
        )
        joints = joint_positions(performance.person, angles)
        speed = np.linalg.norm(np.diff(joints[:, :, 3], axis=0), axis=2) / 0.01
        assert speed[TIMES[1:] < performance.delay + 0.05].max() < 0.5
        assert 0.3 < speed.max() < 8


@pytest.mark.parametrize(
    ("gesture", "arm", "sense"),
    [
        ("right arm clockwise", RIGHT, -1),
        ("right arm counter-clockwise", RIGHT, 1),
        ("left arm clockwise", LEFT, -1),
        ("left arm counter-clockwise", LEFT, 1),
    ],
)
def test_circles_turn_as_they_are_called_and_the_other_arm_rests(
    gesture: str, arm: int, sense: int
) -> None:
    for performance in some_performances(gesture):
        tips = hands(performance)
        assert sense * turning(tips[:, arm]) > 0.1
        assert np.ptp(tips[:, 1 - arm], axis=0).max() < 1e-9
        assert np.all(tips[:, arm, 0] * (-1 if arm == RIGHT else 1) > 0)


@pytest.mark.parametrize(("gesture", "arm"), [("right hand wave", RIGHT), ("left hand wave", LEFT)])
def test_waving_moves_one_raised_forearm_from_side_to_side(gesture: str, arm: int) -> None:
    for performance in some_performances(gesture):
        joints = joint_positions(performance.person, joint_angles(performance, TIMES))[SETTLED]
        assert np.all(joints[:, arm, 3, 1] > joints[:, arm, 1, 1] + 0.1)
        assert np.ptp(joints[:, arm, 1], axis=0).max() < 1e-9
        assert np.ptp(joints[:, arm, 3, 0]) > 0.2
        assert np.ptp(joints[:, 1 - arm], axis=0).max() < 1e-9


def test_clapping_hands_meet_in_the_middle() -> None:
    for performance in some_performances("hand clapping"):
        tips = hands(performance)
        apart = tips[:, LEFT, 0] - tips[:, RIGHT, 0]
        assert apart.min() < 0.02
        assert apart.min() > -1e-9
        assert apart.max() > 0.25
        assert np.allclose(tips[:, LEFT, 1:], tips[:, RIGHT, 1:])


def test_rolling_forearms_turn_around_each_other() -> None:
    for performance in some_performances("arm roll"):
        tips = hands(performance)
        up, near = (tips[:, RIGHT] - tips[:, LEFT])[:, 1:].T
        quarters = {(bool(high), bool(close)) for high, close in zip(up > 0, near > 0, strict=True)}
        assert len(quarters) == 4
        assert np.abs(tips[..., 0]).max() < 0.25


def test_drumming_hands_beat_in_turn_before_the_body() -> None:
    for performance in some_performances("air drums"):
        tips = hands(performance)
        assert np.corrcoef(tips[:, RIGHT, 1], tips[:, LEFT, 1])[0, 1] < -0.9
        assert np.ptp(tips[:, RIGHT, 1]) > 0.2
        assert tips[..., 2].min() > 0.1


def test_the_guitar_is_strummed_by_the_right_hand_and_held_by_the_left() -> None:
    for performance in some_performances("air guitar"):
        tips = hands(performance)
        assert np.ptp(tips[:, RIGHT, 1]) > 2 * np.ptp(tips[:100, LEFT, 1])
        assert np.all(tips[:, LEFT, 0] > performance.person.shoulders)
        assert np.all(tips[:, LEFT, 1] > tips[:, RIGHT, 1])


def test_other_gestures_are_six_motions_none_of_them_another_gesture() -> None:
    first = draw_performance(0, 0)
    choices = [(index + 0.5) / len(OTHERS) for index in range(len(OTHERS))]
    others = [
        replace(first, gesture=10, wander=(*first.wander[:3], choice, *first.wander[4:]))
        for choice in choices
    ]
    named = [replace(first, gesture=gesture) for gesture in range(10)]
    ways = [hands(replace(performance, phase=0.0, cadence=1.0)) for performance in named + others]
    for index, way in enumerate(ways):
        for other in ways[:index]:
            assert np.abs(way - other).max() > 0.15


def test_images_are_intensities_at_every_resolution() -> None:
    for number in range(4):
        performance = draw_performance(number, 0)
        coarse, fine = (
            np.array(list(render_frames(performance, [1.0, 2.0], (side, side))))
            for side in (64, 256)
        )
        assert coarse.min() >= 0
        assert fine.max() <= 1
        averaged = fine.reshape(2, 64, 4, 64, 4).mean(axis=(2, 4))
        assert np.abs(averaged - coarse).mean() < 0.01


def test_before_the_gesture_the_body_sways_and_nothing_else_moves() -> None:
    period = 1 / SWAY[1]
    first, half_way, again = render_frames(
        replace(draw_performance(0, 0), delay=10.0), [0.0, period / 2, period], SIZE
    )
    assert np.allclose(first, again)
    assert not np.allclose(first, half_way)


def test_events_are_few_at_rest_and_more_in_motion() -> None:
    data = simulate_gestures(seed=2, sizes=(6, 1, 1), downsample=1)
    assert data.training.steps == STEPS
    active = (np.asarray(data.training.inputs) > 0).any(axis=2).mean(axis=(2, 3))
    assert active[:, :5].mean() < 0.008
    assert active[:, 50:].mean() > 2 * active[:, :5].mean()
    assert 0.004 < active[:, 50:].mean() < 0.03
    assert active.max() < 0.1
    assert np.asarray(data.training.inputs).max() <= 2


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"seed": -1}, "seed is -1: give an integer from 0"),
        (
            {"sizes": (10, 5)},
            r"sizes is \(10, 5\): give how many inputs training, tuning and the pool have",
        ),
        ({"sizes": (10, 0, 5)}, r"sizes is \(10, 0, 5\)"),
        ({"downsample": 3}, "downsample is 3: give the side of a cell in pixels, 1, 2, 4 or 8"),
        ({"downsample": 4.0}, "downsample is 4.0"),
        ({"steps": 0}, "steps is 0: give an integer of at least 1"),
        ({"workers": 0}, "workers is 0: give an integer of at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        simulate_gestures(**settings)
    assert_one_sentence(str(caught.value))
