"""Kernels of a GPU recorded once and replayed: starting them one by one from Python can take longer than running them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_UPS = 3  # libraries choose algorithms and reserve memory in their first calls


def capture_cuda_graph(work: Callable[[], None], noise: torch.Generator | None = None, kept: Sequence[Tensor] = ()) -> Callable[[], None]:
    """What does the same as `work` when called: `work` is called a few times, its kernels are recorded, and then they alone are replayed.

    It must read and write memory at fixed places, and ask the host for nothing. noise: the generator it draws from, if any. kept: what it
    carries from call to call. Both are left as they were, so that results do not depend on when a recording was made.
    """
    drawn = None if noise is None else noise.get_state()
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
    with _kept_alive(), torch.cuda.graph(graph, stream=stream):
        work()
    if noise is not None and drawn is not None:
        noise.set_state(drawn)
    for value, was in zip(kept, before, strict=True):
        value.copy_(was)
    return graph.replay


@contextmanager
def _kept_alive() -> Iterator[None]:
    """Garbage waits: a recording that is thrown away while another is made would spoil that one."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
