"""Rules whose decisions are stored: what one version decides, another version must decide too.

Only public names are used, so the cases outlive any change inside the package.

    python -m tests.decide.stored_cases        store what this version decides

Store anew only where a change of decisions is intended, and say so in the change log. `zcat` shows
the stored file.
"""

from __future__ import annotations

import gzip
import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agreestop as ag
from tests.decide.strategies import Shaped

PATH = Path(__file__).with_name("stored_decisions.json.gz")
TIMES = (1, 2.5, 4, 7, 10)
FEW = (2.5, 4, 10)
CLASSES = 5
TARGET = 0.8
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
RISKS = 2  # rows of a case whose first risk is stored; the mean over all rows is stored too
STREAMS = 4  # rows of a case that are streamed
LONG = 30  # texts from this length on are stored once
EXPONENTS = (-math.inf, -1, 0, 1, 2, 45, math.inf)
CALIBRATIONS = ("bonferroni", "simultaneous", "stop-aware")

Record = dict[str, Any]
AnyRule = ag.SpikeCP | ag.AgreeStop | ag.DCSNN | ag.SEENN


@dataclass(frozen=True)
class Sample:
    """Log-confidences (n, M, K, C) and labels (n,)."""

    log_confidence: NDArray[Any]
    labels: NDArray[np.int64]


def make_sample(n: int, members: int, seed: int, smooth: bool) -> Sample:
    """Members that count few spikes, many in common, so that scores tie; `smooth` adds noise."""
    rng = np.random.default_rng([seed, members, smooth])
    labels = rng.permutation(np.arange(n) % CLASSES)
    rates = np.full((n, 1, 1, CLASSES), 0.25)
    rates[np.arange(n), 0, 0, labels] = 0.15 + 0.65 * rng.random(n)
    shape = (n, len(TIMES), members, CLASSES)
    common = (rng.random((2, n, len(TIMES), 1, CLASSES)) < rates).sum(axis=0)
    own = (rng.random((2, *shape)) < rates).sum(axis=0)
    counts = np.where(rng.random(shape) < 0.7, common, own).cumsum(axis=1).astype(np.float64)
    if smooth:
        counts += rng.random(shape) - 0.5
    return Sample(ag.log_confidence(counts), labels)


@dataclass(frozen=True)
class Data:
    """Tuning, calibration and test rows for one number of members."""

    members: int
    smooth: bool = False

    @cached_property
    def tuning(self) -> Sample:
        return make_sample(240, self.members, 1, self.smooth)

    @cached_property
    def calibration(self) -> Sample:
        return make_sample(200, self.members, 2, self.smooth)

    @cached_property
    def test(self) -> Sample:
        return make_sample(40, self.members, 3, self.smooth)

    @property
    def name(self) -> str:
        return f"K={self.members}{', smooth' * self.smooth}"


TIED = {members: Data(members) for members in (1, 2, 6)}
SMOOTH = Data(3, smooth=True)


@dataclass(frozen=True, eq=False)
class Case:
    """A rule, and how it is calibrated and asked.

    options   of `calibrate`, such as groups
    groups    of the test rows
    rows      the number of calibration rows that are used
    make      turns log-confidences and labels into what `calibrate` and `decide` are given
    rtol      how far thresholds and risks may differ from the stored ones
    """

    name: str
    rule: AnyRule
    data: Data
    options: dict[str, Any] = field(default_factory=dict)
    groups: Any = None
    rows: int = 200
    make: Callable[[Sample], Any] | None = None
    final: bool = False
    rtol: float = 1e-9

    @property
    def key(self) -> str:
        return f"{self.name}; {self.data.name}"

    @cached_property
    def calibrated(self) -> ag.CalibratedRule:
        full = self.data.calibration
        sample = Sample(full.log_confidence[: self.rows], full.labels[: self.rows])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ag.CalibrationWarning)
            if self.make is not None:
                return self.rule.calibrate(self.make(sample), **self.options)
            labels = "final" if self.final else sample.labels
            return self.rule.calibrate(sample.log_confidence, labels, TIMES, **self.options)

    def decide(self, calibrated: ag.CalibratedRule) -> ag.Decisions:
        test = self.data.test
        if self.make is not None:
            return calibrated.decide(self.make(test), groups=self.groups, first=0)
        return calibrated.decide(test.log_confidence, TIMES, groups=self.groups, first=0)

    @cached_property
    def decisions(self) -> ag.Decisions:
        return self.decide(self.calibrated)

    def stream(self, row: int) -> ag.Decision | None:
        """The decision of one test row, pushed checkpoint by checkpoint."""
        group = None if self.groups is None else self.groups[row]
        session, decision = self.calibrated.stream(row, group=group), None
        given: Any = self.data.test.log_confidence if self.make is None else None
        values = self.make(self.data.test).log_confidence if given is None else given  # type: ignore[misc]
        for time in self.calibrated.checkpoints:
            decision = session.push(values[row, TIMES.index(time)])
            if decision is not None:
                return decision
        return decision


def as_digits(values: Any) -> str:
    """One letter or digit for each number; "-" for a negative one."""
    return "".join("-" if value < 0 else DIGITS[value] for value in np.asarray(values).tolist())


def as_numbers(values: Any) -> Any:
    """Numbers with 10 significant digits, in nested lists; whole numbers as such."""
    if isinstance(values, list):
        return [as_numbers(value) for value in values]
    short = float(f"{values:.10g}")
    return int(short) if short.is_integer() else short


def decided(decisions: ag.Decisions) -> Record:
    """Where inputs stopped and what they answered."""
    sets = decisions.sets @ (1 << np.arange(decisions.sets.shape[1]))
    found: Record = {"stop_index": as_digits(decisions.stop_index), "sets": as_digits(sets)}
    for name in ("best", "block", "final_best"):
        values = getattr(decisions, name)
        found[name] = None if values is None else as_digits(values)
    risk = decisions.first_risk
    assert risk is not None
    finite = risk[np.isfinite(risk)]
    found["first_risk"] = as_numbers(
        [*risk[:RISKS].tolist(), float(finite.mean()) if len(finite) else 0.0]
    )
    return found


def evaluated(decisions: ag.Decisions, labels: Any) -> Record:
    """What `evaluate` says of decisions."""
    evaluation = ag.evaluate(decisions, labels)
    found: Record = {}
    for name in ("coverage", "latency", "cost", "agreement"):
        value = getattr(evaluation, name)
        found[name] = None if value is None else as_numbers(float(value))
    found["draw_range"] = (
        None if evaluation.draw_range is None else as_numbers(list(evaluation.draw_range))
    )
    for name in ("by_block", "by_group"):
        groups = getattr(evaluation, name) or ()
        found[name] = [[group.name, group.n, as_numbers(float(group.coverage))] for group in groups]
    found["notes"] = list(evaluation.notes)
    return found


def record(case: Case) -> Record:
    """All that is stored of a case; what is empty is left out."""
    calibrated = case.calibrated
    kth = calibrated.kth_values
    found = {
        "n": calibrated.n,
        "thresholds": as_numbers(calibrated.thresholds.tolist()),
        "kth_values": None if kth is None else as_numbers(kth.tolist()),
        "guarantee": calibrated.guarantee,
        "shortage": calibrated.shortage,
        "never_stops": calibrated.never_stops,
        "examples_needed": calibrated.examples_needed,
        "calibration_notes": list(calibrated.notes),
        **decided(case.decisions),
        "decision_notes": list(case.decisions.notes),
        **(evaluated(case.decisions, case.data.test.labels) if case.key in EVALUATED else {}),
    }
    return {name: value for name, value in found.items() if value not in (None, "", [], False)}


POOLINGS: dict[str, Any] = {
    **{f"PM({r})": ag.MergePValues(r=r) for r in EXPONENTS},
    **{f"PM({r}, table)": ag.MergePValues(r=r, table=True) for r in (-2, -1, 0, 1)},
    **{
        f"PM({r}, exchangeable)": ag.MergePValues(r=r, form="exchangeable")
        for r in (-0.5, 0, 1, math.inf)
    },
    **{f"PM({r}, randomized)": ag.MergePValues(r=r, form="randomized", seed=3) for r in (0, 1)},
    **{f"ranks({r})": ag.MergeRanks(r=r) for r in (-math.inf, -1, 0, 1, 2)},
    "votes": ag.MajorityVote(),
}
CONDITIONS: dict[str, dict[str, Any]] = {
    "by class": {"class_conditional": True},
    "delta": {"delta": 0.3},
    "by class, delta": {"class_conditional": True, "delta": 0.4},
}


@cache
def fitted_scores(data: Data) -> dict[str, Any]:
    tuning, mean = (data.tuning.log_confidence, data.tuning.labels), ag.MergeConfidence(r=1)
    temperature = ag.Temperature.fit(*tuning, pooling=mean, times=TIMES)
    given = ag.Temperature(mean, np.array([0.5, 0.8, 1.1, 1.6, 2.0]), TIMES)
    return {
        "log-loss": ag.LogLoss(ag.MergeConfidence(r=2)),
        "temperature": temperature,
        "given temperatures": given,
        "tuning ranks": ag.TuningRanks.fit(*tuning, pooling=ag.MergeConfidence(r=0), times=TIMES),
        "spread": ag.Spread(given, beta=0.4),
        "shaped": Shaped(given, np.array([0.0, 0.1, 0.3, 0.2, 0.4]), times=TIMES),
    }


@cache
def fitted_risks(data: Data) -> dict[str, Any]:
    """Risks for answers of at most two classes.

    The weights of the learned one are given, so scikit-learn plays no part.
    """
    tuning = (data.tuning.log_confidence, data.tuning.labels)
    given = ag.TopMass(ag.MergeConfidence(r=1), np.array([0.5, 0.8, 1.1, 1.6, 2.0]), TIMES)
    weights = np.array([0.5, 0.2, -0.3, 0.2, 0.1, 0.05, 0.8, -0.1, 0.02])
    log_times = np.log(np.array(TIMES) / TIMES[-1])
    return {
        "top mass": ag.TopMass(),
        "fitted top mass": ag.TopMass.fit(*tuning, pooling=ag.MergeConfidence(r=0.5), times=TIMES),
        "given temperatures": given,
        "learned risk": ag.LearnedRisk(given, 2, weights, 0.3, log_times, TIMES),
        "fixed time": ag.FixedTime(),
        "shaped risk": ag.ShapedRisk.per_time(
            ag.TopMass(ag.MergeConfidence(r=0)), TIMES, power=0.5
        ),
        "shaped risk, closed": ag.ShapedRisk(
            given, np.array([-np.inf, 0.2, -np.inf, 0.1, 0.0]), TIMES
        ),
    }


@cache
def fitted_gate(data: Data, size: int) -> ag.Gate:
    risk = fitted_risks(data)["given temperatures"]
    tuning = data.tuning
    return ag.Gate.fit(
        tuning.log_confidence,
        tuning.labels,
        TIMES,
        target=TARGET,
        max_set_size=size,
        blocks=(4,),
        risk=risk,
    )


def given_gate(data: Data) -> ag.Gate:
    return ag.Gate(
        fitted_risks(data)["given temperatures"],
        np.array([-0.5, -0.6, -0.7, -0.8, -1.0]),
        TIMES,
        None,
        0.2,
        (3, 10),
    )


def spike_cases(data: Data) -> Iterator[Case]:
    """SpikeCP with every pooling, score and calibration."""
    for calibration in CALIBRATIONS:
        times, size = (FEW, 1) if calibration == "bonferroni" else (TIMES, 2)
        if data.members == 1:
            yield Case(
                f"SpikeCP plain, {calibration}",
                ag.SpikeCP(TARGET, times, size, None, calibration),
                data,
            )
        for r in EXPONENTS if data.members > 1 else (1,):
            rule = ag.SpikeCP(TARGET, times, size, ag.MergeConfidence(r=r), calibration)
            yield Case(f"SpikeCP CM({r}), {calibration}", rule, data)
        for name, score in fitted_scores(data).items():
            yield Case(
                f"SpikeCP {name}, {calibration}",
                ag.SpikeCP(TARGET, times, size, None, calibration, score),
                data,
            )
        for words, conditions in CONDITIONS.items():
            rule = ag.SpikeCP(TARGET, times, size, ag.MergeConfidence(), calibration, **conditions)
            yield Case(f"SpikeCP CM(1), {calibration}, {words}", rule, data)
        rule = ag.SpikeCP("2/3", times, CLASSES, ag.MergeConfidence(), calibration)
        yield Case(f"SpikeCP CM(1), {calibration}, any size", rule, data)
    for name, pooling in POOLINGS.items():
        yield Case(f"SpikeCP {name}", ag.SpikeCP(TARGET, FEW, 2, pooling), data)
        if name in ("PM(1)", "PM(0, exchangeable)", "PM(1, randomized)", "ranks(1)", "votes"):
            yield Case(
                f"SpikeCP {name}, by class",
                ag.SpikeCP(0.75, FEW, 1, pooling, class_conditional=True),
                data,
            )


def agreestop_cases(data: Data) -> Iterator[Case]:
    """AgreeStop with every risk, with gates, losses and accumulated errors; DCSNN and SEENN."""
    risks = fitted_risks(data)
    for fill in (False, True):
        words = ", fill" * fill
        for name, risk in risks.items():
            yield Case(f"AgreeStop {name}{words}", ag.AgreeStop(TARGET, TIMES, 2, fill, risk), data)
        for name, conditions in CONDITIONS.items():
            yield Case(
                f"AgreeStop {name}{words}",
                ag.AgreeStop(TARGET, TIMES, 1, fill, risks["fitted top mass"], **conditions),
                data,
            )
    for r in EXPONENTS if data.members > 1 else ():
        yield Case(
            f"AgreeStop CM({r})",
            ag.AgreeStop(TARGET, TIMES, 1, risk=ag.TopMass(ag.MergeConfidence(r=r))),
            data,
        )
    for trim in (0.0, 0.25, 0.6):
        yield Case(
            f"AgreeStop, trim {trim}",
            ag.AgreeStop(TARGET, TIMES, 3, risk=risks["given temperatures"], trim=trim),
            data,
        )
    yield Case(
        "AgreeStop, learned, trim",
        ag.AgreeStop(TARGET, FEW, 2, risk=risks["learned risk"], trim=0.4),
        data,
    )
    yield Case(
        "AgreeStop, some checkpoints",
        ag.AgreeStop("9/10", FEW, 1, risk=risks["fitted top mass"]),
        data,
    )
    for size in (CLASSES, CLASSES + 2):
        yield Case(f"AgreeStop, any size {size}", ag.AgreeStop(TARGET, TIMES, size), data)
        yield Case(
            f"AgreeStop, any size {size}, fill", ag.AgreeStop(TARGET, TIMES, size, fill=True), data
        )
    steps = np.abs(np.arange(CLASSES)[:, None] - np.arange(CLASSES)) / 2
    uneven = np.triu(np.full((CLASSES, CLASSES), 2.0), 1) + np.tril(
        np.full((CLASSES, CLASSES), 0.7), -1
    )
    for name, loss, most in (
        ("steps", steps, 0.3),
        ("uneven", uneven, "0.4"),
        ("misses", 1 - np.eye(CLASSES), 0.2),
    ):
        for size, fill in ((1, False), (2, False), (2, True)):
            rule = ag.AgreeStop(
                None, TIMES, size, fill, risks["given temperatures"], loss=loss, max_loss=most
            )
            yield Case(f"AgreeStop, loss {name}, I={size}{', fill' * fill}", rule, data)
    lossy = ag.AgreeStop(None, TIMES, 1, loss=steps, max_loss=0.4, class_conditional=True)
    yield Case("AgreeStop, loss by class", lossy, data)
    gate = given_gate(data)
    yield Case(
        "AgreeStop, loss, gate",
        ag.AgreeStop(None, TIMES, 1, gate=gate, loss=steps, max_loss=0.4),
        data,
    )
    for words, one in (("given gate", gate), ("fitted gate", fitted_gate(data, 1))):
        yield Case(f"AgreeStop, {words}", ag.AgreeStop(TARGET, TIMES, 1, gate=one), data)
        yield Case(
            f"AgreeStop, {words}, fill, delta",
            ag.AgreeStop(TARGET, FEW, 2, True, gate=one, delta=0.4),
            data,
        )
        yield Case(
            f"AgreeStop, {words}, by class",
            ag.AgreeStop(0.7, TIMES, 1, gate=one, class_conditional=True),
            data,
        )
        for size, delta in ((1, None), (2, 0.4)):
            aware = ag.SpikeCP(
                TARGET, TIMES, size, ag.MergeConfidence(), "stop-aware", gate=one, delta=delta
            )
            yield Case(f"SpikeCP stop-aware, {words}, delta={delta}", aware, data)
    for words, chosen in (
        ("top mass", risks["top mass"]),
        ("gate", gate),
        ("shaped", risks["shaped risk"]),
    ):
        accumulated = ag.AgreeStop(0.6, TIMES, 1, risk=chosen, accumulated=True, delta=0.3)
        yield Case(f"AgreeStop, accumulated, {words}", accumulated, data)
    wide = ag.AgreeStop(
        0.7, TIMES, 2, True, risks["given temperatures"], accumulated=True, delta=0.2
    )
    yield Case("AgreeStop, accumulated, fill", wide, data)
    yield Case("DCSNN", ag.DCSNN(0.7, TIMES, 1), data)
    yield Case("DCSNN, coarse", ag.DCSNN(0.99, FEW, 2, grid=(0.2, 0.5, 0.8)), data)
    yield Case("SEENN", ag.SEENN(0.7, TIMES, 2), data)


def one_threshold(data: Data) -> dict[str, AnyRule]:
    """Rules that conditions on the examples apply to."""
    risks, scores = fitted_risks(data), fitted_scores(data)
    gate = given_gate(data)
    return {
        "AgreeStop": ag.AgreeStop(TARGET, TIMES, 1),
        "AgreeStop, I=2": ag.AgreeStop(TARGET, TIMES, 2, risk=risks["given temperatures"]),
        "AgreeStop, fill": ag.AgreeStop(TARGET, TIMES, 2, True, risk=risks["shaped risk"]),
        "stop-aware": ag.SpikeCP(TARGET, TIMES, 1, ag.MergeConfidence(), "stop-aware"),
        "stop-aware, temperatures": ag.SpikeCP(
            TARGET, TIMES, 2, None, "stop-aware", scores["given temperatures"]
        ),
        "AgreeStop, gate": ag.AgreeStop(TARGET, TIMES, 1, gate=gate),
        "stop-aware, gate": ag.SpikeCP(
            TARGET, TIMES, 1, ag.MergeConfidence(), "stop-aware", gate=gate
        ),
    }


def condition_cases(data: Data) -> Iterator[Case]:
    """Groups, weights and final answers."""
    numbers, asked = np.arange(200), np.arange(40)
    names = np.array(["red", "green", "blue"])
    overlapping = np.stack([numbers % 2 == 0, numbers % 3 == 0, numbers < 120], axis=1)
    inside = np.stack([asked % 2 == 0, asked % 3 == 0, asked < 30], axis=1)
    weights = np.random.default_rng(7).random(200) * 1.8 + 0.2
    by_name = {"groups": names[numbers % 3]}
    some = np.where(asked % 5 == 4, "other", names[asked % 3])
    for name, rule in one_threshold(data).items():
        yield Case(f"{name}, named groups", rule, data, by_name, names[asked % 3])
        yield Case(f"{name}, unknown groups", rule, data, by_name, some)
        yield Case(f"{name}, numbered groups", rule, data, {"groups": numbers % 2}, asked % 3)
        yield Case(f"{name}, overlapping groups", rule, data, {"groups": overlapping}, inside)
        weighted = {"weights": weights, "max_weight": 2.0}
        yield Case(f"{name}, weights", rule, data, weighted)
        yield Case(f"{name}, weights, groups", rule, data, {**weighted, **by_name}, some)
        even = {"weights": np.ones(199), "max_weight": 1.0}  # their sums meet the limit exactly
        yield Case(f"{name}, equal weights", rule, data, even, rows=199)
        yield Case(f"{name}, final", rule, data, final=True)
        yield Case(f"{name}, final, groups", rule, data, by_name, some, final=True)
    for words, conditions in CONDITIONS.items():
        plain = ag.AgreeStop(0.7, TIMES, 1, **conditions)
        aware = ag.SpikeCP(0.7, TIMES, 1, ag.MergeConfidence(), "stop-aware", **conditions)
        for name, rule in (("AgreeStop", plain), ("stop-aware", aware)):
            yield Case(f"{name}, {words}, groups", rule, data, {"groups": numbers % 2}, asked % 2)
            yield Case(f"{name}, {words}, final", rule, data, final=True)
    steps = np.abs(np.arange(CLASSES)[:, None] - np.arange(CLASSES)) / 2
    lossy = ag.AgreeStop(None, TIMES, 1, loss=steps, max_loss=0.5)
    yield Case("AgreeStop, loss, groups", lossy, data, by_name, some)
    yield Case("AgreeStop, loss, final", lossy, data, final=True)
    simultaneous = ag.SpikeCP(TARGET, TIMES, 1, ag.MergeConfidence(), "simultaneous")
    yield Case("simultaneous, final", simultaneous, data, final=True)
    yield Case(
        "bonferroni, final", ag.SpikeCP(TARGET, FEW, 1, ag.MergeConfidence()), data, final=True
    )


def precise_rules() -> dict[str, AnyRule]:
    mean = ag.MergeConfidence()
    return {
        "AgreeStop": ag.AgreeStop(TARGET, TIMES, 1),
        "AgreeStop, I=2": ag.AgreeStop(TARGET, TIMES, 2, trim=0.5),
        "AgreeStop, fixed time": ag.AgreeStop(TARGET, TIMES, 2, True, ag.FixedTime()),
        "AgreeStop, loss": ag.AgreeStop(None, TIMES, 2, loss=1 - np.eye(CLASSES), max_loss=0.2),
        **{name: ag.SpikeCP(TARGET, FEW, 1, mean, name) for name in CALIBRATIONS},
        "PM(45)": ag.SpikeCP(TARGET, FEW, 1, ag.MergePValues(r=45)),
        "ranks": ag.SpikeCP(TARGET, FEW, 1, ag.MergeRanks()),
        "votes": ag.SpikeCP(TARGET, FEW, 1, ag.MajorityVote()),
    }


def as_float32(sample: Sample) -> ag.Scores:
    return ag.Scores(sample.log_confidence.astype(np.float32), sample.labels, TIMES)


def as_float16(sample: Sample) -> ag.Scores:
    return ag.Scores(sample.log_confidence.astype(np.float16), sample.labels, TIMES)


def with_rounding(sample: Sample) -> ag.Scores:
    return ag.Scores(sample.log_confidence, sample.labels, TIMES, rounding=1e-3)


def float16_with_rounding(sample: Sample) -> ag.Scores:
    values = sample.log_confidence.astype(np.float16)
    return ag.Scores(values, sample.labels, TIMES, rounding=1e-3)


def named(sample: Sample) -> ag.Scores:
    """Scores with names of classes, an engine, ids and lengths."""
    first = 1000 * len(sample.labels)
    ids, lengths = np.arange(first, first + len(sample.labels)), np.full(len(sample.labels), 10)
    return ag.Scores(
        sample.log_confidence, sample.labels, TIMES, tuple("vwxyz"), "numba", "ab12", ids, lengths
    )


def other_cases(data: Data) -> Iterator[Case]:
    """Precisions of scores, few examples, and schedules."""
    for name, rule in precise_rules().items():
        yield Case(f"{name}, float32", rule, data, make=as_float32, rtol=1e-6)
        yield Case(f"{name}, float16", rule, data, make=as_float16, rtol=1e-6)
        yield Case(f"{name}, rounding stated", rule, data, make=with_rounding)
        yield Case(f"{name}, few examples", rule, data, rows=3)
        if data.members == 2:
            words = f"{name}, float16, rounding stated"
            yield Case(words, rule, data, make=float16_with_rounding, rtol=1e-6)
    yield Case("AgreeStop, names of classes", ag.AgreeStop(TARGET, TIMES, 1), data, make=named)
    stop_aware = ag.SpikeCP(TARGET, TIMES, 1, ag.MergeConfidence(), "stop-aware")
    yield Case("stop-aware, names of classes", stop_aware, data, make=named)
    for n in (4, 9, 20):
        yield Case(f"AgreeStop, {n} examples", ag.AgreeStop(TARGET, TIMES, 1), data, rows=n)
        yield Case(f"stop-aware, {n} examples", stop_aware, data, rows=n)
        by_class = ag.AgreeStop(TARGET, TIMES, 1, class_conditional=True)
        yield Case(f"AgreeStop by class, {n} examples", by_class, data, rows=n)
        yield Case(
            f"AgreeStop, groups, {n} examples",
            ag.AgreeStop(TARGET, TIMES, 1),
            data,
            {"groups": np.arange(n) % 2},
            rows=n,
        )
        votes = ag.SpikeCP(TARGET, FEW, 1, ag.MajorityVote(), class_conditional=True)
        yield Case(f"votes by class, {n} examples", votes, data, rows=n)


def schedule_cases(data: Data) -> Iterator[Case]:
    schedule = ag.Schedule([(1, 1), (1, 2), (2.5, 3), (4, 6), (10, 6)])
    gate = ag.Gate(ag.TopMass(), np.full(5, -0.6), schedule, None, 0.2, (3, 10))
    shaped = ag.ShapedRisk(ag.TopMass(), np.array([-0.5, -0.4, -0.2, 0.0, 0.1]), schedule)
    mean = ag.MergeConfidence()
    rules: dict[str, AnyRule] = {
        "AgreeStop": ag.AgreeStop(TARGET, schedule, 1),
        "AgreeStop, shaped": ag.AgreeStop(TARGET, schedule, 2, risk=shaped),
        "AgreeStop, gate": ag.AgreeStop(TARGET, schedule, 1, gate=gate),
        **{name: ag.SpikeCP(TARGET, schedule, 1, mean, name) for name in CALIBRATIONS},
        "DCSNN": ag.DCSNN(TARGET, schedule, 1),
    }
    for name, rule in rules.items():
        yield Case(f"{name}, schedule", rule, data)
    yield Case("AgreeStop, schedule, final", rules["AgreeStop"], data, final=True)


def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    cases: list[Case] = []
    for data in (*TIED.values(), SMOOTH):
        cases += spike_cases(data)
    for data in (TIED[1], TIED[6], SMOOTH):
        cases += agreestop_cases(data)
    for data in (TIED[6], SMOOTH):
        cases += condition_cases(data)
    for data in (TIED[2], SMOOTH):
        cases += other_cases(data)
    cases += schedule_cases(TIED[6])
    found = {case.key: case for case in cases}
    assert len(found) == len(cases), "two cases have one name"
    return found


CASES = all_cases()
EVALUATED = set(list(CASES)[::5])
"""Names of cases whose decisions are evaluated too: intervals take longer than decisions."""
SPLIT_RULES: dict[str, AnyRule] = {
    **{name: rule for name, rule in one_threshold(TIED[2]).items() if name != "AgreeStop, fill"},
    **{f"{name}, precise": rule for name, rule in precise_rules().items()},
    "by class": ag.AgreeStop(TARGET, TIMES, 1, class_conditional=True),
    "accumulated": ag.AgreeStop(0.6, TIMES, 1, accumulated=True, delta=0.3),
    "DCSNN": ag.DCSNN(0.7, TIMES, 1),
    "SEENN": ag.SEENN(0.7, TIMES, 2),
}


def split_record(rule: AnyRule) -> Record:
    """The figures of repeated splits, of more rows in all than the pool has, and of fewer."""
    pool, found = TIED[2].calibration, {}
    for name, n, repeats in (("many", 150, 4), ("few", 60, 2)):
        splits = ag.repeat_splits(rule, pool.log_confidence, pool.labels, n, repeats, 5, TIMES)
        works = [] if splits.works is None else splits.works.tolist()
        found[name] = as_numbers([*splits.figures.tolist(), works])
    return found


ADAPTIVE: dict[str, Case] = {
    name: CASES[f"{name}; {data}"]
    for name, data in (
        ("AgreeStop top mass", "K=6"),
        ("AgreeStop fixed time, fill", "K=1"),
        ("SpikeCP CM(1), stop-aware", "K=6"),
        ("SpikeCP temperature, stop-aware", "K=3, smooth"),
        ("AgreeStop, final", "K=6"),
        ("stop-aware, final", "K=6"),
        ("AgreeStop, 4 examples", "K=2"),
    )
}


def adaptive_record(case: Case) -> Record:
    """The threshold of an adaptive rule while labels come, and what it decides in the end."""
    adaptive, test = ag.AdaptiveRule(case.calibrated, rate=0.3), case.data.test
    path = [adaptive.threshold]
    for start in range(0, 40, 4):
        rows = slice(start, start + 4)
        decisions = adaptive.decide(test.log_confidence[rows], TIMES)
        adaptive.update(decisions, decisions.final_best if case.final else test.labels[rows])
        path.append(adaptive.threshold)
    moved = adaptive.calibrated
    return {
        "path": as_numbers(path),
        "bound": as_numbers(adaptive.bound(100, 3)),
        "guarantee": adaptive.guarantee,
        "repr": repr(adaptive),
        **decided(case.decide(moved)),
    }


TUNED: dict[str, tuple[AnyRule, dict[str, Any]]] = {
    "AgreeStop": (ag.AgreeStop(TARGET, TIMES, 1), {}),
    "AgreeStop, prices": (
        ag.AgreeStop(TARGET, TIMES, 2),
        {"price_of_size": 0.1, "price_of_work": 0.5},
    ),
    "stop-aware": (ag.SpikeCP(TARGET, TIMES, 1, calibration="stop-aware"), {}),
    "simultaneous": (ag.SpikeCP(TARGET, TIMES, 1, ag.MergeConfidence(), "simultaneous"), {}),
    "bonferroni": (ag.SpikeCP(TARGET, FEW, 1), {}),
}


def tuned_record(name: str) -> Record | None:
    """The trials of tuning and what the tuned rule decides.

    None where scikit-learn is missing, because AgreeStop's trials use it.
    """
    rule, options = TUNED[name]
    if isinstance(rule, ag.AgreeStop) and find_spec("sklearn") is None:
        return None
    assert isinstance(rule, (ag.AgreeStop, ag.SpikeCP))
    data = TIED[2]
    tuning = data.tuning
    tuned = ag.tune(
        rule, tuning.log_confidence, tuning.labels, TIMES, 100, (0.0, 1.0), 3, 4, **options
    )
    trials = [
        [trial.name, *as_numbers([trial.latency, trial.set_size, trial.excess, trial.work])]
        for trial in tuned.trials
    ]
    case = Case(name, tuned.rule, data)
    return {"trials": trials, "note": tuned.note, **decided(case.decisions)}


def front_record() -> Record:
    """The front of latency against work."""
    data = TIED[6]
    rule, tuning = ag.AgreeStop(TARGET, TIMES, 1), data.tuning
    points = ag.front(
        rule,
        tuning.log_confidence,
        tuning.labels,
        TIMES,
        n_calibration=80,
        prices=(0.3, 2.0),
        repeats=4,
        seed=2,
    )
    found = []
    for point in points:
        looks = (
            point.rule.checkpoints.looks if isinstance(point.rule.checkpoints, ag.Schedule) else ()
        )
        stops = decided(Case(point.name, point.rule, data).decisions)
        found.append(
            [
                point.name,
                as_numbers([point.latency, point.work]),
                [list(look) for look in looks],
                stops,
            ]
        )
    return {"points": found}


def fit_record() -> Record:
    """The numbers that scores, risks and gates learn."""
    found: Record = {}
    for data in (*TIED.values(), SMOOTH):
        scores, risks, gate = fitted_scores(data), fitted_risks(data), fitted_gate(data, 1)
        found[data.name] = {
            "temperatures": as_numbers(scores["temperature"].temperatures.tolist()),
            "quantiles": as_numbers(scores["tuning ranks"].quantiles[:, ::9].tolist()),
            "risk": as_numbers(risks["fitted top mass"].temperatures.tolist()),
            "gate": as_numbers([*gate.offsets.tolist(), gate.slack, *map(float, gate.ends)]),
        }
    return found


def learned_record() -> Record | None:
    """Decisions with a risk that scikit-learn fitted; None without scikit-learn.

    Another version of scikit-learn may move the weights a little.
    """
    if find_spec("sklearn") is None:
        return None
    tuning = SMOOTH.tuning
    risk = ag.LearnedRisk.fit(tuning.log_confidence, tuning.labels, max_set_size=1, times=TIMES)
    case = Case("learned", ag.AgreeStop(TARGET, TIMES, 1, risk=risk), SMOOTH)
    return {
        "thresholds": as_numbers(case.calibrated.thresholds.tolist()),
        **decided(case.decisions),
    }


def warned_notes() -> Record:
    """What evaluation says of decisions that do not keep the promise.

    The labels belong to other rows, classes have other frequencies, or labels are renamed.
    """
    case = CASES["AgreeStop top mass; K=6"]
    labels = case.data.test.labels
    common = np.flatnonzero(labels < 2)
    fewer = case.calibrated.decide(
        np.repeat(case.data.test.log_confidence[common], 8, axis=0), TIMES, first=0
    )
    return {
        "other labels": evaluated(case.decisions, np.roll(labels, 1)),
        "other classes": evaluated(fewer, np.repeat(labels[common], 8)),
        "other names": evaluated(case.decisions, (labels + 1) % CLASSES),
    }


def extras() -> dict[str, Callable[[], Record | None]]:
    """What is stored beside the cases."""
    found: dict[str, Callable[[], Record | None]] = {
        "fits": fit_record,
        "front": front_record,
        "learned": learned_record,
    }
    found["notes"] = warned_notes
    for name, rule in SPLIT_RULES.items():
        found[f"splits: {name}"] = lambda rule=rule: split_record(rule)  # type: ignore[misc]
    for name, case in ADAPTIVE.items():
        found[f"adaptive: {name}"] = lambda case=case: adaptive_record(case)  # type: ignore[misc]
    for name in TUNED:
        found[f"tuned: {name}"] = lambda name=name: tuned_record(name)  # type: ignore[misc]
    return found


EXTRAS = extras()


class Texts:
    """Long texts, each stored once under a number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def shorten(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) >= LONG and " " in value:
            return {"text": self.known.setdefault(value, len(self.known))}
        if isinstance(value, dict):
            return {key: self.shorten(one) for key, one in value.items()}
        return [self.shorten(one) for one in value] if isinstance(value, list) else value


def expand(value: Any, texts: list[str]) -> Any:
    """The opposite of `Texts.shorten`."""
    if isinstance(value, dict):
        return (
            texts[value["text"]]
            if set(value) == {"text"}
            else {key: expand(one, texts) for key, one in value.items()}
        )
    return [expand(one, texts) for one in value] if isinstance(value, list) else value


@cache
def load() -> Record:
    """What is stored: {"cases": {name: record}, "extras": {name: record}}."""
    stored = json.loads(gzip.decompress(PATH.read_bytes()))
    texts = stored.pop("texts")
    found: Record = expand(stored, texts)
    return found


def store() -> None:
    """Write what this version decides, a line for each record."""
    texts = Texts()
    parts = {
        "cases": {name: record(case) for name, case in CASES.items()},
        "extras": {name: make() for name, make in EXTRAS.items()},
    }
    short = texts.shorten(parts)
    lines = [f'"texts": {json.dumps(list(texts.known), indent=0, ensure_ascii=False)}']
    for part, records in short.items():
        rows = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}"
            for name, one in records.items()
        )
        lines.append(f'"{part}": {{\n{rows}\n}}')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    PATH.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    store()
