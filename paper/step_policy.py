"""SEENN-II's policy network: it reads the beginning of an input once and picks one of M candidate
times, at which the ensemble answers.

    x = Σ_{t ≤ steps_read} input_t,   z = network((x - mean) / deviation),   π = softmax(z),
    picked = argmax_m z_m (the earliest on ties)

Li, Geller, Kim and Panda, "SEENN: Towards Temporal Spiking Early Exit Neural Networks", NeurIPS
2023. There a policy reads an image, which is complete at the first step. An event stream is not: a
policy that read all of it would know the future that it decides not to wait for. So this policy
reads only the first `steps_read` steps, summed for each channel and pixel, and no candidate time is
earlier. An image that is held still has one step in its array, and `steps_read` is 1. There is no
guarantee on the picked times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.common import InputError, Integers, as_checkpoints
from agreestop.events.container import Inputs, dense_rows

CHANNELS = (16, 32, 32)
HIDDEN = 64
SMALLEST_IMAGE = 8
BATCH = 256


def summarise(inputs: Inputs, steps_read: int) -> NDArray[np.float32]:
    """What a policy reads from inputs (n, steps, channels, H, W): the sum of the first `steps_read`
    steps, (n, channels, H, W).

    Inputs (n, steps, channels) of a one-dimensional sensor are frames of one pixel.
    """
    _check_steps_read(steps_read)
    if len(inputs.shape) not in (3, 5) or inputs.shape[1] < steps_read:
        raise InputError(
            f"inputs has shape {inputs.shape}: (n, steps, channels, H, W) with at least "
            f"{steps_read} steps is needed."
        )
    batches = (
        dense_rows(inputs, slice(start, start + BATCH))
        for start in range(0, max(1, len(inputs)), BATCH)
    )
    summed: NDArray[np.float32] = np.concatenate(
        [batch[:, :steps_read].sum(axis=1, dtype=np.float32) for batch in batches]
    )
    return summed[..., None, None] if summed.ndim == 2 else summed


def _check_steps_read(steps_read: int) -> None:
    if (
        isinstance(steps_read, bool)
        or not isinstance(steps_read, (int, np.integer))
        or steps_read < 1
    ):
        raise InputError(
            f"steps_read is {steps_read!r}: give the number of steps that the policy reads, an "
            "integer of at least 1."
        )


@final
class StepPolicy(nn.Module):
    """Logits over M candidate times, from summaries (n, channels, H, W) of the first `steps_read`
    steps.

    Images of at least 8 × 8 pixels pass three strided 3×3 convolutions, an average over the pixels
    and a linear layer. Smaller ones pass one hidden layer and a linear layer. Weights are drawn
    from the generator as U(-1/sqrt(fan_in), 1/sqrt(fan_in)). The last layer starts at 0, so all
    times are equally likely at first. `standardise` sets mean and deviation, which are 0 and 1
    before.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        shape: tuple[int, int, int],
        times: Sequence[float],
        steps_read: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape) < 1:
            raise InputError(f"shape is {shape!r}: (channels, H, W), none of them 0, is needed.")
        _check_steps_read(steps_read)
        self.shape, self.times, self.steps_read = (
            tuple(shape),
            as_checkpoints(times),
            int(steps_read),
        )
        if self.times[0] < steps_read:
            raise InputError(
                f"times begins at {self.times[0]}, but the policy reads {steps_read} steps: begin "
                "later, or read fewer steps."
            )
        self.register_buffer("mean", torch.zeros(shape[0], 1, 1))
        self.register_buffer("deviation", torch.ones(shape[0], 1, 1))
        self.layers = _layers(self.shape, len(self.times), generator)

    def standardise(self, summaries: Tensor) -> None:
        """Take mean and deviation of each channel over these summaries (n, channels, H, W) and
        their pixels.
        """
        self._check(summaries)
        by_channel = summaries.transpose(0, 1).flatten(1)
        deviation = by_channel.std(1, correction=0)
        self.mean = by_channel.mean(1)[:, None, None]
        self.deviation = torch.where(deviation > 0, deviation, 1.0)[:, None, None]

    def forward(self, summaries: Tensor) -> Tensor:
        """(n, M) logits."""
        self._check(summaries)
        return cast(Tensor, self.layers((summaries - self.mean) / self.deviation))

    @torch.no_grad()
    def pick(self, inputs: Inputs) -> Integers:
        """The index (n,) of the picked time for inputs (n, steps, channels, H, W). Later steps than
        `steps_read` are not read.
        """
        summaries = torch.from_numpy(summarise(inputs, self.steps_read))
        batches = (
            summaries[start : start + BATCH] for start in range(0, max(1, len(summaries)), BATCH)
        )
        return np.concatenate([self(batch).numpy().argmax(axis=1) for batch in batches]).astype(
            np.int64
        )

    def _check(self, summaries: Tensor) -> None:
        if summaries.shape[1:] != self.shape:
            given, needed = tuple(summaries.shape), ", ".join(str(length) for length in self.shape)
            raise InputError(
                f"the summaries have shape {given}: (n, {needed}) is needed by this policy."
            )


def _layers(shape: tuple[int, ...], times: int, generator: torch.Generator) -> nn.Sequential:
    """The layers are made without values first, since PyTorch would draw them from its global
    generator.
    """
    parts: list[nn.Module] = []
    if min(shape[1:]) >= SMALLEST_IMAGE:
        last = CHANNELS[-1]
        for inputs, outputs in pairwise((shape[0], *CHANNELS)):
            parts += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, device="meta"), nn.ReLU()]
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    else:
        last = HIDDEN
        parts += [nn.Flatten(), nn.Linear(math.prod(shape), HIDDEN, device="meta"), nn.ReLU()]
    layers = nn.Sequential(*parts, nn.Linear(last, times, device="meta")).to_empty(device="cpu")
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                bound = 0.0 if layer is layers[-1] else 1 / math.sqrt(layer.weight[0].numel())
                for value in layer.parameters():
                    value.uniform_(-bound, bound, generator=generator)
    return layers
