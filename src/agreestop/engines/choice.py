"""The choice of an engine: the one that is named, or the one that fits device, network and inputs."""

from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import ArrayLike

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.events.container import Events
from agreestop.networks._kernels.gpu_runtime import TRITON_AVAILABLE, check_device
from agreestop.networks.architectures import Convolutional, FullyConnected, SpikingNetwork
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior

from .dense import Dense, FreshMembers
from .early_stopping import decide_early
from .gpu.engine import Fused
from .protocol import ENGINES, Engine

FRESH_DRAWS = 2  # in the seed; the draws for tuning have 0, those for calibration and test 1
LIGHT_PRECISIONS = ("int8", "bfloat16")  # the lightest first
DENSE_FROM = 0.3
"""From this share of active inputs on, a matrix product is faster than event lists."""


def choose_engine(
    network: SpikingNetwork | ModuleMembers | Posterior | ModulePosterior,
    name: str = "auto",
    density: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> Engine:
    """The engine of that name, or with "auto" the one that fits; its `reason` then says why.

    density: the share of inputs that are active in a step, where it is known. device: "cpu" keeps "auto" from choosing the GPU. A posterior
    draws members for each input, from the seed, on the dense engine. Modules of the user run on the dense engine.
    """
    names = (*ENGINES, FreshMembers.name)
    if name not in names:
        raise InputError(f"engine is {name!r}: choose one of {', '.join(names)}.")
    if isinstance(network, (Posterior, ModulePosterior)):
        if name not in ("auto", FreshMembers.name):
            raise InputError(f"engine is {name!r}, but a posterior runs on {FreshMembers.name}: name that, or give members.")
        engine: Engine = FreshMembers(network, (seed, FRESH_DRAWS))
        engine.reason = "" if name != "auto" else "The dense-fresh engine was chosen since members are drawn for each input."
        return engine
    if name == FreshMembers.name:
        raise InputError(f"engine is {name!r}, which draws members for each input: give the posterior, not members drawn from it.")
    on_gpu = check_device(device) != "cpu"
    chosen, reason = _fitting(network, density, on_gpu) if name == "auto" else (name, "")
    if isinstance(network, SpikingNetwork) and chosen != "dense":
        engine = _make(network, chosen)
    elif chosen != "dense":
        raise InputError(f"engine is {name!r}, but own modules run on the dense engine: choose dense or auto.")
    else:
        engine = Dense(network, "cuda" if on_gpu and name == "auto" else "cpu")
    engine.reason = reason
    return engine


def _make(network: SpikingNetwork, name: str) -> Engine:
    if name.startswith("event-driven"):
        from .event_driven.engine import EventDriven

        return EventDriven(network, name.removeprefix("event-driven").removeprefix("-") or "float32")
    if not torch.cuda.is_available():
        raise InputError(f"engine is {name!r}, but PyTorch finds no GPU: choose dense or event-driven, or auto.")
    return Fused(network, bf16=name == "fused-bfloat16") if TRITON_AVAILABLE else Dense(network, "cuda")


def _fitting(network: SpikingNetwork | ModuleMembers, density: float, on_gpu: bool) -> tuple[str, str]:
    """The name of the engine that fits, and why."""
    if isinstance(network, ModuleMembers):
        return "dense", "The dense engine was chosen since the other engines do not know own modules."
    if on_gpu:
        return "fused", "The fused engine was chosen since there is a GPU."
    kind = type(network.config)
    if kind not in (FullyConnected, Convolutional):
        return "dense", f"The dense engine was chosen since the event-driven engine does not know {kind.__name__}."
    if find_spec("numba") is None:
        return "dense", "The dense engine was chosen since numba, which the event-driven engine needs, is not installed."
    if density >= DENSE_FROM:
        return "dense", f"The dense engine was chosen since {density:.0%} of the inputs are active in a step."
    return "event-driven", "The event-driven engine was chosen since there is no GPU in use and the inputs are sparse."


def lightest_engine(network: SpikingNetwork, calibrated: CalibratedRule, inputs: ArrayLike | Events) -> Engine:
    """The event-driven engine with the lightest weights (int8, bfloat16, float32) whose decisions on these inputs are those of float32.

    Give inputs of the tuning split, then score, calibrate and decide with the engine that is returned.
    """
    reference = decide_early(choose_engine(network, "event-driven"), calibrated, inputs, any_engine=True).decisions
    for precision in LIGHT_PRECISIONS:
        engine = choose_engine(network, f"event-driven-{precision}")
        decisions = decide_early(engine, calibrated, inputs, any_engine=True).decisions
        if np.array_equal(decisions.stop_index, reference.stop_index) and np.array_equal(decisions.sets, reference.sets):
            return engine
    return choose_engine(network, "event-driven")
