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

from agreestop.kernels.srm import SRMState

from . import operations
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
        return cast(tuple[Tensor, SRMState], self.neurons(currents, state))

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
