"""Reading .npz files: arrays by name, no pickle, and one sentence for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreestop.common.errors import InputError
from agreestop.common.npz import Arrays, read_list, read_npz, read_text


def read(path: Path, needed: tuple[str, ...] = ()) -> Arrays:
    return read_npz(path, "table", "write one with save_table", "make one first", needed)


def test_all_arrays_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), name=np.array("tea"))
    arrays = read(tmp_path / "a.npz", ("x",))
    assert sorted(arrays) == ["name", "x"]
    assert read_list("a.npz", arrays, "x") == [0, 1, 2]
    assert (read_text(arrays, "name"), read_text(arrays, "other")) == ("tea", "")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello", bytes(100)])
def test_foreign_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a.npz is not a whole table: write one with save_table\.$"):
        read(path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="is not a whole table"):
        read(tmp_path / "a.npz")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"there is no file .*none.npz: make one first\.$"):
        read(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"a.npz holds x, y but no 'z': write one with save_table\.$"):
        read(tmp_path / "a.npz", ("x", "z"))
    with pytest.raises(InputError, match=r"a.npz holds y of shape \(2, 2\): a list, one axis, is needed\.$"):
        read_list("a.npz", read(tmp_path / "a.npz"), "y")
