"""The dense engine: every neuron of every member at every step, with PyTorch. Slow, plain, and what other engines are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.decide.checks import Booleans, InputError, Integers
from agreestop.ensembles.training import time_first
from agreestop.ensembles.variational import Posterior
from agreestop.networks.architectures import SpikingNetwork


@dataclass(frozen=True, eq=False)
class Operations:
    """What members did at each step, (n, T, K): spikes emitted, accumulates, multiply-accumulates."""

    emitted: Integers
    accumulates: Integers
    multiplies: Integers


@dataclass(frozen=True, eq=False)
class EnsembleRun:
    """What K members did over T steps: read-out spikes (n, T, K, C), and the operations behind them."""

    spikes: Booleans
    operations: Operations


def run_dense(network: SpikingNetwork, inputs: NDArray[Any], batch_size: int = 128, device: str = "cpu") -> EnsembleRun:
    """Run every member over inputs (n, T, ...) to the end."""
    if not len(inputs):
        raise InputError("there are no inputs: give at least one.")
    if not all(bool(torch.isfinite(value).all()) for value in network.parameters()):
        raise InputError("the members hold weights that are not finite: train again with a lower learning rate.")
    network = network.to(device).eval()
    parts: list[tuple[NDArray[Any], ...]] = []
    with torch.no_grad():
        for start in range(0, len(inputs), batch_size):
            spikes, _, activity = network(time_first(inputs[start : start + batch_size], device), activity=True)
            totals = (value.sum(0) for value in (activity.spikes, activity.accumulates, activity.multiplies))
            parts.append((spikes.permute(2, 0, 1, 3).bool().cpu().numpy(), *(value.permute(2, 0, 1).cpu().numpy() for value in totals)))
    return _joined(parts)


def run_fresh(posterior: Posterior, inputs: NDArray[Any], seed: Sequence[int], device: str = "cpu") -> EnsembleRun:
    """Run K members drawn anew for every one of the inputs (n, T, ...); those of an input follow from the seed and its place alone."""
    if not len(inputs):
        raise InputError("there are no inputs: give at least one.")
    runs = [run_dense(posterior.members(_generator(*seed, place)), inputs[place : place + 1], 1, device) for place in range(len(inputs))]
    return _joined([(run.spikes, run.operations.emitted, run.operations.accumulates, run.operations.multiplies) for run in runs])


def _generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))


def _joined(parts: Sequence[tuple[NDArray[Any], ...]]) -> EnsembleRun:
    spikes, *operations = (np.concatenate(part) for part in zip(*parts, strict=True))
    return EnsembleRun(spikes, Operations(*operations))
