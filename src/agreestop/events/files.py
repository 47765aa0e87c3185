"""Files of events: one `.npz`, sparse or dense, that any program can write and that can be
memory-mapped; and own data from such files.

    sparse    shape (n, T, ...) int64, indices (nnz,), pointers (n T + 1,) int64, and values (nnz,)
              where the events are not all 1: the fields of `Events`
    dense     inputs (n, T, ...): booleans or real numbers. `numpy.savez(path, inputs=x, labels=y)`
              writes such a file
    both      labels (n,) integers from 0 to C-1, and classes (C,), the names of the classes
    words     name, description (texts), simulated (a truth value: whether a simulator made the
              events) and held (for images of one step: how many steps each image is shown)
    digest    SHA-256 of all other arrays; see `agreestop.common.npz`

Labels, classes, words and digest may be missing. `Events.save` and `save_events` write no
compression and begin every array at a multiple of 64 bytes, so that `load` can map the file. A
compressed file, as numpy.savez_compressed writes it, is read into memory. The files of version 0.1
(inputs as packed bits, with inputs_shape) are still read. Nothing is unpickled or executed.

`load_files` makes training, tuning and pool from three such files, or from one that is divided.
Every part comes in a random order drawn from the seed, so that any first rows of the pool may serve
for calibration.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import (
    Arrays,
    InputError,
    Integers,
    as_seed,
    check_finite,
    is_number,
    read_list,
    read_npz,
    read_shapes,
    read_text,
    write_npz,
)

from .container import Events, Inputs, as_input_shape, as_inputs, as_labels_and_classes, index_type
from .data import (
    NUMBERS,
    PARTS,
    EventData,
    EventSplits,
    Sizes,
    as_sizes,
    as_sizes_of,
    class_numbers,
    draw,
)

HOW = "write one with Events.save, or with numpy.savez(path, inputs=x, labels=y)"
SHARES = (0.6, 0.15, 0.25)
DESCRIPTION = "own data from files"


def load(path: str | PathLike[str], *, mmap: bool = True) -> Events:
    """The events of a file, with `labels` and `classes` where the file has them.

    With mmap=True the arrays of a file that is sparse and not compressed stay on disk and are read,
    page by page, when they are used; the file may be replaced or removed meanwhile, but not changed
    in place, which is refused when it is noticed. A dense file is converted.
    """
    stored = read_stored(path, mmap)
    return (
        stored.inputs
        if isinstance(stored.inputs, Events)
        else Events.from_dense(stored.inputs, stored.labels, stored.classes)
    )


def save_events(path: str | PathLike[str], data: EventData) -> None:
    """Write a part of a data set, sparse or dense, whichever is smaller; whole or not at all."""
    write_npz(path, part_arrays(data))


def part_arrays(data: EventData) -> Arrays:
    """The arrays of the file of a part of a data set."""
    words = {
        "name": data.name,
        "description": data.description,
        "simulated": data.simulated,
        "held": data.held or 0,
    }
    inputs = smaller_form(data.inputs)
    arrays = inputs.arrays() if isinstance(inputs, Events) else {"inputs": inputs}
    arrays |= {"labels": data.labels, "classes": np.array(data.classes, np.str_)}
    return arrays | {name: np.array(word) for name, word in words.items()}


def smaller_form(inputs: Inputs) -> Inputs:
    """The inputs as `Events`, unless an array takes less memory."""
    if isinstance(inputs, Events):
        return inputs
    cells = math.prod(inputs.shape[2:])
    values = 0 if inputs.dtype == np.bool_ else inputs.dtype.itemsize
    events = int(np.count_nonzero(inputs)) * (np.dtype(index_type(cells)).itemsize + values)
    return (
        Events.from_dense(inputs)
        if events + 8 * math.prod(inputs.shape[:2]) < inputs.nbytes
        else inputs
    )


def load_events(path: str | PathLike[str]) -> EventData:
    """A part of a data set, which must have labels; its inputs are memory-mapped where the file
    is not compressed.
    """
    stored = read_stored(path)
    return replace(stored, name=stored.name or str(path)).labelled(path)


def load_files(
    file: str | PathLike[str] | None = None,
    *,
    training: str | PathLike[str] | None = None,
    tuning: str | PathLike[str] | None = None,
    pool: str | PathLike[str] | None = None,
    shares: Sequence[float] | None = None,
    sizes: Sizes | None = None,
    seed: int = 0,
) -> EventSplits:
    """Labelled inputs (n, T, ...) of any shape, as three parts.

    file                    one file, which is divided; or
    training, tuning, pool  a file for each part, with inputs of the same shape (T, ...) and
                            the same classes
    shares                  which shares of one file training, tuning and pool get; by default
                            (0.6, 0.15, 0.25)
    sizes                   how many inputs training, tuning and pool get, drawn at random; by
                            default all inputs are used
    seed                    chooses the parts, and their order

    Inputs are `Events`, which stay in the file where it can be mapped, or arrays where those are
    smaller. Numbers become float32, or stay uint8; booleans stay booleans. Where no file names the
    classes, every class needs an input.
    """
    paths = _as_paths(file, (training, tuning, pool))
    if shares is not None and (sizes is not None or len(paths) == 3):
        raise InputError(
            "shares divide one file by themselves: give no sizes with them, and no files of the "
            "single parts."
        )
    rng = np.random.default_rng(as_seed(seed))
    parts = _matching_parts(paths)
    if len(parts) == 1:
        wanted = as_sizes_of(len(parts[0]), sizes, _as_shares(shares))
        sources, rows = parts * 3, draw(len(parts[0]), wanted, rng, f"inputs of {paths[0]}")
    else:
        wanted = (len(parts[0]), len(parts[1]), len(parts[2])) if sizes is None else as_sizes(sizes)
        sources = parts
        rows = [
            draw(len(part), (size,), rng, f"inputs of {path}")[0]
            for part, size, path in zip(parts, wanted, paths, strict=True)
        ]
    name = paths[0].stem if len(paths) == 1 else "files"
    return EventSplits(
        *(
            replace(data.rows(some), name=f"{name}, {part}")
            for part, data, some in zip(PARTS, sources, rows, strict=True)
        )
    )


@dataclass(frozen=True, eq=False)
class StoredEvents:
    """What a file holds: inputs, sparse or dense as in the file, and what is known about them."""

    inputs: Inputs
    labels: Integers | None
    classes: tuple[str, ...] | None
    name: str
    description: str
    simulated: bool
    held: int | None

    def labelled(self, path: str | PathLike[str]) -> EventData:
        """The inputs as a part of a data set, which must have labels.

        Classes without names get their numbers.
        """
        if self.labels is None:
            raise InputError(
                f"{path} has no labels: add an array 'labels' with the class of each input, an "
                "integer from 0."
            )
        try:
            names = self.classes or class_numbers(self.labels)
            return EventData(
                self.name,
                self.simulated,
                self.inputs,
                self.labels,
                names,
                self.description,
                self.held,
            )
        except InputError as error:
            raise InputError(f"{path} cannot be used: {error}") from None


def read_stored(path: str | PathLike[str], mmap: bool = True) -> StoredEvents:
    """The content of a file, checked."""
    return as_stored(path, read_npz(path, "file of events", HOW, mmap=mmap))


def read_outline(path: str | PathLike[str]) -> tuple[int, bool]:
    """How many inputs a file has, and whether they have labels, from the headers of
    its arrays alone.
    """
    shapes, small = read_shapes(path, "file of events", HOW)
    sparse, inputs = "indices" in shapes, shapes.get("inputs", ())
    try:
        if sparse or ("inputs_shape" in shapes and len(inputs) == 1):
            shape = as_input_shape(small["shape" if sparse else "inputs_shape"].tolist())
            stored, needed = (
                (shapes["pointers"], math.prod(shape[:2]) + 1)
                if sparse
                else (inputs, -(-math.prod(shape) // 8))
            )
            if stored != (needed,):
                raise InputError(
                    f"its arrays are too short or too long for inputs of shape {shape}; {HOW}."
                )
            inputs = shape
        return as_input_shape(inputs)[0], "labels" in shapes
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from None
    except KeyError:
        raise InputError(f"{path} is not a whole file of events: {HOW}.") from None


def as_stored(path: str | PathLike[str], arrays: Arrays) -> StoredEvents:
    """The content of the arrays of a file, checked."""
    if "log_confidence" in arrays or "spikes" in arrays:
        raise InputError(
            f"{path} holds scores, not inputs: give the inputs themselves, or leave the members "
            "out."
        )
    classes = read_list(path, arrays, "classes") if "classes" in arrays else None
    try:
        labels = arrays.get("labels")
        inputs = (_sparse_inputs if "indices" in arrays else _dense_inputs)(
            arrays, labels, None if classes is None else tuple(classes)
        )
        labels, names = as_labels_and_classes(labels, classes, len(inputs))
        name, description = (read_text(path, arrays, word) for word in ("name", "description"))
        return StoredEvents(
            inputs,
            labels,
            names,
            name,
            description,
            bool(_number(arrays, "simulated")),
            _number(arrays, "held") or None,
        )
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from None
    except (TypeError, ValueError):
        raise InputError(f"{path} is not a whole file of events: {HOW}.") from None


def _sparse_inputs(
    arrays: Arrays, labels: NDArray[Any] | None, names: tuple[str, ...] | None
) -> Events:
    if missing := {"shape", "pointers"} - arrays.keys():
        raise InputError(
            f"indices are there, but not {' and '.join(sorted(missing))}: write it with "
            "Events.save."
        )
    return Events(
        arrays["indices"],
        arrays["pointers"],
        arrays.get("values"),
        arrays["shape"].tolist(),
        labels,
        names,
    )


def _dense_inputs(
    arrays: Arrays, labels: NDArray[Any] | None, names: tuple[str, ...] | None
) -> Inputs:
    if "inputs" not in arrays:
        raise InputError(
            f"it holds {', '.join(sorted(arrays)) or 'nothing'} but no 'inputs' and no 'indices'; "
            f"{HOW}."
        )
    inputs = arrays["inputs"]
    if "inputs_shape" in arrays and inputs.ndim == 1:  # packed bits, as version 0.1 wrote booleans
        shape = as_input_shape(arrays["inputs_shape"].tolist())
        if len(inputs) != -(-math.prod(shape) // 8):
            raise InputError(
                f"it holds {8 * len(inputs):,} bits for inputs of shape {shape}, so it is not "
                "whole: copy it again."
            )
        cells = math.prod(shape[1:])

        def read(rows: slice) -> NDArray[Any]:
            first, count = rows.start * cells, (rows.stop - rows.start) * cells
            bits = np.unpackbits(inputs[first // 8 : -(-(first + count) // 8)])[first % 8 :]
            return bits[:count].view(np.bool_).reshape(-1, *shape[1:])

        return Events.from_blocks(read, shape, np.bool_, labels, names)
    dense = as_inputs(inputs)
    assert isinstance(dense, np.ndarray)
    check_finite(dense, "inputs")
    return dense


def _number(arrays: Arrays, name: str) -> int:
    """The whole number or truth value of that name; 0 if the file has none."""
    array = arrays.get(name, np.array(0))
    if array.ndim or array.dtype.kind not in "biu":
        raise ValueError("no single number")
    return int(array)


def _as_paths(
    file: str | PathLike[str] | None, parts: Sequence[str | PathLike[str] | None]
) -> list[Path]:
    given = [path for path in parts if path is not None]
    if (file is None) == (not given) or len(given) not in (0, 3):
        names = [
            name
            for name, path in zip(("file", *PARTS), (file, *parts), strict=True)
            if path is not None
        ]
        raise InputError(
            f"{' and '.join(names) or 'no file'} given: give either one file, or all three of "
            "training, tuning and pool."
        )
    paths = [Path(file)] if file is not None else [Path(path) for path in given]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError(
            "two of training, tuning and pool are the same file: give three files, or one file "
            "that is divided."
        )
    return paths


def _as_shares(shares: Sequence[float] | None) -> tuple[float, float]:
    values = SHARES if shares is None else tuple(shares)
    if (
        len(values) != 3
        or not all(is_number(share) and share > 0 for share in values)
        or abs(sum(values) - 1) > 1e-6
    ):
        raise InputError(
            f"shares is {shares!r}: give three positive numbers that add up to 1, for example "
            f"{SHARES}."
        )
    return values[0], values[1]


def _matching_parts(paths: Sequence[Path]) -> list[EventData]:
    """The content of each file, with inputs of one shape and dtype and the same classes."""
    stored = [read_stored(path) for path in paths]
    for one, path in zip(stored[1:], paths[1:], strict=True):
        if one.inputs.shape[1:] != stored[0].inputs.shape[1:]:
            raise InputError(
                f"{paths[0]} has inputs of shape {stored[0].inputs.shape[1:]} and {path} of "
                f"{one.inputs.shape[1:]}: make them the same."
            )
        if one.held != stored[0].held:
            raise InputError(
                f"{paths[0]} holds images for {stored[0].held} steps and {path} for {one.held}: "
                "make them the same."
            )
    named = [
        (path, one.classes)
        for one, path in zip(stored, paths, strict=True)
        if one.classes is not None
    ]
    for path, classes in named[1:]:
        if classes != named[0][1]:
            raise InputError(
                f"{named[0][0]} names the classes {named[0][1]} and {path} {classes}: give the "
                "same names in the same order."
            )
    classes = (
        named[0][1]
        if named
        else _every_number([one.labels for one in stored if one.labels is not None])
    )
    dtypes = {_number_type(one.inputs) for one in stored}
    dtype = dtypes.pop() if len(dtypes) == 1 else np.float32
    converted = [_converted(smaller_form(one.inputs), dtype) for one in stored]
    return [
        replace(
            one, inputs=inputs, classes=classes, description=one.description or DESCRIPTION
        ).labelled(path)
        for one, inputs, path in zip(stored, converted, paths, strict=True)
    ]


def _every_number(labels: Sequence[Integers]) -> tuple[str, ...]:
    """The numbers of the classes as their names.

    A class without inputs is refused, because most often labels are counted from 1.
    """
    present = np.unique(np.concatenate([*labels, np.zeros(0, np.int64)]))
    if len(present) and len(present) != present[-1] + 1:
        absent = int(np.argmax(present != np.arange(len(present))))
        raise InputError(
            f"labels run from {present[0]} to {present[-1]}, but no input has the label {absent}: "
            "count classes from 0, or add an array 'classes' with the names of all of them."
        )
    return class_numbers(present)


def _number_type(inputs: Inputs) -> type[np.generic]:
    """The dtype of NUMBERS that holds these inputs."""
    if inputs.dtype in NUMBERS:
        return inputs.dtype.type
    values = inputs.values if isinstance(inputs, Events) else inputs
    if (
        inputs.dtype.kind in "iu"
        and values is not None
        and values.min(initial=0) >= 0
        and values.max(initial=0) <= 255
    ):
        return np.uint8
    return np.float32


def _converted(inputs: Inputs, dtype: type[np.generic]) -> Inputs:
    if inputs.dtype == dtype:
        return inputs
    with np.errstate(over="ignore"):
        converted: Inputs = inputs.astype(dtype)
    values = converted.values if isinstance(converted, Events) else converted
    if values is not None:
        check_finite(values, f"inputs as {np.dtype(dtype)}")
    return converted
