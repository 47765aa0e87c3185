"""Words of the command line made into settings: checkpoints and poolings."""

from __future__ import annotations

import re

from agreestop.common.errors import InputError
from agreestop.decide.pooling import MajorityVote, MergeConfidence, MergePValues, MergeRanks, Pooling

POOLINGS = "confidence:R, p-values:R, p-values:R:exchangeable, p-values:R:randomized, ranks:R, vote or none"


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


def parse_pooling(text: str) -> Pooling | None:
    """'confidence:1', 'p-values:45', 'ranks:1', 'vote', 'none'."""
    name, *settings = text.strip().split(":")
    try:
        if name == "none" and not settings:
            return None
        if name == "vote" and not settings:
            return MajorityVote()
        if name == "confidence" and len(settings) <= 1:
            return MergeConfidence(*map(float, settings))
        if name == "ranks" and len(settings) <= 1:
            return MergeRanks(*map(float, settings))
        if name == "p-values" and 1 <= len(settings) <= 2:
            return MergePValues(float(settings[0]), form=settings[1] if len(settings) == 2 else "any")
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"--pooling is {text!r}: give {POOLINGS}, where R is a number, inf or -inf.")
