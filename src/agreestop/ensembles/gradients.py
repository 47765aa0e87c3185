"""Losses and their gradients, recorded on a GPU: a training step is hundreds of short kernels, and starting them takes the longest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from agreestop.networks._kernels.cuda_graph import capture_cuda_graph
from agreestop.networks._kernels.upload import AsyncUpload, upload

WORTH_RECORDING = 3
"""Calls alike before a recording is made."""
SMALL = 1 << 16
"""Bytes up to which the driver keeps a copy by itself, without waiting for the device."""
KEPT = 2
"""Recordings kept at most: each holds on to the memory of a step."""


class Model(Protocol):
    """What has parameters and buffers."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...


@final
class Gradients:
    """Calls `compute(*tensors, **settings)`, which computes the parameters' gradients from nothing and returns figures.

    On a GPU the kernels of tensors of the same shapes, and of the same settings, are recorded once and then replayed. `noise` is the
    generator that `compute` draws from; it may move the buffers of `model`. The last two kinds of calls are kept.
    """

    def __init__(self, compute: Callable[..., Tensor], model: Model, noise: torch.Generator) -> None:
        self._compute, self._model, self._noise = compute, model, noise
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        self._seen: dict[Hashable, int] = {}
        self._recorded: dict[Hashable, _Recording] = {}

    def __call__(self, *tensors: Tensor, **settings: Any) -> Tensor:
        """The figures; gradients lie in the parameters."""
        device = self._parameters[0].device
        if device.type != "cuda":
            return self._anew(*tensors, **settings)
        key = (*((value.shape, value.dtype) for value in tensors), *sorted(settings.items()))
        if key not in self._recorded:
            self._seen[key] = self._seen.get(key, 0) + 1
            there = [value if value.is_cuda else upload(value, device) for value in tensors]
            if self._seen[key] <= WORTH_RECORDING:
                return self._anew(*there, **settings)
            while len(self._recorded) >= KEPT:
                self._recorded.pop(next(iter(self._recorded)))
            self._recorded[key] = _Recording(
                lambda *given: self._compute(*given, **settings), there, self._parameters, list(self._model.buffers()), self._noise
            )
        return self._recorded[key](tensors)

    def _anew(self, *tensors: Tensor, **settings: Any) -> Tensor:
        for parameter in self._parameters:
            parameter.grad = None
        return self._compute(*tensors, **settings)


class _Recording:
    def __init__(
        self,
        compute: Callable[..., Tensor],
        tensors: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        buffers: Sequence[Tensor],
        noise: torch.Generator,
    ) -> None:
        self._given, self._parameters = [value.clone() for value in tensors], parameters
        self._uploads = AsyncUpload(tensors[0].device)
        self._figures: Tensor | None = None

        def work() -> None:
            for parameter in parameters:
                parameter.grad = None
            self._figures = compute(*self._given)

        self._replay = capture_cuda_graph(work, noise, buffers)
        self._gradients = [parameter.grad for parameter in parameters]

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        for place, value in zip(self._given, tensors, strict=True):
            large = not value.is_cuda and value.nbytes > SMALL
            place.copy_(self._uploads.send(value).wait() if large else value, non_blocking=True)
        self._replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        assert self._figures is not None
        return self._figures.clone()
