"""`calibrate`, `decide` and `evaluate` for the rule spotter, whose files hold recordings."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from agreestop.common import InputError, atomic_writer
from agreestop.decide.spotting import CalibratedSpotter, Recordings, Spotter, load_recordings

from .console import errors_name_options, name_options, printed_warnings, show

SPOTTER = CalibratedSpotter.__name__
"""The kind of a rule file that holds a spotter."""
PANEL = "Alarms in recordings: a spotter"
Cap = Annotated[
    int,
    typer.Option(help="False alarms of a recording above it do not count.", rich_help_panel=PANEL),
]
Per = Annotated[
    str,
    typer.Option(
        help="What they are promised for: recording, or hour, which needs --step-seconds.",
        rich_help_panel=PANEL,
    ),
]
StepSeconds = Annotated[
    str | None, typer.Option(help="The length of a step.", rich_help_panel=PANEL)
]
Rest = Annotated[
    int, typer.Option(help="Steps without alarm after an alarm.", rich_help_panel=PANEL)
]
Near = Annotated[
    int, typer.Option(help="Alarms so near to an event are not false.", rich_help_panel=PANEL)
]
Within = Annotated[
    int,
    typer.Option(
        help="An alarm fewer than this many steps after an event's end finds it.",
        rich_help_panel=PANEL,
    ),
]
OPTIONS = {"false_alarms", "cap", "rest", "near", "missed", "within", "per", "step_seconds"}
"""Of `calibrate`, for a spotter alone."""
NOT_FOR_A_SPOTTER = "cannot be given for a spotter: leave it out."
FIGURES = ("found", "delay", "false_alarms", "capped", "any_false_alarm", "per_hour")


def takes_no(*names: str) -> Callable[[str], bool]:
    """Whether a verb has an option that a spotter does not take; `names` are those it takes."""
    return lambda name: name not in {"rule", "scores", "output", "as_json", "people", *names}


def calibrate_spotter(
    data: Recordings, output: Path, near: int, people: list[str] | None, **settings: Any
) -> None:
    """Calibrate a spotter on recordings and write it to a rule file."""
    if settings["false_alarms"] is None:
        raise InputError("--rule spotter needs --false-alarms, such as 0.05 a recording.")
    with printed_warnings(name_options), errors_name_options():
        spotter = Spotter(**settings).calibrate(data, near=near, people=people)
    spotter.save(output)
    persons = "" if spotter.people is None else f", {spotter.people} people"
    show(
        f"Wrote {output}: spotter, calibrated on {spotter.n} recordings{persons}"
        f"{spotter.heard and f', {spotter.heard}'}.",
        f"Guarantee: {spotter.guarantee}",
    )


def decide_alarms(rule: Path, recordings: Path, output: Path | None, **allowed: bool) -> None:
    """The alarms in every recording as CSV: recording, step and score.

    allowed: any_engine and any_members.
    """
    if output is not None and output.suffix != ".csv":
        raise InputError(f"{output} ends in {output.suffix!r}: alarms are written as .csv.")
    spotter, data = Spotter.load(rule), load_recordings(recordings)
    with errors_name_options():
        spotter.check_scores(data, **allowed)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("recording", "step", "score"))
    for row, scores in enumerate(data.scores):
        writer.writerows((row, step, float(scores[step])) for step in spotter.alarms(scores))
    if output is None:
        typer.echo(text.getvalue(), nl=False)
        return
    with atomic_writer(output) as stream:
        stream.write(text.getvalue().encode())


def evaluate_spotter(
    spotter: CalibratedSpotter,
    data: Recordings,
    within: int | None,
    step_seconds: str | None,
    people: list[str] | None,
    as_json: bool,
    **allowed: bool,
) -> None:
    """Events found and false alarms on recordings that did not set the threshold.

    allowed: any_engine and any_members.
    """
    known: Any = {"within": within, "step_seconds": step_seconds, "people": people, **allowed}
    with errors_name_options():
        result = spotter.evaluate(data, **known)
    if not as_json:
        show(f"Guarantee: {spotter.guarantee}", repr(result))
        return
    estimates = {name: getattr(result, name) for name in FIGURES}
    figures = {
        name: {"value": float(one), "low": one.low, "high": _in_json(one.high)}
        for name, one in estimates.items()
        if one is not None
    }
    counts = {"recordings": result.recordings, "events": result.events, "steps": result.steps}
    typer.echo(json.dumps({**counts, "threshold": _in_json(result.threshold), **figures}, indent=1))


def _in_json(number: float) -> float | None:
    """JSON has no infinite numbers: none."""
    return number if math.isfinite(number) else None
