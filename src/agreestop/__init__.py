"""agreestop: decide when an ensemble watching a stream has seen enough, and be right as often as promised."""

from .decide.calibrated import CalibratedRule, Session
from .decide.checks import CalibrationWarning, InputError
from .decide.confidence import generalized_mean, log_confidence
from .decide.decisions import Decision, Decisions, Estimate, Evaluation, evaluate
from .decide.merging import majority_vote, merge_exchangeable, merge_p_values, merge_randomized, merging_factor
from .decide.pooling import MajorityVote, MergeConfidence, MergePValues, MergeRanks
from .decide.pvalues import p_values
from .decide.risks import TopMass
from .decide.rule_files import load_rule
from .decide.rules import DCSNN, SEENN, AgreeStop, SpikeCP
from .decide.score_files import Scores, load_scores, save_scores, save_spikes
from .decide.scores import LogLoss, Shaped, Spread, Temperature, TuningRanks
from .decide.simulated import simulate_scores, simulate_spikes
from .decide.splits import Splits, repeat_splits
