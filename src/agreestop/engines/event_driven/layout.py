"""The memory layout of the event-driven engine: a network in flat arrays, with one weight row for each input that serves all members."""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from agreestop.common import InputError
from agreestop.networks.architectures import Convolutional, SpikingLayer, SpikingNetwork
from agreestop.networks.layers import MemberConv2d

CACHE_LINE = 64


def load_kernels() -> ModuleType:
    """The compiled kernels; an InputError where numba is missing."""
    try:
        from agreestop.networks._kernels import event_kernels
    except ImportError as error:
        raise InputError(f"the event-driven engine needs numba ({error}): install agreestop[engines], or use the dense engine.") from None
    return event_kernels


def aligned(size: int, dtype: Any) -> NDArray[Any]:
    """Zeros that start at a cache line, since a vector that crosses two lines costs two reads."""
    width = np.dtype(dtype).itemsize
    raw = np.zeros(size * width + CACHE_LINE, dtype=np.uint8)
    skip = -raw.ctypes.data % CACHE_LINE
    return raw[skip : skip + size * width].view(dtype)


@dataclass(frozen=True, eq=False)
class _Packed:
    """One layer: its record without offsets, its weights as memory rows, gain and constant current (K, lanes), and constants (K, 6)."""

    entry: dict[str, int]
    block: NDArray[Any]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
    constants: NDArray[np.float32]


def _synapses(layer: SpikingLayer, channels: int) -> tuple[NDArray[np.float32], ...]:
    """Weights (K, rows, outputs), and gain and constant current (K, outputs).

    Rows are ordered by position and then by channel, as spikes are; `channels` is the number of channels at each position.
    """
    weight = layer.synapses.weight.detach()
    members = len(weight)
    if isinstance(layer.synapses, MemberConv2d):
        weight = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    else:
        weight = weight.reshape(members, channels, -1, weight.shape[2]).transpose(1, 2).flatten(1, 2)
    scale, bias = torch.ones(members, weight.shape[2]), torch.zeros(members, weight.shape[2])
    norm = layer.norm
    if norm is not None:  # PyTorch's own function gives gain and current with its own roundings
        constants = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        mean, variance, gain, offset = (value.detach().to(torch.promote_types(value.dtype, torch.float32)).flatten() for value in constants)
        zeros = torch.zeros_like(mean)
        scale = F.batch_norm(torch.ones_like(mean)[None], zeros, variance, gain, zeros).view(members, -1)
        bias = F.batch_norm(zeros[None], mean, variance, gain, offset).view(members, -1)
    return tuple(value.float().cpu().numpy() for value in (weight, scale, bias))


def _constants(layer: SpikingLayer) -> NDArray[np.float32]:
    """a, b, r, θ, c and -θ r of each member, (K, 6), with the same roundings as in `networks.neurons`."""
    with torch.no_grad():
        a, b, r, threshold, gain = layer.neurons.parameters_for(torch.empty(1, 1)).constants
        values = torch.stack([value.flatten() for value in (a, b, r, threshold, gain, -threshold * r)], 1)
    return cast(NDArray[np.float32], values.float().cpu().numpy())


def _stored(weight: NDArray[np.float32], precision: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Weights (K, rows, outputs) in the given precision, and the size (K, outputs) of one unit of them."""
    unit = np.ones((len(weight), weight.shape[2]), dtype=np.float32)
    if precision == "float32":
        return weight, unit
    if precision == "bfloat16":
        return torch.from_numpy(weight).bfloat16().view(torch.int16).numpy().view(np.uint16), unit
    step = np.abs(weight).max(axis=1) / np.float32(127)
    unit = np.where(step > 0, step, unit)
    return np.rint(weight / unit[:, None]).astype(np.int8), unit


def _in_pairs(weight: NDArray[np.uint16], lanes: int) -> NDArray[np.uint16]:
    """Wide tiles of bfloat16 as the kernels read them: lane j in the upper half of a 32-bit word, lane j + 64 in the lower half."""
    tiles = weight.reshape(*weight.shape[:-1], -1, 2, lanes // 2)
    return np.stack([tiles[..., 1, :], tiles[..., 0, :]], -1).reshape(weight.shape)


def _pack(layer: SpikingLayer, shape: tuple[int, int, int], precision: str, shared: bool) -> _Packed:
    """A layer that receives spikes of `shape` (channels, height, width); `shared` says that all members receive the same."""
    kernels, convolution = load_kernels(), isinstance(layer.synapses, MemberConv2d)
    weight, scale, bias = _synapses(layer, shape[0])
    constants = _constants(layer)
    if not all(np.isfinite(value).all() for value in (weight, scale, bias, constants)):
        raise InputError("the members hold weights that are not finite in float32: train again with a lower learning rate.")
    stored, unit = _stored(weight, precision)
    members, rows, outputs = stored.shape
    wide, rest = divmod(outputs, kernels.WIDE)
    wide, rest = (wide + 1, 0) if rest > kernels.WIDE // 2 else (wide, rest)
    narrow = -(-rest // kernels.NARROW)
    lanes = wide * kernels.WIDE + narrow * kernels.NARROW

    def padded(values: NDArray[Any]) -> NDArray[Any]:
        return np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, lanes - outputs)])

    stored = padded(stored)
    if precision == "bfloat16":
        stored[..., : wide * kernels.WIDE] = _in_pairs(stored[..., : wide * kernels.WIDE], kernels.WIDE)
    block = stored.transpose(1, 0, 2).reshape(rows, -1) if shared else stored.reshape(members * rows, lanes)
    if block.shape[1] > kernels.WIDE:  # an odd number of cache lines, or the rows of a tile would share a few sets of the cache
        per_line = CACHE_LINE // block.itemsize
        row = (-(-block.shape[1] // per_line) | 1) * per_line
        block = np.pad(block, [(0, 0), (0, row - block.shape[1])])
    height, width = shape[1:] if convolution else (1, 1)
    entry = {
        "window": 3 if convolution else 0, "own": int(not shared), "rows": rows, "outputs": outputs, "height": height, "width": width,
        "wide": wide, "narrow": narrow, "lanes": lanes, "words": -(-lanes // 64),
        "in_channels": shape[0], "in_height": shape[1], "in_width": shape[2],
        "row_stride": block.shape[1], "member_stride": lanes if shared else rows * block.shape[1],
    }  # fmt: skip
    return _Packed(entry, block, padded(scale * unit), padded(bias), constants)


@dataclass(frozen=True, eq=False)
class FlatNetwork:
    """All layers in flat arrays: records, weights, gain and constant current of each lane, constants (layers, K, 6).

    state: numbers of state for one input. received: 64-bit words of a convolution's input in one step. spikes, pooled: 64-bit words of
    spikes that each layer emits in one step, and that the next layer receives through a max-pool. listed: the longest list of events.
    """

    layers: NDArray[Any]
    weights: NDArray[Any]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
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

    def select_members(self, first: int, last: int) -> "FlatNetwork":
        """The network of the members first … last - 1. It shares the weights; in each row it reads those of its members."""
        layers, count = self.layers.copy(), last - first
        layers["weights_at"] += first * layers["member_stride"]
        layers["lanes_at"] += first * layers["lanes"]
        layers["state_at"] = layers["state_at"] // self.members * count  # every part of the state has as many numbers for each member
        spikes, pooled = (tuple(size // self.members * count for size in sizes) for sizes in (self.spikes, self.pooled))
        return replace(
            self,
            layers=layers,
            constants=np.ascontiguousarray(self.constants[:, first:last]),
            members=count,
            state=self.state // self.members * count,
            spikes=spikes,
            pooled=pooled,
        )


def flatten_network(network: SpikingNetwork, precision: str) -> FlatNetwork:
    """A copy of the network with weights of this precision."""
    config, kernels = network.config, load_kernels()
    convolutional, inputs = isinstance(config, Convolutional), math.prod(config.input_shape)
    shape = cast(tuple[int, int, int], config.input_shape) if convolutional else (inputs, 1, 1)
    packed: list[_Packed] = []
    for module in network.layers:
        layer = cast(SpikingLayer, module)
        if layer.max_pool:
            packed[-1].entry["pool"] = 1
            shape = (shape[0], shape[1] // 2, shape[2] // 2)
        packed.append(_pack(layer, shape, precision, shared=not packed))
        shape = cast(tuple[int, int, int], tuple(packed[-1].entry[name] for name in ("outputs", "height", "width")))
    layers = np.zeros(len(packed), dtype=kernels.LAYER)
    offsets = {"weights_at": 0, "state_at": 0, "lanes_at": 0}
    for record, part in zip(layers, packed, strict=True):
        for name, value in (part.entry | offsets).items():
            record[name] = value
        lanes = part.scale.size
        grown = (-(-part.block.size // CACHE_LINE) * CACHE_LINE, 3 * lanes * int(record["height"] * record["width"]), lanes)
        offsets = {name: at + size for (name, at), size in zip(offsets.items(), grown, strict=True)}
    layers["in_words"] = [-(-int(layers[0]["in_channels"]) // 64), *layers["words"][:-1]]
    weights = aligned(offsets["weights_at"], packed[0].block.dtype)
    for at, part in zip(layers["weights_at"], packed, strict=True):
        weights[at : at + part.block.size] = part.block.ravel()
    positions = layers["height"] * layers["width"]
    halved = (layers["height"] // 2) * (layers["width"] // 2) * layers["pool"]
    return FlatNetwork(
        layers=layers,
        weights=weights,
        scale=np.concatenate([part.scale.ravel() for part in packed]),
        bias=np.concatenate([part.bias.ravel() for part in packed]),
        constants=np.stack([part.constants for part in packed]),
        members=config.members,
        classes=config.classes,
        inputs=inputs,
        real_input=config.real_input,
        state=offsets["state_at"],
        received=int(layers[0]["in_height"] * layers[0]["in_width"] * layers[0]["in_words"]) if convolutional else 0,
        spikes=tuple((config.members * positions * layers["words"]).tolist()),
        pooled=tuple((config.members * halved * layers["words"]).tolist()),
        listed=max(inputs, int(layers["rows"].max())),
    )
