"""How training shows its progress: a bar on a terminal, or calls of a function of the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from agreestop.common import ProgressCallback, no_progress


@contextmanager
def show_progress(progress: bool | ProgressCallback, note: str = "") -> Iterator[ProgressCallback]:
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
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            if note:
                console.print(note, markup=False)
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn(compact=True))
            with Progress(*columns, console=console, transient=True) as bar:
                task = bar.add_task("training", total=1.0)
                yield lambda what, share: bar.update(task, completed=share, description=what)
            return
    yield no_progress
