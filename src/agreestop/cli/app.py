"""The application: its verbs, and the sentence that is printed when it ends early."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from agreestop.common.errors import InputError, needs

from . import calibrate, data, decide, evaluate, export, report, run, serve
from .console import say_error

INTERRUPTED = 130  # the exit code that shells expect after Ctrl-C
MOVED = {
    "reproduce": ("python -m paper", "make figures"),
    "bench": ("python -m benchmarks", "make bench"),
}
VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "run": (run.run, "The main job: train, score, measure every rule, report."),
    "train": (run.train, "Configuration -> trained ensembles."),
    "score": (run.score, "Trained ensembles, or members and inputs -> score files."),
    "calibrate": (calibrate.calibrate, "Score file with labels -> rule file."),
    "decide": (decide.decide, "Rule file and scores or inputs -> decisions."),
    "evaluate": (evaluate.evaluate, "Rule file and labelled scores -> coverage, latency."),
    "export": (export.export, "Rule files and members -> a page to watch, or C sources."),
    "report": (report.report, "Labelled scores -> a page: every rule, and which to take."),
    "serve": (serve.serve, "Rule file and members -> a server for live inputs."),
}
DATA_VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "list": (data.list_data_sets, "List the data sets, and where to get them."),
    "check": (data.check_data_set, "Check whether the files of a data set are complete."),
    "simulate": (data.simulate_data_set, "Simulated data set -> files of inputs."),
}


OTHER_NAMES = {
    **dict.fromkeys(("--coverage", "--confidence", "--confidence-level", "--level"), ""),
    **dict.fromkeys(("--alpha", "--epsilon", "--error", "--significance"), " (one minus {0})"),
}
"""What conformal prediction calls the target, and how the target follows from it."""


class GroupedCommand(TyperCommand):
    """A verb whose help lists its options in groups, in the order of their first option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for param in self.params for name in param.opts}
        for name in (given.partition("=")[0] for given in args):
            if name in OTHER_NAMES and name not in known:
                wanted = "--target 0.9" + OTHER_NAMES[name].format(name.removeprefix("--"))
                if "spotter" in args:
                    wanted = "--false-alarms 0.05"
                verb = "give" if "--target" in known else "the rule has its target; calibrate with"
                raise InputError(f"{name} is no option: {verb} {wanted}.")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (words := param.get_help_record(ctx)) is not None:
                plain = "Arguments" if param.param_type_name == "argument" else "Options"
                group = getattr(param, "rich_help_panel", None) or plain
                groups.setdefault(group, []).append(words)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)


def new_app(
    help: str, verbs: dict[str, tuple[Callable[..., None], str]] | None = None
) -> typer.Typer:
    """An application in the style of this command line.

    Each verb has a function and a line for the list of verbs.
    """
    app = typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, (verb, words) in (verbs or {}).items():
        app.command(name, cls=GroupedCommand, short_help=words)(verb)
    return app


app = new_app(
    "Decide when an ensemble watching a stream has seen enough, and be right as often as promised.",
    VERBS,
)
app.add_typer(
    new_app("Data sets: list them, check their files, simulate some of them.", DATA_VERBS),
    name="data",
)


def _moved(context: typer.Context) -> None:
    command, target = MOVED[str(context.info_name)]
    raise InputError(
        f"`agreestop {context.info_name}` is now `{command}` in a checkout of the repository, or "
        f"`{target}`: see `{command} --help`."
    )


for _verb in MOVED:
    app.command(
        _verb,
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_moved)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agreestop {version_of('agreestop')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and stop."
        ),
    ] = False,
) -> None:
    pass


def run_app(app: typer.Typer) -> None:
    """Run a command line. What ends it early gives one sentence on standard error.

    Exit codes: 2 for wrong input or a package that is missing, 1 for an output that cannot be
    written, 130 after Ctrl-C.
    """
    try:
        with needs("this"):
            app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            say_error(
                "stopped; no incomplete file was left behind, and the same command continues from "
                "what was finished."
            )
        raise
    except InputError as error:
        say_error(str(error))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        say_error(
            "this does not fit into memory: choose smaller networks, fewer members or smaller "
            "batches."
        )
        sys.exit(2)
    except OSError as error:
        say_error(f"cannot use {error.filename or 'standard output'}: {error.strerror}.")
        # so that Python does not fail again when it writes what is left in its buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
