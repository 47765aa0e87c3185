"""A report from open answers: samples, cost and agreement at several targets, and published rules.

All rules are replayed on the same test rows of many random divisions. Peers have their published
settings, and learn nothing:

    adaptive consistency    stops when the Beta criterion is at most 0.05
    windows of 5            stops when all samples of a window agree (early-stopping
                            self-consistency)
    lead of 3               stops when the first answer is 3 votes ahead of the second
    fixed number            the same number of samples for all questions
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure, SubFigure

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    ProgressCallback,
    as_count,
    no_progress,
)
from agreestop.common.estimates import Estimate
from agreestop.common.levels import Rounding
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.answers import Answers, OpenRisk, VoteRisk
from agreestop.decide.checkpoints import Conditions, LabelledEvidence, run_policy
from agreestop.decide.rule import gather_evidence
from agreestop.decide.tuning.splits import divisions
from agreestop.report.figures import Panel
from agreestop.report.page import write_small_page

TARGETS = ("0.9", "0.95", "0.97", "0.98", "0.99")
REPEATS, LEAST_ROWS, MOST_CALIBRATION = 30, 60, 1000
TITLES = ("rule", "samples", "cost", "agreement", "right")
BETA, WINDOW, LEAD = 0.05, 5, 3

AnswerRecord = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Replay:
    """Rows on which all rules are replayed; all arrays are (n, N).

    first, second  the counts of the two most frequent answers so far
    agrees         whether the first is that of all samples
    right          whether it is the right answer, where that is known
    cost           of the samples so far, where that is known
    """

    answers: Answers
    first: Integers
    second: Integers
    agrees: Booleans
    right: Booleans | None
    cost: Floats | None

    @classmethod
    def of(cls, answers: Answers) -> Self:
        """From answers, as many samples as every row has."""
        steps = int(answers.times[-1])
        data = answers.at(answers.times)
        codes, gold = data.cells[:, 0, 0].astype(np.int64), data.labels
        votes = np.cumsum(codes[:, :, None] == np.arange(steps + 1), axis=1)
        leader, top = votes.argmax(axis=2), np.sort(votes, axis=2)[:, :, -2:]
        paid = np.cumsum(data.cells[:, 0, 2], axis=1)
        right = None if gold is None else leader == gold[:, None]
        known = paid if np.isfinite(paid).all() else None
        return cls(data, top[:, :, 1], top[:, :, 0], leader == leader[:, -1:], right, known)

    def figures(
        self, rows: Integers, stops: Integers, answered: Booleans | None = None
    ) -> dict[str, float]:
        """Means over test rows, which stopped at these indices."""
        means: dict[str, Any] = {"samples": stops.mean() + 1}
        means["agreement"] = self.agrees[rows, stops].mean()
        if self.cost is not None:
            means["cost"] = self.cost[rows, stops].mean()
        if self.right is not None:
            right = self.right[rows, stops]
            means["accuracy"] = right.mean()
            if answered is not None:
                means |= {"answered": answered.mean(), "wrong": (answered & ~right).mean()}
        return {name: float(value) for name, value in means.items()}

    def published(self) -> dict[str, Integers]:
        """Where published rules stop, (n,)."""
        n, steps = self.first.shape
        beta = VoteRisk.criterion(self.first.ravel(), self.second.ravel()).reshape(n, steps)
        codes, windows = self.answers.cells[:, 0, 0], np.zeros((n, steps), dtype=bool)
        for end in range(WINDOW, steps + 1, WINDOW):
            same = codes[:, end - WINDOW : end] == codes[:, [end - 1]]
            windows[:, end - 1] = same.all(axis=1)
        found = {
            "adaptive consistency": beta <= math.log(BETA),
            f"windows of {WINDOW}": windows,
            f"lead of {LEAD}": self.first - self.second >= LEAD,
        }
        return {name: first_stop(ready) for name, ready in found.items()}


def first_stop(ready: Booleans) -> Integers:
    """The index (n,) of the first sample at which a rule is ready; the last if it never is."""
    ready = ready.copy()
    ready[:, -1] = True
    return np.asarray(ready.argmax(axis=1))


@dataclass(frozen=True, eq=False)
class QuestionPool:
    """Evidence of all rows for one risk, which is read once."""

    rule: AgreeStop
    examples: LabelledEvidence

    @classmethod
    def of(cls, risk: OpenRisk, replay: Replay, at_end: str = "answer", final: bool = True) -> Self:
        """final: labels are the answers of all samples, not the right ones."""
        data = replay.answers
        rule = AgreeStop("0.9", data.times, 1, risk=risk, break_ties=True, at_end=at_end)
        evidence = gather_evidence(rule, data.cells, range(len(data.times)))
        labels = rule.best(evidence[:, -1]) if final else data.labels
        assert labels is not None
        known, classes = Conditions(final=final), data.sizes[1]
        return cls(rule, LabelledEvidence(evidence, labels, classes, known, Rounding()))

    def run(
        self, target: Any, calibration: Integers, test: Integers, seed: int
    ) -> tuple[Integers, Booleans]:
        """Where test rows stop, and which are answered, after calibration on other rows."""
        rule, some = replace(self.rule, target=target, seed=seed), self.examples.rows(calibration)
        policy = rule.fit(rule.reduce(some), some)
        stops = run_policy(policy, self.examples.evidence, test, self.examples.classes)
        return stops.index, np.asarray(stops.sets.any(axis=1))


def measure_answers(
    answers: Answers,
    n_calibration: int | None = None,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> list[AnswerRecord]:
    """A record for each rule and target: means over divisions, with the range of 95 % of them."""
    if len(answers) < LEAST_ROWS:
        raise InputError(f"there are {len(answers)} questions: a report needs {LEAST_ROWS}.")
    n = min(len(answers) // 2, MOST_CALIBRATION) if n_calibration is None else n_calibration
    if as_count(n, "n_calibration") >= len(answers):
        raise InputError(f"n_calibration is {n} of {len(answers)} questions: leave some to test.")
    replay = Replay.of(answers)
    pool, stops = QuestionPool.of(VoteRisk(), replay), replay.published()
    targets = [one for one in TARGETS if n >= replace(pool.rule, target=one).examples_needed()]
    found: dict[tuple[str, Any], list[dict[str, float]]] = {}
    for draw, (calibration, test) in enumerate(divisions(len(answers), n, REPEATS, seed)):
        progress(f"division {draw + 1}", draw / REPEATS)
        for target in targets:
            index, _ = pool.run(target, calibration, test, draw)
            found.setdefault(("ours", target), []).append(replay.figures(test, index))
        for name, where in stops.items():
            found.setdefault((name, None), []).append(replay.figures(test, where[test]))
        for number in range(1, len(answers.times) + 1):
            same = replay.figures(test, np.full(len(test), number - 1))
            found.setdefault(("fixed number", number), []).append(same)
    records = []
    for (rule, target), some in found.items():
        figures = {name: np.array([one[name] for one in some]) for name in some[0]}
        records.append({"rule": rule, "target": target, **_spreads(figures)})
    return records


def _spreads(figures: dict[str, Floats]) -> dict[str, Estimate]:
    """Means, and between which values 95 % of the divisions lie."""
    found = {}
    for name, values in figures.items():
        low, high = np.quantile(values, (0.025, 0.975)).tolist()
        found[name] = Estimate(float(values.mean()), low, high, float(values.std()))
    return found


def table_of_answers(records: list[AnswerRecord]) -> list[tuple[str, ...]]:
    """A row of text for each rule, as `TITLES` say."""
    rows: list[tuple[str, ...]] = []
    for one in records:
        if one["rule"] == "fixed number":
            continue
        name = one["rule"] if one["target"] is None else f"{one['rule']}, target {one['target']}"
        cost = f"{one['cost']:.1f}" if "cost" in one else ""
        right = f"{one['accuracy']:.3f}" if "accuracy" in one else ""
        rows.append((name, f"{one['samples']:.2f}", cost, one["agreement"].in_words(), right))
    return rows


OURS, PEERS, MUTED = "#0072B2", "#7A7A7A", "#B0B0B0"
MARKS, SIZE = "v^<>DPX", (7.5, 4.6)


def agreement_panel(records: list[AnswerRecord]) -> Panel:
    """Agreement against samples: a line for rules with targets, marks for others."""
    words = "; ".join(
        f"{name}: {agreement} with {samples} samples"
        for name, samples, _, agreement, _ in table_of_answers(records)
    )
    heading = "Agreement against samples"
    return Panel(heading, f"{heading}. {words}", SIZE, partial(_draw_agreement, records))


def draw_agreement(records: list[AnswerRecord], title: str) -> Figure:
    """The figure of `agreement_panel`, with a title."""
    figure = agreement_panel(records).figure()
    figure.axes[0].set_title(title, fontsize=10)
    return figure


def _draw_agreement(records: list[AnswerRecord], figure: Figure | SubFigure) -> None:
    axes, marks = figure.subplots(), iter(MARKS)
    styles = iter([("o-", OURS), ("s-", "#56B4E9"), ("x:", "#555555")])
    most = 1.0
    for kind in dict.fromkeys(one["rule"] for one in records):
        some = [one for one in records if one["rule"] == kind]
        points = [float(one["samples"]) for one in some], [float(one["agreement"]) for one in some]
        if kind == "fixed number":
            axes.plot(*points, "-", color=MUTED, linewidth=1, label=kind)
            continue
        most = max(most, *points[0])
        if len(some) == 1 and some[0].get("target") is None:
            axes.plot(*points, next(marks, "o"), color=PEERS, markersize=6, label=kind, alpha=0.8)
        else:
            style, colour = next(styles)
            axes.plot(*points, style, color=colour, markersize=5, label=kind)
    least = min(float(one["agreement"]) for one in records if one["rule"] != "fixed number")
    axes.set(xlabel="mean samples of a question", ylabel="answered as by all samples")
    axes.set(xlim=(0.8, 1.1 * most), ylim=(least - 0.02, 1.003))
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.grid(alpha=0.25)


def _middle(records: list[AnswerRecord]) -> AnswerRecord | None:
    """The target that the advice speaks of; None where no target had enough questions."""
    ours = [one for one in records if one["rule"] == "ours"]
    return ours[len(ours) // 2] if ours else None


def _most_samples(records: list[AnswerRecord]) -> int:
    return max(one["target"] for one in records if one["rule"] == "fixed number")


def advise_on_answers(records: list[AnswerRecord]) -> list[str]:
    """Which rule to take, in sentences."""
    chosen = _middle(records)
    if chosen is None:
        return ["No target has enough calibration questions: sample more questions."]
    said = [
        f"Give the agreement that you need as the target. At {chosen['target']}, "
        f"{100 * chosen['agreement']:.1f} % of the answers are the one that all "
        f"{_most_samples(records)} samples give, after {chosen['samples']:.2f} samples on average."
    ]
    peers = [one for one in records if one["rule"] not in ("ours", "fixed number")]
    as_good = [one for one in peers if one["agreement"] >= chosen["agreement"]]
    if as_good:
        least = min(as_good, key=lambda one: float(one["samples"]))
        said.append(
            f"Of the published rules that agree as often, {least['rule']} samples least: "
            f"{least['samples']:.2f} samples on average, without a promise."
        )
    return said


def answers_in_code(records: list[AnswerRecord]) -> str:
    """Lines of Python that calibrate the rule that the advice speaks of."""
    chosen = _middle(records)
    if chosen is None:
        return ""
    samples = _most_samples(records)
    return (
        "import agreestop as ag\n\n"
        f"rule = ag.AgreeStop({chosen['target']}, range(1, {samples + 1}), 1, break_ties=True)\n"
        'calibrated = rule.calibrate(answers, "final")\n'
        "decision = ag.sample_until(calibrated, ask)  # ask() gives a sampled answer"
    )


def write_answers_page(records: list[AnswerRecord], path: Path, name: str) -> Path:
    """Write advice, table and figure as one HTML page that loads nothing."""
    notes = (
        f"Means over {REPEATS} random divisions into calibration and test questions, and between "
        "which values 95 % of the divisions lie. Agreement is the share answered as by all "
        "samples; ours promises it at the target. Right is the share answered right, where right "
        "answers are known.",
        "Published rules have their published settings: adaptive consistency stops when the Beta "
        "criterion is at most 0.05, windows of 5 when all samples of a window agree.",
    )
    panels = [agreement_panel(records)]
    table = [TITLES, *table_of_answers(records)]
    return write_small_page(
        path,
        f"When to stop sampling: {name}",
        table,
        notes,
        advise_on_answers(records),
        answers_in_code(records),
        panels,
    )
