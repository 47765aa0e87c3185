"""`calibrate`, `decide` and `evaluate` for the rule spotter, whose files hold recordings."""

import csv
import io
import json
from pathlib import Path

import typer

from agreestop.common import InputError, atomic_writer
from agreestop.decide.spotting import CalibratedSpotter, Spotter, load_recordings

from .console import errors_name_options, name_options, printed_warnings, show

SPOTTER = CalibratedSpotter.__name__
"""The kind of a rule file that holds a spotter."""
FIGURES = ("found", "delay", "false_alarms", "capped", "any_false_alarm", "per_hour")


def calibrate_spotter(
    recordings: Path,
    output: Path,
    false_alarms: str | None,
    cap: int,
    rest: int,
    near: int,
    missed: str | None,
    within: int,
) -> None:
    """Calibrate a spotter on a file of recordings and write it to a rule file."""
    if false_alarms is None:
        raise InputError("--rule spotter needs --false-alarms, such as 0.05 a recording.")
    data = load_recordings(recordings)
    with printed_warnings(name_options), errors_name_options():
        spotter = Spotter(false_alarms, cap, rest, missed, within).calibrate(data, near=near)
    spotter.save(output)
    people = "" if spotter.people is None else f", {spotter.people} people"
    show(
        f"Wrote {output}: spotter, calibrated on {spotter.n} recordings{people}"
        f"{spotter.heard and f', {spotter.heard}'}.",
        f"Guarantee: {spotter.guarantee}",
    )


def decide_alarms(rule: Path, recordings: Path, output: Path | None) -> None:
    """The alarms in every recording as CSV: recording, step and score."""
    if output is not None and output.suffix != ".csv":
        raise InputError(f"{output} ends in {output.suffix!r}: alarms are written as .csv.")
    spotter, data = Spotter.load(rule), load_recordings(recordings)
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
    rule: Path, recordings: Path, within: int | None, step_seconds: float | None, as_json: bool
) -> None:
    """Events found and false alarms on recordings that did not set the threshold."""
    spotter, data = Spotter.load(rule), load_recordings(recordings)
    with errors_name_options():
        result = spotter.evaluate(data, within=within, step_seconds=step_seconds)
    if not as_json:
        show(f"Guarantee: {spotter.guarantee}", repr(result))
        return
    known = {name: getattr(result, name) for name in FIGURES}
    figures = {
        name: {"value": float(one), "low": one.low, "high": one.high}
        for name, one in known.items()
        if one is not None
    }
    counts = {"recordings": result.recordings, "events": result.events, "steps": result.steps}
    typer.echo(json.dumps({**counts, "threshold": result.threshold, **figures}, indent=1))
