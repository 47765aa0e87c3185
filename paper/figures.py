"""The figures as plain data: what is measured on which data, against what, and how every rule enters.

The paper's protocol: T steps, four checkpoints at the quarters of T (20, 40, 60, 80) or every step, at most three classes, n = 50
calibration examples drawn from the pool, 50 realisations, K = 6 members, target 0.9, r = 1 for confidence merging and 45 for p-variable
merging, unless a figure sweeps it.

    fig2  p_targ    mnist-dvs-sim          fig5  K    gesture-sim       fig7  the default setting    n-mnist, braille        (ours)
    fig3  K         mnist-dvs-sim          fig6  K    cifar10           fig8  n                      mnist-dvs-sim, cifar10  (ours)
    fig4  r         mnist-dvs-sim

`mnist-dvs-sim` and `gesture-sim` are simulated stand-ins for MNIST-DVS and DVS128 Gesture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from agreestop.common.errors import InputError
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.confidence_rules import DCSNN, SEENN
from agreestop.decide.pooling import MergeConfidence, MergePValues, MergeRanks
from agreestop.decide.spikecp import SpikeCP

ENSEMBLES = ("deep", "variational")
LOOKS = 4
MAX_SET_SIZE = 3
FEW, EVERY = "few", "every"
PAPER, OURS, BASELINE = "paper", "ours", "baseline"
SEENN2 = "seenn2"
Rule: TypeAlias = SpikeCP | AgreeStop | DCSNN | SEENN


@dataclass(frozen=True)
class Setting:
    """What a rule promises and has: target, members, calibration examples."""

    target: float = 0.9
    K: int = 6
    n: int = 50


@dataclass(frozen=True)
class Contender:
    """A rule as it enters a figure.

    rule         its stable name
    label        in words
    family       PAPER, OURS or BASELINE
    checkpoints  FEW or EVERY
    r            the exponent of its pooling, where it is not for tuning to choose
    tuned        whether its score or risk is chosen on the tuning split
    alone        whether it has one member, whatever K is
    """

    rule: str
    label: str
    family: str
    checkpoints: str = FEW
    r: float | None = None
    tuned: bool = False
    alone: bool = False

    def build(self, target: float, steps: int) -> Rule:
        """The rule for inputs of so many steps, before any tuning."""
        looks, size, average = checkpoints(self.checkpoints, steps), MAX_SET_SIZE, MergeConfidence(r=1)
        r = 1.0 if self.r is None else self.r
        match self.rule:
            case "spikecp":
                return SpikeCP(target, looks, size)
            case "confidence-merging":
                return SpikeCP(target, looks, size, MergeConfidence(r))
            case "p-variable-merging":
                return SpikeCP(target, looks, size, MergePValues(r, table=True))
            case "rank-pooling":
                return SpikeCP(target, looks, size, MergeRanks(r))
            case "simultaneous" | "stop-aware":
                return SpikeCP(target, looks, size, average, self.rule)
            case "agreestop":
                return AgreeStop(target, looks, size)
            case "dcsnn":
                return DCSNN(target, looks, size)
            case "seenn1":
                return SEENN(target, looks, size)  # the confidence is taken at its word: the threshold is the target
            case name:
                raise InputError(f"there is no rule {name!r} to build for a figure: it is measured elsewhere.")


def checkpoints(which: str, steps: int) -> tuple[int, ...]:
    """The quarters of so many steps, or all of them."""
    if which == EVERY:
        return tuple(range(1, steps + 1))
    if steps % LOOKS:
        raise InputError(f"the score files have {steps} steps: a multiple of {LOOKS} is needed, with a checkpoint at each quarter.")
    return tuple(range(steps // LOOKS, steps + 1, steps // LOOKS))


def _both(rule: str, label: str) -> tuple[Contender, Contender]:
    """One of our rules at the paper's checkpoints, and at every step."""
    return Contender(rule, label, OURS, FEW, tuned=True), Contender(rule, f"{label}, every step", OURS, EVERY, tuned=True)


PAPERS = (
    Contender("spikecp", "SpikeCP, one member", PAPER, alone=True),
    Contender("confidence-merging", "confidence merging (CM)", PAPER, r=1.0),
    Contender("p-variable-merging", "p-variable merging (PM)", PAPER, r=45.0),
)
RULES = (
    *PAPERS,
    Contender("rank-pooling", "rank pooling", OURS, r=1.0),
    *_both("simultaneous", "simultaneous"),
    *_both("stop-aware", "stop-aware"),
    *_both("agreestop", "AgreeStop"),
)
BASELINES = (
    Contender("dcsnn", "DC-SNN", BASELINE, EVERY),
    Contender("seenn1", "SEENN-I", BASELINE, EVERY),
    Contender(SEENN2, "SEENN-II", BASELINE, FEW),
)


@dataclass(frozen=True)
class Figure:
    """A figure: a name, what it shows, on which data, against what (a key of SWEPT in `figure_records`) and where.

    pool  at most so many inputs of the pool take part; None for all of them
    """

    name: str
    title: str
    data: tuple[str, ...]
    swept: str
    values: tuple[float, ...] = ()
    contenders: tuple[Contender, ...] = RULES
    ensembles: tuple[str, ...] = ENSEMBLES
    pool: int | None = None


TARGETS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95)
SIZES = (1, 2, 3, 4, 5, 6, 9)
EXPONENTS = (-math.inf, -45, -10, -3, -1, 0, 1, 2, 5, 8, 10, 20, 45, math.inf)
COUNTS = (20, 35, 50, 100, 200, 500, 1000)

FIGURES = (
    Figure("fig2", "coverage and latency against the target", ("mnist-dvs-sim",), "target", TARGETS, RULES + BASELINES),
    Figure("fig3", "coverage and latency against the number of members", ("mnist-dvs-sim",), "K", SIZES, RULES + BASELINES),
    Figure("fig4", "coverage and latency against the exponent of pooling", ("mnist-dvs-sim",), "r", EXPONENTS),
    Figure("fig5", "coverage and latency against the number of members", ("gesture-sim",), "K", SIZES, RULES + BASELINES[:1]),
    Figure("fig6", "coverage and latency against the number of members", ("cifar10",), "K", SIZES),
    Figure("fig7", "real events at the default setting", ("n-mnist", "braille"), ""),
    Figure("fig8", "coverage and latency against calibration examples", ("mnist-dvs-sim", "cifar10"), "n", COUNTS, pool=3000),
)
NAMES = tuple(figure.name for figure in FIGURES)


def find_figures(name: str) -> tuple[Figure, ...]:
    """The figure of that name, or all of them."""
    if name == "all":
        return FIGURES
    found = tuple(figure for figure in FIGURES if figure.name == name)
    if not found:
        raise InputError(f"there is no figure {name!r}: choose one of {', '.join(NAMES)} or all.")
    return found


@dataclass(frozen=True)
class Point:
    """One rule at one place of the x-axis; x is None for a rule that does not depend on what is swept."""

    contender: Contender
    setting: Setting
    x: float | None
    default: bool


def points_of(figure: Figure, members: int, pool: int) -> list[Point]:
    """All points of a figure that an ensemble of so many members and a pool of so many inputs can give.

    The default K is 6, or all members where there are fewer. Half of the pool at least is left to test on.
    """
    usual = Setting(K=min(Setting.K, members))
    if usual.n > pool // 2:
        raise InputError(f"the pool has {pool} inputs: at least {2 * usual.n} are needed, {usual.n} of them for calibration.")
    return [point for contender in figure.contenders for point in _points(figure, contender, usual, members, pool)]


def _points(figure: Figure, contender: Contender, usual: Setting, members: int, pool: int) -> Sequence[Point]:
    if contender.alone:
        usual = replace(usual, K=1)
    still = Point(contender, usual, None, True)
    match figure.swept:
        case "target":
            settings = [(replace(usual, target=value), value) for value in figure.values]
        case "n":
            settings = [(replace(usual, n=int(value)), value) for value in figure.values if value <= pool // 2]
        case "K" if not contender.alone:
            settings = [(replace(usual, K=int(value)), value) for value in figure.values if value <= members]
        case "r" if contender.r is not None:
            return [Point(replace(contender, r=float(value)), usual, float(value), value == contender.r) for value in figure.values]
        case _:
            return [still]
    return [Point(contender, setting, float(value), setting == usual) for setting, value in settings]
