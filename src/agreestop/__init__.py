"""agreestop: decide when an ensemble watching a stream has seen enough, and be right as often as promised."""

from .decide.agree_stop import AgreeStop
from .decide.calibrated import CalibratedRule, Session
from .decide.checks import CalibrationWarning, InputError
from .decide.confidence import generalized_mean, log_confidence
from .decide.confidence_rules import DCSNN, SEENN
from .decide.decisions import Decision, Decisions, Estimate, Evaluation, evaluate
from .decide.learned_risk import LearnedRisk
from .decide.merging import majority_vote, merge_exchangeable, merge_p_values, merge_randomized, merging_factor
from .decide.pooling import MajorityVote, MergeConfidence, MergePValues, MergeRanks
from .decide.pvalues import p_values
from .decide.risks import ShapedRisk, TopMass
from .decide.rule_files import load_rule
from .decide.score_files import Scores, load_scores, save_scores, save_spikes
from .decide.scores import LogLoss, Shaped, Spread, Temperature, TuningRanks
from .decide.simulated import simulate_scores, simulate_spikes
from .decide.spikecp import SpikeCP
from .decide.splits import Splits, repeat_splits
from .decide.tuning import Trial, Tuned, tune

__all__ = [
    "DCSNN",
    "SEENN",
    "AgreeStop",
    "CalibratedRule",
    "CalibrationWarning",
    "Decision",
    "Decisions",
    "Estimate",
    "Evaluation",
    "InputError",
    "LearnedRisk",
    "LogLoss",
    "MajorityVote",
    "MergeConfidence",
    "MergePValues",
    "MergeRanks",
    "Scores",
    "Session",
    "Shaped",
    "ShapedRisk",
    "SpikeCP",
    "Splits",
    "Spread",
    "Temperature",
    "TopMass",
    "Trial",
    "Tuned",
    "TuningRanks",
    "evaluate",
    "generalized_mean",
    "load_rule",
    "load_scores",
    "log_confidence",
    "majority_vote",
    "merge_exchangeable",
    "merge_p_values",
    "merge_randomized",
    "merging_factor",
    "p_values",
    "repeat_splits",
    "save_scores",
    "save_spikes",
    "simulate_scores",
    "simulate_spikes",
    "tune",
]
