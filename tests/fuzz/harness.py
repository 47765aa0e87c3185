"""Damaged files, read in a child process with little memory: every outcome is the same result, a
sentence, or another valid file.

A mutation follows from the name of the format and from a number, its seed, alone. So `python -m
tests.fuzz --format NAME --seed N` repeats what a run has found, and `seeds.json` keeps the seeds of
what was found and repaired.

    same     the file is read as if nothing had happened
    refused  an InputError whose message is one printable sentence of less than 300 characters
    other    another valid file; formats with a digest of their own do not allow it
    failed   anything else: another exception, more than 300 MB of memory beyond the start, more
             than 30 seconds, a crash
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np

from agreestop.common import InputError

MEMORY = 300 * 2**20
SECONDS = float(os.environ.get("AGREESTOP_FUZZ_SECONDS", "30"))
SEEDS: dict[str, list[int]] = json.loads(Path(__file__).with_name("seeds.json").read_text())
OUTCOMES = ("same", "refused", "other", "failed")

NUMBERS = (
    0,
    1,
    7,
    127,
    128,
    255,
    2**15 - 1,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
WORDS = (
    b"1e-99999999",
    b"9" * 5000,
    b"[" * 3000,
    b"nan",
    b"-1",
    b"1.5",
    b"null",
    b'""',
    b"\x1b[2J",
    b"\xed\xa0\x80",
    b"[[]]",
    b"true",
)


@dataclass(frozen=True)
class Format:
    """A format that the software reads.

    write   writes a valid file to a path; the same bytes every time
    read    reads it; whatever it returns is compared by its content
    digest  whether the format has a digest of its own, so that no other valid file may come out
    forge   changes a part within the file, by a function of bytes, and repairs checksums and
            lengths; None: the bytes of the file change
    needs   optional modules or programs without which the format is left out
    """

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    digest: bool = False
    forge: Callable[[bytes, Callable[[bytes], bytes], int], bytes] | None = None
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """Why the format cannot be read here; empty if it can."""
        absent = [name for name in self.needs if find_spec(name) is None and which(name) is None]
        return f"{self.name} needs {' and '.join(absent)}, which is not installed" if absent else ""

    def changed(self, content: bytes, seed: int) -> bytes:
        """The content of a valid file, changed by the seed."""
        if self.forge is None:
            return mutate(content, self.name, seed)
        return self.forge(content, lambda part: mutate(part, self.name, seed), seed)


def mutate(content: bytes, name: str, seed: int) -> bytes:
    """The content with one to four changes, by the seed."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        content = CHANGES[int(rng.integers(len(CHANGES)))](content, rng)
    return content


def _position(content: bytes, rng: np.random.Generator) -> int:
    """Anywhere; half of the time near the beginning or the end, where headers and
    directories are.
    """
    reach = len(content) if rng.random() < 0.5 else min(len(content), 300)
    position = int(rng.integers(max(1, reach)))
    return position if rng.random() < 0.5 else max(0, len(content) - 1 - position)


def _splice(content: bytes, at: int, length: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + length :]


def _flip_bit(content: bytes, rng: np.random.Generator) -> bytes:
    at = _position(content, rng)
    return _splice(
        content, at, 1, bytes(byte ^ 1 << int(rng.integers(8)) for byte in content[at : at + 1])
    )


def _set_number(content: bytes, rng: np.random.Generator) -> bytes:
    at, size = _position(content, rng), int(rng.choice([1, 2, 4, 8]))
    number = NUMBERS[int(rng.integers(len(NUMBERS)))] % 256**size
    return _splice(
        content, at, size, number.to_bytes(size, "little" if rng.random() < 0.5 else "big")
    )


def _set_word(content: bytes, rng: np.random.Generator) -> bytes:
    """Another word instead of a number or a name in text."""
    at = _position(content, rng)
    digits = [
        start
        for start in range(at, min(at + 200, len(content)))
        if content[start : start + 1].isdigit()
    ] or [at]
    return _splice(content, digits[0], int(rng.integers(4)), WORDS[int(rng.integers(len(WORDS)))])


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: _position(content, rng)]


def _remove(content: bytes, rng: np.random.Generator) -> bytes:
    return _splice(content, _position(content, rng), int(rng.integers(1, 65)), b"")


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
    at, size = _position(content, rng), int(rng.integers(1, 200))
    return _splice(content, _position(content, rng), 0, content[at : at + size])


def _overwrite(content: bytes, rng: np.random.Generator) -> bytes:
    size = int(rng.integers(1, 65))
    return _splice(
        content,
        _position(content, rng),
        size,
        [bytes(size), b"\xff" * size, rng.bytes(size)][int(rng.integers(3))],
    )


CHANGES = (
    _flip_bit,
    _flip_bit,
    _set_number,
    _set_number,
    _set_word,
    _cut,
    _remove,
    _repeat,
    _overwrite,
)


def content_of(value: object) -> str:
    """A hash of a result, whatever it is made of."""
    digest = hashlib.sha256()
    _add(digest, value, 0)
    return digest.hexdigest()


def _add(digest: Any, value: Any, depth: int) -> None:
    if depth > 12:
        return
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        digest.update(
            f"{value.dtype.str} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
        )
    elif isinstance(value, Mapping):
        _add(
            digest,
            [part for name in sorted(value, key=str) for part in (str(name), value[name])],
            depth + 1,
        )
    elif is_dataclass(value):
        _add(digest, [getattr(value, field.name) for field in fields(value)], depth + 1)
    elif isinstance(value, (list, tuple)) or (
        isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    ):
        digest.update(f"{len(list(value))} ".encode())
        for part in value:
            _add(digest, part, depth + 1)
    elif isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    else:
        digest.update(type(value).__name__.encode())
        _add(digest, vars(value) if hasattr(value, "__dict__") else {}, depth + 1)


def outcome(form: Format, path: Path, expected: str) -> str:
    """What became of a file: the name of the outcome, or "failed: " and why."""
    try:
        found = content_of(form.read(path))
    except InputError as error:
        words = str(error)
        plain = 0 < len(words) < 300 and words.isprintable() and words.endswith((".", "?"))
        return "refused" if plain else f"failed: no plain sentence: {words[:400]!r}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {str(error)[:200]}"
    if found == expected:
        return "same"
    return "failed: another valid file, although it has a digest" if form.digest else "other"


def run_child(jobs: Iterable[tuple[str, Iterable[int]]], folder: Path) -> Iterator[dict[str, Any]]:
    """Read the mutations with these seeds in a child process: one record {"format", "seed",
    "outcome"} for each.
    """
    waiting = {name: list(seeds) for name, seeds in jobs}
    state = folder / "state.json"
    while any(waiting.values()):
        command = [sys.executable, "-m", "tests.fuzz.child", str(folder), str(state)]
        done = subprocess.run(
            command, input=json.dumps(waiting), capture_output=True, text=True, check=False
        )
        for line in done.stdout.splitlines():
            record = json.loads(line)
            waiting[record["format"]].remove(record["seed"])
            yield record
        if done.returncode:  # it crashed or took too long: go on after the mutation that it was at
            record = json.loads(state.read_text() or "{}")
            if not record:
                raise RuntimeError(done.stderr[-2000:])
            waiting[record["format"]].remove(record["seed"])
            reason = (
                "took too long"
                if "Timeout" in done.stderr
                else f"exit status {done.returncode}: {done.stderr[-300:]}"
            )
            yield {**record, "outcome": f"failed: {reason}"}


def count(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """How often each outcome was seen, by format, and every failure."""
    counts: dict[str, dict[str, Any]] = {}
    for record in records:
        entry = counts.setdefault(record["format"], dict.fromkeys(OUTCOMES, 0) | {"failures": []})
        name = record["outcome"].partition(":")[0]
        entry[name] += 1
        if name == "failed":
            entry["failures"].append(
                f"seed {record['seed']}: {record['outcome'].removeprefix('failed: ')}"
            )
    return counts


def run_for(
    seconds: float, names: Iterable[str], first: int, batch: int = 200
) -> dict[str, dict[str, Any]]:
    """Mutations with the seeds first, first + 1, ... of all formats in turn, until the time is
    over.
    """
    names, end = list(names), time.monotonic() + seconds
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            records += run_child(
                [(name, range(first, first + batch)) for name in names], Path(folder)
            )
            first += batch
    return count(records)
