"""The runtime of the numba kernels: decorators that compile loops, the number of threads that run
them, and memory that they fill.

numba is optional. If it is missing, or does not support the installed numpy, PyTorch's operators do
the same work.

Compiled loops are cached on disk: in NUMBA_CACHE_DIR if it is set, else next to the source file,
else in the user's cache directory. If none of them is writable, each process compiles the loops
again. numba discards a cached loop when the file of the loop changes. Loops also contain functions
from other files of this package, so the cache key here depends on all of its source files.
"""

import inspect
import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any, final
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HUGE_PAGE, HUGE = 1 << 21, 1 << 22
"""Bytes of a huge page, and bytes from which a tensor lies on huge pages.

The C library returns large blocks to the system each time.
"""

_memory: "ContextVar[MemoryPool | None]" = ContextVar("the pool of `use_memory_pool`", default=None)
_threads: ContextVar[int | None] = ContextVar(
    "the number of threads that loops use within `single_threaded`", default=None
)
Loop = Callable[..., Any]


# ---- compilation


@cache
def numba_available() -> bool:
    """Whether loops can be compiled here."""
    try:
        numba, *_ = (import_module(part) for part in ("numba", "numba.core.cgutils", "llvmlite.ir"))
    except ImportError:  # missing, refuses this numpy, or has no such inner parts any more
        return False
    return not numba.config.DISABLE_JIT


def _njit(function: Callable[..., Any], **options: Any) -> Any:
    """Compile without the GIL and without a check for division by zero."""
    import numba

    return numba.njit(nogil=True, error_model="numpy", **options)(function)


def jit(*signatures: str) -> Callable[[Loop], Loop]:
    """Compile a loop for these types at once, or at its first call if no types are given, and
    cache it on disk if possible.
    """

    def decorate(function: Loop) -> Loop:
        dispatcher = _njit(function)
        # numba finds no directory that it can write to, or its cache works otherwise by now
        with suppress(RuntimeError, ImportError, AttributeError, TypeError):
            dispatcher._cache = _cache_class()(function)
        for signature in signatures:
            dispatcher.compile(signature)
        if signatures:
            dispatcher.disable_compile()
        return dispatcher

    return decorate


jit_uncached = _njit
"""Compile a function once for all loops that call it. It is cached as part of these loops."""
jit_inline = partial(_njit, forceinline=True)
"""Compile a function into each loop that calls it."""
jit_template = partial(_njit, inline="always")
"""Copy a function into its callers before types are inferred, so a literal argument stays a
constant there.
"""


def emits(signature_of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that loops can call from one that writes LLVM instructions, `(builder,
    context, signature, *values) -> value`.

    signature_of gives the numba signature for the types of the arguments. The type of a literal
    argument has its `literal_value`.
    """
    from numba.extending import intrinsic

    def decorate(emit: Callable[..., Any]) -> Any:
        def typing(_: Any, *arguments: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                value = emit(builder, context, signature, *values)
                return context.get_dummy_value() if value is None else value

            return signature_of(*arguments), generate

        types = (
            Parameter("_", Parameter.POSITIONAL_OR_KEYWORD),
            *inspect.signature(signature_of).parameters.values(),
        )
        typing.__signature__ = inspect.Signature(types)  # type: ignore[attr-defined]
        typing.__name__ = typing.__qualname__ = emit.__name__
        return intrinsic(prefer_literal=True)(typing)

    return decorate


@cache
def _cache_class() -> Any:
    from numba.core import caching

    class KernelCache(caching.FunctionCache):  # type: ignore[misc]
        """numba's cache of one loop, with a key that depends on all files of this package.

        A failed read or write is ignored.
        """

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            stamp = (self._impl.locator.get_source_stamp(), source_digest())
            self._cache_file = caching.IndexDataCacheFile(
                self.cache_path, self._impl.filename_base, stamp
            )

        def load_overload(self, *arguments: Any) -> Any:
            with suppress(OSError):
                return super().load_overload(*arguments)

        def save_overload(self, *arguments: Any) -> None:
            with suppress(OSError):
                super().save_overload(*arguments)

    return KernelCache


@cache
def source_digest() -> str:
    """SHA-256 of the names and contents of the Python files next to this one."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


# ---- threads


def threads_for(work: int, work_per_thread: int) -> int:
    """The number of threads for this amount of work: at most PyTorch's number, or its number
    outside `single_threaded`.
    """
    return min(_threads.get() or torch.get_num_threads(), 1 + work // work_per_thread)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within this context PyTorch's operators use one thread, and the loops as many as PyTorch had
    before. For work mainly in loops.

    After each operator PyTorch's threads spin for milliseconds on cores that the loops could use.
    And an operator ends with its slowest thread, which on a busy machine may wait for a core longer
    than the whole operator takes.
    """
    before = torch.get_num_threads()
    token = _threads.set(_threads.get() or before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.reset(token)


# ---- memory


def empty(shape: Sequence[int]) -> Tensor:
    """An empty, contiguous float32 tensor.

    A large one lies in the current memory pool, or in new memory.
    """
    return (
        (_memory.get() or MemoryPool()).lend(shape)
        if 4 * math.prod(shape) >= HUGE
        else torch.empty(shape)
    )


def memory_of(values: Tensor) -> NDArray[np.float32]:
    """The memory of a contiguous float32 tensor."""
    return values.detach().view(-1).numpy()


@final
class MemoryPool:
    """Blocks of memory for large tensors.

    A block is used again once its tensor is gone. All are freed with the pool.

    Blocks lie on huge pages if the system offers them: mapping small pages takes as long as the
    work that fills them.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def lend(self, shape: Sequence[int]) -> Tensor:
        """An empty, contiguous float32 tensor."""
        size = 4 * math.prod(shape)
        block = min((block for block in self._free if len(block) >= size), key=len, default=None)
        if block is None:
            block = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # if refused, small pages work too
                    block.madvise(mmap.MADV_HUGEPAGE)
        else:
            self._free.remove(block)
        array: NDArray[np.float32] = np.ndarray(shape, np.float32, block)
        finalize(array, self._free.append, block).atexit = False
        return torch.from_numpy(array)


@contextmanager
def use_memory_pool(memory: MemoryPool) -> Iterator[None]:
    """Within this context the loops fill tensors from this pool."""
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)
