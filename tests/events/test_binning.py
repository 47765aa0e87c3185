"""Binning: equal to a plain loop over events, with no event lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agreestop.common import InputError
from agreestop.events import EventData, Recording, bin_events, checked_recording
from agreestop.events.formats import recording as recordings
from tests.decide.strategies import assert_one_sentence


def some_events(
    n: int, size: tuple[int, int] = (7, 9), last: int = 1000, first: int = 0, seed: int = 0
) -> Recording:
    rng = np.random.default_rng([seed, n])
    time = np.sort(rng.integers(first, last + 1, n))
    return checked_recording(
        rng.integers(0, size[1], n), rng.integers(0, size[0], n), rng.random(n) < 0.6, time, size
    )


def plain(
    recording: Recording,
    steps: int,
    by: str,
    crop: tuple[int, int, int, int],
    size: tuple[int, int],
    window: tuple[int, int],
) -> NDArray[np.int64]:
    """Counts (T, 2, H, W), one event at a time."""
    top, left, height, width = crop
    start, stop = window
    counts = np.zeros((steps, 2, *size), np.int64)
    events = [
        (int(y) - top, int(x) - left, bool(on), int(time))
        for x, y, on, time in zip(
            recording.x, recording.y, recording.polarity, recording.time, strict=True
        )
        if start <= time < stop and top <= y < top + height and left <= x < left + width
    ]
    for index, (y, x, on, time) in enumerate(events):
        if by == "time":
            step = (time - start) * steps // (stop - start)
        else:
            step = next(
                k
                for k in range(steps)
                if k * len(events) // steps <= index < (k + 1) * len(events) // steps
            )
        counts[step, 0 if on else 1, y * size[0] // height, x * size[1] // width] += 1
    return counts


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    first = draw(st.sampled_from((0, -50, 2**40, -(2**61))))
    last = first + draw(st.sampled_from((0, 3, 1000, 2**61)))
    recording = some_events(
        draw(st.integers(0, 60)), (height, width), last, first, draw(st.integers(0, 50))
    )
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    crop = (top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))
    size = (draw(st.integers(1, crop[2])), draw(st.integers(1, crop[3])))
    start = first + draw(st.integers(-20, 20))
    window = (start, start + draw(st.integers(1, 1200)))
    return {
        "recording": recording,
        "steps": draw(st.integers(1, 12)),
        "by": draw(st.sampled_from(("time", "count"))),
        "crop": draw(st.sampled_from((crop, None))),
        "size": draw(st.sampled_from((size, None))),
        "window": draw(st.sampled_from((window, None))),
    }


@given(case=cases(), together=st.sampled_from((1, 100, recordings.CELLS)))
@settings(deadline=None, max_examples=200)
def test_every_event_is_where_a_plain_loop_has_it(case: dict[str, Any], together: int) -> None:
    recording: Recording = case["recording"]
    crop = case["crop"] or (0, 0, *recording.size)
    if case["size"] is not None and (case["size"][0] > crop[2] or case["size"][1] > crop[3]):
        case["size"] = None
    size = case["size"] or crop[2:]
    expected = plain(
        recording, case["steps"], case["by"], crop, size, case["window"] or recording.span
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "CELLS", together)
        counts, fired = bin_events(**case, binary=False), bin_events(**case)
    assert counts.dtype == np.uint8
    assert fired.dtype == np.bool_
    assert counts.shape == fired.shape == (case["steps"], 2, *size)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(fired, expected > 0)


@pytest.mark.parametrize("by", ["time", "count"])
def test_events_are_conserved(by: str) -> None:
    recording = some_events(20_000, (128, 128), 10**6)
    crop = (37, 41, 52, 52)
    inside = (recording.y >= 37) & (recording.y < 89) & (recording.x >= 41) & (recording.x < 93)
    counts = bin_events(recording, 80, by=by, crop=crop, size=(26, 26), binary=False)
    assert counts.shape == (80, 2, 26, 26)
    assert counts.sum() == inside.sum()
    assert counts[:, 0].sum() == (inside & recording.polarity).sum()
    assert bin_events(recording, 80, by=by, binary=False).sum() == len(recording)


def test_steps_by_count_hold_equally_many() -> None:
    counts = bin_events(some_events(1003), 10, by="count", binary=False).sum(axis=(1, 2, 3))
    assert set(counts.tolist()) == {100, 101}


def test_on_comes_before_off() -> None:
    recording = checked_recording([3, 1], [2, 0], [True, False], [0, 9], (4, 5))
    frames = bin_events(recording, 2)
    assert np.argwhere(frames).tolist() == [[0, 0, 2, 3], [1, 1, 0, 1]]


def test_counts_stay_at_255() -> None:
    recording = checked_recording([0] * 300 + [1] * 255, [0] * 555, [True] * 555, [0] * 555, (1, 2))
    assert bin_events(recording, 1, binary=False).ravel().tolist() == [255, 255, 0, 0]


def test_a_longer_window_leaves_the_last_steps_empty() -> None:
    recording = some_events(500, last=99)
    frames = bin_events(recording, 10, window=(0, 200))
    assert frames[:5].any(axis=(1, 2, 3)).all()
    assert not frames[5:].any()
    np.testing.assert_array_equal(frames[:5], bin_events(recording, 5, window=(0, 100)))


def test_no_events_make_empty_steps() -> None:
    nothing = some_events(0)
    for by in ("time", "count"):
        assert not bin_events(nothing, 4, by=by).any()
        assert not bin_events(some_events(50), 4, by=by, window=(5000, 6000), binary=False).any()


def test_binned_recordings_are_event_data() -> None:
    for binary in (True, False):
        inputs = np.stack(
            [bin_events(some_events(40, seed=seed), 6, binary=binary) for seed in range(3)]
        )
        assert EventData("some", True, inputs, np.array([0, 1, 1]), ("a", "b")).shape == (2, 7, 9)


EVENTS = some_events(10)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no steps": (lambda: bin_events(EVENTS, 0), "steps is 0: give an integer of at least 1"),
    "way": (
        lambda: bin_events(EVENTS, 2, by="number"),
        "by is 'number': give 'time' for steps of equal length, or 'count'",
    ),
    "crop of two": (
        lambda: bin_events(EVENTS, 2, crop=(0, 0)),  # type: ignore[arg-type]
        r"crop is \(0, 0\): give \(top, left, height, width\)",
    ),
    "crop beyond": (
        lambda: bin_events(EVENTS, 2, crop=(3, 0, 5, 9)),
        r"crop is \(3, 0, 5, 9\), which does not lie within the sensor's 7 × 9",
    ),
    "crop before": (lambda: bin_events(EVENTS, 2, crop=(-1, 0, 5, 9)), "which does not lie within"),
    "crop of nothing": (
        lambda: bin_events(EVENTS, 2, crop=(0, 0, 0, 9)),
        "which does not lie within",
    ),
    "larger": (
        lambda: bin_events(EVENTS, 2, size=(8, 9)),
        r"size is \(8, 9\), more than the 7 × 9 pixels there are",
    ),
    "no size": (lambda: bin_events(EVENTS, 2, size=(0, 9)), r"size is \(0, 9\)"),
    "window of one": (
        lambda: bin_events(EVENTS, 2, window=(5,)),  # type: ignore[arg-type]
        r"window is \(5,\): give its start and its stop",
    ),
    "window backwards": (lambda: bin_events(EVENTS, 2, window=(5, 4)), "the window is 5 to 4"),
    "too much": (
        lambda: bin_events(EVENTS, 10**9),
        r"1000000000 steps of 2 × 7 × 9 pixels are more than 2\^33 cells",
    ),
}


@pytest.mark.parametrize(("call", "match"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_in_one_sentence(call: Callable[[], object], match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))
