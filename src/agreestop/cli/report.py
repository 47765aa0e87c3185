"""`agreestop report`: a labelled score file becomes a page that says which rule to take."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from agreestop.common import InputError, check_writable
from agreestop.decide.answer_kinds import Tree
from agreestop.decide.answers import Answers
from agreestop.decide.intervals import load_numbers
from agreestop.decide.scores import holds_answers
from agreestop.decide.spotting import Recordings, Spotter, load_recordings
from agreestop.decide.stop_rule import load_risks

from .console import (
    errors_name_options,
    name_options,
    progress_bar,
    refuse_options,
    show,
    show_written,
    small_table,
)
from .run import table_of_rules
from .spot import (
    NOT_FOR_A_SPOTTER,
    OPTIONS,
    Cap,
    Near,
    Per,
    Rest,
    StepSeconds,
    Within,
    takes_no,
)
from .texts import read_lines
from .tuning import labelled_scores

PAGES = (".html", ".htm")


def report(
    context: typer.Context,
    scores: Annotated[
        Path,
        typer.Argument(
            help=(
                "Score file with labels. Its rows are divided into tuning, calibration and test. "
                "Or a file of risks and losses, numbers, a .jsonl file of open answers, or "
                "recordings."
            )
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help=(
                "HTML file to write; it holds its figures and loads nothing. "
                "[default: SCORES, with the ending .html]"
            ),
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Probability that the answer holds the true class.")
    ] = "0.9",
    max_set_size: Annotated[int, typer.Option(help="Largest set that may stop early.")] = 1,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the group of each input, one on a line: coverage by group."
        ),
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the person of each input, one on a line: what new people get."
        ),
    ] = None,
    tree: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of groups of classes: how early the first answer of each depth comes."
        ),
    ] = None,
    n_calibration: Annotated[
        int | None,
        typer.Option(help="Calibration rows. [default: a sixth of the rows, at most 200]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which rows are used for what.")] = 0,
    cap: Cap = 1,
    rest: Rest = 0,
    near: Near = 0,
    within: Within = 50,
    per: Per = "recording",
    step_seconds: StepSeconds = None,
) -> None:
    """Measure every rule on a labelled score file, and write a page: coverage by time, class and
    group, and which rule to take.
    """
    from agreestop.pipeline.numbers_report import holds_numbers
    from agreestop.pipeline.risks_report import holds_risks
    from agreestop.pipeline.scores_report import report_scores
    from agreestop.pipeline.spotting_report import holds_recordings
    from agreestop.report.advice import advise, rule_on_command_line
    from agreestop.report.page import summary_in_words, write_page

    output = scores.with_suffix(".html") if output is None else output
    if output.is_dir():
        raise InputError(
            f"{output} is a folder: give the HTML file to write, for example "
            f"{output / 'report.html'}."
        )
    check_writable(output, scores)
    if output.suffix.lower() not in PAGES:
        raise InputError(f"{output}: a report is HTML, so give a name that ends in .html.")
    if holds_recordings(scores):
        refuse_options(context, takes_no(*OPTIONS - {"missed"}, "seed"), NOT_FOR_A_SPOTTER)
        _report_recordings(
            *(scores, output, seed, people, near),
            cap=cap,
            rest=rest,
            within=within,
            per=per,
            step_seconds=step_seconds,
        )
        return
    refuse_options(context, OPTIONS.__contains__, "is for recordings: leave it out.")
    if holds_answers(scores):
        _report_answers(scores, output, n_calibration, seed)
        return
    if holds_risks(scores):
        _report_risks(scores, output, n_calibration, seed)
        return
    if holds_numbers(scores):
        _report_numbers(scores, output, target, n_calibration, seed)
        return
    data = labelled_scores(scores, "a report")
    inside = read_lines(groups, len(data))
    persons = read_lines(people, len(data))
    options = {
        "target": target,
        "max-set-size": max_set_size,
        "groups": groups,
        "people": people,
        "tree": tree,
        "n-calibration": n_calibration,
        "seed": seed,
    }
    given = [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]
    command = shlex.join(["agreestop", "report", str(scores), "-o", str(output), *given])
    with progress_bar(scores.name) as progress, errors_name_options():
        made = report_scores(
            *(data, target, max_set_size, inside, n_calibration, seed, scores.name, command),
            progress=progress,
            people=persons,
            tree=None if tree is None else Tree.load(tree),
        )
    (section,) = made.sections
    show(
        table_of_rules(section.records, scores.name),
        *summary_in_words(section),
        *map(name_options, advise(section, made.measured)),
    )
    headline = section.summary.headline
    if section.summary.kept and headline.examples_needed is None:
        show(rule_on_command_line(headline, made.measured.max_set_size), unbroken=True)
    show_written(write_page(made, output))


def _report_risks(path: Path, output: Path, n_calibration: int | None, seed: int) -> None:
    """A table of targets for risks and losses, on the terminal and as a small page."""
    from agreestop.pipeline.risks_report import TITLES, measure_risks, write_risks_page

    data = load_risks(path)
    with progress_bar(path.name) as progress, errors_name_options():
        rows = measure_risks(data, n_calibration, seed, progress)
    show(small_table(f"{path.name}: {len(data)} rows", TITLES, rows))
    show_written(write_risks_page(rows, output, path.name))


def _report_numbers(
    path: Path, output: Path, target: str, n_calibration: int | None, seed: int
) -> None:
    """Coverage, time and width of an `IntervalStop` at several targets and widths."""
    from agreestop.pipeline import numbers_report as pages

    data = load_numbers(path)
    with progress_bar(path.name) as progress, errors_name_options():
        found = pages.measure_numbers(data, target, n_calibration, seed, progress)
    rows = pages.table_of_numbers(found)
    table = small_table(f"{path.name}: {len(data)} rows", pages.TITLES, rows)
    show(table, *pages.advise_on_numbers(found))
    show_written(pages.write_numbers_page(found, output, path.name))


def _report_answers(path: Path, output: Path, n_calibration: int | None, seed: int) -> None:
    """Samples, cost and agreement at several targets, beside published rules."""
    from agreestop.pipeline.answers_report import (
        TITLES,
        measure_answers,
        table_of_answers,
        write_answers_page,
    )

    with progress_bar(path.name) as progress, errors_name_options():
        answers = Answers.load(path)
        records = measure_answers(answers, n_calibration, seed, progress)
    rows = table_of_answers(records)
    show(small_table(f"{path.name}: {len(answers)} questions", TITLES, rows))
    show_written(write_answers_page(records, output, path.name))


def _report_recordings(
    path: Path, output: Path, seed: int, people: Path | None, near: int, **settings: Any
) -> None:
    """A table of promises for recordings, on the terminal and as a small page."""
    from agreestop.pipeline import spotting_report as pages

    data = load_recordings(path)
    if people is not None:
        data = Recordings.of(data, people=read_lines(people, len(data)))
    with progress_bar("report") as progress, errors_name_options():
        made = pages.measure_recordings(data, partial(Spotter, **settings), near, seed, progress)
    rows = pages.table_of_recordings(made)
    table = small_table(f"{path.name}: {len(data)} recordings", pages.titles_of(made), rows)
    show(table, *pages.advise_on_recordings(made))
    show_written(pages.write_recordings_page(made, output, path.name))
