"""Files that are written completely or not at all, and folders."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from .errors import InputError


@contextmanager
def atomic_writer(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file next to `path`, which replaces `path` once everything is written and on disk."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}; choose a folder that exists and may be written to.") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            advice = "free some space, or choose another folder" if error.errno == errno.ENOSPC else "choose another folder"
            raise InputError(f"cannot write {target}: {error.strerror}; {advice}.") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}.") from None
