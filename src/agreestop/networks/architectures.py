"""The three spiking networks of the paper, K members in one module.

    fully-connected   input - hidden SRM - read-out SRM                                               (MNIST-DVS)
    convolutional     [convolution - batch norm - SRM - max-pool] × stages - hidden SRM - read-out SRM    (DVS128 Gesture; Fang et al. 2021)
    resnet18          3×3 stem - 4 stages of 2 basic blocks, SRM for ReLU - average - read-out SRM    (CIFAR-10)

Time comes first, and no network remembers anything: state goes in and comes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, cast, final, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.common.errors import InputError

from .layers import MemberBatchNorm2d, MemberConv2d, MemberLinear, channels_first, count_nonzero, draw_weights, members_first
from .neurons import SRM, Neuron, SRMState


class State(NamedTuple):
    """What a network remembers between time steps: the state of each of its layers, and how many steps it has seen."""

    layers: tuple[SRMState, ...]
    time: int

    def rows(self, chosen: Tensor) -> State:
        """The state of some of the inputs."""
        return State(tuple(SRMState(*(part.index_select(1, chosen) for part in layer)) for layer in self.layers), self.time)


QUICK = Neuron(membrane_time=2.0, synapse_time=0.5, refractory_time=2.0)
"""For deep networks: each layer answers within a step or two, since slow kernels add up over the layers."""


def _check_counts(**counts: int | Sequence[int]) -> None:
    for name, given in counts.items():
        for value in given if isinstance(given, Sequence) else (given,):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {given!r}: integers of at least 1 are needed.")


@final
@dataclass(frozen=True)
class FullyConnected:
    """Hidden layers of SRM neurons, one of 1000 by default, on the flattened input.

    real_input says that the input is not made of zeros and ones alone, so that its operations count as multiplications.
    """

    input_shape: tuple[int, ...]
    classes: int
    members: int = 1
    hidden: tuple[int, ...] = (1000,)
    neuron: Neuron = field(default_factory=Neuron)
    real_input: bool = False

    def __post_init__(self) -> None:
        _check_counts(input_shape=self.input_shape, classes=self.classes, members=self.members, hidden=self.hidden)

    def layers(self) -> list[SpikingLayer]:
        """The layers, in order."""
        return _dense(self.members, (math.prod(self.input_shape), *self.hidden, self.classes), self.neuron)


@final
@dataclass(frozen=True)
class Convolutional:
    """A stage for each entry of `channels`: 3×3 convolution, batch norm, SRM, 2×2 max-pool; then fully connected layers."""

    input_shape: tuple[int, int, int]
    classes: int
    members: int = 1
    channels: tuple[int, ...] = (128, 128, 128, 128, 128)
    hidden: tuple[int, ...] = (512,)
    neuron: Neuron = QUICK
    real_input: bool = True

    def __post_init__(self) -> None:
        _check_counts(input_shape=self.input_shape, classes=self.classes, members=self.members, channels=self.channels, hidden=self.hidden)
        _check_image(self.input_shape, 2 ** len(self.channels))

    def layers(self) -> list[SpikingLayer]:
        """The layers, in order."""
        K, neuron = self.members, self.neuron
        sizes = (self.input_shape[0], *self.channels)
        stages = [_conv(K, sizes[i], sizes[i + 1], neuron, max_pool=i > 0) for i in range(len(self.channels))]
        height, width = (length // 2 ** len(self.channels) for length in self.input_shape[1:])
        return stages + _dense(K, (sizes[-1] * height * width, *self.hidden, self.classes), neuron, max_pool=True)


@final
@dataclass(frozen=True)
class ResNet18:
    """A 3×3 stem, four stages of two basic blocks with width, 2, 4 and 8 times as many channels, and an averaging head.

    The shortcut joins the current before the second neuron of a block, where ReLU would stand. timed: how many steps have statistics of
    their own in each batch normalisation; 0 for none.
    """

    input_shape: tuple[int, int, int]
    classes: int
    members: int = 1
    width: int = 64
    neuron: Neuron = QUICK
    real_input: bool = True
    timed: int = 0

    def __post_init__(self) -> None:
        _check_counts(input_shape=self.input_shape, classes=self.classes, members=self.members, width=self.width)
        if isinstance(self.timed, bool) or not isinstance(self.timed, int) or self.timed < 0:
            raise InputError(f"timed is {self.timed!r}: give the number of steps with statistics of their own, 0 for none.")
        _check_image(self.input_shape, 1)

    def layers(self) -> list[SpikingLayer]:
        """The layers, in order."""
        K, neuron, timed = self.members, self.neuron, self.timed
        layers, channels = [_conv(K, self.input_shape[0], self.width, neuron, timed=timed)], self.width
        for outputs, stride in ((self.width * 2**stage, 1 + (stage > 0 and block == 0)) for stage in range(4) for block in range(2)):
            same = stride == 1 and outputs == channels
            shortcut = nn.Identity() if same else _normalised(K, channels, outputs, 1, stride, timed)
            layers.append(_conv(K, channels, outputs, neuron, stride=stride, timed=timed))
            layers.append(_conv(K, outputs, outputs, neuron, shortcut=shortcut, timed=timed))
            channels = outputs
        return [*layers, SpikingLayer(MemberLinear(K, channels, self.classes), None, SRM(K, neuron), average=True)]


Architecture = FullyConnected | Convolutional | ResNet18
ARCHITECTURES: dict[str, type[Architecture]] = {
    "fully-connected": FullyConnected,
    "convolutional": Convolutional,
    "resnet18": ResNet18,
}


def architecture(name: str) -> type[Architecture]:
    """The settings class of that name, one of ARCHITECTURES."""
    if name not in ARCHITECTURES:
        raise InputError(f"architecture is {name!r}: choose one of {', '.join(ARCHITECTURES)}.")
    return ARCHITECTURES[name]


def _check_image(shape: tuple[int, ...], least: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(f"input_shape is {shape}: (channels, height, width) with height and width of at least {least} is needed.")


@final
@dataclass(frozen=True)
class Activity:
    """What a call did, for an estimate of energy: whole numbers (layers, T, K, batch), named along the first axis.

    spikes: emitted by the layer's neurons. accumulates: additions of a weight, one for each synapse that a spike reaches.
    multiplies: multiply-accumulates, one for each synapse that a non-zero real-valued input reaches. Batch norm is taken as folded
    into the weights and the average before a read-out too. An image held for `steps` is weighed once a call, at the first step.
    """

    layers: tuple[str, ...]
    spikes: Tensor
    accumulates: Tensor
    multiplies: Tensor


@final
class SpikingLayer(nn.Module):
    """Pool, weigh, normalise, add the shortcut, spike: one layer of SRM neurons and the synapses into it.

    A shortcut takes the input of the layer before this one, so that the two make a residual block.
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

    def receive(self, x: Tensor) -> Tensor:
        """The spikes that reach the synapses."""
        return members_first(F.max_pool2d(channels_first(x), 2), len(x), x.shape[1]) if self.max_pool else x

    def currents(self, x: Tensor, earlier: Tensor, time: int = 0) -> Tensor:
        """What flows into the neurons, (T, K, batch, ...), from the spikes of the layer before, and from what that layer received where
        there is a shortcut; `time` steps came before.
        """
        received = self.receive(x)
        if self.average:
            received = received.mean((-2, -1))
        elif isinstance(self.synapses, MemberLinear) and received.ndim > 4:
            received = received.flatten(3)
        currents = self.synapses(received)
        if self.norm is not None:
            currents = self.norm(currents, time)
        if isinstance(self.shortcut, nn.Sequential):
            return currents + cast(Tensor, self.shortcut[1](self.shortcut[0](earlier), time))
        return currents if self.shortcut is None else currents + earlier

    def forward(self, x: Tensor, earlier: Tensor, state: SRMState | None, steps: int | None, time: int = 0) -> tuple[Tensor, SRMState]:
        """Spikes (T, K, batch, ...) and the state after them; an image is held for `steps`."""
        currents = self.currents(x, earlier, 0 if steps else time)
        if steps is not None:
            currents = currents.expand(steps, *(-1,) * (currents.ndim - 1))
        return cast(tuple[Tensor, SRMState], self.neurons(currents, state))

    def operations(self, x: Tensor, earlier: Tensor) -> Tensor:
        """Synapses that a non-zero input reaches, (T, K, batch), or (T, 1, batch) for an input shared by the members."""
        total = self.synapses.reached(self.receive(x))
        if isinstance(self.shortcut, nn.Sequential):
            return total + cast(MemberConv2d, self.shortcut[0]).reached(earlier)
        return total if self.shortcut is None else total + count_nonzero(earlier)


def _normalised(members: int, inputs: int, outputs: int, size: int, stride: int, timed: int) -> nn.Sequential:
    return nn.Sequential(MemberConv2d(members, inputs, outputs, size, stride), MemberBatchNorm2d(members, outputs, timed))


def _conv(
    members: int,
    inputs: int,
    outputs: int,
    neuron: Neuron,
    stride: int = 1,
    shortcut: nn.Module | None = None,
    max_pool: bool = False,
    timed: int = 0,
) -> SpikingLayer:
    synapses = MemberConv2d(members, inputs, outputs, stride=stride)
    return SpikingLayer(synapses, MemberBatchNorm2d(members, outputs, timed), SRM(members, neuron), shortcut, max_pool)


def _dense(members: int, sizes: tuple[int, ...], neuron: Neuron, max_pool: bool = False) -> list[SpikingLayer]:
    return [
        SpikingLayer(MemberLinear(members, inputs, outputs), None, SRM(members, neuron), max_pool=max_pool and place == 0)
        for place, (inputs, outputs) in enumerate(pairwise(sizes))
    ]


@final
class SpikingNetwork(nn.Module):
    """K members of one architecture, with weights drawn from the generator: PyTorch's default, or N(0, deviation²).

    Every parameter and buffer has the member axis first. Other weights are supplied with `torch.func.functional_call`.
    """

    def __init__(self, config: Architecture, generator: torch.Generator, deviation: float | None = None) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(config.layers())
        draw_weights(self, generator, deviation)

    def select_members(self, members: slice) -> SpikingNetwork:
        """Some of the members, with copies of their weights and statistics."""
        state = {name: value[members].clone() for name, value in self.state_dict().items()}
        count = len(range(*members.indices(self.config.members)))
        fewer = SpikingNetwork(replace(self.config, members=count), torch.Generator().manual_seed(0))
        fewer.load_state_dict(state)
        return fewer.to(next(self.parameters()).device).train(self.training)

    @overload
    def forward(
        self, x: Tensor, state: State | None = None, steps: int | None = None, activity: Literal[False] = False
    ) -> tuple[Tensor, State]: ...

    @overload
    def forward(
        self, x: Tensor, state: State | None = None, steps: int | None = None, *, activity: Literal[True]
    ) -> tuple[Tensor, State, Activity]: ...

    def forward(
        self, x: Tensor, state: State | None = None, steps: int | None = None, activity: bool = False
    ) -> tuple[Tensor, State] | tuple[Tensor, State, Activity]:
        """Input (T, batch, *input_shape), or (T, K, batch, *input_shape), to read-out spikes (T, K, batch, classes) and the state after.

        An image held still is given once, as (1, batch, ...), with the number of `steps`: its first layer is then computed once.
        activity=True adds what every layer did.
        """
        self._check(x, state, steps)
        layers = list(cast(Iterable[SpikingLayer], self.layers))
        if isinstance(self.config, FullyConnected):
            x = x.flatten(-len(self.config.input_shape))
        earlier, after, done = x, [], []
        befores, time = (state.layers, state.time) if state else ((None,) * len(layers), 0)
        for place, (layer, before) in enumerate(zip(layers, befores, strict=True)):
            spikes, left = layer(x, earlier, before, None if place else steps, time)
            if activity:
                done.append(self._account(layer, place, x, earlier, spikes))
            earlier, x = x, spikes
            after.append(left)
        left_behind = State(tuple(after), time + len(x))
        if not activity:
            return x, left_behind
        totals = (torch.stack(counts) for counts in zip(*done, strict=True))
        return x, left_behind, Activity(tuple(self._names()), *totals)

    def _account(self, layer: SpikingLayer, place: int, x: Tensor, earlier: Tensor, spikes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Spikes, accumulates and multiplies of one layer, each (T, K, batch)."""
        emitted = count_nonzero(spikes)
        if place:
            operations = layer.operations(x, earlier)
            return emitted, operations, torch.zeros_like(operations)
        operations = torch.zeros_like(emitted)
        operations[: len(x)] = layer.operations(x.unsqueeze(1) if x.ndim < spikes.ndim else x, earlier)
        if self.config.real_input:
            return emitted, torch.zeros_like(operations), operations
        if not bool(((x == 0) | (x == 1)).all()):
            raise InputError(
                "x holds values other than 0 and 1: set real_input=True in the settings to count its operations as multiplications."
            )
        return emitted, operations, torch.zeros_like(operations)

    def _names(self) -> list[str]:
        return [f"layer {place + 1}" for place in range(len(self.layers) - 1)] + ["read-out"]

    def _check(self, x: Tensor, state: State | None, steps: int | None) -> None:
        shape, K = self.config.input_shape, self.config.members
        axes = x.ndim - len(shape)
        wanted = f"(T, batch, {', '.join(map(str, shape))}) or (T, {K}, batch, {', '.join(map(str, shape))})"
        if axes not in (2, 3) or tuple(x.shape[axes:]) != tuple(shape) or (axes == 3 and x.shape[1] != K) or not x.is_floating_point():
            raise InputError(f"x has shape {tuple(x.shape)} and type {x.dtype}: floating-point numbers {wanted} are needed.")
        if not x.numel():
            raise InputError(f"x has shape {tuple(x.shape)} and holds nothing: at least one time step and one input are needed.")
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1 or len(x) != 1):
            raise InputError(
                f"steps is {steps!r} with {len(x)} time steps in x: give x one time step, and how often it is shown, at least once."
            )
        if state is not None and len(state.layers) != len(self.layers):
            raise InputError(
                f"state has {len(state.layers)} layers and the network {len(self.layers)}: give the state that this network returned."
            )
