"""Continuous batching on a GPU: as soon as an input stops, the next input takes its slot.

The slots form two groups. While one group computes, the host reads the results of the other and
chooses its next inputs. If one segment takes all slots to their end and more inputs wait, each
group has all the slots instead, and the GPU runs the groups in turn.

A segment is a number of steps, captured once as a CUDA graph (`slots`). The inputs are on the GPU
(`device_inputs`), so the host only says which input a slot runs and at which step. The prefilter's
kernel finds, for each slot, the first checkpoints at which the rule may stop, up to one at which it
certainly does, and the counts there. `calibrated.step` then judges on the host. An input that it
stops at none of them runs again, up to a later checkpoint.

With a `Schedule`, only the first members run here, up to the look at which others join. Inputs that
these do not decide are left undecided.

Without a GPU, as in tests, the same steps run without a CUDA graph.
"""

import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.common import Booleans, Integers, cores, join_parts
from agreestop.decide.checkpoints import Index, Stops, Verdict, in_rounds, run_rounds
from agreestop.events.container import Events, Inputs

from ..early_stopping import Outcomes
from ..inputs import dense_step
from ..prefilter import Prefilter
from .device_inputs import DeviceInputs, frames_dtype
from .slots import SlotMembers, Slots, SlotShape

KEPT_KINDS = 2  # groups of slots are kept ready for this many different kinds of calls
# the rule judges at least this many inputs at once: for fewer, the call itself takes
# most of the time
JUDGED_TOGETHER = 1024
# checkpoints at which an input may stop that are kept for the rule: where its threshold ties with
# many inputs, only it knows
LOOKS = 4
JUDGES = 4  # threads that judge; NumPy computes without holding the others up
BLOCK_BYTES = 1 << 31  # inputs are brought to the GPU in blocks of at most this size
# the prefilter's margin: above the rounding error of float32 for log-risks near ten, and it
# grows with them
KERNEL_SLACK = 2e-4
EPSILON = float(np.finfo(np.float32).eps)
FAR = 1e30  # no logarithm of a risk is as large


@final
class ContinuousBatching:
    """The members, and groups of slots for inputs like those of the last calls."""

    def __init__(self, members: SlotMembers, device: torch.device) -> None:
        self._members, self._device = members, device
        self._uploads: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._kept: list[tuple[Any, list[_SlotGroup]]] = []
        self._free_live: list[_LiveSlot] = []
        self._lock = Lock()  # only one call at a time may use the slots

    def decide(
        self, inputs: Inputs, prefilter: Prefilter, slots: int, chunk: int | None
    ) -> Outcomes:
        """Decide on inputs (n, T, ...), or on images (n, 1, ...) that are held, at most `slots` of
        them computed together.

        `chunk` is that of `decide_early`. Inputs are brought to the GPU in blocks of rows.
        """
        size = (
            len(inputs.indices) * inputs.indices.itemsize
            if isinstance(inputs, Events)
            else inputs.nbytes
        )
        rows = max(slots, BLOCK_BYTES * len(inputs) // max(size, 1))
        parts = []
        with self._lock:
            try:
                for start in range(0, len(inputs), rows):
                    block = slice(start, start + rows)
                    part = (
                        inputs
                        if rows >= len(inputs)
                        else inputs.rows(block)
                        if isinstance(inputs, Events)
                        else inputs[block]
                    )
                    parts.append(self._run(part, prefilter, slots, chunk))
            except BaseException:
                self._release_groups()
                raise
        return join_parts(parts)

    def _run(self, inputs: Inputs, prefilter: Prefilter, slots: int, chunk: int | None) -> Outcomes:
        chunk = (
            None
            if chunk is None
            else min(chunk, int(prefilter.calibrated.checkpoints[prefilter.first_looks - 1]))
        )
        queue = _Queue(prefilter, len(inputs), self._members.classes, chunk or 1)
        count = min(slots, len(inputs))
        in_turn = len(inputs) > count and self._segment_steps(_width(count), chunk) >= queue.last
        shares = (count, count) if in_turn else (-(-count // 2), count // 2)
        width = _width(shares[0])
        steps = min(queue.last, self._segment_steps(width, chunk))
        source = DeviceInputs(inputs, self._device, self._uploads)
        shape = SlotShape(width, steps, inputs.shape[1] == 1, frames_dtype(inputs, self._device))
        groups = self._groups_for(prefilter, shape, source.kind)
        idle = [
            (group, _Assignment(queue, width, used, steps))
            for group, used in zip(groups, shares, strict=True)
            if used
        ]
        busy: deque[tuple[_SlotGroup, _Assignment]] = deque()
        while True:
            for group, assignment in tuple(idle):
                if assignment.fill():
                    behind = busy[-1][0] if in_turn and busy else None
                    group.start(source, assignment, behind)
                    idle.remove((group, assignment))
                    busy.append((group, assignment))
            queue.judge(JUDGED_TOGETHER if busy else 1, wait=not busy)
            if busy:
                group, assignment = busy.popleft()
                assignment.release(group.finish())
                idle.append((group, assignment))
            elif not len(queue.waiting):
                return queue.outcomes

    def _segment_steps(self, width: int, chunk: int | None) -> int:
        """The steps of a segment for this width: enough to fill the GPU, or the largest divisor of
        the chunk that the GPU takes at once.

        Multiples of the usual steps are preferred, since kernels are made for these.
        """
        load = self._members.load
        if chunk is None:
            return max(1, min(load.steps, load.full // width))
        divisors = [
            steps
            for steps in range(1, max(1, min(chunk, load.most // width)) + 1)
            if chunk % steps == 0
        ]
        return max(divisors, key=lambda steps: (steps % load.steps == 0, steps))

    def _release_groups(self) -> None:
        """Drop all groups, once nothing runs on them."""
        for group in (group for _, groups in self._kept for group in groups):
            group.finish()
        self._kept.clear()

    def _groups_for(
        self, prefilter: Prefilter, shape: SlotShape, kind: tuple[Any, ...]
    ) -> "list[_SlotGroup]":
        """Two groups of slots; those of an earlier call of the same kind if they are still kept."""
        key = (prefilter.calibrated.rule, prefilter.calibrated.policy, shape, kind)
        found = next(
            (position for position, (known, _) in enumerate(self._kept) if known == key), None
        )
        if found is not None:
            self._kept.append(self._kept.pop(found))
        else:
            del self._kept[: max(0, len(self._kept) + 1 - KEPT_KINDS)]
            on_gpu = GpuPrefilter(prefilter, self._members.classes, shape.steps, self._device)
            self._kept.append(
                (
                    key,
                    [
                        _SlotGroup(self._members, self._device, shape, kind, on_gpu)
                        for _ in range(2)
                    ],
                )
            )
        return self._kept[-1][1]

    def live(self) -> "SlotLive":
        """Start on one live input."""
        return SlotLive(
            self._free_live,
            self._free_live.pop() if self._free_live else _LiveSlot(self._members, self._device),
        )


def _width(slots: int) -> int:
    """The width of a group: a power of two, so that one CUDA graph serves other numbers
    of inputs too.
    """
    return 1 << max(2, math.ceil(math.log2(slots)))


class GpuPrefilter:
    """The tables of a prefilter on a GPU, in float32, with one entry for each step up to `beyond`
    steps after the last checkpoint.

    No row may stop between checkpoints, and every row may stop at the last one, or at the last one
    before more members join.
    """

    def __init__(
        self, prefilter: Prefilter, classes: int, beyond: int, device: torch.device
    ) -> None:
        looks = prefilter.first_looks
        steps = np.array(prefilter.calibrated.checkpoints[:looks], dtype=np.int64)
        upper = prefilter.bounds_with_margin(KERNEL_SLACK, classes, EPSILON)
        bounds = np.clip(prefilter.bounds, -FAR, FAR)
        lower = bounds - (np.clip(upper, -FAR, FAR) - bounds)
        tables = [
            np.ones(steps[-1] + beyond),
            *(np.full(steps[-1] + beyond, -FAR) for _ in range(2)),
        ]
        for table, values in zip(tables, (prefilter.temperatures, upper, lower), strict=True):
            table[steps - 1] = np.clip(values[:looks], -FAR, FAR)
        tables[1][steps[-1] - 1] = tables[2][steps[-1] - 1] = FAR
        self._tables = [
            torch.tensor(values, dtype=torch.float32, device=device) for values in tables
        ]
        self._exponent, self._size = float(prefilter.exponent), min(prefilter.max_set_size, classes)

    def __call__(
        self, spikes: Tensor, begins: Tensor, time: Tensor, counts: Tensor, outcome: Tensor
    ) -> None:
        # imported here since Triton takes long to load
        from agreestop.kernels.gpu.triton_kernels import find_stops

        find_stops(spikes, begins, time, counts, outcome, self._tables, self._exponent, self._size)


class _Queue:
    """Inputs that wait for a slot, and the outcomes of the others."""

    def __init__(self, prefilter: Prefilter, count: int, classes: int, chunk: int) -> None:
        self.chunk = chunk
        self._calibrated = prefilter.calibrated
        self._members = prefilter.first_members
        self._times = np.array(
            prefilter.calibrated.checkpoints[: prefilter.first_looks], dtype=np.int64
        )
        self.last = int(self._times[-1])
        self.waiting: Integers = np.arange(count)
        self.no_stop_before: Integers = np.zeros(count, np.int64)
        """For each input, the number of first steps in which it is known not to stop."""
        self.outcomes = Outcomes(
            Stops.empty(count, classes), np.zeros(count, np.int64), np.zeros(count, np.int64)
        )
        self._judging: deque[Future[Integers]] = deque()
        self.released: list[tuple[Integers, Integers, Integers]] = []
        """Inputs that have left their slots, with the results of the prefilter (see
        `find_stops`) and the steps that they ran.
        """

    def take(self, count: int) -> Integers:
        """The next `count` inputs, or all that wait if there are fewer."""
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def judge(self, least: int, wait: bool) -> None:
        """Judge the released inputs if there are at least `least`.

        Those that the rule does not stop wait again.

        Other threads judge, so that the GPU never waits for it. wait: finish all judgements.
        """
        if self.released and sum(len(inputs) for inputs, _, _ in self.released) >= least:
            given = [np.concatenate(part) for part in zip(*self.released, strict=True)]
            self.released.clear()
            self._judging.append(_judges(os.getpid()).submit(self._judge, *given))
        while self._judging and (wait or self._judging[0].done()):
            self.waiting = np.concatenate([self._judging.popleft().result(), self.waiting])

    def _judge(self, inputs: Integers, found: Integers, computed: Integers) -> Integers:
        """Judge these inputs and return those that the rule has not stopped and may still stop
        with these members.
        """
        outcomes, calibrated = self.outcomes, self._calibrated
        steps = np.minimum(computed, self.last)
        outcomes.computed[inputs] += steps
        outcomes.work[inputs] += self._members * steps
        entries = found[:, 2:].reshape(len(inputs), LOOKS, -1)
        times = entries[..., 0].reshape(-1)
        counts = entries[..., 1:].reshape(len(times), -1, calibrated.classes)
        # the checkpoints that were found, of each input in their order
        found_at = np.flatnonzero(np.arange(LOOKS) < np.abs(found[:, :1]))

        def note(where: Integers, index: Index, verdict: Verdict) -> None:
            outcomes.stops.put(inputs[where // LOOKS], index, verdict)
            going_on = where[~verdict.stop]
            self.no_stop_before[inputs[going_on // LOOKS]] = times[going_on]

        index = np.searchsorted(self._times, times[found_at])
        _, running = run_rounds(
            calibrated.judge_some(counts),
            calibrated.start(len(inputs)),
            in_rounds(index, found_at // LOOKS, found_at),
            note,
        )
        left = inputs[running]
        return left[self.no_stop_before[left] < self.last]


@cache
def _judges(process: int) -> ThreadPoolExecutor:
    """The threads that judge, their own for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(
        max(1, min(JUDGES, cores() // 2)), thread_name_prefix="agreestop-judge"
    )


class _Assignment:
    """The inputs in the slots of a group, and the steps that each has run.

    Only the first `used` slots are used.
    """

    def __init__(self, queue: _Queue, width: int, used: int, steps: int) -> None:
        self._queue, self._steps = queue, steps
        self.inputs: Integers = np.zeros(width, np.int64)
        self.times: Integers = np.zeros(width, np.int64)
        self._taken: Booleans = np.zeros(width, bool)
        self._free: Integers = np.arange(used)

    def fill(self) -> bool:
        """Give the free slots to the next inputs and return whether any slot is taken."""
        inputs = self._queue.take(len(self._free))
        slots, self._free = self._free[: len(inputs)], self._free[len(inputs) :]
        self.inputs[slots], self._taken[slots] = inputs, True
        return bool(self._taken.any())

    def begins(self) -> Integers:
        """The `begins` of `find_stops` for each slot; a slot that is not taken begins in
        every segment.
        """
        return np.where(self.times > 0, -1, self._queue.no_stop_before[self.inputs])

    def release(self, found: Integers) -> None:
        """After a segment, release the inputs that may stop, each at the end of its chunk."""
        queue, looks = self._queue, -found[:, 0]
        self.times[self._taken] += self._steps
        leaving = self._taken & (looks > 0)
        if queue.chunk > self._steps:
            entry = (found.shape[1] - 2) // LOOKS
            stops = found[np.arange(len(found)), 2 + (np.maximum(looks, 1) - 1) * entry]
            leaving &= self.times >= np.minimum(-(-stops // queue.chunk) * queue.chunk, queue.last)
        slots = np.flatnonzero(leaving)
        if len(slots):
            queue.released.append((self.inputs[slots], found[slots], self.times[slots]))
            self._free = np.concatenate([self._free, slots])
            self.times[slots], self._taken[slots] = 0, False


@final
class _SlotGroup:
    """Slots under a prefilter. kind: the dtypes of the inputs, an `InputKind`."""

    def __init__(
        self,
        members: SlotMembers,
        device: torch.device,
        shape: SlotShape,
        kind: tuple[Any, ...],
        prefilter: Callable[..., None],
    ) -> None:
        width, outputs = shape.width, (members.members, members.classes)
        self._prefilter, self._kind = prefilter, kind
        self._time = torch.zeros(width, dtype=torch.int32, device=device)
        self._counts = torch.zeros((width, *outputs), dtype=torch.int32, device=device)
        self._outcome = torch.zeros(
            (width, 2 + LOOKS * (1 + math.prod(outputs))), dtype=torch.int32, device=device
        )
        self._result = torch.zeros(
            self._outcome.shape, dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        self._blank = torch.zeros(
            math.prod(members.input_shape) + 2, dtype=torch.int64, device=device
        )
        self._slots = Slots(members, device, shape, self._load_frames, self._find_stops)

    def _load_frames(self, slots: Slots, frames: Tensor) -> None:
        # imported here since importing Triton is slow
        from agreestop.kernels.gpu.inputs import load_frames

        # while the graph is captured: the inputs are one frame of zeros
        if not slots.host_table[0]:
            slots.host_table[:] = (*[self._blank.data_ptr()] * 3, 1)
            slots.table.copy_(torch.from_numpy(slots.host_table))
        load_frames(self._kind, slots.table, slots.rows, slots.times, frames)

    def _find_stops(self, spikes: Tensor, begins: Tensor) -> None:
        self._prefilter(spikes, begins, self._time, self._counts, self._outcome)
        self._result.copy_(self._outcome, non_blocking=True)

    def start(
        self, source: DeviceInputs, assignment: _Assignment, behind: "_SlotGroup | None"
    ) -> None:
        """Start a segment on the inputs of the assignment, after the work of `behind`."""
        slots = self._slots
        slots.host_table[:] = source.table
        slots.host_rows[:], slots.host_times[:], slots.host_begins[:] = (
            assignment.inputs,
            assignment.times,
            assignment.begins(),
        )
        source.wait_for(int(assignment.inputs.max()), slots.stream)
        slots.start(None if behind is None else behind._slots)

    def finish(self) -> Integers:
        """Wait for the segment and return the outcome of the prefilter for each slot."""
        self._slots.wait()
        return self._result.numpy()


@final
class _LiveSlot:
    """One slot that runs one step at a time: one launch of a CUDA graph copies the step to the
    GPU, computes it, and copies counts back.
    """

    def __init__(self, members: SlotMembers, device: torch.device) -> None:
        shape, on_gpu = (members.members, members.classes), device.type == "cuda"
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._total = torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu)
        self.shape = members.input_shape
        self.real_input = members.real_input
        self.repeats = members.repeats
        self._frame = torch.zeros(
            self.shape, dtype=torch.float32 if self.real_input else torch.bool, pin_memory=on_gpu
        )
        dtype = torch.float16 if on_gpu and not self.real_input else torch.float32
        self._slot = Slots(
            members, device, SlotShape(1, 1, False, dtype), self._load_frame, self._count
        )

    def _load_frame(self, slots: Slots, frames: Tensor) -> None:
        frames[0, 0].copy_(self._frame.to(frames.device, non_blocking=True))

    def _count(self, spikes: Tensor, begins: Tensor) -> None:
        self._counts.masked_fill_(begins >= 0, 0)
        self._counts += spikes[0, :, 0].int()
        self._total.copy_(self._counts, non_blocking=True)

    def step(self, frame: NDArray[Any], begins: bool) -> Integers:
        """Run one step and return the spike counts (K, C) so far."""
        self._frame.numpy()[...] = frame
        self._slot.host_begins[:] = 0 if begins else -1
        self._slot.start()
        self._slot.wait()
        return self._total.numpy().astype(np.int64)


@final
class SlotLive:
    """One live input; its slot is reused when it is deleted."""

    def __init__(self, free: list[_LiveSlot], slot: _LiveSlot) -> None:
        self._free, self._slot, self._begins = free, slot, True

    def __del__(self) -> None:
        self._free.append(self._slot)

    def push(
        self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Run one step (see `protocol.Live`) and return the spike counts (K, C) so far."""
        slot = self._slot
        counts = slot.step(
            dense_step(events, frame, slot.shape, slot.real_input, slot.repeats), self._begins
        )
        self._begins = False
        return counts
