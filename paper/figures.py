"""The figures as plain data: which rules are measured on which data, and what is swept along the
x-axis.

The paper's protocol: T steps, four checkpoints at the quarters of T (20, 40, 60, 80) or every step,
at most three classes, n = 50 calibration examples drawn from the pool, 50 realisations, K = 6
members, target 0.9, r = 1 for confidence merging and r = 45 for p-variable merging. A figure may
sweep one of these.

    fig2  target                 mnist-dvs-sim
    fig3  K                      mnist-dvs-sim
    fig4  r                      mnist-dvs-sim
    fig5  K                      gesture-sim
    fig6  K                      cifar10
    fig7  the default setting    n-mnist, braille          (ours)
    fig8  n                      mnist-dvs-sim, cifar10    (ours)

`mnist-dvs-sim` and `gesture-sim` are simulated stand-ins for MNIST-DVS and DVS128 Gesture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agreestop.common import InputError
from agreestop.decide.rule import Rule, build_rule

ENSEMBLES = ("deep", "variational")
QUARTERS = 4
MAX_SET_SIZE = 3
FEW, EVERY = "few", "every"
PAPER, OURS, FIXED, BASELINE = "paper", "ours", "fixed", "baseline"
SEENN2 = "seenn2"


@dataclass(frozen=True)
class Setting:
    """What a rule promises and what it is given: target, members and calibration examples."""

    target: float = 0.9
    K: int = 6
    n: int = 50


@dataclass(frozen=True)
class FigureRule:
    """A rule in a figure.

    rule           its stable name
    label          its name in words
    family         PAPER, OURS, FIXED or BASELINE
    checkpoints    FEW or EVERY
    r              the exponent of its pooling; None where tuning chooses it
    tuned          whether its score or risk is chosen on the tuning split
    single_member  whether it has one member for every K
    """

    rule: str
    label: str
    family: str
    checkpoints: str = FEW
    r: float | None = None
    tuned: bool = False
    single_member: bool = False

    def build(self, target: float, steps: int) -> Rule:
        """The rule for inputs of `steps` steps, before tuning."""
        times = checkpoints(self.checkpoints, steps)
        match self.rule:
            case "spikecp" | "confidence-merging" | "p-variable-merging" | "rank-pooling":
                pooling = POOLINGS[self.rule].format(1.0 if self.r is None else self.r)
                return build_rule("spikecp", target, times, MAX_SET_SIZE, pooling=pooling)
            case "simultaneous" | "stop-aware":
                return build_rule("spikecp", target, times, MAX_SET_SIZE, calibration=self.rule)
            case "agreestop" | "fixed-time" | "dcsnn":
                return build_rule(self.rule, target, times, MAX_SET_SIZE)
            case "seenn1":  # it trusts the confidence: its threshold is the target
                return build_rule("seenn", None, times, MAX_SET_SIZE, threshold=target)
            case name:
                raise InputError(
                    f"the rule {name!r} cannot be built from scores: it is measured where the "
                    "scores are made."
                )


POOLINGS = {
    "spikecp": "none",
    "confidence-merging": "confidence:{}",
    "p-variable-merging": "p-values:{}:table",
    "rank-pooling": "ranks:{}",
}


def checkpoints(which: str, steps: int) -> tuple[int, ...]:
    """The quarters of the steps, or every step."""
    if which == EVERY:
        return tuple(range(1, steps + 1))
    if steps % QUARTERS:
        raise InputError(
            f"the score files have {steps} steps: a multiple of {QUARTERS} is needed, with a "
            "checkpoint at each quarter."
        )
    return tuple(range(steps // QUARTERS, steps + 1, steps // QUARTERS))


def _both(rule: str, label: str) -> tuple[FigureRule, FigureRule]:
    """One of our rules at the paper's checkpoints, and at every step."""
    return FigureRule(rule, label, OURS, FEW, tuned=True), FigureRule(
        rule, f"{label}, every step", OURS, EVERY, tuned=True
    )


PAPERS = (
    FigureRule("spikecp", "SpikeCP, one member", PAPER, single_member=True),
    FigureRule("confidence-merging", "confidence merging (CM)", PAPER, r=1.0),
    FigureRule("p-variable-merging", "p-variable merging (PM)", PAPER, r=45.0),
)
RULES = (
    *PAPERS,
    FigureRule("rank-pooling", "rank pooling", OURS, r=1.0),
    *_both("simultaneous", "simultaneous"),
    *_both("stop-aware", "stop-aware"),
    *_both("agreestop", "AgreeStop"),
    FigureRule("fixed-time", "one time for all inputs", FIXED, EVERY),
)
BASELINES = (
    FigureRule("dcsnn", "DC-SNN", BASELINE, EVERY),
    FigureRule("seenn1", "SEENN-I", BASELINE, EVERY),
    FigureRule(SEENN2, "SEENN-II", BASELINE, FEW),
)


@dataclass(frozen=True)
class Figure:
    """A figure: its name, what it shows, and on which data.

    swept   what varies along the x-axis, a key of SWEPT in `records`; values are where
    pool    the largest number of pool inputs that are used; None for all of them
    """

    name: str
    title: str
    data: tuple[str, ...]
    swept: str
    values: tuple[float, ...] = ()
    rules: tuple[FigureRule, ...] = RULES
    ensembles: tuple[str, ...] = ENSEMBLES
    pool: int | None = None


TARGETS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95)
SIZES = (1, 2, 3, 4, 5, 6, 9)
EXPONENTS = (-math.inf, -45, -10, -3, -1, 0, 1, 2, 5, 8, 10, 20, 45, math.inf)
COUNTS = (20, 35, 50, 100, 200, 500, 1000)

FIGURES = (
    Figure(
        "fig2",
        "coverage and latency against the target",
        ("mnist-dvs-sim",),
        "target",
        TARGETS,
        RULES + BASELINES,
    ),
    Figure(
        "fig3",
        "coverage and latency against the number of members",
        ("mnist-dvs-sim",),
        "K",
        SIZES,
        RULES + BASELINES,
    ),
    Figure(
        "fig4",
        "coverage and latency against the exponent of pooling",
        ("mnist-dvs-sim",),
        "r",
        EXPONENTS,
    ),
    Figure(
        "fig5",
        "coverage and latency against the number of members",
        ("gesture-sim",),
        "K",
        SIZES,
        RULES + BASELINES[:1],
    ),
    Figure("fig6", "coverage and latency against the number of members", ("cifar10",), "K", SIZES),
    Figure("fig7", "real events at the default setting", ("n-mnist", "braille"), ""),
    Figure(
        "fig8",
        "coverage and latency against calibration examples",
        ("mnist-dvs-sim", "cifar10"),
        "n",
        COUNTS,
        pool=3000,
    ),
)
NAMES = tuple(figure.name for figure in FIGURES)


def find_figures(name: str) -> tuple[Figure, ...]:
    """The figure of that name, or all figures."""
    if name == "all":
        return FIGURES
    found = tuple(figure for figure in FIGURES if figure.name == name)
    if not found:
        raise InputError(f"there is no figure {name!r}: choose one of {', '.join(NAMES)} or all.")
    return found


@dataclass(frozen=True)
class Point:
    """One rule at one point of the x-axis; x is None for a rule that does not depend on what is
    swept.
    """

    rule: FigureRule
    setting: Setting
    x: float | None
    default: bool


def points_of(figure: Figure, members: int, pool: int) -> list[Point]:
    """All points of a figure that are possible with an ensemble of `members` and a pool of `pool`
    inputs.

    The default K is 6, or all members where there are fewer. At least half of the pool is left to
    test on.
    """
    usual = Setting(K=min(Setting.K, members))
    if usual.n > pool // 2:
        raise InputError(
            f"the pool has {pool} inputs: at least {2 * usual.n} are needed, {usual.n} of them for "
            "calibration."
        )
    return [point for rule in figure.rules for point in _points(figure, rule, usual, members, pool)]


def _points(
    figure: Figure, rule: FigureRule, usual: Setting, members: int, pool: int
) -> Sequence[Point]:
    if rule.single_member:
        usual = replace(usual, K=1)
    match figure.swept:
        case "target":
            settings = [(replace(usual, target=value), value) for value in figure.values]
        case "n":
            settings = [
                (replace(usual, n=int(value)), value)
                for value in figure.values
                if value <= pool // 2
            ]
        case "K" if not rule.single_member:
            settings = [
                (replace(usual, K=int(value)), value) for value in figure.values if value <= members
            ]
        case "r" if rule.r is not None:
            return [
                Point(replace(rule, r=float(value)), usual, float(value), value == rule.r)
                for value in figure.values
            ]
        case _:
            return [Point(rule, usual, None, True)]
    return [Point(rule, setting, float(value), setting == usual) for setting, value in settings]
