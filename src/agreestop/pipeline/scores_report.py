"""A report from scores: every rule is measured on them, and the page says which to take.

Some rows are put aside for tuning. The others are the pool, which is divided many times at random
into calibration and test rows, as in `measure`. The scores may come from any model.
"""

from collections.abc import Mapping
from fractions import Fraction
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    InputError,
    Integers,
    ProgressCallback,
    Stages,
    as_count,
    as_max_set_size,
    as_seed,
    check_writable,
    joined_members,
    needs,
    no_progress,
)
from agreestop.common.errors import no_calibration_warnings
from agreestop.common.levels import Target, as_target, in_words
from agreestop.decide.answer_kinds import Tree
from agreestop.decide.answers import Answers
from agreestop.decide.intervals import Numbers, load_numbers
from agreestop.decide.rule import Rule
from agreestop.decide.scores import Scores, holds_answers, load_scores
from agreestop.decide.stop_rule import load_risks
from agreestop.report.contents import Report
from agreestop.report.records import MeasurementSettings

from .measure import RULE_LABELS, report_measured

OTHER_TARGETS = (0.8, 0.85, 0.9, 0.95)
TUNING_SHARE, MOST_CALIBRATION, LEAST_ROWS, LEAST_PEOPLE = 1 / 3, 200, 40, 6
REALISATIONS = 30


def write_report(
    scores: Scores | Answers | Numbers | str | PathLike[str],
    path: str | PathLike[str],
    *,
    target: Target = 0.9,
    max_set_size: int = 1,
    groups: ArrayLike | None = None,
    n_calibration: int | None = None,
    seed: int = 0,
    rules: Mapping[str, Rule] | None = None,
    people: ArrayLike | None = None,
    tree: Tree | None = None,
    progress: ProgressCallback = no_progress,
) -> Path:
    """Measure every rule on labelled scores, or on a score file, and write one HTML page: coverage
    by time, class and group, and advice.

    groups         (n,) numbers or strings: a group of each row, whose coverage is shown by itself
    n_calibration  calibration rows in each division of the pool; half of the tuning rows, but at
                   most 200, if it is None
    rules          further rules by name, for the same target, which are measured beside the others

    Answers, Numbers, or a file of them or of risks and losses, get a small page instead: how early
    `AgreeStop`, an `IntervalStop` or a `StopRule` stops at several targets, against other ways.

    It takes a minute or a few. The page is one file that loads nothing. Needs
    matplotlib and jinja2.
    """
    with needs("write_report"):
        from agreestop.report.page import write_page

        from .answers_report import measure_answers, write_answers_page
        from .numbers_report import holds_numbers, measure_numbers, write_numbers_page
        from .risks_report import holds_risks, measure_risks, write_risks_page

    for given, kinds, needed in (
        (
            scores,
            (Scores, Answers, Numbers, str, PathLike),
            "Scores, Answers or Numbers, or the path of a file of them or of risks",
        ),
        (path, (str, PathLike), "a path"),
    ):
        if not isinstance(given, kinds):
            raise InputError(f"write_report got a {type(given).__name__}: give {needed}.")
    check_writable(path)
    data, name = scores, f"your {type(scores).__name__.lower()}"
    if isinstance(data, (str, PathLike)):
        name = Path(data).name
        if holds_risks(data):
            rows = measure_risks(load_risks(data), n_calibration, seed, progress)
            return write_risks_page(rows, Path(path), name)
        if holds_answers(data):
            data = Answers.load(data)
        elif holds_numbers(data):
            data = load_numbers(data)
        else:
            data = load_scores(data)
    if isinstance(data, Answers):
        records = measure_answers(data, n_calibration, seed, progress)
        return write_answers_page(records, Path(path), name)
    if isinstance(data, Numbers):
        found = measure_numbers(data, target, n_calibration, seed, progress)
        return write_numbers_page(found, Path(path), name)
    return write_page(
        report_scores(
            data,
            target,
            max_set_size,
            groups,
            n_calibration,
            seed,
            name,
            rules=rules,
            people=people,
            tree=tree,
            progress=progress,
        ),
        Path(path),
    )


def report_scores(
    data: Scores,
    target: Target = 0.9,
    max_set_size: int = 1,
    groups: ArrayLike | None = None,
    n_calibration: int | None = None,
    seed: int = 0,
    name: str = "your scores",
    command: str = "ag.write_report",
    rules: Mapping[str, Rule] | None = None,
    progress: ProgressCallback = no_progress,
    people: ArrayLike | None = None,
    tree: Tree | None = None,
) -> Report:
    """What `write_report` writes, as data."""
    if data.labels is None:
        raise InputError(
            f"{name} hold no labels: a report compares answers with labels; give scores with one "
            "label for each input."
        )
    if joined_members(data.times):
        raise InputError(
            f"{name} are at the looks of a schedule: give the scores of all members at each time."
        )
    if len(data) < LEAST_ROWS:
        raise InputError(
            f"{name}: {len(data)} rows are too few, because a report divides them into tuning, "
            f"calibration and test: give {LEAST_ROWS} or more."
        )
    named = None if groups is None else _names(groups, len(data), "group")
    persons = None if people is None else _names(people, len(data), "person")
    own_tree = None if tree is None else tree.for_classes(data.classes)
    for label, rule in (rules or {}).items():
        _check_own_rule(label, rule, as_target(target))
    rows, others = _divide(len(data), persons, seed)
    measured = _settings(data, target, max_set_size, len(rows) // 2, n_calibration, seed)
    if measured.n_calibration > min(len(rows) // 2, len(others) - 1):
        raise InputError(
            f"n_calibration is {measured.n_calibration}: with {len(data)} rows give at most "
            f"{len(rows) // 2}."
        )
    stages = Stages(progress, (12.0, 1.0))
    tuning, pool = data.rows(rows), data.rows(others)
    n, moments, members, classes = data.log_confidence.shape
    many = f"{members} members" if members > 1 else "one member"
    with no_calibration_warnings():
        return report_measured(
            tuning,
            pool,
            measured,
            stages,
            groups=None if named is None else [named[row] for row in others],
            people=None if persons is None else [persons[row] for row in others],
            tree=own_tree,
            own=rules,
            name=name,
            kind="scores",
            description=(
                f"scores of {n} inputs at {moments} times, from {many}, for {classes} classes"
            ),
            command=command,
            settings=(("engine", data.engine or "not known"), ("seed", str(seed))),
            folder=False,
        )


def _check_own_rule(label: str, rule: object, target: Fraction) -> None:
    """Refuse a further rule that the page could not show beside the others."""
    if not isinstance(rule, Rule):
        raise InputError(
            f"rules holds a {type(rule).__name__} as {label!r:.80}: give rules before calibration."
        )
    if rule.terms.target != target:
        raise InputError(
            f"the rule {label!r:.80} has another target than the page: give it {in_words(target)}."
        )
    if label in RULE_LABELS:
        raise InputError(f"{label!r:.80} is the name of another rule of the page: give your own.")


def _divide(n: int, people: list[str] | None, seed: int) -> tuple[Integers, Integers]:
    """Tuning rows, and the pool; nobody has rows in both."""
    rng = np.random.default_rng(as_seed(seed))
    if people is None:
        rows, others = np.split(rng.permutation(n), [round(TUNING_SHARE * n)])
        return rows, others
    names = np.unique(people)
    if len(names) < LEAST_PEOPLE:
        raise InputError(
            f"people names {len(names)} people: a report divides them into tuning, calibration and "
            f"test, and needs {LEAST_PEOPLE}."
        )
    chosen = rng.permutation(names)[: round(TUNING_SHARE * len(names))]
    inside, order = np.isin(people, chosen), rng.permutation(n)
    return order[inside[order]], order[~inside[order]]


def _names(given: ArrayLike, n: int, what: str) -> list[str]:
    names = np.asarray(given)
    if names.shape != (n,):
        option = {"group": "groups", "person": "people"}[what]
        raise InputError(
            f"{option} has shape {names.shape}: give one {what} for each of the {n} rows."
        )
    return [str(name) for name in names.tolist()]


def _settings(
    data: Scores, target: Target, size: int, most: int, n_calibration: int | None, seed: int
) -> MeasurementSettings:
    """The settings of the measurement: the target first, four checkpoints for the rules that
    look at few, one member and all of them.
    """
    members, main = data.log_confidence.shape[2], float(as_target(target))
    quarters = sorted({-(-len(data.times) * quarter // 4) for quarter in (1, 2, 3, 4)})
    return MeasurementSettings(
        targets=(main, *(other for other in OTHER_TARGETS if other != main)),
        sizes=tuple(sorted({1, members})),
        checkpoints=tuple(data.times[index - 1] for index in quarters),
        max_set_size=_checked_size(size, data.log_confidence.shape[3]),
        n_calibration=min(most, MOST_CALIBRATION)
        if n_calibration is None
        else as_count(n_calibration, "n_calibration"),
        realisations=REALISATIONS,
        seed=as_seed(seed),
    )


def _checked_size(size: int, classes: int) -> int:
    if as_max_set_size(size) >= classes:
        raise InputError(
            f"max_set_size is {size} of {classes} classes: an answer with every class says "
            "nothing; give fewer."
        )
    return size
