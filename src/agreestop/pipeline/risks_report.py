"""A report from risks and losses: how early a `StopRule` stops at several targets, and how often it
is wrong, against a fixed time.

The rows are divided many times at random into calibration and test rows.
"""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import InputError, ProgressCallback, as_count, names_in, no_progress
from agreestop.common.estimates import Estimate
from agreestop.decide.rule import AT_END
from agreestop.decide.stop_rule import Risks, StopRule
from agreestop.decide.tuning.splits import repeat_splits
from agreestop.report.page import write_small_page

TARGETS = ("0.8", "0.9", "0.95", "0.99")
REPEATS, LEAST_ROWS, MOST_CALIBRATION = 30, 40, 1000
MAIN = "0.9"  # the target that the advice speaks of
REFUSED = "refused in some divisions"
TITLES = ("target", "at the end", "answered", "wrong", "mean time", "one time for all")

Rows = list[tuple[str, ...]]


def holds_risks(path: str | PathLike[str]) -> bool:
    """Whether a file is an `.npz` file of risks."""
    return "risk" in names_in(path)


def measure_risks(
    data: Risks,
    n_calibration: int | None = None,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> Rows:
    """A row of text for each target and each end, as `TITLES` say."""
    if data.loss is None:
        raise InputError("the risks have no losses: a report needs 'loss', (n, M), beside 'risk'.")
    if not np.isin(data.loss, (0.0, 1.0)).all():
        raise InputError("a report on risks is about losses of 0 and 1: give these.")
    if len(data) < LEAST_ROWS:
        raise InputError(f"there are {len(data)} rows: a report needs {LEAST_ROWS}.")
    n = min(len(data) // 2, MOST_CALIBRATION) if n_calibration is None else n_calibration
    as_count(n, "n_calibration")
    fixed = Risks(np.broadcast_to(-np.array(data.times), data.risk.shape), data.loss, data.times)
    cases = [(target, at_end) for target in TARGETS for at_end in AT_END]
    rows: Rows = []
    for number, (target, at_end) in enumerate(cases):
        progress(f"target {target}, {at_end}", number / len(cases))
        rule = StopRule(target, data.times, at_end=at_end)
        if n < rule.examples_needed():
            needed = f"needs {rule.examples_needed()} calibration rows"
            rows.append((target, at_end, needed, "", "", ""))
            continue
        own, other = (_figures(rule, part, n, seed) for part in (data, fixed))
        rows.append((target, at_end, *own, other[-1]))
    return rows


def _figures(rule: StopRule, data: Risks, n: int, seed: int) -> tuple[str, str, str]:
    """Share answered, share wrong with its interval for the draw of the rows, and mean time."""
    pool: Any = data
    try:
        found = repeat_splits(rule, pool, n_calibration=n, repeats=REPEATS, seed=seed).over_pools
    except InputError as refused:
        if "last checkpoint" not in str(refused):
            raise
        return REFUSED, "", "refused"
    right = found.kept.within(0.0, 1.0)
    wrong = Estimate(1 - right, 1 - right.high, 1 - right.low, right.se)
    time = found.normalized_latency * data.times[-1]
    return f"{found.set_size:.3f}", wrong.in_words(), f"{time:.2f}"


def _advised(rows: Rows) -> tuple[str, ...] | None:
    """The row that the advice speaks of: everything is answered where that can be promised."""
    some = [row for row in rows if row[0] == MAIN and row[2] != REFUSED and row[4]]
    return next(iter(sorted(some, key=lambda row: row[1] != "answer")), None)


def advise_on_risks(rows: Rows) -> list[str]:
    """Which rule to take, in sentences."""
    chosen = _advised(rows)
    if chosen is None:
        return [f"Target {MAIN} cannot be promised here: give more rows or a lower target."]
    target, at_end, answered, _, time, fixed = chosen
    said = []
    if at_end == "abstain":
        said.append(
            f"More than {100 - 100 * float(target):g} % are wrong at the last checkpoint in some "
            f'division, so take at_end="abstain": it answers {100 * float(answered):.1f} % of the '
            "inputs."
        )
    said.append(
        f"At target {target} inputs stop at {time} on average; one time for all inputs with the "
        f"same promise would be {fixed}."
    )
    return said


def risks_in_code(rows: Rows) -> str:
    """Lines of Python that calibrate the rule that the advice speaks of."""
    chosen = _advised(rows)
    if chosen is None:
        return ""
    return (
        "import agreestop as ag\n\n"
        f'rule = ag.StopRule({chosen[0]}, at_end="{chosen[1]}")\n'
        "calibrated = rule.calibrate(risk, loss)\n"
        "decision = calibrated.decide(new_risk)[0]  # decision.time, .answered"
    )


def write_risks_page(rows: Rows, path: Path, name: str) -> Path:
    """Write advice and the table as one HTML page that loads nothing."""
    notes = (
        f"Wrong: the share of inputs that are answered with a loss of 1, over {REPEATS} random "
        "divisions into calibration and test rows, with an interval for the draw of the rows.",
        "Refused: the losses at the last checkpoint are above the promise in some division.",
        "One time for all: the time at which all inputs would stop for the same promise.",
    )
    return write_small_page(
        path,
        f"When to stop: {name}",
        [TITLES, *rows],
        notes,
        advise_on_risks(rows),
        risks_in_code(rows),
    )
