"""First risks on a grid that is coarser than rounding.

Many inputs may share a first risk, for example inputs whose first step is empty. A batch rounds it
one way and a stream another way. By rank, all streams would then lie on one side of all calibration
examples. So first risks are put in cells of one width, and all risks in a cell are equal:

    cell = ⌊(risk - offset)/width⌋,    width = max(64·η, 1e-4)

η is the largest difference between two runs of one input. The offset is 0, unless a value that many
calibration examples share would then lie near the edge of a cell. It depends on nothing else, so
ranks stay exactly uniform where there are no such values. "Equal within η" would not do: it is not
transitive.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from agreestop.common import Floats, Integers

CELL, LEAST_WIDTH = 64, 1e-4  # the width of a cell in units of η, and its least width
OFFSETS = 64  # candidates, evenly spaced over a cell
SHARED = 0.005  # from this share of the examples on, a value counts as shared,
FEWEST = 3  # if at least this many examples have it
EDGE = 1 / 8  # of a cell: shared values stay this far from its edges, where that is possible


@dataclass(frozen=True)
class RiskGrid:
    """Cells of one width; a risk is replaced by the middle of its cell."""

    width: float
    offset: float = 0.0

    @classmethod
    def of(cls, risks: Floats | None, eta: float) -> Self:
        """The grid for the first risks (n,) of the calibration examples."""
        width = max(CELL * eta, LEAST_WIDTH)
        values, counts = _shared(np.empty(0) if risks is None else risks, eta)
        offsets = np.arange(OFFSETS) * (width / OFFSETS)
        inside = np.mod((values[:, None] - offsets) / width, 1.0)
        distance = np.minimum(inside, 1 - inside)
        too_near = counts @ (distance < 2 * eta / width), counts @ (distance < EDGE)
        return cls(width, float(offsets[np.lexsort(too_near[::-1])[0]]))

    def middle(self, risk: float) -> float:
        """The middle of the cell of a risk; one stays as it is where cells have no number."""
        cell = (risk - self.offset) / self.width
        if not math.isfinite(cell):
            return risk
        return (math.floor(cell) + 0.5) * self.width + self.offset


def _shared(risks: Floats, eta: float) -> tuple[Floats, Integers]:
    """Values that many risks (n,) share up to rounding, and how many share each."""
    ordered = np.sort(risks[np.isfinite(risks)])
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > eta) + 1)
    most = max(FEWEST, SHARED * len(risks))
    runs = [run for run in runs if len(run) >= most]
    middles = np.array([(run[0] + run[-1]) / 2 for run in runs])
    return middles, np.array([len(run) for run in runs], dtype=np.int64)
