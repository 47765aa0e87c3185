"""The embedded digits: real images, simulated events, three parts with nothing in common, and
classes that show only with time.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from agreestop.common import Floats, InputError
from agreestop.events import EventData, EventSplits, Sensor
from agreestop.events.datasets.moving_digits import DIGITS, SENSOR, simulate_digits
from tests.decide.strategies import assert_one_sentence


@pytest.fixture(scope="module")
def digits() -> EventSplits:
    return simulate_digits(seed=0)


def parts(digits: EventSplits) -> tuple[EventData, EventData, EventData]:
    return digits.training, digits.tuning, digits.pool


def counts(data: EventData, steps: int) -> Floats:
    """Square roots of the events of every pixel and polarity up to a time, (n, 2HW)."""
    return np.sqrt(
        np.count_nonzero(data.inputs[:, :steps], axis=1).reshape(len(data), -1).astype(np.float64)
    )


def test_the_parts_have_their_sizes_and_say_what_they_are(digits: EventSplits) -> None:
    assert [len(part) for part in parts(digits)] == [900, 300, 597]
    for part in parts(digits):
        assert part.inputs.shape[1:] == (80, 2, 16, 16)
        assert (part.steps, part.shape) == (80, (2, 16, 16))
        assert part.simulated
        assert "images and labels are real" in part.description
        assert "events are simulated" in part.description
        assert part.classes == tuple("0123456789")
    assert len({part.name for part in parts(digits)}) == 3


def test_every_digit_is_in_one_part(digits: EventSplits) -> None:
    from sklearn.datasets import load_digits

    labels = np.concatenate([part.labels for part in parts(digits)])
    assert np.array_equal(np.bincount(labels), np.bincount(load_digits().target))
    streams = np.concatenate(
        [
            np.packbits(np.asarray(part.inputs).reshape(len(part), -1), axis=1)
            for part in parts(digits)
        ]
    )
    assert len(np.unique(streams, axis=0)) == 1797


def test_every_class_is_in_every_part(digits: EventSplits) -> None:
    for part in parts(digits):
        share = np.bincount(part.labels, minlength=10) / len(part)
        assert share.min() > 0.06
        assert share.max() < 0.14


def test_the_seed_decides_everything(digits: EventSplits) -> None:
    again, other = simulate_digits(seed=0), simulate_digits(seed=1)
    for first, second, third in zip(parts(digits), parts(again), parts(other), strict=True):
        assert np.array_equal(first.inputs, second.inputs)
        assert np.array_equal(first.labels, second.labels)
        assert not np.array_equal(first.labels, third.labels)


def test_further_views_show_the_same_digits_and_change_nothing_else(digits: EventSplits) -> None:
    more = simulate_digits(seed=0, views=2)
    assert len(more.training) == 1800
    assert np.array_equal(more.training.labels, np.tile(digits.training.labels, 2))
    assert np.array_equal(more.training.inputs[:900], digits.training.inputs)
    assert (
        not (np.asarray(more.training.inputs[900:]) == np.asarray(digits.training.inputs))
        .all(axis=(1, 2, 3, 4))
        .any()
    )
    assert np.array_equal(more.pool.inputs, digits.pool.inputs)
    overlap = np.corrcoef(counts(more.training, 80)[0], counts(more.training, 80)[900])[0, 1]
    assert overlap > 0.5


def test_events_are_few_at_first_and_more_with_time(digits: EventSplits) -> None:
    by_step = np.count_nonzero(digits.pool.inputs, axis=(2, 3, 4)).mean(axis=0)
    assert by_step[:5].mean() < 2
    assert 5 < by_step.mean() < 12
    assert by_step[60:].mean() > 3 * by_step[10:20].mean()


def test_the_classes_show_with_time(digits: EventSplits) -> None:
    from sklearn.svm import SVC

    known = []
    for steps in (5, 20, 40, 80):
        model = SVC(C=10).fit(counts(digits.training, steps), digits.training.labels)
        known.append(model.score(counts(digits.pool, steps), digits.pool.labels))
    at_5, at_20, at_40, at_80 = known
    assert at_5 < 0.3
    assert 0.6 < at_20 < 0.85
    assert at_40 > at_20 + 0.1
    assert at_80 > 0.95
    assert at_80 > at_40 - 0.01


def test_the_sensor_can_be_another() -> None:
    blind = simulate_digits(sensor=Sensor(contrast=5.0, mismatch=0.0, leak=0.0, shot_noise=0.0))
    assert not np.asarray(blind.pool.inputs).any()
    assert SENSOR.shot_noise > 0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"seed": -1}, "seed is -1: give an integer from 0"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"views": 0}, "views is 0: .* at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        simulate_digits(**settings)
    assert_one_sentence(str(caught.value))


def test_a_missing_scikit_learn_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match="needs scikit-learn") as caught:
        simulate_digits()
    assert_one_sentence(str(caught.value))


def test_every_pixel_of_a_digit_stays_in_view() -> None:
    assert 3.5 * DIGITS.scale + np.max(DIGITS.radius) <= (DIGITS.size[0] - 1) / 2


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, agreestop.events; print([name for name in ('sklearn', 'scipy', 'torch') "
        "if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_density_is_the_share_of_cells_that_are_not_zero() -> None:
    counts = np.array([0, 7, 0, 0, 1, 0, 0, 0], np.uint8).reshape(1, 2, 1, 2, 2)
    assert (
        EventData("counts", True, counts, np.zeros(1, np.int64), ("a",), "made by hand").density
        == 0.25
    )
