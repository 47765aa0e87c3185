"""Decisions and evaluations as people read them: DataFrames, plain text and HTML."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import chain, repeat
from typing import Any

import numpy as np

from .errors import needs

MOST_ROWS = 8  # for stopping times, for people and for decisions in a table
COLUMNS = {
    "agreement": "agreement",
    "cost": "cost",
    "coverage": "coverage",
    "kept": "kept",
    "answered": "answered",
    "wrong": "wrong",
    "latency": "samples",
    "normalized_latency": "latency / T",
    "set_size": "set size",
    "width": "width",
}


def as_dataframe(decisions: Any) -> Any:
    """`Decisions` as a DataFrame; see `Decisions.to_dataframe`."""
    with needs("to_dataframe", "pandas", advice="read the arrays themselves"):
        import pandas
    names = decisions.class_names or range(decisions.sets.shape[1])
    columns: dict[str, Any] = {
        "time": decisions.stop_time,
        "classes": [tuple(names[label] for label in np.flatnonzero(one)) for one in decisions.sets],
        "set_size": decisions.set_size,
    }
    if decisions.texts is not None:
        columns["classes"], columns["cost"] = decisions.names, decisions.cost
    elif decisions.best is not None:
        columns["best"] = [names[best] if best >= 0 else None for best in decisions.best]
    if decisions.block is not None:
        columns["block"] = [decisions.block_names[block] for block in decisions.block]
    if decisions.groups is not None:
        for name, inside in zip(decisions.group_names, decisions.groups.T, strict=True):
            columns[f"group {name}"] = inside
    if decisions.first_risk is not None:
        columns["first_risk"] = decisions.first_risk
    if decisions.members is not None:
        columns["members"] = decisions.stop_members
    if not decisions.answered.all() or decisions.largest_loss is not None:
        columns["answered"] = decisions.answered
    if decisions.tree is not None:
        columns["answer"] = ["".join(one.names) for one in decisions]
        for depth, at in enumerate(decisions.by_depth, 1):
            columns[f"depth {depth}"] = ["".join(one.names) for one in at]
            columns[f"depth {depth} time"] = at.stop_time
    if not decisions.has_classes:
        for name in ("classes", "set_size", "best", "members"):
            columns.pop(name, None)
    if decisions.lower is not None:
        columns |= {"lower": decisions.lower, "upper": decisions.upper}
    return pandas.DataFrame(columns)


def _rows(result: Any) -> list[list[str]]:
    """The cells of an `Evaluation`, below a row of titles.

    All inputs come first, then depths, blocks, groups, people, classes and stopping times. Of many
    people, those for whom the promise is kept least often are shown.
    """
    groups = {
        "depth": result.by_depth,
        "block": result.by_block,
        "group": result.by_group,
        "person": sorted(result.by_person or (), key=lambda one: one.kept)[:MOST_ROWS],
        "class": result.by_class,
        "stop at": few_times(result),
    }
    rows = [("all inputs", result)]
    for word, some in groups.items():
        rows += [(f"{word} {one.name or f'{one.key:g}'}", one) for one in some or ()]
    hidden: tuple[str, ...] = ()
    if result.answered in (None, 1):
        hidden = ("kept", "answered", "wrong")
    if not result.by_class:
        hidden = ("kept", "set_size") + (() if result.is_about_numbers else ("coverage",))
    if not result.open_answers:
        hidden += ("latency",)
    shown = [one for one in COLUMNS if one not in hidden and getattr(result, one) is not None]
    table = [["", "inputs", *(COLUMNS[one] for one in shown)]]
    for name, row in rows:
        figures = (getattr(row, one) for one in shown)
        words = ("" if figure is None else figure.in_words() for figure in figures)
        table.append([name, str(row.n), *words])
    return table


def as_table(result: Any) -> str:
    """An `Evaluation` as text: a table, and its notes."""
    rows = _rows(result)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for name, *cells in rows
    )
    return "\n".join([*lines, *result.notes])


def as_html(result: Any) -> str:
    """An `Evaluation` as a table for notebooks, and its notes."""
    return html_table(_rows(result), result.notes)


def decisions_html(decisions: Any) -> str:
    """The first of the `Decisions` as a table for notebooks, and their notes."""
    names = decisions.class_names or list(map(str, range(decisions.sets.shape[1])))
    found: Iterator[tuple[Any, str]]
    few = (decisions[row] for row in range(min(len(decisions), MOST_ROWS)))
    rows: list[Sequence[object]] = [("input", "stop time", "classes")]
    if decisions.has_classes:
        found = (
            (one, ", ".join(one.names or (names[label] for label in one.classes))) for one in few
        )
    elif decisions.lower is not None:
        rows = [("input", "stop time", "interval")]
        found = ((one, f"{one.lower:.4g} to {one.upper:.4g}") for one in few)
    else:
        rows = [("input", "stop time", "answered")]
        found = ((one, "yes" if one.answered else "no") for one in few)
    rows += [(one.row, one.time, answer) for one, answer in found]
    return html_table(rows, (f"{len(decisions)} inputs", *decisions.notes))


def html_table(rows: Iterable[Sequence[object]], notes: Iterable[str]) -> str:
    """Rows of cells as a table, whose first row names the columns; a paragraph for each note."""
    kinds = chain(("th",), repeat("td"))
    cells = (
        "".join(f"<{kind}>{escape(str(cell))}</{kind}>" for cell in row)
        for kind, row in zip(kinds, rows, strict=False)
    )
    table = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{table}</table>" + "".join(f"<p>{escape(note)}</p>" for note in notes)


def few_times(result: Any) -> Iterator[Any]:
    """The groups of stopping times. Where they are many, neighbours are joined.

    The last is never joined, because its answers may be larger.
    """
    *early, last = result.by_stop_time
    step = max(1, -(-len(early) // (MOST_ROWS - 1)))
    for part in (*(early[start : start + step] for start in range(0, len(early), step)), [last]):
        ends = dict.fromkeys((f"{part[0].key:g}", f"{part[-1].key:g}"))
        yield replace(last.of(part, result.confidence), name=" to ".join(ends))


def filled_columns(table: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """A table whose first row names the columns, without the columns that are empty below."""
    filled = [name for name in range(len(table[0])) if any(row[name] for row in table[1:])]
    return [tuple(row[name] for name in filled) for row in table]
