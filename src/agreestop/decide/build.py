"""Rules from plain words: the command line, the pipeline and the paper's figures all build their rules here.

    build_rule("spikecp", "0.9", (20, 40, 60, 80), 3, pooling="p-values:45")
    build_rule("spikecp", 0.9, range(1, 81), 1, calibration="stop-aware")
    build_rule("agreestop", "0.9", range(1, 81), 1)
    build_rule("fixed-time", "0.9", range(1, 81), 1)
    build_rule("seenn", None, range(1, 81), 1, threshold=0.95)

An option of None means that it was not given. An option that the rule does not have is refused.
"""

from collections.abc import Sequence
from typing import Any

from agreestop.common import Floats, InputError

from .agree_stop import AgreeStop
from .confidence_rules import DCSNN, SEENN
from .gates import Gate
from .levels import Target
from .merging import MODEL_AVERAGE, MajorityVote, MergeConfidence, MergePValues, MergeRanks, Pooling
from .risks import FixedTime, TopMass
from .spikecp import CALIBRATIONS, SpikeCP

AnyRule = SpikeCP | AgreeStop | DCSNN | SEENN

KINDS = ("spikecp", "agreestop", "fixed-time", "dcsnn", "seenn")
OPTIONS = {
    "spikecp": ("target", "pooling", "calibration", "class_conditional", "delta", "gate"),
    "agreestop": ("target", "pooling", "fill", "class_conditional", "delta", "gate", "loss", "max_loss", "accumulated", "trim"),
    "fixed-time": ("target", "pooling", "class_conditional", "delta", "loss", "max_loss"),
    "dcsnn": ("target",),
    "seenn": ("threshold",),
}
"""The options that each kind of rule has; `checkpoints` and `max_set_size` belong to all."""

POOLINGS = "confidence:R, p-values:R, p-values:R:exchangeable, p-values:R:randomized, p-values:R:table, ranks:R, vote or none"


def parse_pooling(text: str) -> Pooling | None:
    """A pooling from words: 'confidence:1', 'p-values:45', 'ranks:1', 'vote', 'none'."""
    name, *settings = text.strip().split(":")
    try:
        if name == "none" and not settings:
            return None
        if name == "vote" and not settings:
            return MajorityVote()
        if name == "confidence" and len(settings) <= 1:
            return MergeConfidence(*map(float, settings))
        if name == "ranks" and len(settings) <= 1:
            return MergeRanks(*map(float, settings))
        if name == "p-values" and 1 <= len(settings) <= 2:
            r, form = float(settings[0]), settings[1] if len(settings) == 2 else "any"
            return MergePValues(r, table=True) if form == "table" else MergePValues(r, form)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
    raise InputError(f"pooling is {text!r}: give {POOLINGS}, where R is a number, inf or -inf.")


def build_rule(
    kind: str,
    target: Target | None,
    checkpoints: Sequence[float],
    max_set_size: int,
    *,
    pooling: str | Pooling | None = None,
    calibration: str | None = None,
    fill: bool | None = None,
    class_conditional: bool | None = None,
    delta: Target | None = None,
    threshold: float | None = None,
    gate: Gate | None = None,
    loss: Floats | None = None,
    max_loss: Target | None = None,
    accumulated: bool | None = None,
    trim: float | None = None,
) -> AnyRule:
    """The rule of that kind, before calibration.

    kind         one of KINDS
    target       the probability that the answer holds the true class; 0.9 if it is None; "seenn" and a rule with a loss have none
    pooling      words for `parse_pooling` or a pooling; model averaging ("confidence:1") if it is None. A gate has its own.
    calibration  how SpikeCP is calibrated; "bonferroni" if it is None
    threshold    the confidence at which "seenn" stops
    others       as in `AgreeStop` and `SpikeCP`
    """
    if kind not in OPTIONS:
        raise InputError(f"rule is {kind!r}: choose one of {', '.join(KINDS)}.")
    given: dict[str, Any] = {"target": target, "pooling": pooling, "calibration": calibration, "delta": delta, "threshold": threshold}
    given |= {"gate": gate, "loss": loss, "max_loss": max_loss, "trim": trim}
    given |= {
        "fill": fill or None,
        "class_conditional": class_conditional or None,
        "accumulated": accumulated or None,
    }
    for name, value in given.items():
        if value is not None and name not in OPTIONS[kind]:
            others = " or ".join(", ".join(other for other in KINDS if name in OPTIONS[other]).rsplit(", ", 1))
            raise InputError(f"{name} belongs to the rule {others}, not to {kind}: leave it out, or choose the rule {others}.")
    probability: Target = "0.9" if target is None else target
    if kind == "dcsnn":
        return DCSNN(probability, checkpoints, max_set_size)
    if kind == "seenn":
        if threshold is None:
            raise InputError("the rule seenn stops at a confidence that you fix: give a threshold, for example 0.9.")
        return SEENN(threshold, checkpoints, max_set_size)
    chosen = MODEL_AVERAGE if pooling is None else parse_pooling(pooling) if isinstance(pooling, str) else pooling
    conditional = bool(class_conditional)
    if kind == "spikecp":
        how = CALIBRATIONS[0] if calibration is None else calibration
        return SpikeCP(probability, checkpoints, max_set_size, chosen, how, None, conditional, delta, gate)
    if chosen is not None and not isinstance(chosen, MergeConfidence):
        raise InputError(f"pooling is {pooling!r}, but {kind} pools confidences: give confidence:R, or choose the rule spikecp.")
    fixed = kind == "fixed-time"
    risk = (FixedTime if fixed else TopMass)(chosen or MODEL_AVERAGE) if gate is None else gate
    return AgreeStop(
        probability if loss is None else target,
        checkpoints,
        max_set_size,
        fixed or bool(fill),
        risk,
        conditional,
        delta,
        gate,
        loss,
        max_loss,
        bool(accumulated),
        1.0 if trim is None else trim,
    )
