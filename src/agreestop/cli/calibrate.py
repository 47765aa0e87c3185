"""`agreestop calibrate`: a score file becomes a rule file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from agreestop.common import InputError, check_writable
from agreestop.decide.answer_kinds import Tree
from agreestop.decide.merging import POOLINGS
from agreestop.decide.rule import Rule, build_rule, rule_class, rule_kinds
from agreestop.decide.spikecp import CALIBRATIONS
from agreestop.decide.spotting import load_recordings

from .console import (
    errors_name_options,
    guarantee_in_words,
    name_options,
    printed_warnings,
    refuse_options,
    say,
    say_warning,
    show,
)
from .spot import (
    NOT_FOR_A_SPOTTER,
    OPTIONS,
    PANEL,
    Cap,
    Near,
    Per,
    Rest,
    StepSeconds,
    Within,
    calibrate_spotter,
    takes_no,
)
from .texts import parse_checkpoints, parse_schedule, read_lines, read_matrix, read_numbers
from .tuning import gate_from, give_up_from, tuned_rule, vote_risk

# the groups of options in the help
RULE, TUNING = "Rule and checkpoints", "Tuning, on other inputs"
PROMISE, WHOM = "What is promised", "For whom: groups, people, shifts"
TREES, INTERVALS = "Trees of classes", "Numbers: --rule interval"


def calibrate(
    context: typer.Context,
    scores: Annotated[
        Path,
        typer.Argument(
            help=(
                "Score file that is used for nothing else; it needs labels unless --labels is "
                "final. For --rule stop: an .npz file with risk and loss, both (n, M); for --rule "
                "interval: with centre and scale, or lower and upper, and labels; for --rule "
                "spotter: with scores, offsets and events. Or open answers, a .jsonl file with "
                "answers, and optionally gold, tokens and id."
            )
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Rule file to write.")],
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(rule_kinds())}, spotter. "
            "[default: agreestop, or spikecp with --calibration]",
            rich_help_panel=RULE,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Probability that the answer holds the true class, or is right. [default: 0.9]",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help=(
                "Times at which the rule may stop: 20,40,60,80, or 1-80 for those of the file from "
                "1 to 80. [default: all]"
            ),
            rich_help_panel=RULE,
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Instead of --checkpoints: times, and how many members are used: 1:1,1:2,4:6.",
            rich_help_panel=RULE,
        ),
    ] = None,
    max_set_size: Annotated[
        int,
        typer.Option(
            help="Largest set that may stop early; an answer at the last checkpoint may be larger.",
            rich_help_panel=RULE,
        ),
    ] = 1,
    pooling: Annotated[
        str | None,
        typer.Option(
            help=f"How the members are pooled: {POOLINGS}. [default: confidence:1]",
            rich_help_panel=RULE,
        ),
    ] = None,
    risk: Annotated[
        str | None,
        typer.Option(
            help=(
                "Open answers, how sure the votes are: beta, share, or learned from --tuning. "
                "[default: beta]"
            ),
            rich_help_panel=RULE,
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help=f"spikecp: {', '.join(CALIBRATIONS)}. [default: bonferroni]", rich_help_panel=RULE
        ),
    ] = None,
    tuning: Annotated[
        Path | None,
        typer.Option(
            help=(
                "spikecp, agreestop: file with labels of other inputs, to tune on; with --gate, "
                "--give-up or --risk they only fix that."
            ),
            rich_help_panel=TUNING,
        ),
    ] = None,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill",
            help="agreestop: always answer max-set-size classes; stops earlier.",
            rich_help_panel=RULE,
        ),
    ] = False,
    class_conditional: Annotated[
        bool,
        typer.Option(
            "--class-conditional",
            help="Keep the promise for each true class.",
            rich_help_panel=PROMISE,
        ),
    ] = False,
    delta: Annotated[
        str | None,
        typer.Option(
            help="Keep the promise for all but this share of calibration draws, such as 0.1.",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="seenn: the confidence at which to stop.", rich_help_panel=RULE),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help=(
                "final: use no labels; the promise is about the ensemble's own best class at the "
                "last checkpoint."
            ),
            rich_help_panel=PROMISE,
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the group of each input, one on a line: a promise for each.",
            rich_help_panel=WHOM,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the weight dQ/dP of each input, one on a line.",
            rich_help_panel=WHOM,
        ),
    ] = None,
    max_weight: Annotated[
        float | None,
        typer.Option(help="The largest weight that any input can have.", rich_help_panel=WHOM),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate",
            help=(
                "Keep the promise for each block of times at which an input first looked ready; "
                "needs --tuning."
            ),
            rich_help_panel=PROMISE,
        ),
    ] = False,
    blocks: Annotated[
        str | None,
        typer.Option(
            help="With --gate: the number of blocks, or the times at which they end: 10,20,40.",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    loss: Annotated[
        Path | None,
        typer.Option(
            help="agreestop: text file with a row of costs for each true class; see --max-loss.",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    max_loss: Annotated[
        str | None,
        typer.Option(
            help="agreestop, stop: instead of --target, the mean cost to promise.",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    largest_loss: Annotated[
        float | None,
        typer.Option(
            help="stop, with --max-loss: the largest loss there can be. [default: 1]",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    at_end: Annotated[
        str | None,
        typer.Option(
            help="answer or abstain, for an input that nothing stopped. [default: answer]",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    give_up: Annotated[
        str | None,
        typer.Option(
            help=(
                "With --at-end abstain and --tuning: end inputs with little hope early; at most "
                "this share of inputs too early."
            ),
            rich_help_panel=PROMISE,
        ),
    ] = None,
    tree: Annotated[
        Path | None,
        typer.Option(
            help="agreestop: JSON file of groups of classes; answers are its nodes.",
            rich_help_panel=TREES,
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            help=(
                "With --tree: the depth that is asked, such as 1; each, for an answer at each "
                "depth; or all, for one threshold that serves all depths. [default: 1]"
            ),
            rich_help_panel=TREES,
        ),
    ] = None,
    max_width: Annotated[
        float | None,
        typer.Option(
            help="interval: an interval must be narrower than this to stop early.",
            rich_help_panel=INTERVALS,
        ),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(
            help="interval: both, or a bound alone: upper or lower. [default: both]",
            rich_help_panel=INTERVALS,
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="interval, with one side: the bound must pass it to stop early.",
            rich_help_panel=INTERVALS,
        ),
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Text file with the person of each input, one on a line: the promise for new "
                "people."
            ),
            rich_help_panel=WHOM,
        ),
    ] = None,
    for_people: Annotated[
        str | None,
        typer.Option(
            help="With --people: the share of new people who see at most 1 - target of misses.",
            rich_help_panel=WHOM,
        ),
    ] = None,
    accumulated: Annotated[
        bool,
        typer.Option(
            "--accumulated",
            help="agreestop: the promise for the inputs answered by each time; needs --delta.",
            rich_help_panel=PROMISE,
        ),
    ] = False,
    trim: Annotated[
        float | None,
        typer.Option(
            help="agreestop: from 0 (as --fill) to 1 (smaller sets, the default).",
            rich_help_panel=RULE,
        ),
    ] = None,
    break_ties: Annotated[
        bool,
        typer.Option(
            "--break-ties",
            help="agreestop: random numbers bring risks of few values, as of votes, to the target.",
            rich_help_panel=RULE,
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            help="With --break-ties: what decides the random numbers.", rich_help_panel=RULE
        ),
    ] = None,
    false_alarms: Annotated[
        str | None,
        typer.Option(
            help="spotter: false alarms on average, a recording or an hour (--per).",
            rich_help_panel=PANEL,
        ),
    ] = None,
    cap: Cap = 1,
    per: Per = "recording",
    step_seconds: StepSeconds = None,
    rest: Rest = 0,
    near: Near = 0,
    missed: Annotated[
        str | None,
        typer.Option(
            help="spotter: share of events that may be missed as well.", rich_help_panel=PANEL
        ),
    ] = None,
    within: Within = 50,
    price_of_size: Annotated[
        float,
        typer.Option(
            help="With --tuning: the latency that one class beyond max-set-size is worth.",
            rich_help_panel=TUNING,
        ),
    ] = 0.0,
) -> None:
    """Calibrate a rule on a score file and write it to a rule file."""
    if labels not in (None, "final"):
        raise InputError(
            f"--labels is {labels!r}: leave it out to use the labels of the score file, or give "
            "final."
        )
    check_writable(output, scores)
    if tuning is not None and tuning.resolve() == scores.resolve():
        raise InputError(f"--tuning is {tuning}, whose rows calibrate: tune on other inputs.")
    if rule == "spotter":
        refuse_options(context, takes_no(*OPTIONS), NOT_FOR_A_SPOTTER)
        recordings = load_recordings(scores)
        calibrate_spotter(
            *(recordings, output, near),
            read_lines(people, len(recordings)),
            false_alarms=false_alarms,
            cap=cap,
            rest=rest,
            missed=missed,
            within=within,
            per=per,
            step_seconds=step_seconds,
        )
        return
    refuse_options(
        context, OPTIONS.__contains__, "is for --rule spotter: give it too, or leave this out."
    )
    kind = rule or ("agreestop" if calibration is None else "spikecp")
    if kind == "stop" and labels is not None:
        raise InputError("--labels is for classes, which the rule stop has not: leave it out.")
    if kind not in rule_kinds():
        known_words = ", ".join((*rule_kinds(), "spotter"))
        raise InputError(f"--rule is {kind!r}: choose one of {known_words}.")
    known = rule_class(kind)
    data: Any = (  # scores, risks or numbers
        known.load(scores) if labels == "final" else known.load_labelled(scores, "calibration")
    )
    weight = read_numbers(weights, len(data))
    inside = read_lines(groups, len(data))
    persons = read_lines(people, len(data))
    costs = None if loss is None else read_matrix(loss)
    if schedule is not None and checkpoints is not None:
        raise InputError("--schedule names the times itself: leave --checkpoints out.")
    times = (
        parse_checkpoints(checkpoints or "all", data.times)
        if schedule is None
        else parse_schedule(schedule)
    )
    if checkpoints is None and data.unread:
        say(data.unread)
    opened = (
        gate_from(tuning, blocks, target, max_set_size, pooling, times, len(data)) if gate else None
    )
    own_risk = None if risk is None else vote_risk(risk, kind, tuning, labels, data)
    stopping = None
    if give_up is not None:
        if gate:
            raise InputError("--gate and --give-up both need the tuning rows: leave one out.")
        stopping = give_up_from(give_up, tuning, max_set_size, pooling, times)
    tunes = tuning is not None and not gate and give_up is None and risk is None
    if blocks is not None and not gate:
        raise InputError("--blocks belongs to a gate: give --gate too, or leave it out.")
    if price_of_size and not tunes:
        raise InputError(
            "--price-of-size is for tuning: give --tuning without --gate, --give-up and --risk, or "
            "leave it out."
        )
    with errors_name_options():
        chosen = build_rule(
            *(kind, target, times, max_set_size),
            pooling=pooling,
            calibration=calibration,
            fill=fill,
            class_conditional=class_conditional,
            delta=delta,
            threshold=threshold,
            gate=opened,
            risk=own_risk,
            give_up=stopping,
            loss=costs,
            max_loss=max_loss,
            accumulated=accumulated,
            trim=trim,
            largest_loss=largest_loss,
            at_end=at_end,
            tree=None if tree is None else Tree.load(tree),
            max_width=max_width,
            side=side,
            limit=limit,
            break_ties=break_ties,
            seed=seed,
        )
        if depth is not None:
            chosen = _at_depth(chosen, depth)
    if max_set_size == 1 and (fill or trim is not None):
        say_warning(
            f"{'--fill' if fill else '--trim'} has no effect with --max-set-size 1: an early "
            "answer is the best class in any case."
        )
    if tuning is not None and tunes:
        if not chosen.terms.promises:
            raise InputError(
                f"--tuning belongs to the rule spikecp or agreestop, not to {kind}: leave it out, "
                "or choose one of these."
            )
        chosen = tuned_rule(chosen, tuning, len(data), pooling, price_of_size, labels)
    with printed_warnings(name_options) as said, errors_name_options():
        calibrated = chosen.calibrate(
            *(data, labels),
            groups=inside,
            weights=weight,
            max_weight=max_weight,
            people=persons,
            for_people=for_people,
        )
    calibrated.save(output)
    sizes = f"{calibrated.n} examples"
    if calibrated.rule.terms.open_answers:
        sizes += f", up to {calibrated.checkpoints[-1]} samples of each"
    elif chosen.terms.has_classes:
        members = f"{calibrated.members} member{'s' if calibrated.members != 1 else ''}"
        sizes += f", {members}, {calibrated.classes} classes"
    if calibrated.people is not None:
        sizes += f", {calibrated.people} people"
    show(f"Wrote {output}: {kind}, calibrated on {sizes}.", guarantee_in_words(calibrated))
    if calibrated.effective_size is not None:
        show(
            f"The weighted examples say as much as {calibrated.effective_size:.0f} with equal "
            "weights."
        )
    for note in calibrated.notes:
        if note not in said:
            say(note)


def _at_depth(rule: Rule, depth: str) -> Rule:
    """The rule with a tree at a depth given as a number, each or all."""
    if rule.terms.tree is None:
        raise InputError("--depth belongs to a tree: give --tree too, or leave it out.")
    words: dict[str, str | None] = {"each": "each", "all": None}
    if depth not in words and not re.fullmatch(r"\d{1,9}", depth):
        raise InputError(f"--depth is {depth!r}: give a depth such as 1, each, or all.")
    return replace(cast(Any, rule), depth=words[depth] if depth in words else int(depth))
