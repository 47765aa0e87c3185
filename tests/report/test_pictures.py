"""Pictures of inputs: frames where there are pixels, a strip of channels over time where there are
not, and a colour for each rule.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("matplotlib", reason="the report needs matplotlib")

from matplotlib.image import imread

from agreestop.events import Events
from agreestop.report import InputPictures
from agreestop.report.figures import style_of
from agreestop.report.page import FIRST, SECOND, input_picture
from agreestop.report.pictures import POLARITIES

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_event_camera_is_shown_as_on_and_off_events_so_far(sparse: bool) -> None:
    inputs = RNG.random((3, 6, 2, 4, 5)) < 0.3
    pictures = InputPictures(Events.from_dense(inputs) if sparse else inputs)
    np.testing.assert_array_equal(pictures.until(1, 4), inputs[1, :4].sum(axis=0))
    np.testing.assert_array_equal(pictures.until(1, np.inf), inputs[1].sum(axis=0))
    assert pictures.legend == POLARITIES


@pytest.mark.parametrize("cells", [(12,), (12, 1, 1), (1, 12)])
def test_a_sensor_of_channels_is_shown_as_a_strip_over_time(cells: tuple[int, ...]) -> None:
    inputs = RNG.random((2, 7, *cells)) < 0.5
    picture = InputPictures(inputs).until(0, 3)
    assert picture.shape == (1, 12, 7)
    np.testing.assert_array_equal(picture[0, :, :3], inputs[0, :3].reshape(3, 12).T)
    assert not picture[0, :, 3:].any()


def test_signed_values_have_two_colours() -> None:
    inputs = RNG.normal(size=(2, 5, 3)).astype(np.float32)
    pictures = InputPictures(inputs)
    picture = pictures.until(1, 5)
    assert picture.shape == (2, 3, 5) and len(pictures.legend) == 2
    np.testing.assert_allclose(picture[0] - picture[1], inputs[1].T, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "planes"),
    [((2, 5, 4, 6), 1), ((2, 5, 7, 4, 6), 1), ((2, 5, 1, 4, 6), 1), ((2, 5, 3, 2, 4, 6), 1)],
)
def test_other_frames_are_sums_of_their_channels(shape: tuple[int, ...], planes: int) -> None:
    inputs = RNG.integers(0, 4, shape).astype(np.uint8)
    picture = InputPictures(inputs).until(1, 2)
    assert picture.shape == (planes, 4, 6)
    np.testing.assert_array_equal(
        picture[0], inputs[1, :2].astype(float).reshape(-1, 4, 6).sum(axis=0)
    )


def test_an_image_is_shown_in_its_colours() -> None:
    image = RNG.integers(0, 256, (1, 1, 3, 4, 4)).astype(np.uint8)
    picture = InputPictures(image).until(0, 30)
    np.testing.assert_array_equal(picture, image[0, 0])
    np.testing.assert_array_equal(
        pixels_of(input_picture(picture, 1.0))[..., :3], np.moveaxis(image[0, 0], 0, 2)
    )


def pixels_of(address: str) -> NDArray[Any]:
    assert address.startswith("data:image/png;base64,")
    return (
        (255 * imread(io.BytesIO(base64.b64decode(address.partition(",")[2]))))
        .round()
        .astype(np.uint8)
    )


def test_the_larger_plane_gives_the_colour_and_the_sum_its_strength() -> None:
    pixels = pixels_of(input_picture(np.array([[[4.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]), 4.0))
    assert tuple(pixels[0, 0]) == (*FIRST, 255)
    assert tuple(pixels[0, 1, :3]) == SECOND and int(pixels[0, 1, 3]) == pytest.approx(127, abs=1)
    assert pixels[0, 2, 3] == 0


def test_nothing_so_far_is_blank() -> None:
    assert not pixels_of(input_picture(np.zeros((1, 2, 2)), 0.0))[..., 3].any()


def test_a_rule_looks_the_same_wherever_it_is_drawn() -> None:
    assert (
        style_of("AgreeStop").colour
        == style_of("agreestop").colour
        == style_of("AgreeStop, every step").colour
    )
    assert style_of("p-variable merging") == style_of("p-variable-merging")
    assert style_of("DC-SNN") == style_of("dcsnn")
    assert (style_of("stop-aware").dashes, style_of("stop-aware, every step").dashes) == ("-", "--")
    names = (
        "spikecp",
        "confidence merging",
        "p-variable merging",
        "rank pooling",
        "simultaneous",
        "stop-aware",
        "AgreeStop",
        "DC-SNN",
    )
    styles = [style_of(name) for name in (*names, "seenn1", "seenn2", "a new rule")]
    assert (
        len({style.colour for style in styles})
        == len({style.marker for style in styles})
        == len(styles)
    )
