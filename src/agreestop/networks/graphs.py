"""A spiking network as a graph: linear maps and neurons, run one time step at a time.

    i_t = b i_{t-1} + w x_t,    v_t = a v_{t-1} + g i_t + l
    z_t = 1 where v_t > θ,    then  v_t ← ρ, or v_t ← v_t - ρ, where z_t = 1

`Integrator` is this neuron. With b = 0 it has no synaptic current (IF: a = 1; LIF: a < 1); with
b > 0 it is a CubaLIF; with a = 0 it is a plain threshold; with θ None it never spikes and gives
v_t. All constants may differ from neuron to neuron. State starts at zero.

A node takes the sum of the outputs of its sources. A source that is *delayed* is read one step
later: so do spikes go round a cycle. The dense engine runs a graph as a member (`ModuleMembers`),
and the event-driven engine runs chains of layers (its module `chains`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.common import Floats

INPUT = -1  # the source that is the input of the network
Pair = tuple[int, int]


def _float32(values: Floats | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(np.ascontiguousarray(values, np.float32))


@final
class Linear(nn.Module):
    """weight (out, in) times the flattened input, plus bias (out,); each=True: times the last
    axis of the input.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Floats, bias: Floats | None = None, each: bool = False) -> None:
        super().__init__()
        self.each = each
        self.register_buffer("weight", _float32(weight))
        self.register_buffer("bias", _float32(bias))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x if self.each else x.flatten(1), self.weight, self.bias)


@final
class Convolution(nn.Module):
    """A convolution of (channels, height, width), or of (channels, length) with a
    window of height 1.

    padding: rows and columns of zeros before and after, as (top, bottom, left, right).
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Floats,
        bias: Floats | None,
        stride: Pair,
        padding: tuple[int, int, int, int],
        dilation: Pair,
        groups: int,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", _float32(weight))
        self.register_buffer("bias", _float32(bias))
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Tensor) -> Tensor:
        top, bottom, left, right = self.padding
        image = F.pad(x if x.ndim == 4 else x.unsqueeze(-2), (left, right, top, bottom))
        found = F.conv2d(image, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
        return found if x.ndim == 4 else found.squeeze(-2)


@final
class SumPool(nn.Module):
    """The sum over windows of (channels, height, width), or its average, in which zeros of the
    padding count.
    """

    def __init__(self, size: Pair, stride: Pair, padding: Pair, average: bool) -> None:
        super().__init__()
        self.size, self.stride, self.padding, self.average = size, stride, padding, average

    def forward(self, x: Tensor) -> Tensor:
        (height, width), divisor = self.padding, math.prod(self.size) if self.average else 1
        return F.avg_pool2d(
            F.pad(x, (width, width, height, height)),
            self.size,
            self.stride,
            divisor_override=divisor,
        )


@final
class Scale(nn.Module):
    """The input times one factor for each of its elements."""

    factor: Tensor

    def __init__(self, factor: Floats) -> None:
        super().__init__()
        self.register_buffer("factor", _float32(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@final
class Reshape(nn.Module):
    """The same elements in another shape (without the batch)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.shape)


@final
@dataclass(frozen=True, eq=False)
class Constants:
    """Constants of `Integrator`, arrays of one shape: a, b, w, g, l, θ (None: no spikes) and ρ.
    subtract: v - ρ instead of ρ.
    """

    decay: Floats
    synapse: Floats
    weight: Floats
    gain: Floats
    leak: Floats
    threshold: Floats | None
    reset: Floats
    subtract: bool = False


@final
class Integrator(nn.Module):
    """A layer of neurons: currents (batch, *shape) and state to spikes, or potentials, and state.

    The state is (i, v). The strict comparison with θ is one with the next larger float32, which the
    event-driven engine shares.
    """

    decay: Tensor
    synapse: Tensor
    weight: Tensor
    gain: Tensor
    leak: Tensor
    reset: Tensor
    reached: Tensor | None

    def __init__(self, constants: Constants) -> None:
        super().__init__()
        for name in ("decay", "synapse", "weight", "gain", "leak", "reset"):
            self.register_buffer(name, _float32(getattr(constants, name)))
        threshold = constants.threshold
        above = (
            None
            if threshold is None
            else np.nextafter(threshold.astype(np.float32), np.float32(np.inf))
        )
        self.register_buffer("reached", _float32(above))
        self.subtract, self.shape = constants.subtract, tuple(constants.decay.shape)
        # w = 1, b = 0
        self.plain = bool((constants.weight == 1).all()), bool((constants.synapse == 0).all())

    @property
    def spikes(self) -> bool:
        """Whether the output is 0 or 1."""
        return self.reached is not None

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        current, potential = state
        x = x if self.plain[0] else x * self.weight
        current = x if self.plain[1] else torch.addcmul(x, current, self.synapse)
        potential = torch.addcmul(
            torch.addcmul(self.leak, current, self.gain), potential, self.decay
        )
        if self.reached is None:
            return potential, (current, potential)
        fired = potential >= self.reached
        after = potential - self.reset if self.subtract else self.reset
        return fired.float(), (current, torch.where(fired, after, potential))


@final
@dataclass(frozen=True, eq=False)
class Node:
    """A part of a graph: its name, what it computes, the shape of its output, and its sources.

    A source is the index of an earlier node, or `INPUT`. `delayed` holds indices of nodes, earlier
    or not, whose last output is added.
    """

    name: str
    part: nn.Module
    shape: tuple[int, ...]
    sources: tuple[int, ...]
    delayed: tuple[int, ...] = ()


def _settings(part: nn.Module) -> tuple[Any, ...]:
    """What a part computes, without its arrays."""
    names = (
        "stride",
        "padding",
        "dilation",
        "groups",
        "size",
        "average",
        "each",
        "subtract",
        "spikes",
    )
    return type(part).__name__, *(getattr(part, name, None) for name in names)


@final
class GraphNetwork(nn.Module):
    """A graph of nodes in the order in which they run.

    The last node gives the output (batch, classes).

    It is a member as `ModuleMembers` takes it: `forward(x_t, state) -> (output, state)`,
    first state None.
    """

    real_input, repeats = True, "each"

    def __init__(self, nodes: Sequence[Node], input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.nodes, self.input_shape = tuple(nodes), input_shape
        self.parts = nn.ModuleList(node.part for node in nodes)
        self.classes = math.prod(nodes[-1].shape)
        # the digest of the members covers it
        self.connections = repr(
            [(node.shape, node.sources, node.delayed, _settings(node.part)) for node in nodes]
        )
        self._kept = sorted({source for node in nodes for source in node.delayed})

    @property
    def output(self) -> str:
        """ "spikes" if the last neurons spike, else "logits"."""
        index = len(self.nodes) - 1
        while (
            index != INPUT
            and isinstance(self.nodes[index].part, Reshape)
            and len(self.nodes[index].sources) == 1
        ):
            index = self.nodes[index].sources[0]
        part = None if index == INPUT else self.nodes[index].part
        return "spikes" if isinstance(part, Integrator) and part.spikes else "logits"

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step: x (batch, *input_shape) to output (batch, classes) and the state after it."""
        neurons, last = state or self._start(len(x), x.device)
        values: list[Tensor] = []
        after: list[tuple[Tensor, Tensor]] = []
        for node in self.nodes:
            given = [x if source == INPUT else values[source] for source in node.sources] + [
                last[source] for source in node.delayed
            ]
            total = given[0] if len(given) == 1 else cast(Tensor, sum(given[1:], given[0]))
            if isinstance(node.part, Integrator):
                value, kept = node.part(total, neurons[len(after)])
                after.append(kept)
            else:
                value = node.part(total)
            values.append(value)
        return values[-1].flatten(1), (tuple(after), {index: values[index] for index in self._kept})

    def _start(
        self, batch: int, device: torch.device
    ) -> tuple[tuple[tuple[Tensor, Tensor], ...], dict[int, Tensor]]:
        zeros = [torch.zeros((batch, *node.shape), device=device) for node in self.nodes]
        neurons = tuple(
            (zero, zero)
            for node, zero in zip(self.nodes, zeros, strict=True)
            if isinstance(node.part, Integrator)
        )
        return neurons, {index: zeros[index] for index in self._kept}
