"""Fully connected members on a GPU, with the kernels of a segment of steps recorded once and replayed.

A recording works on memory of its own: lanes, each with the state of one input. Inputs take lanes as they begin; those that stop leave
theirs idle until so many are that the others move to fewer lanes. Segments have one of a few lengths and lanes come in a few numbers, so
that few recordings are made. The next segment's frames are sent while the device computes.

Counts and the screen are computed with the spikes, and stay on the device: the host learns who may stop when, and fetches those counts.
Without a GPU, as in tests, the same steps run without being recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreestop.decide.checks import Booleans, InputError, Integers
from agreestop.networks.architectures import SpikingNetwork, State
from agreestop.networks.recorded import recorded
from agreestop.networks.srm import SRMState
from agreestop.networks.transfer import Sender, Sent, as_numbers

from .drive import Looks
from .screen import Screen

LENGTHS = (16, 8, 4, 2, 1)
"""Steps of a segment."""


Kind = tuple[int, torch.dtype]
"""Of a segment: its steps, and the type of its frames."""


def lanes_for(rows: int) -> int:
    """The fewest lanes, a power of two or three quarters of one and at least 8, that hold so many inputs."""
    whole = max(8, 1 << math.ceil(math.log2(max(rows, 1))))
    return whole * 3 // 4 if rows <= whole * 3 // 4 and whole > 8 else whole


@final
@dataclass(eq=False)
class Lanes:
    """State of so many inputs, at fixed places in memory, and the segments recorded on it."""

    state: State
    counts: Tensor
    time: Tensor
    frames: dict[Kind, Tensor] = field(default_factory=dict)
    recorded: dict[tuple[Kind, Any], tuple[Callable[[], None], tuple[Tensor, ...]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.counts)


@final
class Replays:
    """The members, and lanes that no pass is using."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        self.network, self.device = deepcopy(network), device  # recordings hold on to its memory, whatever is trained later
        self.sender = Sender(device)
        self._free: dict[int, list[Lanes]] = {}
        self._screen: tuple[Screen, Any] | None = None

    def take(self, count: int) -> Lanes:
        """Lanes at rest."""
        free = self._free.get(count)
        lanes = free.pop() if free else self._new(count)
        for part in (part for layer in lanes.state.layers for part in layer):
            part.zero_()
        lanes.counts.zero_()
        lanes.time.zero_()
        return lanes

    def give_back(self, lanes: Lanes) -> None:
        self._free.setdefault(len(lanes), []).append(lanes)

    def _new(self, count: int) -> Lanes:
        config, device = self.network.config, self.device
        frame = torch.zeros((1, count, *config.input_shape), device=device)
        layers = self.network(frame)[1].layers
        state = State(tuple(SRMState(*(part.clone() for part in layer)) for layer in layers), 0)
        counts = torch.zeros((count, config.members, config.classes), dtype=torch.int32, device=device)
        return Lanes(state, counts, torch.zeros((), dtype=torch.int64, device=device))

    def screen(self, screen: Screen) -> Any:
        """The screen as tables on the device; the last one is kept, since one rule decides on many batches."""
        from .fused_screen import DeviceScreen  # imported here since Triton takes a while

        if self._screen is None or self._screen[0].policy is not screen.policy:
            times = [int(time) for time in screen.rule.checkpoints]
            self._screen = (screen, DeviceScreen(screen, times, self.device))
            for lanes in (lanes for free in self._free.values() for lanes in free):
                lanes.recorded = {key: value for key, value in lanes.recorded.items() if key[1] is None}
        return self._screen[1]

    def run(self, lanes: Lanes, kind: Kind, screen: Any) -> tuple[Tensor, ...]:
        """A segment on the frames that lie ready: its spikes, or counts and flags; overwritten by the next of that kind."""
        key = (kind, screen)  # which keeps the screen's tables for as long as a recording reads them
        if key not in lanes.recorded:
            lanes.recorded[key] = self._record(lanes, kind, screen)
        replay, results = lanes.recorded[key]
        replay()
        return results

    def _record(self, lanes: Lanes, kind: Kind, screen: Any) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        results: list[Tensor] = []

        def segment() -> None:
            frames = as_numbers(lanes.frames[kind]).transpose(0, 1)
            spikes, after = self.network(frames, lanes.state)
            for old, new in zip(lanes.state.layers, after.layers, strict=True):
                for kept, part in zip(old, new, strict=True):
                    kept.copy_(part)
            found = (spikes.permute(2, 0, 1, 3).bool(),) if screen is None else screen(spikes, lanes.counts, lanes.time)
            lanes.time.add_(kind[0])
            if not results:
                results.extend(torch.empty_like(value) for value in found)
            for result, value in zip(results, found, strict=True):
                result.copy_(value)

        parts = [part for layer in lanes.state.layers for part in layer] + [lanes.counts, lanes.time]
        before = [part.clone() for part in parts]
        replay = recorded(segment) if self.device.type == "cuda" else segment
        if replay is segment:
            segment()  # makes room for the results
        for part, value in zip(parts, before, strict=True):
            part.copy_(value)
        return replay, tuple(results)


@final
class CountsThere:
    """Counts of a chunk on the device, and where an input may stop."""

    def __init__(self, counts: Tensor, may_stop: Booleans, lanes: Integers, looks: Looks) -> None:
        self.may_stop = may_stop
        self._counts, self._lanes, self._places = counts, lanes, np.array(looks.places)

    def at(self, rows: Integers, places: Integers) -> NDArray[Any]:
        """Counts (b, K, C) of rows, each at a checkpoint of its own."""
        which = torch.from_numpy(np.stack([self._lanes[rows], self._places[places]])).to(self._counts.device)
        return self._counts[which[0], which[1]].cpu().numpy()


@final
class ReplayedPass:
    """Some inputs under way."""

    def __init__(self, replays: Replays, inputs: NDArray[Any]) -> None:
        self._replays = replays
        self._waiting = torch.from_numpy(np.ascontiguousarray(inputs))
        self._steps = inputs.shape[1]
        self._lanes: Lanes | None = None
        self._row_lane: Integers = np.arange(len(inputs))
        self._lane_input: Integers = np.arange(len(inputs))
        self._time = 0
        self._staged: tuple[int, Sent] | None = None

    def __del__(self) -> None:
        if self._lanes is not None:
            self._replays.give_back(self._lanes)

    @property
    def rows(self) -> int:
        """How many are under way."""
        return len(self._row_lane)

    @torch.inference_mode()
    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        parts = [found[0].clone() for found in self._segments(steps, None)]
        return torch.cat(parts, 1).cpu().numpy()[self._row_lane]

    @torch.inference_mode()
    def count(self, steps: int, looks: Looks, screen: Screen) -> CountsThere:
        """The next steps: counts at their checkpoints, and who may stop there."""
        found = [(counts.clone(), flags.clone()) for counts, flags in self._segments(steps, self._replays.screen(screen))]
        counts, flags = (torch.cat(part, 1) if len(part) > 1 else part[0] for part in zip(*found, strict=True))
        may_stop = flags.cpu().numpy()[self._row_lane][:, list(looks.places)].astype(bool)
        may_stop[:, np.array(looks.checkpoints) == screen.last] = True
        return CountsThere(counts, may_stop, self._row_lane, looks)

    def _segments(self, steps: int, screen: Any) -> Any:
        if not 1 <= steps <= self._steps - self._time:
            raise InputError(f"{steps} steps are asked for, but {self._steps - self._time} are left of {self._steps}: ask for 1 to those.")
        self._settle()
        assert self._lanes is not None
        while steps:
            length = next(length for length in LENGTHS if length <= steps)
            kind = (length, self._waiting.dtype)
            frames = self._lanes.frames.get(kind)
            staged = self._window(length).received()
            if frames is None:
                frames = torch.zeros((len(self._lanes), *staged.shape[1:]), dtype=staged.dtype, device=self._replays.device)
                self._lanes.frames[kind] = frames
            frames[: len(staged)].copy_(staged)
            results = self._replays.run(self._lanes, kind, screen)
            self._time, steps = self._time + length, steps - length
            if self._time < self._steps:
                ahead = next(other for other in LENGTHS if other <= min(steps or length, self._steps - self._time))
                self._staged = (self._time, self._send(ahead))
            yield results

    def _window(self, length: int) -> Sent:
        """The next steps of the inputs in the lanes."""
        if self._staged is not None and self._staged[0] == self._time and self._staged[1].there.shape[1] == length:
            return self._staged[1]
        return self._send(length)

    def _send(self, length: int) -> Sent:
        window = self._waiting[:, self._time : self._time + length]
        everyone = len(self._lane_input) == len(window)
        return self._replays.sender.send(window if everyone else window[torch.from_numpy(self._lane_input)])

    def _settle(self) -> None:
        """Move to fewer lanes where that many idle; take lanes at the start."""
        wanted = lanes_for(self.rows)
        if self._lanes is not None and wanted >= len(self._lanes):
            return
        old, self._lanes = self._lanes, self._replays.take(wanted)
        if old is not None:
            chosen = torch.from_numpy(self._row_lane).to(self._replays.device)
            for new, layer in zip(self._lanes.state.layers, old.state.layers, strict=True):
                for part, value in zip(new, layer, strict=True):
                    part[:, : self.rows] = value.index_select(1, chosen)
            self._lanes.counts[: self.rows] = old.counts[chosen]
            self._lanes.time.copy_(old.time)
            self._replays.give_back(old)
            self._lane_input, self._row_lane = self._lane_input[self._row_lane], np.arange(self.rows)
            self._staged = None

    def keep(self, rows: Booleans) -> None:
        """Go on with these of the rows."""
        if rows.shape != (self.rows,) or rows.dtype != np.bool_:
            raise InputError(f"rows has shape {rows.shape}: a boolean for each of the {self.rows} inputs still running is needed.")
        self._row_lane = self._row_lane[rows]
