"""A calibrated rule in C: the few numbers that `rule.c` needs, or the reason why it cannot be exported."""

import string
from dataclasses import dataclass
from typing import Any

import numpy as np

from agreestop.common import Floats, InputError, Integers
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence_rules import ConfidenceRule
from agreestop.decide.merging import MODEL_AVERAGE, MergeConfidence
from agreestop.decide.policies import (
    CheckpointRisks,
    CheckpointThresholds,
    ConditionalThresholds,
    ConfidenceThreshold,
    RiskThreshold,
    RunningThreshold,
    StoppingThreshold,
)
from agreestop.decide.risks import FixedTime, ShapedRisk, TopMass
from agreestop.decide.schedules import Schedule
from agreestop.decide.scores import LogLoss, Shaped, Temperature
from agreestop.decide.spikecp import SpikeCP

from .c_model import c_array, c_double

POLICIES = ("AG_RISK", "AG_CHECKPOINTS", "AG_RUNNING", "AG_STOPPING", "AG_CONFIDENCE")
PLAIN = b" ,-.:;_" + (string.ascii_letters + string.digits).encode()
ALTERNATIVE = "calibrate AgreeStop, or SpikeCP with MergeConfidence"


@dataclass(frozen=True, eq=False)
class CRule:
    """What `rule.c` knows of a rule.

    policy         one of POLICIES
    times, members (M,) the looks
    exponent       r of the generalised mean over members
    temperatures   (M,), or None
    offsets        (M,) what is taken from every score or risk; -∞: nothing stops at this look
    thresholds     (rows, columns): a row for each look or block, a column for each class, or one for all
    blocks, slack  of a gate: (M,) the block of an input whose gate opens at a look; None without a gate
    """

    policy: str
    times: Integers
    members: Integers
    max_set_size: int
    exponent: float
    temperatures: Floats | None
    offsets: Floats
    thresholds: Floats
    fixed_time: bool = False
    fill: bool = False
    log_trim: float = 0.0
    final: bool = False
    blocks: Integers | None = None
    slack: float = 0.0

    @property
    def history(self) -> int:
        """The number of steps that members that join may have to replay: members join right after the look before theirs."""
        joins = np.flatnonzero(np.diff(self.members) > 0)
        return int(self.times[joins].max(initial=0))

    @property
    def flash(self) -> int:
        """Bytes of its numbers."""
        doubles = self.offsets.size + self.thresholds.size + (0 if self.temperatures is None else self.temperatures.size)
        return 8 * doubles + 4 * len(self.times) + (0 if self.blocks is None else len(self.times))

    def ram(self, classes: int) -> int:
        """Bytes of the static memory of rule.c, up to padding."""
        members = int(self.members[-1])
        risk, sets = 3 * 8 * classes + 2 * classes, 8 * classes * (1 + (self.temperatures is not None) + (self.policy == "AG_RUNNING"))
        own = {"AG_RISK": risk, "AG_CONFIDENCE": 10 * classes}.get(self.policy, sets)
        return 8 * (3 * members + classes) + own + classes + 16


def c_rule(calibrated: CalibratedRule) -> CRule:
    """The rule for C. One that C does not know is refused with the reason."""
    rule, policy, given = calibrated.rule, calibrated.policy, calibrated.checkpoints
    looks = len(given)
    members = given.members if isinstance(given, Schedule) else [calibrated.members] * looks
    common: dict[str, Any] = {
        "times": np.array(given, np.int64),
        "members": np.array(members, np.int64),
        "max_set_size": min(rule.max_set_size, calibrated.classes),
    }
    if isinstance(policy, ConditionalThresholds) and policy.group_names is not None:
        raise InputError("the rule has groups, and exported code does not know the group of an input: calibrate a rule for each group.")
    if isinstance(rule, ConfidenceRule) and isinstance(policy, ConfidenceThreshold):
        plain: dict[str, Any] = {"exponent": MODEL_AVERAGE.r, "temperatures": None, "offsets": np.zeros(looks)}
        return CRule("AG_CONFIDENCE", **common, **plain, thresholds=np.array([[policy.threshold]]))
    if isinstance(rule, AgreeStop):
        return CRule("AG_RISK", **common, **_risk(rule.risk, looks), **_risk_policy(policy))
    if isinstance(rule, SpikeCP):
        return CRule(**common, **_score(rule, looks), **_set_policy(policy))
    raise InputError(f"a {type(rule).__name__} is a rule that exported code does not know: {ALTERNATIVE}.")


def _risk(risk: Any, looks: int) -> dict[str, Any]:
    offsets = np.zeros(looks)
    while isinstance(risk, ShapedRisk):
        offsets, risk = offsets + risk.offsets, risk.base
    if not isinstance(risk, (TopMass, FixedTime)):
        raise InputError(
            f"the risk is a {type(risk).__name__}, which exported code does not know: calibrate with TopMass, as it is or tuned."
        )
    temperatures = risk.temperatures if isinstance(risk, TopMass) else None
    found = {"exponent": risk.pooling.r, "temperatures": temperatures, "offsets": offsets}
    return {**found, "fixed_time": isinstance(risk, FixedTime)}


def _risk_policy(policy: Any) -> dict[str, Any]:
    base = policy if isinstance(policy, RiskThreshold) else policy.base
    settings = {"fill": base.fill, "log_trim": 0.0 if base.fill else base.log_trim, "final": base.final}
    if isinstance(policy, RiskThreshold):
        return {**settings, "thresholds": np.array([[policy.threshold]])}
    if isinstance(policy, CheckpointRisks):
        return {**settings, "thresholds": policy.thresholds[:, None]}
    return {**settings, "thresholds": policy.thresholds[0][:, None], "blocks": policy.blocks, "slack": policy.slack}


def _score(rule: SpikeCP, looks: int) -> dict[str, Any]:
    if rule.gate is not None:
        raise InputError("exported code has a gate only with AgreeStop, which reads one risk: calibrate AgreeStop with the gate.")
    score: Any = LogLoss(MODEL_AVERAGE if rule.pooling is None else rule.pooling) if rule.score is None else rule.score  # type: ignore[arg-type]
    offsets = np.zeros(looks)
    while isinstance(score, Shaped):
        offsets, score = offsets + score.offsets, score.base
    if not isinstance(score, (LogLoss, Temperature)):
        raise InputError(
            f"the score is a {type(score).__name__}, which exported code does not know: calibrate with Temperature, or with none."
        )
    if not isinstance(score.pooling, MergeConfidence):
        name = type(score.pooling).__name__
        raise InputError(f"{name} pools members after each was calibrated by itself, which exported code does not do: {ALTERNATIVE}.")
    temperatures = score.temperatures if isinstance(score, Temperature) else None
    return {"exponent": score.pooling.r, "temperatures": temperatures, "offsets": offsets}


def _set_policy(policy: Any) -> dict[str, Any]:
    if isinstance(policy, CheckpointThresholds):
        return {"policy": "AG_CHECKPOINTS", "thresholds": policy.thresholds}
    if isinstance(policy, RunningThreshold):
        return {"policy": "AG_RUNNING", "thresholds": policy.threshold[None]}
    assert isinstance(policy, StoppingThreshold)
    return {"policy": "AG_STOPPING", "thresholds": np.array([[policy.threshold]]), "final": policy.final}


def rule_text(rule: CRule, promise: str, names: tuple[str, ...]) -> str:
    """rule_data.h, with the promise in words on top."""
    looks = len(rule.times)
    numbers = {name: str(index) for index, name in enumerate(POLICIES)}
    numbers |= {
        "AG_POLICY": rule.policy,
        "AG_LOOKS": str(looks),
        "AG_MAX_SET_SIZE": str(rule.max_set_size),
        "AG_EXPONENT": c_double(rule.exponent),
        "AG_TEMPERED": str(int(rule.temperatures is not None)),
        "AG_FIXED_TIME": str(int(rule.fixed_time)),
        "AG_FILL": str(int(rule.fill)),
        "AG_LOG_TRIM": c_double(rule.log_trim),
        "AG_FINAL": str(int(rule.final)),
        "AG_COLUMNS": str(rule.thresholds.shape[1]),
        "AG_THRESHOLD_FOR_EACH_LOOK": str(int(rule.blocks is None and len(rule.thresholds) == looks and looks > 1)),
        "AG_GATED": str(int(rule.blocks is not None)),
        "AG_BLOCKS": str(len(rule.thresholds)),
        "AG_GATE_SLACK": c_double(rule.slack),
    }
    words = promise.replace("*/", "* /")
    parts = [f"/* Written by agreestop export: the numbers of the rule. Its promise: {words} */\n"]
    parts += [f"#define {name} {value}" for name, value in numbers.items()] + [""]
    parts += [
        c_array("ag_look_times", rule.times.astype(np.uint16), scope=""),
        c_array("ag_look_members", rule.members.astype(np.uint16), scope=""),
    ]
    if rule.policy != "AG_CONFIDENCE":
        parts.append(c_array("offsets", rule.offsets))
    parts.append(c_array("thresholds", rule.thresholds.astype(np.float64)))
    if rule.temperatures is not None:
        parts.append(c_array("temperatures", rule.temperatures))
    if rule.blocks is not None:
        parts.append(c_array("blocks", rule.blocks.astype(np.uint8)))
    parts.append("const char *const ag_class_names[AG_CLASSES] = {\n" + ",\n".join(map(c_string, names)) + "};\n")
    return "\n".join(parts)


def c_string(text: str) -> str:
    r"""A string literal in ASCII; what C could take for something else is written as an octal number, such as \077 for a question mark."""
    return '"' + "".join(chr(byte) if byte in PLAIN else f"\\{byte:03o}" for byte in text.encode()) + '"'
