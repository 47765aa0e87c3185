"""The fused engine: a GPU, with the neurons of a chunk of steps in one kernel (`networks.fused`).

Members of a convolutional network run one after the other: each fills the device, and convolutions in groups are slower.

Inputs wait in host memory and go over a chunk of steps at a time, so memory on the device does not grow with T, and an input that stops
early is not even sent to the end. Fully connected networks have a way of their own to decide with a rule that the device can screen
(`flow`), and to watch one live input.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.common.arrays import Booleans, Integers
from agreestop.common.errors import InputError
from agreestop.networks._kernels.upload import as_floats, upload
from agreestop.networks.architectures import FullyConnected, SpikingNetwork, State
from agreestop.networks.neurons import SRM

from ..dense import DenseLive, check_weights
from ..early_stopping import CHUNK, Live, Outcomes, Pass
from ..inputs import as_inputs
from ..prefilter import Screen
from . import continuous_batching as flow

WORTH_A_LAUNCH, AT_ONCE = {True: flow.WORTH_A_LAUNCH, False: 1024}, {True: flow.AT_ONCE, False: 1024}
"""Inputs times steps that fill the device, and that are computed together at most, for a fully connected network and for others."""
LEAST = {True: 16, False: 4}
"""Steps of a chunk at least."""


@final
class Fused:
    """K members on a GPU. bf16: weights and currents of convolutions in bfloat16, several times as fast; another engine for a rule."""

    def __init__(self, network: SpikingNetwork, device: str = "cuda", bf16: bool = False) -> None:
        check_weights(network)
        self.name = "fused-bfloat16" if bf16 else "fused"
        self._network = deepcopy(network).to(device).eval()  # as it is now: recordings hold on to its memory, whatever is trained later
        self._device, self._bf16 = torch.device(device), bf16
        self.members, self.classes = network.config.members, network.config.classes
        self._dense = isinstance(network.config, FullyConnected)
        for module in self._network.modules():
            if isinstance(module, SRM):
                module.float16_spikes = self._dense
        self._flow = flow.Flow(self._network, self._device) if self._dense and not bf16 else None
        places = range(0 if self._dense else self.members)
        self._alone = [self._network.select_members(slice(place, place + 1)) for place in places]

    def chunk_of(self, rows: int) -> int:
        """Steps that are worth computing together: more as inputs stop, since a few take hardly longer for many steps than for few."""
        return max(LEAST[self._dense], WORTH_A_LAUNCH[self._dense] // max(rows, 1))

    def begin(self, inputs: NDArray[Any]) -> Pass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        array = as_inputs(inputs, self._network.config.input_shape)
        return FusedPass(self._alone or [self._network], self._device, array, self._bf16, AT_ONCE[self._dense])

    def flow(self, inputs: NDArray[Any], screen: Screen, places: int, chunk: int | None) -> Outcomes | None:
        """Decide on inputs (n, T, ...), with at most so many computed together."""
        if self._flow is None or inputs.shape[1] == 1 or not len(inputs):
            return None
        return self._flow.decide(as_inputs(inputs, self._network.config.input_shape), screen, places, chunk)

    def live(self) -> Live:
        """Start on one live input."""
        return DenseLive(self._network, str(self._device)) if self._flow is None else self._flow.live()


@final
class FusedPass:
    """Some inputs under way; `at_once` inputs times steps are computed together."""

    def __init__(self, networks: Sequence[SpikingNetwork], device: torch.device, inputs: NDArray[Any], bf16: bool, at_once: int) -> None:
        self._networks, self._device, self._bf16, self._at_once = networks, device, bf16, at_once
        self._waiting = torch.from_numpy(np.ascontiguousarray(inputs))
        self._steps, self._held = inputs.shape[1], inputs.shape[1] == 1
        self._image = upload(self._waiting, device) if self._held else None
        self._active: Integers = np.arange(len(inputs))
        self._states: list[State | None] = [None] * len(networks)
        self._time = 0

    @property
    def rows(self) -> int:
        """How many are under way."""
        return len(self._active)

    @torch.inference_mode()
    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        if steps < 1 or (not self._held and steps > self._steps - self._time):
            raise InputError(f"{steps} steps are asked for, but {self._steps - self._time} are left of {self._steps}: ask for 1 to those.")
        parts, end = [], self._time + steps
        while self._time < end:
            length = min(max(CHUNK, self._at_once // max(self.rows, 1)), end - self._time)
            frames, held = self._frames(length), length if self._held else None
            found = []
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                for place, network in enumerate(self._networks):
                    spikes, self._states[place] = network(frames, self._states[place], held)
                    found.append(spikes.permute(2, 0, 1, 3).bool())
            parts.append(torch.cat(found, 2))
            self._time += length
        return torch.cat(parts, 1).cpu().numpy()

    def _frames(self, length: int) -> torch.Tensor:
        if self._image is not None:
            return as_floats(self._image).transpose(0, 1)
        window = self._waiting[:, self._time : self._time + length]
        some = window if len(window) == self.rows else window[torch.from_numpy(self._active)]
        return as_floats(upload(some, self._device)).transpose(0, 1)

    def keep(self, rows: Booleans) -> None:
        """Go on with these of the rows."""
        if rows.shape != (self.rows,) or rows.dtype != np.bool_:
            raise InputError(f"rows has shape {rows.shape}: a boolean for each of the {self.rows} inputs still running is needed.")
        if rows.all():
            return
        self._active = self._active[rows]
        chosen = upload(np.flatnonzero(rows), self._device)
        if self._image is not None:
            self._image = self._image[chosen]
        self._states = [None if state is None else state.rows(chosen) for state in self._states]
