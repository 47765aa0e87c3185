"""mnist-dvs-sim, on files in MNIST's format with made-up digits: parts that share nothing, and
damaged files that are reported.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreestop.common import InputError
from agreestop.events.datasets.moving_digits import _read_idx, simulate_mnist


def write(path: Path, array: NDArray[Any]) -> None:
    head = bytes((0, 0, 8, array.ndim)) + b"".join(
        length.to_bytes(4, "big") for length in array.shape
    )
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Bars at a height that depends on the class, 30 for training and 12 for the test; some files
    are gzipped.
    """
    for part, count in (("train", 30), ("t10k", 12)):
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28))
        images[np.arange(count), 4 + 2 * labels, 4:24] = 255
        write(tmp_path / f"{part}-images-idx3-ubyte{'.gz' if part == 'train' else ''}", images)
        write(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    return tmp_path


def test_the_parts_have_their_sizes_and_are_called_simulated(folder: Path) -> None:
    data = simulate_mnist(folder, 0, (12, 6, 8))
    assert [len(part) for part in (data.training, data.tuning, data.pool)] == [12, 6, 8]
    for part in (data.training, data.tuning, data.pool):
        assert part.inputs.shape[1:] == (80, 2, 26, 26)
        assert part.simulated and "sim" in part.name and "events are simulated" in part.description
    streams = np.concatenate(
        [
            np.packbits(np.asarray(part.inputs).reshape(len(part), -1), axis=1)
            for part in (data.training, data.tuning, data.pool)
        ]
    )
    assert len(np.unique(streams, axis=0)) == 26


def test_the_seed_decides_everything(folder: Path) -> None:
    one, same, other = (simulate_mnist(folder, seed, (5, 2, 3)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.pool.inputs, same.pool.inputs)
    assert not np.array_equal(one.pool.inputs, other.pool.inputs)


def test_what_is_missing_or_damaged_is_reported(folder: Path) -> None:
    with pytest.raises(InputError, match="40 training digits are asked for"):
        simulate_mnist(folder, 0, (30, 10, 5))
    labels = folder / "t10k-labels-idx1-ubyte"
    content = labels.read_bytes()
    labels.write_bytes(content[:-1])
    with pytest.raises(InputError, match="is damaged or is no idx file"):
        simulate_mnist(folder)
    write(labels, np.zeros(3))
    with pytest.raises(InputError, match="which is not MNIST"):
        simulate_mnist(folder)
    labels.unlink()
    with pytest.raises(InputError, match="there is no file t10k-labels-idx1-ubyte"):
        simulate_mnist(folder)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="cannot be read"):
        simulate_mnist(folder)


def test_a_gzip_file_with_any_changed_byte_is_reported_or_read_as_it_was(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    expected = simulate_mnist(folder, 0, (2, 1, 1)).training.inputs
    for position in range(len(content)):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]
        )
        try:
            _read_idx(folder, "train-images-idx3-ubyte", 3)
        except InputError as error:
            assert "is damaged or is no idx file" in str(error) or "cannot be read" in str(error)
        else:  # a byte of the header that does not matter
            np.testing.assert_array_equal(
                simulate_mnist(folder, 0, (2, 1, 1)).training.inputs, expected
            )


@pytest.mark.parametrize(
    "lengths", [(60000, 28, 28), (2**31, 2**31, 2**31), (0, 0, 0), (29, 28, 28), (31, 28, 28)]
)
def test_a_header_with_other_sizes_than_the_file_is_reported(
    folder: Path, lengths: tuple[int, int, int]
) -> None:
    head = bytes((0, 0, 8, 3)) + np.array(lengths, ">u4").tobytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + bytes(30 * 28 * 28)))
    with pytest.raises(InputError, match="is damaged or is no idx file of bytes"):
        _read_idx(folder, "train-images-idx3-ubyte", 3)
