"""The network in C: the numbers of the event-driven engine, member by member, and the sizes
of all memory.

The engine pads its weights for wide registers and interleaves members. In C a weight row is the
outputs of one member and nothing else, so that they fill flash without gaps and a member that joins
late is one block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agreestop.adapters.engine import AdaptedEngine
from agreestop.common import InputError
from agreestop.engines.event_driven.engine import EventDriven
from agreestop.engines.event_driven.layout import FlatNetwork, load_kernels
from agreestop.engines.protocol import Engine
from agreestop.engines.side_by_side import SideBySide
from agreestop.ensembles.ensemble import Ensemble
from agreestop.networks.graphs import GraphNetwork
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior

OWN_MODULES = (
    "torch modules of your own cannot be exported, since only torch knows what they compute: "
    "use a network of ag.networks, or write them as NIR graphs and load these with "
    "ag.adapters.from_nir."
)
LARGEST = 2**16 - 1  # events, weight rows, steps and counts have 16 bits
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
}
LAYER_BYTES, MEMBER_BYTES = 48, 8  # of `ag_layer` and `ag_member` where a pointer has 4 bytes
GEOMETRY: tuple[str, ...] = (
    "neuron",
    "rows",
    "outputs",
    "recurrent",
    "height",
    "width",
    "in_channels",
    "in_height",
    "in_width",
)
# in the order of `ag_layer`
GEOMETRY += ("window_y", "window_x", "stride_y", "stride_x", "pad_y", "pad_x", "pool")


@dataclass(frozen=True, eq=False)
class CLayer:
    """One layer of a member: weights (rows, outputs) as they are stored, scale and bias (outputs,),
    constants, and its geometry.

    constants: (6,) where all neurons have the same, else (6, outputs).
    """

    weights: NDArray[Any]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
    constants: NDArray[np.float32]
    geometry: dict[str, int]

    @property
    def neurons(self) -> int:
        """The number of neurons, at all positions."""
        return self.geometry["height"] * self.geometry["width"] * self.geometry["outputs"]

    @property
    def convolves(self) -> bool:
        """Whether it looks at its input through windows."""
        return any(
            self.geometry[name] > 1 for name in ("in_height", "in_width", "window_y", "window_x")
        )


Members: TypeAlias = list[list[CLayer]]
"""The layers of each member."""


def check_exportable(ensemble: Ensemble | AdaptedEngine) -> None:
    """Refuse members whose computation only torch knows, before any work."""
    network = ensemble.network
    modules = network.each if isinstance(network, ModuleMembers) else [network]
    if isinstance(network, (ModuleMembers, ModulePosterior)) and not all(
        isinstance(one, GraphNetwork) for one in modules
    ):
        raise InputError(OWN_MODULES)


def c_members(engine: Engine, members: int) -> Members:
    """The first `members` members of an engine. One that is not event-driven is refused."""
    engines = engine.engines if isinstance(engine, SideBySide) else [engine]
    found: Members = []
    for part in engines:
        if not isinstance(part, EventDriven):
            advice = (
                'load the ensemble with engine="event-driven" (--engine), and calibrate on its '
                "scores"
            )
            raise InputError(
                f"the members run on the {engine.name} engine, and exported code computes what the "
                f"event-driven one does: {advice}."
            )
        network = part.network
        found += [
            [_layer(network, layer, member) for layer in network.layers]
            for member in range(network.members)
        ]
    largest = max(
        value
        for layers in found
        for layer in layers
        for value in (layer.neurons, *layer.geometry.values())
    )
    largest = max(largest, math.prod(engines[0].input_shape))  # type: ignore[attr-defined]
    if largest > LARGEST:
        raise InputError(
            f"the network has {largest:,} inputs, neurons or weight rows in a layer, and exports "
            f"count to {LARGEST:,}: use a smaller one."
        )
    return found[:members]


def _layer(network: FlatNetwork, record: Any, member: int) -> CLayer:
    own, kernels = {name: int(record[name]) for name in record.dtype.names}, load_kernels()
    rows = own["rows"]
    outputs = own["outputs"]
    lanes = own["lanes"]
    wide = own["wide"] * kernels.WIDE
    first = own["weights_at"] + member * own["member_stride"]
    weights = network.weights[
        first + np.arange(rows)[:, None] * own["row_stride"] + np.arange(lanes)
    ]
    if weights.dtype == np.uint16:  # wide tiles hold pairs of lanes j and j + 64, the second first
        pairs = weights[:, :wide].reshape(rows, -1, kernels.WIDE // 2, 2)
        weights[:, :wide] = np.concatenate([pairs[..., 1], pairs[..., 0]], -1).reshape(rows, wide)
    scale, bias, *others = network.constants[
        :, own["lanes_at"] + member * lanes + np.arange(outputs)
    ]
    constants = np.array(others)[:, 0] if own["neuron"] == kernels.SRM else np.array(others)
    return CLayer(
        weights[:, :outputs], scale, bias, constants, {name: own[name] for name in GEOMETRY}
    )


def sizes_of(
    members: Members, inputs: int, classes: int, history: int, steps: int
) -> dict[str, int]:
    """The sizes of all memory, by the names that C gives them."""
    layers = [layer for layers in members for layer in layers]
    windows = any(one[0].convolves for one in members)
    return {
        "AG_INPUTS": inputs,
        "AG_CLASSES": classes,
        "AG_MEMBERS": len(members),
        "AG_NEURONS": max(sum(layer.neurons for layer in one) for one in members),
        "AG_WIDEST": max(layer.geometry["outputs"] for layer in layers),
        "AG_SPIKES": max(inputs * windows, *(layer.neurons for layer in layers)),
        "AG_INTEGER_WEIGHTS": int(layers[0].weights.dtype == np.int8),
        "AG_BFLOAT16_WEIGHTS": int(layers[0].weights.dtype == np.uint16),
        "AG_HISTORY": history,
        "AG_STEPS": steps,
    }


def flash_of(members: Members) -> int:
    """Bytes of the numbers of the network."""
    layers = [layer for layers in members for layer in layers]
    numbers = sum(
        array.nbytes
        for layer in layers
        for array in (layer.weights, layer.scale, layer.bias, layer.constants)
    )
    return numbers + LAYER_BYTES * len(layers) + MEMBER_BYTES * len(members)


def ram_of(sizes: dict[str, int]) -> int:
    """Bytes of the static memory of agreestop.c, up to padding."""
    members, classes, widest = sizes["AG_MEMBERS"], sizes["AG_CLASSES"], sizes["AG_WIDEST"]
    frame = 4 * -(-sizes["AG_INPUTS"] // 32)
    session = 12 * members * sizes["AG_NEURONS"] + 2 * members * classes + 2 * (6 + classes)
    scratch = 2 * sizes["AG_SPIKES"] + (4 + 2 * sizes["AG_INTEGER_WEIGHTS"]) * widest + 2 * 256 + 4
    return session + frame * (1 + sizes["AG_HISTORY"]) + scratch


def model_text(members: Members) -> str:
    """model.c"""
    parts = ['/* Written by agreestop export: the numbers of the network. */\n#include "model.h"\n']
    tables = []
    for member, layers in enumerate(members):
        entries = []
        for index, layer in enumerate(layers):
            arrays = {
                "weights": layer.weights,
                "scale": layer.scale,
                "bias": layer.bias,
                "constants": layer.constants,
            }
            end = f"{member}_{index}"
            parts += [
                c_array(f"{name}_{end}", array, "ag_weight" if name == "weights" else "float")
                for name, array in arrays.items()
            ]
            names = ", ".join(f"{name}_{end}" for name in arrays)
            entries.append(
                f"    {{{names}, {', '.join(str(layer.geometry[name]) for name in GEOMETRY)}}},\n"
            )
        parts.append(f"static const ag_layer layers_{member}[] = {{\n{''.join(entries)}}};\n")
        tables.append(f"    {{layers_{member}, {len(layers)}}},\n")
    return "\n".join(
        [*parts, f"const ag_member ag_members[AG_MEMBERS] = {{\n{''.join(tables)}}};\n"]
    )


def c_array(name: str, array: NDArray[Any], kind: str = "", scope: str = "static ") -> str:
    """The definition of a constant array, one axis, in lines of at most 16 numbers."""
    lines = ",\n".join(_lines(array))
    return (
        f"{scope}const {kind or C_TYPES[array.dtype.name]} {name}[{array.size}] = {{\n{lines}}};\n"
    )


def _lines(array: NDArray[Any]) -> Iterator[str]:
    flat = array.ravel().tolist()
    for first in range(0, len(flat), 16):
        numbers = flat[first : first + 16]
        if array.dtype == np.float32:  # nine digits tell all float32 apart
            yield ", ".join(map("%.8ef".__mod__, numbers))
        elif array.dtype == np.float64:
            yield ", ".join(map(c_double, numbers))
        else:
            yield ", ".join(map(str, numbers))


def c_double(value: float) -> str:
    """A double that C reads without rounding."""
    return ("-" if value < 0 else "") + "INFINITY" if np.isinf(value) else float(value).hex()
