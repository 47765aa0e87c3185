"""How training shows its progress: a bar on a terminal, or calls of a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, float], None]
"""Called with what is being done, in words, and the share that is done, from 0 to 1."""


@contextmanager
def show_progress(progress: bool | Progress, note: str = "") -> Iterator[Progress]:
    """Gives a function that reports progress: the user's own, or one that draws a bar if this is a terminal.

    The note is one sentence that is shown first.
    """
    if callable(progress):
        if note:
            progress(note, 0.0)
        yield progress
        return
    if progress:
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if console.is_terminal:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            if note:
                console.print(note, markup=False)
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn(compact=True))
            with Bar(*columns, console=console, transient=True) as bar:
                task = bar.add_task("training", total=1.0)
                yield lambda what, share: bar.update(task, completed=share, description=what)
            return
    yield lambda what, share: None
