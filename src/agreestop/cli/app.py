"""The application: its verbs, and how errors are printed."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from agreestop.common import InputError

from . import calibrate, data, decide, evaluate, run, train
from .console import say_error

INTERRUPTED = 130  # the exit code that shells expect after Ctrl-C

MOVED = {"reproduce": ("python -m paper", "make figures"), "bench": ("python -m benchmarks", "make bench")}


def new_app(help: str) -> typer.Typer:
    """An application in the style of this command line."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = new_app("Decide when an ensemble watching a stream has seen enough, and be right as often as promised.")


def interruptible(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, which Ctrl-C ends with a sentence instead of a traceback."""

    @wraps(verb)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
        except KeyboardInterrupt:
            say_error("stopped; no incomplete file was left behind, and the same command continues from what was finished.")
            raise typer.Exit(INTERRUPTED) from None

    return run


app.command("run", short_help="The main job: train, score, measure every rule, report.")(interruptible(run.run))
app.command("train", short_help="Configuration -> trained ensembles.")(interruptible(train.train))
app.command("score", short_help="Trained ensembles -> score files.")(interruptible(train.score))
app.command("calibrate", short_help="Score file with labels -> rule file.")(interruptible(calibrate.calibrate))
app.command("decide", short_help="Rule file and scores or inputs -> decisions.")(interruptible(decide.decide))
app.command("evaluate", short_help="Rule file and labelled scores -> coverage, latency.")(interruptible(evaluate.evaluate))


def _moved(verb: str) -> Callable[[typer.Context], None]:
    command, target = MOVED[verb]

    def refuse(context: typer.Context) -> None:
        raise InputError(f"`agreestop {verb}` is now `{command}` in a checkout of the repository, or `{target}`: see `{command} --help`.")

    return refuse


for _verb in MOVED:
    app.command(_verb, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(_moved(_verb))

data_app = typer.Typer(help="Data sets: list them, check their files, simulate some of them.", no_args_is_help=True)
data_app.command("list", short_help="List the data sets, and where to get them.")(interruptible(data.list_data_sets))
data_app.command("check", short_help="Check whether the files of a data set are whole.")(interruptible(data.check_data_set))
data_app.command("simulate", short_help="Simulated data set -> files of inputs.")(interruptible(data.simulate_data_set))
app.add_typer(data_app, name="data", short_help="Data sets: list, check, simulate.")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"agreestop {version('agreestop')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")] = False,
) -> None:
    """Decide when an ensemble watching a stream has seen enough, and be right as often as promised."""


def run_app(app: typer.Typer) -> None:
    """Run a command line; wrong input gives one sentence on standard error and exit code 2."""
    try:
        app()
    except InputError as error:
        say_error(str(error))
        sys.exit(2)


def main() -> None:
    """Run `agreestop`."""
    run_app(app)
