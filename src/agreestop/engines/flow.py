"""Early decisions of fully connected members on a GPU, with every place taken: as an input stops, the next one takes its place.

Places come in groups: while the device computes the next steps of one group, the host reads what became of another and lays its frames
ready. A segment of steps, with its copies to and from the device, is recorded once and replayed, since starting its short kernels from
Python would take longer than running them. A kernel keeps, for each place, the first checkpoint where the rule may stop and the counts
there (`fused_screen`). The rule itself judges them all when the last input is done, and what it would not have stopped is run once more.

Without a GPU, as in tests, the same steps run without being recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.decide.checks import Booleans, Integers
from agreestop.networks.architectures import SpikingNetwork, State
from agreestop.networks.recorded import recorded
from agreestop.networks.srm import SRMState
from agreestop.networks.transfer import as_numbers

from .drive import Candidates
from .inputs import as_places
from .screen import Screen

SEGMENT = 16
"""Steps that are computed together at most."""
WORTH_A_LAUNCH = 2048
"""Inputs times steps that fill the device."""
GROUPS = 2


@final
class Flow:
    """The members, and groups of places for the inputs that were decided on last."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        self._network, self._device = network, device
        self._groups: tuple[Any, list[_Group]] = (None, [])
        self._screen: tuple[Any, Any] = (None, None)
        self._free: list[_LivePlace] = []
        self._lock = Lock()  # places are one call's at a time

    def candidates(self, inputs: NDArray[Any], screen: Screen, places: int, chunk: int | None) -> Candidates:
        """Where each of the inputs (n, T, ...) may stop first, with at most so many under way; see `drive.decide_early` for `chunk`."""
        with self._lock:
            try:
                return self._run(inputs, screen, places, chunk)
            except BaseException:
                self._let_go()
                raise

    def _run(self, inputs: NDArray[Any], screen: Screen, places: int, chunk: int | None) -> Candidates:
        times = [int(time) for time in screen.rule.checkpoints]
        count = min(places, len(inputs))
        share = -(-count // GROUPS)
        width = 1 << max(2, math.ceil(math.log2(share)))
        steps = _segment(min(SEGMENT, times[-1], max(1, WORTH_A_LAUNCH // width)), chunk)
        groups = self._ready(screen, times, width, steps, torch.from_numpy(np.empty(0, inputs.dtype)).dtype)
        frames = inputs.reshape(len(inputs) * inputs.shape[1], -1)
        config = self._network.config
        work = _Work(len(inputs), inputs.shape[1], times, steps, chunk or 1, (config.members, config.classes))
        under_way = [(group, _Seats(work, width, taken)) for group, taken in zip(groups, (share, count - share), strict=True) if taken]
        for group, seats in under_way:
            group.start(frames, seats.rows(), seats.begins)
        while under_way:
            group, seats = under_way.pop(0)
            seats.settle(*group.finish())
            if seats.taken.any():
                group.start(frames, seats.rows(), seats.begins)
                under_way.append((group, seats))
        return work.candidates

    def _let_go(self) -> None:
        """Of the groups, once nothing runs on them."""
        for group in self._groups[1]:
            group.finish()
        self._groups = (None, [])

    def _ready(self, screen: Screen, times: list[int], width: int, steps: int, dtype: torch.dtype) -> list[_Group]:
        """Groups of this width; those of the last call where nothing else is asked for."""
        from .fused_screen import DeviceScreen  # imported here since Triton takes a while

        if self._screen[0] is not screen.policy:
            self._let_go()
            self._screen = (screen.policy, DeviceScreen(screen, times, SEGMENT, self._device))
        if self._groups[0] != (width, steps, dtype):
            self._let_go()
            made = [_Group(self._network, self._device, width, steps, dtype, self._screen[1]) for _ in range(GROUPS)]
            self._groups = ((width, steps, dtype), made)
        return self._groups[1]

    def live(self) -> FlowLive:
        """Start on one live input."""
        return FlowLive(self._free, self._free.pop() if self._free else _LivePlace(self._network, self._device))


def _segment(most: int, chunk: int | None) -> int:
    """Steps of a segment: so many, or the largest number up to that of which a chunk is made."""
    return most if chunk is None else next(steps for steps in range(min(most, chunk), 0, -1) if chunk % steps == 0)


class _Work:
    """Inputs that wait for a place, and what is known of the others."""

    def __init__(self, count: int, length: int, times: list[int], steps: int, chunk: int, shape: tuple[int, int]) -> None:
        self.length, self.steps, self.last, self.chunk = length, steps, times[-1], chunk
        self._count, self._times, self._next = count, times, 0
        self.candidates = Candidates(np.zeros(count, np.int64), np.zeros((count, *shape), np.int64), np.zeros(count, np.int64))

    def call(self, count: int) -> Integers:
        """The next inputs, so many or as many as there are."""
        first, self._next = self._next, min(self._next + count, self._count)
        return np.arange(first, self._next)

    def done(self, inputs: Integers, stops: Integers, counts: Integers, computed: Integers) -> None:
        """These inputs may stop at these steps."""
        self.candidates.checkpoints[inputs] = np.searchsorted(self._times, stops)
        self.candidates.counts[inputs] = counts
        self.candidates.computed[inputs] = np.minimum(computed, self.last)


class _Seats:
    """The inputs in the places of a group, of which some are never taken, and how many steps each has run."""

    def __init__(self, work: _Work, width: int, taken: int) -> None:
        self._work, self._steps = work, np.arange(work.steps)
        self._input: Integers = np.zeros(width, np.int64)
        self._time: Integers = np.zeros(width, np.int64)
        self.taken: Booleans = np.zeros(width, bool)
        self._fill(np.arange(taken))

    def _fill(self, places: Integers) -> None:
        """The next inputs take these places, as far as there are any."""
        inputs = self._work.call(len(places))
        self.taken[places] = np.arange(len(places)) < len(inputs)
        self._input[places[: len(inputs)]] = inputs
        self._time[places] = 0

    @property
    def begins(self) -> Booleans:
        """The places whose input begins, and the empty ones."""
        return self._time == 0

    def rows(self) -> Integers:
        """Of the next steps, the rows among all frames, place after place; past the end of an input its last."""
        steps = np.minimum(self._time[:, None] + self._steps, self._work.length - 1)
        return (self._input[:, None] * self._work.length + steps).ravel()

    def settle(self, stops: Integers, counts: Integers) -> None:
        """What became of the steps: who may stop leaves at the end of the chunk, and others take their places."""
        work = self._work
        self._time[self.taken] += work.steps
        ends = np.minimum(-(-stops // work.chunk) * work.chunk, work.last)
        left = np.flatnonzero(self.taken & (stops > 0) & (self._time >= ends))
        work.done(self._input[left], stops[left], counts[left], self._time[left])
        self._fill(left)


@final
class _Places:
    """The state of so many inputs at fixed places in memory. A segment of steps takes frames and beginnings from the host to spikes.

    frames (width, steps, ...) and begins (width,) are the host's to write, while nothing runs. `after` is what a segment does with the
    read-out spikes (steps, K, width, C), given the places that begin.
    """

    @torch.inference_mode()
    def __init__(
        self,
        network: SpikingNetwork,
        device: torch.device,
        width: int,
        steps: int,
        dtype: torch.dtype,
        after: Callable[[Tensor, Tensor], None],
    ) -> None:
        shape, on_gpu = network.config.input_shape, device.type == "cuda"
        self._network, self._after = network, after
        self._given = torch.zeros((width, steps, *shape), dtype=dtype, pin_memory=on_gpu)
        self._beginning = torch.ones(width, dtype=torch.bool, pin_memory=on_gpu)
        self.frames, self.begins = self._given.numpy(), self._beginning.numpy()
        self._frames, self._fresh = self._given.to(device), self._beginning.to(device)
        layers = network(torch.zeros((1, width, *shape), device=device))[1].layers
        self._state = State(tuple(SRMState(*(part.clone() for part in layer)) for layer in layers), 0)
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._replay: Callable[[], None] | None = None

    def _segment(self) -> None:
        self._frames.copy_(self._given, non_blocking=True)
        self._fresh.copy_(self._beginning, non_blocking=True)
        for part in (part for layer in self._state.layers for part in layer):
            part.masked_fill_(self._fresh[:, None], 0)
        spikes, after = self._network(as_numbers(self._frames).transpose(0, 1), self._state)
        for old, new in zip(self._state.layers, after.layers, strict=True):
            for kept, part in zip(old, new, strict=True):
                kept.copy_(part)
        self._after(spikes, self._fresh)

    @torch.inference_mode()
    def start(self) -> None:
        """A segment."""
        if self._stream is None:
            self._segment()
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._frames.device))
        with torch.cuda.stream(self._stream):
            if self._replay is None:
                self._replay = recorded(self._segment)  # which moves the state, but at the first segment every place begins
            self._replay()

    def wait(self) -> None:
        """Until it is done."""
        if self._stream is not None:
            self._stream.synchronize()


@final
class _Group:
    """Places under a screen."""

    def __init__(self, network: SpikingNetwork, device: torch.device, width: int, steps: int, dtype: torch.dtype, screen: Any) -> None:
        shape = (width, network.config.members, network.config.classes)
        self._screen, self._steps = screen, steps
        self._time, self._stop = (torch.zeros(width, dtype=torch.int32, device=device) for _ in range(2))
        self._counts, self._kept = (torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(2))
        self._results = [torch.zeros(part.shape, dtype=part.dtype, pin_memory=part.is_cuda) for part in (self._stop, self._kept)]
        self._places = _Places(network, device, width, steps, dtype, self._look)

    def _look(self, spikes: Tensor, fresh: Tensor) -> None:
        self._counts.masked_fill_(fresh[:, None, None], 0)
        for part in (self._time, self._stop):
            part.masked_fill_(fresh, 0)
        self._screen(spikes, self._counts, self._time, self._stop, self._kept)
        self._time.add_(self._steps)
        for result, part in zip(self._results, (self._stop, self._kept), strict=True):
            result.copy_(part, non_blocking=True)

    def start(self, frames: NDArray[Any], rows: Integers, begins: Booleans) -> None:
        """The next steps, with these rows of the frames; places begin where told."""
        frames.take(rows, axis=0, out=self._places.frames.reshape(len(rows), -1), mode="clip")
        self._places.begins[:] = begins
        self._places.start()

    def finish(self) -> tuple[Integers, Integers]:
        """Of each place the step, counted from 1, where its input may stop, 0 for none yet, and the counts there."""
        self._places.wait()
        return self._results[0].numpy(), self._results[1].numpy()


@final
class _LivePlace:
    """A place of one step at a time, ready for the first."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        shape = (network.config.members, network.config.classes)
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._total = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._place = _Places(network, device, 1, 1, torch.bool, self._count)
        self.step([], begins=True)

    def _count(self, spikes: Tensor, fresh: Tensor) -> None:
        self._counts.masked_fill_(fresh, 0)
        self._counts += spikes[0, :, 0].int()
        self._total.copy_(self._counts, non_blocking=True)

    def step(self, events: ArrayLike, begins: bool) -> Integers:
        """The spike counts (K, C) so far, after one step with these events."""
        frame = self._place.frames.reshape(-1)
        active = as_places(events, frame.size)
        frame[:] = False
        frame[active] = True
        self._place.begins[:] = begins
        self._place.start()
        self._place.wait()
        return self._total.numpy().astype(np.int64)


@final
class FlowLive:
    """One live input under way; its place is another's when it is let go."""

    def __init__(self, free: list[_LivePlace], place: _LivePlace) -> None:
        self._free, self._place, self._begins = free, place, True

    def __del__(self) -> None:
        self._free.append(self._place)

    def push(self, events: ArrayLike) -> Integers:
        """One step, with the flat places of the inputs that are active in it; the spike counts (K, C) so far."""
        counts = self._place.step(events, self._begins)
        self._begins = False
        return counts
