"""The tuning split: labelled log-confidences that are neither calibration nor test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common.arrays import Floats, Integers
from agreestop.common.errors import InputError

from .checks import as_checkpoints, as_labels, as_log_confidence, columns_of
from .tuned_rows import TunedRows


@dataclass(frozen=True, eq=False)
class TuningData:
    """Checked tuning data: log-confidences (n, M, K, C), labels (n,), and times where they were named."""

    log_confidence: NDArray[Any]
    labels: Integers
    times: tuple[float, ...] | None

    @classmethod
    def of(cls, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None) -> TuningData:
        array = as_log_confidence(log_confidence)
        known = None if times is None else as_checkpoints(times)
        if known is not None and len(known) != array.shape[1]:
            raise InputError(
                f"times names {len(known)} moments and log_confidence has {array.shape[1]} checkpoints: give one time for each."
            )
        return cls(array, as_labels(labels, len(array), array.shape[3]), known)

    @property
    def rows(self) -> TunedRows:
        return TunedRows.of(self.log_confidence)

    @property
    def checkpoints(self) -> int:
        return int(self.log_confidence.shape[1])

    def at(self, index: int) -> Floats:
        """(n, K, C) log-confidences of one checkpoint."""
        return np.ascontiguousarray(self.log_confidence[:, index], dtype=np.float64)

    def of_label(self, values: Floats) -> Floats:
        """The entry of each row's own label, from values (n, C)."""
        return values[np.arange(len(self.labels)), self.labels]


Fitted = TypeVar("Fitted", bound=Any)


def cut_fitted(fitted: Fitted, checkpoints: tuple[float, ...]) -> Fitted:
    """A fitted score or risk restricted to a rule's checkpoints: every field with an axis of checkpoints is cut.

    Without named times the object must have been fitted for exactly as many checkpoints as the rule has.
    """
    columns = columns_of(checkpoints, fitted.fitted_checkpoints, fitted.times, type(fitted).__name__)
    changes: dict[str, Any] = {"times": checkpoints}
    for field in fields(fitted):
        value = getattr(fitted, field.name)
        if isinstance(value, TunedRows):
            changes[field.name] = value.cut(columns, fitted.fitted_checkpoints)
        elif isinstance(value, np.ndarray) and field.metadata.get("per_checkpoint"):
            changes[field.name] = value[columns]
    return replace(fitted, **changes)
