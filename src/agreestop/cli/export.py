"""`agreestop export`: an ensemble and its rules as C sources or as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from agreestop.common import InputError, needs
from agreestop.decide.calibrated import CalibratedRule, load_rule
from agreestop.decide.rule_files import kept_kind
from agreestop.decide.spotting import CalibratedSpotter, Spotter

from .console import Engine, errors_name_options, never_stops, refuse_options, say, show
from .decide import AnyEngine, AnyMembers, say_unchecked
from .spot import NOT_FOR_A_SPOTTER, SPOTTER

LARGE_PAGE = 3_000_000  # bytes

if TYPE_CHECKING:
    from agreestop.ensembles.ensemble import Ensemble
    from agreestop.events.container import Events
    from agreestop.export.page import PageExport


def export(
    context: typer.Context,
    rules: Annotated[
        list[Path],
        typer.Argument(
            help=(
                "Rule files that `agreestop calibrate` wrote; c takes one. That of a spotter, "
                "without --members, becomes C for scores of your own."
            )
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help=(
                "c: C99 sources, for a device. page: one HTML file in which one watches it decide."
            ),
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder (c) or file (page) to write.")
    ],
    members: Annotated[
        Path | None,
        typer.Option(
            help="Ensemble: what `agreestop train` or ensemble.save wrote (members.safetensors)."
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(help="File of inputs: to compare C with Python, or to replay in the page."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="page: score file that the rules were calibrated on, whose examples it shows."
        ),
    ] = None,
    spotter: Annotated[
        Path | None,
        typer.Option(
            help=(
                "c: rule file of a spotter, to watch a stream without an end; the rule then "
                "decides on what follows its detections."
            )
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="With --spotter: the steps from which its score is computed."),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option(
            help=(
                "With --spotter: the class that it detects, by name or number; several by commas. "
                "By default the one that its scores name."
            )
        ),
    ] = None,
    skip: Annotated[
        int, typer.Option(help="With --spotter: steps after a detection that the rule skips.")
    ] = 0,
    engine: Engine = "auto",
    any_engine: AnyEngine = False,
    any_members: AnyMembers = False,
) -> None:
    """Write an ensemble and its rules as C sources, or as a page, that decide as the
    Python engine does.

    The weights are those of the engine that the rule was calibrated with: event-driven,
    event-driven-bfloat16 or event-driven-int8. With --inputs, `make check` in the folder compares
    the decisions on them. A page takes several rules, one for each target. If it would be larger
    than 3 MB, its weights become int8, and some of the labelled inputs calibrate the rules anew on
    them; give --engine to keep weights and rules. With --spotter and --window the C code
    watches a stream without an end, and inputs are streams.
    """
    if to not in ("c", "page"):
        raise InputError(f"--to is {to!r}: choose c, page.")
    if kept_kind(rules[0]) == SPOTTER:
        _check_alone(rules, members, to)
        own = ("rules", "to", "output")
        refuse_options(context, lambda name: name not in own, NOT_FOR_A_SPOTTER)
        _spotter_to_c(rules[0], output)
        return
    if members is None:
        raise InputError(
            "--members is missing: give the file of the ensemble; only a spotter alone needs none."
        )
    watch = _Watch.of(to, spotter, window, event, skip)
    with needs("agreestop export", extras="engines"):
        from agreestop.ensembles import load as load_ensemble
        from agreestop.ensembles.files import OwnModules
        from agreestop.export.members import OWN_MODULES

    loaded = [load_rule(path) for path in rules]
    for sentence in filter(None, map(never_stops, loaded)):
        say(sentence)
    wanted = engine if engine != "auto" else loaded[0].engine or "event-driven"
    try:
        ensemble = load_ensemble(members, engine=wanted)
    except OwnModules:
        raise InputError(OWN_MODULES) from None
    for rule in loaded:
        say_unchecked(rule, wanted, ensemble.digest)
    allowed = _Allowed(any_engine=any_engine, any_members=any_members)
    if to == "page":
        smaller = members if engine == "auto" else None
        _to_page(loaded, ensemble, inputs, calibration, output, allowed, smaller)
    else:
        if calibration is not None:
            raise InputError("--calibration is for --to page: leave it out.")
        _to_c(loaded, ensemble, inputs, output, allowed, watch)


class _Allowed(TypedDict):
    any_engine: bool
    any_members: bool


@dataclass(frozen=True)
class _Watch:
    """A spotter in front of the rule."""

    spotter: CalibratedSpotter
    window: int
    event: list[int | str] | None
    skip: int

    @classmethod
    def of(
        cls, to: str, spotter: Path | None, window: int | None, event: str | None, skip: int
    ) -> "_Watch | None":
        """From the options; None where they name no spotter."""
        given = {"--spotter": spotter, "--window": window, "--event": event}
        named = [name for name, value in given.items() if value is not None]
        if not named and skip:
            raise InputError("--skip is for --spotter: leave it out.")
        if not named:
            return None
        if spotter is None or window is None:
            missing = " and ".join(name for name in ("--spotter", "--window") if name not in named)
            raise InputError(
                f"{' and '.join(named)} without {missing}: to watch a stream, give both."
            )
        if to != "c":
            raise InputError("--spotter is for --to c: a page shows inputs with an end.")
        classes: list[int | str] | None = None
        if event is not None:
            words = [one.strip() for one in event.split(",")]
            classes = [int(one) if one.isdigit() else one for one in words]
        return cls(Spotter.load(spotter), window, classes, skip)


def _check_alone(rules: Sequence[Path], members: Path | None, to: str) -> None:
    """Refuse a spotter in the place of a rule."""
    if members is not None or len(rules) > 1:
        raise InputError(
            f"{rules[0]} is a spotter: give it alone, or as --spotter beside the rule that decides."
        )
    if to != "c":
        raise InputError("a spotter alone is exported as C: give --to c.")


def _spotter_to_c(rule: Path, folder: Path) -> None:
    from agreestop.export import spotter_to_c

    made = spotter_to_c(Spotter.load(rule), folder)
    show(f"Wrote {folder}: {', '.join(made.files)}.")


def _to_c(
    rules: Sequence[CalibratedRule],
    ensemble: "Ensemble",
    inputs: Path | None,
    folder: Path,
    allowed: _Allowed,
    watch: _Watch | None,
) -> None:
    from agreestop.events.files import load as load_inputs
    from agreestop.export import to_c, watch_to_c

    if len(rules) > 1:
        raise InputError(
            f"{len(rules)} rules are given, and the C code holds one: export each to a folder of "
            "its own."
        )
    data = None if inputs is None else load_inputs(inputs)
    with errors_name_options():
        if watch is None:
            made = to_c(rules[0], ensemble, folder, data, **allowed)
        else:
            made = watch_to_c(
                watch.spotter,
                rules[0],
                ensemble,
                folder,
                data,
                window=watch.window,
                event=watch.event,
                skip=watch.skip,
                **allowed,
            )
    show(f"Wrote {folder}: {', '.join(made.files)}.")
    show(
        f"Flash {made.flash:,} bytes ({made.weights} weights), and a few thousand for the code. "
        f"RAM {made.ram:,} bytes, and the stack."
    )
    if made.note:
        say(made.note)
    if made.nearest is not None:
        nearest = _nearest(made.nearest, made.ties, made.rounded, "C")
        what = "inputs" if watch is None else "streams"
        show(
            f"{nearest}, on {made.inputs} {what}. `make -C {folder} check` compares what is found."
        )


def _to_page(
    rules: Sequence[CalibratedRule],
    ensemble: "Ensemble",
    inputs: Path | None,
    calibration: Path | None,
    path: Path,
    allowed: _Allowed,
    smaller: Path | None,
) -> None:
    """Write the page; smaller: the members to take with int8 weights if it is too large."""
    from agreestop.decide.scores import load_scores
    from agreestop.events.files import load as load_inputs
    from agreestop.export import to_page

    if inputs is None:
        raise InputError(
            "--inputs is missing: give the file of inputs that the page replays, for example "
            "test-inputs.npz of a run."
        )
    data = load_inputs(inputs)
    scores = None if calibration is None else load_scores(calibration)
    note = ""
    with errors_name_options():
        made = to_page(rules, ensemble, path, data, calibration=scores, **allowed)
        if made.size > LARGE_PAGE and not ensemble.engine.name.endswith("-int8"):
            note = "Most of it are weights; with those of int8 it would be a quarter: "
            if smaller is None:
                note += "leave out --engine."
            elif data.labels is None:
                note += "give inputs with labels, which calibrate the rules on them."
            else:
                made, note = _with_int8(rules, smaller, data, path, ensemble.engine.name) or (
                    made,
                    f"{note}give more inputs, of which a third calibrate the rules on them.",
                )
    replayed = (
        f"{made.inputs} inputs"
        if made.inputs == len(data)
        else f"{made.inputs} of {len(data)} inputs"
    )
    show(
        f"Wrote {path}: {made.size / 1e6:.1f} MB, with {replayed} to replay. Open it in a browser; "
        "it loads nothing else."
    )
    if note:
        show(note)
    show(f"{_nearest(made.nearest, made.ties, made.rounded, 'the page')}.")


def _with_int8(
    rules: Sequence[CalibratedRule], members: Path, data: "Events", path: Path, engine: str
) -> "tuple[PageExport, str] | None":
    """The page with int8 weights, and what was done; None if the inputs are too few."""
    from agreestop.export import to_page
    from agreestop.export.small_page import calibrate_again, int8_page

    small = int8_page(members, data)
    found = calibrate_again(rules, small.calibration)
    if found is None:
        return None
    made = to_page(found, small.ensemble, path, small.inputs, calibration=small.calibration)
    n = len(small.calibration)
    return made, (
        f"To keep it small, the weights are int8, and {n} other inputs calibrated "
        f"{'the rule' if len(found) == 1 else 'the rules'} anew on them; --engine {engine} keeps "
        "weights and rules as they are."
    )


def _nearest(distance: float, ties: int, rounded: int, where: str) -> str:
    said = "none is a tie"
    if ties:
        said = (
            f"{'one is a tie' if ties == 1 else f'{ties} are ties'}, which {where} decides as "
            "Python does"
        )
    if rounded:
        said += (
            f", but for {rounded} whose numbers differ in the last bits: there {where} may decide "
            "otherwise"
        )
    return (
        f"The smallest distance of a risk or score to its threshold is {distance:.3g}, and {said}"
    )
