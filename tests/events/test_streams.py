"""Random numbers by address: SplitMix64 as published, uniform, and independent of the
other inputs.
"""

from __future__ import annotations

import numpy as np

from agreestop.events.camera.simulator import (
    Purpose,
    draw_normals,
    draw_uniforms,
    draw_words,
    stream_keys,
)
from tests.events.reference import draw


def test_the_words_are_those_of_splitmix64() -> None:
    words = draw_words(np.zeros(1, dtype=np.uint64), 0, 3)
    assert [hex(int(word)) for word in words[0]] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_words_agree_with_plain_integers() -> None:
    numbers = [0, 5, 2**40]
    words = draw_words(stream_keys(7, Purpose.PATH, numbers), 10, 4)
    expected = [
        [draw(7, Purpose.PATH, number, index) for index in range(10, 14)] for number in numbers
    ]
    assert words.tolist() == expected


def test_a_stream_is_the_same_in_any_batch_and_in_any_pieces() -> None:
    keys = stream_keys(3, Purpose.SHOT_NOISE, 20)
    whole = draw_words(keys, 0, 50)
    assert np.array_equal(
        draw_words(stream_keys(3, Purpose.SHOT_NOISE, [17, 4]), 0, 50), whole[[17, 4]]
    )
    assert np.array_equal(draw_words(keys, 30, 20), whole[:, 30:])


def test_seeds_purposes_and_inputs_differ() -> None:
    keys = [stream_keys(seed, purpose, 1000) for seed in range(5) for purpose in Purpose]
    assert len(np.unique(np.concatenate(keys))) == 5 * len(Purpose) * 1000


def test_uniforms_are_uniform_and_inputs_unrelated() -> None:
    values = draw_uniforms(stream_keys(0, Purpose.PATH, 200), 0, 500)
    assert values.min() >= 0
    assert values.max() < 1
    share = np.histogram(values, bins=10, range=(0, 1))[0] / values.size
    assert np.abs(share - 0.1).max() < 0.006  # six standard deviations
    neighbours = np.asarray(np.corrcoef(values))[np.arange(199), np.arange(1, 200)]
    assert np.abs(neighbours).max() < 6 / np.sqrt(500)


def test_normals_are_normal() -> None:
    values = draw_normals(stream_keys(0, Purpose.MISMATCH, 1), 0, 100_000)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs(np.mean(np.abs(values) < 1) - 0.6827) < 0.01
