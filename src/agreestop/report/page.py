"""The report as one HTML file that loads nothing: style, figures and pictures are inside it.

write_report(report, folder)    folder/report.html, and the figures beside it as PNG and SVG
verdict_in_words(section)       the same verdict in a line or two, for a terminal
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from agreestop.common.files import atomic_writer
from agreestop.decide.decisions import Estimate

from .contents import Example, Report, Section
from .figures import Panel, Style, breakdown_panels, coverage_and_latency_panels, draw_breakdown, draw_coverage_and_latency, styles_of
from .inline import event_frame, inline_svg, on_page
from .verdict import Verdict, interval, promise_of

PAPER = "https://doi.org/10.3390/e26020126"
SPACE = "\N{NO-BREAK SPACE}"
NUMERALS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class Written:
    """The page and the figures beside it."""

    page: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class _Picture:
    """A panel as it stands in the page."""

    heading: str
    svg: Markup


@dataclass(frozen=True)
class _Bar:
    """A mean stopping time as a bar of the verdict."""

    name: str
    detail: str
    share: Estimate
    kind: str
    earlier: Estimate | None = None


@dataclass(frozen=True, eq=False)
class _Part:
    """A section with what is drawn of it."""

    section: Section
    bars: Sequence[_Bar]
    reliability: Sequence[_Picture]
    breakdown: Sequence[_Picture]
    styles: Sequence[Style]


def write_report(report: Report, folder: Path) -> Written:
    """Write `report.html` and its figures to a folder that is there."""
    figures: list[Path] = []
    for section in report.sections:
        headline, ending = section.verdict.headline, f"-{section.name}" if section.name else ""
        title = ", ".join(dict.fromkeys((report.name, *([f"{section.name} ensemble"] if section.name else []), report.kind)))
        figures += draw_coverage_and_latency(section.records, folder, title, f"coverage-and-latency{ending}")
        by = f"coverage-by-time-and-class{ending}"
        figures += draw_breakdown(section.breakdown, headline.target, folder, f"{title}: {headline.label}", by)
    page = folder / "report.html"
    with atomic_writer(page) as stream:
        stream.write(render_page(report).encode())
    return Written(page, tuple(figures))


def render_page(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("agreestop", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "give_or_take": give_or_take, "number": number, "numeral": numeral, "times": _times}
    environment.globals |= {
        "promise_of": promise_of,
        "interval": interval,
        "frames": _frames,
        "on_page": on_page,
        "chips_of": _chips,
        "stop_step": _stop_step,
        "says_little": says_little,
    }
    parts = [_part(section, f"s{place}") for place, section in enumerate(report.sections)]
    return environment.get_template("page.html.j2").render(report=report, parts=parts, paper=PAPER)


def verdict_in_words(section: Section) -> list[str]:
    """The verdict for a terminal, each line at most 80 columns wide."""
    verdict, headline = section.verdict, section.verdict.headline
    coverage, kept = interval(headline.coverage, headline.coverage_se), "kept" if verdict.kept else "NOT kept"
    first = f"{kept}, {percent(coverage)}{give_or_take(coverage)} of at least {percent(headline.target, 0)}, with {headline.label}"
    second = f"  stops at {percent(verdict.share_of_horizon(headline))} of T"
    if verdict.paper is not None:
        second += f", {percent(verdict.paper.earlier, 0)} before the paper's best"
    if headline.energy is not None:
        second += f"; {percent(1 - headline.energy, 0)} of energy saved"
    lines = [f"{section.name or 'promise'}: {first}", second]
    if says_little(section):
        named = f"{number(headline.set_size, 1)} of {len(section.classes)}"
        lines.append(f"  its answers name {named} classes: these members tell little apart")
    return [line.replace(SPACE, " ") for line in lines]


def says_little(section: Section) -> bool:
    """Whether an answer names more than half of the classes on average: a promise kept by saying nothing."""
    return section.verdict.headline.set_size > len(section.classes) / 2


def percent(value: float, digits: int = 1) -> str:
    """A share in per cent."""
    return f"{100 * value:.{digits}f}{SPACE}%"


def give_or_take(estimate: Estimate, digits: int = 1) -> str:
    """Half an interval in per cent, where it is known."""
    half = (estimate.high - estimate.low) / 2
    return "" if math.isnan(half) else f"{SPACE}±{SPACE}{100 * half:.{digits}f}"


def number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}"


def numeral(value: int) -> str:
    """A small number as a word."""
    return NUMERALS[value] if value < len(NUMERALS) else str(value)


def _times(checkpoints: Sequence[float]) -> str:
    """Checkpoints in words: how many, and where they are few, which."""
    if len(checkpoints) > 8:
        return f"{len(checkpoints)} checkpoints"
    return f"{len(checkpoints)} checkpoint{'s' * (len(checkpoints) > 1)}: {', '.join(f'{time:g}' for time in checkpoints)}"


def _stop_step(verdict: Verdict) -> float:
    return verdict.headline.latency * verdict.headline.checkpoints[-1]


def _part(section: Section, prefix: str) -> _Part:
    reliability = coverage_and_latency_panels(section.records)
    breakdown = breakdown_panels(section.breakdown, section.verdict.headline.target)
    return _Part(
        section=section,
        bars=_bars(section.verdict),
        reliability=[_picture(panel, f"{prefix}r{place}") for place, panel in enumerate(reliability)],
        breakdown=[_picture(panel, f"{prefix}b{place}") for place, panel in enumerate(breakdown)],
        styles=styles_of(section.records),
    )


def _picture(panel: Panel, prefix: str) -> _Picture:
    return _Picture(panel.heading, Markup(inline_svg(panel.figure, prefix, panel.words)))


def _bars(verdict: Verdict) -> list[_Bar]:
    """Who stops when, the earliest first."""
    headline, share = verdict.headline, verdict.share_of_horizon
    bars = [_Bar("This rule", headline.label, share(headline), "headline")]
    if verdict.alone is not None:
        bars.append(_Bar("One member", "the same rule, the first member alone", share(verdict.alone.other), "ours", verdict.alone.earlier))
    if verdict.same_checkpoints is not None:
        same = verdict.same_checkpoints
        bars.append(_Bar("Ours, the paper's checkpoints", same.label, share(same), "ours"))
    if verdict.paper is not None:
        other = verdict.paper.other
        bars.append(_Bar("The paper's best", f"{other.label}, {_times(other.checkpoints)}", share(other), "other", verdict.paper.earlier))
    whole = share(headline)
    earlier = Estimate(1 - whole, 1 - whole.high, 1 - whole.low, whole.se)
    bars.append(_Bar("Running to T", "no early stop", Estimate(1.0, 1.0, 1.0, 0.0), "other", earlier))
    return sorted(bars, key=lambda bar: (bar.share, bar.kind != "headline"))


def _frames(example: Example) -> list[str]:
    """The example's events so far at each moment, all on the scale of the last; then all its events."""
    most = int(example.moments[-1].events.sum(axis=0).max())
    whole = event_frame(example.all_events, int(example.all_events.sum(axis=0).max()))
    return [*(event_frame(moment.events, most) for moment in example.moments), whole]


def _chips(classes: Sequence[str]) -> list[str]:
    """What stands on the chip of each class: its name where all are short, else its number."""
    if max(len(name) for name in classes) <= 2:
        return list(classes)
    return [str(place + 1) for place in range(len(classes))]
