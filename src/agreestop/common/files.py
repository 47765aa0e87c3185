"""Files that are written completely or not at all, files that are safe to read, folders, and locks.

A link is followed: the file to which it leads is written, and the link stays.

A writer locks its temporary file until the file is complete. The kernel frees the lock of a process
that ends, however it ends, so a temporary file without a lock was left by a killed process: the
next writer in that folder removes it.
"""

import errno
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeAlias, TypeVar

from .errors import InputError

Loaded = TypeVar("Loaded")
StrPath: TypeAlias = str | PathLike[str]

MOST_BYTES = 2**30  # the largest file that is read as a whole
LOCK_NAME = ".agreestop-lock"
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.part")
# errors of file systems that have no locks
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
# the thread and the folder of every lock that this process holds
_held: set[tuple[int, Path]] = set()


@contextmanager
def atomic_writer(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file next to `path`, which replaces `path` once everything is written and on disk.

    A link leads to the file to replace.
    """
    target = _destination(path)
    handle, temporary = _begin(target)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(target)  # before the file is closed, which frees its lock
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            advice = (
                "free some space, or choose another folder"
                if error.errno == errno.ENOSPC
                else "choose another folder"
            )
            raise InputError(f"cannot write {target}: {error.strerror}; {advice}.") from None
        raise


def check_writable(path: str | PathLike[str], *inputs: str | PathLike[str] | None) -> None:
    """Refuse a path to which `atomic_writer` cannot write, and that of an input, before the work
    whose result it would get.
    """
    target = _destination(path)
    if any(one is not None and os.path.realpath(one) == os.path.realpath(target) for one in inputs):
        raise InputError(
            f"{path} is read and would be replaced by what is written: give another name for the "
            "output."
        )
    handle, temporary = _begin(target)
    os.close(handle)
    temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        taken = isinstance(error, FileExistsError | NotADirectoryError)
        why = (
            "a file is in its way; choose another path"
            if taken
            else f"{error.strerror}; choose a path that may be written to"
        )
        raise InputError(f"cannot make the folder {folder}: {why}.") from None


@contextmanager
def open_file(path: str | PathLike[str], missing: str = "check the path") -> Iterator[BinaryIO]:
    """A file for reading.

    Pipes, devices and folders are refused, and errors of the system become sentences.

    missing  what to do if there is no such file
    """
    if not os.path.exists(path):  # noqa: PTH110
        raise InputError(f"there is no file {path}: {missing}.")
    if not os.path.isfile(path):  # noqa: PTH113  before it is opened, because a pipe waits for its writer
        raise InputError(f"{path} is a folder, a pipe or a device: give a file.")
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            yield stream
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}): check the file and its "
            "permissions."
        ) from None


def read_file(
    path: str | PathLike[str], missing: str = "check the path", most: int = MOST_BYTES
) -> bytes:
    """The content of a file of at most `most` bytes."""
    with open_file(path, missing) as stream:
        if os.fstat(stream.fileno()).st_size > most:
            raise InputError(
                f"{path} has more than {most:,} bytes: check that it is the right file."
            )
        return stream.read()


def as_bytes(save: Callable[[Path], object]) -> bytes:
    """The content of the file that `save` writes to a path."""
    with TemporaryDirectory() as folder:
        save(path := Path(folder) / "content")
        return path.read_bytes()


def from_bytes(content: bytes, load: Callable[[Path], Loaded]) -> Loaded:
    """What `load` reads from a file with this content."""
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "content").write_bytes(content)
        return load(path)


@contextmanager
def folder_lock(folder: Path, waiting: Callable[[str], object] | None = None) -> Iterator[None]:
    """Keep other processes and threads that take this lock out of a folder, which must exist.

    waiting  called once with a sentence if somebody else holds the lock, before the wait for it;
             None: an InputError instead

    The lock of a process that was killed is free at once. A thread may take a lock again that it
    holds. A file system without locks keeps nobody out, which `waiting` is called to say.
    """
    mine = (threading.get_ident(), folder.resolve())
    if mine in _held:
        yield
        return
    path = folder / LOCK_NAME
    try:
        handle = _locked_file(path, folder, "folder", waiting)
    except OSError as error:
        if waiting is None or error.errno not in _NO_LOCKS:
            raise InputError(
                f"cannot lock {folder}: {error.strerror}; choose a folder that exists and may be "
                "written to."
            ) from None
        waiting(
            f"{folder} cannot be locked ({error.strerror}): start nothing else that writes to it."
        )
        yield
        return
    _held.add(mine)
    try:
        with _held_lock(path, handle):
            yield
    finally:
        _held.discard(mine)


@contextmanager
def file_lock(file: Path, waiting: Callable[[str], object] | None = None) -> Iterator[None]:
    """Keep others that take this lock from a file, which need not exist.

    Where somebody holds it, in this process or another, `waiting` is called with a sentence, then
    this waits; without `waiting` that is an InputError.

    The lock of a process that was killed is free at once. A file system without locks
    keeps nobody out.
    """
    target = _destination(file)
    path = target.with_name(f".{target.name}.lock")
    try:
        handle = _locked_file(path, file, "file", waiting)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InputError(
                f"cannot write {file}: {error.strerror}; choose a folder that exists and may be "
                "written to."
            ) from None
        yield
        return
    with _held_lock(path, handle):
        yield


@contextmanager
def _held_lock(path: Path, handle: int) -> Iterator[None]:
    """Write the number of this process into a lock file, and remove it in the end."""
    try:
        os.truncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        # before the lock is free, so that nobody else's file is removed
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked_file(
    path: Path, target: Path, kind: str, waiting: Callable[[str], object] | None
) -> int:
    """The lock file of a target, which is a folder or a file, open and locked by this process."""
    said = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _try_lock(handle):
                owner = os.pread(handle, 20, 0).decode("ascii", errors="replace")
                busy = (
                    f"{target} is in use by "
                    f"{f'process {owner}' if owner.isdigit() else 'another process'}"
                )
                if waiting is None:
                    raise InputError(f"{busy}: wait until it is done, or choose another {kind}.")
                if not said:
                    waiting(f"{busy}: waiting until it is done.")
                said = True
                _try_lock(handle, wait=True)
            if _is_same_file(path, handle):  # the process that held the lock has removed its file
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _destination(path: str | PathLike[str]) -> Path:
    """The file that is written for this path: the path itself, or where its links lead, whether
    or not there is a file yet.
    """
    target = Path(path)
    if not target.is_symlink():
        return target
    try:
        found = Path(os.path.realpath(target))
        if found.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        os.lstat(found.parent)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: it is a link that leads nowhere ({error.strerror}); remove it."
        ) from None
    return found


def _begin(target: Path) -> tuple[int, Path]:
    """A new temporary file beside the target, or a sentence that says why none can be made."""
    if target.exists() and not target.is_file():
        raise InputError(
            f"cannot write {target}: it is a folder, a pipe or a device; choose the name of a file."
        )
    try:
        _remove_leftovers(target.parent)
        return _make_temporary(target)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}; choose a folder that exists and may be "
            "written to."
        ) from None


def _make_temporary(target: Path) -> tuple[int, Path]:
    """A new file beside the target, open and locked.

    The system gives it the permissions of any new file.
    """
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        handle = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
        )
        with suppress(OSError):
            _try_lock(handle, wait=True)
        if _is_same_file(path, handle):  # another writer may have removed it before it was locked
            return handle, path
        os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed: those that nobody has locked."""
    for name in os.listdir(folder):  # noqa: PTH208
        if _TEMPORARY.fullmatch(name):
            with suppress(OSError):
                path = folder / name
                handle = os.open(path, os.O_RDWR)
                try:
                    if _try_lock(handle):
                        path.unlink()  # its name is random, so it cannot be another file by now
                finally:
                    os.close(handle)


def _try_lock(handle: int, wait: bool = False) -> bool:
    """Lock an open file for this process; False if another one has locked it, OSError where
    there are no locks.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOSYS, "this system has no file locks") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
