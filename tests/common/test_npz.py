"""Files of arrays: arrays by name, no pickle, a digest that notices changes, and one sentence for whatever is wrong."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from agreestop.common import Arrays, InputError, digest_of, read_list, read_npz, read_text, write_npz


def read(path: Path, needed: tuple[str, ...] = ()) -> Arrays:
    return read_npz(path, "table", "write one with save_table", "make one first", needed)


def test_all_arrays_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), name=np.array("tea"))
    arrays = read(tmp_path / "a.npz", ("x",))
    assert sorted(arrays) == ["name", "x"]
    assert read_list("a.npz", arrays, "x") == [0, 1, 2]
    assert (read_text("a.npz", arrays, "name"), read_text("a.npz", arrays, "other")) == ("tea", "")


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


def test_the_digest_is_the_documented_one(tmp_path: Path) -> None:
    arrays: Arrays = {"b": np.arange(6, dtype="<i4").reshape(2, 3), "a": np.array("tea")}
    plain = b"a <U3 ()\n" + "tea".encode("utf-32-le") + b"b <i4 (2, 3)\n" + bytes(byte for i in range(6) for byte in (i, 0, 0, 0))
    write_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert str(file["digest"]) == digest_of(arrays) == hashlib.sha256(plain).hexdigest()
    assert sorted(read(tmp_path / "a.npz")) == ["a", "b"]


@pytest.mark.parametrize("mmap", [True, False])
def test_another_array_than_the_digest_knows_is_refused(tmp_path: Path, mmap: bool) -> None:
    """Each member of the archive is whole, but one of them was exchanged."""
    write_npz(tmp_path / "a.npz", {"x": np.arange(3)})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        np.savez(tmp_path / "b.npz", x=np.arange(1, 4), digest=file["digest"])
    with pytest.raises(InputError, match=r"was changed after it was written.*: write one with save_table\.$"):
        read_npz(tmp_path / "b.npz", "table", "write one with save_table", mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_changed_byte_is_noticed_without_a_digest(tmp_path: Path, mmap: bool) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        end = archive.getinfo("x.npy").file_size
    content[end] ^= 1  # within the data of the array
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match="is not a whole table"):
        read_npz(tmp_path / "a.npz", "table", "write one with save_table", mmap=mmap)
