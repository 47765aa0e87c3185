"""Checks of labels, ids and names of rows: one for each input."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import Integers, as_array, as_texts, is_text
from .errors import InputError


def as_labels(labels: ArrayLike, n: int, classes: int) -> Integers:
    """Labels as int64: one for each of n inputs, integers in 0..classes-1."""
    array = as_array(labels, "labels")
    if array.ndim != 1:
        raise InputError(
            f"labels has shape {array.shape}: one axis, one label for each input, is needed."
        )
    if len(array) != n:
        raise InputError(
            f"labels has {len(array)} entries for {n} inputs: give one label for each input."
        )
    if array.dtype.kind not in "iu":
        raise InputError(
            f"labels has dtype {array.dtype}: class indices as integers are needed; convert whole "
            "numbers with astype(int), names with numpy.unique(labels, return_inverse=True), "
            "which numbers the classes in alphabetical order."
        )
    wrong = array[(array < 0) | (array >= classes)]
    if wrong.size:
        raise InputError(
            f"labels holds {wrong[0]}, but there are {classes} classes: "
            f"labels run from 0 to {classes - 1}."
        )
    return array.astype(np.int64)


def as_ids(ids: ArrayLike | None, n: int) -> NDArray[Any] | None:
    """The ids of n inputs, whole numbers or strings; None stays None."""
    return None if ids is None else as_row_names(ids, n, "ids")


def as_row_names(names: ArrayLike, n: int, name: str) -> NDArray[Any]:
    """A name for each of n inputs, such as the person it comes from: whole numbers or strings."""
    array = as_texts(as_array(names, name), name)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise InputError(
            f"{name} has shape {array.shape} and dtype {array.dtype}: "
            "give one whole number or one string for each input."
        )
    if array.dtype.kind == "U" and not is_text("".join(array.tolist())):
        raise InputError(
            f"{name} holds codes that are no characters: give texts that can be written to a file."
        )
    if len(array) != n:
        raise InputError(
            f"{name} has {len(array)} entries for {n} inputs: give one for each input."
        )
    return array
