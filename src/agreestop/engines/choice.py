"""Which engine: by device, architecture and how many inputs are active, unless one is named."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.common.errors import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.networks._kernels.triton_runtime import TRITON_AVAILABLE
from agreestop.networks.architectures import ResNet18, SpikingNetwork
from agreestop.networks.posteriors import Posterior

from .dense import Dense, FreshMembers
from .early_stopping import ENGINES, Engine, decide_early
from .gpu.engine import Fused

FRESH = 2  # apart from the draws for tuning, 0, and for calibration and test, 1
LIGHT = ("int8", "bfloat16")  # the lightest first
DENSE_FROM = 0.3
"""The share of active inputs from which a matrix product is the faster."""


def choose_engine(network: SpikingNetwork | Posterior, name: str = "auto", density: float = 0.0, seed: int = 0) -> Engine:
    """The engine of that name, or the one that fits: fused on a GPU; event-driven on a CPU where it can and inputs are sparse; else dense.

    density: the share of inputs that are active in a step, where it is known. A posterior draws new members for every input, from the
    seed, on the dense engine.
    """
    names = (*ENGINES, FreshMembers.name)
    if name not in names:
        raise InputError(f"engine is {name!r}: choose one of {', '.join(names)}.")
    if isinstance(network, Posterior):
        if name not in ("auto", FreshMembers.name):
            raise InputError(f"engine is {name!r}, but a posterior runs on {FreshMembers.name}: name that, or give members.")
        return FreshMembers(network, (seed, FRESH))
    if name == FreshMembers.name:
        raise InputError(f"engine is {name!r}, which draws members for every input: give the posterior, not members drawn from it.")
    if name == "auto":
        name = _fitting(network, density)
    if name.startswith("event-driven"):
        from .event_driven.engine import EventDriven

        return EventDriven(network, name.removeprefix("event-driven").removeprefix("-") or "float32")
    if name == "dense":
        return Dense(network)
    if not torch.cuda.is_available():
        raise InputError(f"engine is {name!r}, but PyTorch finds no GPU: choose dense or event-driven, or auto.")
    return Fused(network, bf16=name == "fused-bfloat16") if TRITON_AVAILABLE else Dense(network, "cuda")


def _fitting(network: SpikingNetwork, density: float) -> str:
    if torch.cuda.is_available():
        return "fused"
    events = find_spec("numba") is not None and not isinstance(network.config, ResNet18) and density < DENSE_FROM
    return "event-driven" if events else "dense"


def lightest_engine(network: SpikingNetwork, calibrated: CalibratedRule, inputs: NDArray[Any]) -> Engine:
    """The event-driven engine with the lightest weights, int8, bfloat16 or float32, whose decisions on these inputs are those of float32.

    Give inputs of the tuning split, then score, calibrate and decide with the engine that is returned.
    """
    reference = decide_early(choose_engine(network, "event-driven"), calibrated, inputs, any_engine=True).decisions
    for precision in LIGHT:
        engine = choose_engine(network, f"event-driven-{precision}")
        decisions = decide_early(engine, calibrated, inputs, any_engine=True).decisions
        if np.array_equal(decisions.stop_index, reference.stop_index) and np.array_equal(decisions.sets, reference.sets):
            return engine
    return choose_engine(network, "event-driven")
