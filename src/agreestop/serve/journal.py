"""The log of a server for audits: what it decided and was told, one JSON object on each line.

A line is written whole: a batch of lines goes to the file in one call, and what a kill or a full
disk cut off is removed before the next. A file that would grow beyond its size is renamed to
FILE.1, that one to FILE.2, and so on; the last of them is deleted.

    [json.loads(line) for line in open("decisions.jsonl")]
"""

import io
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from agreestop.common import InputError, as_count, file_lock

from .protocol import write

Entry = dict[str, Any]
log = logging.getLogger("agreestop.serve")


@final
class Journal:
    """A log of records, in a file that belongs to it until `close`.

    size   bytes of a file, beyond which the next begins; a batch of lines is not divided
    files  how many full files are kept beside the one that is written
    lost   records that could not be written, since the last one that was
    """

    def __init__(self, path: Path, size: int = 100 << 20, files: int = 10) -> None:
        self._path = Path(path)
        self._most, self._files = as_count(size, "log_bytes"), as_count(files, "log_files")
        self.lost = 0
        with ExitStack() as held:
            held.enter_context(file_lock(self._path))
            try:
                self._file = _appending(self._path)
                self._bytes = _end_of_lines(self._path)
                self._file.truncate(self._bytes)
            except OSError as error:
                raise InputError(
                    f"cannot write the log {path}: {error.strerror}; choose a file in a folder "
                    "that may be written to."
                ) from None
            held.callback(lambda: self._file.close())
            self._held = held.pop_all()

    def write(self, records: Sequence[Entry]) -> bool:
        """Append records, each with the time of now. False if they could not be written."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self.lost:
            records = [{"event": "lost", "records": self.lost}, *records]
        lines = [write(at=at, **record) for record in records]
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            if self._bytes and self._bytes + len(data) > self._most:
                self._rotate()
            if self._file.write(data) < len(data):
                raise OSError(0, "the disk is full")
        except OSError as error:
            if not self.lost:
                log.error("the log of decisions cannot be written: %s", error.strerror)
            self.lost += len(records) - bool(self.lost)
            self._file.truncate(self._bytes)
            return False
        self._bytes, self.lost = self._bytes + len(data), 0
        return True

    def close(self) -> None:
        """Let another server have the file."""
        self._held.close()

    def _rotate(self) -> None:
        """Begin a new file. The older ones are renamed from the last on, so none is replaced."""
        names = [self._path, *(_numbered(self._path, one) for one in range(1, self._files + 1))]
        for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
            if newer.exists():
                newer.replace(older)
        full, self._file = self._file, _appending(self._path)
        self._bytes = 0
        full.close()


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _appending(path: Path) -> io.FileIO:
    """A file to append to, which its owner alone may read if it is new."""
    return io.FileIO(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))


def _end_of_lines(path: Path) -> int:
    """The size of a file up to its last whole line."""
    end = path.stat().st_size
    with path.open("rb") as file:
        while end:
            begin = max(0, end - 65536)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0
