"""The memory of the event-driven engine: a network in flat arrays, with one weight row for each
input that serves all members, and the buffers that its loops fill.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from agreestop.common import InputError, Integers, needs
from agreestop.networks.architectures import Convolutional, SpikingNetwork
from agreestop.networks.layers import MemberConv2d, SpikingLayer

CACHE_LINE = 64
NO_VALUES = np.zeros(0, dtype=np.float32)
# neurons of a layer whose state and currents stay in the second-level cache while all of
# them take a step
MOST_LANES = 1 << 15


@cache
def load_kernels() -> ModuleType:
    """The compiled kernels; an InputError where numba is missing."""
    with needs("the event-driven engine", "numba", advice="use the dense engine"):
        from agreestop.kernels.cpu import event_kernels
    return event_kernels


def aligned(size: int, dtype: Any) -> NDArray[Any]:
    """Zeros that start at a cache line, since a vector that crosses two lines costs two reads."""
    width = np.dtype(dtype).itemsize
    raw = np.zeros(size * width + CACHE_LINE, dtype=np.uint8)
    skip = -raw.ctypes.data % CACHE_LINE
    return raw[skip : skip + size * width].view(dtype)


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """One layer of K members.

    weight     (K, rows, outputs); rows are ordered by position in the window and then by channel,
               as spikes are; recurrent ones come last
    constants  (K, 8, outputs), see `event_kernels.CONSTANTS`
    shape      channels, height and width of its input
    size       height and width of its output, 1 × 1 for a fully connected layer
    window, stride, padding   (y, x) of a convolution, padding above and to the left; a fully
                              connected layer has one window
    neuron     kind of neuron, see `event_kernels`
    recurrent  number of weight rows that the layer's own spikes reach
    """

    weight: NDArray[np.float32]
    constants: NDArray[np.float32]
    shape: tuple[int, int, int]
    size: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    neuron: int = 0
    recurrent: int = 0
    pool: bool = False

    @property
    def convolves(self) -> bool:
        """Whether it is a convolution rather than fully connected."""
        return self.window != self.shape[1:] or self.size != (1, 1)

    @property
    def geometry(self) -> dict[str, int]:
        """What a record of it says, by name."""
        return {
            "neuron": self.neuron, "recurrent": self.recurrent, "pool": int(self.pool),
            "rows": self.weight.shape[1], "outputs": self.weight.shape[2],
            "height": self.size[0], "width": self.size[1],
            "window_y": self.window[0], "window_x": self.window[1],
            "stride_y": self.stride[0], "stride_x": self.stride[1],
            "pad_y": self.padding[0], "pad_x": self.padding[1],
            "in_channels": self.shape[0], "in_height": self.shape[1], "in_width": self.shape[2],
        }  # fmt: skip


def join_members(plans: Sequence[LayerPlan]) -> LayerPlan:
    """A layer of the members of several layers of one geometry."""
    weight, constants = (
        np.concatenate([getattr(plan, name) for plan in plans]) for name in ("weight", "constants")
    )
    return replace(plans[0], weight=weight, constants=constants)


@dataclass(frozen=True, eq=False)
class _Packed:
    """One layer: its record without offsets, its weights as memory rows, and the constants
    (8, K, lanes).
    """

    entry: dict[str, int]
    block: NDArray[Any]
    constants: NDArray[np.float32]


def _synapses(
    layer: SpikingLayer, channels: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (K, rows, outputs) and constants (K, 8, outputs) of a layer; `channels` is the
    number of channels at each position.
    """
    weight = layer.synapses.weight.detach()
    members = len(weight)
    if isinstance(layer.synapses, MemberConv2d):
        weight = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    else:
        weight = (
            weight.reshape(members, channels, -1, weight.shape[2]).transpose(1, 2).flatten(1, 2)
        )
    scale, bias = torch.ones(members, weight.shape[2]), torch.zeros(members, weight.shape[2])
    norm = layer.norm
    if norm is not None:  # PyTorch's own function gives gain and current with its own roundings
        constants = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        mean, variance, gain, offset = (
            value.detach().to(torch.promote_types(value.dtype, torch.float32)).flatten()
            for value in constants
        )
        zeros = torch.zeros_like(mean)
        ones = torch.ones_like(mean)
        scale = F.batch_norm(ones[None], zeros, variance, gain, zeros).view(members, -1)
        bias = F.batch_norm(zeros[None], mean, variance, gain, offset).view(members, -1)
    with torch.no_grad():  # with the same roundings as in `networks.neurons`
        a, b, r, threshold, gain = layer.neurons.parameters_for(torch.empty(1, 1)).constants
        neurons = [
            value.flatten().cpu()[:, None].expand_as(scale)
            for value in (a, b, r, threshold, gain, -threshold * r)
        ]
    together = torch.stack([scale.cpu(), bias.cpu(), *neurons], 1)
    return weight.float().cpu().numpy(), together.float().numpy()


def stored_weights(
    weight: NDArray[np.float32], precision: str
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Weights (K, rows, outputs) in the given precision, and the size (K, outputs) of
    one unit of them.
    """
    unit = np.ones((len(weight), weight.shape[2]), dtype=np.float32)
    if precision == "float32":
        return weight, unit
    if precision == "bfloat16":
        return torch.from_numpy(weight).bfloat16().view(torch.int16).numpy().view(np.uint16), unit
    step = np.abs(weight).max(axis=1) / np.float32(127)
    unit = np.where(step > 0, step, unit)
    return np.rint(weight / unit[:, None]).astype(np.int8), unit


def _in_pairs(weight: NDArray[np.uint16], lanes: int) -> NDArray[np.uint16]:
    """Wide tiles of bfloat16 as the kernels read them: lane j in the upper half of a 32-bit
    word, lane j + 64 in the lower half.
    """
    tiles = weight.reshape(*weight.shape[:-1], -1, 2, lanes // 2)
    return np.stack([tiles[..., 1, :], tiles[..., 0, :]], -1).reshape(weight.shape)


def _pack(plan: LayerPlan, precision: str, first: bool) -> _Packed:
    """A layer in memory.

    The members share the input of the first layer, and it is a list unless it needs bits.
    """
    kernels = load_kernels()
    if not all(np.isfinite(value).all() for value in (plan.weight, plan.constants)):
        raise InputError(
            "the members hold weights that are not finite in float32: train again with a lower "
            "learning rate."
        )
    stored, unit = stored_weights(plan.weight, precision)
    members, rows, outputs = stored.shape
    wide, rest = divmod(outputs, kernels.WIDE)
    wide, rest = (wide + 1, 0) if rest > kernels.WIDE // 2 else (wide, rest)
    narrow = -(-rest // kernels.NARROW)
    lanes = wide * kernels.WIDE + narrow * kernels.NARROW

    def padded(values: NDArray[Any]) -> NDArray[Any]:
        return np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, lanes - outputs)])

    stored = padded(stored)
    if precision == "bfloat16":
        stored[..., : wide * kernels.WIDE] = _in_pairs(
            stored[..., : wide * kernels.WIDE], kernels.WIDE
        )
    block = (
        stored.transpose(1, 0, 2).reshape(rows, -1)
        if first
        else stored.reshape(members * rows, lanes)
    )
    # an odd number of cache lines, or the rows of a tile would share a few sets of the cache
    if block.shape[1] > kernels.WIDE:
        per_line = CACHE_LINE // block.itemsize
        row = (-(-block.shape[1] // per_line) | 1) * per_line
        block = np.pad(block, [(0, 0), (0, row - block.shape[1])])
    constants = padded(plan.constants).transpose(1, 0, 2).copy()
    constants[0, :, :outputs] *= unit
    # lanes without a neuron never spike
    constants[kernels.CONSTANTS.index("threshold"), :, outputs:] = np.inf
    entry = plan.geometry | {
        "convolves": int(plan.convolves), "still": int(_is_still(plan)), "own": int(not first),
        "listed": int(first and not plan.convolves and not plan.recurrent),
        "wide": wide, "narrow": narrow, "lanes": lanes, "words": -(-lanes // 64),
        "row_stride": block.shape[1], "member_stride": lanes if first else rows * block.shape[1],
    }  # fmt: skip
    return _Packed(entry, block, constants)


def _is_still(plan: LayerPlan) -> bool:
    """Whether neurons below their threshold stay as they are without input: integrators without
    leak, synapse or constant current.
    """
    kernels = load_kernels()
    wanted = {"bias": 0, "a": 1, "b": 0, "r": 0}
    return plan.neuron != kernels.SRM and all(
        (plan.constants[:, kernels.CONSTANTS.index(name)] == value).all()
        for name, value in wanted.items()
    )


@dataclass(frozen=True, eq=False)
class FlatNetwork:
    """All layers in flat arrays: records, weights, and the constants (8, lanes) of the lanes
    of all layers.

    state: numbers of state for one input. received: 64-bit words of the input in one step, where it
    is bits. spikes, pooled: 64-bit words of spikes that each layer emits in one step, and that the
    next layer receives through a max-pool. listed: the longest list of events. window: the most
    words of bits under the windows of a line.
    """

    layers: NDArray[Any]
    weights: NDArray[Any]
    constants: NDArray[np.float32]
    members: int
    classes: int
    inputs: int
    real_input: bool
    state: int
    received: int
    spikes: tuple[int, ...]
    pooled: tuple[int, ...]
    listed: int
    window: int

    @property
    def by_rows(self) -> bool:
        """Whether each row passes all layers before the next: convolutions without wide tiles
        that the cache holds, then full layers.
        """
        layers, convolves = self.layers, self.layers["convolves"] == 1
        small = (
            (layers["height"] * layers["width"] * layers["lanes"] <= MOST_LANES)
            & (layers["width"] <= 64)
            & (layers["wide"] == 0)
        )
        return bool(
            convolves[0]
            and not convolves[-1]
            and small[convolves].all()
            and not layers["recurrent"].any()
        )

    @cached_property
    def weights_by_part(self) -> NDArray[Any]:
        """The weights as `convolve` reads them: those of 16 channels lie next to each other,
        (K, channels / 16, rows, 16).

        The weight rows of the first layer, which the members share, stay as they are.
        """
        weights = aligned(len(self.weights), self.weights.dtype)
        weights[:] = self.weights
        for layer in self.layers[(self.layers["convolves"] == 1) & (self.layers["own"] == 1)]:
            block = weights[layer["weights_at"] :][: self.members * layer["member_stride"]]
            parts = block.reshape(self.members, layer["rows"], -1, load_kernels().NARROW).swapaxes(
                1, 2
            )
            block[:] = parts.reshape(-1)
        return weights

    def select_members(self, first: int, last: int) -> "FlatNetwork":
        """The network of the members first … last - 1.

        It shares the weights; in each row it reads those of its members.
        """
        layers, count = self.layers.copy(), last - first
        layers["weights_at"] += first * layers["member_stride"]
        layers["lanes_at"] += first * layers["lanes"]
        # every part of the state has as many numbers for each member
        layers["state_at"] = layers["state_at"] // self.members * count
        spikes, pooled = (
            tuple(size // self.members * count for size in sizes)
            for sizes in (self.spikes, self.pooled)
        )
        return replace(
            self,
            layers=layers,
            members=count,
            state=self.state // self.members * count,
            spikes=spikes,
            pooled=pooled,
        )


def plan_network(network: SpikingNetwork) -> list[LayerPlan]:
    """The layers of a network, copied."""
    config = network.config
    shape = (
        config.input_shape
        if isinstance(config, Convolutional)
        else (math.prod(config.input_shape), 1, 1)
    )
    plans: list[LayerPlan] = []
    for layer in network.layers:
        if layer.max_pool:
            plans[-1] = replace(plans[-1], pool=True)
            shape = (shape[0], shape[1] // 2, shape[2] // 2)
        convolution = isinstance(layer.synapses, MemberConv2d)
        size, window, around = (
            (shape[1:], (3, 3), (1, 1)) if convolution else ((1, 1), shape[1:], (0, 0))
        )
        plans.append(LayerPlan(*_synapses(layer, shape[0]), shape, size, window, padding=around))
        shape = (plans[-1].weight.shape[2], *size)
    return plans


def flatten_plans(plans: Sequence[LayerPlan], precision: str, real_input: bool) -> FlatNetwork:
    """The layers, each of which receives the spikes of the one before it, in memory."""
    packed = [_pack(plan, precision, first=not index) for index, plan in enumerate(plans)]
    members, inputs = len(plans[0].weight), math.prod(plans[0].shape)
    layers = np.zeros(len(packed), dtype=load_kernels().LAYER)
    offsets = {"weights_at": 0, "state_at": 0, "lanes_at": 0}
    for record, part in zip(layers, packed, strict=True):
        for name, value in (part.entry | offsets).items():
            record[name] = value
        lanes = part.constants[0].size
        grown = (
            -(-part.block.size // CACHE_LINE) * CACHE_LINE,
            3 * lanes * int(record["height"] * record["width"]),
            lanes,
        )
        offsets = {name: at + size for (name, at), size in zip(offsets.items(), grown, strict=True)}
    layers["all_lanes"] = offsets["lanes_at"]
    layers["in_words"] = [-(-int(layers[0]["in_channels"]) // 64), *layers["words"][:-1]]
    weights = aligned(offsets["weights_at"], packed[0].block.dtype)
    for at, part in zip(layers["weights_at"], packed, strict=True):
        weights[at : at + part.block.size] = part.block.ravel()
    positions = layers["height"] * layers["width"]
    halved = (layers["height"] // 2) * (layers["width"] // 2) * layers["pool"]
    received = int(layers[0]["in_height"] * layers[0]["in_width"] * layers[0]["in_words"])
    return FlatNetwork(
        layers=layers,
        weights=weights,
        constants=np.concatenate(
            [part.constants.reshape(len(part.constants), -1) for part in packed], axis=1
        ),
        members=members,
        classes=int(layers[-1]["outputs"]),
        inputs=inputs,
        real_input=real_input,
        state=offsets["state_at"],
        received=0 if layers[0]["listed"] else received,
        spikes=tuple((members * positions * layers["words"]).tolist()),
        pooled=tuple((members * halved * layers["words"]).tolist()),
        listed=max(inputs, int(layers["rows"].max())),
        window=int((layers["window_y"] * layers["in_width"] * layers["in_words"]).max()),
    )


@dataclass(frozen=True, eq=False)
class Lists:
    """Buffers for lists of events: where words of bits are active, where each list begins, the
    events, their values, and currents.
    """

    active: NDArray[np.uint64]
    starts: Integers
    events: NDArray[np.int32]
    values: NDArray[np.float32]
    currents: NDArray[np.float32]

    @classmethod
    def of(cls, lists: int, size: int, lanes: int = 0, words: int = 0) -> "Lists":
        """Buffers for `lists` lists of `size` events in all, `lanes` currents and `words` words of
        bits for each of `lists` steps.

        Memory that no event reaches is never touched.
        """
        kernels = load_kernels()
        active = np.empty(words * -(-lists // 64), np.uint64)
        events, currents = size + kernels.SPARE, max(lanes, kernels.WIDE * kernels.STEPS_SUMMED)
        buffers = (
            np.empty(lists + 2, np.int64),
            np.empty(events, np.int32),
            np.empty(size, np.float32),
            aligned(currents, np.float32),
        )
        return cls(active, *buffers)


@dataclass(frozen=True, eq=False)
class Block:
    """Buffers for the spikes of all layers in some rows and steps, for the lists of inputs, and
    for the lists of each thread.
    """

    pairs: int
    steps: int
    received: NDArray[np.uint64]
    spikes: list[NDArray[np.uint64]]
    pooled: list[NDArray[np.uint64]]
    inputs: Lists
    local: list[Lists]

    @classmethod
    def of(cls, network: FlatNetwork, pairs: int, steps: int, threads: int) -> "Block":
        """Buffers for `pairs` pairs of row and step; a row of words is an odd number of cache
        lines, as for the weights.
        """
        columns = (-(-(pairs + 7) // 8) | 1) * 8  # the kernels test eight steps at once
        spikes, pooled = (
            [np.zeros((words, columns), np.uint64) for words in sizes]
            for sizes in (network.spikes, network.pooled)
        )
        inputs = Lists.of(pairs, 0 if network.received else pairs * network.inputs)
        local = [
            Lists.of(steps, steps * network.listed, words=network.window) for _ in range(threads)
        ]
        return cls(
            pairs,
            steps,
            np.zeros((network.received, columns), np.uint64),
            spikes,
            pooled,
            inputs,
            local,
        )


@dataclass(frozen=True, eq=False)
class RowBuffers:
    """Buffers for one row of a network that is run row by row, in one thread.

    See `event_rows.run_rows`.
    """

    frames: NDArray[Any]
    begins: Integers
    where: Integers
    words: NDArray[np.uint64]
    frame: NDArray[np.uint64]
    fired: NDArray[np.uint64]
    spiked: NDArray[np.uint64]
    currents: NDArray[np.float32]
    touched: NDArray[np.uint64]
    again: NDArray[np.uint64]
    spikes: NDArray[np.uint64]
    starts: Integers
    events: NDArray[np.int32]
    values: NDArray[np.float32]
    sums: NDArray[np.float32]

    @classmethod
    def of(cls, network: FlatNetwork, steps: int, frames: int) -> "RowBuffers":
        """Buffers for blocks of `steps` steps; `frames` values of sparse inputs.

        Memory that no event reaches is never touched.
        """
        kernels, layers = load_kernels(), network.layers
        full, together = layers["convolves"] == 0, kernels.TOGETHER
        lines, size = (
            int(
                max(
                    np.prod([layers[f"{side}{name}"] for name in names], axis=0).max()
                    for side in ("", "in_")
                )
            )
            for names in (("height",), ("height", "width", "words"))
        )
        open_lines = ((layers["window_y"] - 1) // layers["stride_y"] + 1)[~full]
        columns = int((open_lines * (layers["width"] + 2 * kernels.MARGIN)[~full]).max())
        first = layers[0]["in_height"] * layers[0]["in_width"] * layers[0]["in_words"]
        return cls(
            frames=np.empty(frames, np.float32),
            begins=np.zeros((3, steps * lines + 1), np.int64),
            where=np.empty((3, steps * size + 1), np.int64),
            words=np.empty((3, steps * size + 1), np.uint64),
            # the kernels test eight words at once
            frame=np.zeros(together * int(first) + 7, np.uint64),
            fired=np.empty(together * int((layers["height"] * layers["width"]).max()), np.uint64),
            spiked=np.zeros(together * lines, np.uint64),
            currents=aligned(together * columns * kernels.NARROW, np.float32),
            touched=np.zeros(together * int(open_lines.max()), np.uint64),
            again=np.empty(4 * lines, np.uint64),  # for each 16 of at most 64 channels
            spikes=np.zeros((network.members * int(layers["words"][full].sum()), steps), np.uint64),
            starts=np.empty(steps + 1, np.int64),
            events=np.empty(steps * int(layers["rows"][full].max()), np.int32),
            values=NO_VALUES,
            sums=aligned(kernels.WIDE * kernels.STEPS_SUMMED, np.float32),
        )
