"""Training and scoring divided among workers on other machines, with the same numbers as
in one process.

Each member of a deep ensemble trains separately, because no gradient passes from one to another.
Inputs are scored in ranges of rows that begin with a batch. The caller gives the function that runs
the tasks, `MapTasks`; the package `agreestop.cluster` has one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from agreestop.common import ProgressCallback, join_parts
from agreestop.common.files import as_bytes, from_bytes
from agreestop.engines.early_stopping import BATCH_SIZE, run_counted, run_to_end
from agreestop.engines.protocol import Engine
from agreestop.ensembles import DeepEnsemble, Ensemble, load
from agreestop.ensembles.files import UnusableFile
from agreestop.events.data import EventData

ROWS = 4 * BATCH_SIZE  # inputs of one task


class MapTasks(Protocol):
    """Runs tasks on workers, each of which `build` makes once, and returns the results in order.
    what: the tasks in words.
    """

    def __call__(
        self,
        build: Callable[[], Callable[[Any], Any]],
        tasks: Sequence[Any],
        progress: ProgressCallback,
        what: str,
    ) -> list[Any]: ...


def fit_with_checkpoint(
    ensemble: Callable[[], Ensemble], data: EventData, checkpoint: Path, options: dict[str, Any]
) -> Ensemble:
    """Train a new ensemble; a checkpoint that is damaged, or of a training with other
    settings, is removed.
    """
    given = data.inputs, data.labels
    try:
        return ensemble().fit(*given, steps=data.held, checkpoint=checkpoint, **options)
    except UnusableFile:
        checkpoint.unlink()
        return ensemble().fit(*given, steps=data.held, checkpoint=checkpoint, **options)


@dataclass(frozen=True)
class MemberTraining:
    """A worker that trains members of an ensemble, each with its own checkpoint.

    None trains the whole ensemble.
    """

    ensemble: Ensemble
    data: EventData
    folder: Path
    options: dict[str, Any]

    def __call__(self, index: int | None) -> bytes:
        """The content of the file of the member, or of the ensemble."""
        checkpoint = self.folder / (
            "training.safetensors" if index is None else f"training-{index}.safetensors"
        )
        ensemble = self.ensemble
        new = (
            partial(ensemble.member, index)
            if isinstance(ensemble, DeepEnsemble) and index is not None
            else lambda: ensemble
        )
        options = {**self.options, "progress": False}
        return as_bytes(fit_with_checkpoint(new, self.data, checkpoint, options).save)


def fit_on_workers(
    run: MapTasks,
    ensemble: Ensemble,
    data: EventData,
    folder: Path,
    options: dict[str, Any],
    progress: ProgressCallback,
) -> Ensemble:
    """Train a new ensemble on workers: a deep one member by member, another one as a whole."""
    deep = ensemble if isinstance(ensemble, DeepEnsemble) else None
    tasks: list[int | None] = [None] if deep is None else list(range(deep.members))
    build = partial(MemberTraining, ensemble, data, folder.resolve(), options)
    contents = run(build, tasks, progress, "ensembles" if deep is None else "members")
    read = partial(load, device=ensemble.device)
    trained = [from_bytes(content, read) for content in contents]
    return trained[0] if deep is None else deep.join(trained)  # type: ignore[arg-type]


class RowScoring:
    """A worker that runs an engine, which `engine` makes, over ranges of inputs. counted:
    whether operations are counted too.
    """

    def __init__(self, engine: Callable[[], Engine], data: EventData, counted: bool) -> None:
        self._engine, self._data, self._run = engine(), data, run_counted if counted else run_to_end

    def __call__(self, begin: int) -> Any:
        """The outputs for the inputs from `begin` on, with their operations if they are counted."""
        part = self._data.rows(slice(begin, begin + ROWS))
        return self._run(self._engine, part.inputs, steps=part.held, first=begin)


def score_on_workers(
    run: MapTasks,
    engine: Callable[[], Engine],
    data: EventData,
    counted: bool,
    progress: ProgressCallback,
) -> Any:
    """The outputs of an engine for all inputs, with their operations if they are counted,
    computed on workers.
    """
    return join_parts(
        run(
            partial(RowScoring, engine, data, counted),
            range(0, len(data), ROWS),
            progress,
            f"parts of {data.name}",
        )
    )
