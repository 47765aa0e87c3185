"""Decisions as records, as CSV and as a pandas DataFrame, which needs pandas, and an evaluation as a table in plain text."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agreestop.common import needs

MOST_TIMES = MOST_PEOPLE = 8  # rows for stopping times, and for people, in a table
COLUMNS = {"agreement": "agreement", "cost": "cost", "coverage": "coverage", "normalized_latency": "latency / T", "set_size": "set size"}


def decision_records(decisions: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """A record for each of the `Decisions`, with these names of the classes."""
    return [
        {"input": row, "stop_time": one.time, "set_size": len(one.classes), "classes": [names[label] for label in one.classes]}
        for row, one in enumerate(decisions[row] for row in range(len(decisions)))
    ]


def decisions_csv(decisions: Any, names: Sequence[str]) -> str:
    """The same as CSV, with a header; classes are joined by semicolons."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("input", "stop_time", "set_size", "classes"))
    for record in decision_records(decisions, names):
        writer.writerow((*list(record.values())[:-1], ";".join(record["classes"])))
    return text.getvalue()


def as_dataframe(decisions: Any) -> Any:
    """`Decisions` as a DataFrame; see `Decisions.to_dataframe`."""
    with needs("to_dataframe", "pandas", advice="read the arrays themselves"):
        import pandas
    count = decisions.sets.shape[1]
    names = tuple(range(count)) if decisions.class_names is None else decisions.class_names
    classes = [tuple(names[label] for label in np.flatnonzero(kept)) for kept in decisions.sets]
    columns: dict[str, Any] = {"time": decisions.stop_time, "classes": classes, "set_size": decisions.set_size}
    if decisions.best is not None:
        columns["best"] = [names[best] if best >= 0 else None for best in decisions.best]
    if decisions.block is not None and decisions.block_names is not None:
        columns["block"] = [decisions.block_names[block] for block in decisions.block]
    if decisions.groups is not None and decisions.group_names is not None:
        columns |= {f"group {name}": inside for name, inside in zip(decisions.group_names, decisions.groups.T, strict=True)}
    if decisions.first_risk is not None:
        columns["first_risk"] = decisions.first_risk
    if decisions.members is not None:
        columns["members"] = decisions.stop_members
    return pandas.DataFrame(columns)


def as_table(result: Any) -> str:
    """An `Evaluation` as text: all inputs, then its blocks, groups, people, classes and stopping times, and its notes.

    Of many people, those with the lowest coverage are shown.
    """
    people = sorted(result.by_person or (), key=lambda one: one.coverage)[:MOST_PEOPLE]
    groups = {"block": result.by_block, "group": result.by_group, "person": people, "class": result.by_class, "stop at": few_times(result)}
    rows = [("all inputs", result)]
    rows += [(f"{word} {one.name or f'{one.key:g}'}", one) for word, some in groups.items() for one in some or ()]
    shown = [name for name in COLUMNS if getattr(result, name) is not None]
    table = [["", "inputs", *(COLUMNS[name] for name in shown)]]
    table += [[name, str(row.n), *(_with_interval(getattr(row, column)) for column in shown)] for name, row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in table]
    return "\n".join([*lines, *result.notes])


def few_times(result: Any) -> Iterator[Any]:
    """The groups of stopping times. Where they are many, neighbours are joined, but not the last, whose answers may be larger."""
    groups: Sequence[Any] = result.by_stop_time
    step = max(1, -(-(len(groups) - 1) // (MOST_TIMES - 1)))
    parts = [groups[start : min(start + step, len(groups) - 1)] for start in range(0, len(groups) - 1, step)]
    for part in (*parts, groups[-1:]):
        ends = dict.fromkeys((f"{part[0].key:g}", f"{part[-1].key:g}"))
        yield replace(part[0].of(part, result.confidence), name=" to ".join(ends))


def _with_interval(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if math.isnan(value.low) else f"{value:.3f} [{value.low:.3f}, {value.high:.3f}]"
