r"""`.npz` files: plain arrays by name, nothing is unpickled or executed, and one clear sentence for whatever is wrong.

`write_npz` writes files that can be memory-mapped and that notice damage; `numpy.load` reads them like any other.

    layout   a zip archive without compression, one `.npy` for each array; the data of every array begin at a multiple of 64 bytes
    digest   an array of that name: SHA-256, in hexadecimal, over all other arrays in the order of their names: for each array the line
             "<name> <dtype> <shape>\n" (dtype as numpy.dtype.str, shape as a Python tuple), then its bytes in C order

`read_npz` reads any `.npz`. It checks the digest, or the checksums of the archive where there is no digest.
"""

import hashlib
import struct
import zipfile
from collections.abc import Iterable
from os import PathLike
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .files import atomic_writer

Arrays = dict[str, NDArray[Any]]

ALIGNMENT = 64
CHUNK = 2**22
PADDING = 0xD935  # the type of extra field that zip tools use for alignment
LOCAL_HEADER = 30  # bytes, before the name and the extra fields
ZIP64_FIELD = 20  # bytes


def write_npz(path: str | PathLike[str], arrays: Arrays) -> None:
    """Write arrays and their digest, completely or not at all."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    arrays["digest"] = np.array(digest_of(arrays))
    with atomic_writer(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # its date is a constant, so equal arrays make equal files
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
            digest.update(flat[start : start + CHUNK].data)
    return digest.hexdigest()


def read_npz(
    path: str | PathLike[str], what: str, how: str, missing: str = "check the path", needed: Iterable[str] = (), mmap: bool = False
) -> Arrays:
    """All arrays of an `.npz` file by name, except the digest, which is checked.

    what     what the file should be, for the error message: "score file"
    how      how to make such a file: "write one with save_scores"
    missing  what to do if there is no such file
    needed   names of arrays that must be in the file
    mmap     whether arrays that are not compressed are memory-mapped, read-only, instead of read
    """
    try:
        with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:  # noqa: PTH123
            if mmap and "digest.npy" not in archive.namelist() and archive.testzip() is not None:
                raise ValueError("wrong checksum")
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
            arrays = {name: _read_member(path, stream, archive, info, mmap) for name, info in members.items()}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: {missing}.") from None
    except Exception:  # zip, zlib and numpy raise errors of many types for foreign or damaged bytes
        raise InputError(f"{path} is not a whole {what}: {how}.") from None
    if "digest" in arrays and str(arrays.pop("digest")) != digest_of(arrays):
        raise InputError(f"{path} was changed after it was written, because its digest does not match: {how}.")
    for name in needed:
        if name not in arrays:
            raise InputError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'} but no {name!r}: {how}.")
    return arrays


def _read_member(path: str | PathLike[str], stream: BinaryIO, archive: zipfile.ZipFile, info: zipfile.ZipInfo, mmap: bool) -> NDArray[Any]:
    if mmap and info.compress_type == zipfile.ZIP_STORED:
        stream.seek(info.header_offset)
        header = stream.read(LOCAL_HEADER)
        stream.seek(sum(struct.unpack("<HH", header[26:30])), 1)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        if not dtype.hasobject and 0 not in shape and shape:
            return np.memmap(path, dtype, "r", stream.tell(), shape, "F" if fortran else "C")
    with archive.open(info) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):  # reaching the end of the member checks its checksum
            raise ValueError("more than one array")
    return array


def read_list(path: str | PathLike[str], arrays: Arrays, name: str) -> list[Any]:
    """The array of that name as a list of Python values; it must have one axis."""
    if arrays[name].ndim != 1:
        raise InputError(f"{path} holds {name} of shape {arrays[name].shape}: a list, one axis, is needed.")
    return list(arrays[name].tolist())


def read_text(arrays: Arrays, name: str) -> str:
    """The array of that name as text; empty if the file has none."""
    return str(arrays.get(name, ""))
