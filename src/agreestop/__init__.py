"""agreestop: decide when an ensemble watching a stream has seen enough, and be right as often as promised.

`import agreestop` loads the decision layer, which needs numpy alone. The packages `agreestop.events`, `agreestop.networks`,
`agreestop.engines` and `agreestop.ensembles` load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agreestop.common.errors import InputError
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule, Session, load_rule
from agreestop.decide.checks import CalibrationWarning
from agreestop.decide.confidence import generalized_mean, log_confidence
from agreestop.decide.confidence_rules import DCSNN, SEENN
from agreestop.decide.decisions import Decision, Decisions, Estimate, Evaluation, evaluate
from agreestop.decide.merging import (
    MajorityVote,
    MergeConfidence,
    MergePValues,
    MergeRanks,
    majority_vote,
    merge_exchangeable,
    merge_p_values,
    merge_randomized,
    merging_factor,
    p_values,
)
from agreestop.decide.risks import LearnedRisk, ShapedRisk, TopMass
from agreestop.decide.score_files import Scores, load_scores, save_scores, save_spikes
from agreestop.decide.scores import LogLoss, Shaped, Spread, Temperature, TuningRanks
from agreestop.decide.simulated import simulate_scores, simulate_spikes
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.splits import Splits, repeat_splits
from agreestop.decide.tuning import Trial, Tuned, tune

if TYPE_CHECKING:
    from agreestop import engines as engines
    from agreestop import ensembles as ensembles
    from agreestop import events as events
    from agreestop import networks as networks

__all__ = ["DCSNN", "SEENN", "AgreeStop", "MajorityVote", "MergeConfidence", "MergePValues", "MergeRanks", "SpikeCP"]
__all__ += ["LearnedRisk", "LogLoss", "Shaped", "ShapedRisk", "Spread", "Temperature", "TopMass", "TuningRanks"]
__all__ += ["CalibratedRule", "CalibrationWarning", "Scores", "Session", "load_rule", "load_scores", "save_scores", "save_spikes"]
__all__ += ["Decision", "Decisions", "Estimate", "Evaluation", "Splits", "Trial", "Tuned", "evaluate", "repeat_splits", "tune"]
__all__ += ["InputError", "generalized_mean", "log_confidence", "majority_vote", "simulate_scores", "simulate_spikes"]
__all__ += ["merge_exchangeable", "merge_p_values", "merge_randomized", "merging_factor", "p_values"]

_LAZY = ("engines", "ensembles", "events", "networks")
_EXTRAS = {"torch": "networks", "safetensors": "networks", "numba": "engines"}
"""Packages that may be missing, each with the extra of agreestop that installs it."""


def __getattr__(name: str) -> Any:
    """Load a package of the spiking half on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'agreestop' has no attribute {name!r}")
    try:
        return import_module(f"agreestop.{name}")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        extra = _EXTRAS[error.name]
        raise ImportError(f"agreestop.{name} needs {error.name}, which is not installed: pip install 'agreestop[{extra}]'.") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
