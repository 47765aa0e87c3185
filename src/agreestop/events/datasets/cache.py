"""Binned frames kept on disk, so that recordings are read once: one file for each data set and way of reading it.

    line 1    agreestop frames 1
    line 2    SHA-256 of all that follows, in hexadecimal
    line 3    JSON: the key, and of each part its name, classes, description, held steps, and the shape and type of its inputs
    then      of each part the labels (int64, little-endian) and the inputs (numbers little-endian, booleans eight to a byte)

The key is a fingerprint of the settings and of the names, sizes and times of the recordings: another way of reading, or other files, make
another key. A file is written beside its place and then put there at once, and is opened once to be read, so that several runs may
share a cache: the worst that can happen is that two make the same frames. A file that is cut off, changed or of another kind is
told and made again. Nothing in it is executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer, make_folder

from ..data import EventData, EventSplits

MAGIC = b"agreestop frames 1\n"
PARTS = tuple(part.name for part in fields(EventSplits))
WORDS = ("name", "simulated", "classes", "description", "held")
CHUNK = 1 << 22


class CacheWarning(UserWarning):
    """A file of the cache could not be used or written; the message says which, and what was done instead."""


def cached(folder: str | PathLike[str] | None, key: str, make: Callable[[], EventSplits]) -> EventSplits:
    """What `make` gives, from the cache in `folder` (None: `cache_folder()`) if it was made before, and kept there if not.

    The cache only saves time: where it cannot be read or written, that is said in a warning and the frames are made.
    """
    path = (cache_folder() if folder is None else Path(folder)) / f"{key}.frames"
    try:
        return _read(path, key)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        warnings.warn(f"{path} cannot be read ({error.strerror}): its frames are made again.", CacheWarning, stacklevel=2)
    except Exception:  # whatever json and numpy make of bytes that are not theirs
        warnings.warn(f"{path} is damaged or is not of this cache: its frames are made again.", CacheWarning, stacklevel=2)
    data = make()
    try:
        make_folder(path.parent)
        with atomic_writer(path) as stream:
            _write(stream, key, data)
    except InputError as error:
        sentence = f"the frames are not kept for the next time (AGREESTOP_CACHE may name another folder): {error}"
        warnings.warn(sentence, CacheWarning, stacklevel=2)
    return data


def cache_folder() -> Path:
    """Where frames are kept: AGREESTOP_CACHE, else agreestop in XDG_CACHE_HOME, else in ~/.cache."""
    if chosen := os.environ.get("AGREESTOP_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(shared) if Path(shared).is_absolute() else Path("~/.cache").expanduser()) / "agreestop"


def fingerprint(settings: Mapping[str, object], files: Iterable[Path], root: str | PathLike[str]) -> str:
    """A key for frames that were made with these settings from these files, which are named from `root` on."""
    sources = []
    for path in sorted(files):
        state = path.stat()
        sources.append((path.relative_to(root).as_posix(), state.st_size, state.st_mtime_ns))
    words = json.dumps({"format": MAGIC.decode(), "settings": settings, "sources": sources}, sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()


def _write(stream: BinaryIO, key: str, data: EventSplits) -> None:
    parts = {name: getattr(data, name) for name in PARTS}
    header: dict[str, Any] = {"key": key, "parts": {}}
    for name, part in parts.items():
        words = {word: getattr(part, word) for word in WORDS}
        header["parts"][name] = words | {"shape": part.inputs.shape, "dtype": part.inputs.dtype.name}
    digest = hashlib.sha256()

    def put(content: bytes | memoryview) -> None:
        digest.update(content)
        stream.write(content)

    stream.write(MAGIC + b"0" * 64 + b"\n")  # the digest is known at the end
    put(json.dumps(header).encode() + b"\n")
    for part in parts.values():
        put(part.labels.astype("<i8").tobytes())
        inputs = np.packbits(part.inputs.ravel()) if part.inputs.dtype == np.bool_ else part.inputs
        put(np.ascontiguousarray(inputs, inputs.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)
    stream.seek(len(MAGIC))
    stream.write(digest.hexdigest().encode())
    stream.seek(0, os.SEEK_END)


def _read(path: Path, key: str) -> EventSplits:
    """The parts of a file; raises whatever comes of one that is not whole or not the one that is looked for."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        if stream.readline(len(MAGIC)) != MAGIC:
            raise ValueError("no file of frames")
        promised = stream.readline(65).decode().rstrip("\n")
        start = stream.tell()
        while content := stream.read(CHUNK):
            digest.update(content)
        if digest.hexdigest() != promised:
            raise ValueError("not what was written")
        stream.seek(start)
        header = json.loads(stream.readline())
        if header["key"] != key:
            raise ValueError("another key")
        return EventSplits(**{name: _read_part(stream, header["parts"][name]) for name in PARTS})


def _read_part(stream: BinaryIO, words: Mapping[str, Any]) -> EventData:
    shape = tuple(words["shape"])
    labels = np.fromfile(stream, "<i8", shape[0])
    size, dtype = int(np.prod(shape)), np.dtype(words["dtype"])
    if dtype == np.bool_:
        inputs: NDArray[Any] = np.unpackbits(np.fromfile(stream, np.uint8, (size + 7) // 8), count=size).view(np.bool_)
    else:
        inputs = np.fromfile(stream, dtype.newbyteorder("<"), size).astype(dtype, copy=False)
    known = {word: words[word] for word in WORDS} | {"classes": tuple(words["classes"])}
    return EventData(inputs=inputs.reshape(shape), labels=labels, **known)
