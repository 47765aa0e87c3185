"""The dense engine: every neuron of every member at every step, with PyTorch. It is the reference for the other engines.

It also runs networks of the user (`networks.ModuleMembers`). `FreshMembers` runs members that are drawn for each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.common.arrays import Booleans
from agreestop.common.errors import InputError
from agreestop.networks.architectures import Activity, SpikingNetwork, State
from agreestop.networks.posteriors import Posterior

from .inputs import check_events, check_frame, check_inputs, check_kept_rows, check_one_of, check_steps
from .protocol import CHUNK_STEPS, EnsembleRun, Operations


@final
class Dense:
    """K members on a PyTorch device, "cpu" or "cuda"."""

    name, output, reason = "dense", "spikes", ""

    def __init__(self, network: SpikingNetwork, device: str = "cpu") -> None:
        check_weights(network)
        self._network, self._device = network.to(device).eval(), device
        self.members, self.classes = network.config.members, network.config.classes

    def chunk_steps(self, rows: int) -> int:
        """The number of steps to compute together."""
        return CHUNK_STEPS

    def begin(self, inputs: NDArray[Any], first: int = 0) -> DensePass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        return DensePass(self._network, self._device, check_inputs(inputs, self._network.config.input_shape))

    def live(self, number: int = 0) -> DenseLive:
        """Start on one live input."""
        return DenseLive(self._network, self._device)


@final
class DensePass:
    """A batch of inputs on its way through time."""

    def __init__(self, network: SpikingNetwork, device: str, inputs: NDArray[Any]) -> None:
        self._network, self._steps = network, inputs.shape[1]
        self._inputs = torch.as_tensor(inputs, device=device).transpose(0, 1)
        self._state: State | None = None
        self._time = 0

    @property
    def rows(self) -> int:
        """The number of inputs that are still running."""
        return self._inputs.shape[1]

    def _next_frames(self, steps: int) -> tuple[Tensor, int | None]:
        """Inputs of the next steps, and for how many steps an image is held."""
        check_steps(steps, self._steps, self._time)
        begin, self._time = self._time, self._time + steps
        held = self._steps == 1
        return (self._inputs if held else self._inputs[begin : self._time]).float(), steps if held else None

    @torch.no_grad()
    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        frames, held = self._next_frames(steps)
        spikes, self._state = self._network(frames, self._state, held)
        return rows_first(spikes)

    @torch.no_grad()
    def advance_counted(self, steps: int) -> EnsembleRun:
        """Spikes and operations of the next steps."""
        frames, held = self._next_frames(steps)
        spikes, self._state, activity = self._network(frames, self._state, held, activity=True)
        return EnsembleRun(rows_first(spikes), count_operations(activity))

    def keep(self, rows: Booleans) -> None:
        """Continue with the rows (rows,) that are True."""
        mask = check_kept_rows(rows, self.rows)
        if mask.all():
            return
        index = torch.as_tensor(np.flatnonzero(mask), device=self._inputs.device)
        self._inputs = self._inputs[:, index]
        if self._state is not None:
            self._state = self._state.rows(index)


def rows_first(outputs: Tensor) -> NDArray[Any]:
    """Spikes (T, K, rows, C) of a network as booleans (rows, T, K, C)."""
    return outputs.permute(2, 0, 1, 3).bool().cpu().numpy()


def count_operations(activity: Activity) -> Operations:
    """Operations (rows, T, K), summed over the layers."""
    totals = (value.sum(0).permute(2, 0, 1).cpu().numpy() for value in (activity.spikes, activity.accumulates, activity.multiplies))
    return Operations(*totals)


def check_weights(network: torch.nn.Module) -> None:
    """Refuse weights that are not finite."""
    if not all(bool(torch.isfinite(value).all()) for value in network.parameters()):
        raise InputError("the members hold weights that are not finite: train again with a lower learning rate.")


@final
class DenseLive:
    """One live input."""

    def __init__(self, network: SpikingNetwork, device: str) -> None:
        self._network, self._shape = network, network.config.input_shape
        self._frame = torch.zeros(int(np.prod(self._shape)), device=device)
        self._state: State | None = None
        self._counts = torch.zeros(network.config.members, network.config.classes, dtype=torch.int64, device=device)

    @torch.no_grad()
    def push(self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None) -> NDArray[Any]:
        """Run one step, given by events or by a frame (see `protocol.Live`), and return the spike counts (K, C) so far."""
        check_one_of(events, frame)
        if frame is not None:
            self._frame.copy_(torch.as_tensor(np.ascontiguousarray(check_frame(frame, self._shape))))
        elif events is not None:
            index = torch.as_tensor(check_events(events, len(self._frame)), device=self._frame.device)
            self._frame.zero_()[index] = 1
        spikes, self._state = self._network(self._frame.view(1, 1, *self._shape), self._state)
        self._counts += spikes[0, :, 0].long()
        return self._counts.cpu().numpy()


@final
class FreshMembers:
    """K members drawn from a posterior for each input. A draw follows from the seed and the number of the input alone."""

    name, output, reason = "dense-fresh", "spikes", ""

    def __init__(self, posterior: Posterior, seed: Sequence[int], device: str = "cpu") -> None:
        self._posterior, self._seed, self._device = posterior, seed, device
        self.members, self.classes = posterior.config.members, posterior.config.classes

    def chunk_steps(self, rows: int) -> int:
        """The number of steps to compute together."""
        return CHUNK_STEPS

    def draw(self, number: int) -> Dense:
        """The members of the input with this number."""
        seed = np.random.SeedSequence((*self._seed, number)).generate_state(1, np.uint64)[0] >> np.uint64(1)
        return Dense(self._posterior.members(torch.Generator().manual_seed(int(seed))), self._device)

    def begin(self, inputs: NDArray[Any], first: int = 0) -> FreshPass:
        """Start on inputs (n, T, ...), numbered from `first`."""
        return FreshPass(self, check_inputs(inputs, self._posterior.config.input_shape), first)

    def live(self, number: int = 0) -> DenseLive:
        """Start on the live input with this number."""
        return self.draw(number).live()


@final
class FreshPass:
    """A batch of inputs on its way through time, each with members of its own.

    Members are drawn at the first step of their input and released after its last, so a pass to the end holds one ensemble at a time.
    """

    def __init__(self, engine: FreshMembers, inputs: NDArray[Any], first: int) -> None:
        self._engine, self._inputs, self._numbers = engine, inputs, first + np.arange(len(inputs))
        self._runs: list[DensePass | None] = [None] * len(inputs)
        self._time = 0

    @property
    def rows(self) -> int:
        """The number of inputs that are still running."""
        return len(self._runs)

    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        return self.advance_counted(steps).spikes

    def advance_counted(self, steps: int) -> EnsembleRun:
        """Spikes and operations of the next steps."""
        total = self._inputs.shape[1]
        check_steps(steps, total, self._time)
        self._time += steps
        parts = []
        for row, number in enumerate(self._numbers):
            run = self._runs[row] or self._engine.draw(int(number)).begin(self._inputs[row : row + 1])
            parts.append(run.advance_counted(steps))
            self._runs[row] = None if total == self._time > 1 else run
        return EnsembleRun.joined(parts)

    def keep(self, rows: Booleans) -> None:
        """Continue with the rows (rows,) that are True."""
        mask = check_kept_rows(rows, self.rows)
        self._inputs, self._numbers = self._inputs[mask], self._numbers[mask]
        self._runs = [run for run, kept in zip(self._runs, mask, strict=True) if kept]
