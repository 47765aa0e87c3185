"""`agreestop evaluate`: how often the answers of a rule hold the label, and how early they come."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.common import InputError
from agreestop.common.estimates import Estimate
from agreestop.common.levels import in_words
from agreestop.decide.calibrated import CalibratedRule, load_rule
from agreestop.decide.decisions import Evaluation, Group
from agreestop.decide.decisions import evaluate as evaluate_decisions
from agreestop.decide.rule_files import kept_kind
from agreestop.decide.spotting import Spotter, load_recordings

from .console import (
    errors_name_options,
    fits,
    guarantee_in_words,
    never_stops,
    refuse_options,
    say,
    show,
)
from .decide import AnyEngine, AnyMembers, RuleFile, class_names, say_unchecked
from .spot import NOT_FOR_A_SPOTTER, OPTIONS, SPOTTER, evaluate_spotter, takes_no
from .texts import read_lines

MOST_ROWS = 8
DOUBTS = (
    "The rows may not be exchangeable with the calibration rows: were they shuffled before they "
    "were divided, are training rows among them, or are they of other people, sensors or days?"
)


def evaluate(
    context: typer.Context,
    rule: RuleFile,
    scores: Annotated[
        Path,
        typer.Argument(
            help=(
                "Score file with labels, or for a rule stop a file of risks and losses, of inputs "
                "that were used neither for tuning nor for calibration. For a spotter, recordings."
            )
        ),
    ],
    groups: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Text file with the group of each input, one on a line: coverage by group, for any "
                "rule."
            )
        ),
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the person of each input, one on a line: coverage by person."
        ),
    ] = None,
    within: Annotated[
        int | None,
        typer.Option(
            help="spotter: an alarm fewer than this many steps after an event's end finds it."
        ),
    ] = None,
    step_seconds: Annotated[
        str | None,
        typer.Option(help="spotter: the length of a step, for false alarms an hour."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    any_engine: AnyEngine = False,
    any_members: AnyMembers = False,
) -> None:
    """Decide for every input of a labelled score file and compare with the labels."""
    if kept_kind(rule) == SPOTTER:
        taken = "within", "step_seconds", "any_engine", "any_members"
        refuse_options(context, takes_no(*taken), NOT_FOR_A_SPOTTER)
        spotter, recordings = Spotter.load(rule), load_recordings(scores)
        persons = read_lines(people, len(recordings))
        allowed = {"any_engine": any_engine, "any_members": any_members}
        evaluate_spotter(spotter, recordings, within, step_seconds, persons, as_json, **allowed)
        return
    refuse_options(context, OPTIONS.__contains__, "is for a spotter: leave it out.")
    calibrated = load_rule(rule)
    data = calibrated.rule.load_labelled(scores, "evaluation", calibrated.checkpoints)
    if data.labels is not None and calibrated.saw(data):
        raise InputError(
            f"{scores} holds the rows that {rule} was calibrated on: evaluate on other rows."
        )
    inside = read_lines(groups, len(data))
    persons = read_lines(people, len(data))
    promised_by_group = calibrated.group_names is not None
    with errors_name_options():
        known = inside if promised_by_group else None
        decisions = calibrated.decide(
            data, groups=known, any_engine=any_engine, any_members=any_members
        )
    if decisions.reuse:
        raise InputError(f"{scores}: {decisions.reuse}")
    result = evaluate_decisions(
        *(decisions, data), groups=None if promised_by_group else inside, people=persons
    )
    say_unchecked(calibrated, data.engine, data.ensemble_digest)
    for note in result.notes:
        say(note)
    names = class_names(calibrated, data.classes)
    kind = "classes" if result.by_class else "numbers" if result.is_about_numbers else "risks"
    kind = "samples" if result.open_answers else kind
    table = partial(_figures_table, kind=kind)
    if as_json:
        typer.echo(json.dumps(_record(result, names, calibrated), ensure_ascii=False, indent=1))
        return
    promise = _promise_in_words(calibrated)
    show(f"{guarantee_in_words(calibrated)} {never_stops(calibrated)}".rstrip())
    title = "All inputs"
    if result.by_class and (calibrated.final or result.cost is not None):
        title += f": {promise} is promised, nothing about coverage"
    show(table(title, "", [("", result)]))
    if words := _answers_in_words(result):
        show(words)
    for words in (_verdict_in_words(calibrated, result), _draw_in_words(calibrated, result)):
        if words:
            show(words)
    nothing = ", without a promise"
    promised = nothing if calibrated.adapted else f", {promise} is promised for each"
    by_class = calibrated.rule.terms.class_conditional
    if result.by_depth:
        rows = [(f"{one.key:g}", one) for one in result.by_depth]
        show(table(f"First answer at each depth{promised}", "depth", rows))
    if result.by_block:
        show(
            table(
                f"By the time at which an input first looked ready{promised}",
                "block",
                [(one.name, one) for one in result.by_block],
            )
        )
    if result.by_group:
        words = promised if promised_by_group else nothing
        show(table(f"By group{words}", "group", [(one.name, one) for one in result.by_group]))
    if result.by_person:
        below = result.people_below
        worst = sorted(result.by_person, key=_kept)[:MOST_ROWS]
        first = "By person" if len(worst) == len(result.by_person) else "The people who miss most"
        show(table(f"{first}{nothing}", "person", [(one.name, one) for one in worst]))
        if below is not None:
            show(
                f"For {_interval(below)} of the {len(result.by_person)} people the promise is kept "
                f"less often than the target, {decisions.target:g}."
            )
    if calibrated.rule.terms.accumulated:
        show(
            table(
                f"Answers that came by a time{promised}",
                "by",
                [(f"{one.key:g}", one) for one in _few(result.answered_by)],
            )
        )
    show(table(f"By stopping time{nothing}", "time", _few_groups(result)))
    if by_class and result.by_final_class:
        show(
            table(
                f"By final class{promised}",
                "class",
                [(names[int(group.key)], group) for group in result.by_final_class],
            )
        )
    words = promised if by_class and not calibrated.final else nothing
    if not result.by_class:
        return
    show(
        table(
            f"By true class{words}",
            "class",
            [(names[int(group.key)], group) for group in result.by_class],
        )
    )


def _promise_in_words(calibrated: CalibratedRule) -> str:
    """What is promised, in a few words that the tables repeat: 0.9 is a coverage."""
    rule = calibrated.rule
    if (max_loss := rule.terms.max_loss) is not None:
        against = " against the final class" if calibrated.final else ""
        return f"a mean cost of at most {in_words(max_loss)}{against}"
    target = rule.terms.target
    level = "" if target is None else in_words(target)
    return f"agreement with the final class of {level}" if calibrated.final else level


def _answers_in_words(result: Evaluation) -> str:
    """The accuracy of the best class, the share of answers of one class, and the work, where
    these are known.
    """
    known = []
    if result.accuracy is not None:
        what = "answer" if result.open_answers else "best class"
        known.append(f"The {what} is right for {_interval(result.accuracy)} of the inputs.")
    if result.singles is not None:
        known.append(f"{_interval(result.singles)} of the answers are one class.")
    if result.work is not None:
        known.append(
            f"An input takes {_interval(result.work, 1)} member-steps, its steps times the "
            "members that ran."
        )
    return " ".join(known)


def _verdict_in_words(calibrated: CalibratedRule, result: Evaluation) -> str:
    """Whether the result is what the promise allows; if not, what may be wrong with the rows."""
    terms = calibrated.rule.terms
    target, measured, name = terms.target, _kept(result), "coverage"
    if calibrated.final and result.agreement is not None:
        name = "agreement with the final class"
    if terms.abstains:
        name = "answered right, or not answered,"
    if terms.max_loss is not None and result.cost is not None:
        over = result.cost.low > terms.max_loss
        words, least = f"Promised cost {in_words(terms.max_loss)}: cost {result.cost:.3f}", 0.0
        kept = result.cost <= terms.max_loss
    elif target is not None:
        least = 0.0 if result.draw_range is None else result.draw_range[0]
        words = f"Target {in_words(target)}: {name} {measured:.3f}"
        kept, over = measured >= target, measured.high < target
    else:
        return ""
    if least:
        over = measured < least
        if not over:
            assert target is not None and result.draw_range is not None  # as `least` is above 0
            high = result.draw_range[1]
            verdict = "kept" if measured >= target else "not contradicted"
            where = "lies in" if measured <= high else "is above"
            return (
                f"Target {in_words(target)}: {verdict}. {name[0].upper()}{name[1:]} "
                f"{measured:.3f} {where} the range that the choice of calibration examples "
                "explains."
            )
        return f"{words} is lower than the calibration draw allows. {DOUBTS}"
    if kept:
        return f"{words} is within the promise."
    if not over:
        return f"{words} misses it by no more than chance in {result.n} inputs explains."
    return (
        f"{words} misses it by more than chance in {result.n} inputs explains. The promise is an "
        f"average over calibration draws, and this may be a low one. {DOUBTS}"
    )


def _draw_in_words(calibrated: CalibratedRule, result: Evaluation) -> str:
    """For rules with one threshold: how far chance in the choice of calibration examples moves
    coverage, and how often as low as here.
    """
    if result.draw_range is None:
        return ""
    low, high = result.draw_range
    words = (
        f"The {calibrated.n} calibration examples were chosen at random. This alone can move the "
        f"coverage of {result.n} inputs between "
        f"{low:.3f} and {high:.3f} (95 % of choices); where scores tie it may be higher."
    )
    terms = calibrated.rule.terms
    target, delta = terms.target, terms.delta
    assert target is not None  # one order statistic is the threshold
    # a note has said that this is not chance
    kept = _kept(result)
    if kept.high >= target or delta is not None or kept < low:
        return words
    return (
        f"{words} Coverage is under {in_words(target)} here: the promise is an average over such "
        "choices, and up to "
        f"{result.draws_this_low:.0%} of them end this low. Calibrate with more examples, or with "
        "--delta, to make that rarer."
    )


def _few(groups: Sequence[Group]) -> Sequence[Group]:
    """About MOST_ROWS of the groups: some that are spread evenly up to the last, and the worst."""
    worst = min(groups, key=_kept)
    step = -(-len(groups) // MOST_ROWS)
    return [
        group
        for index, group in enumerate(groups, 1 - len(groups))
        if index % step == 0 or group is worst
    ]


def _few_groups(result: Evaluation) -> list[tuple[str, Evaluation | Group]]:
    """Groups of stopping times.

    Where there are many, neighbours are joined until each group has about an eighth of the inputs.
    """
    groups = result.by_stop_time
    least = result.n / MOST_ROWS if len(groups) > MOST_ROWS else 0
    rows: list[tuple[str, Evaluation | Group]] = []
    waiting: list[Group] = []
    for group in groups:
        waiting.append(group)
        if sum(one.n for one in waiting) >= least or group is groups[-1]:
            first, last = waiting[0].key, waiting[-1].key
            rows.append(
                (f"{first:g}" if first == last else f"{first:g}-{last:g}", Group.of(waiting))
            )
            waiting = []
    return rows


def _figures_table(
    title: str, key: str, rows: Sequence[tuple[str, Evaluation | Group]], kind: str = "classes"
) -> Table:
    """Figures of groups; for risks and abstentions, what was answered and wrong, not coverage.

    Where the terminal is too narrow for a line, an interval stands below its number.
    """
    table = _figures_of(title, key, rows, kind, " ")
    return table if fits(table) else _figures_of(title, key, rows, kind, "\n")


def _figures_of(
    title: str, key: str, rows: Sequence[tuple[str, Evaluation | Group]], kind: str, between: str
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    promised = [
        name
        for name in ("agreement", "cost")
        if any(getattr(row, name) is not None for _, row in rows)
    ]
    abstains = any(row.answered is not None and row.answered < 1 for _, row in rows)
    own = kind in ("risks", "samples") or abstains
    samples = kind == "samples"
    shares = [*promised, *(("wrong",) if own else ("coverage",))]
    if own and (abstains or not samples):
        shares.insert(len(promised), "answered")
    size = {"classes": "set size", "numbers": "width"}.get(kind)
    time = ("latency", "samples") if samples else ("normalized_latency", "latency / T")
    heads = [*((key,) if key else ()), "inputs", *shares, time[1]]
    for name in (*heads, *((size,) if size else ())):
        table.add_column(name, justify="left" if name == key else "right")
    for name, row in rows:
        waited = getattr(row, time[0])
        latency = f"{waited:.3f}" if key else _interval(waited, between=between)
        shown_size = row.width if kind == "numbers" else row.set_size
        cell = ""
        if shown_size is not None:
            cell = f"{shown_size:.2f}" if key else _interval(shown_size, 2, between)
        shown = [
            _interval(getattr(row, name), 1 if name == "cost" and samples else 3, between)
            for name in shares
        ]
        cells = [*((name,) if key else ()), str(row.n), *shown, latency]
        table.add_row(*cells, *((cell,) if size else ()))
    return table


def _kept(row: Evaluation | Group) -> Estimate:
    return row.coverage if row.kept is None else row.kept


def _interval(value: Estimate, digits: int = 3, between: str = " ") -> str:
    return value.in_words(f".{digits}f").replace(" [", f"{between}[")


def _record(
    result: Evaluation, names: tuple[str, ...], calibrated: CalibratedRule
) -> dict[str, object]:
    singles = {
        name: value
        for name in ("accuracy", "singles", "work", "people_below")
        if (value := getattr(result, name, None)) is not None
    }
    parts = {
        "block": result.by_block,
        "group": result.by_group,
        "final_class": result.by_final_class,
        "person": result.by_person,
    }
    accumulated = calibrated.rule.terms.accumulated
    target = calibrated.rule.terms.target
    return {
        "guarantee": calibrated.guarantee,
        "target": None if target is None else float(target),
        **_figures(result),
        **{name: float(value) for name, value in singles.items()},
        **{f"{name}_interval": [value.low, value.high] for name, value in singles.items()},
        **{
            f"by_{key}": [{key: one.name, **_figures(one)} for one in groups]
            for key, groups in parts.items()
            if groups is not None
        },
        **(
            {"answered_by": [{"time": one.key, **_figures(one)} for one in result.answered_by]}
            if accumulated
            else {}
        ),
        **(
            {}
            if result.by_depth is None
            else {"by_depth": [{"depth": int(one.key), **_figures(one)} for one in result.by_depth]}
        ),
        "draw_range": result.draw_range,
        "notes": result.notes,
        "by_stop_time": [{"time": group.key, **_figures(group)} for group in result.by_stop_time],
        "by_class": [
            {"class": names[int(group.key)], **_figures(group)} for group in result.by_class
        ],
    }


def _figures(row: Evaluation | Group) -> dict[str, object]:
    figures: dict[str, object] = {"n": row.n}
    estimates = {"coverage": row.coverage, "cost": row.cost, "agreement": row.agreement}
    estimates |= {"latency": row.normalized_latency, "set_size": row.set_size}
    estimates |= {
        "kept": row.kept,
        "answered": row.answered,
        "wrong": row.wrong,
        "width": row.width,
    }
    for name, value in estimates.items():
        if value is None:
            continue
        figures[name] = float(value)
        known = value.se == value.se
        figures[f"{name}_interval"] = [value.low, value.high] if known else None
        figures[f"{name}_se"] = value.se if known else None
    return figures
