"""What engines take: whole inputs, and the events of one step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common.arrays import Integers
from agreestop.common.errors import InputError


def as_inputs(inputs: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Inputs (n, T, *shape) of finite numbers or booleans, at least one of at least one step."""
    array = np.asarray(inputs)
    wanted = f"(n, T, {', '.join(map(str, shape))})"
    if array.ndim != len(shape) + 2 or tuple(array.shape[2:]) != tuple(shape) or not array.size:
        raise InputError(f"inputs has shape {array.shape}: {wanted}, n and T at least 1, is what these members were trained on.")
    if array.dtype.kind not in "bfiu":
        raise InputError(f"inputs has dtype {array.dtype}: booleans or numbers are needed.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError("inputs holds values that are not finite: mend or drop those inputs.")
    return array.copy() if min(array.strides) < 0 else array  # PyTorch takes no array that runs backwards


def as_places(events: ArrayLike, size: int) -> Integers:
    """The flat places of the active inputs of a step, from 0 to size - 1; an input named twice is active all the same."""
    places = np.asarray(events)
    if places.size == 0:
        return np.zeros(0, np.int64)
    if places.ndim != 1 or places.dtype.kind not in "iu":
        raise InputError(
            f"events has shape {places.shape} and dtype {places.dtype}: a list of whole numbers, the active inputs, is needed."
        )
    if places.min() < 0 or places.max() >= size:
        raise InputError(f"events reaches from {places.min()} to {places.max()}: the sensor's inputs are numbered 0 to {size - 1}.")
    return places.astype(np.int64)
