r"""`.npz` files: plain arrays by name, nothing is unpickled or executed, and one clear sentence for
whatever is wrong.

`write_npz` writes files that can be memory-mapped and that notice damage; `numpy.load` reads them
like any other.

    layout   a zip archive without compression, one `.npy` for each array; the data of every array
             begin at a multiple of 64 bytes
    digest   an array of that name: SHA-256, in hexadecimal, over all other arrays in the order of
             their names: for each array the line "<name> <dtype> <shape>\n" (dtype as
             numpy.dtype.str, shape as a Python tuple), then its bytes in C order

`read_npz` reads any `.npz` of plain arrays. It checks the digest, or the checksums of the archive
where there is no digest; that the members fill the archive without gap or overlap, so that damage
to its directory cannot hide one; and every size before memory is taken.

A mapped array shows what its file holds at the moment it is read. A process that reads a map beyond
the end of a file that was cut is ended by the system. `in_memory` reads a part of a mapped array
from its file instead, and refuses a file that was changed since it was mapped; `check_unchanged`
only compares the file.
"""

import hashlib
import math
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from mmap import mmap as MemoryMap
from os import PathLike
from pathlib import Path
from typing import IO, Any, BinaryIO, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, shortened
from .files import atomic_writer, open_file

Arrays = dict[str, NDArray[Any]]
Members = dict[str, tuple[zipfile.ZipInfo, int]]

ALIGNMENT = 64
CHUNK = 2**22
PADDING = 0xD935  # the type of extra field that zip tools use for alignment
LOCAL_HEADER = 30  # bytes, before the name and the extra fields
ZIP64_FIELD = 20  # bytes
DESCRIPTOR = 24  # bytes that may follow a member whose sizes were not known when it was begun
LONGEST_HEADER = 1000  # characters of the header of an array: it is parsed, which takes memory
# bytes that a compressed file may always take in memory, unless its reader says less
UNPACKED = 2**27
MOST_RATIO = 200
NOT_NPZ = (".csv", ".json", ".npy", ".txt")
SMALL = 1024  # bytes of an array that `read_shapes` reads


@final
class MappedFile:
    """An open file of which arrays are mapped, its path, and its state when they were.

    It is closed with the last of them.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.handle = os.dup(stream.fileno())
        self.path, self.state = Path(stream.name).resolve(), _state(os.fstat(self.handle))

    def __del__(self) -> None:
        os.close(self.handle)


_mapped: "WeakKeyDictionary[MemoryMap, tuple[MappedFile, int, int]]" = WeakKeyDictionary()
"""By the map: its file, the offset of an array in the file, and the address of that array."""


def write_npz(path: str | PathLike[str], arrays: Arrays) -> None:
    """Write arrays and their digest, completely or not at all."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    arrays["digest"] = np.array(digest_of(arrays))
    with atomic_writer(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            # its date is a constant, so equal arrays make equal files
            info = zipfile.ZipInfo(f"{name}.npy")
            begin = stream.tell() + LOCAL_HEADER + len(info.filename.encode()) + ZIP64_FIELD + 4
            padding = -begin % ALIGNMENT
            info.extra = struct.pack("<HH", PADDING, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def digest_of(arrays: Arrays) -> str:
    """SHA-256 of all arrays but the one named digest, in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(arrays.keys() - {"digest"}):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, len(flat), CHUNK):
            digest.update(in_memory(flat[start : start + CHUNK]).data)
    return digest.hexdigest()


def read_npz(
    path: str | PathLike[str],
    what: str,
    how: str,
    missing: str = "check the path",
    needed: Iterable[str] = (),
    mmap: bool = False,
    unpacked_limit: int = UNPACKED,
) -> Arrays:
    """All arrays of an `.npz` file by name, except the digest, which is checked.

    what     what the file should be, for the error message: "score file"
    how      how to make such a file: "write one with save_scores"
    missing  what to do if there is no such file
    needed   names of arrays that must be in the file
    mmap     whether arrays that are not compressed are memory-mapped, read-only, instead of read

    unpacked_limit: bytes that the compressed arrays may always take; beyond, MOST_RATIO times the
    size of the file
    """
    with _open_npz(path, what, how, missing) as (stream, archive, members):
        size = stream.seek(0, 2)
        unpacked = sum(info.file_size for info, _ in members.values() if info.compress_type)
        if unpacked > max(unpacked_limit, MOST_RATIO * size):
            raise InputError(
                f"{path} would take {unpacked:,} bytes, more than {MOST_RATIO} times its size: "
                "write it again without compression, as numpy.savez does."
            )
        if mmap and "digest" not in members and archive.testzip() is not None:
            raise ValueError("wrong checksum")
        file = MappedFile(stream) if mmap else None
        arrays = {
            name: _read_member(stream, archive, info, begin, file)
            for name, (info, begin) in members.items()
        }
    if "digest" in arrays and str(arrays.pop("digest")) != digest_of(arrays):
        raise InputError(
            f"{path} was changed after it was written, because its digest does not match: {how}."
        )
    for name in needed:
        if name not in arrays:
            held = shortened(", ".join(sorted(arrays)) or "nothing")
            raise InputError(f"{path} holds {held} but no {name!r}: {how}.")
    return arrays


def read_shapes(
    path: str | PathLike[str], what: str, how: str
) -> tuple[dict[str, tuple[int, ...]], Arrays]:
    """The shapes of all arrays of an `.npz` file, from their headers, and its small arrays.

    Digest and large arrays are not checked.
    """
    shapes, small = {}, {}
    with _open_npz(path, what, how) as (stream, archive, members):
        for name, (info, begin) in members.items():
            with archive.open(info) as member:
                shapes[name] = _read_header(member, info)[0]
            if info.file_size <= SMALL:
                small[name] = _read_member(stream, archive, info, begin)
    return shapes, small


def names_in(path: str | PathLike[str]) -> set[str]:
    """The names of the arrays of an `.npz` file; none for any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


class _HoldsObjects(Exception):
    """An array, by its name, that only pickle could read."""


@contextmanager
def _open_npz(
    path: str | PathLike[str], what: str, how: str, missing: str = "check the path"
) -> Iterator[tuple[BinaryIO, zipfile.ZipFile, Members]]:
    """The file, its archive and its members; whatever goes wrong with them is said
    in a sentence.
    """
    try:
        with open_file(path, missing) as stream, zipfile.ZipFile(stream) as archive:
            yield stream, archive, _members(archive, stream)
    except InputError:
        raise
    except _HoldsObjects as array:
        raise InputError(
            f"{path} holds Python objects in {str(array)!r}: convert it to numbers or texts, such "
            "as with numpy.array(list), and save it again."
        ) from None
    except MemoryError:
        raise InputError(
            f"{path} does not fit into memory: close other programs, or use a larger machine."
        ) from None
    except Exception:  # zip, zlib and numpy raise errors of many types for foreign or damaged bytes
        other = Path(path).suffix in NOT_NPZ or _is_of_another_kind(path)
        state = "no .npz file" if other else f"not a whole {what}"
        raise InputError(f"{path} is {state}: {how}.") from None


def _is_of_another_kind(path: str | PathLike[str]) -> bool:
    """Whether neither the name nor the first bytes are those of an `.npz` file."""
    with Path(path).open("rb") as stream:
        return Path(path).suffix != ".npz" and stream.read(2) != b"PK"


def _members(archive: zipfile.ZipFile, stream: BinaryIO) -> Members:
    """Each member and where its content begins, by the name of its array; refused unless they
    fill the archive one after the other.
    """
    members: Members = {}
    end = slack = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = info.filename.removesuffix(".npy")
        if not end <= info.header_offset <= end + slack or name == info.filename or name in members:
            raise ValueError("a gap, an overlap, no array, or a name that comes twice")
        stream.seek(info.header_offset)
        begin = (
            info.header_offset
            + LOCAL_HEADER
            + sum(struct.unpack("<HH", stream.read(LOCAL_HEADER)[26:]))
        )
        members[name] = info, begin
        end, slack = begin + info.compress_size, DESCRIPTOR if info.flag_bits & 8 else 0
    if not end <= archive.start_dir <= end + slack:
        raise ValueError("a gap before the directory")
    return members


def _read_header(
    member: IO[bytes], info: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an array, which must fill the rest of its member."""
    version = np.lib.format.read_magic(member)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read_header(member, max_header_size=LONGEST_HEADER)
    if dtype.hasobject:
        raise _HoldsObjects(info.filename.removesuffix(".npy"))
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != info.file_size - member.tell():
        raise ValueError("no plain array of this size")
    return shape, fortran, dtype


def _read_member(
    stream: BinaryIO,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    begin: int,
    file: MappedFile | None = None,
) -> NDArray[Any]:
    """One array; with a file it is mapped, unless it is compressed."""
    with archive.open(info) as member:
        shape, fortran, dtype = _read_header(member, info)
        size = math.prod(shape) * dtype.itemsize
        order: Any = "F" if fortran else "C"
        if file is not None and size and shape and info.compress_type == zipfile.ZIP_STORED:
            mapped = np.memmap(stream, dtype, "r", begin + member.tell(), shape, order)
            assert isinstance(mapped.base, MemoryMap)
            _mapped[mapped.base] = file, begin + member.tell(), mapped.ctypes.data
            return mapped
        array: NDArray[Any] = np.empty(shape, dtype, order)
        flat = array.reshape(-1, order="A").view(np.uint8)  # a view, whatever the order
        for start in range(0, size, CHUNK):  # the end of the member checks its checksum
            flat[start : start + CHUNK] = np.frombuffer(member.read(CHUNK), np.uint8)
    return array


def check_unchanged(array: NDArray[Any]) -> None:
    """Refuse an array of a mapped file that was written to after it was mapped, because it would
    show other data, or end the process.

    It is no harm if the file was replaced or removed: the map keeps the old one.
    """
    if (known := _file_of(array)) is not None:
        _check_state(known[0])


def in_memory(array: NDArray[Any]) -> NDArray[Any]:
    """A mapped array, or a part of one, read from its file; any other array as it is.

    It is refused if the file was changed after it was mapped. The strides stay as they are, so a
    view of overlapping rows stays small.
    """
    known = _file_of(array)
    if known is None or not array.size:
        return array
    file, offset, address = known
    low, high = np.lib.array_utils.byte_bounds(array)
    content = bytearray(high - low)
    done, view = 0, memoryview(content)
    while done < len(content):
        read = os.preadv(file.handle, [view[done : done + CHUNK]], offset + low - address + done)
        if not read:
            raise _changed(file)
        done += read
    _check_state(file)
    begin = array.ctypes.data - low
    return np.ndarray(array.shape, array.dtype, content, begin, array.strides)


def _file_of(array: NDArray[Any]) -> tuple[MappedFile, int, int] | None:
    """The file of a mapped array, with the offset and the address of what is mapped of it.

    None for any other array.
    """
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return _mapped.get(memory) if isinstance(memory, MemoryMap) else None


def _check_state(file: MappedFile) -> None:
    if _state(os.fstat(file.handle)) != file.state:
        raise _changed(file)


def _changed(file: MappedFile) -> InputError:
    return InputError(
        f"{file.path} was changed in place after it was loaded: load it again, and write new data "
        "to a new file."
    )


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Which file it is, and its size and time of change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_list(path: str | PathLike[str], arrays: Arrays, name: str) -> list[Any]:
    """The array of that name as a list of Python values; it must have one axis."""
    array = arrays[name]
    if array.ndim != 1:
        raise InputError(
            f"{path} holds {name} of shape {array.shape}: a list, one axis, is needed."
        )
    try:
        values = (
            [one.decode("ascii") for one in array.tolist()]
            if array.dtype.kind == "S"
            else array.tolist()
        )
        "".join(value for value in values if isinstance(value, str)).encode()
    except (ValueError, SystemError):
        raise InputError(
            f"{path} holds {name} with codes that are no characters: write it again as text."
        ) from None
    return list(values)


def read_text(path: str | PathLike[str], arrays: Arrays, name: str) -> str:
    """The array of that name as text; empty if the file has none."""
    array = arrays.get(name, np.array(""))
    if array.ndim or array.dtype.kind not in "US":
        raise InputError(
            f"{path} holds {name} as {array.dtype} of shape {array.shape}: one text is needed."
        )
    return str(read_list(path, {name: array.reshape(1)}, name)[0])
