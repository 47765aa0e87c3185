"""The dense engine: every neuron of every member at every step, with PyTorch. Plain, and what other engines are measured against.

On a GPU with Triton the fused engine takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.common.arrays import Booleans, Integers
from agreestop.common.errors import InputError
from agreestop.networks._kernels.upload import time_first
from agreestop.networks.architectures import SpikingNetwork, State
from agreestop.networks.posteriors import Posterior

from .early_stopping import CHUNK
from .inputs import as_inputs, as_places


@final
class Dense:
    """K members on a device of PyTorch's, "cpu" or "cuda"."""

    name = "dense"

    def __init__(self, network: SpikingNetwork, device: str = "cpu") -> None:
        check_weights(network)
        self._network, self._device = network.to(device).eval(), device
        self.members, self.classes = network.config.members, network.config.classes

    def chunk_of(self, rows: int) -> int:
        """Steps that are worth computing together."""
        return CHUNK

    def begin(self, inputs: NDArray[Any]) -> DensePass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        return DensePass(self._network, self._device, as_inputs(inputs, self._network.config.input_shape))

    def live(self) -> DenseLive:
        """Start on one live input."""
        return DenseLive(self._network, self._device)


@final
class DensePass:
    """Some inputs under way."""

    def __init__(self, network: SpikingNetwork, device: str, inputs: NDArray[Any]) -> None:
        self._network, self._steps, self._held = network, inputs.shape[1], inputs.shape[1] == 1
        self._inputs = torch.as_tensor(inputs, device=device).transpose(0, 1)
        self._state: State | None = None
        self._time = 0

    @property
    def rows(self) -> int:
        """How many are under way."""
        return self._inputs.shape[1]

    @torch.no_grad()
    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        if steps < 1 or (not self._held and steps > self._steps - self._time):
            raise InputError(f"{steps} steps are asked for, but {self._steps - self._time} are left of {self._steps}: ask for 1 to those.")
        frames = self._inputs if self._held else self._inputs[self._time : self._time + steps]
        spikes, self._state = self._network(frames.float(), self._state, steps if self._held else None)
        self._time += steps
        return spikes.permute(2, 0, 1, 3).bool().cpu().numpy()

    def keep(self, rows: Booleans) -> None:
        """Go on with these of the rows."""
        if rows.shape != (self.rows,) or rows.dtype != np.bool_:
            raise InputError(f"rows has shape {rows.shape}: a boolean for each of the {self.rows} inputs still running is needed.")
        if rows.all():
            return
        chosen = torch.as_tensor(np.flatnonzero(rows), device=self._inputs.device)
        self._inputs = self._inputs[:, chosen]
        if self._state is not None:
            self._state = self._state.rows(chosen)


@final
class DenseLive:
    """One live input under way."""

    def __init__(self, network: SpikingNetwork, device: str) -> None:
        self._network, self._shape = network, network.config.input_shape
        self._frame = torch.zeros(int(np.prod(self._shape)), device=device)
        self._state: State | None = None
        self._counts: Tensor = torch.zeros(network.config.members, network.config.classes, dtype=torch.int64, device=device)

    @torch.no_grad()
    def push(self, events: ArrayLike) -> Integers:
        """One step, with the flat places of the inputs that are active in it, once each; the spike counts (K, C) so far."""
        places = torch.as_tensor(as_places(events, len(self._frame)), device=self._frame.device)
        self._frame.zero_()[places] = 1
        spikes, self._state = self._network(self._frame.view(1, 1, *self._shape), self._state)
        self._counts += spikes[0, :, 0].long()
        return self._counts.cpu().numpy()


@final
class FreshMembers:
    """K members drawn anew from a posterior for every input; a draw follows from the seed and from how many came before."""

    name = "dense-fresh"

    def __init__(self, posterior: Posterior, seed: Sequence[int]) -> None:
        self._posterior, self._seed, self._begun = posterior, seed, 0
        self.members, self.classes = posterior.config.members, posterior.config.classes

    def chunk_of(self, rows: int) -> int:
        """Steps that are worth computing together."""
        return CHUNK

    def _draw(self) -> Dense:
        self._begun += 1
        return Dense(self._posterior.members(_generator(*self._seed, self._begun - 1)))

    def begin(self, inputs: NDArray[Any]) -> FreshPass:
        """Start on inputs (n, T, ...)."""
        array = as_inputs(inputs, self._posterior.config.input_shape)
        return FreshPass([self._draw().begin(array[place : place + 1]) for place in range(len(array))])

    def live(self) -> DenseLive:
        """Start on one live input."""
        return self._draw().live()


@final
class FreshPass:
    """Some inputs under way, each with members of its own."""

    def __init__(self, runs: list[DensePass]) -> None:
        self._runs = runs

    @property
    def rows(self) -> int:
        """How many are under way."""
        return len(self._runs)

    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        return np.concatenate([run.advance(steps) for run in self._runs])

    def keep(self, rows: Booleans) -> None:
        """Go on with these of the rows."""
        self._runs = [run for run, kept in zip(self._runs, rows, strict=True) if kept]


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


def check_weights(network: SpikingNetwork) -> None:
    """Refuse weights that are not finite."""
    if not all(bool(torch.isfinite(value).all()) for value in network.parameters()):
        raise InputError("the members hold weights that are not finite: train again with a lower learning rate.")


def run_dense(
    network: SpikingNetwork, inputs: NDArray[Any], batch_size: int = 128, device: str = "cpu", steps: int | None = None
) -> EnsembleRun:
    """Run every member over inputs (n, T, ...), or images (n, 1, ...) held for so many steps, to the end, and count what it does."""
    if not len(inputs):
        raise InputError("there are no inputs: give at least one.")
    check_weights(network)
    network = network.to(device).eval()
    parts: list[tuple[NDArray[Any], ...]] = []
    with torch.no_grad():
        for start in range(0, len(inputs), batch_size):
            spikes, _, activity = network(time_first(inputs[start : start + batch_size], device), steps=steps, activity=True)
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
