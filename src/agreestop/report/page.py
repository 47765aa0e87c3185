"""The report as one HTML file that contains its style, figures and pictures and loads nothing.

write_report(report, folder)    folder/report.html, and the figures beside it as PNG and SVG
summary_in_words(section)       the summary in two or three lines, for a terminal
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from agreestop.common import atomic_writer
from agreestop.decide.decisions import Estimate

from .contents import Example, Report, Section
from .figures import Panel, breakdown_panels, coverage_and_latency_panels, save_panels, styles_of
from .inline import inline_svg, input_picture, on_page
from .summary import EnsembleSummary, interval, promise_of

PAPER = "https://doi.org/10.3390/e26020126"
SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Written:
    """The page and the figures beside it."""

    page: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class _Picture:
    """A panel as an element of the page."""

    heading: str
    svg: Markup


@dataclass(frozen=True)
class _Bar:
    """A mean stopping time as a bar of the summary."""

    name: str
    detail: str
    share: Estimate
    kind: str
    earlier: Estimate | None = None


def write_report(report: Report, folder: Path) -> Written:
    """Write `report.html` and its figures to an existing folder."""
    figures: list[Path] = []
    for section in report.sections:
        headline, ending = section.summary.headline, f"-{section.name}" if section.name else ""
        title = ", ".join(dict.fromkeys((report.name, *([f"{section.name} ensemble"] if section.name else []), report.kind)))
        figures += save_panels(coverage_and_latency_panels(section.records), folder, title, f"coverage-and-latency{ending}")
        groups = breakdown_panels(section.breakdown, headline.target)
        figures += save_panels(groups, folder, f"{title}: {headline.label}", f"coverage-by-time-and-class{ending}")
    page = folder / "report.html"
    with atomic_writer(page) as stream:
        stream.write(render_page(report).encode())
    return Written(page, tuple(figures))


def render_page(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("agreestop", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "give_or_take": give_or_take, "number": number, "times": _times}
    helpers = (promise_of, interval, on_page, styles_of, says_little, bars_of, reliability_of, groups_of, frames_of, chips_of)
    environment.globals |= {helper.__name__: helper for helper in helpers}
    return environment.get_template("page.html.j2").render(report=report, paper=PAPER)


def summary_in_words(section: Section) -> list[str]:
    """The summary for a terminal, in lines of at most 80 columns."""
    summary, headline = section.summary, section.summary.headline
    coverage, kept = interval(headline.coverage, headline.coverage_se), "kept" if summary.kept else "NOT kept"
    first = f"{kept}, {percent(coverage)}{give_or_take(coverage)} of at least {percent(headline.target, 0)}, with {headline.label}"
    second = f"  stops at {percent(summary.share_of_horizon(headline))} of T"
    if summary.paper is not None:
        second += f", {percent(summary.paper.earlier, 0)} before the paper's best"
    if headline.energy is not None:
        second += f"; {percent(1 - headline.energy, 0)} of energy saved"
    lines = [f"{section.name or 'promise'}: {first}", second]
    if says_little(section):
        named = f"{number(headline.set_size, 1)} of {len(section.classes)}"
        lines.append(f"  its answers name {named} classes: these members tell little apart")
    return [line.replace(SPACE, " ") for line in lines]


def says_little(section: Section) -> bool:
    """Whether an answer names more than half of the classes on average; such a promise is easy to keep."""
    return section.summary.headline.set_size > len(section.classes) / 2


def percent(value: float, digits: int = 1) -> str:
    """A share in per cent."""
    return f"{100 * value:.{digits}f}{SPACE}%"


def give_or_take(estimate: Estimate, digits: int = 1) -> str:
    """Half an interval in per cent, where it is known."""
    half = (estimate.high - estimate.low) / 2
    return "" if math.isnan(half) else f"{SPACE}±{SPACE}{100 * half:.{digits}f}"


def number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}"


def _times(checkpoints: Sequence[float]) -> str:
    """Checkpoints in words: their number, and the times themselves where they are few."""
    if len(checkpoints) > 8:
        return f"{len(checkpoints)} checkpoints"
    return f"{len(checkpoints)} checkpoint{'s' * (len(checkpoints) > 1)}: {', '.join(f'{time:g}' for time in checkpoints)}"


def reliability_of(section: Section, prefix: str) -> list[_Picture]:
    """Coverage, latency and set size of every rule."""
    return _pictures(coverage_and_latency_panels(section.records), prefix)


def groups_of(section: Section, prefix: str) -> list[_Picture]:
    """Coverage of the headline rule by stopping time and by class."""
    return _pictures(breakdown_panels(section.breakdown, section.summary.headline.target), prefix)


def _pictures(panels: Sequence[Panel], prefix: str) -> list[_Picture]:
    """The panels as elements of the page; ids in them begin with the prefix."""
    return [_Picture(panel.heading, Markup(inline_svg(panel.figure(), f"{prefix}{i}", panel.words))) for i, panel in enumerate(panels)]


def bars_of(summary: EnsembleSummary) -> list[_Bar]:
    """The mean stopping times, the earliest first."""
    headline, share = summary.headline, summary.share_of_horizon
    bars = [_Bar("This rule", headline.label, share(headline), "headline")]
    if (one := summary.one_member) is not None:
        bars.append(_Bar("One member", "the same rule, only the first member", share(one.other), "ours", one.earlier))
    if summary.same_checkpoints is not None:
        same = summary.same_checkpoints
        bars.append(_Bar("Ours, the paper's checkpoints", same.label, share(same), "ours"))
    if summary.paper is not None:
        other = summary.paper.other
        bars.append(_Bar("The paper's best", f"{other.label}, {_times(other.checkpoints)}", share(other), "other", summary.paper.earlier))
    whole = share(headline)
    earlier = Estimate(1 - whole, 1 - whole.high, 1 - whole.low, whole.se)
    bars.append(_Bar("Running to T", "no early stop", Estimate(1.0, 1.0, 1.0, 0.0), "other", earlier))
    return sorted(bars, key=lambda bar: (bar.share, bar.kind != "headline"))


def frames_of(example: Example) -> list[str]:
    """Pictures of the example at each moment, all on the scale of the last, and then of the whole input."""
    most = float(example.moments[-1].picture.sum(axis=0).max())
    whole = input_picture(example.whole, float(example.whole.sum(axis=0).max()))
    return [*(input_picture(moment.picture, most) for moment in example.moments), whole]


def chips_of(classes: Sequence[str]) -> list[str]:
    """The text on the chip of each class: its name where all names are short, else its number."""
    if max(len(name) for name in classes) <= 2:
        return list(classes)
    return [str(label + 1) for label in range(len(classes))]
