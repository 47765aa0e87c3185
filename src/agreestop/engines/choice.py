"""The choice of an engine: the one that is named, or the one that fits device,
network and inputs.
"""

from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import ArrayLike

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.leakage import ScoredRows
from agreestop.events.container import Events, input_ids
from agreestop.kernels import TRITON_AVAILABLE
from agreestop.networks.architectures import Convolutional, FullyConnected, SpikingNetwork
from agreestop.networks.digests import check_network
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior

from .dense import Dense, FreshMembers
from .early_stopping import RunOptions, decide_early, score
from .gpu.engine import Fused
from .inputs import check_device
from .protocol import ENGINES, Engine

FRESH_DRAWS = 2  # in the seed; the draws for tuning have 0, those for calibration and test 1
LIGHT_PRECISIONS = ("int8", "bfloat16")  # the lightest first
DENSE_FROM = 0.3  # from this share of active inputs on, a matrix product is faster than event lists


def choose_engine(
    network: SpikingNetwork | ModuleMembers | Posterior | ModulePosterior,
    name: str = "auto",
    density: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> Engine:
    """The engine of that name, or with "auto" the one that fits; its `reason` then says why.

    density: the share of inputs that are active in a step, where it is known. device: "cpu" keeps
    "auto" from choosing the GPU. A posterior draws members for each input, from the seed, on the
    dense engine. Modules of the user run on the dense engine.
    """
    names = (*ENGINES, FreshMembers.name)
    if name not in names:
        raise InputError(f"engine is {name!r}: choose one of {', '.join(names)}.")
    if isinstance(network, (Posterior, ModulePosterior)):
        if name not in ("auto", FreshMembers.name):
            raise InputError(
                f"engine is {name!r}, but a posterior runs on {FreshMembers.name}: name that, or "
                "give members."
            )
        engine: Engine = FreshMembers(network, (seed, FRESH_DRAWS))
        engine.reason = (
            ""
            if name != "auto"
            else "The dense-fresh engine was chosen since members are drawn for each input."
        )
        return engine
    if name == FreshMembers.name:
        raise InputError(
            f"engine is {name!r}, which draws members for each input: give the posterior, not "
            "members drawn from it."
        )
    check_network(network)
    on_gpu = check_device(device) != "cpu"
    chosen, reason = _fitting(network, density, on_gpu) if name == "auto" else (name, "")
    if isinstance(network, SpikingNetwork) and chosen != "dense":
        engine = _make(network, chosen)
    elif chosen != "dense":
        raise InputError(
            f"engine is {name!r}, but own modules run on the dense engine: choose dense or auto."
        )
    else:
        engine = Dense(network, "cuda" if on_gpu and name == "auto" else "cpu")
    engine.reason = reason
    return engine


def _make(network: SpikingNetwork, name: str) -> Engine:
    if name.startswith("event-driven"):
        from .event_driven.engine import EventDriven

        return EventDriven(
            network, name.removeprefix("event-driven").removeprefix("-") or "float32"
        )
    if not torch.cuda.is_available():
        raise InputError(
            f"engine is {name!r}, but PyTorch finds no GPU: choose dense or event-driven, or auto."
        )
    return (
        Fused(network, bf16=name == "fused-bfloat16")
        if TRITON_AVAILABLE
        else Dense(network, "cuda")
    )


def _fitting(
    network: SpikingNetwork | ModuleMembers, density: float, on_gpu: bool
) -> tuple[str, str]:
    """The name of the engine that fits, and why."""
    if isinstance(network, ModuleMembers):
        reason = "the other engines do not know own modules"
        return "dense", f"The dense engine was chosen since {reason}."
    if on_gpu:
        return "fused", "The fused engine was chosen since there is a GPU."
    kind = type(network.config)
    if kind not in (FullyConnected, Convolutional):
        reason = f"the event-driven engine does not know {kind.__name__}"
        return "dense", f"The dense engine was chosen since {reason}."
    if find_spec("numba") is None:
        reason = "numba, which the event-driven engine needs, is not installed"
        return "dense", f"The dense engine was chosen since {reason}."
    if density >= DENSE_FROM:
        reason = f"{density:.0%} of the inputs are active in a step"
        return "dense", f"The dense engine was chosen since {reason}."
    reason = "there is no GPU in use and the inputs are sparse"
    return "event-driven", f"The event-driven engine was chosen since {reason}."


def lightest_engine(
    network: SpikingNetwork, calibrated: CalibratedRule, inputs: ArrayLike | Events
) -> Engine:
    """The event-driven engine with the lightest weights (int8, bfloat16, float32) whose decisions
    on these inputs are those of float32.

    Give inputs of the tuning split and a rule that was calibrated on some of them; another rule is
    refused. Then score, calibrate and decide with the engine that is returned, on other rows:
    calibration rows must not choose the engine.
    """
    full = choose_engine(network, "event-driven")
    _check_tuning_rows(full, calibrated, inputs)
    options = RunOptions(any_engine=True)
    reference = decide_early(full, calibrated, inputs, options).decisions
    for precision in LIGHT_PRECISIONS:
        engine = choose_engine(network, f"event-driven-{precision}")
        decisions = decide_early(engine, calibrated, inputs, options).decisions
        if np.array_equal(decisions.stop_index, reference.stop_index) and np.array_equal(
            decisions.sets, reference.sets
        ):
            return engine
    return full


def _check_tuning_rows(
    engine: Engine, calibrated: CalibratedRule, inputs: ArrayLike | Events
) -> None:
    """Refuse a rule that was calibrated on rows that are not among the inputs, by their ids or
    else by their scores.
    """
    rows = calibrated.rows
    if rows is None:
        raise InputError(
            "the rule does not say which rows it was calibrated on: calibrate it again, on rows of "
            "the tuning split."
        )
    if rows.ids is not None and rows.id_kind == "hash":
        known = np.isin(rows.ids, input_ids(inputs))
    else:
        columns = [int(time) - 1 for time in calibrated.checkpoints]
        known = rows.are_among(
            ScoredRows(
                score(engine, inputs, options=RunOptions(steps=columns[-1] + 1)).log_confidence,
                columns,
            )
        )
    if not known.all():
        raise InputError(
            f"{np.sum(~known)} of the {len(known)} rows that the rule was calibrated on are not "
            "among these inputs: give the inputs of the tuning split, and a rule that was "
            "calibrated on some of them."
        )
