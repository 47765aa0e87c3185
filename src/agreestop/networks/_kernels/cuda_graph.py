"""CUDA graphs: kernels are captured once and replayed, because starting them one by one from Python can take longer than running them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_UPS = 3  # libraries choose algorithms and reserve memory in their first calls


def capture_cuda_graph(work: Callable[[], None], noise: torch.Generator | None = None, kept: Sequence[Tensor] = ()) -> Callable[[], None]:
    """A function that replays the kernels of `work`. `work` is called a few times to warm up and to capture them.

    `work` must read and write memory at fixed addresses and must not wait for the device. noise: the generator that it draws from, if any.
    kept: tensors that it carries from call to call. Both are restored, so results do not depend on when the graph is captured.
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
