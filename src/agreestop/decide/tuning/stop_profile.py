"""Where inputs stop as the threshold of nested sets grows, and the earliest safe threshold."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from agreestop.common import Floats, Integers


@dataclass(frozen=True, eq=False)
class StopProfile:
    """Where inputs stop as λ grows: at `stops[i, j]` for λ in [breaks[i, j], breaks[i, j + 1])."""

    breaks: Floats
    stops: Integers

    @classmethod
    def of(cls, scores: Floats, max_set_size: int) -> Self:
        """From scores (n, M, C)."""
        n, checkpoints, classes = scores.shape
        last = checkpoints - 1
        ordered = np.sort(scores[:, :last], axis=-1)
        opens, closes = ordered[:, :, 0], np.full((n, last), np.inf)
        if max_set_size < classes:
            closes = ordered[:, :, max_set_size]
        edges = np.sort(np.concatenate([opens, closes], axis=1), axis=1)
        breaks = np.concatenate([np.full((n, 1), -np.inf), edges], axis=1)
        stops = np.full(breaks.shape, last)
        for index in range(last - 1, -1, -1):
            inside = (opens[:, index, None] <= breaks) & (breaks < closes[:, index, None])
            np.copyto(stops, index, where=inside)
        return cls(breaks, stops)

    def totals(self, times: Floats, rows: Integers | slice) -> "TotalTimes":
        """The total stopping time of some inputs."""
        stop_times = times[self.stops[rows]]
        breaks = self.breaks[rows][:, 1:].ravel()
        order = np.argsort(breaks, kind="stable")
        steps = np.diff(stop_times, axis=1).ravel()[order]
        first = stop_times[:, 0].sum()
        return TotalTimes(first, breaks[order], first + np.cumsum(steps))


@dataclass(frozen=True, eq=False)
class TotalTimes:
    """A total stopping time as λ grows: `first` at -∞, `totals[j]` from `breaks[j]` on."""

    first: float
    breaks: Floats
    totals: Floats

    def earliest(self, floor: float) -> float:
        """The smallest λ ≥ floor of least total, and so of least mean, stopping time."""
        breaks, totals = self.breaks, self.totals
        above = int(np.searchsorted(breaks, floor, side="right"))
        ends = np.append(breaks[1:] > breaks[:-1], True) if len(breaks) else np.zeros(0, dtype=bool)
        ends[:above] = False
        candidates = np.append(floor, breaks[ends])
        values = np.append(totals[above - 1] if above else self.first, totals[ends])
        best = values.min()
        return float(candidates[np.argmax(values <= best + 1e-9 * abs(best))])
