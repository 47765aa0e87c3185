"""What options hold: text files with a line for each input or class, and lists of times."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agreestop.common import Floats, InputError, Schedule, check_texts, read_file
from agreestop.common.errors import shortened

LARGEST_TEXT = 2**28  # bytes


def read_lines(path: Path | None, n: int) -> list[str] | None:
    """The lines of a text file that has one for each of n inputs; None for no file."""
    return None if path is None else _lines(path, n)


def _lines(path: Path, n: int) -> list[str]:
    try:
        # some editors write a byte order mark
        lines = read_file(path, most=LARGEST_TEXT).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not a text file: give one with a line for each input."
        ) from None
    lines = [line.strip() for line in (lines[:-1] if lines[-1] == "" else lines)]
    check_texts(lines, str(path))
    if "" in lines:
        raise InputError(f"{path}, line {lines.index('') + 1} is empty: give a text on each line.")
    if len(lines) != n:
        raise InputError(f"{path} has {len(lines)} lines for {n} inputs: give one line for each.")
    return lines


def read_numbers(path: Path | None, n: int) -> Floats | None:
    """A number for each of n inputs, one on a line; None for no file."""
    return None if path is None else _as_numbers(path, _lines(path, n))


def _as_numbers(
    path: Path, words: Sequence[str], advice: str = "give one number on each line"
) -> Floats:
    try:
        return np.array([float(word) for word in words])
    except ValueError as error:
        raise InputError(
            f"{path} holds something else than numbers ({shortened(error)}): {advice}."
        ) from None


def read_matrix(path: Path) -> Floats:
    """A square matrix from a text file: the numbers of each row on a line, with commas or
    spaces between them.
    """
    text = read_file(path, most=LARGEST_TEXT).decode("utf-8-sig", errors="replace")
    advice = (
        "give a line of numbers for each class, with commas or spaces between them, and no heading"
    )
    rows = [
        _as_numbers(path, line.replace(",", " ").split(), advice)
        for line in text.splitlines()
        if line.strip()
    ]
    if not rows:
        raise InputError(f"{path} holds no numbers: {advice}.")
    if any(len(row) != len(rows) for row in rows):
        raise InputError(
            f"{path} has {len(rows)} rows, and some row has not as many numbers: give a row and a "
            "column for each class."
        )
    return np.stack(rows)


def parse_schedule(text: str) -> Schedule:
    """'1:1,1:2,4:6': a time and a number of members for each look."""
    looks = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?):(\d{1,9})\s*", part)
        if found is None:
            raise InputError(
                f"--schedule is {text!r}: give a time and a number of members for each look, such "
                "as 1:1,1:2,4:6."
            )
        looks.append((float(found[1]) if "." in found[1] else int(found[1]), int(found[2])))
    return Schedule(looks)


def parse_checkpoints(text: str, available: tuple[float, ...]) -> tuple[float, ...]:
    """'all', '20,40,60,80', '1-80' (every time of the file in that range), or a mixture
    of the last two.
    """
    if text.strip() == "all":
        return available
    chosen: list[float] = []
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\s*-\s*(\d+(?:\.\d+)?))?\s*", part)
        if bounds is None:
            raise InputError(
                f"--checkpoints is {text!r}: give times such as 20,40,60,80, a range such as 1-80, "
                "or all."
            )
        low, high = float(bounds[1]), float(bounds[2] or bounds[1])
        inside = [time for time in available if low <= time <= high]
        if not inside:
            raise InputError(
                f"--checkpoints asks for {part.strip()}, but the file has times {available[0]} to "
                f"{available[-1]}: choose among those."
            )
        chosen += inside
    return tuple(chosen)
