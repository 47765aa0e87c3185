"""Layers of K ensemble members at once. The first axis of every parameter and buffer is the member.

Inputs are (T, batch, ...), shared by the members, or (T, K, batch, ...). Outputs are
(T, K, batch, ...). There are no biases: a neuron without input spikes stays silent, and the
event-driven engine relies on that.

A `SpikingLayer` has synapses, batch normalisation, a shortcut and SRM neurons:

    currents_t = norm(weights · pool(x_t)) + shortcut,    spikes = SRM(currents)
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.common import InputError, is_number
from agreestop.kernels import mixed_product
from agreestop.kernels.srm import Norm, SRMState

from . import operations
from .neurons import SRM, Neuron

FEW = 4  # channels of an input for which, on a GPU, a copy of the windows pays
# rows of a chunk in `product_in_chunks`, approximately: of a layer, and of windows
CHUNK, WINDOWS = 1024, 1 << 15


def check_input(x: Tensor, inputs: int, sizes: str, axes: int, members: int) -> None:
    """Refuse an input that is neither (T, batch, *sizes), with this number of axes, nor
    (T, K, batch, *sizes). sizes[0] is `inputs`.
    """
    if x.ndim not in (axes, axes + 1) or x.shape[2 - axes] != inputs:
        raise InputError(
            f"the input has shape {tuple(x.shape)}: (T, batch, {sizes}) or (T, K, batch, {sizes}) "
            "is needed by this layer."
        )
    if x.ndim > axes and x.shape[1] != members:
        raise InputError(
            f"the input has {x.shape[1]} members along its second axis and the layer {members}: "
            "give one for each, or share one."
        )


def product_in_chunks(rows: Tensor, weight: Tensor, chunks: int) -> Tensor:
    """(K, N, in) times (K, in, out), with N in chunks.

    The gradient of the weights, a sum over N, can then use the whole GPU.
    """
    repeated = weight[:, None].expand(-1, chunks, -1, -1).flatten(0, 1)
    return torch.bmm(rows.reshape(len(repeated), -1, rows.shape[2]), repeated).view(
        len(rows), rows.shape[1], -1
    )


@final
class MemberLinear(nn.Module):
    """y_k = x_k W_k for each member k, with weights (K, in, out); x is (T, batch, in) or
    (T, K, batch, in).
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.members, self.inputs, self.outputs = members, inputs, outputs
        self.fan_in = inputs  # inputs to one output
        self.weight = nn.Parameter(torch.zeros(members, inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(T, K, batch, out).

        Members are outermost in memory, so the product of the next layer needs no copy.

        On a GPU, float16 spikes and float32 weights are multiplied on tensor cores
        (`mixed_product`), with a float32 result.
        """
        check_input(x, self.inputs, f"{self.inputs}", 3, self.members)
        sparse = operations.linear(x, self.weight)
        if sparse is not None:
            return sparse
        steps, batch = len(x), x.shape[-2]
        rows = x.reshape(1, steps * batch, -1) if x.ndim == 3 else x.transpose(0, 1).flatten(1, 2)
        if mixed_product.can_run(x, self.weight):
            y = mixed_product.mixed_product(rows, self.weight)
        else:
            y = self._product(mixed_product.match_precision(rows, self.weight))
        return y.view(self.members, steps, batch, self.outputs).transpose(0, 1)

    def _product(self, rows: Tensor) -> Tensor:
        """(K or 1, N, in) to (K, N, out)."""
        if rows.is_cuda and torch.is_grad_enabled() and len(rows) == self.members:
            count = rows.shape[1]
            chunks = math.gcd(count, max(1, count // CHUNK))
            if chunks > 1 and self.outputs * chunks <= self.inputs:
                return product_in_chunks(rows, self.weight, chunks)
        return torch.bmm(rows.expand(self.members, -1, -1), self.weight)

    def reached(self, x: Tensor) -> Tensor:
        """Synapses that the non-zero entries of x (T, K, batch, ...) reach, (T, K, batch)."""
        return count_nonzero(x) * self.outputs


@final
class MemberConv2d(nn.Module):
    """y_k = x_k * W_k for each member k, with weights (K, out, in, size, size), as one
    convolution with K groups.
    """

    def __init__(
        self, members: int, inputs: int, outputs: int, size: int = 3, stride: int = 1
    ) -> None:
        super().__init__()
        self.members = members
        self.inputs = inputs
        self.outputs = outputs
        self.size = size
        self.stride = stride
        self.fan_in = inputs * size**2
        self.weight = nn.Parameter(torch.zeros(members, outputs, inputs, size, size))

    def forward(self, x: Tensor) -> Tensor:
        """(T, K, batch, out, H', W'), padded by size // 2.

        In memory, members and channels are next to each other.
        """
        check_input(x, self.inputs, f"{self.inputs}, H, W", 5, self.members)
        x = mixed_product.match_precision(x, self.weight)
        if (
            x.is_cuda
            and torch.is_grad_enabled()
            and x.ndim == 5
            and self.members == 1
            and self.inputs <= FEW
            and not x.requires_grad
        ):
            return members_first(self._by_windows(x), len(x), 1)
        planes = x.flatten(0, 1) if x.ndim == 5 else channels_first(x)
        sparse = None
        if self.members == 1:
            sparse = operations.convolution(planes, self.weight[0], self.stride)
        if sparse is not None:
            return members_first(sparse, len(x), 1)
        groups = 1 if x.ndim == 5 else self.members
        # channels innermost: faster, and kept by all layers after this one
        if x.is_cuda and torch.is_grad_enabled():
            planes = planes.contiguous(memory_format=torch.channels_last)
        y = F.conv2d(
            planes,
            self.weight.flatten(0, 1),
            stride=self.stride,
            padding=self.size // 2,
            groups=groups,
        )
        return members_first(y, len(x), self.members)

    def _by_windows(self, x: Tensor) -> Tensor:
        """Images (T·batch, out, H', W') of one member, as a product of the windows of x
        (T, batch, in, H, W) and the weights.
        """
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        weight = as_product(self.weight[0]).t()[None]
        seen = windows(x.permute(0, 1, 3, 4, 2), self.size, self.stride, weight.shape[1])
        count = math.prod(seen.shape[:4])
        y = product_in_chunks(
            seen.view(1, count, -1), weight, math.gcd(count, max(1, count // WINDOWS))
        )
        return y.view(-1, *seen.shape[2:4], self.outputs).permute(0, 3, 1, 2)

    def reached(self, x: Tensor) -> Tensor:
        """Synapses that the non-zero entries of x (T, K, batch, in, H, W) reach, (T, K, batch).

        Entries at the border reach fewer.
        """
        rows, columns = (self._windows(length).to(x.device) for length in x.shape[-2:])
        return self.outputs * ((x != 0).sum(-3) * rows[:, None] * columns).sum((-2, -1))

    def _windows(self, length: int) -> Tensor:
        """The number of convolution windows that contain each position along an axis."""
        pad = self.size // 2
        starts = torch.arange(-pad, length + pad - self.size + 1, self.stride)
        position = torch.arange(length)[:, None]
        return ((position >= starts) & (position < starts + self.size)).sum(1)


def as_product(weight: Tensor) -> Tensor:
    """Weights (out, in, size, size) of a convolution as a matrix for `windows`.

    Products are fastest for multiples of eight.
    """
    rows = weight.permute(0, 2, 3, 1).flatten(1)
    return F.pad(rows, (0, -rows.shape[1] % 8)) if weight.shape[-1] > 1 else rows


def windows(x: Tensor, size: int, stride: int, inputs: int) -> Tensor:
    """What each position of a convolution's output sees of x (S, rows, H, W, C):
    (S, rows, H', W', inputs), filled up with zeros.
    """
    if size == 1:
        return x[:, :, ::stride, ::stride]
    padded = F.pad(x, (0, 0, *(size // 2,) * 4))
    seen = padded.unfold(2, size, stride).unfold(3, size, stride).permute(0, 1, 2, 3, 5, 6, 4)
    filled = torch.zeros((*seen.shape[:4], inputs), dtype=x.dtype, device=x.device)
    filled[..., : size**2 * x.shape[-1]].view(seen.shape).copy_(seen)
    return filled


@final
class MemberBatchNorm2d(nn.Module):
    """Batch normalisation for each member and channel, over time, batch and positions:
    (x - mean) / sqrt(var + epsilon) · weight + bias.

    In training the statistics are those of the call, and the running statistics move towards them
    by `momentum`. Evaluation uses the running statistics, so only then a sequence in chunks gives
    the same result as the whole sequence.

    steps > 0: each of the first steps has separate statistics, and later steps share those of
    the last one, because deep layers start to spike only after some steps. All steps share
    weight and bias.
    """

    epsilon = 1e-5
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, members: int, channels: int, steps: int = 0) -> None:
        super().__init__()
        self.members, self.channels, self.steps, self.momentum = members, channels, steps, 0.1
        self._cached: tuple[Any, dict[Any, Any]] = (None, {})
        self.weight = nn.Parameter(torch.ones(members, channels))
        self.bias = nn.Parameter(torch.zeros(members, channels))
        shape = (members, steps, channels) if steps else (members, channels)
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))

    def forward(self, x: Tensor, time: int = 0) -> Tensor:
        """Normalise (T, K, batch, channels, H, W); the first step has index `time`
        in the sequence.
        """
        if x.ndim != 6 or x.shape[1] != self.members or x.shape[3] != self.channels:
            raise InputError(
                f"the input has shape {tuple(x.shape)}: (T, {self.members}, batch, "
                f"{self.channels}, H, W) is needed by this layer."
            )
        if not self.steps:
            return members_first(
                self._normalise(channels_first(x), self.running_mean, self.running_var),
                len(x),
                self.members,
            )
        if self.training:
            # joined as images, so innermost channels stay innermost
            images = channels_first(x).chunk(len(x))
            return members_first(
                torch.cat([self._normalise_step(*given) for given in enumerate(images, time)]),
                len(x),
                self.members,
            )
        shift, scale = self._shift_and_scale(min(time, self.steps - 1), len(x), x.dtype)
        return torch.addcmul(shift, x, scale)

    def _shift_and_scale(self, time: int, steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Shift and scale of the steps from `time` on, each (steps, K, 1, channels, 1, 1).

        Cached if no gradient is needed.
        """
        tensors = (self.weight, self.bias, self.running_mean, self.running_var)
        versions = tuple((value, value._version) for value in tensors)
        if torch.is_grad_enabled() or not _same(self._cached[0], versions):
            self._cached = (versions, {})
        cached = self._cached[1]
        if (time, steps, dtype) not in cached:
            index = torch.arange(time, time + steps, device=self.weight.device).clamp_(
                max=self.steps - 1
            )
            scale = self.weight[:, None] * torch.rsqrt(self.running_var[:, index] + self.epsilon)
            shift = self.bias[:, None] - self.running_mean[:, index] * scale
            shape = (steps, self.members, 1, self.channels, 1, 1)
            cached[time, steps, dtype] = tuple(
                value.transpose(0, 1).reshape(shape).to(dtype) for value in (shift, scale)
            )
        return cached[time, steps, dtype]

    def _normalise_step(self, time: int, images: Tensor) -> Tensor:
        index = min(time, self.steps - 1)
        # autograd saves these
        mean, var = self.running_mean[:, index].clone(), self.running_var[:, index].clone()
        y = self._normalise(images, mean, var)
        self.running_mean[:, index], self.running_var[:, index] = mean, var
        return y

    def for_kernel(self) -> Norm:
        """Weights and statistics of all members, for the kernels that train them."""
        return self._norm(self.running_mean, self.running_var)

    def _norm(self, mean: Tensor, var: Tensor) -> Norm:
        weight, bias, mean, var = (value.flatten() for value in (self.weight, self.bias, mean, var))
        return Norm(weight, bias, mean, var, self.momentum, self.epsilon)

    def _normalise(self, images: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        norm = self._norm(mean, var)
        y = operations.batch_norm(images, norm) if self.training else None
        if y is not None:
            return y
        return F.batch_norm(
            images,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            self.training,
            self.momentum,
            self.epsilon,
        )


def _same(one: Any, other: Any) -> bool:
    """Whether two lists of (tensor, version) hold the same tensors, unchanged."""
    return one is not None and all(
        a is b and i == j for (a, i), (b, j) in zip(one, other, strict=True)
    )


def count_nonzero(x: Tensor) -> Tensor:
    """Non-zero entries of x (T, K, batch, ...), (T, K, batch)."""
    return (x != 0).flatten(3).sum(-1)


def channels_first(x: Tensor) -> Tensor:
    """(T, K, batch, C, H, W) as images (T·batch, K·C, H, W)."""
    return x.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def members_first(y: Tensor, steps: int, members: int) -> Tensor:
    """Images (T·batch, K·C, H, W) as (T, K, batch, C, H, W)."""
    return y.view(steps, -1, members, y.shape[1] // members, *y.shape[2:]).transpose(1, 2)


def draw_weights(
    network: nn.Module, generator: torch.Generator, deviation: float | None = None
) -> None:
    """Draw the weights of every MemberLinear and MemberConv2d in `network`, member by member.

    deviation=None: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default; else N(0, deviation²),
    i.i.d. With the same seed, the first members of a large ensemble equal those of a small one.
    """
    if deviation is not None and not (is_number(deviation) and deviation > 0):
        raise InputError(
            f"deviation is {deviation!r}: give a positive, finite standard deviation, or None for "
            "PyTorch's default."
        )
    layers = [
        module for module in network.modules() if isinstance(module, (MemberLinear, MemberConv2d))
    ]
    with torch.no_grad():
        for member in range(max((layer.members for layer in layers), default=0)):
            for layer in layers:
                draw = torch.empty(
                    layer.weight.shape[1:], dtype=torch.float32, device=generator.device
                )
                if deviation is None:
                    bound = 1 / math.sqrt(layer.fan_in)
                    draw.uniform_(-bound, bound, generator=generator)
                else:
                    draw.normal_(0, deviation, generator=generator)
                layer.weight[member].copy_(draw)


@final
class SpikingLayer(nn.Module):
    """One layer of SRM neurons and its synapses: pool, multiply by weights, normalise, add the
    shortcut, spike.

    The shortcut receives the input of the previous layer, so the two layers form a residual block.
    """

    def __init__(
        self,
        synapses: MemberLinear | MemberConv2d,
        norm: MemberBatchNorm2d | None,
        neurons: SRM,
        shortcut: nn.Module | None = None,
        max_pool: bool = False,
        average: bool = False,
    ) -> None:
        super().__init__()
        self.synapses, self.norm, self.neurons, self.shortcut = synapses, norm, neurons, shortcut
        self.max_pool, self.average = max_pool, average
        self.observe: Callable[[Tensor], None] | None = None
        """Called with the currents (T, K, batch, ...) of every call, if it is set."""

    def receive(self, x: Tensor) -> Tensor:
        """The spikes that reach the synapses."""
        return (
            members_first(F.max_pool2d(channels_first(x), 2), len(x), x.shape[1])
            if self.max_pool
            else x
        )

    def currents(self, x: Tensor, earlier: Tensor, time: int = 0) -> Tensor:
        """Currents (T, K, batch, ...) into the neurons, from the spikes of the previous layer.

        earlier: the input of the previous layer, used by the shortcut. time: the number of steps
        before this call.
        """
        currents, shortcut = self._weighted(x), self._shortcut(earlier, time)
        currents = currents if self.norm is None else self.norm(currents, time)
        return currents if shortcut is None else currents + shortcut

    def _weighted(self, x: Tensor, pooled: bool = False) -> Tensor:
        """Input times weights, before normalisation. pooled: the input is pooled already."""
        received = x if pooled else self.receive(x)
        if self.average:
            received = received.mean((-2, -1))
        elif isinstance(self.synapses, MemberLinear) and received.ndim > 4:
            received = received.flatten(3)
        return self.synapses(received)

    def _shortcut(self, earlier: Tensor, time: int) -> Tensor | None:
        if isinstance(self.shortcut, nn.Sequential):
            return self.shortcut[1](self.shortcut[0](earlier), time)
        return None if self.shortcut is None else earlier

    def train_in_one_kernel(
        self, x: Tensor, earlier: Tensor, steps: int | None, pooled: bool, pool: bool
    ) -> tuple[Tensor, bool]:
        """Spikes (T, K, batch, ...) from rest, and whether they are pooled already.

        Normalisation, shortcut, neurons and the max-pool of the next layer, if `pool`, then take
        one kernel on a GPU, and on a CPU a few compiled loops. pooled: whether the input is
        pooled already.
        """
        currents, shortcut = self._weighted(x, pooled), self._shortcut(earlier, 0)
        if self.norm is not None and self._fuses():
            neurons = self.neurons
            spikes = operations.normalised_spikes(
                currents,
                shortcut,
                steps,
                neurons.parameters_for(currents).table,
                self.norm.for_kernel(),
                neurons.surrogate,
                pool,
                neurons.fused,
            )
            if spikes is not None:
                return spikes, pool
        currents = currents if self.norm is None else self.norm(currents)
        currents = currents if shortcut is None else currents + shortcut
        return self._spikes(currents, None, steps)[0], False

    def _fuses(self) -> bool:
        """Whether one member is trained whose neurons have constants that are not trained, with
        statistics that all steps share.
        """
        neurons, norm = self.neurons, self.norm
        assert norm is not None
        plain = (
            self.observe is None
            and not (neurons.rates or neurons.learned or norm.steps)
            and norm.weight.dtype == torch.float32
        )
        return plain and norm.training and norm.members == 1

    def forward(
        self, x: Tensor, earlier: Tensor, state: SRMState | None, steps: int | None, time: int = 0
    ) -> tuple[Tensor, SRMState]:
        """Spikes (T, K, batch, ...) and the state after them.

        With `steps`, one image is held for that many steps.
        """
        return self._spikes(self.currents(x, earlier, 0 if steps else time), state, steps)

    def _spikes(
        self, currents: Tensor, state: SRMState | None, steps: int | None
    ) -> tuple[Tensor, SRMState]:
        if self.observe is not None:
            self.observe(currents)
        if steps is not None:
            currents = currents.expand(steps, *(-1,) * (currents.ndim - 1))
        return self.neurons(currents, state)

    def operations(self, x: Tensor, earlier: Tensor) -> Tensor:
        """Synapses that non-zero inputs reach: (T, K, batch), or (T, 1, batch) for an input that
        the members share.
        """
        total = self.synapses.reached(self.receive(x))
        if isinstance(self.shortcut, nn.Sequential):
            return total + cast(MemberConv2d, self.shortcut[0]).reached(earlier)
        return total if self.shortcut is None else total + count_nonzero(earlier)


def normalised_conv(
    members: int, inputs: int, outputs: int, size: int, stride: int, timed: int
) -> nn.Sequential:
    """A convolution and its batch normalisation, with statistics of their own for the first
    `timed` steps.
    """
    return nn.Sequential(
        MemberConv2d(members, inputs, outputs, size, stride),
        MemberBatchNorm2d(members, outputs, timed),
    )


def conv_layer(
    members: int,
    inputs: int,
    outputs: int,
    neuron: Neuron,
    stride: int = 1,
    timed: int = 0,
    **options: Any,
) -> SpikingLayer:
    """A layer of 3×3 convolutions with batch normalisation; options as for `SpikingLayer`."""
    parts: Any = normalised_conv(members, inputs, outputs, 3, stride, timed)
    return SpikingLayer(parts[0], parts[1], SRM(members, neuron), **options)


def dense_layers(
    members: int, sizes: tuple[int, ...], neuron: Neuron, max_pool: bool = False
) -> list[SpikingLayer]:
    """Fully connected layers of these sizes, the first of which is the size of the input.
    max_pool: pool before the first layer.
    """
    return [
        SpikingLayer(
            MemberLinear(members, inputs, outputs),
            None,
            SRM(members, neuron),
            max_pool=max_pool and index == 0,
        )
        for index, (inputs, outputs) in enumerate(pairwise(sizes))
    ]
