"""Checks of what a user hands in: each failure is one sentence that says what was given, what is needed and what to do."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import InputError, Integers, as_array, as_texts, check_finite, is_integer, is_text

from .schedules import Schedule, as_time


class CalibrationWarning(UserWarning):
    """The calibrated rule can never exclude a label, or its inputs end otherwise than in calibration; the message says what to do."""


def as_checkpoints(checkpoints: Sequence[float]) -> tuple[float, ...]:
    """Checkpoint times as a tuple: positive, finite, strictly increasing; whole numbers stay integers. A `Schedule` stays one."""
    if isinstance(checkpoints, Schedule):
        return checkpoints
    try:
        values = tuple(checkpoints)
    except TypeError:
        raise InputError(f"checkpoints is {checkpoints!r}: give a list of times, for example (20, 40, 60, 80).") from None
    if not values:
        raise InputError("checkpoints is empty: give at least one time at which the rule may stop.")
    times = [as_time(value) for value in values]
    for earlier, later in pairwise(times):
        if later <= earlier:
            raise InputError(f"checkpoints must increase, but {later} follows {earlier}: sort them and drop repeats.")
    return tuple(times)


def as_times(
    times: Sequence[float] | None, available: int, what: str = "log_confidence", checkpoints: Sequence[float] = ()
) -> tuple[float, ...]:
    """Times as a tuple, one for each of the `available` checkpoints of an array; those of the rule's checkpoints if none are given."""
    if times is None and len(checkpoints) != available:
        raise InputError(
            f"{what} has {available} checkpoints and the rule has {len(checkpoints)}: "
            "give as many, or pass times= to have a longer array cut to the rule's checkpoints."
        )
    known = as_checkpoints(checkpoints if times is None else times)
    if len(known) != available:
        raise InputError(f"times names {len(known)} moments and {what} has {available} checkpoints: give one time for each.")
    return known


def as_max_set_size(size: int) -> int:
    """The largest set that may stop, I_th: an integer of at least one."""
    if not is_integer(size) or size < 1:
        raise InputError(f"max_set_size is {size!r}: give the largest set that may stop, an integer of at least 1.")
    return int(size)


def as_log_confidence(log_confidence: ArrayLike, axes: str = "(n, M, K, C)") -> NDArray[Any]:
    """The array itself, checked: right number of axes, not empty, finite, nowhere positive. float32 stays float32."""
    array = as_array(log_confidence, "log_confidence")
    ndim = axes.count(",") + 1
    if array.dtype.kind not in "fiu":
        raise InputError(f"log_confidence has dtype {array.dtype}: it must hold real numbers.")
    if array.ndim != ndim:
        raise InputError(f"log_confidence has shape {array.shape}: {ndim} axes {axes} are needed.")
    if array.size == 0:
        raise InputError(f"log_confidence has shape {array.shape} and holds nothing: every axis of {axes} must be at least 1.")
    low, high = array.min(), array.max()
    if not (low > -np.inf and high <= 0):
        check_finite(array, "log_confidence")
        if low >= 0 and high <= 1:
            raise InputError("log_confidence lies between 0 and 1 like probabilities: give their logarithm, numpy.log(probabilities).")
        raise InputError(
            f"log_confidence reaches {high:.6g}, but the logarithm of a confidence is at most 0: "
            "pass spike counts or logits through log_confidence() first."
        )
    return array


def as_labels(labels: ArrayLike, n: int, classes: int) -> Integers:
    """Labels as int64: one for each of n inputs, integers in 0..classes-1."""
    array = as_array(labels, "labels")
    if array.ndim != 1:
        raise InputError(f"labels has shape {array.shape}: one axis, one label for each input, is needed.")
    if len(array) != n:
        raise InputError(f"labels has {len(array)} entries for {n} inputs: give one label for each input.")
    if array.dtype.kind not in "iu":
        raise InputError(
            f"labels has dtype {array.dtype}: class indices as integers are needed; convert whole numbers with astype(int), names with "
            "numpy.unique(labels, return_inverse=True), which numbers the classes in alphabetical order."
        )
    if n and (array.min() < 0 or array.max() >= classes):
        wrong = array[(array < 0) | (array >= classes)][0]
        raise InputError(f"labels holds {wrong}, but there are {classes} classes: labels run from 0 to {classes - 1}.")
    return array.astype(np.int64)


def as_ids(ids: ArrayLike | None, n: int) -> NDArray[Any] | None:
    """The ids of n inputs: whole numbers or strings; None if there are none."""
    return None if ids is None else as_row_names(ids, n, "ids")


def as_row_names(names: ArrayLike, n: int, name: str) -> NDArray[Any]:
    """A name for each of n inputs, such as that of a person: whole numbers or strings."""
    array = as_texts(as_array(names, name), name)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise InputError(f"{name} has shape {array.shape} and dtype {array.dtype}: give one whole number or one string for each input.")
    if array.dtype.kind == "U" and not is_text("".join(array.tolist())):
        raise InputError(f"{name} holds codes that are no characters: give texts that can be written to a file.")
    if len(array) != n:
        raise InputError(f"{name} has {len(array)} entries for {n} inputs: give one for each input.")
    return array


def columns_of(checkpoints: Sequence[float], times: Sequence[float], what: str = "log_confidence") -> list[int]:
    """Which of the times the checkpoints are; the looks of a schedule are found in times, or in the looks of another schedule."""
    wanted: Sequence[object] = checkpoints
    if isinstance(times, Schedule):
        if not isinstance(checkpoints, Schedule):
            raise InputError(f"{what} is cut to the looks of a schedule, but the rule has plain checkpoints: give the rule the schedule.")
        wanted, times = checkpoints.looks, times.looks  # type: ignore[assignment]
    column_of: dict[object, int] = {time: column for column, time in enumerate(times)}
    missing = [time for time in wanted if time not in column_of]
    if missing:
        raise InputError(f"times lacks the rule's checkpoint {missing[0]}: {what} must hold every checkpoint of the rule.")
    return [column_of[time] for time in wanted]
