"""Networks in NIR, the Neuromorphic Intermediate Representation (https://neuroir.org): read,
run, and written.
"""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any

from agreestop.common import InputError
from agreestop.engines.dense import Dense
from agreestop.engines.protocol import Engine
from agreestop.engines.side_by_side import SideBySide
from agreestop.networks.graphs import GraphNetwork
from agreestop.networks.modules import ModuleMembers

from .engine import AdaptedEngine
from .nir_nodes import build_network
from .nir_sources import read_source

ENGINES = ("auto", "dense", "event-driven", "event-driven-bfloat16", "event-driven-int8")


def from_nir(
    graphs_or_paths: Any,
    *,
    dt: float | None = None,
    reset: str | Sequence[str] = "graph",
    engine: str = "auto",
) -> AdaptedEngine:
    """An engine of NIR graphs, one for each member: `nir.NIRGraph` objects, paths of .nir files, or
    a list of them.

    dt      seconds of a time step, which every node with a time constant needs; use the one with
            which the network was trained (snnTorch writes graphs for 1e-4, others often for 1e-3).
            IF and I need none: a step adds the weights of its events
    reset   what a spike does to the potential: "graph" sets it to v_reset, "zero" to 0, "subtract"
            subtracts v_threshold; or one of them for each graph. snnTorch writes v_reset = 0 for
            subtractive resets too, so this must be known
    engine  "event-driven": chains of layers, each perhaps with its own spikes as a second input;
            "dense": every graph; "auto": the first where it can run all graphs.
            `engine.engine.reason` says why. "event-driven-bfloat16" and "event-driven-int8" round
            the weights, for example for a microcontroller

    Graphs may differ in size and reset, not in the number of classes. The output is spikes if the
    last neurons spike, else the values at the Output, as logits. Inputs (n, T, ...) are events,
    counts of events, or any numbers.
    """
    single = isinstance(graphs_or_paths, (str, PathLike)) or hasattr(graphs_or_paths, "nodes")
    sources = [graphs_or_paths] if single else graphs_or_paths
    if not isinstance(sources, (list, tuple)) or not sources:
        raise InputError(
            "graphs_or_paths holds no graph: give a nir.NIRGraph, the path of a .nir file, or a "
            "list of them."
        )
    resets = [reset] * len(sources) if isinstance(reset, str) else reset
    if not isinstance(resets, (list, tuple)) or len(resets) != len(sources):
        raise InputError(
            f"reset is {reset!r} for {len(sources)} graphs: give one word, or a list with one for "
            "each graph."
        )
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}: choose one of {', '.join(ENGINES)}.")
    try:
        networks = [
            build_network(read_source(source), dt, one)
            for source, one in zip(sources, resets, strict=True)
        ]
    except MemoryError:
        raise InputError(
            "the values of a graph do not fit into memory: check its shapes and paddings, or use a "
            "larger machine."
        ) from None
    for what, values in (
        ("classes", [one.classes for one in networks]),
        ("input shapes", [one.input_shape for one in networks]),
    ):
        if len(set(values)) > 1:
            raise InputError(
                f"the graphs have {what} {', '.join(map(str, values))[:120]}: those of all graphs "
                "must be equal."
            )
    outputs = [one.output for one in networks]
    if len(set(outputs)) > 1:
        raise InputError(
            f"the graphs give {', '.join(outputs)}: an ensemble gives either spikes or logits, so "
            "change one of them."
        )
    members = ModuleMembers(networks, outputs[0], networks[0].input_shape)
    return AdaptedEngine(partial(_choose, networks, members, engine), members)


def _choose(networks: Sequence[GraphNetwork], members: ModuleMembers, name: str) -> Engine:
    """The engine of that name, or the event-driven one if it can run all networks."""
    if name == "dense":
        return Dense(members)
    try:
        from agreestop.engines.event_driven.chains import plan_chains
        from agreestop.engines.event_driven.engine import EventDriven

        _, _, precision = name.partition("event-driven-")
        engines = [EventDriven(one, precision or "float32") for one in plan_chains(networks)]
        chosen: Engine = SideBySide(engines) if len(engines) > 1 else engines[0]
    except InputError as error:
        if name != "auto":
            raise
        chosen = Dense(members)
        chosen.reason = (
            "The dense engine was chosen since "
            f"{str(error).removesuffix(': use the dense engine.')}."
        )
    else:
        chosen.reason = (
            "The event-driven engine was chosen since each graph is a chain of layers of neurons."
            if name == "auto"
            else ""
        )
    return chosen
