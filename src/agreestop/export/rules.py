"""A calibrated rule in plain numbers, for C and for the page, or the reason why it cannot be
exported.
"""

from dataclasses import dataclass

import numpy as np

from agreestop.common import Floats, InputError, Integers
from agreestop.decide.calibrated import CalibratedRule


@dataclass(frozen=True, eq=False)
class ExportedRule:
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

"""What `rule.c` and `rule.js` call the kinds of plain rules."""


def exported_rule(calibrated: CalibratedRule) -> ExportedRule:
    """The rule for C. One that C does not know is refused with the reason."""
    given = calibrated.checkpoints
    if calibrated.group_names is not None:
        raise InputError(
            "the rule has groups, and exported code does not know the group of an input: calibrate "
            "a rule for each group."
        )
    plain = calibrated.rule.plain(calibrated.policy)
    fill = plain.log_trim == -np.inf
    return ExportedRule(
        KINDS[plain.kind],
        np.array(given, np.int64),
        np.array(calibrated.judged_members, np.int64),
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
