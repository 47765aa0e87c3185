"""The dense engine: every neuron of every member at every step, with PyTorch.

It is the reference for the other engines.

It also runs networks of the user (`networks.ModuleMembers`). `FreshMembers` runs members that are
drawn for each input.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError, Integers, as_count, as_seed, join_parts
from agreestop.engines.devices import to_input_dtype, upload
from agreestop.events.container import Inputs
from agreestop.networks.architectures import Activity, SpikingNetwork
from agreestop.networks.digests import check_network
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior

from .inputs import check_device, check_inputs, check_kept_rows, check_steps, dense_step
from .protocol import CHUNK_STEPS, EnsembleRun, Operations, describe

# numbers of input that are computed together, so that memory does not grow with T
NUMBERS = 1 << 23


@final
class Dense:
    """The `Engine` of K members on a PyTorch device, "cpu" or "cuda": a spiking network, or
    modules of the user.

    They run in evaluation mode, which `begin` and `live` set.
    """

    name, reason, copies_weights = "dense", "", False

    def __init__(self, network: SpikingNetwork | ModuleMembers, device: str = "cpu") -> None:
        check_network(network)
        self._device = check_device(device)
        self._network = network.to(self._device)
        self.members, self.output = network.members, evidence_kind(network.output)

    __repr__ = describe

    @property
    def classes(self) -> int:
        return self._network.classes

    def chunk_steps(self, rows: int) -> int:
        return CHUNK_STEPS

    def begin(self, inputs: Inputs, first: int = 0) -> "DensePass":
        return DensePass(
            [self._network.eval()],
            self._device,
            check_inputs(inputs, self._network.input_shape, self._network.real_input),
        )

    def live(self, number: int = 0) -> "DenseLive":
        return DenseLive(self._network.eval(), self._device)

    def members_slice(self, first: int, last: int) -> "Dense":
        return Dense(self._network.select_members(slice(first, last)), self._device)


@final
class DensePass:
    """A batch on its way through time, in networks that each hold some of the members.

    See `protocol.Pass`.

    Inputs stay in host memory and are uploaded and computed one chunk of steps at a time. So memory
    does not grow with T, and the rest of an input that stops early is never uploaded. load: the
    most inputs times steps that the fused engine computes together, None for the dense engine. The
    fused engine runs booleans as float16, and with bf16 its convolutions in bfloat16.
    """

    def __init__(
        self,
        networks: Sequence[Any],
        device: torch.device | str,
        inputs: NDArray[Any],
        load: int | None = None,
        bf16: bool = False,
    ) -> None:
        self._networks = networks
        self._device = torch.device(device)
        self._load = load
        self._bf16 = bf16
        self._inputs = torch.from_numpy(np.ascontiguousarray(inputs))
        self._steps, self._step_numbers = inputs.shape[1], max(1, math.prod(inputs.shape[2:]))
        self._image = upload(self._inputs, device) if self._steps == 1 else None
        self._active: Integers = np.arange(len(inputs))
        self._states: list[Any] = [None] * len(networks)
        self._time = 0

    @property
    def rows(self) -> int:
        return len(self._active)

    def advance(self, steps: int) -> NDArray[Any]:
        return self._advance(steps)[0]

    def advance_counted(self, steps: int) -> EnsembleRun:
        if isinstance(self._networks[0], ModuleMembers):
            raise InputError(
                "the operations of own modules cannot be counted: use run_to_end or score for "
                "their outputs."
            )
        spikes, operations = self._advance(steps, counted=True)
        return EnsembleRun(spikes, join_parts(operations, 1))

    def _advance(self, steps: int, counted: bool = False) -> tuple[NDArray[Any], list[Operations]]:
        """Outputs (rows, steps, K, C) of the next steps, as booleans for spikes, and the
        operations of each chunk if they are counted.
        """
        check_steps(steps, self._steps, self._time)
        parts, operations, end = [], [], self._time + steps
        autocast = (
            nullcontext()
            if self._load is None
            else torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)
        )
        with torch.no_grad() if self._load is None else torch.inference_mode(), autocast:
            while self._time < end:
                frames, held = self._next_frames(end)
                outputs, counts = [], []
                for index, network in enumerate(self._networks):
                    run: Any = network.count if counted else network
                    found, self._states[index], *activity = run(frames, self._states[index], held)
                    outputs.append(found.permute(2, 0, 1, 3))
                    counts += [count_operations(one) for one in activity]
                together = torch.cat(outputs, 2)
                parts.append(together.bool() if self._networks[0].output == "spikes" else together)
                operations += [join_parts(counts, 2)] if counts else []
            return torch.cat(parts, 1).cpu().numpy(), operations

    def _next_frames(self, end: int) -> tuple[torch.Tensor, int | None]:
        """Inputs of the next steps, up to `end` at most, and for how many steps an
        image is held.
        """
        begin, rows = self._time, max(self.rows, 1)
        load = NUMBERS // self._step_numbers if self._load is None else self._load
        self._time = min(end, begin + max(CHUNK_STEPS, load // rows))
        chosen = self._image
        if chosen is None:
            window = self._inputs[:, begin : self._time]
            chosen = upload(
                window if len(window) == self.rows else window[torch.from_numpy(self._active)],
                self._device,
            )
        frames = chosen.float() if self._load is None else to_input_dtype(chosen)
        return frames.transpose(0, 1), None if self._image is None else self._time - begin

    def keep(self, rows: Booleans) -> None:
        mask = check_kept_rows(rows, self.rows)
        if mask.all():
            return
        self._active = self._active[mask]
        index = upload(np.flatnonzero(mask), self._device)
        if self._image is not None:
            self._image = self._image[index]
        self._states = [None if state is None else state.rows(index) for state in self._states]


def count_operations(activity: Activity) -> Operations:
    """Operations (rows, T, K), summed over the layers."""
    totals = (
        value.sum(0).permute(2, 0, 1).cpu().numpy()
        for value in (activity.spikes, activity.accumulates, activity.multiplies)
    )
    return Operations(*totals)


def evidence_kind(output: str) -> str:
    """What an engine gives for the output of a network: "spikes", or "logits", which the
    logarithms of probabilities are too.
    """
    return "spikes" if output == "spikes" else "logits"


@final
class DenseLive:
    """One live input; see `protocol.Live`."""

    def __init__(self, network: SpikingNetwork | ModuleMembers, device: str) -> None:
        self._network: Any = network
        self._device = device
        self._state: Any = None
        self._counts: Any = 0

    @torch.no_grad()
    def push(
        self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None
    ) -> NDArray[Any]:
        shape = self._network.input_shape
        if shape is None and frame is None:
            raise InputError(
                "the shape of one step is not known yet: give input_shape, or push(frame=array)."
            )
        shape = np.shape(cast(Any, frame)) if shape is None else shape
        step = dense_step(events, frame, shape, self._network.real_input, self._network.repeats)
        outputs, self._state = self._network(
            torch.as_tensor(step, device=self._device)[None, None], self._state
        )
        if self._network.output != "spikes":
            return outputs[0, :, 0].cpu().numpy()
        self._counts += outputs[0, :, 0].long()
        return self._counts.cpu().numpy()


@final
class FreshMembers:
    """The `Engine` of K members drawn from a posterior for each input.

    A draw depends only on the seed and the number of the input.
    """

    name, reason, copies_weights = "dense-fresh", "", False

    _part: tuple[int, int] | None = None  # the members that are run, for an engine of some of them

    def __init__(
        self, posterior: Posterior | ModulePosterior, seed: Sequence[int], device: str = "cpu"
    ) -> None:
        if not isinstance(posterior, (Posterior, ModulePosterior)):
            raise InputError(
                f"the posterior is a {type(posterior).__name__}: give a Posterior or a "
                "ModulePosterior."
            )
        self._posterior = posterior
        self._seed = tuple(as_seed(part) for part in seed)
        self._device = check_device(device)
        self.members, self.output = posterior.member_count, evidence_kind(posterior.output)

    __repr__ = describe

    @property
    def classes(self) -> int:
        return self._posterior.classes

    def chunk_steps(self, rows: int) -> int:
        return CHUNK_STEPS

    def draw(self, number: int) -> Dense:
        """The members of the input with this number."""
        sequence = np.random.SeedSequence((*self._seed, as_count(number, "number", 0)))
        seed = sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)
        drawn = Dense(
            self._posterior.members(torch.Generator().manual_seed(int(seed))), self._device
        )
        return drawn if self._part is None else drawn.members_slice(*self._part)

    def begin(self, inputs: Inputs, first: int = 0) -> "FreshPass":
        return FreshPass(
            self,
            check_inputs(inputs, self._posterior.input_shape, self._posterior.real_input),
            first,
        )

    def live(self, number: int = 0) -> DenseLive:
        return self.draw(number).live()

    def members_slice(self, first: int, last: int) -> "FreshMembers":
        part = copy(self)
        part._part, part.members = (first, last), last - first
        return part


@final
class FreshPass:
    """A batch on its way through time, each input with members of its own; see `protocol.Pass`.

    Members are drawn at the first step of their input and released after its last, so a pass to the
    end holds one ensemble at a time.
    """

    def __init__(self, engine: FreshMembers, inputs: NDArray[Any], first: int) -> None:
        self._engine, self._inputs, self._numbers = engine, inputs, first + np.arange(len(inputs))
        self._runs: list[DensePass | None] = [None] * len(inputs)
        self._time = 0

    @property
    def rows(self) -> int:
        return len(self._runs)

    def _advance_rows(self, steps: int) -> Iterator[DensePass]:
        """One pass after the other, each to be advanced by these steps."""
        total = self._inputs.shape[1]
        check_steps(steps, total, self._time)
        self._time += steps
        for row, number in enumerate(self._numbers):
            run = self._runs[row] or self._engine.draw(int(number)).begin(
                self._inputs[row : row + 1]
            )
            self._runs[row] = None if total == self._time > 1 else run
            yield run

    def advance(self, steps: int) -> NDArray[Any]:
        return np.concatenate([run.advance(steps) for run in self._advance_rows(steps)])

    def advance_counted(self, steps: int) -> EnsembleRun:
        return join_parts([run.advance_counted(steps) for run in self._advance_rows(steps)])

    def keep(self, rows: Booleans) -> None:
        mask = check_kept_rows(rows, self.rows)
        self._inputs, self._numbers = self._inputs[mask], self._numbers[mask]
        self._runs = [run for run, kept in zip(self._runs, mask, strict=True) if kept]
