"""`agreestop evaluate`: how often the answers of a rule hold the label, and how early they come."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule, load_rule
from agreestop.decide.decisions import Evaluation, Group
from agreestop.decide.decisions import evaluate as evaluate_decisions
from agreestop.decide.estimates import Estimate
from agreestop.decide.levels import as_target, in_words

from .calibrate import labelled_scores, read_lines
from .console import errors_name_options, guarantee_in_words, never_stops, say, show
from .decide import AnyEngine, AnyMembers, RuleFile, class_names, say_unchecked

MOST_ROWS = 8


def evaluate(
    rule: RuleFile,
    scores: Annotated[Path, typer.Argument(help="Score file with labels of inputs that were used neither for tuning nor for calibration.")],
    groups: Annotated[
        Path | None, typer.Option(help="Text file with the group of each input, one on a line: coverage by group, for any rule.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    any_engine: AnyEngine = False,
    any_members: AnyMembers = False,
) -> None:
    """Decide for every input of a labelled score file and compare with the labels."""
    calibrated = load_rule(rule)
    data = labelled_scores(scores, "evaluation", calibrated.checkpoints)
    if calibrated.saw(data):
        raise InputError(f"{scores} holds the rows that {rule} was calibrated on: evaluate on other rows.")
    inside = None if groups is None else read_lines(groups, len(data))
    promised_by_group = calibrated.group_names is not None
    with errors_name_options():
        known = inside if promised_by_group else None
        decisions = calibrated.decide(data, groups=known, any_engine=any_engine, any_members=any_members)
    if decisions.reuse:
        raise InputError(f"{scores}: {decisions.reuse}")
    result = evaluate_decisions(decisions, data, groups=None if promised_by_group else inside)
    say_unchecked(calibrated, data.engine, data.ensemble_digest)
    for note in result.notes:
        say(note)
    names = class_names(calibrated, data.classes)
    if as_json:
        typer.echo(json.dumps(_record(result, names, calibrated), ensure_ascii=False, indent=1))
        return
    promise = _promise_in_words(calibrated)
    show(f"{guarantee_in_words(calibrated)} {never_stops(calibrated)}".rstrip())
    about_coverage = calibrated.final or result.cost is not None
    show(_table(f"All inputs: {promise} is promised, nothing about coverage" if about_coverage else "All inputs", "", [("", result)]))
    show(_answers_in_words(result))
    if words := _draw_in_words(calibrated, result):
        show(words)
    nothing = ", without a promise"
    promised = nothing if calibrated.adapted else f", {promise} is promised for each"
    by_class = getattr(calibrated.rule, "class_conditional", False)
    if result.by_block:
        show(_table(f"By the time at which an input first looked ready{promised}", "block", [(one.name, one) for one in result.by_block]))
    if result.by_group:
        words = promised if promised_by_group else nothing
        show(_table(f"By group{words}", "group", [(one.name, one) for one in result.by_group]))
    if getattr(calibrated.rule, "accumulated", False):
        show(_table(f"Answers that came by a time{promised}", "by", [(f"{one.key:g}", one) for one in _few(result.answered_by)]))
    show(_table(f"By stopping time{nothing}", "time", _few_groups(result)))
    if by_class and result.by_final_class:
        show(_table(f"By final class{promised}", "class", [(names[int(group.key)], group) for group in result.by_final_class]))
    words = promised if by_class and not calibrated.final else nothing
    show(_table(f"By true class{words}", "class", [(names[int(group.key)], group) for group in result.by_class]))


def _promise_in_words(calibrated: CalibratedRule) -> str:
    """What is promised, in a few words that the tables repeat: 0.9 is a coverage."""
    rule = calibrated.rule
    if (max_loss := getattr(rule, "max_loss", None)) is not None:
        return f"a mean cost of at most {in_words(Fraction(max_loss))}{' against the final class' if calibrated.final else ''}"
    target = getattr(rule, "target", None)
    level = "" if target is None else in_words(as_target(target))
    return f"agreement with the final class of {level}" if calibrated.final else level


def _answers_in_words(result: Evaluation) -> str:
    """The accuracy of the best class, the share of answers of one class, and the work, where these are known."""
    known = []
    if result.accuracy is not None:
        known.append(f"The best class is right for {_interval(result.accuracy)} of the inputs.")
    if result.singles is not None:
        known.append(f"{_interval(result.singles)} of the answers are one class.")
    if result.work is not None:
        known.append(f"An input takes {_interval(result.work, 1)} member-steps.")
    return " ".join(known)


def _draw_in_words(calibrated: CalibratedRule, result: Evaluation) -> str:
    """For rules with one threshold: how far chance in the choice of calibration examples moves coverage, and how often as low as here."""
    if result.draw_range is None:
        return ""
    low, high = result.draw_range
    words = (
        f"The {calibrated.n} calibration examples were chosen at random. This alone can move the coverage of {result.n} inputs between "
        f"{low:.3f} and {high:.3f} (95 % of choices); where scores tie it may be higher."
    )
    target, delta = (getattr(calibrated.rule, name) for name in ("target", "delta"))
    if result.coverage.high >= target or delta is not None or result.coverage < low:  # a note has said that this is not chance
        return words
    return (
        f"{words} Coverage is under {in_words(target)} here: the promise is an average over such choices, and up to "
        f"{result.draws_this_low:.0%} of them end this low. Calibrate with more examples, or with --delta, to make that rarer."
    )


def _few(groups: Sequence[Group]) -> Sequence[Group]:
    """About MOST_ROWS of the groups: some that are spread evenly up to the last, and the worst."""
    worst = min(groups, key=lambda group: group.coverage if group.agreement is None else group.agreement)
    step = -(-len(groups) // MOST_ROWS)
    return [group for index, group in enumerate(groups, 1 - len(groups)) if index % step == 0 or group is worst]


def _few_groups(result: Evaluation) -> list[tuple[str, Evaluation | Group]]:
    """Groups of stopping times. Where there are many, neighbours are joined until each group has about an eighth of the inputs."""
    groups = result.by_stop_time
    least = result.n / MOST_ROWS if len(groups) > MOST_ROWS else 0
    rows: list[tuple[str, Evaluation | Group]] = []
    waiting: list[Group] = []
    for group in groups:
        waiting.append(group)
        if sum(one.n for one in waiting) >= least or group is groups[-1]:
            first, last = waiting[0].key, waiting[-1].key
            rows.append((f"{first:g}" if first == last else f"{first:g}-{last:g}", Group.of(waiting)))
            waiting = []
    return rows


def _table(title: str, key: str, rows: list[tuple[str, Evaluation | Group]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    promised = [name for name in ("agreement", "cost") if any(getattr(row, name) is not None for _, row in rows)]
    for name in (*((key,) if key else ()), "inputs", *promised, "coverage", "latency / T", "set size"):
        table.add_column(name, justify="left" if name == key else "right")
    for name, row in rows:
        latency = f"{row.normalized_latency:.3f}" if key else _interval(row.normalized_latency)
        size = f"{row.set_size:.2f}" if key else _interval(row.set_size, 2)
        shown = [_interval(getattr(row, name)) for name in (*promised, "coverage")]
        table.add_row(*((name,) if key else ()), str(row.n), *shown, latency, size)
    return table


def _interval(value: Estimate, digits: int = 3) -> str:
    if value.low != value.low:  # a single input has no interval
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _record(result: Evaluation, names: tuple[str, ...], calibrated: CalibratedRule) -> dict[str, object]:
    singles = {name: value for name in ("accuracy", "singles", "work") if (value := getattr(result, name, None)) is not None}
    parts = {"block": result.by_block, "group": result.by_group, "final_class": result.by_final_class}
    accumulated = getattr(calibrated.rule, "accumulated", False)
    return {
        "guarantee": calibrated.guarantee,
        **_figures(result),
        **{name: float(value) for name, value in singles.items()},
        **{f"{name}_interval": [value.low, value.high] for name, value in singles.items()},
        **{f"by_{key}": [{key: one.name, **_figures(one)} for one in groups] for key, groups in parts.items() if groups is not None},
        **({"answered_by": [{"time": one.key, **_figures(one)} for one in result.answered_by]} if accumulated else {}),
        "draw_range": result.draw_range,
        "notes": result.notes,
        "by_stop_time": [{"time": group.key, **_figures(group)} for group in result.by_stop_time],
        "by_class": [{"class": names[int(group.key)], **_figures(group)} for group in result.by_class],
    }


def _figures(row: Evaluation | Group) -> dict[str, object]:
    figures: dict[str, object] = {"n": row.n}
    estimates = {"coverage": row.coverage, "cost": row.cost, "agreement": row.agreement}
    estimates |= {"latency": row.normalized_latency, "set_size": row.set_size}
    for name, value in estimates.items():
        if value is None:
            continue
        figures[name] = float(value)
        known = value.se == value.se
        figures[f"{name}_interval"] = [value.low, value.high] if known else None
        figures[f"{name}_se"] = value.se if known else None
    return figures
