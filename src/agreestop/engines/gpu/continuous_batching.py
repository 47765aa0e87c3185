"""Continuous batching for fully connected members on a GPU: as soon as an input stops, the next input takes its slot.

The slots form two groups. While one group computes, the host reads the results of the other and prepares its next frames. If one segment
takes all slots to their end and more inputs wait, each group has all the slots instead, and the GPU runs the groups in turn.

A segment is a number of steps with its copies to and from the GPU. It is captured once as a CUDA graph and replayed, since launching its
short kernels from Python would take longer than running them. The prefilter's kernel finds, for each slot, the first checkpoint at which
the rule may stop, and the counts there. `calibrated.step` then judges on the host. An input that it does not stop runs again, up to a
later checkpoint.

Without a GPU, as in tests, the same steps run without a CUDA graph.
"""

import math
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.common import Booleans, Integers
from agreestop.decide.confidence import log_softmax
from agreestop.decide.evidence import Stops
from agreestop.networks._kernels.gpu_runtime import capture_cuda_graph, copy_rows, to_input_dtype
from agreestop.networks.architectures import SpikingNetwork, State
from agreestop.networks.srm_core import SRMState

from ..inputs import dense_step
from ..prefilter import Prefilter
from ..protocol import Outcomes

SEGMENT_STEPS = 16  # the most steps of a segment where the caller names no chunk
FULL_LOAD = 2048  # inputs times steps that fill the GPU
MAX_LOAD = 16384  # the most inputs times steps that are computed together
KEPT_KINDS = 2  # groups of slots are kept ready for this many different kinds of calls
JUDGED_TOGETHER = 1024  # the rule judges at least this many inputs at once: for fewer, the call itself takes most of the time
SLACK = 2e-4  # the prefilter's margin: above the rounding error of float32 for log-risks near ten, and it grows with them
EPSILON = float(np.finfo(np.float32).eps)
FAR = 1e30  # no logarithm of a risk is as large


@final
class ContinuousBatching:
    """The members, and groups of slots for inputs like those of the last calls."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        self._network, self._device = network, device
        self._kept: list[tuple[Any, list[_SlotGroup]]] = []
        self._free_live: list[_LiveSlot] = []
        self._lock = Lock()  # only one call at a time may use the slots

    def decide(self, inputs: NDArray[Any], prefilter: Prefilter, slots: int, chunk: int | None) -> Outcomes:
        """Decide on inputs (n, T, ...), at most `slots` of them computed together; `chunk` is that of `decide_early`."""
        with self._lock:
            try:
                return self._run(inputs, prefilter, slots, chunk)
            except BaseException:
                self._release_groups()
                raise

    def _run(self, inputs: NDArray[Any], prefilter: Prefilter, slots: int, chunk: int | None) -> Outcomes:
        chunk = None if chunk is None else min(chunk, int(prefilter.calibrated.checkpoints[-1]))
        queue = _Queue(prefilter, inputs.shape[:2], self._network.config.classes, chunk or 1)
        count = min(slots, len(inputs))
        in_turn = len(inputs) > count and _segment_steps(_width(count), chunk) >= queue.last
        shares = (count, count) if in_turn else (-(-count // 2), count // 2)
        width = _width(shares[0])
        steps = min(queue.last, _segment_steps(width, chunk))
        groups = self._groups_for(prefilter, width, steps, torch.from_numpy(np.empty(0, inputs.dtype)).dtype)
        stretch = steps if inputs.shape[1] % steps == 0 else 1
        frames = inputs.reshape(len(inputs) * inputs.shape[1] // stretch, -1)
        idle = [(group, _Assignment(queue, width, used, steps, stretch)) for group, used in zip(groups, shares, strict=True) if used]
        busy: deque[tuple[_SlotGroup, _Assignment]] = deque()
        while True:
            for group, assignment in tuple(idle):
                if assignment.fill():
                    behind = busy[-1][0] if in_turn and busy else None
                    group.start(frames, assignment.frame_rows(), assignment.begins(), behind)
                    idle.remove((group, assignment))
                    busy.append((group, assignment))
            queue.judge(JUDGED_TOGETHER if busy else 1)
            if busy:
                group, assignment = busy.popleft()
                assignment.release(group.finish())
                idle.append((group, assignment))
            elif not len(queue.waiting):
                return queue.outcomes

    def _release_groups(self) -> None:
        """Drop all groups, once nothing runs on them."""
        for group in (group for _, groups in self._kept for group in groups):
            group.finish()
        self._kept.clear()

    def _groups_for(self, prefilter: Prefilter, width: int, steps: int, dtype: torch.dtype) -> "list[_SlotGroup]":
        """Two groups of this width; those of an earlier call of the same kind if they are still kept."""
        key = (prefilter.calibrated.rule, prefilter.calibrated.policy, width, steps, dtype)
        found = next((position for position, (known, _) in enumerate(self._kept) if known == key), None)
        if found is not None:
            self._kept.append(self._kept.pop(found))
        else:
            del self._kept[: max(0, len(self._kept) + 1 - KEPT_KINDS)]
            on_gpu = GpuPrefilter(prefilter, self._network.config.classes, steps, self._device)
            groups = [_SlotGroup(self._network, self._device, width, steps, dtype, on_gpu) for _ in range(2)]
            self._kept.append((key, groups))
        return self._kept[-1][1]

    def live(self) -> "SlotLive":
        """Start on one live input."""
        return SlotLive(self._free_live, self._free_live.pop() if self._free_live else _LiveSlot(self._network, self._device))


def _width(slots: int) -> int:
    """The width of a group: a power of two, so that one CUDA graph serves other numbers of inputs too."""
    return 1 << max(2, math.ceil(math.log2(slots)))


def _segment_steps(width: int, chunk: int | None) -> int:
    """The steps of a segment for this width: enough to fill the GPU, or the largest divisor of the chunk that the GPU takes at once."""
    if chunk is None:
        return max(1, min(SEGMENT_STEPS, FULL_LOAD // width))
    return next(steps for steps in range(max(1, min(chunk, MAX_LOAD // width)), 0, -1) if chunk % steps == 0)


class GpuPrefilter:
    """The tables of a prefilter on a GPU, in float32, with one entry for each step up to `beyond` steps after the last checkpoint.

    No row may stop between checkpoints, and every row may stop at the last one.
    """

    def __init__(self, prefilter: Prefilter, classes: int, beyond: int, device: torch.device) -> None:
        steps = np.array(prefilter.calibrated.checkpoints, dtype=np.int64)
        bounds, temperatures = np.full(steps[-1] + beyond, -FAR), np.ones(steps[-1] + beyond)
        bounds[steps - 1] = np.clip(prefilter.bounds_with_margin(SLACK, classes, EPSILON), -FAR, FAR)
        bounds[steps[-1] - 1] = FAR
        temperatures[steps - 1] = prefilter.temperatures
        self._tables = [torch.tensor(values, dtype=torch.float32, device=device) for values in (temperatures, bounds)]
        self._exponent, self._size = float(prefilter.exponent), min(prefilter.max_set_size, classes)

    def __call__(self, spikes: Tensor, begins: Tensor, time: Tensor, counts: Tensor, outcome: Tensor) -> None:
        from agreestop.networks._kernels.triton_kernels import find_first_stops  # imported here since Triton takes long to load

        find_first_stops(spikes, begins, time, counts, outcome, self._tables, self._exponent, self._size)


class _Queue:
    """Inputs (count, length, ...) that wait for a slot, and the outcomes of the others."""

    def __init__(self, prefilter: Prefilter, shape: tuple[int, ...], classes: int, chunk: int) -> None:
        (count, self.length), self.chunk, self._calibrated = shape, chunk, prefilter.calibrated
        self._times = np.array(prefilter.calibrated.checkpoints, dtype=np.int64)
        self.last = int(self._times[-1])
        self.waiting: Integers = np.arange(count)
        self.no_stop_before: Integers = np.zeros(count, np.int64)
        """For each input, the number of first steps in which it is known not to stop."""
        self.outcomes = Outcomes(Stops.empty(count, classes), np.zeros(count, np.int64), np.zeros(count, np.int64))
        self.released: list[tuple[Integers, Integers, Integers]] = []
        """Inputs that have left their slots, with the results of the prefilter (see `find_first_stops`) and the steps that they ran."""

    def take(self, count: int) -> Integers:
        """The next `count` inputs, or all that wait if there are fewer."""
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def judge(self, least: int) -> None:
        """Judge the released inputs if there are at least `least`; those that the rule does not stop wait again."""
        if sum(len(inputs) for inputs, _, _ in self.released) < least:
            return
        inputs, found, computed = (np.concatenate(part) for part in zip(*self.released, strict=True))
        self.released.clear()
        outcomes, calibrated = self.outcomes, self._calibrated
        steps = np.minimum(computed, self.last)
        outcomes.computed[inputs] += steps
        outcomes.work[inputs] += calibrated.members * steps
        index = np.searchsorted(self._times, found[:, 0])
        counts = found[:, 1:].reshape(len(inputs), -1, outcomes.stops.sets.shape[1])
        verdict = calibrated.step(index, log_softmax(counts.astype(np.float64)), calibrated.start(len(inputs)))
        outcomes.stops.put(inputs, index, verdict)
        again = inputs[~verdict.stop]
        self.no_stop_before[again] = found[~verdict.stop, 0]
        self.waiting = np.concatenate([again, self.waiting])


class _Assignment:
    """The inputs in the slots of a group, and the steps that each has run. Only the first `used` slots are used.

    A segment has `steps` steps. Frames are copied in stretches of `stretch` steps, which divides `steps`.
    """

    def __init__(self, queue: _Queue, width: int, used: int, steps: int, stretch: int) -> None:
        self._queue, self._steps, self._stretch = queue, steps, stretch
        self._stretches = np.arange(steps // stretch)
        self._input: Integers = np.zeros(width, np.int64)
        self._time: Integers = np.zeros(width, np.int64)
        self._taken: Booleans = np.zeros(width, bool)
        self._free: Integers = np.arange(used)

    def fill(self) -> bool:
        """Give the free slots to the next inputs and return whether any slot is taken."""
        inputs = self._queue.take(len(self._free))
        slots, self._free = self._free[: len(inputs)], self._free[len(inputs) :]
        self._input[slots], self._taken[slots] = inputs, True
        return bool(self._taken.any())

    def begins(self) -> Integers:
        """The `begins` of `find_first_stops` for each slot; a slot that is not taken begins in every segment."""
        return np.where(self._time > 0, -1, self._queue.no_stop_before[self._input])

    def frame_rows(self) -> Integers:
        """The stretches of frames for the next segment, slot after slot; after the end of an input its last one is repeated."""
        length = self._queue.length // self._stretch
        stretches = np.minimum(self._time[:, None] // self._stretch + self._stretches, length - 1)
        return (self._input[:, None] * length + stretches).ravel()

    def release(self, found: Integers) -> None:
        """After a segment, release the inputs that may stop, each at the end of its chunk."""
        queue, stops = self._queue, found[:, 0]
        self._time[self._taken] += self._steps
        leaving = self._taken & (stops > 0)
        if queue.chunk > self._steps:
            leaving &= self._time >= np.minimum(-(-stops // queue.chunk) * queue.chunk, queue.last)
        slots = np.flatnonzero(leaving)
        if len(slots):
            queue.released.append((self._input[slots], found[slots], self._time[slots]))
            self._free = np.concatenate([self._free, slots])
            self._time[slots], self._taken[slots] = 0, False


@final
class _Slots:
    """The state of `width` inputs at fixed memory addresses, and one segment of steps from frames to spikes.

    The host writes `frames` (width, steps, ...) and `begins` (width,) while nothing runs. A slot continues where `begins` is -1 and starts
    from zero where it is another number. `after(spikes, begins)` receives the read-out spikes (steps, K, width, C) of the segment.
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
        self._host_frames = torch.zeros((width, steps, *shape), dtype=dtype, pin_memory=on_gpu)
        self._host_begins = torch.zeros(width, dtype=torch.int32, pin_memory=on_gpu)
        self.frames, self.begins = self._host_frames.numpy(), self._host_begins.numpy()
        self._frames, self._begins = self._host_frames.to(device), self._host_begins.to(device)
        self._floats = to_input_dtype(self._frames.transpose(0, 1)).contiguous()
        layers = network(torch.zeros((1, width, *shape), device=device))[1].layers
        self._memory = [torch.stack(layer) for layer in layers]
        self._state = State(tuple(SRMState(*memory) for memory in self._memory), 0)
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._replay = self._captured() if on_gpu else self._segment

    @torch.inference_mode()
    def _segment(self) -> None:
        self._frames.copy_(self._host_frames, non_blocking=True)
        self._begins.copy_(self._host_begins, non_blocking=True)
        fresh = (self._begins >= 0)[:, None]
        for memory in self._memory:
            memory.masked_fill_(fresh, 0)
        spikes, after = self._network(self._floats.copy_(self._frames.transpose(0, 1)), self._state)
        torch._foreach_copy_([part for layer in self._state.layers for part in layer], [part for layer in after.layers for part in layer])
        self._after(spikes, self._begins)

    def _captured(self) -> Callable[[], None]:
        """The segment as a CUDA graph. The capture changes the state, so every slot must begin in the first segment."""
        self._stream.wait_stream(torch.cuda.current_stream(self._frames.device))
        with torch.cuda.stream(self._stream):
            return capture_cuda_graph(self._segment)

    def start(self, behind: "_Slots | None" = None) -> None:
        """Start a segment, after the work of `behind` if that is given."""
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
        """Wait until the segment is done."""
        if self._stream is not None:
            self._stream.synchronize()


@final
class _SlotGroup:
    """Slots under a prefilter."""

    def __init__(
        self, network: SpikingNetwork, device: torch.device, width: int, steps: int, dtype: torch.dtype, prefilter: Callable[..., None]
    ) -> None:
        members, classes = network.config.members, network.config.classes
        self._prefilter = prefilter
        self._time = torch.zeros(width, dtype=torch.int32, device=device)
        self._counts = torch.zeros((width, members, classes), dtype=torch.int32, device=device)
        self._outcome = torch.zeros((width, 1 + members * classes), dtype=torch.int32, device=device)
        self._result = torch.zeros(self._outcome.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._slots = _Slots(network, device, width, steps, dtype, self._find_stops)

    def _find_stops(self, spikes: Tensor, begins: Tensor) -> None:
        self._prefilter(spikes, begins, self._time, self._counts, self._outcome)
        self._result.copy_(self._outcome, non_blocking=True)

    def start(self, frames: NDArray[Any], rows: Integers, begins: Integers, behind: "_SlotGroup | None") -> None:
        """Start a segment on these rows of the frames, after the work of `behind`."""
        copy_rows(frames, rows, self._slots.frames.reshape(len(rows), -1))
        self._slots.begins[:] = begins
        self._slots.start(None if behind is None else behind._slots)

    def finish(self) -> Integers:
        """Wait for the segment and return the outcome of the prefilter for each slot."""
        self._slots.wait()
        return self._result.numpy()


@final
class _LiveSlot:
    """One slot that runs one step at a time."""

    def __init__(self, network: SpikingNetwork, device: torch.device) -> None:
        shape = (network.config.members, network.config.classes)
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._total = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.shape, self.real_input = network.input_shape, network.real_input
        dtype = torch.float32 if self.real_input else torch.bool
        self._slot = _Slots(network, device, 1, 1, dtype, self._count)

    def _count(self, spikes: Tensor, begins: Tensor) -> None:
        self._counts.masked_fill_(begins >= 0, 0)
        self._counts += spikes[0, :, 0].int()
        self._total.copy_(self._counts, non_blocking=True)

    def step(self, frame: NDArray[Any], begins: bool) -> Integers:
        """Run one step and return the spike counts (K, C) so far."""
        self._slot.frames[0, 0] = frame
        self._slot.begins[:] = 0 if begins else -1
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

    def push(self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None) -> NDArray[Any]:
        """Run one step (see `protocol.Live`) and return the spike counts (K, C) so far."""
        counts = self._slot.step(dense_step(events, frame, self._slot.shape, self._slot.real_input), self._begins)
        self._begins = False
        return counts
