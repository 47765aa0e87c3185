"""The decision layer: it needs only numpy, and works with any model's log-confidences."""

from agreestop.common import CalibrationWarning, InputError, Schedule

from .agree_stop import AgreeStop
from .answer_kinds import Tree
from .answers import Answers, VoteRisk
from .baselines import DCSNN, SEENN
from .calibrated import CalibratedRule, Session, load_rule
from .confidence import MergeConfidence, generalized_mean, log_confidence
from .decisions import Decision, Decisions, Evaluation, evaluate
from .drift.adaptive import AdaptiveRule
from .drift.monitor import DriftMonitor
from .intervals import IntervalStop, Numbers
from .merging import (
    MajorityVote,
    MergePValues,
    MergeRanks,
    merge_p_values,
    merging_factor,
    p_values,
)
from .risks import FixedTime, Gate, LogLoss, ShapedRisk, Spread, Temperature, TopMass, TuningRanks
from .sampling import sample_until
from .scores import Scores, load_scores, save_scores, save_spikes
from .spikecp import SpikeCP
from .spotting import Detection, Spotter
from .stop_rule import StopRule
from .tuning.give_up import GiveUp
from .tuning.learned_risk import LearnedRisk
from .tuning.schedules import front
from .tuning.simulated import simulate_scores
from .tuning.splits import Splits, repeat_splits
from .tuning.tune import Tuned, tune

__all__ = ["DCSNN", "SEENN", "AgreeStop", "IntervalStop", "SpikeCP", "StopRule", "Tree"]
__all__ += ["MajorityVote", "MergeConfidence", "MergePValues", "MergeRanks"]
__all__ += ["FixedTime", "Gate", "GiveUp", "LearnedRisk", "LogLoss", "ShapedRisk", "Spread"]
__all__ += ["Answers", "Temperature", "TopMass", "TuningRanks", "VoteRisk"]
__all__ += ["CalibratedRule", "CalibrationWarning", "Numbers", "Scores", "Session", "load_rule"]
__all__ += ["load_scores", "save_scores", "save_spikes"]
__all__ += ["Decision", "Decisions", "Evaluation", "Splits", "Tuned", "sample_until"]
__all__ += ["AdaptiveRule", "DriftMonitor", "evaluate", "repeat_splits", "tune"]
__all__ += ["Detection", "Spotter"]
__all__ += ["InputError", "generalized_mean", "log_confidence"]
__all__ += ["merge_p_values", "merging_factor"]
__all__ += ["Schedule", "front", "p_values", "simulate_scores"]
