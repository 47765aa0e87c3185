"""A calibrated rule in C: the few numbers that `rule.c` needs, or the reason why it
cannot be exported.
"""

import string
from dataclasses import dataclass

import numpy as np

from agreestop.common import Floats, InputError, Integers, Schedule
from agreestop.decide.calibrated import CalibratedRule

from .c_model import c_array, c_double

POLICIES = ("AG_RISK", "AG_CHECKPOINTS", "AG_RUNNING", "AG_STOPPING", "AG_CONFIDENCE")
PLAIN = b" ,-.:;_" + (string.ascii_letters + string.digits).encode()


@dataclass(frozen=True, eq=False)
class CRule:
    """What `rule.c` knows of a rule.

    policy         one of POLICIES
    times, members (M,) the looks
    exponent       r of the generalised mean over members
    temperatures   (M,), or None
    offsets        (M,) what is taken from every score or risk; -∞: nothing stops at this look
    thresholds     (rows, columns): a row for each look or block, a column for each class,
                   or one for all
    blocks, slack  of a gate: (M,) the block of an input whose gate opens at a look; None
                   without a gate
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
        """The number of steps that members that join may have to replay: members join right
        after the look before theirs.
        """
        joins = np.flatnonzero(np.diff(self.members) > 0)
        return int(self.times[joins].max(initial=0))

    @property
    def flash(self) -> int:
        """Bytes of its numbers."""
        doubles = (
            self.offsets.size
            + self.thresholds.size
            + (0 if self.temperatures is None else self.temperatures.size)
        )
        return 8 * doubles + 4 * len(self.times) + (0 if self.blocks is None else len(self.times))

    def ram(self, classes: int) -> int:
        """Bytes of the static memory of rule.c, up to padding."""
        members = int(self.members[-1])
        risk = 3 * 8 * classes + 2 * classes
        sets = 8 * classes * (1 + (self.temperatures is not None) + (self.policy == "AG_RUNNING"))
        own = {"AG_RISK": risk, "AG_CONFIDENCE": 10 * classes}.get(self.policy, sets)
        return 8 * (3 * members + classes) + own + classes + 16


KINDS = {
    "risk": "AG_RISK",
    "checkpoints": "AG_CHECKPOINTS",
    "running": "AG_RUNNING",
    "stopping": "AG_STOPPING",
    "confidence": "AG_CONFIDENCE",
}
"""What `rule.c` calls the kinds of plain rules."""


def c_rule(calibrated: CalibratedRule) -> CRule:
    """The rule for C. One that C does not know is refused with the reason."""
    given = calibrated.checkpoints
    if calibrated.group_names is not None:
        raise InputError(
            "the rule has groups, and exported code does not know the group of an input: calibrate "
            "a rule for each group."
        )
    plain = calibrated.rule.plain(calibrated.policy)
    everybody = [calibrated.members] * len(given)
    members = given.members if isinstance(given, Schedule) else everybody
    fill = plain.log_trim == -np.inf
    return CRule(
        KINDS[plain.kind],
        np.array(given, np.int64),
        np.array(members, np.int64),
        min(calibrated.rule.max_set_size, calibrated.classes),
        plain.exponent,
        plain.temperatures,
        plain.offsets,
        plain.thresholds,
        plain.fixed_time,
        fill,
        0.0 if fill else plain.log_trim,
        plain.final,
        plain.blocks,
        plain.slack,
    )


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
        "AG_THRESHOLD_FOR_EACH_LOOK": str(
            int(rule.blocks is None and len(rule.thresholds) == looks and looks > 1)
        ),
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
    parts.append(
        "const char *const ag_class_names[AG_CLASSES] = {\n"
        + ",\n".join(map(c_string, names))
        + "};\n"
    )
    return "\n".join(parts)


def c_string(text: str) -> str:
    r"""A string literal in ASCII; what C could take for something else is written as an octal
    number, such as \077 for a question mark.
    """
    return (
        '"'
        + "".join(chr(byte) if byte in PLAIN else f"\\{byte:03o}" for byte in text.encode())
        + '"'
    )
