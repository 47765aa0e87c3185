"""The fused engine: a GPU, with the neurons of a chunk of steps in one kernel (`networks.fused`) and the rule's screen in another.

Inputs wait in host memory. A segment of their steps goes over while the one before is computed, so memory on the device does not grow with
T and an input that stops early is not even sent to the end. What comes back of a chunk are spike counts at its checkpoints and who may
stop there. Chunks grow as inputs stop: a few inputs take hardly longer for many steps than for few, since starting a kernel costs more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreestop.decide.checks import Booleans, InputError, Integers
from agreestop.networks.architectures import FullyConnected, SpikingNetwork, State
from agreestop.networks.transfer import as_numbers, upload

from .dense import DenseLive, check_weights
from .drive import CHUNK, Counted, Looks
from .inputs import as_inputs
from .screen import Screen

SEGMENT = 16
"""Steps that are sent and computed together, at most."""
WORTH_A_LAUNCH = {True: 2048, False: 128}
"""Inputs times steps that fill the device, for a fully connected network and for others."""


@final
class Fused:
    """K members on a GPU."""

    name = "fused"

    def __init__(self, network: SpikingNetwork, device: str = "cuda") -> None:
        check_weights(network)
        self._network, self._device = network.to(device).eval(), torch.device(device)
        self.members, self.classes = network.config.members, network.config.classes
        self._worth = WORTH_A_LAUNCH[isinstance(network.config, FullyConnected)]
        self._screens: dict[int, tuple[Screen, Any]] = {}

    def chunk_of(self, rows: int) -> int:
        """Steps that are worth computing together for so many inputs."""
        return max(CHUNK, self._worth // max(rows, 1))

    def begin(self, inputs: NDArray[Any]) -> FusedPass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        return FusedPass(self._network, self._device, as_inputs(inputs, self._network.config.input_shape), self._screen_there)

    def live(self) -> DenseLive:
        """Start on one live input."""
        return DenseLive(self._network, str(self._device))

    def _screen_there(self, screen: Screen) -> Any:
        """The screen with its numbers on the device, kept for as long as its rule decides."""
        from .fused_screen import DeviceScreen  # imported here since Triton takes a while

        kept = self._screens.get(id(screen.policy))
        if kept is None or kept[0].policy is not screen.policy:
            kept = (screen, DeviceScreen(screen, self._device))
            self._screens = {id(screen.policy): kept}
        return kept[1]


@dataclass(frozen=True, eq=False)
class _Ahead:
    """Frames (rows, steps, ...) from step `first` on, on the device or on their way there."""

    first: int
    frames: Tensor

    @property
    def last(self) -> int:
        return self.first + self.frames.shape[1]


@final
class FusedPass:
    """Some inputs under way."""

    def __init__(self, network: SpikingNetwork, device: torch.device, inputs: NDArray[Any], screens: Any) -> None:
        self._network, self._device, self._screens = network, device, screens
        self._waiting = torch.from_numpy(np.ascontiguousarray(inputs))
        self._held = inputs.shape[1] == 1
        self._active: Integers = np.arange(len(inputs))
        self._state: State | None = None
        self._time = 0
        self._ahead: _Ahead | None = None
        config = network.config
        self._counts = torch.zeros((len(inputs), config.members, config.classes), dtype=torch.int32, device=device)

    @property
    def rows(self) -> int:
        """How many are under way."""
        return len(self._active)

    @torch.inference_mode()
    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        spikes = self._run(steps)
        return spikes.permute(2, 0, 1, 3).bool().cpu().numpy()

    @torch.inference_mode()
    def count(self, steps: int, looks: Looks, screen: Screen) -> Counted:
        """The next steps: counts at their checkpoints, and who may stop there."""
        places = np.full(steps, -1, np.int32)
        places[list(looks.places)] = np.arange(len(looks.places))
        slots = upload(places, self._device)
        checkpoints = range(looks.checkpoints[0], looks.checkpoints[-1] + 1)
        counts, flags = self._screens(screen)(self._run(steps), self._counts, checkpoints, slots)
        found = flags.cpu().numpy().astype(bool)
        if screen.learned.shape[1]:
            found[:] = True
        found[:, np.array(looks.checkpoints) == screen.last] = True
        return Counted(counts.cpu().numpy(), found)

    def _run(self, steps: int) -> Tensor:
        """Read-out spikes (steps, K, rows, C), on the device; while the last segment is computed the next is on its way."""
        if steps < 1 or (not self._held and self._time + steps > self._waiting.shape[1]):
            left = self._waiting.shape[1] - self._time
            raise InputError(f"{steps} steps are asked for, but {left} are left of {self._waiting.shape[1]}: ask for 1 to those.")
        parts, end = [], self._time + steps
        while self._time < end:
            length = min(SEGMENT, end - self._time)
            frames = as_numbers(self._frames(length)).transpose(0, 1)
            spikes, self._state = self._network(frames, self._state, length if self._held else None)
            parts.append(spikes)
            self._time += length
            self._send_ahead()
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _frames(self, length: int) -> Tensor:
        """The next steps of the inputs that are under way; an image is its own, however many."""
        if self._held:
            if self._ahead is None:
                self._ahead = _Ahead(0, self._send(0, 1))
            return self._ahead.frames
        if self._ahead is None or self._ahead.last < self._time + length:
            start = self._time if self._ahead is None else self._ahead.last
            more = self._send(start, self._time + length)
            frames = more if self._ahead is None else torch.cat([self._ahead.frames, more], 1)
            self._ahead = _Ahead(self._time if self._ahead is None else self._ahead.first, frames)
        found = self._ahead.frames[:, self._time - self._ahead.first : self._time - self._ahead.first + length]
        rest = self._ahead.frames[:, self._time + length - self._ahead.first :]
        self._ahead = _Ahead(self._time + length, rest) if rest.shape[1] else None
        return found

    def _send_ahead(self) -> None:
        """What the next steps will most likely need."""
        if not self._held and self._ahead is None and self._time < self._waiting.shape[1]:
            self._ahead = _Ahead(self._time, self._send(self._time, min(self._time + CHUNK, self._waiting.shape[1])))

    def _send(self, first: int, last: int) -> Tensor:
        window = self._waiting[:, first:last]
        return upload(window if len(window) == self.rows else window[torch.from_numpy(self._active)], self._device)

    def keep(self, rows: Booleans) -> None:
        """Go on with these of the rows."""
        if rows.shape != (self.rows,) or rows.dtype != np.bool_:
            raise InputError(f"rows has shape {rows.shape}: a boolean for each of the {self.rows} inputs still running is needed.")
        if rows.all():
            return
        self._active = self._active[rows]
        chosen = upload(np.flatnonzero(rows), self._device)
        self._counts = self._counts[chosen]
        if self._ahead is not None:
            self._ahead = _Ahead(self._ahead.first, self._ahead.frames[chosen])
        if self._state is not None:
            self._state = self._state.rows(chosen)
