"""Inputs on their way from numpy to a device."""

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
    """The array on the device, of the same type; to a GPU through page-locked memory, so that the copy goes on while Python does."""
    source = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type != "cuda":
        return source.to(device)
    return _locked(source).to(device, non_blocking=True)


COPIERS, PARTS, WORTH_SHARING = 2, 2, 1 << 20
"""Threads that copy together at most, the parts of each, and the bytes that are worth it: one core does not copy at the speed of memory."""


def copy_rows(source: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Copy these rows of `source`."""

    def copy(_: int, first: int, last: int) -> None:
        source.take(rows[first:last], axis=0, out=out[first:last], mode="clip")

    parallel_for(copy, len(rows), _copiers(out.nbytes), PARTS)


def _locked(source: Tensor) -> Tensor:
    """In page-locked memory, from where a GPU copies by itself.

    PyTorch would copy with all its threads, which on a busy machine wait longer for one another than one takes.
    """
    locked = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    given, out = np.atleast_1d(source.numpy()), np.atleast_1d(locked.numpy())

    def copy(_: int, first: int, last: int) -> None:
        np.copyto(out[first:last], given[first:last])

    parallel_for(copy, len(out), _copiers(out.nbytes), PARTS)
    return locked


def _copiers(count: int) -> int:
    """Threads for so many bytes; half the cores are left to others."""
    return min(COPIERS, max(1, cores() // 2)) if count >= WORTH_SHARING else 1


@dataclass(frozen=True, eq=False)
class PendingUpload:
    """An array on its way."""

    there: Tensor
    event: Any

    def wait(self) -> Tensor:
        """The array, which whatever is computed from now on waits for."""
        if self.event is not None:
            current = torch.cuda.current_stream(self.there.device)
            current.wait_event(self.event)
            self.there.record_stream(current)
        return self.there


@final
class AsyncUpload:
    """Sends arrays to a device while that computes; what it sends is there once it is `received`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(self, source: Tensor) -> PendingUpload:
        """On its way from now on."""
        if self._stream is None:
            return PendingUpload(source.to(self._device), None)
        locked = _locked(source)
        with torch.cuda.stream(self._stream):
            there = locked.to(self._device, non_blocking=True)
            return PendingUpload(there, self._stream.record_event())


def as_floats(inputs: Tensor) -> Tensor:
    """Booleans as float16 on a GPU, which holds them exactly and multiplies fastest; all else as float32."""
    return inputs.to(torch.float16 if inputs.is_cuda and inputs.dtype == torch.bool else torch.float32)


def time_first(inputs: NDArray[Any], device: str) -> Tensor:
    """(n, T, ...) as numbers (T, n, ...) on the device."""
    if torch.device(device).type == "cpu":
        return torch.as_tensor(np.ascontiguousarray(np.moveaxis(inputs, 1, 0))).float()
    return as_floats(upload(inputs, device).transpose(0, 1))
