"""`agreestop export`: an ensemble and its rules as C sources or as a page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.calibration import load_rule

from .console import Engine, errors_name_options, never_stops, say, show
from .decide import AnyEngine, AnyMembers, say_unchecked

if TYPE_CHECKING:
    from agreestop.ensembles.ensemble import Ensemble


def export(
    rules: Annotated[
        list[Path], typer.Argument(help="Rule files that `agreestop calibrate` wrote; c takes one.")
    ],
    members: Annotated[
        Path,
        typer.Option(
            help="Ensemble: what `agreestop train` or ensemble.save wrote (members.safetensors)."
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
    inputs: Annotated[
        Path | None,
        typer.Option(help="File of inputs: to compare C with Python, or to replay in the page."),
    ] = None,
    engine: Engine = "auto",
    any_engine: AnyEngine = False,
    any_members: AnyMembers = False,
) -> None:
    """Write an ensemble and its rules as C sources, or as a page, that decide as the
    Python engine does.

    The weights are those of the engine that the rule was calibrated with: event-driven,
    event-driven-bfloat16 or event-driven-int8. With --inputs, `make check` in the folder compares
    the decisions on them. A page takes several rules, one for each target.
    """
    if to not in TARGETS:
        raise InputError(f"--to is {to!r}: choose {', '.join(TARGETS)}.")
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
    TARGETS[to](loaded, ensemble, inputs, output, any_engine, any_members)


def _to_c(
    rules: Sequence[CalibratedRule],
    ensemble: "Ensemble",
    inputs: Path | None,
    folder: Path,
    any_engine: bool,
    any_members: bool,
) -> None:
    from agreestop.events.files import load as load_inputs
    from agreestop.export import to_c

    if len(rules) > 1:
        raise InputError(
            f"{len(rules)} rules are given, and the C code holds one: export each to a folder of "
            "its own."
        )
    data = None if inputs is None else load_inputs(inputs)
    with errors_name_options():
        made = to_c(
            rules[0], ensemble, folder, data, any_engine=any_engine, any_members=any_members
        )
    show(f"Wrote {folder}: {', '.join(made.files)}.")
    show(
        f"Flash {made.flash:,} bytes ({made.weights} weights), and a few thousand for the code. "
        f"RAM {made.ram:,} bytes, and the stack."
    )
    if made.nearest is not None:
        nearest = _nearest(made.nearest, made.ties, made.rounded, "C")
        show(
            f"{nearest}, on {made.inputs} inputs. `make -C {folder} check` compares the decisions."
        )


def _to_page(
    rules: Sequence[CalibratedRule],
    ensemble: "Ensemble",
    inputs: Path | None,
    path: Path,
    any_engine: bool,
    any_members: bool,
) -> None:
    from agreestop.events.files import load as load_inputs
    from agreestop.export import to_page

    if inputs is None:
        raise InputError(
            "--inputs is missing: give the file of inputs that the page replays, for example "
            "test-inputs.npz of a run."
        )
    data = load_inputs(inputs)
    made = to_page(rules, ensemble, path, data, any_engine=any_engine, any_members=any_members)
    replayed = (
        f"{made.inputs} inputs"
        if made.inputs == len(data)
        else f"the first {made.inputs} of {len(data)} inputs"
    )
    show(
        f"Wrote {path}: {made.size / 1e6:.1f} MB, with {replayed} to replay. Open it in a browser; "
        "it loads nothing else."
    )
    show(f"{_nearest(made.nearest, made.ties, made.rounded, 'the page')}.")


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


TARGETS: dict[str, Callable[..., None]] = {"c": _to_c, "page": _to_page}
"""What an ensemble can be exported to: `(rules, ensemble, file of inputs or None, output,
any_engine, any_members)`.
"""
