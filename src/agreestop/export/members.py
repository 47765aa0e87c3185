"""The members of an ensemble in plain arrays, layer by layer, for C and for the page.

The numbers are those that the event-driven engine stores. In a weight row stand the outputs of one
member and nothing else, so that they fill flash without gaps and a member that joins late is one
block.
"""

import math
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agreestop.adapters.engine import AdaptedEngine
from agreestop.common import InputError
from agreestop.engines.event_driven.chains import plan_chain
from agreestop.engines.event_driven.engine import EventDriven
from agreestop.engines.event_driven.layout import (
    LayerPlan,
    load_kernels,
    plan_network,
    stored_weights,
)
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
class ExportedLayer:
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


Members: TypeAlias = list[list[ExportedLayer]]

"""The layers of each member."""


def check_exportable(ensemble: Ensemble | AdaptedEngine) -> None:
    """Refuse members whose computation only torch knows, before any work."""
    network = ensemble.network
    modules = network.each if isinstance(network, ModuleMembers) else [network]
    if isinstance(network, (ModuleMembers, ModulePosterior)) and not all(
        isinstance(one, GraphNetwork) for one in modules
    ):
        raise InputError(OWN_MODULES)


def exported_members(ensemble: Ensemble | AdaptedEngine, engine: Engine, members: int) -> Members:
    """The first `members` members of an ensemble, in the numbers of its engine. One that is not
    event-driven is refused.
    """
    network: Any = ensemble.network
    networks: list[Any] = list(network.each) if isinstance(network, ModuleMembers) else [network]
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
        precision = part.precision
    for one in networks:
        plans = plan_chain(one) if isinstance(one, GraphNetwork) else plan_network(one)
        layers = [_of_each_member(plan, precision) for plan in plans]
        found += map(list, zip(*layers, strict=True))
    sizes = ((layer.neurons, *layer.geometry.values()) for layer in chain.from_iterable(found))
    largest = max(math.prod(network.input_shape), *chain.from_iterable(sizes))
    if largest > LARGEST:
        raise InputError(
            f"the network has {largest:,} inputs, neurons or weight rows in a layer, and exports "
            f"count to {LARGEST:,}: use a smaller one."
        )
    return found[:members]


def _of_each_member(plan: LayerPlan, precision: str) -> list[ExportedLayer]:
    """A layer of every member, with weights as the engine stores them."""
    weights, unit = stored_weights(plan.weight, precision)
    shared = plan.neuron == load_kernels().SRM  # constants of all neurons
    return [
        ExportedLayer(
            weights[member],
            scale * unit[member],
            bias,
            np.array(others)[:, 0] if shared else np.array(others),
            plan.geometry,
        )
        for member, (scale, bias, *others) in enumerate(plan.constants)
    ]
