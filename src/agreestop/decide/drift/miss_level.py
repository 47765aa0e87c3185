"""The share of misses that a calibrated rule may have without drift."""

from dataclasses import dataclass
from fractions import Fraction

from agreestop.common.levels import in_words, largest_miss_rate

from ..calibrated import CalibratedRule


@dataclass(frozen=True)
class MissLevel:
    """The share of misses that a rule may have without drift, for alarms from labels.

    level   α'; None where labels cannot break the promise
    risk    the probability, over draws of the calibration examples, that α' is too small
    reason  a sentence that says why there is no level; empty if there is one
    """

    level: float | None
    risk: Fraction = Fraction(0)
    reason: str = ""


def miss_level(calibrated: CalibratedRule, delta: Fraction) -> MissLevel:
    """The share of misses without drift; a calibration draw exceeds it with chance `delta`."""
    terms, rank = calibrated.rule.terms, calibrated.threshold_rank
    reason = _unwatched(calibrated, delta)
    if reason or terms.target is None:
        return MissLevel(None, reason=reason)
    if terms.delta is not None:
        return MissLevel(float(1 - terms.target), terms.delta * calibrated.policy.joint_promises)
    if rank is not None:
        return MissLevel(largest_miss_rate(*rank, delta), delta)
    return MissLevel(float(1 - terms.target))


def _unwatched(calibrated: CalibratedRule, delta: Fraction) -> str:
    """Why no alarm from labels is possible; empty if one is."""
    terms, joint = calibrated.rule.terms, calibrated.policy.joint_promises
    if terms.target is None or not terms.promises:
        return (
            f"this {type(calibrated.rule).__name__} promises no share of hits, so labels cannot "
            "break it: only call observe."
        )
    if terms.largest_loss is not None:
        return (
            "the rule has losses in place of labels, from which there is no alarm: only call "
            "observe."
        )
    if terms.numbers and calibrated.final:
        return "the promise is about the last number of the model itself: only call observe."
    if calibrated.group_names is not None:
        return (
            "the rule has a promise for each group: calibrate one for each group, and watch each "
            "by itself."
        )
    if calibrated.people is not None:
        return "the rule's promise is about new people, not about rows: only call observe."
    if calibrated.effective_size is not None:
        return (
            "the rule allows for a shift by weights, which no alarm from labels knows of: only "
            "call observe."
        )
    if calibrated.adapted:
        return (
            "an AdaptiveRule has moved the threshold, whose promise is another one: only call "
            "observe, or watch the rule itself."
        )
    if terms.delta is None:
        if calibrated.threshold_rank is not None or _answers_all_classes(calibrated):
            return ""
        return (
            "the rule's promise is a mean over calibration draws: calibrate it with delta=0.05, "
            "for example."
        )
    if terms.delta * joint + delta < 1:
        return ""
    return (
        f"delta={in_words(terms.delta)} holds for each class by itself, so all {joint} of them "
        "together promise nothing: calibrate with a smaller delta."
    )


def _answers_all_classes(calibrated: CalibratedRule) -> bool:
    """Whether nothing is ever excluded; with a gate the last block may differ."""
    terms = calibrated.rule.terms
    if not calibrated.never_stops or terms.block_names is not None:
        return False
    return calibrated.thresholds.shape == (1,) or not terms.class_conditional
