"""`python -m benchmarks answers --data FILE`: when to stop sampling a language model, ours against
published rules on the same rows.

The file has a question on each line, with its samples in order (docs/language-models.md). Each draw
divides the questions at random into 300 for calibration, 300 for the learned risk, and the others
for the test. All rules are replayed on the same test rows:

    ours                    AgreeStop with ties broken, for each target: the Beta criterion, or a
                            risk learned on the tuning rows
    clairvoyant             the best threshold of the same risk on the test rows themselves, for
                            each target; nobody can have it
    adaptive consistency    stops when the Beta criterion is at most 0.05
    early stopping          windows of 5 samples, until all of a window agree (early-stopping
                            self-consistency)
    SPRT, mSPRT             of the two most frequent answers, with the settings of ConSol
    lead of 3               the first answer is 3 votes ahead of the second
    fixed number            all questions have the same number of samples

    samples, cost           means of an input; agreement: share answered as by the vote of all
                            samples; accuracy: share answered right
    answered, wrong         ours with right answers as labels and abstention

Intervals are for the draw of the questions: a jackknife over groups of them, and all of calibration
again without each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import Booleans, Floats, InputError, Integers, ProgressCallback
from agreestop.common.estimates import Estimate, student_quantile
from agreestop.decide.thresholds import TIES
from agreestop.decide.tuning.splits import divisions
from agreestop.pipeline.answers_report import QuestionPool, Replay, draw_agreement, first_stop
from agreestop.report.figures import save_figure

from .results import describe_run, write_results

TARGETS = (0.95, 0.97, 0.98, 0.99)
ABSTAIN = (0.95, 0.97)
CALIBRATION = TUNING = 300
GROUPS, GROUP_DRAWS = 8, 10
# the settings of ConSol
ALPHA, SPRT_BETA, MSPRT_BETA, P1, PRIOR = 0.05, 0.95 - 0.000024, 0.95 - 0.00006, 0.5001, 1e6
FIGURES = ("samples", "agreement", "accuracy", "cost", "answered", "wrong")
Key = tuple[str, float | None]


def log_ratio_sprt(first: Integers, second: Integers) -> Floats:
    """log-likelihood ratio of P1 against one half."""
    return np.asarray(first * math.log(P1 / 0.5) + second * math.log((1 - P1) / 0.5))


def log_ratio_msprt(first: Integers, second: Integers) -> Floats:
    """The same with a Beta prior on the share, cut to more than one half."""
    from scipy.special import betaln, log_ndtr

    # The incomplete Beta function at one half, for so large a prior, is that of its normal limit.
    spread = np.sqrt(2 * PRIOR + first + second + 1.0)
    above = log_ndtr((first - second) / spread) - math.log(0.5)
    return np.asarray(
        betaln(first + PRIOR, second + PRIOR)
        - betaln(PRIOR, PRIOR)
        + above
        + (first + second) * math.log(2)
    )


def peers(rows: Replay) -> dict[str, Integers]:
    """Where each published rule stops, (n,). None of them learns anything."""
    sprt = _outside(log_ratio_sprt(rows.first, rows.second), SPRT_BETA)
    msprt = _outside(log_ratio_msprt(rows.first, rows.second), MSPRT_BETA)
    return rows.published() | {"SPRT": first_stop(sprt), "mSPRT": first_stop(msprt)}


def _outside(ratio: Floats, beta: float) -> Booleans:
    return (ratio >= math.log((1 - beta) / ALPHA)) | (ratio <= math.log(beta / (1 - ALPHA)))


def clairvoyant(
    pool: QuestionPool, replay: Replay, target: float, test: Integers, seed: int
) -> Integers:
    """Where test rows stop at the largest threshold with which this share of them agrees; ties are
    broken as in ours.
    """
    risk = pool.examples.evidence.risk[test]
    risk = risk + TIES * np.random.default_rng(seed).random((len(test), 1))
    before = np.minimum.accumulate(
        np.concatenate([np.full((len(test), 1), np.inf), risk[:, :-1]], axis=1), axis=1
    )
    failing = np.where((risk < before) & ~replay.agrees[test], risk, np.inf).min(axis=1)
    return first_stop(risk < np.sort(failing)[math.floor(len(test) * (1 - target) + 1e-9)])


def measure(
    rows: Replay, draws: int, out: Booleans | None = None, progress: ProgressCallback | None = None
) -> dict[Key, dict[str, Floats]]:
    """The figures of every rule in every draw, (draws,), without some of the questions."""
    stops, found = peers(rows), dict[Key, list[dict[str, float]]]()
    beta = QuestionPool.of(ag.VoteRisk(), rows)
    labelled = (
        None if rows.right is None else QuestionPool.of(ag.VoteRisk(), rows, "abstain", final=False)
    )
    n, steps = rows.agrees.shape
    for draw, (calibration, others) in enumerate(divisions(n, CALIBRATION, draws, 0, out)):
        tuning, test = others[:TUNING], others[TUNING:]
        for key, result in _one_draw(rows, beta, labelled, stops, calibration, tuning, test, draw):
            found.setdefault(key, []).append(result)
        for number in range(1, steps + 1):
            found.setdefault(("fixed number", number), []).append(
                rows.figures(test, np.full(len(test), number - 1))
            )
        if progress is not None:
            progress(f"draw {draw + 1}", (draw + 1) / draws)
    return {
        key: {name: np.array([one[name] for one in some]) for name in some[0]}
        for key, some in found.items()
    }


def _one_draw(
    rows: Replay,
    beta: QuestionPool,
    labelled: QuestionPool | None,
    stops: dict[str, Integers],
    calibration: Integers,
    tuning: Integers,
    test: Integers,
    seed: int,
) -> Iterator[tuple[Key, dict[str, float]]]:
    learned = QuestionPool.of(ag.VoteRisk.fit(rows.answers.rows(tuning), "final"), rows)
    for name, pool in (("ours, Beta criterion", beta), ("ours, learned", learned)):
        for target in TARGETS:
            yield (name, target), rows.figures(test, pool.run(target, calibration, test, seed)[0])
    for target in TARGETS:
        yield (
            ("clairvoyant, Beta criterion", target),
            rows.figures(test, clairvoyant(beta, rows, target, test, seed)),
        )
    if labelled is not None:
        for target in ABSTAIN:
            index, answered = labelled.run(target, calibration, test, seed)
            yield ("ours, right or no answer", target), rows.figures(test, index, answered)
    for name, where in stops.items():
        yield (name, None), rows.figures(test, where[test])


def summarise(rows: Replay, draws: int, progress: ProgressCallback) -> list[dict[str, Any]]:
    """A record for each rule and target: means over draws with intervals for the draw of the
    questions.
    """
    full = measure(rows, draws, progress=progress)
    groups = np.random.default_rng(0).permutation(len(rows.agrees)) % GROUPS
    parts = []
    for group in range(GROUPS):
        progress(f"without group {group + 1}", group / GROUPS)
        parts.append(measure(rows, min(draws, GROUP_DRAWS), groups == group))
    records = []
    for (name, target), figures in full.items():
        record: dict[str, Any] = {
            "rule": name,
            "target" if name != "fixed number" else "number": target,
        }
        for figure, values in figures.items():
            means = np.array([part[name, target][figure].mean() for part in parts])
            error = math.sqrt((GROUPS - 1) / GROUPS * float(((means - means.mean()) ** 2).sum()))
            half = student_quantile(0.95, GROUPS - 1) * error
            mean, noise = float(values.mean()), float(values.std() / math.sqrt(draws))
            record[figure] = {
                "mean": mean,
                "low": mean - half,
                "high": mean + half,
                "error_of_draws": noise,
            }
        records.append(record)
    return records


def run_answers(data: Path, draws: int, output: Path, progress: ProgressCallback) -> dict[str, Any]:
    """Measure all rules, and write the figures and a picture; no data."""
    answers = ag.Answers.load(data)
    needed = CALIBRATION + TUNING + GROUPS
    if len(answers) < 2 * needed:
        raise InputError(
            f"{data} has {len(answers)} questions: the benchmark needs at least {2 * needed}."
        )
    records = summarise(Replay.of(answers), draws, progress)
    about = {
        "data": data.stem,
        "questions": len(answers),
        "samples": int(answers.times[-1]),
        "draws": draws,
    }
    record = {
        **describe_run(),
        **about,
        "calibration": CALIBRATION,
        "tuning": TUNING,
        "records": records,
    }
    write_results(output, record)
    draw_answers(record, output)
    return record


def _estimate(stored: dict[str, float]) -> Estimate:
    return Estimate(stored["mean"], stored["low"], stored["high"], stored["error_of_draws"])


def draw_answers(record: dict[str, Any], output: Path) -> list[Path]:
    """The figure of what `run_answers` returned, beside its file."""
    drawn: list[Any] = [
        {
            name: _estimate(value) if isinstance(value, dict) else value
            for name, value in one.items()
        }
        for one in record["records"]
        if "answered" not in one
    ]
    sizes = f"{record['questions']:,} questions, {record['samples']} samples each"
    title = f"{record['data']}: {sizes}, n = {record['calibration']}"
    return save_figure(draw_agreement(drawn, title), output.parent, output.stem)
