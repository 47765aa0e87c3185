"""Inputs on their way to a GPU: a thread sends them piece by piece, in the order of the rows, while
the GPU computes on earlier ones.

Only what is not zero travels, where inputs are `Events`.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, final

import numpy as np
import torch

from agreestop.common import Integers
from agreestop.engines.devices import lock_in_memory, torch_dtype, upload
from agreestop.events.container import Events, Inputs

PIECE = 1 << 22  # bytes that are sent together, about


@cache
def _senders(process: int) -> ThreadPoolExecutor:
    """The thread that copies inputs to page-locked memory, one for each process: threads do not
    survive a fork.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="agreestop-upload")


def frames_dtype(inputs: Inputs, device: torch.device) -> torch.dtype:
    """float16 for booleans on a GPU: it holds 0 and 1 exactly and multiplies
    fastest. Else float32.
    """
    return torch.float16 if device.type == "cuda" and inputs.dtype == np.bool_ else torch.float32


@final
class DeviceInputs:
    """Inputs (n, T, ...) that `kernels.gpu.inputs` reads: `kind` are their dtypes, and
    `table` their addresses and T.

    stream: the stream of the copies, None without a GPU.
    """

    def __init__(self, inputs: Inputs, device: torch.device, stream: Any) -> None:
        # imported here since importing Triton is slow
        from agreestop.kernels.gpu.inputs import InputKind

        n, steps = inputs.shape[:2]
        self._stream = stream
        if isinstance(inputs, Events):
            inputs = inputs.in_memory()
            pointers, values = np.ascontiguousarray(inputs.pointers), inputs.values
            self._ends = pointers[:, -1]
            self._hosts = [inputs.indices] if values is None else [inputs.indices, values]
        else:
            pointers, cells = np.zeros(1, np.int64), int(np.prod(inputs.shape[1:]))
            self._ends = cells * np.arange(1, n + 1)
            self._hosts = [np.ascontiguousarray(inputs).reshape(-1)]
        with self._copying():
            self._pointers = upload(pointers, device)
            self._parts = [
                torch.empty(len(host), dtype=torch_dtype(host.dtype), device=device)
                for host in self._hosts
            ]
        types = [part.dtype for part in self._parts]
        self.kind = (
            InputKind(types[0], types[1] if len(types) == 2 else None)
            if isinstance(inputs, Events)
            else InputKind(None, types[0])
        )
        self.table: Integers = np.array(
            [
                self._parts[0].data_ptr(),
                self._pointers.data_ptr(),
                self._parts[-1].data_ptr(),
                steps,
            ]
        )
        together = PIECE // self._hosts[0].itemsize
        cuts = np.searchsorted(self._ends, np.arange(together, int(self._ends[-1]), together)) + 1
        self._stops = np.unique(np.append(cuts, n))
        """The rows at which the pieces end."""
        self._pieces = [
            _senders(os.getpid()).submit(self._send, piece) for piece in range(len(self._stops))
        ]

    def _copying(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _record(self) -> Any:
        return None if self._stream is None else self._stream.record_event()

    def wait_for(self, row: int, stream: Any) -> None:
        """Make the stream wait until this row has arrived."""
        arrived = self._pieces[int(np.searchsorted(self._stops, row, side="right"))].result()
        if stream is not None:
            stream.wait_event(arrived)

    def _send(self, piece: int) -> Any:
        """Send a piece, and give the event of its arrival."""
        first = int(self._ends[self._stops[piece - 1] - 1]) if piece else 0
        last = int(self._ends[self._stops[piece] - 1])
        with self._copying():
            for host, part in zip(self._hosts, self._parts, strict=True):
                part[first:last].copy_(lock_in_memory(host[first:last]), non_blocking=True)
        return self._record()
