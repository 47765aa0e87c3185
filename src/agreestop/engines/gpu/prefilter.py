"""The prefilter of `engines.prefilter` on a GPU, in float32."""

import numpy as np
import torch
from torch import Tensor

from agreestop.networks._kernels.triton_kernels import find_first_stops

from ..prefilter import Prefilter

SLACK = 2e-4
"""Above the rounding error of float32 in a log-risk of about ten, and in proportion for a larger one."""
EPSILON = float(np.finfo(np.float32).eps)
FAR = 1e30  # no logarithm of a risk is as large


class GpuPrefilter:
    """The tables of a prefilter on a GPU, with one entry for each step up to `beyond` steps after the last checkpoint.

    No row may stop between checkpoints, and every row may stop at the last one.
    """

    def __init__(self, prefilter: Prefilter, classes: int, beyond: int, device: torch.device) -> None:
        steps = np.array(prefilter.calibrated.checkpoints, dtype=np.int64)
        bounds, temperatures = np.full(steps[-1] + beyond, -FAR), np.ones(steps[-1] + beyond)
        bounds[steps - 1] = np.clip(prefilter.bounds_with_margin(SLACK, classes, EPSILON), -FAR, FAR)
        bounds[steps[-1] - 1] = FAR
        temperatures[steps - 1] = prefilter.temperatures
        self._tables = [torch.tensor(values, dtype=torch.float32, device=device) for values in (temperatures, bounds)]
        self._exponent, self._size = float(prefilter.exponent), min(prefilter.max_set_size, classes)

    def __call__(self, spikes: Tensor, begins: Tensor, time: Tensor, counts: Tensor, outcome: Tensor) -> None:
        """See `find_first_stops`."""
        find_first_stops(spikes, begins, time, counts, outcome, self._tables, self._exponent, self._size)
