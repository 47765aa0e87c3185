"""`agreestop evaluate`: how often a rule's answers hold the label, and how early they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.decide.checks import InputError
from agreestop.decide.decisions import Estimate, Evaluation, Group
from agreestop.decide.decisions import evaluate as evaluate_decisions
from agreestop.decide.rule_files import load_rule
from agreestop.decide.score_files import load_scores

from .console import out


def evaluate(
    rule: Annotated[Path, typer.Argument(help="Rule file that `agreestop calibrate` wrote.")],
    scores: Annotated[Path, typer.Argument(help="Score file with labels, neither tuning nor calibration data.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")] = False,
) -> None:
    """Decide for every input of a labelled score file and compare with the labels."""
    calibrated = load_rule(rule)
    data = load_scores(scores, calibrated.checkpoints)
    if data.labels is None:
        raise InputError(f"{scores} has no labels: evaluation needs one label for each input.")
    result = evaluate_decisions(calibrated.decide(data.log_confidence), data.labels)
    names = data.classes or tuple(str(label) for label in range(calibrated.classes))
    if as_json:
        typer.echo(json.dumps(_record(result, names, calibrated.guarantee), ensure_ascii=False, indent=1))
        return
    out.print(f"Guarantee: {calibrated.guarantee}", markup=False)
    out.print(_table("All inputs", "", [("", result)]))
    out.print(_table("By stopping time", "time", [(f"{group.key:g}", group) for group in result.by_stop_time]))
    out.print(_table("By true class", "class", [(names[int(group.key)], group) for group in result.by_class]))


def _table(title: str, key: str, rows: list[tuple[str, Evaluation | Group]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in (key, "inputs", "coverage", "latency / T", "set size"):
        table.add_column(name, justify="left" if name == key else "right")
    for name, row in rows:
        latency = f"{row.normalized_latency:.3f}" if key else _interval(row.normalized_latency)
        size = f"{row.set_size:.2f}" if key else _interval(row.set_size, 2)
        table.add_row(name, str(row.n), _interval(row.coverage), latency, size)
    return table


def _interval(value: Estimate, digits: int = 3) -> str:
    if value.low != value.low:  # a single input has no interval
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _record(result: Evaluation, names: tuple[str, ...], guarantee: str) -> dict[str, object]:
    return {
        "guarantee": guarantee,
        **_figures(result),
        "by_stop_time": [{"time": group.key, **_figures(group)} for group in result.by_stop_time],
        "by_class": [{"class": names[int(group.key)], **_figures(group)} for group in result.by_class],
    }


def _figures(row: Evaluation | Group) -> dict[str, object]:
    figures: dict[str, object] = {"n": row.n}
    for name, value in (("coverage", row.coverage), ("latency", row.normalized_latency), ("set_size", row.set_size)):
        figures[name] = float(value)
        known = value.se == value.se
        figures[f"{name}_interval"] = [value.low, value.high] if known else None
        figures[f"{name}_se"] = value.se if known else None
    return figures
