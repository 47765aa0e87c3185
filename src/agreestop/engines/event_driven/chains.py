"""Layers of the event-driven engine from a `GraphNetwork` that is a chain: input → linear
maps → neurons → linear maps → neurons → …

    W x + c    one weight matrix and one constant current for all linear maps between two layers of
               neurons, whatever they are

The maps between two layers are folded into one, in double precision: pooling, scaling and a
convolution into one larger convolution with a larger stride; anything else into a matrix. So a
pooling costs nothing, and spikes stay bits. A layer may also receive its own spikes of the last
step. Graphs with other connections run on the dense engine.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.common import InputError
from agreestop.networks.graphs import (
    INPUT,
    Convolution,
    GraphNetwork,
    Integrator,
    Reshape,
    Scale,
    SumPool,
)

from .layout import LayerPlan, join_members, load_kernels

MOST_WEIGHTS = 2**25  # the largest matrix that a chain of linear maps is folded into
CLOSE = 1e-9  # relative difference that folding may make, in double precision


def plan_chain(network: GraphNetwork) -> list[LayerPlan]:
    """The layers of a network; an InputError that says why there are none."""
    layers = [
        index for index, node in enumerate(network.nodes) if isinstance(node.part, Integrator)
    ]
    end, maps = _origin(network, len(network.nodes) - 1)
    if (
        network.output != "spikes"
        or end != layers[-1]
        or any(not isinstance(part, Reshape) for part in maps)
    ):
        raise InputError(
            "the event-driven engine needs neurons that spike at the output: use the dense engine."
        )
    plans: list[LayerPlan] = []
    for before, index in pairwise([INPUT, *layers]):
        plans.append(_plan_layer(network, before, index, plans[-1] if plans else None))
    if math.prod(plans[-1].size) > 1:
        plans[-1] = _plan_layer(
            network,
            layers[-2] if len(layers) > 1 else INPUT,
            layers[-1],
            plans[-2] if plans[1:] else None,
            full=True,
        )
    return plans


@dataclass(frozen=True, eq=False)
class Chains:
    """Networks that are chains of layers of the same sizes: the members of one network.

    input_shape, repeats: as of a `GraphNetwork`. layers: those of all members together.
    """

    real_input = True

    input_shape: tuple[int, ...]
    repeats: str
    layers: list[LayerPlan]


def plan_chains(networks: Sequence[GraphNetwork]) -> list[Chains]:
    """Networks that differ in their numbers alone are members of one; else each is one of its own.

    An InputError says why one is not a chain.
    """
    planned = [plan_chain(network) for network in networks]
    sizes = [[plan.geometry for plan in layers] for layers in planned]
    groups = [planned] if all(one == sizes[0] for one in sizes) else [[one] for one in planned]
    about = tuple(networks[0].input_shape), networks[0].repeats
    return [
        Chains(*about, [join_members(layers) for layers in zip(*group, strict=True)])
        for group in groups
    ]


def _origin(network: GraphNetwork, index: int) -> tuple[int, list[nn.Module]]:
    """The neurons, or INPUT, from which a node gets its input, and the linear maps on the way,
    that of the node included.
    """
    maps: list[nn.Module] = []
    while index != INPUT and not isinstance(network.nodes[index].part, Integrator):
        node = network.nodes[index]
        maps.insert(0, node.part)
        if len(node.sources) + len(node.delayed) != 1:
            raise InputError(
                f"the event-driven engine adds inputs only in neurons, and {node.name[:60]!r} adds "
                "some: use the dense engine."
            )
        if node.delayed:
            return node.delayed[0], maps
        index = node.sources[0]
    return index, maps


def _plan_layer(
    network: GraphNetwork, before: int, index: int, previous: LayerPlan | None, full: bool = False
) -> LayerPlan:
    """The layer of the neurons with this index, which follow those with the index `before`."""
    node, neurons = network.nodes[index], network.nodes[index].part
    assert isinstance(neurons, Integrator)
    if neurons.reached is None:
        raise InputError(
            f"the event-driven engine needs neurons that spike, and {node.name[:60]!r} are none: "
            "use the dense engine."
        )
    paths = [_origin(network, source) for source in node.sources]
    paths += [(source, []) for source in node.delayed]
    forward, own = ([maps for origin, maps in paths if origin == one] for one in (before, index))
    if (
        len(forward) != 1
        or len(own) > 1
        or len(paths) != len(forward) + len(own)
        or (own and neurons.shape != (math.prod(neurons.shape),))
    ):
        raise InputError(
            f"the event-driven engine runs chains of layers, and {node.name[:60]!r} has other "
            "inputs: use the dense engine."
        )
    shape = network.input_shape if before == INPUT else network.nodes[before].shape
    folded = None if full or own else _fold_convolution(forward[0], shape, neurons, previous)
    if folded is None:
        return _plan_full(forward[0], shape, own, neurons, previous)
    window, constant = folded.kernel.shape[2:], folded.constant
    rows = folded.kernel.permute(2, 3, 1, 0).flatten(0, 2)
    constants = _constants(neurons, constant, len(folded.kernel))
    size, image = _image(neurons.shape)[1:], _image(shape)
    around = folded.padding
    return LayerPlan(
        _float32(rows)[None],
        constants,
        image,
        size,
        (window[0], window[1]),
        folded.stride,
        around,
        _kind(neurons),
    )


def _plan_full(
    forward: Sequence[nn.Module],
    shape: tuple[int, ...],
    own: Sequence[Sequence[nn.Module]],
    neurons: Integrator,
    previous: LayerPlan | None,
) -> LayerPlan:
    """A fully connected layer, with a weight row for every input and for its own spikes."""
    weight, constant = _fold_matrix(forward, shape, neurons.shape)
    image = (math.prod(shape), 1, 1)
    if previous is not None and previous.size != (1, 1):
        image = _image(shape)
        weight = weight.view(image[0], -1, weight.shape[1]).transpose(0, 1).flatten(0, 1)
    count = 0
    if own:
        rows, current = _fold_matrix(own[0], neurons.shape, neurons.shape)
        weight, constant, count = torch.cat([weight, rows]), constant + current, len(rows)
    constants = _constants(neurons, constant, weight.shape[1])
    return LayerPlan(
        _float32(weight)[None],
        constants,
        image,
        (1, 1),
        image[1:],
        neuron=_kind(neurons),
        recurrent=count,
    )


def _kind(neurons: Integrator) -> int:
    kernels = load_kernels()
    return int(kernels.SUBTRACTS if neurons.subtract else kernels.RESETS)


def _float32(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ascontiguousarray(values.numpy(), np.float32)


def _constants(
    neurons: Integrator, constant: Tensor, outputs: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Constants (1, 8, outputs) of a layer; those of a convolution are the same at
    each position.
    """
    assert neurons.reached is not None
    own = (
        neurons.decay,
        neurons.synapse,
        neurons.leak,
        neurons.reached,
        neurons.gain,
        neurons.reset,
    )
    scale, bias = neurons.weight.double(), neurons.weight.double() * constant.view(neurons.shape)
    values = [_float32(value.reshape(outputs, -1)[:, 0]) for value in (scale, bias, *own)]
    return np.stack(values)[None]


# ---- folding


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of a shape (channels, height, width) or (channels, length)."""
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, shape[1])


def _run(maps: Sequence[nn.Module], x: Tensor) -> Tensor:
    """The maps in double precision."""
    for part in maps:
        x = deepcopy(part).double()(x)
    return x


def _fold_matrix(
    maps: Sequence[nn.Module], shape: tuple[int, ...], found: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The maps as a matrix (inputs, outputs) and a constant (outputs,)."""
    inputs, outputs = math.prod(shape), math.prod(found)
    if inputs * outputs > MOST_WEIGHTS:
        raise InputError(
            f"the event-driven engine would need a matrix of {inputs:,} × {outputs:,} weights: use "
            "the dense engine."
        )
    with torch.no_grad():
        constant = _run(maps, torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        rows = [
            _run(maps, part.view(-1, *shape)).flatten(1)
            for part in torch.split(torch.eye(inputs, dtype=torch.float64), 256)
        ]
        return torch.cat(rows) - constant, constant


@dataclass(frozen=True, eq=False)
class _Folded:
    """A convolution kernel (out, in, height, width) with stride and padding above and to the
    left, and a constant (*shape).
    """

    kernel: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    constant: Tensor


def _fold_convolution(
    maps: Sequence[nn.Module],
    shape: tuple[int, ...],
    neurons: Integrator,
    previous: LayerPlan | None,
) -> _Folded | None:
    """The maps as one convolution.

    None where they are none, or where neurons of one channel differ.

    A convolution of size m with stride s after one of size k and stride r has size k + r (m - 1)
    and stride r s. This is exact only where no window of the first crosses the padding of the
    second, so the result is compared with the maps themselves.
    """
    if (
        len(shape) not in (2, 3)
        or len(neurons.shape) != len(shape)
        or (previous is not None and previous.size == (1, 1))
    ):
        return None
    kernel = torch.eye(shape[0], dtype=torch.float64)[:, :, None, None]
    stride, padding = (1, 1), (0, 0)
    for part in maps:
        one = _kernel(part, len(kernel))
        if one is None:
            return None
        following, (down, right), (top, left) = one
        kernel = F.conv_transpose2d(following, kernel, stride=stride)
        padding = padding[0] + top * stride[0], padding[1] + left * stride[1]
        stride = stride[0] * down, stride[1] * right
    size = _image(neurons.shape)[1:]
    own = (
        neurons.decay,
        neurons.synapse,
        neurons.weight,
        neurons.leak,
        neurons.reached,
        neurons.gain,
        neurons.reset,
    )
    with torch.no_grad():
        constant = _run(maps, torch.zeros(1, *shape, dtype=torch.float64))[0]
        uniform = all(
            bool((value == value.flatten(1)[:, :1].view(-1, *[1] * (value.ndim - 1))).all())
            for value in (constant, *own)
            if value is not None
        )
        if size == (1, 1) or not uniform:
            return None
        x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        wanted = (_run(maps, x) - constant).view(2, len(kernel), *size)
        image = x.view(2, *_image(shape))
        needed = [stride[axis] * (size[axis] - 1) + kernel.shape[2 + axis] for axis in range(2)]
        after = [needed[axis] - image.shape[2 + axis] - padding[axis] for axis in range(2)]
        found = F.conv2d(
            F.pad(image, (padding[1], after[1], padding[0], after[0])), kernel, stride=stride
        )
    if found.shape != wanted.shape or not torch.allclose(
        found, wanted, rtol=CLOSE, atol=CLOSE * float(wanted.abs().max() + 1)
    ):
        return None
    return _Folded(kernel, stride, padding, constant)


def _kernel(
    part: nn.Module, channels: int
) -> tuple[Tensor, tuple[int, int], tuple[int, int]] | None:
    """The kernel (out, in, height, width), stride and padding of a linear map.

    None if it is no convolution.
    """
    if isinstance(part, Convolution):
        weight = part.weight.double()
        each = len(weight) // part.groups
        dense = torch.zeros(
            len(weight),
            channels,
            *(1 + d * (size - 1) for d, size in zip(part.dilation, weight.shape[2:], strict=True)),
        ).double()
        for group in range(part.groups):
            rows = slice(group * each, (group + 1) * each)
            columns = slice(group * weight.shape[1], (group + 1) * weight.shape[1])
            dense[rows, columns, :: part.dilation[0], :: part.dilation[1]] = weight[rows]
        return dense, part.stride, (part.padding[0], part.padding[2])
    if isinstance(part, SumPool):
        window = torch.full(
            part.size, 1 / math.prod(part.size) if part.average else 1.0, dtype=torch.float64
        )
        return (
            torch.eye(channels, dtype=torch.float64)[:, :, None, None] * window,
            part.stride,
            part.padding,
        )
    if isinstance(part, Scale) and bool(
        (part.factor == part.factor.flatten(1)[:, :1].view(-1, *[1] * (part.factor.ndim - 1))).all()
    ):
        return torch.diag(part.factor.double().flatten(1)[:, 0])[:, :, None, None], (1, 1), (0, 0)
    # passes on what it gets, or the comparison finds out
    if isinstance(part, Reshape) and len(part.shape) > 1:
        return torch.eye(channels, dtype=torch.float64)[:, :, None, None], (1, 1), (0, 0)
    return None
