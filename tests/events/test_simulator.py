"""The simulated camera: equal to a plain loop over pixels, and true to its settings."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from agreestop.common import Booleans, Floats
from agreestop.events import Sensor, circular_path, simulate_events
from agreestop.events.camera.simulator import OFF, ON, move_images
from tests.events import reference

QUIET = Sensor(contrast=0.2, mismatch=0.0, refractory=0, leak=0.0, shot_noise=0.0, dark=0.1)
SENSORS = {
    "quiet": QUIET,
    "mismatch": Sensor(contrast=0.2, mismatch=0.1, refractory=0, leak=0.0, shot_noise=0.0),
    "refractory": Sensor(contrast=0.1, mismatch=0.0, refractory=3, leak=0.0, shot_noise=0.0),
    "leak": Sensor(contrast=0.2, mismatch=0.0, refractory=0, leak=0.07, shot_noise=0.0),
    "shot noise": Sensor(contrast=0.2, mismatch=0.0, refractory=0, leak=0.0, shot_noise=0.1),
    "all": Sensor(contrast=0.15, mismatch=0.05, refractory=2, leak=0.03, shot_noise=0.05, dark=0.3),
}


def some_images(n: int, height: int = 3, width: int = 4, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).random((n, height, width))


def still(steps: int) -> Floats:
    return np.zeros((1, steps + 1, 2))


def blank(
    n: int, steps: int, sensor: Sensor, size: tuple[int, int] = (10, 10), seed: int = 0
) -> Booleans:
    """Events of the sensor in front of an empty image."""
    return simulate_events(np.zeros((n, 1, 1)), still(steps), size, sensor, seed)


@pytest.mark.parametrize("name", SENSORS)
@pytest.mark.parametrize(("scale", "background"), [(1.0, 0.0), (1.7, 0.4)])
def test_every_event_is_that_of_a_plain_loop(name: str, scale: float, background: float) -> None:
    sensor, size, seed = SENSORS[name], (5, 6), 11
    images = some_images(3)
    path = circular_path(3, 20, radius=(0.5, 2.0), period=(8.0, 20.0), seed=1)
    events = simulate_events(images, path, size, sensor, seed, scale=scale, background=background)
    expected = [
        reference.watch(images[i], path[i], size, sensor, seed, i, scale, background)
        for i in range(3)
    ]
    assert events.dtype == np.bool_
    assert events.shape == (3, 20, 2, 5, 6)
    assert events.any()
    assert np.array_equal(events, np.array(expected))


def test_one_path_for_all_is_that_path_for_each() -> None:
    images = some_images(4)
    path = circular_path(1, 10, seed=2)
    for alike, each in zip(
        move_images(images, path, (5, 5)),
        move_images(images, np.repeat(path, 4, axis=0), (5, 5)),
        strict=True,
    ):
        assert np.array_equal(alike, each)


def test_a_shift_by_whole_pixels_moves_the_image_by_as_many() -> None:
    image = some_images(1, 3, 3)
    path = np.array([[[0.0, 0.0], [1.0, -2.0], [9.0, 0.0]]])
    centred, moved, gone = move_images(image, path, (9, 9))
    assert np.allclose(centred[0, 3:6, 3:6], image[0])
    assert np.allclose(moved[0, 4:7, 1:4], image[0])
    assert np.isclose(moved.sum(), image.sum())
    assert not gone.any()


def test_enlarging_keeps_intensities_and_widens_the_image() -> None:
    (frame, _) = move_images(np.ones((1, 4, 4)), still(1), (12, 12), scale=2.0)
    assert np.allclose(frame[0, 3:9, 3:9], 1.0)
    assert frame.max() <= 1.0 + 1e-12
    assert frame[0, 0, 0] == 0.0


def test_nothing_moves_and_nothing_is_noisy_so_nothing_fires() -> None:
    assert not simulate_events(some_images(5), still(50), (6, 6), QUIET, 0).any()


def test_a_pixel_that_brightens_is_on_and_one_that_darkens_is_off() -> None:
    spot = np.ones((1, 1, 1))
    path = np.array([[[0.0, float(x)] for x in (-1, 0, 1)]])
    events = simulate_events(spot, path, (1, 3), QUIET, 0)[0, :, :, 0]
    assert events[0, ON].tolist() == [False, True, False]
    assert events[0, OFF].tolist() == [True, False, False]
    assert events[1, ON].tolist() == [False, False, True]
    assert events[1, OFF].tolist() == [False, True, False]


def test_a_higher_contrast_threshold_makes_fewer_events() -> None:
    images, path = some_images(20, 6, 6), circular_path(20, 40, seed=3)
    numbers = [
        int(simulate_events(images, path, (8, 8), Sensor(contrast, 0, 0, 0, 0), 0).sum())
        for contrast in (0.05, 0.1, 0.2, 0.4)
    ]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 2 * numbers[-1] > 0


def test_no_pixel_fires_both_ways_in_one_step() -> None:
    events = simulate_events(
        some_images(10), circular_path(10, 30, seed=4), (6, 6), SENSORS["all"], 0
    )
    assert not (events[:, :, ON] & events[:, :, OFF]).any()


@pytest.mark.parametrize("rest", [0, 1, 4])
def test_a_pixel_rests_after_an_event(rest: int) -> None:
    sensor = Sensor(contrast=0.05, mismatch=0.01, refractory=rest, leak=0.01, shot_noise=0.3)
    events = simulate_events(some_images(10), circular_path(10, 60, seed=5), (6, 6), sensor, 0)
    fired = events[:, :, ON] | events[:, :, OFF]
    gaps = np.concatenate(
        [np.diff(np.flatnonzero(row)) for row in fired.transpose(0, 2, 3, 1).reshape(-1, 60)]
    )
    assert gaps.min() == rest + 1


def test_thresholds_spread_as_the_mismatch_says() -> None:
    sensor = Sensor(contrast=0.2, mismatch=0.03)
    thresholds = sensor.thresholds((100, 100), 0)
    assert abs(thresholds.mean() - 0.2) < 0.001
    assert abs(thresholds.std() - 0.03) < 0.001
    assert abs(np.asarray(np.corrcoef(thresholds.reshape(2, -1)))[0, 1]) < 0.05
    assert np.isclose(Sensor(contrast=0.2, mismatch=0.5).thresholds((50, 50), 0).min(), 0.02)


def test_pixels_fire_when_the_light_reaches_their_own_threshold() -> None:
    sensor = Sensor(contrast=0.2, mismatch=0.05, refractory=0, leak=0.0, shot_noise=0.0, dark=1.0)
    path = np.array([[[0.0, 0.0], [0.0, -1.0]]])
    image = np.tile(np.linspace(0.0, 1.0, 41), (1, 20, 1))
    before, after = move_images(image, path, (20, 39))
    rise = np.log((1.0 + after) / (1.0 + before))[0]
    events = simulate_events(image, path, (20, 39), sensor, 5)[0, 0, ON]
    assert np.array_equal(events, rise >= sensor.thresholds((20, 39), 5)[ON])


@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_leak_events_are_on_and_come_at_their_rate(rate: float) -> None:
    events = blank(
        20, 400, Sensor(contrast=0.2, mismatch=0.02, refractory=0, leak=rate, shot_noise=0.0)
    )
    assert not events[:, :, OFF].any()
    assert abs(events[:, :, ON].mean() / rate - 1) < 0.05
    early, late = events[:, :100, ON].mean(), events[:, 300:, ON].mean()
    assert abs(early / late - 1) < 0.1


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.5])
def test_shot_noise_comes_both_ways_at_its_rate(rate: float) -> None:
    events = blank(
        20, 400, Sensor(contrast=0.2, mismatch=0.0, refractory=0, leak=0.0, shot_noise=rate)
    )
    expected = (1 - np.exp(-2 * rate)) / 2
    spread = np.sqrt(expected / events[:, :, ON].size)
    assert abs(events[:, :, ON].mean() - expected) < 5 * spread
    assert abs(events[:, :, OFF].mean() - expected) < 5 * spread
    by_pixel = events.mean(axis=(0, 1)).ravel()
    assert by_pixel.max() < expected + 6 * np.sqrt(expected / 8000)


def test_noise_differs_between_inputs_and_between_seeds() -> None:
    sensor = Sensor(shot_noise=0.1)
    events = blank(3, 50, sensor)
    assert not np.array_equal(events[0], events[1])
    assert not np.array_equal(events, blank(3, 50, sensor, seed=1))
    assert np.array_equal(events, blank(3, 50, sensor))


def test_an_input_does_not_depend_on_its_batch() -> None:
    sensor, numbers = SENSORS["all"], [6, 0, 3]
    images, path = some_images(8, 8, 8), circular_path(8, 30, seed=6)
    whole = simulate_events(images, path, (10, 10), sensor, 2)
    some = simulate_events(
        images[numbers], circular_path(numbers, 30, seed=6), (10, 10), sensor, 2, inputs=numbers
    )
    assert np.array_equal(some, whole[numbers])
    for number in numbers:
        single = simulate_events(
            images[[number]], path[[number]], (10, 10), sensor, 2, inputs=[number]
        )
        assert np.array_equal(single[0], whole[number])


def test_the_past_does_not_depend_on_the_future() -> None:
    images, path = some_images(4), circular_path(4, 30, seed=7)
    long = simulate_events(images, path, (6, 6), SENSORS["all"], 0)
    assert np.array_equal(
        simulate_events(images, path[:, :13], (6, 6), SENSORS["all"], 0), long[:, :12]
    )


def test_extra_memory_does_not_grow_with_the_steps() -> None:
    images = some_images(50, 8, 8)

    def extra(steps: int) -> int:
        path = circular_path(1, steps)
        tracemalloc.start()
        events = simulate_events(images, path, (16, 16), Sensor(), 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak - events.nbytes

    extra(5)
    assert extra(200) < 1.2 * extra(20)
