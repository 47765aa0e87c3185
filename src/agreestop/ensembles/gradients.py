"""Losses and their gradients.

A training step is hundreds of short kernels: on a GPU it is captured as a CUDA graph and replayed.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from agreestop.engines.devices import AsyncUpload, capture_cuda_graph, upload

CALLS_BEFORE_CAPTURE = 3
"""Calls with the same shapes before a CUDA graph is captured."""
SMALL = 1 << 16
"""Up to this many bytes the driver copies by itself, without waiting for the device."""
KEPT = 2
"""CUDA graphs kept at most: each one holds the memory of a whole step."""


@final
class Gradients:
    """Calls `compute(*tensors, **settings)`, which computes the gradients of the parameters and
    returns figures; it is the same function in every call.

    On a GPU one CUDA graph is captured for each combination of tensor shapes and settings, and
    replayed from then on; the last two are kept. capture=False runs every call as it is. `compute`
    may draw from the generator `noise`, and may change the buffers of `model`. It is not kept: a
    method of the owner would hold graphs, and the memory of whole steps, until the next garbage
    collection.
    """

    def __init__(
        self,
        model: nn.Module,
        noise: torch.Generator,
        capture: bool = True,
    ) -> None:
        self._model, self._noise, self._capture = model, noise, capture
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _StepGraph] = {}

    def __call__(self, compute: Callable[..., Tensor], *tensors: Tensor, **settings: Any) -> Tensor:
        """The figures; the gradients are in the parameters."""
        device = self._parameters[0].device
        if device.type != "cuda" or not self._capture:
            return self._run(compute, *(value.to(device) for value in tensors), **settings)
        key = (*((value.shape, value.dtype) for value in tensors), *sorted(settings.items()))
        if key not in self._graphs:
            self._calls[key] = self._calls.get(key, 0) + 1
            uploaded = [value if value.is_cuda else upload(value, device) for value in tensors]
            if self._calls[key] <= CALLS_BEFORE_CAPTURE:
                return self._run(compute, *uploaded, **settings)
            while len(self._graphs) >= KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = _StepGraph(
                lambda *given: compute(*given, **settings),
                uploaded,
                self._parameters,
                list(self._model.buffers()),
                self._noise,
            )
        return self._graphs[key](tensors)

    def _run(self, compute: Callable[..., Tensor], *tensors: Tensor, **settings: Any) -> Tensor:
        for parameter in self._parameters:
            parameter.grad = None
        return compute(*tensors, **settings)


class _StepGraph:
    """One step as a CUDA graph, with the memory that it reads from and writes to."""

    def __init__(
        self,
        compute: Callable[..., Tensor],
        tensors: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        buffers: Sequence[Tensor],
        noise: torch.Generator,
    ) -> None:
        self._inputs, self._parameters = [value.clone() for value in tensors], parameters
        self._uploads = AsyncUpload(tensors[0].device)
        self._figures: Tensor | None = None

        def work() -> None:
            for parameter in parameters:
                parameter.grad = None
            self._figures = compute(*self._inputs)

        self._replay = capture_cuda_graph(work, noise, buffers)
        self._gradients = [parameter.grad for parameter in parameters]

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        for target, value in zip(self._inputs, tensors, strict=True):
            large = not value.is_cuda and value.nbytes > SMALL
            target.copy_(self._uploads.send(value).wait() if large else value, non_blocking=True)
        self._replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        assert self._figures is not None
        return self._figures.clone()
