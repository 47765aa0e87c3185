"""A layer of SRM neurons with its synapses, batch normalisation and shortcut, for K members; and
the layers that architectures are made of.

currents_t = norm(weights · pool(x_t)) + shortcut,    spikes = SRM(currents)
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.kernels import TRITON_AVAILABLE
from agreestop.kernels.cpu.numba_runtime import numba_available
from agreestop.kernels.srm import SRMState

from .layers import (
    MemberBatchNorm2d,
    MemberConv2d,
    MemberLinear,
    channels_first,
    count_nonzero,
    members_first,
)
from .neurons import SRM, Neuron


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
        return cast(Tensor, self.synapses(received))

    def _shortcut(self, earlier: Tensor, time: int) -> Tensor | None:
        if isinstance(self.shortcut, nn.Sequential):
            return cast(Tensor, self.shortcut[1](self.shortcut[0](earlier), time))
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
            on_gpu = (
                self.neurons.fused
                if self.neurons.fused is not None
                else currents.is_cuda and TRITON_AVAILABLE
            )
            spikes = (self._on_gpu if on_gpu else self._on_cpu)(currents, shortcut, steps, pool)
            if spikes is not None:
                return spikes.permute(0, 1, 4, 2, 3).unsqueeze(1), pool
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

    def _on_gpu(
        self, currents: Tensor, shortcut: Tensor | None, steps: int | None, pool: bool
    ) -> Tensor | None:
        """Spikes (T, batch, H, W, C), pooled if `pool`; None where the kernel does not run."""
        from agreestop.kernels.gpu import deep_training as kernels  # importing Triton is slow

        images = _channels_last(currents)
        added = None if shortcut is None else _channels_last(shortcut)
        if not kernels.can_run(images, added, steps or len(images)):
            return None
        assert self.norm is not None
        table, surrogate = self.neurons.parameters_for(currents).table, self.neurons.surrogate
        return kernels.normalised_spikes(
            images, added, steps or len(images), table, self.norm.for_kernel(), surrogate, 1 + pool
        )

    def _on_cpu(
        self, currents: Tensor, shortcut: Tensor | None, steps: int | None, pool: bool
    ) -> Tensor | None:
        """The same."""
        neurons, norm = self.neurons, self.norm
        if (
            norm is None
            or not pool
            or shortcut is not None
            or steps is not None
            or neurons.fused is not None
            or not numba_available()
        ):
            return None
        from agreestop.kernels.cpu import deep_training as kernels  # the import compiles the loops

        images = _channels_last(currents)
        if currents.device.type != "cpu" or not kernels.can_run(images, neurons.surrogate):
            return None
        weight, bias, mean, var = (
            value.flatten()
            for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        )
        norms = kernels.Norm(weight, bias, mean, var, norm.momentum, norm.epsilon)
        return kernels.normalised_spikes(
            images, neurons.parameters_for(currents).table, norms, neurons.surrogate
        )

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
        return cast(tuple[Tensor, SRMState], self.neurons(currents, state))

    def operations(self, x: Tensor, earlier: Tensor) -> Tensor:
        """Synapses that non-zero inputs reach: (T, K, batch), or (T, 1, batch) for an input that
        the members share.
        """
        total = self.synapses.reached(self.receive(x))
        if isinstance(self.shortcut, nn.Sequential):
            return total + cast(MemberConv2d, self.shortcut[0]).reached(earlier)
        return total if self.shortcut is None else total + count_nonzero(earlier)


def _channels_last(x: Tensor) -> Tensor:
    """(T, 1, batch, C, H, W) as (T, batch, H, W, C), dense; on a GPU it is already."""
    return x.squeeze(1).permute(0, 1, 3, 4, 2).contiguous()


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
    synapses, norm = normalised_conv(members, inputs, outputs, 3, stride, timed)
    return SpikingLayer(
        cast(MemberConv2d, synapses), cast(MemberBatchNorm2d, norm), SRM(members, neuron), **options
    )


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
