"""A risk, a rule and an answer that only this file knows work everywhere, as the built-in
ones do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats, Integers, KeptInFiles, Rounding, Target
from agreestop.decide.answer_kinds import StopsOnRisk, Tails, Thresholds
from agreestop.decide.calibration import ThresholdRule
from agreestop.decide.checkpoints import Evidence, Failures, Index, State, Verdict
from agreestop.decide.leakage import TunedRows
from agreestop.decide.risks import Risk
from agreestop.decide.rule import Fit, fixed

TIMES = tuple(range(1, 9))


def pool(log_confidence: Floats, r: float) -> Floats:
    return ag.MergeConfidence(r).pool(log_confidence)


@dataclass(frozen=True)
class ToyDoubt(Risk, KeptInFiles):
    """log(1 - the top pooled confidence); the classes are in the order of their confidence."""

    r: float = 1.0

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        pooled = pool(log_confidence, self.r)
        return Tails.of(pooled).evidence(np.log1p(-np.exp(np.minimum(pooled.max(axis=1), -1e-12))))

    def rounding(self, base: Rounding) -> Rounding:
        return base.scaled(4.0)


@dataclass(frozen=True)
class ToyMargin(Risk, KeptInFiles):
    """Minus the margin between the two best pooled classes."""

    r: float = 1.0

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        pooled = pool(log_confidence, self.r)
        best = np.sort(pooled, axis=1)
        return Tails.of(pooled).evidence(best[:, -2] - best[:, -1])


@dataclass(frozen=True, eq=False)
class ToyNear(StopsOnRisk, KeptInFiles):
    """All classes whose value is within `slack` of the best; all classes if nothing stopped."""

    slack: float
    meaning = "the classes that are near the best one"

    def judge(self, limits: Thresholds, last: Any, evidence: Evidence, state: State) -> Verdict:
        stop, values = evidence.risk < limits, evidence.values
        near = values >= values.max(axis=1, keepdims=True) - self.slack
        return Verdict(stop | last, near | ~stop[:, None], state)

    def failures(self, evidence: Evidence, labels: Integers, rounding: Rounding | None) -> Failures:
        own = evidence.values[np.arange(len(labels)), :, labels]
        eta = 0.0 if rounding is None else 2 * rounding.at(own)
        near = own - eta >= evidence.values.max(axis=2) - self.slack
        fails = np.where(near, np.inf, -np.inf)
        return Failures(evidence.risk, fails, np.full(len(labels), np.inf))


@dataclass(frozen=True, eq=False, repr=False)
class ToyRule(ThresholdRule, KeptInFiles):
    """Stops when the margin between the two best classes is above a calibrated threshold."""

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int = 1
    risk: Risk = field(default_factory=ToyMargin)

    @property
    def tuned(self) -> TunedRows | None:
        return self.risk.tuned

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        return self.risk.evidence(index, log_confidence, self.max_set_size)

    @property
    def reader(self) -> Risk:
        return self.risk

    @property
    def tunable(self) -> bool:
        return True

    def untuned(self) -> ToyRule:
        return replace(self, risk=ToyMargin())

    def with_reader(self, reader: Risk) -> ToyRule:
        return replace(self, risk=reader)

    def candidates(self, exponents: Sequence[float], members: int) -> Iterator[tuple[str, Fit]]:
        yield from ((f"margin, r={r:g}", fixed(ToyMargin(r))) for r in exponents)


@dataclass(frozen=True, eq=False, repr=False)
class ToyNearRule(ToyRule):
    """The same, with an answer of its own."""

    slack: float = 0.7

    def answer(self, final: bool = False) -> ToyNear:
        return ToyNear(self.slack)


RULES: dict[str, Any] = {
    "risk": partial(ag.AgreeStop, risk=ToyDoubt()),
    "rule": ToyRule,
    "answer": ToyNearRule,
}


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> Any:
    return RULES[request.param](0.8, TIMES, 1)


@pytest.fixture
def scores() -> tuple[ag.Scores, ag.Scores]:
    first, second = ag.simulate_scores(400, steps=8, K=3, C=4, seed=5).split(0.5, 0.5)
    return first, second


def same(first: ag.Decisions, second: ag.Decisions) -> bool:
    return bool((first.stop_index == second.stop_index).all() and (first.sets == second.sets).all())


def test_streams_files_and_batches_decide_the_same(
    rule: Any, scores: tuple[ag.Scores, ag.Scores], tmp_path: Path
) -> None:
    calibration, test = scores
    calibrated = rule.calibrate(calibration)
    decisions = calibrated.decide(test)
    assert np.count_nonzero(decisions.stop_time < TIMES[-1]) > 0  # so that the comparison has a use
    for row in range(40):
        session = calibrated.stream()
        found = next(filter(None, map(session.push, test.log_confidence[row])))
        assert (found.index, found.classes) == (decisions[row].index, decisions[row].classes)
    calibrated.save(tmp_path / "rule")
    loaded = ag.load_rule(tmp_path / "rule")
    assert type(loaded.rule) is type(rule)
    assert repr(loaded.rule) == repr(rule)
    assert same(loaded.decide(test), decisions)


def test_groups_weights_people_and_final_labels(
    rule: Any, scores: tuple[ag.Scores, ag.Scores]
) -> None:
    calibration, test = scores
    n = len(calibration)
    groups = np.arange(n) % 2
    grouped = rule.calibrate(calibration, groups=groups)
    assert grouped.group_names == ("0", "1") and grouped.thresholds.shape == (2,)
    assert len(grouped.decide(test, groups=np.arange(len(test)) % 2)) == len(test)
    plain = rule.calibrate(calibration)
    even = rule.calibrate(calibration, weights=np.ones(n), max_weight=1.0)
    assert same(even.decide(test), plain.decide(test))
    people = rule.calibrate(calibration, people=np.arange(n) // 4)
    assert people.people == n // 4 and "new person" in people.guarantee
    assert "itself answers best" in rule.calibrate(calibration, "final").guarantee


def test_a_rule_is_tuned_and_measured_on_splits(
    rule: Any, scores: tuple[ag.Scores, ag.Scores]
) -> None:
    tuning, pool = scores
    tuned = ag.tune(rule, tuning, repeats=2, exponents=(0.0, 1.0), only_if_better=False)
    assert type(tuned.rule) is type(rule) and tuned.rule.tuned is not None
    assert len(tuned.trials) >= 2
    with pytest.raises(ag.InputError, match="tuning"):
        tuned.rule.calibrate(tuning)
    splits = ag.repeat_splits(tuned.rule, pool, n_calibration=100, repeats=20)
    assert float(splits.coverage) > 0.8 - 4 * splits.coverage.se


def test_coverage_over_draws(rule: Any) -> None:
    """The mean over 200 draws is at least the target, up to four standard errors of the mean."""
    n, target, draws = 60, 0.8, 200
    data = ag.simulate_scores(draws * 100, steps=8, K=2, C=4, seed=11)
    hits = []
    for draw in range(draws):
        rows = data.rows(slice(100 * draw, 100 * draw + 100))
        calibrated = rule.calibrate(rows.rows(slice(0, n)))
        test = rows.rows(slice(n, None))
        sets = calibrated.decide(test).sets
        hits.append(sets[np.arange(len(test)), test.labels].mean())
    error = float(np.std(hits, ddof=1)) / math.sqrt(draws)
    assert error < 0.01
    assert np.mean(hits) >= target - 4 * error


def test_drift_is_watched_and_a_threshold_moves(
    rule: Any, scores: tuple[ag.Scores, ag.Scores], tmp_path: Path
) -> None:
    calibration, test = scores
    calibrated = rule.calibrate(calibration)
    monitor = ag.DriftMonitor(calibrated)
    adaptive = ag.AdaptiveRule(calibrated)
    before = adaptive.threshold
    for row in range(33):  # no share of 33 is the target, so the threshold ends elsewhere
        one = test.rows(slice(row, row + 1))
        monitor.update(calibrated.decide(one), one.labels)
        adaptive.update(adaptive.decide(one), one.labels)
    assert adaptive.threshold != before
    monitor.save(tmp_path / "monitor")
    assert ag.DriftMonitor.load(tmp_path / "monitor").calibrated.n == calibrated.n


def test_a_report_shows_it(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="reports need jinja2")
    pytest.importorskip("matplotlib", reason="reports need matplotlib")
    data = ag.simulate_scores(90, steps=2, K=1, C=3, seed=3)
    own = {"my margins": ToyRule(0.9, data.times), "my answer": ToyNearRule(0.9, data.times)}
    page = ag.write_report(data, tmp_path / "report.html", rules=own).read_text(encoding="utf-8")
    assert "my margins" in page and "my answer" in page


def test_engines_stop_computing_and_exports_refuse_in_a_sentence(rule: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="networks need PyTorch")
    rng = np.random.default_rng(0)
    steps = 32  # engines compute a few steps at once
    x, y = rng.random((160, steps, 6)) < 0.3, rng.integers(0, 3, 160)
    network = ag.networks.FullyConnected(x.shape[2:], classes=3, hidden=(8,))
    ensemble = ag.ensembles.DeepEnsemble(network, members=2, seed=0, device="cpu")
    ensemble.fit(x[:40], y[:40], epochs=1, progress=False)
    scores = ensemble.score(x[40:])
    names = scores.log_confidence.mean(axis=2)[:, -1].argmax(axis=1)  # so that some inputs stop
    longer = replace(rule, checkpoints=range(1, steps + 1))
    calibrated = longer.calibrate(replace(scores.rows(slice(0, 60)), labels=names[:60]))
    run = ensemble.decide(calibrated, x[100:])
    assert same(run.decisions, calibrated.decide(scores.rows(slice(60, None))))
    assert run.computed.min() < steps
    session = ensemble.live(calibrated)
    live = next(filter(None, (session.push(frame=frame) for frame in x[100])))
    assert live.index == run.decisions[0].index
    with pytest.raises(ag.InputError, match="exported code does not know") as refused:
        ag.export.to_c(calibrated, ensemble, tmp_path / "c")
    assert "\n" not in str(refused.value)
    with pytest.raises(ag.InputError, match="exported code does not know"):
        ag.export.to_page([calibrated], ensemble, tmp_path / "page.html", x[100:110])


def test_the_snippets_for_contributors_run(
    scores: tuple[ag.Scores, ag.Scores], tmp_path: Path
) -> None:
    """The last block of the page has the imports, so it runs first."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    imports, *blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "contributed"}
    for block in (imports, *blocks):
        assert len(block.splitlines()) <= 20
        exec(compile(block, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    margin = names["MarginStop"]
    own = type(
        "MarginNear",
        (margin,),
        {"answer": lambda rule, final=False: names["NearTheBest"](slack=0.7)},
    )
    calibration, test = scores
    for rule in (
        margin(0.8, TIMES),
        ag.AgreeStop(0.8, TIMES, 1, risk=names["Doubt"]()),
        own(0.8, TIMES),
    ):
        calibrated = rule.calibrate(calibration)
        decisions = calibrated.decide(test)
        assert decisions.stop_time.mean() < TIMES[-1]
        calibrated.save(tmp_path / "rule")
        assert same(ag.load_rule(tmp_path / "rule").decide(test), decisions)
