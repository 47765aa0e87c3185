"""The figure of the benchmark: above, every system at every workload; below, how the cost of ours
grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agreestop.report.figures import save_figure

from .records import OURS, BenchRecord

WORKLOADS = (("decide-full", "decide-early", "decide-joining"), ("stream-step",), ("train",))
TITLES = ("Decisions of six members", "One live input, six members", "Training six members")
UNITS = {
    "decisions/s": "decisions per second",
    "µs/step": "µs per step (less is faster)",
    "inputs/s": "inputs per second",
} | {
    "µs/input": "µs per input (less is faster)",
    "session-steps/s": "session-steps per second",
}
LIVE = (
    (("network", "push"), "A step", {"network": "the network", "push": "with the rule"}),
    (
        ("steps", "input"),
        "An input",
        {"steps": "the network", "input": "with the rule,\nopened and decided"},
    ),
    (("batch",), "Many inputs side by side", {"batch": "a step of each\nin one call"}),
)
CURVES = (
    ("scaling-T", "steps T", "ms per batch"),
    ("scaling-K", "members K", "ms per batch"),
    ("scaling-density", "active inputs, %", "ms per batch"),
    ("memory-T", "steps T", "MiB"),
)
OUR_COLOURS = ("#0072B2", "#56B4E9", "#12395B")  # blue is ours, in every figure
PEER_COLOURS = ("#D55E00", "#E69F00", "#8C6D46", "#B4B4B4", "#CC79A7")
DEEP = (
    (("decide-full", "decide-early", "decide-joining"), "roof", "Decisions of deep members"),
    (("train",), "roof-train", "Training deep members"),
)
ROOF_LINES: tuple[dict[str, Any], ...] = (
    {"color": "black", "linestyle": "-", "linewidth": 1.2},
    {"color": "black", "linestyle": ":", "linewidth": 1.2},
)
ROOF_WORDS = {
    ("roof", "-"): "roof at T: the same convolutions alone",
    ("roof", ":"): "roof at T: their operations at the peak of a product",
    ("roof-train", "-"): "roof: the bytes of a step at the speed of a copy",
    ("roof-train", ":"): "roof: its operations at the peak of a product",
}
PRODUCT_ROOFS = (
    ("--", "roof at T: products in float32"),
    (":", "roof at T: in two parts of float16"),
    ("-", "roof at T: those of the inputs that spike"),
)
FIRST_STEP = 1 / 80
LABEL: dict[str, Any] = {
    "boxstyle": "square,pad=0.1",
    "facecolor": "white",
    "edgecolor": "none",
    "alpha": 0.85,
}
SMALL: dict[str, Any] = {
    "textcoords": "offset points",
    "fontsize": 7.5,
    "color": "#777777",
    "ha": "right",
    "va": "bottom",
}


def title_of(header: dict[str, Any]) -> str:
    """The title of the figure of `python -m benchmarks`."""
    machine, plan = header["machine"], header["plan"]
    where = (
        f"{machine['cores']} cores of {machine['cpu']}"
        if machine["device"] == "cpu"
        else machine["device"]
    )
    sizes = f"{math.prod(plan['shape'])} → {plan['hidden']} → {plan['classes']}"
    steps = f"T = {plan['steps']}, K = {plan['members']}"
    return f"{sizes}, {steps}, float32 on {where}"


def draw_benchmark(
    records: Sequence[BenchRecord], folder: Path, title: str, name: str
) -> list[Path]:
    """Write the figure as PNG and SVG; the paths written."""
    curves = [[record for record in records if record.work == work] for work, _, _ in CURVES]
    figure = Figure(figsize=(14, 8.2 if any(curves) else 5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.35, 1)) if any(curves) else [figure]
    for axes, names, heading in zip(
        parts[0].subplots(1, 3, width_ratios=(1.6, 1, 1.5)), WORKLOADS, TITLES, strict=True
    ):
        bars = [record for record in records if record.work in names]
        _bars(axes, bars)
        if names == WORKLOADS[0]:
            _product_roofs(axes, bars, [record for record in records if record.work == "roof"])
        axes.set_title(heading)
    if any(curves):
        for axes, points, (_, xlabel, ylabel) in zip(
            parts[1].subplots(1, 4), curves, CURVES, strict=True
        ):
            _curve(axes, points, xlabel, ylabel)
    figure.suptitle(title, fontsize=13)
    return save_figure(figure, folder, name)


def _product_roofs(axes: Axes, bars: Sequence[BenchRecord], roofs: Sequence[BenchRecord]) -> None:
    """A line for each roof over the groups of its inputs."""
    groups = list(dict.fromkeys((record.inputs, record.batch) for record in bars))
    for number, record in enumerate(roofs):
        over = [index for index, group in enumerate(groups) if group[0] == record.inputs]
        kind, label = PRODUCT_ROOFS[number % len(PRODUCT_ROOFS)]
        axes.hlines(
            record.median,
            over[0] - 0.45,
            over[-1] + 0.45,
            color="black",
            linewidth=1.1,
            linestyle=kind,
        )
        if number < len(PRODUCT_ROOFS):
            axes.plot([], [], color="black", linewidth=1.1, linestyle=kind, label=label)
    if roofs:
        axes.legend(
            fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2
        )


def draw_deep(records: Sequence[BenchRecord], folder: Path, title: str, name: str) -> list[Path]:
    """The figure of `python -m benchmarks deep` as PNG and SVG: decisions and training, with the
    roofs as lines over the bars.
    """
    figure = Figure(figsize=(14, 6.2), layout="constrained")
    records = meaningful(records)
    for axes, (names, roof, heading) in zip(
        figure.subplots(1, 2, width_ratios=(1.25, 1)), DEEP, strict=True
    ):
        bars = [record for record in records if record.work in names]
        stopped = [
            replace(r, system="the fastest of them, stopped when as accurate")
            if "stopped at" in r.form
            else r
            for r in bars
        ]
        _bars(axes, [replace(record, batch=None) for record in stopped])
        groups = list(dict.fromkeys(record.inputs for record in bars))
        for record in (
            record for record in records if record.work == roof and record.inputs in groups
        ):
            at, kind = (
                groups.index(record.inputs),
                ROOF_LINES[0 if "alone" in record.form or "bytes" in record.form else 1],
            )
            axes.hlines(
                record.median,
                at - 0.45,
                at + 0.45,
                **kind,
                label=None if at else ROOF_WORDS[roof, kind["linestyle"]],
            )
        axes.set_xticks(range(len(groups)), [group.replace(", K", "\nK") for group in groups])
        axes.set_title(heading)
        axes.legend(
            fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2
        )
    figure.suptitle(title, fontsize=13)
    return save_figure(figure, folder, name)


def draw_live(records: Sequence[BenchRecord], folder: Path, title: str, name: str) -> list[Path]:
    """The figure of `python -m benchmarks live` as PNG and SVG: a step, an input, and many inputs
    side by side.
    """
    figure = Figure(figsize=(14, 5.2), layout="constrained")
    for axes, (works, heading, words) in zip(
        figure.subplots(1, 3, width_ratios=(1.4, 1.4, 1)), LIVE, strict=True
    ):
        bars = []
        for record in records:
            work = record.work.removeprefix("live-")
            if work in works:
                label = f"{record.inputs.removesuffix(' neurons')}\n{words[work]}"
                bars.append(replace(record, inputs=label))
        _bars(axes, bars)
        axes.set_title(heading)
    figure.suptitle(title, fontsize=13)
    return save_figure(figure, folder, name)


def meaningful(records: Sequence[BenchRecord]) -> list[BenchRecord]:
    """All but early decisions of members whose inputs all stop at the first step: these have
    learned nothing.
    """
    idle = {
        record.inputs
        for record in records
        if record.latency is not None and record.latency <= FIRST_STEP
    }
    return [
        record
        for record in records
        if record.work not in ("decide-early", "decide-joining") or record.inputs not in idle
    ]


def _name(record: BenchRecord) -> str:
    """The name in the legend: a peer's own name, and for ours what it does."""
    return (
        record.system if record.system != OURS else f"{OURS}: {record.form.replace(' engine', '')}"
    )


def _bars(axes: Axes, records: Sequence[BenchRecord]) -> None:
    """A group for each kind of inputs and batch, and a bar for each system, on a logarithmic axis;
    ours show their ratio to the peers.
    """
    if not records:
        axes.axis("off")
        return
    groups = list(dict.fromkeys((record.inputs, record.batch) for record in records))
    names = sorted(
        dict.fromkeys(_name(record) for record in records),
        key=lambda name: not name.startswith(OURS),
    )
    mine = [name for name in names if name.startswith(OURS)]
    colours = dict(zip(mine, OUR_COLOURS, strict=False)) | dict(
        zip(names[len(mine) :], PEER_COLOURS, strict=False)
    )
    width = 0.84 / len(names)
    for at, name in enumerate(names):
        for record in (record for record in records if _name(record) == name):
            x = groups.index((record.inputs, record.batch)) + (at - (len(names) - 1) / 2) * width
            reach = [
                [max(0.0, record.median - record.low)],
                [max(0.0, record.high - record.median)],
            ]
            label = None if name in axes.get_legend_handles_labels()[1] else name
            axes.bar(
                x, record.median, 0.92 * width, color=colours.get(name, "#000000"), label=label
            )
            axes.errorbar(x, record.median, yerr=reach, color="black", linewidth=1, capsize=1.5)
            if record.times_fastest_peer is not None:
                ratio = record.times_fastest_peer
                words = f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"
                axes.annotate(
                    words,
                    (x, record.high),
                    (0, 4),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    rotation=90,  # bars are narrow, and labels side by side would touch
                    fontsize=7,
                    bbox=LABEL,
                )
    axes.set_yscale("log")
    axes.set_ylabel(UNITS[records[0].unit])
    axes.set_xticks(range(len(groups)), [_group(*group) for group in groups], fontsize=7.5)
    axes.margins(y=0.16)
    axes.legend(
        fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2
    )
    _tidy(axes, "y")


def _group(inputs: str, batch: int | None) -> str:
    return inputs if batch is None or batch == 1 else f"{inputs}\nbatch {batch}"


def _curve(axes: Axes, records: Sequence[BenchRecord], xlabel: str, ylabel: str) -> None:
    """Cost against a size, from zero. The dashed line is proportional to the size."""
    if not records:
        axes.axis("off")
        return
    scale, percent = (1 if ylabel == "MiB" else 1e3), (100 if "%" in xlabel else 1)
    sizes = [percent * (record.size or 0.0) for record in records]
    values = [scale * record.median for record in records]
    reach = [
        [scale * max(0.0, r.median - r.low) for r in records],
        [scale * max(0.0, r.high - r.median) for r in records],
    ]
    axes.errorbar(
        sizes,
        values,
        yerr=reach,
        color=OUR_COLOURS[0],
        marker="o",
        markersize=5,
        capsize=2,
        linewidth=1.6,
    )
    if ylabel != "MiB":
        axes.plot(
            [0, sizes[-1]],
            [0, values[0] * sizes[-1] / sizes[0]],
            color="#999999",
            linestyle="--",
            linewidth=1,
            zorder=0,
        )
        axes.annotate(
            "proportional", (sizes[-1], values[0] * sizes[-1] / sizes[0]), (-4, 0), **SMALL
        )
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, None), ylim=(0, 1.1 * axes.dataLim.y1))
    axes.set_title(f"{records[0].form}, batch {records[0].batch}", fontsize=9)
    _tidy(axes, "both")


def _tidy(axes: Axes, grid: Literal["both", "x", "y"]) -> None:
    axes.grid(alpha=0.25, axis=grid)
    axes.spines[["top", "right"]].set_visible(False)
