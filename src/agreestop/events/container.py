"""Events: inputs of T steps, stored without their zeros.

    position of an event     i = flat index of its cell within one step, 0 <= i < cells, cells = product of shape[2:]
    events of step t of      indices[pointers[n T + t] : pointers[n T + t + 1]], in increasing order;
    input n                  their values stand at the same positions of `values`, or are all True where `values` is None

A dense array (n, T, ...) is accepted wherever an `Events` is. `from_dense` and `to_dense` are inverses of each other, the dtype
included (only the sign of a zero is lost). Both work on blocks of rows, so they need little extra memory.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import GAMMA, InputError, Integers, Words, as_array, check_finite, is_integer, mix, write_npz
from agreestop.decide.checks import as_labels

RowIndex: TypeAlias = int | slice | Sequence[int] | Sequence[bool] | NDArray[Any]

BLOCK = 2**22  # cells of the dense form, or events, that are handled at once
MOST_CELLS = 2**62
NO_NAMES = 2**31  # labels may be any class index below this where the classes have no names
ONE = np.float64(1.0).view(np.uint64)


@dataclass(frozen=True, eq=False)
class Events:
    """n inputs of T steps, sparse.

    indices   (nnz,) unsigned or int64: position of each event within its step
    pointers  (n T + 1,) int64: where the events of each step begin, and the end
    values    (nnz,) numbers other than 0, or None where every event is True
    shape     (n, T, ...) of the dense form
    labels    (n,) int64, from 0 to C-1, where they are known
    classes   names of the C classes, where they are known
    """

    indices: NDArray[Any]
    pointers: Integers
    values: NDArray[Any] | None
    shape: tuple[int, ...]
    labels: Integers | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        shape = as_shape(self.shape)
        indices, pointers = np.asanyarray(self.indices), np.asanyarray(self.pointers)
        values = None if self.values is None else np.asanyarray(self.values)
        _check_sparse(indices, pointers, values, shape)
        labels, classes = as_labels_and_classes(self.labels, self.classes, shape[0])
        checked = (indices, pointers.astype(np.int64, copy=False), values, shape, labels, classes)
        for field, value in zip(fields(self), checked, strict=True):
            object.__setattr__(self, field.name, value)

    @classmethod
    def from_dense(cls, x: ArrayLike, labels: ArrayLike | None = None, classes: Sequence[str] | None = None) -> Self:
        """The sparse form of an array (n, T, ...) of booleans or real, finite numbers."""
        array = as_inputs(x)
        assert isinstance(array, np.ndarray)
        cells, steps = math.prod(array.shape[2:]), array.shape[1]
        index_type = np.uint32 if cells <= 2**32 else np.int64
        indices, values, pointers = [np.empty(0, index_type)], [np.empty(0, array.dtype)], np.zeros(len(array) * steps + 1, np.int64)
        for rows in _row_blocks(array.shape):
            block = np.ascontiguousarray(array[rows]).reshape(-1)
            found = np.flatnonzero(block if block.dtype == np.bool_ else block != 0)
            starts = cells * np.arange((rows.stop - rows.start) * steps + 1)
            pointers[rows.start * steps : rows.stop * steps + 1] = np.searchsorted(found, starts) + pointers[rows.start * steps]
            if array.dtype != np.bool_:
                check_finite(block, "inputs")
                values.append(block[found])
            indices.append((found % cells).astype(index_type))
        kept = None if array.dtype == np.bool_ else np.concatenate(values)
        return cls(np.concatenate(indices), pointers, kept, array.shape, labels, classes)  # type: ignore[arg-type]

    def to_dense(self) -> NDArray[Any]:
        """The array (n, T, ...), with the dtype that `from_dense` was given."""
        try:
            dense = np.zeros(self.shape, self.dtype)
        except MemoryError:
            size = math.prod(self.shape) * self.dtype.itemsize
            raise InputError(f"inputs of shape {self.shape} take {size:,} bytes as a dense array: take fewer rows.") from None
        cells, steps = math.prod(self.shape[2:]), self.shape[1]
        flat = dense.reshape(-1)
        for rows in _row_blocks(self.shape):
            bounds = self.pointers[rows.start * steps : rows.stop * steps + 1]
            part = slice(int(bounds[0]), int(bounds[-1]))
            starts = cells * np.arange(rows.start * steps, rows.stop * steps)
            positions = np.repeat(starts, np.diff(bounds)) + self.indices[part].astype(np.int64)
            flat[positions] = True if self.values is None else self.values[part]
        return dense

    def rows(self, index: RowIndex) -> Self:
        """Some of the inputs, in the order of `index`: a slice, integers (negative ones count from the end) or a mask (n,)."""
        rows = _as_rows(index, len(self))
        steps = self.shape[1]
        first, last = self.pointers[rows * steps], self.pointers[(rows + 1) * steps]
        counts = last - first
        ends = np.cumsum(counts)
        taken = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
        inner = self.pointers[rows[:, None] * steps + np.arange(1, steps + 1)] - first[:, None] + (ends - counts)[:, None]
        pointers = np.concatenate((np.zeros(1, np.int64), inner.reshape(-1)))
        values = None if self.values is None else self.values[taken]
        labels = None if self.labels is None else self.labels[rows]
        return type(self)(self.indices[taken], pointers, values, (len(rows), *self.shape[1:]), labels, self.classes)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file that `load` reads and memory-maps (its format: `agreestop.events.files`), whole or not at all."""
        write_npz(path, self.arrays())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the file."""
        known = {"values": self.values, "labels": self.labels}
        arrays = {"shape": np.array(self.shape, np.int64), "indices": self.indices, "pointers": self.pointers}
        arrays |= {name: array for name, array in known.items() if array is not None}
        return arrays if self.classes is None else arrays | {"classes": np.array(self.classes, np.str_)}

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the dense form."""
        return np.dtype(np.bool_) if self.values is None else self.values.dtype

    @property
    def density(self) -> float:
        """The share of cells that are not zero, over all inputs and steps."""
        return len(self.indices) / max(1, math.prod(self.shape))

    def __repr__(self) -> str:
        labelled = "" if self.labels is None else ", labelled"
        return f"Events(shape={self.shape}, dtype={self.dtype}, density={self.density:.3g}{labelled})"


Inputs: TypeAlias = NDArray[Any] | Events
"""Inputs (n, T, ...), dense or sparse."""


def as_inputs(x: ArrayLike | Events) -> Inputs:
    """An `Events` as it is, or an array (n, T, ...) of booleans or real numbers in the byte order of this machine."""
    if isinstance(x, Events):
        return x
    array = as_array(x, "inputs")
    as_shape(array.shape)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise InputError(f"inputs has dtype {array.dtype}: booleans or real numbers of at most 64 bits are needed.")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def input_shape(x: ArrayLike | Events) -> tuple[int, ...]:
    """(n, T, ...) of inputs, dense or sparse."""
    return tuple(as_inputs(x).shape)


def dense_rows(x: ArrayLike | Events, index: RowIndex) -> NDArray[Any]:
    """Some rows (b, T, ...) of inputs, dense or sparse, as a dense array; `index` is that of `Events.rows`."""
    inputs = as_inputs(x)
    if isinstance(inputs, Events):
        return inputs.rows(index).to_dense()
    return inputs[index if isinstance(index, slice) else _as_rows(index, len(inputs))]


def input_ids(x: ArrayLike | Events) -> NDArray[np.uint64]:
    """A hash (n,) of each input, the same for an array and for the `Events` made from it, and independent of the other inputs.

    The hash adds up one word for each event, which is mixed from its position and its value (see `common.splitmix`), and mixes the
    sum with the shape (T, ...). Equal numbers of different dtypes have equal hashes. Two different inputs get the same hash with a
    probability of about 2^-64.
    """
    inputs = as_inputs(x)
    shape = inputs.shape
    form = np.zeros(1, np.uint64)
    for side in shape[1:]:
        form = mix(form + GAMMA * np.array([side + 1], np.uint64))
    hashes = np.empty(len(inputs), np.uint64)
    for rows in _row_blocks(shape):
        part = inputs.rows(rows) if isinstance(inputs, Events) else Events.from_dense(inputs[rows])
        starts = np.tile(np.arange(shape[1], dtype=np.uint64) * np.uint64(math.prod(shape[2:])), len(part))
        words = mix(form + GAMMA * (np.repeat(starts, np.diff(part.pointers)) + part.indices.astype(np.uint64) + np.uint64(1)))
        words = mix(words ^ (ONE if part.values is None else _as_words(part.values)))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))[part.pointers[:: shape[1]]]
        hashes[rows] = mix(form + np.diff(sums))
    return hashes


def _as_words(values: NDArray[Any]) -> Words:
    """One word for each value: its bits as float64, and what float64 loses of an integer beyond 2^53."""
    numbers = values.astype(np.float64)
    words: Words = numbers.view(np.uint64)
    if values.dtype.kind == "f" or values.dtype.itemsize < 8:
        return words
    high = np.floor(numbers / 2**32)
    kept = (high.astype(np.int64).view(np.uint64) << np.uint64(32)) + (numbers - high * 2**32).astype(np.uint64)
    return words + GAMMA * (values.view(np.uint64) - kept)


def _row_blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Slices of rows that hold about BLOCK cells each."""
    together = max(1, BLOCK // math.prod(shape[1:]))
    for start in range(0, shape[0], together):
        yield slice(start, min(start + together, shape[0]))


def as_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (n, T, ...) of inputs."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if len(sizes) < 2 or not all(is_integer(size) and size >= least for size, least in zip(sizes, (0, *[1] * len(sizes)), strict=False)):
        raise InputError(f"inputs has shape {sizes or shape}: (n, T, ...) is needed, with at least one step and no axis of length 0.")
    if math.prod(sizes[1:]) * max(1, sizes[0]) >= MOST_CELLS:
        raise InputError(f"inputs has shape {sizes}, more than 2^62 cells: give fewer or smaller inputs.")
    return tuple(int(size) for size in sizes)


def _as_rows(index: RowIndex, n: int) -> Integers:
    """Row numbers (b,), from 0 to n-1."""
    if isinstance(index, slice):
        return np.arange(n)[index]
    rows = np.atleast_1d(np.asarray(index))
    if rows.ndim == 1 and rows.dtype == np.bool_ and len(rows) == n:
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise InputError(f"the rows are given as {rows.dtype} of shape {rows.shape}: give a slice, integers, or a mask of {n} booleans.")
    rows = rows.astype(np.int64)
    if rows.size and (rows.min() < -n or rows.max() >= n):
        wrong = rows[(rows < -n) | (rows >= n)][0]
        raise InputError(f"row {wrong} is asked for, but there are {n} inputs: give rows from 0 to {n - 1}.")
    return np.where(rows < 0, rows + n, rows)


def as_labels_and_classes(
    labels: ArrayLike | None, classes: Sequence[str] | None, n: int
) -> tuple[Integers | None, tuple[str, ...] | None]:
    """Labels (n,) and names of classes, checked, or None where they are not known."""
    if isinstance(classes, str):
        raise InputError(f"classes is {classes!r}: give a list of names, one for each class.")
    names = None if classes is None else tuple(str(name) for name in classes)
    return None if labels is None else as_labels(labels, n, NO_NAMES if names is None else len(names)), names


def _check_sparse(indices: NDArray[Any], pointers: NDArray[Any], values: NDArray[Any] | None, shape: tuple[int, ...]) -> None:
    """Refuse arrays that are not the sparse form of one dense array."""
    cells, steps = math.prod(shape[2:]), shape[0] * shape[1]
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or pointers.ndim != 1 or pointers.dtype.kind not in "iu":
        given = f"indices are {indices.dtype} of shape {indices.shape} and pointers {pointers.dtype} of shape {pointers.shape}"
        raise InputError(f"{given}: one axis of integers is needed for both.")
    if len(pointers) != steps + 1:
        given = f"{len(pointers)} entries for {shape[0]} inputs of {shape[1]} steps"
        raise InputError(f"pointers has {given}: n T + 1 = {steps + 1} are needed.")
    if pointers[0] != 0 or pointers[-1] != len(indices) or (pointers[1:] < pointers[:-1]).any():
        right = f"rise from 0 to {len(indices)}, the number of indices, and never fall"
        raise InputError(f"pointers must {right}: check how they were written.")
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= cells):
        wrong = int(indices.max() if indices.min() >= 0 else indices.min())
        raise InputError(f"indices holds {wrong}, but a step of shape {shape[2:]} has {cells} cells: indices run from 0 to {cells - 1}.")
    begins = np.zeros(len(indices) + 1, np.bool_)
    begins[pointers] = True
    if ((indices[1:] <= indices[:-1]) & ~begins[1:-1]).any():
        raise InputError("indices must increase within each step: sort them, and give each cell once.")
    if values is not None:
        if values.shape != indices.shape or values.dtype.kind not in "iuf" or values.dtype.itemsize > 8:
            given = f"values are {values.dtype} of shape {values.shape} for {len(indices)} indices"
            raise InputError(f"{given}: one real number for each index is needed, or no values where every event is 1.")
        check_finite(values, "values")
        if not values.all():
            raise InputError("values holds 0: leave out what is zero, for only what is not is stored.")
