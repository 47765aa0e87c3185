"""Early decisions of fully connected members on a GPU, with every place taken: as an input stops, the next one takes its place.

Places come in groups: while the device computes the next steps of one group, the host reads what became of another and lays its frames
ready. A segment of steps, with its copies to and from the device, is recorded once and replayed, since starting its short kernels from
Python would take longer than running them. A kernel keeps, for each place, the first checkpoint where the rule may stop and the counts
there (`fused_screen`). The rule itself judges them while the device goes on, and what it would not have stopped is run once more.

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
from agreestop.networks.transfer import as_numbers, gather

from .drive import Candidates
from .inputs import as_places
from .screen import Screen

SEGMENT = 16
"""Steps that are computed together at most, unless told."""
WORTH_A_LAUNCH = 2048
"""Inputs times steps that fill the device."""
AT_ONCE = 8192
"""Inputs times steps that are computed together at most, where more are asked for."""
GROUPS, KEPT = 2, 2
"""Groups of places, and for how many kinds of calls they are kept ready."""
WORTH_JUDGING = 256
"""Inputs that the rule judges together at least: a few take as long."""


@final
class Flow:
    """The members, and groups of places for inputs like those that were decided on last."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        self._network, self._device = network, device
        self._kept: list[tuple[Any, list[_Group]]] = []
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
        work = _Work(screen, inputs.shape[:2], self._network.config.classes, chunk or 1)
        count = min(places, len(inputs))
        share = -(-count // GROUPS)
        width = 1 << max(2, math.ceil(math.log2(share)))
        steps = min(work.last, _segment(width, chunk))
        groups = self._ready(screen, width, steps, torch.from_numpy(np.empty(0, inputs.dtype)).dtype)
        run = steps if inputs.shape[1] % steps == 0 else 1
        frames = inputs.reshape(len(inputs) * inputs.shape[1] // run, -1)
        shares = zip(groups, (share, count - share), strict=True)
        under_way = [(group, _Seats(work, width, taken, steps, run)) for group, taken in shares if taken]
        for group, seats in under_way:
            group.start(frames, seats.rows(), seats.begins)
        while under_way:
            group, seats = under_way.pop(0)
            seats.settle(*group.finish())
            if seats.taken.any():
                group.start(frames, seats.rows(), seats.begins)
                under_way.append((group, seats))
            work.judge(WORTH_JUDGING if under_way else 1)
        return work.candidates

    def _let_go(self) -> None:
        """Of all groups, once nothing runs on them."""
        for group in (group for _, groups in self._kept for group in groups):
            group.finish()
        self._kept.clear()

    def _ready(self, screen: Screen, width: int, steps: int, dtype: torch.dtype) -> list[_Group]:
        """Groups of this width; those of one of the last calls where nothing else is asked for."""
        from .fused_screen import DeviceScreen  # imported here since Triton takes a while

        key = (screen.policy, width, steps, dtype)
        place = next((place for place, (known, _) in enumerate(self._kept) if known == key), None)
        if place is not None:
            self._kept.append(self._kept.pop(place))
        else:
            del self._kept[: max(0, len(self._kept) + 1 - KEPT)]
            there = DeviceScreen(screen, steps, self._device)
            self._kept.append((key, [_Group(self._network, self._device, width, steps, dtype, there) for _ in range(GROUPS)]))
        return self._kept[-1][1]

    def live(self) -> FlowLive:
        """Start on one live input."""
        return FlowLive(self._free, self._free.pop() if self._free else _LivePlace(self._network, self._device))


def _segment(width: int, chunk: int | None) -> int:
    """Steps of a segment of so many places: what fills the device, or the largest number up to what it takes of which a chunk is made."""
    if chunk is None:
        return max(1, min(SEGMENT, WORTH_A_LAUNCH // width))
    return next(steps for steps in range(max(1, min(chunk, AT_ONCE // width)), 0, -1) if chunk % steps == 0)


class _Work:
    """Inputs (count, length, ...) that wait for a place, and what is known of the others."""

    def __init__(self, screen: Screen, shape: tuple[int, ...], classes: int, chunk: int) -> None:
        (self._count, self.length), self.chunk, self._screen = shape, chunk, screen
        self._times, self.last, self._next = np.array(screen.times), screen.times[-1], 0
        self.candidates = Candidates.none(self._count, classes)
        self._waiting: list[tuple[Integers, Integers]] = []

    def call(self, count: int) -> Integers:
        """The next inputs, so many or as many as there are."""
        first, self._next = self._next, min(self._next + count, self._count)
        return np.arange(first, self._next)

    def done(self, inputs: Integers, stops: Integers, counts: Integers, computed: Integers) -> None:
        """These inputs may stop at these steps, with these counts (inputs, K, C)."""
        self.candidates.checkpoints[inputs] = np.searchsorted(self._times, stops)
        self.candidates.computed[inputs] = np.minimum(computed, self.last)
        self._waiting.append((inputs, counts))

    def judge(self, least: int) -> None:
        """What the rule has to say of those that are done, if so many wait for it."""
        if sum(len(inputs) for inputs, _ in self._waiting) < least:
            return
        inputs, counts = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
        verdict = self._screen.judge(self.candidates.checkpoints[inputs], counts)
        self.candidates.stop[inputs], self.candidates.sets[inputs] = verdict.stop, verdict.sets
        self._waiting.clear()


class _Seats:
    """The inputs in the places of a group, of which some are never taken, and how many steps each has run.

    A segment has so many `steps`; frames are copied in runs of `run` steps, which divides that.
    """

    def __init__(self, work: _Work, width: int, taken: int, steps: int, run: int) -> None:
        self._work, self._steps, self._run = work, steps, run
        self._runs = np.arange(steps // run)
        self._input: Integers = np.zeros(width, np.int64)
        self._time: Integers = np.zeros(width, np.int64)
        self.taken: Booleans = np.zeros(width, bool)
        self._fill(np.arange(taken))

    def _fill(self, places: Integers) -> None:
        """The next inputs take these places, as far as there are any."""
        inputs = self._work.call(len(places))
        self._time[places] = 0
        self._input[places[: len(inputs)]] = inputs
        self.taken[places[: len(inputs)]] = True
        self.taken[places[len(inputs) :]] = False

    @property
    def begins(self) -> Booleans:
        """The places whose input begins, and the empty ones."""
        return (self._time == 0) | ~self.taken

    def rows(self) -> Integers:
        """Of the next steps, the runs among those of all inputs, place after place; past the end of an input its last."""
        length = self._work.length // self._run
        runs = np.minimum(self._time[:, None] // self._run + self._runs, length - 1)
        return (self._input[:, None] * length + runs).ravel()

    def settle(self, stops: Integers, counts: Integers) -> None:
        """What became of the steps: who may stop leaves at the end of the chunk, and others take their places."""
        work = self._work
        self._time += self._steps
        leaves = self.taken & (stops > 0)
        if work.chunk > self._steps:
            leaves &= self._time >= np.minimum(-(-stops // work.chunk) * work.chunk, work.last)
        left = np.flatnonzero(leaves)
        if len(left):
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
        self._numbers = as_numbers(self._frames.transpose(0, 1)).contiguous()
        layers = network(torch.zeros((1, width, *shape), device=device))[1].layers
        self._memory = [torch.stack(layer) for layer in layers]
        self._state = State(tuple(SRMState(*memory) for memory in self._memory), 0)
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._replay = self._recorded() if on_gpu else self._segment

    @torch.inference_mode()
    def _segment(self) -> None:
        self._frames.copy_(self._given, non_blocking=True)
        self._fresh.copy_(self._beginning, non_blocking=True)
        for memory in self._memory:
            memory.masked_fill_(self._fresh[:, None], 0)
        spikes, after = self._network(self._numbers.copy_(self._frames.transpose(0, 1)), self._state)
        torch._foreach_copy_([part for layer in self._state.layers for part in layer], [part for layer in after.layers for part in layer])
        self._after(spikes, self._fresh)

    def _recorded(self) -> Callable[[], None]:
        """A segment, recorded, which moves the state: at its first segment every place must begin."""
        self._stream.wait_stream(torch.cuda.current_stream(self._frames.device))
        with torch.cuda.stream(self._stream):
            return recorded(self._segment)

    def start(self) -> None:
        """A segment."""
        if self._stream is None:
            self._replay()
            return
        before = torch.cuda.current_stream(self._stream.device)
        torch.cuda.set_stream(self._stream)  # `with torch.cuda.stream` takes several times as long
        try:
            self._replay()
        finally:
            torch.cuda.set_stream(before)

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
        gather(frames, rows, self._places.frames.reshape(len(rows), -1))
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
