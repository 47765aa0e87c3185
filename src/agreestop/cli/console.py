"""What the verbs share: options, and how they print: tables and results on standard output,
everything else on standard error.
"""

import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from time import monotonic
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from agreestop.common import InputError, ProgressCallback
from agreestop.common.errors import CalibrationWarning, visible
from agreestop.common.tables import filled_columns
from agreestop.decide.calibrated import CalibratedRule

SECONDS_BETWEEN_LINES = 10.0
NARROWEST = 20  # columns of a line
MUCH_WIDER = 10_000
LEAST_SECONDS, LEAST_SHARE = 10.0, 0.1  # before both, an estimate of the time left would be a guess
UNFINISHED = 0.99  # the most that a bar shows before the work is done

OPTIONS = (
    "accumulated|at_end|blocks|calibration|cap|checkpoints|class_conditional|delta|depth|event|false_alarms|fill|for_people|gate|give_up|groups|largest_loss|loss|max_loss"
    "|limit|max_set_size|max_weight|max_width|missed|near|people|per|pooling|price_of_size|rest|rule|side|skip|step_seconds|target|threshold|trim|weights|window|within|message_bytes|sessions|sessions_per_client|idle_seconds|drain_seconds"
)
# how messages of the Python layer name what the command line calls an option; the first that
# matches is replaced first
PYTHON_WORDS = (
    (
        r"a target, or target=None with loss, a cost matrix, and max_loss,",
        "--target, or --loss, a cost matrix, and --max-loss,",
    ),
    (r"labels=(['\"])final\1", "--labels final"),
    (r"'each', or None for all at once", "each, or all for all at once"),
    (r"without gate, loss and class_conditional", "without --gate, --loss and --class-conditional"),
    (r"pooling=MergeConfidence\(r=\S+\)", "--pooling confidence:R"),
    (r"\bgive ((?:SpikeCP or )?AgreeStop)\b", lambda found: f"give --rule {found[1].lower()}"),
    (
        rf"\b({OPTIONS})=(?:True\b)?",
        lambda found: _option(found[1]) + ("" if found[0].endswith("True") else " "),
    ),
    (rf"^({OPTIONS})\b", lambda found: _option(found[1])),
    (r"\bgive a (target|threshold)\b", r"give --\1"),
    (r"\b(without|leave out|both|under) weights\b", r"\1 --weights"),
    (
        r"(?<![-'\"\w])(at_end|delta|for_people|largest_loss|max_loss|max_set_size|max_weight"
        r"|class_conditional)\b",
        lambda found: _option(found[1]),
    ),
)

Members = Annotated[
    Path | None,
    typer.Option(
        help=(
            "Ensemble to run on inputs: what `agreestop train` or ensemble.save wrote "
            "(members.safetensors)."
        )
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="Run on a Ray cluster: local, auto, or its address."
    ),
]
Engine = Annotated[
    str, typer.Option(help="With --members: dense, event-driven, fused, …; auto chooses one.")
]


def refuse_options(context: typer.Context, wrong: Callable[[str], bool], words: str) -> None:
    """Refuse parameters that the command line gave and that are wrong here; `words` say why."""
    given = [
        one.opts[-1]
        for one in context.command.params
        if wrong(str(one.name))
        and (source := context.get_parameter_source(str(one.name))) is not None
        and source.name == "COMMANDLINE"
    ]
    if given:
        raise InputError(f"{', '.join(given)} {words}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def name_options(sentence: str) -> str:
    """A sentence about arguments of Python functions in the words of the command line: max_loss
    becomes --max-loss.
    """
    for pattern, words in PYTHON_WORDS:
        sentence = re.sub(pattern, words, sentence)
    return sentence


@contextmanager
def errors_name_options() -> Iterator[None]:
    """Errors that name options instead of arguments.

    It is not for reading files, whose names could hold such words.
    """
    try:
        yield
    except InputError as error:
        raise InputError(name_options(str(error))) from None


def _forget_useless_sizes() -> None:
    """Remove COLUMNS and LINES from the environment where they are no size of a terminal: in 0
    columns nothing would be printed.
    """
    for name, least in (("COLUMNS", NARROWEST), ("LINES", 1)):
        given = os.environ.get(name, "")
        if given and not (
            given.isascii() and given.isdecimal() and len(given) < 6 and int(given) >= least
        ):
            del os.environ[name]


@final
class PlainConsole(Console):
    """A console for text of any origin: without markup, and with control characters written out."""

    def __init__(self, **options: Any) -> None:
        _forget_useless_sizes()
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(visible, text.split("\n"))), **options)


out, err = PlainConsole(), PlainConsole(stderr=True)


def show(*results: str | Table, unbroken: bool = False) -> None:
    """Print sentences and tables on standard output; `unbroken` is for lines with paths and
    addresses, which must stay whole.
    """
    for result in results:
        out.print(result, soft_wrap=unbroken)


def small_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of text, without columns in which nothing stands. Where it is wider than the
    terminal, an interval stands below its number.
    """
    (heads, *filled) = filled_columns([titles, *rows])

    def made(between: str) -> Table:
        table = Table(title=title, title_justify="left", title_style="bold")
        cells = [[cell.replace(" [", between) for cell in row] for row in filled]
        for head, column in zip(heads, zip(*cells, strict=True), strict=True):
            lines = [line for cell in column for line in cell.split("\n")]
            needed = max((len(line) for line in lines if "[" in line), default=0)
            # rich does not break the lines of such a column, so its head is broken here
            table.add_column(fill(head, max(needed, NARROWEST)), no_wrap=needed > 0)
        for row in cells:
            table.add_row(*row)
        return table

    table = made(" [")
    return table if fits(table) else made("\n[")


def fits(table: Table) -> bool:
    """Whether no cell of a table must be broken on the terminal."""
    wide = out.options.update(max_width=MUCH_WIDER)
    return Measurement.get(out, wide, table).maximum <= out.width


def say(sentence: str, style: str | None = None) -> None:
    err.print(sentence, style=style)


def say_warning(sentence: str) -> None:
    say(f"Warning: {sentence}", "yellow")


def say_error(sentence: str) -> None:
    say(f"agreestop: {sentence}", "red")


def show_written(*paths: object) -> None:
    show(*(f"Wrote {path}" for path in paths), unbroken=True)


def guarantee_in_words(calibrated: CalibratedRule) -> str:
    """The guarantee of a rule as a sentence."""
    words = calibrated.guarantee
    return (
        words[0].upper() + words[1:] if words.startswith("no guarantee") else f"Guarantee: {words}"
    )


def never_stops(calibrated: CalibratedRule) -> str:
    """A sentence if no input can stop early under this rule, else an empty string."""
    if not calibrated.never_stops:
        return ""
    if calibrated.n >= calibrated.examples_needed and calibrated.shortage:
        return f"This rule can never stop early. {calibrated.shortage}"
    by_class = calibrated.rule.terms.class_conditional
    needed = f"{calibrated.examples_needed}{' of each class' if by_class else ''}"
    return (
        f"This rule can never stop early: it was calibrated on {calibrated.n} examples, and needs "
        f"at least {needed}."
    )


@contextmanager
def printed_warnings(words: Callable[[str], str] = str) -> Iterator[list[str]]:
    """Print calibration warnings as plain sentences, each once; `words` may change how
    they name things.

    What it gives holds the sentences that were printed.
    """
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        yield said
    said += dict.fromkeys(str(entry.message) for entry in caught)
    for warning in said:
        say_warning(words(warning))


@contextmanager
def progress_bar(title: str) -> Iterator[ProgressCallback]:
    """A bar in one line of the terminal, with the time left; in a log, a line every few seconds.

    Call what it gives with what is being done and the share that is done. It shows 100 % only once
    its block has ended.
    """
    began = monotonic()
    if not err.is_terminal:
        yield _progress_in_lines(title, began)
        return
    words = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
    )
    with Progress(
        BarColumn(bar_width=10),
        TextColumn("{task.fields[share]}"),
        TextColumn("{task.fields[left]}"),
        words,
        console=err,
        transient=True,
        expand=True,
    ) as bar:
        task, estimate = (
            bar.add_task(visible(title), total=1.0, share="  0%", left=""),
            TimeLeft(began),
        )

        def progress(what: str, share: float) -> None:
            share = min(share, UNFINISHED)
            left = estimate.report(monotonic(), share)
            bar.update(
                task, completed=share, share=f"{share:4.0%}", description=visible(what), left=left
            )

        yield progress
        bar.update(task, completed=1.0, share="100%", left="")


@final
class TimeLeft:
    """The time left, estimated from the pace in the latter half of the time so far: the first
    steps of a job are often slower.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        # times and shares that were done; the first is the last one before the latter half
        self._reports = deque([(began, 0.0)])

    def report(self, now: float, share: float) -> str:
        """Take the share that is done by now.

        Returns the time left in words, or an empty string while an estimate would be a guess.
        """
        self._reports.append((now, share))
        while len(self._reports) > 1 and self._reports[1][0] <= (self._began + now) / 2:
            self._reports.popleft()
        since, done = self._reports[0]
        if now - self._began < LEAST_SECONDS or share < LEAST_SHARE or share <= done:
            return ""
        left = round((now - since) * (1 - share) / (share - done))
        return (
            f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
            if left >= 3600
            else f"{left // 60}:{left % 60:02} left"
        )


def _progress_in_lines(title: str, began: float) -> ProgressCallback:
    last, estimate = began - SECONDS_BETWEEN_LINES, TimeLeft(began)

    def progress(what: str, share: float) -> None:
        nonlocal last
        share, now = min(share, UNFINISHED), monotonic()
        left = estimate.report(now, share)
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            say(f"{title}, {share:.0%}{f', {left}' if left else ''}: {what}")

    return progress


def check_one_file(inputs: Path) -> None:
    """Refuse inputs that only a cluster reads."""
    if inputs.is_dir() or inputs.suffix == ".parquet":
        raise InputError(
            f"{inputs} is a folder or a Parquet file: add --ray local to read it, or give an "
            "events file (.npz)."
        )
