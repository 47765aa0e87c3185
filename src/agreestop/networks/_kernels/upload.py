"""Copies of inputs from numpy to a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreestop.common.cores import cores

from .numba_runtime import parallel_for


def upload(array: Tensor | NDArray[Any], device: torch.device | str) -> Tensor:
    """Copy an array to a device. The copy to a GPU goes through page-locked memory, and Python continues meanwhile."""
    source = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    return _locked(source).to(device, non_blocking=True) if torch.device(device).type == "cuda" else source.to(device)


COPIERS, CHUNKS, WORTH_SHARING = 2, 2, 1 << 20
"""Threads that copy together, chunks per thread, and bytes from which it pays: one core does not copy at the speed of memory."""


def copy_rows(source: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Copy these rows of `source` into `out`."""

    def copy(_: int, first: int, last: int) -> None:
        source.take(rows[first:last], axis=0, out=out[first:last], mode="clip")

    parallel_for(copy, len(rows), _copiers(out.nbytes), CHUNKS)


def _locked(source: Tensor) -> Tensor:
    """A copy in page-locked memory, which a GPU reads by itself.

    PyTorch would copy with all its threads. On a busy machine they wait for one another longer than one thread takes.
    """
    locked = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    given, out = np.atleast_1d(source.numpy()), np.atleast_1d(locked.numpy())

    def copy(_: int, first: int, last: int) -> None:
        np.copyto(out[first:last], given[first:last])

    parallel_for(copy, len(out), _copiers(out.nbytes), CHUNKS)
    return locked


def _copiers(count: int) -> int:
    """The number of threads that copy this many bytes; at most half of the cores."""
    return min(COPIERS, max(1, cores() // 2)) if count >= WORTH_SHARING else 1


@dataclass(frozen=True, eq=False)
class PendingUpload:
    """A copy that may not be finished."""

    values: Tensor
    event: Any

    def wait(self) -> Tensor:
        """The tensor on the device. Kernels that are started from now on wait for it; Python does not."""
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
        locked = _locked(source)
        with torch.cuda.stream(self._stream):
            return PendingUpload(locked.to(self._device, non_blocking=True), self._stream.record_event())


def as_floats(inputs: Tensor) -> Tensor:
    """Convert to float32; booleans on a GPU to float16, which holds them exactly and multiplies fastest."""
    return inputs.to(torch.float16 if inputs.is_cuda and inputs.dtype == torch.bool else torch.float32)


def time_first(inputs: NDArray[Any], device: str) -> Tensor:
    """Inputs (n, T, ...) as floats (T, n, ...) on the device."""
    if torch.device(device).type == "cpu":
        return torch.as_tensor(np.ascontiguousarray(np.moveaxis(inputs, 1, 0))).float()
    return as_floats(upload(inputs, device).transpose(0, 1))
