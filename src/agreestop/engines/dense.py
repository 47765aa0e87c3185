"""The dense engine: every neuron of every member at every step, with PyTorch. It is the reference for the other engines.

It also runs networks of the user (`networks.ModuleMembers`). `FreshMembers` runs members that are drawn for each input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError
from agreestop.networks.architectures import Activity, SpikingNetwork
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior

from .inputs import check_inputs, check_kept_rows, check_steps, dense_step
from .protocol import CHUNK_STEPS, EnsembleRun, Operations, joined


@final
class Dense:
    """K members on a PyTorch device, "cpu" or "cuda": a spiking network, or modules of the user."""

    name, reason = "dense", ""

    def __init__(self, network: SpikingNetwork | ModuleMembers, device: str = "cpu") -> None:
        check_weights(network)
        self._network, self._device = network.to(device).eval(), device
        self.members, self.output = network.members, str(network.output)

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self._network.classes

    def chunk_steps(self, rows: int) -> int:
        """The number of steps to compute together."""
        return CHUNK_STEPS

    def begin(self, inputs: NDArray[Any], first: int = 0) -> DensePass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        return DensePass(self._network, self._device, check_inputs(inputs, self._network.input_shape))

    def live(self, number: int = 0) -> DenseLive:
        """Start on one live input."""
        return DenseLive(self._network, self._device)


@final
class DensePass:
    """A batch of inputs on its way through time."""

    def __init__(self, network: SpikingNetwork | ModuleMembers, device: str, inputs: NDArray[Any]) -> None:
        self._network: Any = network
        self._steps, self._time = inputs.shape[1], 0
        self._inputs = torch.as_tensor(inputs, device=device).transpose(0, 1)
        self._state: Any = None

    @property
    def rows(self) -> int:
        """The number of inputs that are still running."""
        return self._inputs.shape[1]

    def _run(self, steps: int, **options: bool) -> tuple[NDArray[Any], list[Activity]]:
        """Outputs (rows, steps, K, C) of the next steps, as booleans for spikes, and what else the network returns."""
        check_steps(steps, self._steps, self._time)
        begin, self._time = self._time, self._time + steps
        frames, held = (self._inputs, steps) if self._steps == 1 else (self._inputs[begin : self._time], None)
        with torch.no_grad():
            outputs, self._state, *others = self._network(frames.float(), self._state, held, **options)
        outputs = outputs.permute(2, 0, 1, 3)
        return (outputs.bool() if self._network.output == "spikes" else outputs).cpu().numpy(), others

    def advance(self, steps: int) -> NDArray[Any]:
        """Outputs (rows, steps, K, C) of the next steps."""
        return self._run(steps)[0]

    def advance_counted(self, steps: int) -> EnsembleRun:
        """Spikes and operations of the next steps."""
        if not isinstance(self._network, SpikingNetwork):
            raise InputError("the operations of own modules cannot be counted: use run_to_end or score for their outputs.")
        spikes, (activity,) = self._run(steps, activity=True)
        return EnsembleRun(spikes, count_operations(activity))

    def keep(self, rows: Booleans) -> None:
        """Continue with the rows (rows,) that are True."""
        mask = check_kept_rows(rows, self.rows)
        if mask.all():
            return
        index = torch.as_tensor(np.flatnonzero(mask), device=self._inputs.device)
        self._inputs = self._inputs[:, index]
        if self._state is not None:
            self._state = self._network.rows(self._state, index)


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

    def __init__(self, network: SpikingNetwork | ModuleMembers, device: str) -> None:
        self._network: Any = network
        self._device, self._state, self._counts = device, cast(Any, None), cast(Any, 0)

    @torch.no_grad()
    def push(self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None) -> NDArray[Any]:
        """Run one step, given by events or by a frame, and return the spike counts (K, C) so far, or the logits (K, C)."""
        shape = self._network.input_shape
        if shape is None and frame is None:
            raise InputError("the shape of one step is not known yet: give input_shape, or push(frame=array).")
        step = dense_step(events, frame, np.shape(cast(Any, frame)) if shape is None else shape)
        outputs, self._state = self._network(torch.as_tensor(step, device=self._device)[None, None], self._state)
        if self._network.output == "logits":
            return cast(NDArray[Any], outputs[0, :, 0].cpu().numpy())
        self._counts += outputs[0, :, 0].long()
        return cast(NDArray[Any], self._counts.cpu().numpy())


@final
class FreshMembers:
    """K members drawn from a posterior for each input. A draw follows from the seed and the number of the input alone."""

    name, reason = "dense-fresh", ""

    def __init__(self, posterior: Posterior | ModulePosterior, seed: Sequence[int], device: str = "cpu") -> None:
        self._posterior, self._seed, self._device = posterior, seed, device
        self.members, self.output = posterior.member_count, str(posterior.output)

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self._posterior.classes

    def chunk_steps(self, rows: int) -> int:
        """The number of steps to compute together."""
        return CHUNK_STEPS

    def draw(self, number: int) -> Dense:
        """The members of the input with this number."""
        seed = np.random.SeedSequence((*self._seed, number)).generate_state(1, np.uint64)[0] >> np.uint64(1)
        return Dense(self._posterior.members(torch.Generator().manual_seed(int(seed))), self._device)

    def begin(self, inputs: NDArray[Any], first: int = 0) -> FreshPass:
        """Start on inputs (n, T, ...), numbered from `first`."""
        return FreshPass(self, check_inputs(inputs, self._posterior.input_shape), first)

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

    def _advance_rows(self, steps: int) -> Iterator[DensePass]:
        """One pass after the other, each to be advanced by these steps."""
        total = self._inputs.shape[1]
        check_steps(steps, total, self._time)
        self._time += steps
        for row, number in enumerate(self._numbers):
            run = self._runs[row] or self._engine.draw(int(number)).begin(self._inputs[row : row + 1])
            self._runs[row] = None if total == self._time > 1 else run
            yield run

    def advance(self, steps: int) -> NDArray[Any]:
        """Outputs (rows, steps, K, C) of the next steps."""
        return np.concatenate([run.advance(steps) for run in self._advance_rows(steps)])

    def advance_counted(self, steps: int) -> EnsembleRun:
        """Spikes and operations of the next steps."""
        return joined([run.advance_counted(steps) for run in self._advance_rows(steps)])

    def keep(self, rows: Booleans) -> None:
        """Continue with the rows (rows,) that are True."""
        mask = check_kept_rows(rows, self.rows)
        self._inputs, self._numbers = self._inputs[mask], self._numbers[mask]
        self._runs = [run for run, kept in zip(self._runs, mask, strict=True) if kept]
