"""Rule files of every kind, and the state of monitors and adaptive rules."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import InputError
from tests.decide.strategies import Shaped

from .harness import Format

TIMES = (1, 2, 3, 4)
CLASSES = ("a", "bé", "c c")


def scores(seed: int = 1) -> ag.Scores:
    confidence = np.log(np.random.default_rng(seed).dirichlet(np.ones(3), (40, 4, 2)))
    return ag.Scores(
        confidence,
        np.arange(40) % 3,
        TIMES,
        CLASSES,
        "dense",
        "ab" * 32,
        100 * seed + np.arange(40),
    )


def gated() -> ag.AgreeStop:
    return ag.AgreeStop(
        0.6,
        TIMES,
        1,
        gate=ag.Gate(ag.TopMass(), np.full(4, -0.5), TIMES, None, 0.3, (2, 4)),
        trim=0.5,
    )


def learned() -> ag.AgreeStop:
    """As LearnedRisk.fit makes it, without scikit-learn."""
    log_times = np.log(np.array(TIMES) / TIMES[-1])
    return ag.AgreeStop(
        0.8,
        TIMES,
        1,
        risk=ag.LearnedRisk(
            ag.TopMass.fit(scores(2)), 1, np.linspace(0.1, 0.9, 9), -0.5, log_times, TIMES
        ),
    )


def tempered() -> ag.SpikeCP:
    score = Shaped(ag.Temperature.fit(scores(2)), np.linspace(0, 1, 4), TIMES)
    return ag.SpikeCP(0.8, TIMES, 1, calibration="stop-aware", score=score, delta=0.2)


def looks() -> ag.AgreeStop:
    return ag.AgreeStop(0.8, ag.Schedule([(1, 1), (1, 2), (4, 2)]), 1)


RULES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "rule": (lambda: ag.AgreeStop(0.8, TIMES, 1), {}),
    "gated rule": (gated, {"groups": np.arange(40) % 2}),
    "accumulated rule": (lambda: ag.AgreeStop(0.2, TIMES, 1, accumulated=True, delta=0.4), {}),
    "rule of loss": (
        lambda: ag.AgreeStop(None, TIMES, 1, loss=1 - np.eye(3), max_loss=0.3),
        {"labels": "final"},
    ),
    "weighted rule": (
        lambda: ag.AgreeStop(0.6, TIMES, 1),
        {"weights": 1 + np.arange(40) % 3, "max_weight": 4.0},
    ),
    "scheduled rule": (looks, {}),
    "learned rule": (learned, {}),
    "tempered rule": (tempered, {}),
    "simultaneous rule": (
        lambda: ag.SpikeCP(
            0.8, TIMES, 1, ag.MergeConfidence(), "simultaneous", class_conditional=True
        ),
        {},
    ),
    "rule of p-values": (lambda: ag.SpikeCP(0.6, TIMES, 1, ag.MergePValues(1, "randomized")), {}),
    "rule of ranks": (lambda: ag.SpikeCP(0.6, TIMES, 1, ag.MergeRanks()), {}),
    "rule of votes": (lambda: ag.SpikeCP(0.6, TIMES, 1, ag.MajorityVote()), {}),
    "confidence rule": (lambda: ag.DCSNN(0.6, TIMES, 1), {}),
}


def write_rule(path: Path, name: str = "rule") -> None:
    make, how = RULES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)  # few examples
        make().calibrate(scores(), **how).save(path)


def read_rule(path: Path) -> object:
    """A rule that was read must also decide, or refuse in a sentence."""
    rule = ag.load_rule(path)
    data = scores()
    groups = np.arange(40) % 2 if rule.group_names is not None else None
    with suppress(InputError):
        rule.decide(data.log_confidence, data.times, groups=groups)
    return rule


def write_drift(path: Path, kind: type[ag.DriftMonitor] | type[ag.AdaptiveRule]) -> None:
    """A monitor or an adaptive rule with decisions that wait for their labels."""
    calibrated = ag.AgreeStop(0.8, TIMES, 1).calibrate(scores())
    one = kind(calibrated)
    for number, decision in enumerate(calibrated.decide(scores().log_confidence)):
        one.observe(decision, key=f"input {number}" if number % 3 else "")
    for number in (1, 2, 7, 8):
        one.update(f"input {number}", 2)
    one.save(path)


def read_drift(path: Path, kind: type[ag.DriftMonitor] | type[ag.AdaptiveRule]) -> object:
    """What was read must also go on working."""
    one = kind.load(path)
    before = repr(one)
    one.observe(ag.Decision(1, 0, (0,), first_risk=0.5))
    if not isinstance(one, ag.DriftMonitor) or one.level is not None:
        with suppress(InputError):
            one.update("input 4", 1)
    return before


def forge_rule(content: bytes, change: Callable[[bytes], bytes], seed: int) -> bytes:
    """Change the header, or with some seeds the arrays, and repair length and digest."""
    line, _, rest = content.partition(b"\n")
    magic, version, length, _ = line.split(b" ")
    header, arrays = rest[: int(length)], rest[int(length) :]
    if (seed % 4 and arrays) or (seed % 4 == 0 and not arrays):
        header = change(header.rstrip(b"\n")) + b"\n"
    else:
        arrays = change(arrays)[: len(arrays)].ljust(len(arrays), b"\0")
    digest = hashlib.sha256(header + arrays).hexdigest().encode()
    return b" ".join((magic, version, str(len(header)).encode(), digest)) + b"\n" + header + arrays


FORMATS = (
    *(Format(name, partial(write_rule, name=name), read_rule, digest=True) for name in RULES),
    Format(
        "monitor",
        partial(write_drift, kind=ag.DriftMonitor),
        partial(read_drift, kind=ag.DriftMonitor),
        digest=True,
    ),
    Format(
        "adaptive",
        partial(write_drift, kind=ag.AdaptiveRule),
        partial(read_drift, kind=ag.AdaptiveRule),
        digest=True,
    ),
)
