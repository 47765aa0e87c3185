"""Early decisions of fully connected members on a GPU, with every place taken: as an input stops, the next one takes its place.

Places come in two groups: while the device computes the next steps of one, the host reads what became of the other and lays its frames
ready. Where one segment takes as many inputs as are allowed to their end, and more wait, each group has all places instead, and the device
takes the groups in turn.

A segment of steps, with its copies to and from the device, is recorded once and replayed, since starting its short kernels from Python
would take longer than running them. A kernel keeps, for each place, the first checkpoint where the rule may stop, its answer and the counts
there (`fused_screen`). Where that is not sure the rule itself judges, and what it does not stop is run once more, to a later checkpoint.

Without a GPU, as in tests, the same steps run without being recorded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.common.arrays import Booleans, Integers
from agreestop.networks._kernels.cuda_graph import capture_cuda_graph
from agreestop.networks._kernels.upload import as_floats, copy_rows
from agreestop.networks.architectures import SpikingNetwork, State
from agreestop.networks.srm_types import SRMState

from ..early_stopping import Outcomes
from ..inputs import as_places
from ..prefilter import Screen

SEGMENT = 16
"""Steps that are computed together at most, unless told."""
WORTH_A_LAUNCH = 2048
"""Inputs times steps that fill the device."""
AT_ONCE = 16384
"""Inputs times steps that are computed together at most, where more are asked for."""
KEPT = 2
"""For how many kinds of calls groups of places are kept ready."""
WORTH_SETTLING = 1024
"""Inputs that are settled together at least: a few take as long."""


@final
class Flow:
    """The members, and groups of places for inputs like those that were decided on last."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        self._network, self._device = network, device
        self._kept: list[tuple[Any, list[_Group]]] = []
        self._free: list[_LivePlace] = []
        self._lock = Lock()  # places are one call's at a time

    def decide(self, inputs: NDArray[Any], screen: Screen, places: int, chunk: int | None) -> Outcomes:
        """Decide on inputs (n, T, ...), with at most so many computed together; see `drive.decide_early` for `chunk`."""
        with self._lock:
            try:
                return self._run(inputs, screen, places, chunk)
            except BaseException:
                self._let_go()
                raise

    def _run(self, inputs: NDArray[Any], screen: Screen, places: int, chunk: int | None) -> Outcomes:
        chunk = None if chunk is None else min(chunk, screen.times[-1])
        work = _Work(screen, inputs.shape[:2], self._network.config.classes, chunk or 1)
        count = min(places, len(inputs))
        in_turn = len(inputs) > count and _segment(_width(count), chunk) >= work.last
        shares = (count, count) if in_turn else (-(-count // 2), count // 2)
        width = _width(shares[0])
        steps = min(work.last, _segment(width, chunk))
        groups = self._ready(screen, width, steps, torch.from_numpy(np.empty(0, inputs.dtype)).dtype)
        run = steps if inputs.shape[1] % steps == 0 else 1
        frames = inputs.reshape(len(inputs) * inputs.shape[1] // run, -1)
        resting = [(group, _Seats(work, width, taken, steps, run)) for group, taken in zip(groups, shares, strict=True) if taken]
        under_way: deque[tuple[_Group, _Seats]] = deque()
        while True:
            for group, seats in tuple(resting):
                if seats.fill():
                    behind = under_way[-1][0] if in_turn and under_way else None
                    group.start(frames, seats.rows(), seats.begins(), behind)
                    resting.remove((group, seats))
                    under_way.append((group, seats))
            work.settle(WORTH_SETTLING if under_way else 1)
            if under_way:
                group, seats = under_way.popleft()
                seats.leave(group.finish())
                resting.append((group, seats))
            elif not work.waits:
                return work.outcomes

    def _let_go(self) -> None:
        """Of all groups, once nothing runs on them."""
        for group in (group for _, groups in self._kept for group in groups):
            group.finish()
        self._kept.clear()

    def _ready(self, screen: Screen, width: int, steps: int, dtype: torch.dtype) -> list[_Group]:
        """Groups of this width; those of one of the last calls where nothing else is asked for."""
        from .prefilter import DeviceScreen  # imported here since Triton takes a while

        key = (screen.rule, screen.policy, width, steps, dtype)
        place = next((place for place, (known, _) in enumerate(self._kept) if known == key), None)
        if place is not None:
            self._kept.append(self._kept.pop(place))
        else:
            del self._kept[: max(0, len(self._kept) + 1 - KEPT)]
            classes = self._network.config.classes
            there = DeviceScreen(screen, classes, steps, self._device)
            counts_at = _counts_at(screen, classes)
            groups = [_Group(self._network, self._device, width, steps, dtype, there, counts_at) for _ in range(2)]
            self._kept.append((key, groups))
        return self._kept[-1][1]

    def live(self) -> FlowLive:
        """Start on one live input."""
        return FlowLive(self._free, self._free.pop() if self._free else _LivePlace(self._network, self._device))


def _width(places: int) -> int:
    """Places that a group has for so many inputs: some more, so that a recording serves other numbers too."""
    return 1 << max(2, math.ceil(math.log2(places)))


def _segment(width: int, chunk: int | None) -> int:
    """Steps of a segment of so many places: what fills the device, or the largest number up to what it takes of which a chunk is made."""
    if chunk is None:
        return max(1, min(SEGMENT, WORTH_A_LAUNCH // width))
    return next(steps for steps in range(max(1, min(chunk, AT_ONCE // width)), 0, -1) if chunk % steps == 0)


def _counts_at(screen: Screen, classes: int) -> int:
    """Where the counts begin in what `fused_screen` finds of an input."""
    return 2 + screen.answers(classes)


class _Work:
    """Inputs (count, length, ...) that wait for a place, and what is known of the others."""

    def __init__(self, screen: Screen, shape: tuple[int, ...], classes: int, chunk: int) -> None:
        (count, self.length), self.chunk, self._screen = shape, chunk, screen
        self._times, self.last = np.array(screen.times), screen.times[-1]
        self._waiting: Integers = np.arange(count)
        self.not_in: Integers = np.zeros(count, np.int64)
        """The first so many steps in which an input does not stop, as is known."""
        self._counts_at = _counts_at(screen, classes)
        self.outcomes: Outcomes = np.zeros(count, np.int64), np.zeros((count, classes), bool), np.zeros(count, np.int64)
        self._left: list[tuple[Integers, Integers, Integers]] = []

    @property
    def waits(self) -> bool:
        """Whether an input waits for a place."""
        return len(self._waiting) > 0

    def call(self, count: int) -> Integers:
        """The next inputs, so many or as many as there are."""
        called, self._waiting = self._waiting[:count], self._waiting[count:]
        return called

    def left(self, inputs: Integers, found: Integers, computed: Integers) -> None:
        """These inputs have left their places; what `fused_screen` found of them, and the steps that they ran."""
        self._left.append((inputs, found, computed))

    def settle(self, least: int) -> None:
        """Those that have left, if they are so many: what is sure is written down, of the rest the rule judges, and some wait again."""
        if sum(len(inputs) for inputs, _, _ in self._left) < least:
            return
        inputs, found, computed = (np.concatenate(part) for part in zip(*self._left, strict=True))
        self._left.clear()
        stops, answers, counts = found[:, 0], found[:, 2 : self._counts_at], found[:, self._counts_at :]
        index, sets, steps = self.outcomes
        index[inputs] = np.searchsorted(self._times, stops)
        steps[inputs] += np.minimum(computed, self.last)
        sure = found[:, 1] > 0
        rows, ranks = np.nonzero(sure[:, None] & (answers >= 0))
        sets[inputs[rows], answers[rows, ranks]] = True
        doubtful = inputs[~sure]
        if len(doubtful):
            verdict = self._screen.judge(index[doubtful], counts[~sure].reshape(len(doubtful), -1, sets.shape[1]))
            sets[doubtful[verdict.stop]] = verdict.sets[verdict.stop]
            again = doubtful[~verdict.stop]
            self.not_in[again] = stops[~sure][~verdict.stop]
            self._waiting = np.concatenate([again, self._waiting])


class _Seats:
    """The inputs in the places of a group, of which the first `taken` serve, and how many steps each has run.

    A segment has so many `steps`; frames are copied in runs of `run` steps, which divides that.
    """

    def __init__(self, work: _Work, width: int, taken: int, steps: int, run: int) -> None:
        self._work, self._steps, self._run = work, steps, run
        self._runs = np.arange(steps // run)
        self._input: Integers = np.zeros(width, np.int64)
        self._time: Integers = np.zeros(width, np.int64)
        self._taken: Booleans = np.zeros(width, bool)
        self._free: Integers = np.arange(taken)

    def fill(self) -> bool:
        """The next inputs take the free places, as far as there are any; whether a place is taken."""
        inputs = self._work.call(len(self._free))
        places, self._free = self._free[: len(inputs)], self._free[len(inputs) :]
        self._input[places], self._taken[places] = inputs, True
        return bool(self._taken.any())

    def begins(self) -> Integers:
        """For `fused_screen`, of each place; what is not taken begins over and over."""
        return np.where(self._time > 0, -1, self._work.not_in[self._input])

    def rows(self) -> Integers:
        """Of the next steps, the runs among those of all inputs, place after place; past the end of an input its last."""
        length = self._work.length // self._run
        runs = np.minimum(self._time[:, None] // self._run + self._runs, length - 1)
        return (self._input[:, None] * length + runs).ravel()

    def leave(self, found: Integers) -> None:
        """After a segment: who may stop leaves at the end of the chunk."""
        work, stops = self._work, found[:, 0]
        self._time[self._taken] += self._steps
        leaves = self._taken & (stops > 0)
        if work.chunk > self._steps:
            leaves &= self._time >= np.minimum(-(-stops // work.chunk) * work.chunk, work.last)
        left = np.flatnonzero(leaves)
        if len(left):
            work.left(self._input[left], found[left], self._time[left])
            self._free = np.concatenate([self._free, left])
            self._time[left], self._taken[left] = 0, False


@final
class _Places:
    """The state of so many inputs at fixed places in memory. A segment of steps takes frames and beginnings from the host to spikes.

    frames (width, steps, ...) and begins (width,) are the host's to write, while nothing runs: a place goes on with -1 and begins anew
    with any other number. `after` is what a segment does with the read-out spikes (steps, K, width, C), given those numbers.
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
        self._beginning = torch.zeros(width, dtype=torch.int32, pin_memory=on_gpu)
        self.frames, self.begins = self._given.numpy(), self._beginning.numpy()
        self._frames, self._begins = self._given.to(device), self._beginning.to(device)
        self._numbers = as_floats(self._frames.transpose(0, 1)).contiguous()
        layers = network(torch.zeros((1, width, *shape), device=device))[1].layers
        self._memory = [torch.stack(layer) for layer in layers]
        self._state = State(tuple(SRMState(*memory) for memory in self._memory), 0)
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._replay = self._recorded() if on_gpu else self._segment

    @torch.inference_mode()
    def _segment(self) -> None:
        self._frames.copy_(self._given, non_blocking=True)
        self._begins.copy_(self._beginning, non_blocking=True)
        fresh = (self._begins >= 0)[:, None]
        for memory in self._memory:
            memory.masked_fill_(fresh, 0)
        spikes, after = self._network(self._numbers.copy_(self._frames.transpose(0, 1)), self._state)
        torch._foreach_copy_([part for layer in self._state.layers for part in layer], [part for layer in after.layers for part in layer])
        self._after(spikes, self._begins)

    def _recorded(self) -> Callable[[], None]:
        """A segment, recorded, which moves the state: at its first segment every place must begin."""
        self._stream.wait_stream(torch.cuda.current_stream(self._frames.device))
        with torch.cuda.stream(self._stream):
            return capture_cuda_graph(self._segment)

    def start(self, behind: _Places | None = None) -> None:
        """A segment, begun once what `behind` was given, if anything, is done."""
        if self._stream is None:
            self._replay()
            return
        if behind is not None:
            self._stream.wait_stream(behind._stream)
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

    def __init__(
        self, network: SpikingNetwork, device: torch.device, width: int, steps: int, dtype: torch.dtype, screen: Any, counts_at: int
    ) -> None:
        members, classes = network.config.members, network.config.classes
        self._screen = screen
        self._time = torch.zeros(width, dtype=torch.int32, device=device)
        self._counts = torch.zeros((width, members, classes), dtype=torch.int32, device=device)
        self._outcome = torch.zeros((width, counts_at + members * classes), dtype=torch.int32, device=device)
        self._result = torch.zeros(self._outcome.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._places = _Places(network, device, width, steps, dtype, self._look)

    def _look(self, spikes: Tensor, begins: Tensor) -> None:
        self._screen(spikes, begins, self._time, self._counts, self._outcome)
        self._result.copy_(self._outcome, non_blocking=True)

    def start(self, frames: NDArray[Any], rows: Integers, begins: Integers, behind: _Group | None) -> None:
        """The next steps, with these rows of the frames; places begin where told. They begin once those of `behind` are done."""
        copy_rows(frames, rows, self._places.frames.reshape(len(rows), -1))
        self._places.begins[:] = begins
        self._places.start(None if behind is None else behind._places)

    def finish(self) -> Integers:
        """What `fused_screen` found at each place."""
        self._places.wait()
        return self._result.numpy()


@final
class _LivePlace:
    """A place of one step at a time, ready for the first."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        shape = (network.config.members, network.config.classes)
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._total = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._place = _Places(network, device, 1, 1, torch.bool, self._count)

    def _count(self, spikes: Tensor, begins: Tensor) -> None:
        self._counts.masked_fill_(begins >= 0, 0)
        self._counts += spikes[0, :, 0].int()
        self._total.copy_(self._counts, non_blocking=True)

    def step(self, events: ArrayLike, begins: bool) -> Integers:
        """The spike counts (K, C) so far, after one step with these events."""
        frame = self._place.frames.reshape(-1)
        active = as_places(events, frame.size)
        frame[:] = False
        frame[active] = True
        self._place.begins[:] = 0 if begins else -1
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
