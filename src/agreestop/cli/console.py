"""What the verbs print with: tables and results on standard output, everything else on standard error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from agreestop.common import InputError, ProgressCallback
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.checks import CalibrationWarning

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False, soft_wrap=False)
SECONDS_BETWEEN_LINES = 10.0
LEAST_SECONDS, LEAST_SHARE = 2.0, 0.02  # before both, an estimate of the time left would be a guess


def in_full(calibrated: CalibratedRule) -> str:
    """The guarantee of a rule as a sentence, and a warning where the rule can only answer all classes."""
    words = calibrated.guarantee
    sentence = words[0].upper() + words[1:] if words.startswith("no guarantee") else f"Guarantee: {words}"
    return f"{sentence} (Vacuous: with so few examples it can only answer every class.)" if calibrated.shortage else sentence


def say_error(sentence: str) -> None:
    err.print(f"agreestop: {sentence}", style="red", markup=False)


def say(sentence: str) -> None:
    err.print(sentence, markup=False)


def say_written(*paths: object) -> None:
    for path in paths:
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


@contextmanager
def printed_warnings() -> Iterator[None]:
    """Print calibration warnings as plain sentences, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        yield
    for warning in {str(entry.message): entry for entry in caught}:
        err.print(f"Warning: {warning}", style="yellow", markup=False)


@contextmanager
def needing_networks() -> Iterator[None]:
    """For imports that need PyTorch: where it is missing, a sentence says what to install."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"members need PyTorch and safetensors ({error}): install agreestop[networks].") from None


@contextmanager
def progress_bar(title: str) -> Iterator[ProgressCallback]:
    """A bar in one line of the terminal, with the time left; in a log, a line every few seconds.

    Call what it gives with what is being done and the share that is done.
    """
    began = monotonic()
    if not err.is_terminal:
        yield _progress_in_lines(title, began)
        return
    words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with Progress(BarColumn(bar_width=6), TextColumn("{task.fields[left]}"), words, console=err, transient=True, expand=True) as bar:
        task = bar.add_task(title, total=1.0, left="")

        def progress(what: str, share: float) -> None:
            bar.update(task, completed=share, description=what, left=time_left(monotonic() - began, share))

        yield progress


def time_left(seconds: float, share: float) -> str:
    """The time left in words, after `seconds` in which this share of the work was done; empty while it cannot be estimated."""
    if seconds < LEAST_SECONDS or share < LEAST_SHARE:
        return ""
    left = round(seconds * (1 - share) / share)
    return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left" if left >= 3600 else f"{left // 60}:{left % 60:02} left"


def _progress_in_lines(title: str, began: float) -> ProgressCallback:
    """Progress for a log: a line now and then."""
    last = began - SECONDS_BETWEEN_LINES

    def progress(what: str, share: float) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last, left = now, time_left(now - began, share)
            say(f"{title}, {share:.0%}{f', {left}' if left else ''}: {what}")

    return progress
