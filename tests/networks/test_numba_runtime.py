"""The runtime of the numba kernels: threads, the cache of compiled loops, and the memory pool."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agreestop.common import parallel_for
from agreestop.kernels.cpu import numba_runtime
from agreestop.networks import SRM, Neuron, srm
from tests.networks.plain import generator

numba = pytest.importorskip("numba")


def test_all_items_are_done_once_and_an_error_in_a_thread_is_raised() -> None:
    for items, count in ((0, 2), (1, 4), (7, 2), (100, 3)):
        done = torch.zeros(items, dtype=torch.int64)

        def work(thread: int, first: int, last: int, done: Tensor = done) -> None:
            done[first:last] += 1

        parallel_for(work, items, count)
        assert bool((done == 1).all())

    def fail(thread: int, first: int, last: int) -> None:
        raise ValueError("raised")

    with pytest.raises(ValueError, match="raised"):
        parallel_for(fail, 10, 2)


def test_single_threaded_leaves_the_threads_to_the_loops() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with (
            pytest.raises(ValueError, match="stop"),
            numba_runtime.single_threaded(),
            numba_runtime.single_threaded(),
        ):
            assert (
                torch.get_num_threads() == 1
                and numba_runtime.threads_for(1000, 10) == 2
                and numba_runtime.threads_for(5, 10) == 1
            )
            raise ValueError("stop")
        assert torch.get_num_threads() == 2 == numba_runtime.threads_for(1000, 10)
    finally:
        torch.set_num_threads(before)


def test_loops_compile_if_the_cache_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*arguments: Any) -> None:
        tried.append(arguments)
        raise OSError("no space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", refuse)
    assert (
        numba_runtime.jit("int64(int64)")(_double)(4) == 8 and numba_runtime.jit()(_double)(4) == 8
    )
    assert len(tried) == 2


def test_loops_compile_if_no_directory_is_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert (
        numba_runtime.jit("int64(int64)")(_double)(4) == 8 and numba_runtime.jit()(_double)(4) == 8
    )


HELPER = "from .numba_runtime import jit_inline\n@jit_inline\ndef helper(x):\n    return x + {}\n"
LOOP = (
    "from .helper import helper\nfrom .numba_runtime import jit\n@jit('int64(int64)')\ndef "
    "loop(x):\n    return 10 * helper(x)\n"
)


def test_a_change_in_another_file_discards_the_cached_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop contains a helper from another file. numba's own cache key knows only the file of
    the loop.
    """
    package = tmp_path / "copied_kernels"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "loop": LOOP,
        "numba_runtime": Path(numba_runtime.__file__).read_text(),
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))

    def loaded() -> Any:
        for name in [name for name in sys.modules if name.startswith("copied_kernels")]:
            monkeypatch.delitem(sys.modules, name)
        return import_module("copied_kernels.loop").loop

    (package / "helper.py").write_text(HELPER.format(1))
    assert loaded()(1) == 20
    again = loaded()
    assert again(1) == 20 and sum(again.stats.cache_hits.values()) == 1
    (package / "helper.py").write_text(HELPER.format(3))
    changed = loaded()
    assert changed(1) == 40 and not changed.stats.cache_hits


def _double(x: int) -> int:
    return 2 * x


def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numba_runtime.numba_available()
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not numba_runtime.numba_available.__wrapped__()


def test_large_arrays_are_ordinary_tensors() -> None:
    large = numba_runtime.empty((1 << 22, 3)).t()
    assert large.shape == (3, 1 << 22) and large.stride() == (1, 3) and large.dtype == torch.float32
    large.fill_(2.0)
    assert large.sum() == 6 * (1 << 22)


def test_a_block_of_memory_is_used_again_once_its_tensor_is_gone() -> None:
    memory, shape = numba_runtime.MemoryPool(), (3, 1 << 20)
    with numba_runtime.use_memory_pool(memory):
        first = numba_runtime.empty(shape[::-1]).t()
        assert first.shape == shape and first.stride() == (1, 3) and first.dtype == torch.float32
        second, small = numba_runtime.empty(shape), numba_runtime.empty((3, 5))
        first.fill_(1.0)
        second.fill_(2.0)
        address, part = first.data_ptr(), first[1:]
        del first
        third = numba_runtime.empty(shape)
        # a view still uses the first block
        assert len({address, second.data_ptr(), third.data_ptr()}) == 3 and (part == 1.0).all()
        del part
        # a smaller tensor may use the block
        assert numba_runtime.empty((2, 1 << 20)).data_ptr() == address
    del second
    assert small.data_ptr() not in (address, third.data_ptr())
    assert numba_runtime.empty(shape).data_ptr() != third.data_ptr()


def test_training_uses_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that the autograd graph of a step holds is not used again before the graph
    is gone.
    """
    monkeypatch.setattr(numba_runtime, "HUGE", 0)
    currents = torch.randn(7, 2, 5, 40, generator=generator(4), requires_grad=True)
    parameters = SRM(2, Neuron(threshold=0.4)).parameters_for(currents)

    def gradient() -> Tensor:
        spikes, _ = srm(currents, None, parameters)
        return torch.autograd.grad((spikes * torch.arange(40.0)).sum(), currents)[0]

    expected, memory = gradient(), numba_runtime.MemoryPool()
    with numba_runtime.use_memory_pool(memory):
        found = [gradient() for _ in range(3)]
    assert all(torch.equal(one, expected) for one in found)
    assert len({one.data_ptr() for one in found}) == 3
