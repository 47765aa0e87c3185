"""How each rule looks in figures: its colour and marker belong to the rule, wherever it is drawn and whatever stands beside it."""

import re
from dataclasses import dataclass
from typing import Literal

Dashes = Literal["-", "--", ":"]


@dataclass(frozen=True)
class RuleStyle:
    """Colour, matplotlib marker, the same marker as a character, and the line: solid, dashed or dotted."""

    colour: str
    marker: str
    glyph: str
    dashes: Dashes = "-"


_STYLES = {
    "spikecp": RuleStyle("#B4B4B4", "x", "✕"),
    "confidencemerging": RuleStyle("#7A7A7A", "s", "■"),
    "pvariablemerging": RuleStyle("#1A1A1A", "D", "◆"),
    "rankpooling": RuleStyle("#CC79A7", "P", "✚"),
    "simultaneous": RuleStyle("#009E73", "^", "▲"),
    "stopaware": RuleStyle("#0072B2", "o", "●"),
    "agreestop": RuleStyle("#D55E00", "v", "▼"),
    "dcsnn": RuleStyle("#8C6D46", "<", "◀"),
    "seenn1": RuleStyle("#B58F5C", ">", "▶"),
    "seenn2": RuleStyle("#D9BE94", "p", "⬟"),
}
_UNKNOWN = RuleStyle("#56B4E9", "h", "⬢")


def style_of(rule: str) -> RuleStyle:
    """The style of a rule, by its label ("AgreeStop, every step") or its key ("agreestop"); rules at every step are dashed."""
    name, _, checkpoints = rule.partition(",")
    style = _STYLES.get(re.sub("[^a-z0-9]", "", name.lower()), _UNKNOWN)
    return RuleStyle(style.colour, style.marker, style.glyph, "--") if "every" in checkpoints else style
