"""Spiking networks with K members in one module: the settings of three architectures, and the
network that is built from them.

    fully-connected input - hidden SRM - read-out SRM
                    (MNIST-DVS)
    convolutional   [convolution - batch norm - SRM - max-pool] × stages - hidden SRM - read-out SRM
                    (DVS128 Gesture; Fang et al. 2021)
    resnet18        3×3 stem - 4 stages of 2 basic blocks, SRM for ReLU - average - read-out SRM
                    (CIFAR-10)

Time is the first axis. A network stores no state between calls: state goes in and comes out.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast, final

import torch
from torch import Tensor, nn

from agreestop.common import InputError, as_count, as_shape
from agreestop.kernels.srm import SRMState

from .layers import (
    MemberBatchNorm2d,
    MemberConv2d,
    MemberLinear,
    SpikingLayer,
    conv_layer,
    count_nonzero,
    dense_layers,
    draw_weights,
    normalised_conv,
)
from .modules import check_held
from .neurons import SRM, Neuron


class NetworkState(NamedTuple):
    """State of a network between time steps: the state of each layer, and the number
    of steps so far.
    """

    layers: Sequence[SRMState]
    time: int

    def rows(self, index: Tensor) -> "NetworkState":
        """The state of some inputs of the batch; index holds their positions."""
        return NetworkState(
            tuple(
                SRMState(*(part.index_select(1, index) for part in layer)) for layer in self.layers
            ),
            self.time,
        )


class _JoinedLayers(Sequence[SRMState]):
    """The layers' states of members that ran one after the other, joined when they are read,
    which training does not do.
    """

    def __init__(self, members: list[Sequence[SRMState]]) -> None:
        self._members = members

    def __len__(self) -> int:
        return len(self._members[0])

    def __getitem__(self, index: Any) -> Any:
        return SRMState(
            *map(torch.cat, zip(*(layers[index] for layers in self._members), strict=True))
        )


QUICK = Neuron(membrane_time=2.0, synapse_time=0.5, refractory_time=2.0)
"""Neurons for deep networks.

Each layer responds within a step or two, because the delays of the layers add up.
"""


class Architecture(Protocol):
    """Settings of a spiking network.

    A frozen dataclass with these fields and a `layers` method is an architecture.

    input_shape: the shape of one input at one time step. classes: the number of read-out neurons.
    members: the number of members K. real_input: True if the input has values other than 0 and 1;
    its operations then count as multiplications.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def classes(self) -> int: ...

    @property
    def members(self) -> int: ...

    @property
    def real_input(self) -> bool: ...

    def layers(self) -> list[SpikingLayer]:
        """New layers of K members, from the input to the read-out.

        If the first is fully connected, it receives the flattened input.
        """
        ...


def _check_settings(settings: "FullyConnected | Convolutional | ResNet18", *shapes: str) -> None:
    """Check the settings that architectures share, and store counts as Python integers and the
    fields `shapes` as tuples of them.
    """
    for name in shapes:
        object.__setattr__(settings, name, as_shape(getattr(settings, name), name))
    for name in ("classes", "members"):
        object.__setattr__(settings, name, as_count(getattr(settings, name), name))
    if not isinstance(settings.neuron, Neuron):
        raise InputError(
            f"neuron is {settings.neuron!r}: give a Neuron, for example Neuron(membrane_time=8.0)."
        )


@final
@dataclass(frozen=True)
class FullyConnected:
    """Hidden layers of SRM neurons on the flattened input; the default is one layer of 1000.

    input_shape is the shape of one input at one time step and has any number of axes, e.g. (12,) or
    12 for twelve sensors. real_input=True: the input has values other than 0 and 1, so its
    operations count as multiplications.
    """

    input_shape: tuple[int, ...]
    classes: int
    members: int = 1
    hidden: tuple[int, ...] = (1000,)
    neuron: Neuron = field(default_factory=Neuron)
    real_input: bool = False

    def __post_init__(self) -> None:
        _check_settings(self, "input_shape", "hidden")

    def layers(self) -> list[SpikingLayer]:
        return dense_layers(
            self.members, (math.prod(self.input_shape), *self.hidden, self.classes), self.neuron
        )


@final
@dataclass(frozen=True)
class Convolutional:
    """Convolutional stages, then fully connected layers. input_shape is (channels, height, width).

    Each entry of `channels` is a stage: 3×3 convolution, batch norm, SRM, 2×2 max-pool.
    """

    input_shape: tuple[int, int, int]
    classes: int
    members: int = 1
    channels: tuple[int, ...] = (128, 128, 128, 128, 128)
    hidden: tuple[int, ...] = (512,)
    neuron: Neuron = QUICK
    real_input: bool = True

    def __post_init__(self) -> None:
        _check_settings(self, "input_shape", "channels", "hidden")
        if not self.channels:
            raise InputError(
                "channels is empty: give the channels of at least one stage, or take "
                "FullyConnected."
            )
        _check_image(self.input_shape, 2 ** len(self.channels))

    def layers(self) -> list[SpikingLayer]:
        K, neuron = self.members, self.neuron
        sizes = (self.input_shape[0], *self.channels)
        stages = [
            conv_layer(K, sizes[i], sizes[i + 1], neuron, max_pool=i > 0)
            for i in range(len(self.channels))
        ]
        height, width = (length // 2 ** len(self.channels) for length in self.input_shape[1:])
        return stages + dense_layers(
            K, (sizes[-1] * height * width, *self.hidden, self.classes), neuron, max_pool=True
        )


@final
@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 with SRM neurons instead of ReLU. input_shape is (channels, height, width).

    A 3×3 stem, four stages of two basic blocks with 1, 2, 4 and 8 times `width` channels, and an
    averaging read-out. The shortcut is added to the current of the second neuron of a block. timed:
    the number of first steps with separate statistics in each batch norm; 0: none.
    """

    input_shape: tuple[int, int, int]
    classes: int
    members: int = 1
    width: int = 64
    neuron: Neuron = QUICK
    real_input: bool = True
    timed: int = 0

    def __post_init__(self) -> None:
        _check_settings(self, "input_shape")
        as_count(self.width, "width")
        as_count(self.timed, "timed", 0)
        _check_image(self.input_shape, 1)

    def layers(self) -> list[SpikingLayer]:
        K, neuron, timed = self.members, self.neuron, self.timed
        layers = [conv_layer(K, self.input_shape[0], self.width, neuron, timed=timed)]
        channels = self.width
        for outputs, stride in (
            (self.width * 2**stage, 1 + (stage > 0 and block == 0))
            for stage in range(4)
            for block in range(2)
        ):
            same = stride == 1 and outputs == channels
            shortcut = (
                nn.Identity() if same else normalised_conv(K, channels, outputs, 1, stride, timed)
            )
            layers.append(conv_layer(K, channels, outputs, neuron, stride=stride, timed=timed))
            layers.append(conv_layer(K, outputs, outputs, neuron, shortcut=shortcut, timed=timed))
            channels = outputs
        return [
            *layers,
            SpikingLayer(
                MemberLinear(K, channels, self.classes), None, SRM(K, neuron), average=True
            ),
        ]


BuiltIn = FullyConnected | Convolutional | ResNet18
ARCHITECTURES: dict[str, type[BuiltIn]] = {
    "fully-connected": FullyConnected,
    "convolutional": Convolutional,
    "resnet18": ResNet18,
}
"""The architectures that files and configurations can name."""


def _check_image(shape: tuple[int, ...], least: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(
            f"input_shape is {shape}: (channels, height, width) with height and width of at least "
            f"{least} is needed."
        )


@final
@dataclass(frozen=True)
class Activity:
    """Operations of one call, for an estimate of energy: integers (layers, T, K, batch).

    The last layer is the read-out.

    spikes: spikes of the layer's neurons. accumulates: additions of a weight, one for each synapse
    that a spike reaches. multiplies: multiply-accumulates, one for each synapse that a non-zero
    real-valued input reaches. Batch norm, and the average before a read-out, are assumed to be
    folded into the weights. An image held for `steps` counts once per call, at the first step.
    """

    spikes: Tensor
    accumulates: Tensor
    multiplies: Tensor


@final
class SpikingNetwork(nn.Module):
    """K members of one architecture: input (T, batch, *input_shape) to read-out spikes
    (T, K, batch, classes).

    Initial weights are drawn from the generator: PyTorch's default distribution, or
    N(0, deviation²). The first axis of every parameter and buffer is the member. Use
    `torch.func.functional_call` to run the network with other weights. Attributes: `config`; the
    number of `members` K; the number of `classes` C; `input_shape`, the shape of one input at one
    time step; `real_input`, as in the settings; `repeats`, what an event that is named several
    times in a live step means: it counts "once" or "each" time, or is "refused".
    """

    output: Literal["spikes"] = "spikes"
    layers: Sequence[SpikingLayer]

    def __init__(
        self, config: Architecture, generator: torch.Generator, deviation: float | None = None
    ) -> None:
        super().__init__()
        if not hasattr(config, "layers") or not isinstance(generator, torch.Generator):
            raise InputError(
                f"config is a {type(config).__name__} and generator a {type(generator).__name__}: "
                "settings such as FullyConnected, and a torch.Generator, are needed."
            )
        self.config = config
        self.members, self.classes = config.members, config.classes
        self.input_shape, self.real_input = config.input_shape, config.real_input
        # real_input is True by default for convolutions, so whether they were trained on
        # counts is not known
        self.repeats = (
            ("each" if isinstance(config, FullyConnected) else "refused")
            if config.real_input
            else "once"
        )
        self.layers = cast(Any, nn.ModuleList(config.layers()))  # a sequence that torch knows
        # For each member a network of one, and views of the buffers for them; in lists, so that
        # they are no part of this network.
        self._singles: list[SpikingNetwork] = []
        self._views: list[Any] = []
        draw_weights(self, generator, deviation)

    def select_members(self, members: slice) -> "SpikingNetwork":
        """A network of some of the members, with copies of their weights and statistics."""
        state = {name: value[members].clone() for name, value in self.state_dict().items()}
        count = len(range(*members.indices(self.members)))
        fewer = SpikingNetwork(
            replace(self.config, members=count), torch.Generator().manual_seed(0)
        )
        fewer.load_state_dict(state)
        return fewer.to(next(self.parameters()).device).train(self.training)

    @classmethod
    def join_members(cls, networks: "Sequence[SpikingNetwork]") -> "SpikingNetwork":
        """One network of the members of several networks of one architecture, in their order,
        with copies of their weights.
        """
        states = [network.state_dict() for network in networks]
        total = sum(network.members for network in networks)
        joined = cls(replace(networks[0].config, members=total), torch.Generator().manual_seed(0))
        joined.load_state_dict(
            {name: torch.cat([state[name] for state in states]) for name in states[0]}
        )
        return joined

    def forward(
        self,
        x: Tensor,
        state: NetworkState | None = None,
        steps: int | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, NetworkState]:
        """Input (T, batch, *input_shape) or (T, K, batch, *input_shape) to read-out spikes
        (T, K, batch, classes) and the state after them.

        A still image is given once, as (1, batch, ...), with the number of `steps` for which it is
        held. Its first layer is then computed once. keep_state=False returns a state without
        layers, which cannot be continued from; training is then faster.
        """
        return self._run(x, state, steps, None, keep_state)

    def count(
        self, x: Tensor, state: NetworkState | None = None, steps: int | None = None
    ) -> tuple[Tensor, NetworkState, Activity]:
        """The result of a call, and the operations of every layer."""
        counts: list[tuple[Tensor, Tensor, Tensor]] = []
        spikes, after = self._run(x, state, steps, counts)
        return spikes, after, Activity(*(torch.stack(kind) for kind in zip(*counts, strict=True)))

    def _run(
        self,
        x: Tensor,
        state: NetworkState | None,
        steps: int | None,
        counts: list[tuple[Tensor, Tensor, Tensor]] | None,
        keep_state: bool = True,
    ) -> tuple[Tensor, NetworkState]:
        self._check(x, state, steps)
        layers = self.layers
        if (
            self.members > 1
            and torch.is_grad_enabled()
            and isinstance(layers[0].synapses, MemberConv2d)
            and counts is None
        ):
            return self._run_in_turn(x, state, steps, keep_state)
        if isinstance(layers[0].synapses, MemberLinear):
            x = x.reshape(*x.shape[: x.ndim - len(self.input_shape)], -1)
        if state is None and not keep_state and torch.is_grad_enabled():
            return self._train(x, steps)
        earlier, after = x, []
        befores, time = (state.layers, state.time) if state else ((None,) * len(layers), 0)
        for index, (layer, before) in enumerate(zip(layers, befores, strict=True)):
            spikes, layer_after = layer(x, earlier, before, None if index else steps, time)
            if counts is not None:
                counts.append(self._count_operations(layer, index, x, earlier, spikes))
            earlier, x = x, spikes
            after.append(layer_after)
        return x, NetworkState(tuple(after), time + len(x))

    def _train(self, x: Tensor, steps: int | None) -> tuple[Tensor, NetworkState]:
        """Spikes from rest, and a state without layers."""
        earlier, pooled = x, False
        for index, layer in enumerate(self.layers):
            pool = index + 1 < len(self.layers) and self.layers[index + 1].max_pool
            spikes, pooled = layer.train_in_one_kernel(
                x, earlier, None if index else steps, pooled, pool
            )
            earlier, x = x, spikes
        return x, NetworkState((), len(x))

    def _run_in_turn(
        self, x: Tensor, state: NetworkState | None, steps: int | None, keep_state: bool = True
    ) -> tuple[Tensor, NetworkState]:
        """The same, one member after the other: each fills the device, and convolutions with
        groups are slower backwards.
        """
        if not self._singles:
            first = SpikingNetwork(
                replace(self.config, members=1), torch.Generator().manual_seed(0)
            )
            self._singles += [deepcopy(first) for _ in range(self.members)]
        buffers = list(self.named_buffers())
        if len(self._views) != 2 or any(
            old is not new for old, (_, new) in zip(self._views[0], buffers, strict=True)
        ):
            # The views are kept, since neurons keep their constants as long as these are
            # the same tensors.
            views = [
                {name: value[member : member + 1] for name, value in buffers}
                for member in range(self.members)
            ]
            self._views[:] = [value for _, value in buffers], views
        last = self.layers[-1]
        seen: list[Tensor] = []
        parts = {name: value.unbind(0) for name, value in self.named_parameters()}
        outputs, afters = [], []
        for member, single in enumerate(self._singles):
            single.like(self)
            single.layers[-1].observe = None if last.observe is None else seen.append
            values = {name: part[member][None] for name, part in parts.items()}
            values |= self._views[1][member]
            before = (
                None
                if state is None
                else NetworkState(
                    tuple(layer.members(slice(member, member + 1)) for layer in state.layers),
                    state.time,
                )
            )
            received = x[:, member : member + 1] if x.ndim == 3 + len(self.input_shape) else x
            spikes, after = torch.func.functional_call(
                single, values, (received, before, steps, keep_state)
            )
            outputs.append(spikes)
            afters.append(after)
            # `seen` holds tensors of this call
            single.layers[-1].observe = None
        if last.observe is not None:
            last.observe(torch.cat(seen, 1))
        layers = _JoinedLayers([after.layers for after in afters]) if keep_state else ()
        return torch.cat(outputs, 1), NetworkState(layers, afters[0].time)

    def like(self, other: "SpikingNetwork") -> None:
        """Take over the mode of another network: training, momentum, and how its neurons run."""
        self.train(other.training)
        for its, mine in zip(other.modules(), self.modules(), strict=True):
            if isinstance(its, SRM) and isinstance(mine, SRM):
                mine.fused = its.fused
                mine.rates = its.rates
                mine.float16_spikes = its.float16_spikes
            if isinstance(its, MemberBatchNorm2d) and isinstance(mine, MemberBatchNorm2d):
                mine.momentum = its.momentum

    def _count_operations(
        self, layer: SpikingLayer, index: int, x: Tensor, earlier: Tensor, spikes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Spikes, accumulates and multiplies of one layer, each (T, K, batch)."""
        emitted = count_nonzero(spikes)
        operations, none = torch.zeros_like(emitted), torch.zeros_like(emitted)
        operations[: len(x)] = layer.operations(
            x.unsqueeze(1) if x.ndim < spikes.ndim else x, earlier
        )
        if index == 0 and self.real_input:
            return emitted, none, operations
        if index == 0 and not bool(((x == 0) | (x == 1)).all()):
            raise InputError(
                "x holds values other than 0 and 1: set real_input=True in the settings to count "
                "its operations as multiplications."
            )
        return emitted, operations, none

    def _check(self, x: Tensor, state: NetworkState | None, steps: int | None) -> None:
        shape, K = self.input_shape, self.members
        if not isinstance(x, Tensor) or not isinstance(state, NetworkState | None):
            raise InputError(
                f"x is a {type(x).__name__} and state a {type(state).__name__}: a tensor, and the "
                "state that a call returned or None, are needed."
            )
        axes, sizes = x.ndim - len(shape), "".join(f", {size}" for size in shape)
        wanted = f"(T, batch{sizes}) or (T, {K}, batch{sizes})"
        if (
            axes not in (2, 3)
            or tuple(x.shape[axes:]) != tuple(shape)
            or (axes == 3 and x.shape[1] != K)
            or not x.is_floating_point()
        ):
            raise InputError(
                f"x has shape {tuple(x.shape)} and type {x.dtype}: floating-point numbers {wanted} "
                "are needed."
            )
        if not x.numel():
            raise InputError(
                f"x has shape {tuple(x.shape)} and holds nothing: at least one time step and one "
                "input are needed."
            )
        check_held(x, steps)
        if state is not None and len(state.layers) != len(self.layers):
            raise InputError(
                f"state has {len(state.layers)} layers and the network {len(self.layers)}: give "
                "the state that this network returned."
            )
