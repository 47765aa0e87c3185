"""What the operators for the CPU share: loops that numba compiles, threads to run them, and memory for what they fill.

numba is not needed: where it is missing, or does not go with the installed numpy, the operators of PyTorch do the same work.
A loop is compiled once for a machine and kept on disk: next to its file, else in the user's cache, or in NUMBA_CACHE_DIR where that is
set; where none of them can be written it is compiled again by each process.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, final
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PARTS = 4  # of a thread, so that one that others hold up does not hold up all
HUGE_PAGE, HUGE = 1 << 21, 1 << 22
"""Bytes of a huge page, and of an array that is worth some: the C library gives large ones back to the system and asks for them anew."""

_memory: ContextVar[MemoryPool | None] = ContextVar("memory that `use_memory_pool` lends", default=None)
_left: ContextVar[int | None] = ContextVar("threads that `single_threaded` left to the loops", default=None)


@cache
def numba_available() -> bool:
    """Whether loops can be compiled here."""
    try:
        import numba
    except ImportError:  # missing, or it refuses this numpy
        return False
    return not numba.config.DISABLE_JIT


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a loop for those types, to run without Python's lock; at once, so that a cache that cannot be written is noticed here."""
    import numba

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        settings = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(signature, cache=True, **settings)(function)
        except (OSError, RuntimeError):  # no place for the cache, or no room in it
            return numba.njit(signature, **settings)(function)

    return decorate


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a piece into each loop that calls it; in the file of the loop, whose changes alone renew the cache."""
    import numba

    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)


def instruction(function: Callable[..., Any]) -> Any:
    """What numba has no name for, given as the code that LLVM is to make of it."""
    from numba.extending import intrinsic

    return intrinsic(function)


def threads_for(work: int, worth_a_thread: int) -> int:
    """How many threads the work is worth, of those that PyTorch may use, or could before `single_threaded`."""
    return min(_left.get() or torch.get_num_threads(), 1 + work // worth_a_thread)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within it PyTorch's operators take one thread, and the loops as many as PyTorch had; for work that is done in loops for the most.

    PyTorch's threads wait by spinning for milliseconds after each of its operators, on cores that the loops could use; and an operator
    ends with its slowest thread, which on a machine with other work may wait longer for a core than the whole operator takes.
    """
    before = torch.get_num_threads()
    token = _left.set(_left.get() or before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _left.reset(token)


def parallel_for(work: Callable[[int, int, int], None], items: int, threads: int, parts: int = PARTS) -> None:
    """Call work(thread, first, last) until all items are done, in `threads` threads of which this is one, with so many parts for each.

    Which thread takes which items is left to chance, so work must not let a result depend on it.
    """
    threads = max(1, min(threads, items))
    if threads == 1:
        return work(0, 0, items)
    size = -(-items // (parts * threads))
    firsts = iter(range(0, items, size))

    def take(thread: int) -> None:
        for first in firsts:
            work(thread, first, min(first + size, items))

    others = [_pool(os.getpid(), threads).submit(take, thread) for thread in range(1, threads)]
    try:
        take(0)
    finally:
        for other in others:
            if not other.cancel():  # one that has not begun by now has nothing left to do
                other.result()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Kept, since starting a thread takes as long as a small layer; a forked process has none of its parent's threads."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="agreestop")


def empty(shape: Sequence[int], strides: Sequence[int] | None = None) -> Tensor:
    """An empty, dense float32 tensor; a large one in the memory of `use_memory_pool`, or in some of its own."""
    if 4 * math.prod(shape) >= HUGE:
        return (_memory.get() or MemoryPool()).lend(shape, strides)
    return torch.empty(shape) if strides is None else torch.empty_strided(shape, strides)


@final
class MemoryPool:
    """Blocks of memory for large tensors. One that nobody holds any more is lent again, and all are given back with this.

    They lie on huge pages, where the system has some: to be given small ones takes as long as the work that fills them.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def lend(self, shape: Sequence[int], strides: Sequence[int] | None) -> Tensor:
        """An empty, dense float32 tensor."""
        size = 4 * math.prod(shape)
        block = min((block for block in self._free if len(block) >= size), key=len, default=None)
        if block is None:
            block = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a refusal leaves the small pages
                    block.madvise(mmap.MADV_HUGEPAGE)
        else:
            self._free.remove(block)
        array: NDArray[np.float32] = np.ndarray(shape, np.float32, block, 0, None if strides is None else [4 * step for step in strides])
        finalize(array, self._free.append, block).atexit = False
        return torch.from_numpy(array)


@contextmanager
def use_memory_pool(memory: MemoryPool) -> Iterator[None]:
    """Within it the loops fill tensors in this memory."""
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)
