"""What every verb of a rule accepts: a `Scores`, or log-confidences with labels and times of their own. Here both become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers

from .checks import as_labels, as_log_confidence, as_times, columns_of
from .score_files import Scores
from .tuned_rows import TunedRows, mark_rows


@dataclass(frozen=True, eq=False)
class Examples:
    """Checked log-confidences (n, M, K, C), with whatever else is known: labels (n,), times, ids (n,), and where the scores come from."""

    log_confidence: NDArray[Any]
    labels: Integers | None = None
    times: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    ids: NDArray[Any] | None = None

    @classmethod
    def of(cls, given: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None) -> Examples:
        """The examples of a `Scores`, which brings its own labels and times, or of an array with the labels and times beside it."""
        if isinstance(given, (Scores, Examples)):
            for name, value in (("labels", labels), ("times", times)):
                if value is not None:
                    raise InputError(f"{name} are given together with scores, which hold their own: leave {name} out, or give arrays.")
            if isinstance(given, Examples):
                return given
            source = given.engine, given.ensemble_digest, given.ids
            return cls(given.log_confidence, given.labels, given.times, given.classes, *source)
        array = as_log_confidence(given)
        known = None if times is None else as_times(times, array.shape[1])
        return cls(array, None if labels is None else as_labels(labels, len(array), array.shape[3]), known)

    @property
    def truth(self) -> Integers:
        """The labels, which must be known."""
        if self.labels is None:
            raise InputError("labels are missing: give one class index for each input, or scores that hold labels.")
        return self.labels

    @property
    def checkpoints(self) -> int:
        return int(self.log_confidence.shape[1])

    @property
    def classes(self) -> int:
        return int(self.log_confidence.shape[3])

    def columns(self, checkpoints: Sequence[float]) -> list[int]:
        """The entries of the time axis that are a rule's checkpoints."""
        return columns_of(checkpoints, self.checkpoints, self.times)

    def rows(self, rows: Booleans | Integers) -> Examples:
        """Some of the examples."""
        labels, ids = (None if values is None else values[rows] for values in (self.labels, self.ids))
        return replace(self, log_confidence=self.log_confidence[rows], labels=labels, ids=ids)

    def at(self, index: int) -> Floats:
        """(n, K, C) log-confidences of one checkpoint."""
        return np.ascontiguousarray(self.log_confidence[:, index], dtype=np.float64)

    def of_label(self, values: Floats) -> Floats:
        """The entry of each row's own label, from values (n, C)."""
        return values[np.arange(len(values)), self.truth]

    def as_tuned(self) -> TunedRows:
        """The mark that a score or risk keeps of the rows it was tuned on."""
        return TunedRows.of(self.log_confidence, self.ids)

    def refuse_tuned(self, tuned: TunedRows | None, columns: list[int], what: str) -> None:
        """Refuse rows that a score or risk was tuned on."""
        if tuned is None:
            return
        reuse = tuned.reuse_of(self.ids) if tuned.knows(self.ids) else tuned.reuse(mark_rows(self.log_confidence, columns))
        if reuse:
            raise InputError(f"{what}: {reuse}")


ScoresLike: TypeAlias = Scores | Examples | ArrayLike
