"""Files of arrays: arrays by name, no pickle, a digest that notices changes, and one sentence for
whatever is wrong.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreestop.common import (
    Arrays,
    InputError,
    digest_of,
    read_list,
    read_npz,
    read_text,
    write_npz,
)


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
    with pytest.raises(InputError, match=r"a.npz is not a whole table"):
        read(path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="holds Python objects in 'x'"):
        read(tmp_path / "a.npz")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"there is no file .*none.npz"):
        read(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"a.npz holds x, y but no 'z'"):
        read(tmp_path / "a.npz", ("x", "z"))
    with pytest.raises(InputError, match=r"a.npz holds y of shape \(2, 2\)"):
        read_list("a.npz", read(tmp_path / "a.npz"), "y")


def test_the_digest_is_the_documented_one(tmp_path: Path) -> None:
    arrays: Arrays = {"b": np.arange(6, dtype="<i4").reshape(2, 3), "a": np.array("tea")}
    plain = (
        b"a <U3 ()\n"
        + "tea".encode("utf-32-le")
        + b"b <i4 (2, 3)\n"
        + bytes(byte for i in range(6) for byte in (i, 0, 0, 0))
    )
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
    with pytest.raises(InputError, match="was changed after it was written"):
        read_npz(tmp_path / "b.npz", "table", "write one with save_table", mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_changed_byte_is_noticed_without_a_digest(tmp_path: Path, mmap: bool) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(5000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        end = archive.getinfo("x.npy").file_size
    content[end] ^= 1  # within the data of the array
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match="is not a whole table"):
        read_npz(tmp_path / "a.npz", "table", "write one with save_table", mmap=mmap)


def header_of(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()[: -array.nbytes or None]


def write_members(
    path: Path, members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED
) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)


TINY = header_of(np.arange(3)) + np.arange(3).tobytes()
NO_ARRAYS = {
    "more than an array": [("x.npy", TINY + b"1")],
    "less than an array": [("x.npy", TINY[:-1])],
    "text": [("x.npy", TINY), ("readme.txt", b"hello")],
    "an array without its ending": [("x.npy", TINY), ("y.bin", TINY)],
    "no array": [("x.npy", b"hello")],
    "a size of terabytes": [
        ("x.npy", TINY.replace(b"(3,)", b"(9999999999999,)").replace(b" " * 13 + b"\n", b"\n"))
    ],
    "a negative size": [("x.npy", TINY.replace(b"(3,), }", b"(-3,),}"))],
    "another version": [("x.npy", b"\x93NUMPY\x09\x00" + TINY[8:])],
    "numbers without bytes": [("x.npy", TINY[:-24].replace(b"'<i8'", b"'|V0'"))],
    "many brackets": [("x.npy", TINY[:10] + b"(" * 118)],
    "objects": [("x.npy", TINY.replace(b"'<i8'", b"'|O' "))],
    "a long header": [("x.npy", TINY[:8] + struct.pack("<H", 1118) + b" " * 1000 + TINY[10:])],
}


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("members", NO_ARRAYS.values(), ids=NO_ARRAYS.keys())
def test_members_that_are_no_plain_arrays_are_refused(
    members: list[tuple[str, bytes]], kind: int, mmap: bool, tmp_path: Path
) -> None:
    write_members(tmp_path / "a.npz", members, kind)
    with pytest.raises(InputError, match=r"a.npz (is not a whole table|holds Python objects)"):
        read_npz(tmp_path / "a.npz", "table", "write one with save_table", mmap=mmap)


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_members(tmp_path / "a.npz", [("x.npy", TINY), ("x.npy", TINY)])
    with pytest.raises(InputError, match="is not a whole table"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("swallowed", [1, 2])
def test_damage_to_the_directory_hides_no_array(mmap: bool, swallowed: int, tmp_path: Path) -> None:
    """The length of a comment in the directory grows, so that the entries after it, the digest's
    included, seem to be its comment.
    """
    path = tmp_path / "a.npz"
    write_npz(path, {"x": np.arange(3), "y": np.arange(4)})
    content = bytearray(path.read_bytes())
    starts = [at for at in range(len(content)) if content[at : at + 4] == b"PK\x01\x02"]
    end = content.rindex(b"PK\x05\x06")
    last = starts[-1 - swallowed]
    struct.pack_into("<H", content, last + 32, end - starts[-swallowed])
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 3 - swallowed, "the archive itself seems whole"
    with pytest.raises(InputError, match="is not a whole table"):
        read_npz(path, "table", "write one with save_table", mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_an_array_hidden_in_the_middle_of_the_directory_is_noticed_without_a_digest(
    mmap: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.arange(4), z=np.arange(5))
    content = bytearray(path.read_bytes())
    first, second, third = [
        at for at in range(len(content)) if content[at : at + 4] == b"PK\x01\x02"
    ]
    struct.pack_into("<H", content, first + 32, third - second)
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["x.npy", "z.npy"], "the archive itself seems whole"
    with pytest.raises(InputError, match="is not a whole table"):
        read_npz(path, "table", "write one with save_table", mmap=mmap)


def test_every_bit_of_a_file_with_a_digest_matters_or_does_not(tmp_path: Path) -> None:
    """A flipped bit anywhere, in the directory too, gives the same arrays or a refusal."""
    path, arrays = tmp_path / "a.npz", {"x": np.arange(3), "y": np.array("tea")}
    write_npz(path, arrays)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            found = read_npz(path, "table", "write one with save_table", mmap=bool(at % 2))
        except InputError:
            continue
        assert found.keys() == arrays.keys() and all(
            np.array_equal(found[name], arrays[name]) for name in arrays
        ), at


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    zeros = np.zeros(2**28, np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=zeros)
    with pytest.raises(InputError, match="would take 268,435,584 bytes, more"):
        read(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "b.npz", x=zeros[: 2**20])
    assert read(tmp_path / "b.npz")["x"].shape == (2**20,)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(InputError, match="is a folder, a pipe or a device"):
        read(tmp_path / "a.npz")


def test_lists_and_texts_are_lists_and_texts() -> None:
    arrays: Arrays = {
        "bytes": np.array([b"a", b"b"]),
        "names": np.array(["a", "\x1b[2J"]),
        "number": np.array(3),
        "many": np.array(["a"]),
    }
    assert read_list("a.npz", arrays, "bytes") == ["a", "b"] and read_list(
        "a.npz", arrays, "names"
    ) == ["a", "\x1b[2J"]
    for name in ("number", "many"):
        with pytest.raises(InputError, match=f"a.npz holds {name} as .*: one text is needed"):
            read_text("a.npz", arrays, name)
    for code in (0x110000, 0xD800, 0xFFFFFFFF):
        arrays = {"names": np.array([code], np.uint32).view("<U1")}
        with pytest.raises(InputError, match=r"a.npz holds names with codes that are no"):
            read_list("a.npz", arrays, "names")
        with pytest.raises(InputError, match="no characters"):
            read_text("a.npz", {"names": arrays["names"].reshape(())}, "names")


def test_messages_are_never_cut_and_hold_no_control_characters() -> None:
    assert str(InputError("a\x1b[31m\nb is 1: give 2.")) == r"a\x1b[31m\nb is 1: give 2."
    long = str(InputError("x" * 1000 + ": give fewer."))
    assert long == "x" * 1000 + ": give fewer."
