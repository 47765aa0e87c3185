"""The fused engine: members on a GPU, with the neurons of a chunk of steps in one kernel (`networks._kernels.gpu_srm`).

Members of a convolutional network run one after the other: each fills the GPU, and grouped convolutions are slower.

Inputs stay in host memory and are uploaded one chunk of steps at a time. So GPU memory does not grow with T, and the rest of an input that
stops early is never uploaded. Fully connected networks decide with continuous batching where the rule has a prefilter for GPUs, and have a
slot for each live input.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.common import Booleans, Integers
from agreestop.networks._kernels.gpu_runtime import to_input_dtype, upload
from agreestop.networks.architectures import FullyConnected, SpikingNetwork, State
from agreestop.networks.neurons import SRM

from ..dense import DenseLive, check_weights, count_operations
from ..inputs import check_inputs, check_kept_rows, check_steps
from ..prefilter import Prefilter
from ..protocol import CHUNK_STEPS, EnsembleRun, Live, Operations, Outcomes, joined
from .continuous_batching import FULL_LOAD, MAX_LOAD, ContinuousBatching

CONVOLUTIONAL_LOAD = 1024
"""For networks with convolutions, the inputs times steps that fill the GPU and that are computed together."""
LEAST_STEPS = {True: 16, False: 4}
"""The least steps of a chunk, for fully connected networks and for others."""


@final
class Fused:
    """K members on a GPU, copied: later training does not change the engine.

    bf16: weights and currents of convolutions are in bfloat16, which is several times as fast. A rule sees it as another engine.
    """

    output, reason = "spikes", ""

    def __init__(self, network: SpikingNetwork, device: str = "cuda", bf16: bool = False) -> None:
        check_weights(network)
        self.name = "fused-bfloat16" if bf16 else "fused"
        self._network = deepcopy(network).to(device).eval()  # CUDA graphs hold on to the memory of these weights
        self._device, self._bf16 = torch.device(device), bf16
        self.members, self.classes = network.config.members, network.config.classes
        self._fully_connected = isinstance(network.config, FullyConnected)
        for module in self._network.modules():
            if isinstance(module, SRM):
                module.float16_spikes = self._fully_connected
        self._batching = ContinuousBatching(self._network, self._device) if self._fully_connected and not bf16 else None
        self._networks = [self._network]
        if not self._fully_connected:
            self._networks = [self._network.select_members(slice(member, member + 1)) for member in range(self.members)]

    def chunk_steps(self, rows: int) -> int:
        """The number of steps to compute together: more as inputs stop, since few inputs take hardly longer for many steps."""
        load = FULL_LOAD if self._fully_connected else CONVOLUTIONAL_LOAD
        return max(LEAST_STEPS[self._fully_connected], load // max(rows, 1))

    def begin(self, inputs: NDArray[Any], first: int = 0) -> FusedPass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        array = check_inputs(inputs, self._network.config.input_shape)
        return FusedPass(self._networks, self._device, array, self._bf16, MAX_LOAD if self._fully_connected else CONVOLUTIONAL_LOAD)

    def decide(self, inputs: NDArray[Any], prefilter: Prefilter, slots: int, chunk: int | None) -> Outcomes | None:
        """Decide on inputs (n, T, ...) with continuous batching, at most `slots` of them computed together."""
        if self._batching is None or inputs.shape[1] == 1 or not len(inputs):
            return None
        return self._batching.decide(check_inputs(inputs, self._network.config.input_shape), prefilter, slots, chunk)

    def live(self, number: int = 0) -> Live:
        """Start on one live input."""
        return DenseLive(self._network, str(self._device)) if self._batching is None else self._batching.live()


@final
class FusedPass:
    """A batch of inputs on its way through time; at most `load` inputs times steps are computed together."""

    def __init__(self, networks: Sequence[SpikingNetwork], device: torch.device, inputs: NDArray[Any], bf16: bool, load: int) -> None:
        self._networks, self._device, self._bf16, self._load = networks, device, bf16, load
        self._inputs = torch.from_numpy(np.ascontiguousarray(inputs))
        self._steps, self._held = inputs.shape[1], inputs.shape[1] == 1
        self._image = upload(self._inputs, device) if self._held else None
        self._active: Integers = np.arange(len(inputs))
        self._states: list[State | None] = [None] * len(networks)
        self._time = 0

    @property
    def rows(self) -> int:
        """The number of inputs that are still running."""
        return len(self._active)

    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        return self._advance(steps, False)[0]

    def advance_counted(self, steps: int) -> EnsembleRun:
        """Spikes and operations of the next steps."""
        spikes, operations = self._advance(steps, True)
        return EnsembleRun(spikes, joined(operations, 1))

    @torch.inference_mode()
    def _advance(self, steps: int, counted: bool) -> tuple[Booleans, list[Operations]]:
        check_steps(steps, self._steps, self._time)
        parts, operations, end = [], [], self._time + steps
        while self._time < end:
            frames, held = self._next_frames(end)
            outputs, counts = [], []
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                for member, network in enumerate(cast(Sequence[Any], self._networks)):
                    spikes, self._states[member], *activity = network(frames, self._states[member], held, activity=counted)
                    outputs.append(spikes.permute(2, 0, 1, 3).bool())
                    counts += [count_operations(one) for one in activity]
            parts.append(torch.cat(outputs, 2))
            operations += [joined(counts, 2)] if counted else []
        return torch.cat(parts, 1).cpu().numpy(), operations

    def _next_frames(self, end: int) -> tuple[torch.Tensor, int | None]:
        """Inputs of the next steps, up to `end` at most, and for how many steps an image is held."""
        begin = self._time
        self._time += min(max(CHUNK_STEPS, self._load // max(self.rows, 1)), end - begin)
        if self._image is not None:
            return to_input_dtype(self._image).transpose(0, 1), self._time - begin
        window = self._inputs[:, begin : self._time]
        running = window if len(window) == self.rows else window[torch.from_numpy(self._active)]
        return to_input_dtype(upload(running, self._device)).transpose(0, 1), None

    def keep(self, rows: Booleans) -> None:
        """Continue with the rows (rows,) that are True."""
        mask = check_kept_rows(rows, self.rows)
        if mask.all():
            return
        self._active = self._active[mask]
        index = upload(np.flatnonzero(mask), self._device)
        if self._image is not None:
            self._image = self._image[index]
        self._states = [None if state is None else state.rows(index) for state in self._states]
