"""The figures of stored results, drawn once more: after a change of style, without measuring and
without data.

    results/bench/*.json                      `python -m benchmarks`, with deep and live
    results/figN/numbers.json, promises       `python -m paper`
    results/digits/metrics.json               coverage and latency of a run of the digits
    results/answers, people, numbers, tree    the studies of these names, and early-classification
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agreestop.common import InputError
from agreestop.report import Record
from agreestop.report.figures import coverage_and_latency_panels, save_figure, save_panels
from paper.drawing import draw_numbers as draw_paper
from paper.fronts import load_fronts
from paper.promise_drawing import draw_fronts, draw_promises
from paper.promises import load as load_promises
from paper.records import load_numbers as load_paper

from . import deep, early_classification, live, numbers, tree
from .answers import draw_answers
from .drawing import draw_benchmark, draw_deep, draw_live, title_of
from .people import PeopleRecord, draw_people
from .records import load_benchmark, load_networks

Draw = Callable[[Path], list[Path]]


def redraw(results: Path) -> list[Path]:
    """Draw every figure whose numbers are in this folder; the paths written."""
    found = [(path, draw) for pattern, draw in FIGURES.items() for path in results.glob(pattern)]
    if not found:
        raise InputError(
            f"{results} has no stored results: give the folder that has bench and fig2."
        )
    return [written for path, draw in sorted(found, key=str) for written in draw(path)]


def _records(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))["records"]


def _bench(path: Path) -> list[Path]:
    header, records = load_benchmark(path)
    return draw_benchmark(records, path.parent, title_of(header), path.stem)


def _deep(path: Path) -> list[Path]:
    header, records = load_networks(path)
    return draw_deep(records, path.parent, deep.title_of(header), path.stem)


def _live(path: Path) -> list[Path]:
    header, records = load_benchmark(path)
    return draw_live(records, path.parent, live.title_of(header), path.stem)


def _digits(path: Path) -> list[Path]:
    content = json.loads(path.read_text(encoding="utf-8"))
    records = [Record(**one) for one in content["records"]]
    written = []
    for ensemble in dict.fromkeys(one.ensemble for one in records):
        panels = coverage_and_latency_panels([one for one in records if one.ensemble == ensemble])
        title = f"{content['name']}, {ensemble} ensemble, simulated events"
        written += save_panels(panels, path.parent, title, f"coverage-and-latency-{ensemble}")
    return written


def _answers(path: Path) -> list[Path]:
    return draw_answers(json.loads(path.read_text(encoding="utf-8")), path)


def _people(path: Path) -> list[Path]:
    return draw_people([PeopleRecord(**one) for one in _records(path)], path)


def _early(path: Path) -> list[Path]:
    records = [early_classification.EarlyRecord(**one) for one in _records(path)]
    return save_figure(early_classification.draw(records), path.parent, "figure")


FIGURES: dict[str, Draw] = {
    "bench/cpu.json": _bench,
    "bench/h200.json": _bench,
    "bench/*-deep.json": _deep,
    "bench/live.json": _live,
    "fig[0-9]*/numbers.json": lambda path: draw_paper(load_paper(path), path.parent),
    "promises/numbers.json": lambda path: draw_promises(load_promises(path), path.parent),
    "promises/front.json": lambda path: draw_fronts(load_fronts(path), path.parent),
    "digits/metrics.json": _digits,
    "answers.json": _answers,
    "people.json": _people,
    "early-classification/numbers.json": _early,
    "numbers.json": lambda path: save_figure(
        numbers.draw(numbers.load_numbers(path)), path.parent, path.stem
    ),
    "tree.json": lambda path: save_figure(tree.draw(tree.load_tree(path)), path.parent, path.stem),
}
