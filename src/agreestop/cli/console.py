"""What the verbs print with: tables and results on standard output, everything else on standard error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agreestop.common.errors import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.checks import CalibrationWarning

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False, soft_wrap=False)
SECONDS_BETWEEN_LINES = 10.0


def in_full(calibrated: CalibratedRule) -> str:
    """What a rule promises, as a sentence; and that it can only answer all classes, where that is so."""
    words = calibrated.guarantee
    sentence = words[0].upper() + words[1:] if words.startswith("no guarantee") else f"Guarantee: {words}"
    return f"{sentence} (Vacuous: with so few examples it can only answer every class.)" if calibrated.shortage else sentence


def say_error(sentence: str) -> None:
    err.print(f"agreestop: {sentence}", style="red", markup=False)


def say(sentence: str) -> None:
    err.print(sentence, markup=False)


@contextmanager
def telling_warnings() -> Iterator[None]:
    """Calibration warnings as plain sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        yield
    for warning in {str(entry.message): entry for entry in caught}:
        err.print(f"Warning: {warning}", style="yellow", markup=False)


@contextmanager
def needing_networks() -> Iterator[None]:
    """Imports that need PyTorch: where it is missing, a sentence says what to install."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"members need PyTorch and safetensors ({error}): install agreestop[networks].") from None


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[str, float], None]]:
    """A bar for long work: call what it gives with what is being done and the share that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=1.0, what="")

        def tell(what: str, share: float) -> None:
            bar.update(task, completed=min(share, 0.999), what=what)  # the clock of a bar that is full stops

        yield tell if err.is_terminal else _tell_in_lines()


def _tell_in_lines() -> Callable[[str, float], None]:
    """Progress for a log: a line now and then."""
    told = -SECONDS_BETWEEN_LINES

    def tell(what: str, share: float) -> None:
        nonlocal told
        if monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = monotonic()
            say(what)

    return tell
