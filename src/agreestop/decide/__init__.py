"""The decision layer: it needs only numpy, and works with any model's log-confidences."""

from agreestop.common.errors import InputError

from .adaptive import AdaptiveRule
from .agree_stop import AgreeStop
from .calibrated import CalibratedRule, Session, load_rule
from .checks import CalibrationWarning
from .confidence import generalized_mean, log_confidence
from .confidence_rules import DCSNN, SEENN
from .decisions import Decision, Decisions, Evaluation, evaluate
from .drift import Alarm, DriftMonitor
from .estimates import Estimate
from .gates import Gate
from .merging import (
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
from .risks import FixedTime, LearnedRisk, ShapedRisk, TopMass
from .schedule_search import FrontPoint, front
from .schedules import Schedule
from .score_files import Scores, load_scores, save_scores, save_spikes
from .scores import LogLoss, Shaped, Spread, Temperature, TuningRanks
from .simulated import simulate_scores, simulate_spikes
from .spikecp import SpikeCP
from .splits import Splits, repeat_splits
from .tuning import Trial, Tuned, tune

__all__ = ["DCSNN", "SEENN", "AgreeStop", "MajorityVote", "MergeConfidence", "MergePValues", "MergeRanks", "SpikeCP"]
__all__ += ["FixedTime", "Gate", "LearnedRisk", "LogLoss", "Shaped", "ShapedRisk", "Spread", "Temperature", "TopMass", "TuningRanks"]
__all__ += ["CalibratedRule", "CalibrationWarning", "Scores", "Session", "load_rule", "load_scores", "save_scores", "save_spikes"]
__all__ += ["Decision", "Decisions", "Estimate", "Evaluation", "Splits", "Trial", "Tuned", "evaluate", "repeat_splits", "tune"]
__all__ += ["AdaptiveRule", "Alarm", "DriftMonitor"]
__all__ += ["InputError", "generalized_mean", "log_confidence", "majority_vote", "simulate_scores", "simulate_spikes"]
__all__ += ["merge_exchangeable", "merge_p_values", "merge_randomized", "merging_factor", "p_values"]
__all__ += ["FrontPoint", "Schedule", "front"]
