"""The devices on which networks run: copies of inputs, and CUDA graphs."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreestop.common import cores, parallel_for

COPIERS, CHUNKS, WORTH_SHARING = 8, 2, 1 << 20
"""Threads that copy together, chunks per thread, and bytes from which it pays: one core does not
copy at the speed of memory.
"""
# calls before a CUDA graph is captured: libraries choose algorithms and reserve memory in
# their first calls
WARM_UPS = 3


def upload(array: Tensor | NDArray[Any], device: torch.device | str) -> Tensor:
    """Copy an array to a device.

    The copy to a GPU goes through page-locked memory, and Python continues meanwhile.
    """
    if torch.device(device).type == "cuda":
        return lock_in_memory(array.numpy() if isinstance(array, Tensor) else array).to(
            device, non_blocking=True
        )
    return (
        array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    ).to(device)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The same dtype in PyTorch."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def lock_in_memory(source: NDArray[Any]) -> Tensor:
    """A copy in page-locked memory, which a GPU reads by itself. Without a GPU, a plain copy.

    PyTorch would copy with all its threads. On a busy machine they wait for one another longer than
    one thread takes.
    """
    locked = torch.empty(
        source.shape, dtype=torch_dtype(source.dtype), pin_memory=torch.cuda.is_available()
    )
    given, out = np.atleast_1d(source), np.atleast_1d(locked.numpy())

    def copy(_: int, first: int, last: int) -> None:
        np.copyto(out[first:last], given[first:last])

    parallel_for(copy, len(out), _copiers(out.nbytes), CHUNKS)
    return locked


def _copiers(count: int) -> int:
    """The number of threads that copy this many bytes; at most half of the cores."""
    return min(COPIERS, max(1, cores() // 2)) if count >= WORTH_SHARING else 1


class PendingUpload(NamedTuple):
    """A copy that may not be finished."""

    values: Tensor
    event: Any

    def wait(self) -> Tensor:
        """The tensor on the device.

        Kernels that are started from now on wait for it; Python does not.
        """
        if self.event is not None:
            current = torch.cuda.current_stream(self.values.device)
            current.wait_event(self.event)
            self.values.record_stream(current)
        return self.values


@final
class AsyncUpload:
    """Copies tensors to a device while the device computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(self, source: Tensor) -> PendingUpload:
        """Start the copy."""
        if self._stream is None:
            return PendingUpload(source.to(self._device), None)
        locked = lock_in_memory(source.numpy())
        with torch.cuda.stream(self._stream):
            return PendingUpload(
                locked.to(self._device, non_blocking=True), self._stream.record_event()
            )


def to_input_dtype(inputs: Tensor) -> Tensor:
    """Convert to float32; booleans on a GPU to float16, which holds them exactly and
    multiplies fastest.
    """
    return inputs.to(
        torch.float16 if inputs.is_cuda and inputs.dtype == torch.bool else torch.float32
    )


# ---- CUDA graphs


def capture_cuda_graph(
    work: Callable[[], None], noise: torch.Generator | None = None, kept: Sequence[Tensor] = ()
) -> Callable[[], None]:
    """A function that replays the kernels of `work`, because starting them one by one from Python
    can take longer than running them.

    `work` is called a few times to warm up and to capture them. It must read and write memory at
    fixed addresses and must not wait for the device. noise: the generator that it draws from, if
    any. kept: tensors that it carries from call to call. Both are restored, so results do not
    depend on when the graph is captured.
    """
    noise_before = None if noise is None else noise.get_state()
    before = [value.clone() for value in kept]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    if noise is not None:
        graph.register_generator_state(noise)
    with _no_garbage_collection(), torch.cuda.graph(graph, stream=stream):
        work()
    if noise is not None and noise_before is not None:
        noise.set_state(noise_before)
    for value, old in zip(kept, before, strict=True):
        value.copy_(old)
    return graph.replay


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collecting another CUDA graph during a capture would make the capture invalid."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
