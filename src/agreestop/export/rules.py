"""A calibrated rule in plain numbers, for C and for the page, or the reason why it cannot be
exported.
"""

from dataclasses import dataclass

import numpy as np

from agreestop.common import InputError, Integers
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.rule import PlainRule

KINDS = {
    "risk": "AG_RISK",
    "checkpoints": "AG_CHECKPOINTS",
    "running": "AG_RUNNING",
    "stopping": "AG_STOPPING",
    "confidence": "AG_CONFIDENCE",
}
"""What `rule.c` and `rule.js` call the kinds of plain rules."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ExportedRule(PlainRule):
    """What `rule.c` knows of a rule: its plain numbers, and

    times, members (M,) the looks
    fill           whether sets are filled up to max_set_size; log_trim is 0 then
    """

    times: Integers
    members: Integers
    max_set_size: int
    fill: bool

    @property
    def policy(self) -> str:
        """One of POLICIES."""
        return KINDS[self.kind]

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


def exported_rule(calibrated: CalibratedRule) -> ExportedRule:
    """The rule for C. One that C does not know is refused with the reason."""
    given = calibrated.checkpoints
    if calibrated.group_names is not None:
        raise InputError(
            "the rule has groups, and exported code does not know the group of an input: calibrate "
            "a rule for each group."
        )
    plain = vars(calibrated.rule.plain(calibrated.policy))
    fill = plain["log_trim"] == -np.inf
    return ExportedRule(
        **plain | ({"log_trim": 0.0} if fill else {}),
        times=np.array(given, np.int64),
        members=np.array(calibrated.judged_members, np.int64),
        max_set_size=min(calibrated.rule.max_set_size, calibrated.classes),
        fill=fill,
    )
