"""Checks of inputs (n, T, ...): their shape, rows, labels, and the arrays of their sparse form."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    InputError,
    Integers,
    as_labels,
    as_names,
    check_finite,
    in_memory,
    is_integer,
)

RowIndex: TypeAlias = int | slice | Sequence[int] | Sequence[bool] | NDArray[Any]

MOST_CELLS = 2**62
NO_NAMES = 2**31  # labels may be any class index below this where the classes have no names


def as_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (n, T, ...) of inputs."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if len(sizes) < 2 or not all(
        is_integer(size) and size >= least
        for size, least in zip(sizes, (0, *[1] * len(sizes)), strict=False)
    ):
        raise InputError(
            f"inputs has shape {sizes or shape}: (n, T, ...) is needed, with at least one step and "
            "no axis of length 0."
        )
    if math.prod(sizes[1:]) * max(1, sizes[0]) >= MOST_CELLS:
        raise InputError(
            f"inputs has shape {sizes}, more than 2^62 cells: give fewer or smaller inputs."
        )
    return tuple(int(size) for size in sizes)


def as_rows(index: RowIndex, n: int) -> Integers:
    """Row numbers (b,), from 0 to n-1."""
    if isinstance(index, slice):
        return np.arange(n)[index]
    rows = np.atleast_1d(np.asarray(index))
    if rows.ndim == 1 and rows.dtype == np.bool_ and len(rows) == n:
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise InputError(
            f"the rows are given as {rows.dtype} of shape {rows.shape}: give a slice, integers, or "
            f"a mask of {n} booleans."
        )
    rows = rows.astype(np.int64)
    if rows.size and (rows.min() < -n or rows.max() >= n):
        wrong = rows[(rows < -n) | (rows >= n)][0]
        raise InputError(
            f"row {wrong} is asked for, but there are {n} inputs: give rows from 0 to {n - 1}."
        )
    return np.where(rows < 0, rows + n, rows)


def as_labels_and_classes(
    labels: ArrayLike | None, classes: Sequence[str] | None, n: int
) -> tuple[Integers | None, tuple[str, ...] | None]:
    """Labels (n,) and names of classes, checked, or None where they are not known."""
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Iterable)):
        raise InputError(f"classes is {classes!r}: give a list of names, one for each class.")
    names = None if classes is None else as_names(classes, "classes")
    return None if labels is None else as_labels(
        labels, n, NO_NAMES if names is None else len(names)
    ), names


def index_type(cells: int) -> type[np.generic]:
    """The smallest dtype for the indices of a step with this number of cells."""
    return np.uint16 if cells <= 2**16 else np.uint32 if cells <= 2**32 else np.int64


def by_row(pointers: Integers, shape: tuple[int, ...]) -> Integers:
    """Pointers (n T + 1,) as (n, T + 1), a view: a row ends where the next one begins."""
    (step,) = pointers.strides
    return np.lib.stride_tricks.as_strided(
        pointers, (shape[0], shape[1] + 1), (shape[1] * step, step), writeable=False
    )


def check_sparse(
    indices: NDArray[Any],
    pointers: NDArray[Any],
    values: NDArray[Any] | None,
    shape: tuple[int, ...],
    block: int,
) -> Integers:
    """Refuse arrays that are not the sparse form of one dense array.

    Otherwise return the pointers (n, T + 1).

    block: how many events are checked together, because a mapped file may be larger than memory
    """
    cells, steps = math.prod(shape[2:]), shape[0] * shape[1]
    if (
        indices.ndim != 1
        or indices.dtype.kind not in "iu"
        or pointers.ndim != 1
        or pointers.dtype.kind not in "iu"
    ):
        given = (
            f"indices are {indices.dtype} of shape {indices.shape} and pointers {pointers.dtype} "
            f"of shape {pointers.shape}"
        )
        raise InputError(f"{given}: one axis of integers is needed for both.")
    if len(pointers) != steps + 1:
        given = f"{len(pointers)} entries for {shape[0]} inputs of {shape[1]} steps"
        raise InputError(f"pointers has {given}: n T + 1 = {steps + 1} are needed.")
    if pointers[0] != 0 or pointers[-1] != len(indices) or (pointers[1:] < pointers[:-1]).any():
        right = f"rise from 0 to {len(indices)}, the number of indices, and never fall"
        raise InputError(f"pointers must {right}: check how they were written.")
    if values is not None:
        if (
            values.shape != indices.shape
            or values.dtype.kind not in "iuf"
            or values.dtype.itemsize > 8
        ):
            given = f"values are {values.dtype} of shape {values.shape} for {len(indices)} indices"
            raise InputError(
                f"{given}: one real number for each index is needed, or no values where every "
                "event is 1."
            )
        check_finite(values, "values")
        if not values.all():
            raise InputError(
                "values holds 0: leave out what is zero, for only what is not is stored."
            )
    starts = pointers.astype(np.int64, copy=False)
    for first in range(0, len(indices), block):
        part = in_memory(indices[first : first + block + 1])
        if int(part.min()) < 0 or int(part.max()) >= cells:
            wrong = int(part.max() if part.min() >= 0 else part.min())
            raise InputError(
                f"indices holds {wrong}, but a step of shape {shape[2:]} has {cells} cells: "
                f"indices run from 0 to {cells - 1}."
            )
        wrong_order = part[1:] <= part[:-1]
        begins = starts[slice(*np.searchsorted(starts, (first + 1, first + len(part))))]
        wrong_order[begins - (first + 1)] = False
        if wrong_order.any():
            raise InputError(
                "indices must increase within each step: sort them, and give each cell once."
            )
    return by_row(starts, shape)
