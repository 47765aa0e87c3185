"""One member of a network with convolutions, laid out for inference on a GPU.

Channels are innermost in all activations. The library's convolution writes its output, and one
kernel (`kernels.gpu.deep`) does the rest of the layer: batch normalisation, shortcut,
neurons and max-pool. With bfloat16 the weights, the convolutions' outputs and the spikes have two
bytes; normalisation, neurons and the averaging read-out are computed in float32.
"""

from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.common import InputError
from agreestop.networks.architectures import NetworkState, SpikingNetwork
from agreestop.networks.layers import (
    FEW,
    MemberBatchNorm2d,
    MemberConv2d,
    SpikingLayer,
    as_product,
    windows,
)


@dataclass(frozen=True, eq=False)
class DeepState:
    """State of every layer, (3, rows, H, W, C) each, and the number of steps (rows,) that
    each row has run.
    """

    layers: tuple[Tensor, ...]
    times: Tensor

    def rows(self, index: Tensor) -> "DeepState":
        """The state of some rows."""
        return DeepState(tuple(layer[:, index] for layer in self.layers), self.times[index])


class _Synapses(NamedTuple):
    """A convolution, or a matrix product for weights (out, in); and the scale and shift of its
    outputs, if they are normalised.

    size > 0: the product is a convolution with windows of this size. For 1 × 1 windows, and for
    inputs of few channels, the library's own convolutions are up to ten times slower than a copy of
    the windows and a product.
    """

    weight: Tensor
    stride: int = 1
    affine: Any = None
    size: int = 0

    def currents(self, x: Tensor) -> Tensor:
        """Spikes (S, rows, H, W, C) to currents (S, rows, H', W', C')."""
        if self.weight.ndim == 2:
            seen = (
                windows(x, self.size, self.stride, self.weight.shape[1])
                if self.size
                else x.flatten(2)[:, :, None, None]
            )
            return F.linear(seen, self.weight)
        y = F.conv2d(
            x.flatten(0, 1).permute(0, 3, 1, 2),
            self.weight,
            stride=self.stride,
            padding=self.weight.shape[-1] // 2,
        )
        y = y.permute(0, 2, 3, 1).contiguous()
        return y.view(*x.shape[:2], *y.shape[1:])


@final
class _Stage:
    """A layer, and the max-pool of the layer after it."""

    def __init__(self, layer: SpikingLayer, dtype: torch.dtype, pool: int, channels: int) -> None:
        """channels: those of what the layer receives, 1 where it is one row of neurons."""
        self.average, self.pool = layer.average, pool
        self._synapses = _synapses(
            layer.synapses, layer.norm, torch.float32 if layer.average else dtype, channels
        )
        self._shortcut: _Synapses | None = None
        self._identity = isinstance(layer.shortcut, nn.Identity)
        if isinstance(layer.shortcut, nn.Sequential):
            self._shortcut = _synapses(
                layer.shortcut[0], cast(MemberBatchNorm2d, layer.shortcut[1]), dtype, channels
            )
        self._constants = layer.neurons.parameters_for(torch.empty(1, 1)).table
        self.device = self._constants.device

    def run(
        self,
        x: Tensor,
        earlier: Tensor,
        state: Tensor | None,
        steps: int,
        times: Tensor,
        begins: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Spikes (steps, rows, H, W, C) that reach the next layer, and the state, which is moved
        on in place; None: new, of zeros.
        """
        # imported here since importing Triton is slow
        from agreestop.kernels.gpu.deep import neurons

        currents = self._synapses.currents(
            x.float().mean((2, 3), keepdim=True) if self.average else x
        )
        shortcut = (
            earlier
            if self._identity
            else None
            if self._shortcut is None
            else self._shortcut.currents(earlier)
        )
        if state is None:
            state = torch.empty(
                (3, *currents.shape[1:]), dtype=torch.float32, device=currents.device
            )
        added = None if self._shortcut is None else self._shortcut.affine
        affine = self._synapses.affine
        # an image that is held is normalised once, as in its first step
        if len(currents) < steps and affine is not None:
            affine = type(affine)(affine.scale[:1], affine.shift[:1])
        return neurons(
            currents,
            steps,
            state,
            self._constants,
            times,
            begins,
            affine,
            shortcut,
            added,
            self.pool,
        ), state


def _synapses(
    module: Any, norm: MemberBatchNorm2d | None, dtype: torch.dtype, channels: int
) -> _Synapses:
    """The synapses of one member, with the inputs of a product in the order (H, W, C)."""
    weight = module.weight.detach()[0]
    if not isinstance(module, MemberConv2d):
        return _Synapses(weight.unflatten(0, (channels, -1)).permute(2, 1, 0).flatten(1).to(dtype))
    affine = None if norm is None else _affine(norm)
    if module.size == 1 or module.inputs <= FEW:
        return _Synapses(as_product(weight).to(dtype), module.stride, affine, module.size)
    return _Synapses(weight.to(dtype, memory_format=torch.channels_last), module.stride, affine)


def _affine(norm: MemberBatchNorm2d) -> Any:
    from agreestop.kernels.gpu.deep import Affine

    scale = norm.weight.detach() * torch.rsqrt(norm.running_var[0] + norm.epsilon)
    shift = norm.bias.detach() - norm.running_mean[0] * scale
    return Affine(*(value.reshape(-1, norm.channels).contiguous() for value in (scale, shift)))


@final
class DeepMember:
    """One member, called as a `SpikingNetwork` is: frames (S, rows, ...), state, and the steps
    for which one frame is held.
    """

    output = "spikes"

    @torch.inference_mode()
    def __init__(self, network: SpikingNetwork, bf16: bool) -> None:
        self._network, self._dtype = network, torch.bfloat16 if bf16 else torch.float32
        layers = network.layers
        channels = [1] + [
            layer.synapses.outputs if isinstance(layer.synapses, MemberConv2d) else 1
            for layer in layers[:-1]
        ]
        pools = [2 if layer.max_pool else 1 for layer in layers[1:]] + [1]
        self._stages = [
            _Stage(*given)
            for given in zip(layers, repeat(self._dtype), pools, channels, strict=False)
        ]
        state = self.run(
            torch.zeros((1, 1, *network.input_shape), device=self._stages[0].device), *self.start(1)
        )[1]
        self.largest_layer = max(layer[0].numel() for layer in state.layers)
        """The neurons of the largest layer."""

    def __call__(
        self, frames: Tensor, state: DeepState | NetworkState | None, held: int | None = None
    ) -> tuple[Tensor, DeepState | NetworkState]:
        """Read-out spikes (steps, 1, rows, C), and the state after them.

        The state that is given is changed.
        """
        if isinstance(state, NetworkState):  # operations were counted before
            return self._network(frames, state, held)
        rows = frames.shape[1]
        if state is None:
            return self.run(frames, *self.start(rows), held)
        return self.run(frames, state, torch.full((rows,), -1, device=frames.device), held)

    def start(self, rows: int) -> tuple[DeepState, Tensor]:
        """A state for rows that all begin, and their `begins`; its layers are made in
        the first run.
        """
        zeros = torch.zeros(rows, dtype=torch.int64, device=self._stages[0].device)
        return DeepState((), zeros), zeros

    @torch.inference_mode()
    def run(
        self, frames: Tensor, state: DeepState, begins: Tensor, held: int | None = None
    ) -> tuple[Tensor, DeepState]:
        """The same, where rows with a `begins` of at least 0 start from zero."""
        steps = held or len(frames)
        x = frames.permute(0, 1, 3, 4, 2).contiguous().to(self._dtype)
        earlier, layers, before = x, [], state.layers or (None,) * len(self._stages)
        with torch.autocast(frames.device.type, enabled=False):
            for stage, part in zip(self._stages, before, strict=True):
                spikes, after = stage.run(x, earlier, part, steps, state.times, begins)
                earlier, x = x, spikes
                layers.append(after)
        return x.flatten(2).float()[:, None], replace(
            state, layers=tuple(layers), times=state.times + steps
        )

    def count(self, frames: Tensor, state: Any = None, held: int | None = None) -> Any:
        """The result of `SpikingNetwork.count`, with the layers as they are."""
        if isinstance(state, DeepState):
            raise InputError(
                "operations are counted from the first step on: begin again, and count from there."
            )
        return self._network.count(frames, state, held)
