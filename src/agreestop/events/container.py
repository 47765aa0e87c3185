"""Events: inputs of T steps, stored without their zeros.

    index of an event        i = flat index of its cell within one step, 0 <= i < cells,
                             cells = product of shape[2:]
    events of step t of      indices[pointers[n, t] : pointers[n, t + 1]], in increasing order;
    input n                  their values stand at the same positions of `values`, or are all True
                             where `values` is None

Counts: several events of one cell in one step are stored once, and `values` holds their number, as
any integer type. Inputs that only fire or not have `values` None, and pay nothing for it. A network
of real inputs multiplies the weights of an event by its value.

Rows are selected without a copy of their events: a selection has pointers of its own into the same
`indices` and `values`, in any order. So an `Events` in a memory-mapped file is read when its rows
are used, and may be larger than memory. `compact` copies the events of a selection together; files
and pickles hold the compact form.

A dense array (n, T, ...) is accepted wherever an `Events` is. `from_dense` and `to_dense` are
inverses of each other, the dtype included (only the sign of a zero is lost). Both work on blocks of
rows, so they need little extra memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    GAMMA,
    InputError,
    Integers,
    Words,
    as_array,
    as_labels,
    as_names,
    check_finite,
    check_unchanged,
    in_memory,
    is_integer,
    join_parts,
    mix,
    write_npz,
)
from agreestop.common.errors import quoted

RowIndex: TypeAlias = int | slice | Sequence[int] | Sequence[bool] | NDArray[Any]

MOST_CELLS = 2**62
NO_NAMES = 2**31  # labels may be any class index below this where the classes have no names


BLOCK = 2**22  # cells of the dense form, or events, that are handled at once
ONE = np.float64(1.0).view(np.uint64)


@dataclass(frozen=True, eq=False)
class Events:
    """n inputs of T steps, sparse.

    indices   (nnz,) unsigned or int64: index of each event's cell within its step; uint16 where a
              step has at most 2^16 cells
    pointers  (n, T + 1) int64: where the events of each step begin, and the end of the last; may be
              given as n T + 1 numbers from 0 to nnz
    values    (nnz,) numbers other than 0, such as counts, or None where every event is True
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
        shape = as_input_shape(self.shape)
        indices, given = np.asanyarray(self.indices), np.asanyarray(self.pointers)
        values = None if self.values is None else np.asanyarray(self.values)
        pointers = check_sparse(indices, given, values, shape, BLOCK)
        self._set(
            indices,
            pointers,
            values,
            shape,
            *as_labels_and_classes(self.labels, self.classes, shape[0]),
        )

    def _set(self, *values: Any) -> Self:
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)
        return self

    @classmethod
    def _of(cls, *values: Any) -> Self:
        """Of fields that are known to fit together."""
        return object.__new__(cls)._set(*values)

    def _with(self, indices: NDArray[Any], pointers: Any, values: NDArray[Any] | None) -> Self:
        """The same shape, labels and classes with other events."""
        return self._of(indices, pointers, values, self.shape, self.labels, self.classes)

    @classmethod
    def from_dense(
        cls,
        x: "ArrayLike | Events",
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
    ) -> "Events":
        """The sparse form of an array (n, T, ...) of booleans or real, finite numbers.

        Of an `Events`: its events, with these labels.
        """
        array = as_inputs(x)
        if isinstance(array, Events):
            named = as_labels_and_classes(labels, classes, len(array))
            return cls._of(array.indices, array.pointers, array.values, array.shape, *named)
        return cls.from_blocks(
            lambda rows: in_memory(array[rows]), array.shape, array.dtype, labels, classes
        )

    @classmethod
    def from_blocks(
        cls,
        read: Callable[[slice], NDArray[Any]],
        shape: tuple[int, ...],
        dtype: Any,
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
    ) -> Self:
        """The sparse form of an array that is read some rows at a time: `read(rows)` gives the
        rows of a slice, and is called twice.
        """
        cells, steps, plain = math.prod(shape[2:]), shape[1], np.dtype(dtype) == np.bool_
        # Events are counted first, so that every array is made once, at its size.
        total = sum(int(np.count_nonzero(read(rows))) for rows in _row_blocks(shape))
        indices = np.empty(total, index_type(cells))
        pointers = np.zeros(shape[0] * steps + 1, np.int64)
        values = None if plain else np.empty(total, dtype)
        for rows in _row_blocks(shape):
            block = np.ascontiguousarray(read(rows)).reshape(-1)
            if not plain:
                check_finite(block, "inputs")
            found = np.flatnonzero(block if plain else block != 0)
            first = int(pointers[rows.start * steps])
            starts = cells * np.arange((rows.stop - rows.start) * steps + 1)
            pointers[rows.start * steps : rows.stop * steps + 1] = (
                np.searchsorted(found, starts) + first
            )
            indices[first : first + len(found)] = found % cells
            if values is not None:
                values[first : first + len(found)] = block[found]
        return cls._of(
            indices,
            by_row(pointers, shape),
            values,
            shape,
            *as_labels_and_classes(labels, classes, shape[0]),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, which have the same (T, ...) and dtype, one part after the
        other; without labels and classes.
        """
        if not parts or any(
            part.shape[1:] != parts[0].shape[1:] or part.dtype != parts[0].dtype for part in parts
        ):
            raise InputError(
                "the parts have different shapes or dtypes, or there are none: give at least one, "
                "all with the same (T, ...)."
            )
        compact = [part.compact() for part in parts]
        ends = np.cumsum([0, *(len(part.indices) for part in compact)])
        pointers = np.concatenate(
            [part.pointers + end for part, end in zip(compact, ends[:-1], strict=True)]
        )
        values = join_parts([part.values for part in compact])
        shape = (len(pointers), *parts[0].shape[1:])
        indices = np.concatenate([part.indices for part in compact])
        return cls._of(indices, pointers, values, shape, None, None)

    def to_dense(self) -> NDArray[Any]:
        """The array (n, T, ...), with the dtype that `from_dense` was given."""
        try:
            dense = np.zeros(self.shape, self.dtype)
        except MemoryError:
            size = math.prod(self.shape) * self.dtype.itemsize
            raise InputError(
                f"inputs of shape {self.shape} take {size:,} bytes as a dense array: take fewer "
                "rows."
            ) from None
        cells, steps = math.prod(self.shape[2:]), self.shape[1]
        flat = dense.reshape(-1)
        for rows in _row_blocks(self.shape):
            part = self.rows(rows).in_memory()
            starts = cells * np.arange(rows.start * steps, rows.stop * steps)
            positions = np.repeat(starts, np.diff(part.pointers).reshape(-1)) + part.indices.astype(
                np.int64
            )
            flat[positions] = True if part.values is None else part.values
        return dense

    def rows(self, index: RowIndex) -> Self:
        """Some of the inputs, in the order of `index`: a slice, integers (negative ones count from
        the end) or a mask (n,).

        The events are not copied; see `compact`.
        """
        rows = index if isinstance(index, slice) else as_rows(index, len(self))
        check_unchanged(self.indices)
        pointers = self.pointers[rows]
        labels, shape = None if self.labels is None else self.labels[rows], self.shape[1:]
        selected = self.indices, pointers, self.values, (len(pointers), *shape)
        return self._of(*selected, labels, self.classes)

    def first_steps(self, lengths: Integers) -> Self:
        """The same inputs, of which only the first steps (n,) have events; the events
        are not copied.
        """
        check_unchanged(self.indices)
        ends = self.pointers[np.arange(len(self)), lengths]
        return self._with(self.indices, np.minimum(self.pointers, ends[:, None]), self.values)

    def compact(self) -> Self:
        """The same inputs with their events, and no others, one after the other in memory; views
        where they are so already.
        """
        check_unchanged(self.indices)
        pointers = self.pointers
        if not len(self):
            first = last = ends = np.zeros(0, np.int64)
        else:
            first, last = pointers[:, 0], pointers[:, -1]
            ends = np.cumsum(last - first)
        taken: slice | list[slice]
        if np.array_equal(first[1:], last[:-1]):
            taken = slice(int(first[0]), int(last[-1])) if len(self) else slice(0, 0)
            if taken == slice(0, len(self.indices)):
                return self
        else:
            taken = [slice(*ends) for ends in zip(first.tolist(), last.tolist(), strict=True)]
        moved = in_memory(pointers) + (ends - last)[:, None]
        values = None if self.values is None else _take(self.values, taken)
        return self._with(_take(self.indices, taken), moved, values)

    def in_memory(self) -> Self:
        """The same as `compact`; what is mapped is read from the file, whose later fate does
        not matter then.
        """
        part = self.compact()
        values = None if part.values is None else in_memory(part.values)
        return part._with(in_memory(part.indices), in_memory(part.pointers), values)

    def astype(self, dtype: Any) -> Self:
        """The same inputs as numbers of another dtype. Values that become 0 are left out."""
        if self.dtype == np.dtype(dtype):
            return self
        if np.dtype(dtype).kind not in "biuf":
            raise InputError(
                f"dtype is {np.dtype(dtype)}: give one of booleans, integers or floating-point "
                "numbers."
            )
        part = self.compact()
        values = np.ones(part.count, dtype) if part.values is None else part.values.astype(dtype)
        if not values.all() or np.dtype(dtype) == np.bool_:
            return self.from_blocks(
                lambda rows: part.rows(rows).to_dense().astype(dtype),
                self.shape,
                np.dtype(dtype),
                self.labels,
                self.classes,
            )
        return part._with(part.indices, part.pointers, values)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file that `load` reads and memory-maps (its format:
        `agreestop.events.files`), whole or not at all.
        """
        write_npz(path, self.arrays())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the file; pointers are n T + 1 numbers there."""
        part = self.compact()
        pointers = np.append(part.pointers[:, :-1].reshape(-1), len(part.indices))
        arrays = {
            "shape": np.array(self.shape, np.int64),
            "indices": part.indices,
            "pointers": pointers,
        }
        known = {"values": part.values, "labels": self.labels}
        arrays |= {name: array for name, array in known.items() if array is not None}
        return (
            arrays
            if self.classes is None
            else arrays | {"classes": np.array(self.classes, np.str_)}
        )

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = self.arrays()
        return type(self), (
            arrays["indices"],
            arrays["pointers"],
            arrays.get("values"),
            self.shape,
            self.labels,
            self.classes,
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """`events[rows]` is `events.rows(rows)`.

        One row, or an index with several axes, gives the dense array that numpy would give.
        """
        if isinstance(index, tuple) or is_integer(index):
            first, *others = index if isinstance(index, tuple) else (index,)
            if is_integer(first):
                return self.rows(first).to_dense()[(0, *others)]
            if isinstance(first, slice):
                return self.rows(first).to_dense()[(slice(None), *others)]
            raise InputError(
                "the first of several axes is no slice and no integer: take the rows first, then "
                "to_dense()."
            )
        return self.rows(index)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Every input as a dense array (T, ...)."""
        return (self.rows(row).to_dense()[0] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The dense form, for functions of numpy."""
        return self.to_dense().astype(dtype or self.dtype, copy=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the dense form."""
        return np.dtype(np.bool_) if self.values is None else self.values.dtype

    @property
    def count(self) -> int:
        """The number of cells that are not zero, over all inputs and steps."""
        check_unchanged(self.indices)
        return int((self.pointers[:, -1] - self.pointers[:, 0]).sum())

    @property
    def density(self) -> float:
        """The share of cells that are not zero, over all inputs and steps."""
        return self.count / max(1, math.prod(self.shape))

    def __repr__(self) -> str:
        labelled = "" if self.labels is None else ", labelled"
        return (
            f"Events(shape={self.shape}, dtype={self.dtype}, density={self.density:.3g}{labelled})"
        )


Inputs: TypeAlias = NDArray[Any] | Events
"""Inputs (n, T, ...), dense or sparse."""


def as_inputs(x: ArrayLike | Events) -> Inputs:
    """An `Events` as it is, or an array (n, T, ...) of booleans or real numbers in the byte
    order of this machine.
    """
    if isinstance(x, Events):
        return x
    if isinstance(x, (str, PathLike)):
        raise InputError(
            f"inputs is {str(x)!r}, a text or a path: give an array or Events; "
            "ag.events.load(path) reads a file."
        )
    array = as_array(x, "inputs")
    check_unchanged(array)
    as_input_shape(array.shape)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise InputError(
            f"inputs has dtype {array.dtype}: booleans or real numbers of at most 64 bits are "
            "needed."
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def input_shape(x: ArrayLike | Events) -> tuple[int, ...]:
    """(n, T, ...) of inputs, dense or sparse."""
    return tuple(as_inputs(x).shape)


def density_of(inputs: Inputs) -> float:
    """The share of cells that are not zero, over all inputs and steps."""
    if isinstance(inputs, Events):
        return inputs.density
    return float(np.count_nonzero(inputs) / max(1, inputs.size))


def dense_rows(x: ArrayLike | Events, index: RowIndex) -> NDArray[Any]:
    """Some rows (b, T, ...) of inputs, dense or sparse, as a dense array; `index` is that of
    `Events.rows`.
    """
    inputs = as_inputs(x)
    if isinstance(inputs, Events):
        return inputs.rows(index).to_dense()
    return inputs[index if isinstance(index, slice) else as_rows(index, len(inputs))]


def input_ids(x: ArrayLike | Events, *, as_float32: bool = False) -> NDArray[np.uint64]:
    """A hash (n,) of each input, the same for an array and for the `Events` made from it, and
    independent of the other inputs.

    The hash adds up one word for each event, which is mixed from its position and its value (see
    `common.mix`), and mixes the sum with the shape (T, ...). Equal numbers of different dtypes
    have equal hashes. Two different inputs get the same hash with a probability of about 2^-64.
    as_float32: floating-point numbers are read as float32, as networks read them.
    """
    inputs = as_inputs(x)
    shape = inputs.shape
    form = np.zeros(1, np.uint64)
    for side in shape[1:]:
        form = mix(form + GAMMA * np.array([side + 1], np.uint64))
    hashes = np.empty(len(inputs), np.uint64)
    for rows in _row_blocks(shape):
        part = (
            inputs.rows(rows).in_memory()
            if isinstance(inputs, Events)
            else Events.from_dense(inputs[rows])
        )
        starts = np.tile(
            np.arange(shape[1], dtype=np.uint64) * np.uint64(math.prod(shape[2:])), len(part)
        )
        counts = np.diff(part.pointers).reshape(-1)
        words = mix(
            form
            + GAMMA * (np.repeat(starts, counts) + part.indices.astype(np.uint64) + np.uint64(1))
        )
        values = part.values
        if as_float32 and values is not None and values.dtype.kind == "f":
            values = values.astype(np.float32)
        words = mix(words ^ (ONE if values is None else _as_words(values)))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))
        hashes[rows] = mix(form + sums[part.pointers[:, -1]] - sums[part.pointers[:, 0]])
    return hashes


def _take(events: NDArray[Any], rows: slice | list[slice]) -> NDArray[Any]:
    """The events of consecutive rows, a view, or a copy of those of the rows given one by one."""
    return (
        events[rows]
        if isinstance(rows, slice)
        else np.concatenate([in_memory(events[row]) for row in rows])
    )


def _as_words(values: NDArray[Any]) -> Words:
    """One word for each value: its bits as float64, and what float64 loses of an
    integer beyond 2^53.
    """
    numbers = values.astype(np.float64)
    words: Words = numbers.view(np.uint64)
    if values.dtype.kind == "f" or values.dtype.itemsize < 8:
        return words
    high = np.floor(numbers / 2**32)
    kept = (high.astype(np.int64).view(np.uint64) << np.uint64(32)) + (
        numbers - high * 2**32
    ).astype(np.uint64)
    return words + GAMMA * (values.view(np.uint64) - kept)


def _row_blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Slices of rows that hold about BLOCK cells each."""
    together = max(1, BLOCK // math.prod(shape[1:]))
    for start in range(0, shape[0], together):
        yield slice(start, min(start + together, shape[0]))


# ---- checks


def as_input_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (n, T, ...) of inputs."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if len(sizes) < 2 or not all(
        is_integer(size) and size >= least
        for size, least in zip(sizes, (0, *[1] * len(sizes)), strict=False)
    ):
        raise InputError(
            f"inputs has shape {quoted(sizes or shape)}: (n, T, ...) is needed, with at least one "
            "step and no axis of length 0."
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
        labels, n, NO_NAMES if names is None else len(names), names
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
        raise InputError(
            f"indices are {indices.dtype} of shape {indices.shape} and pointers {pointers.dtype} "
            f"of shape {pointers.shape}: one axis of integers is needed for both."
        )
    if len(pointers) != steps + 1:
        raise InputError(
            f"pointers has {len(pointers)} entries for {shape[0]} inputs of {shape[1]} steps: n T "
            f"+ 1 = {steps + 1} are needed."
        )
    if pointers[0] != 0 or pointers[-1] != len(indices) or (pointers[1:] < pointers[:-1]).any():
        raise InputError(
            f"pointers must rise from 0 to {len(indices)}, the number of indices, and never fall: "
            "check how they were written."
        )
    if values is not None:
        if (
            values.shape != indices.shape
            or values.dtype.kind not in "iuf"
            or values.dtype.itemsize > 8
        ):
            raise InputError(
                f"values are {values.dtype} of shape {values.shape} for {len(indices)} indices: "
                "one real number for each index is needed, or no values where every event is 1."
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
