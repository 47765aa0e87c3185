"""What a rule reads off its inputs at a checkpoint, with a name for each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Floats, Integers

Index: TypeAlias = int | Integers
"""The checkpoint of a whole batch, or one checkpoint for each of its inputs, (b,)."""


@dataclass(frozen=True, eq=False, slots=True)
class Evidence:
    """What a rule reads off b inputs at a checkpoint, or off n inputs at all M checkpoints: then the second axis is the checkpoint.

    values    (b, C) for each class, or (b, K, C) for each member and class
    log_risk  (b,) log e, the risk that the best classes miss; None for rules that estimate no risk
    """

    values: Floats
    log_risk: Floats | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Evidence:
        """Some of the inputs, or with two indices some inputs at some checkpoints; every part is indexed alike."""
        return Evidence(self.values[key], None if self.log_risk is None else self.log_risk[key])

    def minus(self, offsets: float | Floats) -> Evidence:
        """All parts less an offset: one number, one for each input (b,), or one for each checkpoint (M,)."""
        by_class = np.asarray(offsets)[..., None]
        return Evidence(self.values - by_class, None if self.log_risk is None else self.log_risk - offsets)

    @classmethod
    def stack(cls, parts: Sequence[Evidence]) -> Evidence:
        """The evidence of one checkpoint after another, as (n, M, ...)."""
        risks = [part.log_risk for part in parts if part.log_risk is not None]
        return cls(np.stack([part.values for part in parts], axis=1), np.stack(risks, axis=1) if risks else None)

    @classmethod
    def concatenate(cls, parts: Sequence[Evidence]) -> Evidence:
        """The evidence of one batch of inputs after another."""
        risks = [part.log_risk for part in parts if part.log_risk is not None]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate(risks) if risks else None)


Number = TypeVar("Number", bound=np.generic)


def at_checkpoints(index: Index, inputs: Floats, read: Callable[[int, Floats], NDArray[Number]]) -> NDArray[Number]:
    """`read(checkpoint, inputs)` for one checkpoint, or for inputs at different checkpoints, one checkpoint after another."""
    if not isinstance(index, np.ndarray):
        return read(index, inputs)
    parts = [(index == checkpoint, int(checkpoint)) for checkpoint in np.unique(index)]
    if not parts:
        return read(0, inputs)
    results = [read(checkpoint, inputs[rows]) for rows, checkpoint in parts]
    joined = np.empty((len(inputs), *results[0].shape[1:]), results[0].dtype)
    for (rows, _), result in zip(parts, results, strict=True):
        joined[rows] = result
    return joined
