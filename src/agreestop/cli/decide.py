"""`agreestop decide`: a rule file and a score file become decisions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from agreestop.decide.atomic import atomic_writer
from agreestop.decide.checks import InputError
from agreestop.decide.decisions import Decisions
from agreestop.decide.rule_files import load_rule
from agreestop.decide.score_files import load_scores

from .console import say

FORMATS = (".csv", ".json", ".npz")


def decide(
    rule: Annotated[Path, typer.Argument(help="Rule file that `agreestop calibrate` wrote.")],
    scores: Annotated[Path, typer.Argument(help="Score file; labels are not needed.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .csv, .json or .npz to write; else CSV on the terminal.")] = None,
) -> None:
    """Decide for every input of a score file where to stop and what to answer."""
    if output is not None and output.suffix not in FORMATS:
        raise InputError(f"{output} ends in {output.suffix!r}: give a name that ends in {', '.join(FORMATS)}.")
    calibrated = load_rule(rule)
    data = load_scores(scores, calibrated.checkpoints)
    decisions = calibrated.decide(data.log_confidence)
    names = data.classes or tuple(str(label) for label in range(calibrated.classes))
    if output is None:
        typer.echo(_csv(decisions, names), nl=False)
        return
    with atomic_writer(output) as stream:
        if output.suffix == ".npz":
            np.savez_compressed(stream, stop_time=decisions.stop_time, stop_index=decisions.stop_index, sets=decisions.sets)
        else:
            text = _csv(decisions, names) if output.suffix == ".csv" else _json(decisions, names)
            stream.write(text.encode())
    latency = float(np.mean(decisions.stop_time)) / decisions.checkpoints[-1]
    say(f"Wrote {output}: {len(decisions)} decisions, latency {latency:.3f} of T, set size {decisions.set_size.mean():.2f}.")


def _csv(decisions: Decisions, names: tuple[str, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("input", "stop_time", "set_size", "classes"))
    for row in range(len(decisions)):
        decision = decisions[row]
        writer.writerow((row, decision.time, len(decision.classes), ";".join(names[label] for label in decision.classes)))
    return text.getvalue()


def _json(decisions: Decisions, names: tuple[str, ...]) -> str:
    chosen = [decisions[row] for row in range(len(decisions))]
    records = [
        {"input": row, "stop_time": one.time, "set_size": len(one.classes), "classes": [names[label] for label in one.classes]}
        for row, one in enumerate(chosen)
    ]
    return json.dumps(records, ensure_ascii=False, indent=1) + "\n"
