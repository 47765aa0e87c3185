"""Checkpoints as they are written on the command line."""

from __future__ import annotations

import re

from agreestop.common.errors import InputError


def parse_checkpoints(text: str, available: tuple[float, ...]) -> tuple[float, ...]:
    """'all', '20,40,60,80', '1-80' (every time of the file in that range), or a mixture of the last two."""
    if text.strip() == "all":
        return available
    chosen: list[float] = []
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\s*-\s*(\d+(?:\.\d+)?))?\s*", part)
        if bounds is None:
            raise InputError(f"--checkpoints is {text!r}: give times such as 20,40,60,80, a range such as 1-80, or all.")
        low, high = float(bounds[1]), float(bounds[2] or bounds[1])
        inside = [time for time in available if low <= time <= high]
        if not inside:
            given = f"{available[0]} to {available[-1]}"
            raise InputError(f"--checkpoints asks for {part.strip()}, but the file has times {given}: choose among those.")
        chosen += inside
    return tuple(chosen)
