"""Files of events: one `.npz`, sparse or dense, that any program can write and that can be memory-mapped.

    sparse    shape (n, T, ...) int64, indices (nnz,), pointers (n T + 1,) int64, and values (nnz,) where the events are not all 1:
              the fields of `Events`
    dense     inputs (n, T, ...): booleans or real numbers. `numpy.savez(path, inputs=x, labels=y)` writes such a file
    both      labels (n,) integers from 0 to C-1, and classes (C,), the names of the classes
    words     name, description (texts), simulated (a truth value: whether a simulator made the events) and held (for images of one
              step: how many steps each image is shown)
    digest    SHA-256 of all other arrays; see `agreestop.common.npz`

Labels, classes, words and digest may be missing. `Events.save` and `save_events` write no compression and begin every array at a
multiple of 64 bytes, so that `load` can map the file. A compressed file, as numpy.savez_compressed writes it, is read into memory.
The files of version 0.1 (inputs as packed bits, with inputs_shape) are still read. Nothing is unpickled or executed.
"""

import math
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Arrays, InputError, check_finite, read_npz, read_text, write_npz

from .container import Events, Inputs, as_inputs, as_labels_and_classes, dense_rows
from .data import EventData

HOW = "write one with Events.save, or with numpy.savez(path, inputs=x, labels=y)"


def load(path: str | PathLike[str], *, mmap: bool = True) -> Events:
    """The events of a file, with `labels` and `classes` where the file has them.

    With mmap=True the arrays of a file that is sparse and not compressed stay on disk and are read, page by page, when they are used;
    the file must stay as it is meanwhile. A dense file is converted.
    """
    stored = read_stored(path, mmap)
    if isinstance(stored.inputs, Events):
        return stored.inputs
    return Events.from_dense(stored.inputs, stored.labels, stored.classes)


def save_events(path: str | PathLike[str], data: EventData) -> None:
    """Write a part of a data set, sparse or dense, whichever is smaller; whole or not at all."""
    words = {"name": data.name, "description": data.description, "simulated": data.simulated, "held": data.held or 0}
    arrays = _input_arrays(data.inputs) | {"labels": data.labels, "classes": np.array(data.classes, np.str_)}
    write_npz(path, arrays | {name: np.array(word) for name, word in words.items()})


def load_events(path: str | PathLike[str]) -> EventData:
    """A part of a data set, which must have labels, with its inputs as a dense array."""
    stored = read_stored(path, mmap=False)
    return stored.data(path, dense_rows(stored.inputs, slice(None)), stored.name or str(path))


@dataclass(frozen=True, eq=False)
class StoredEvents:
    """What a file holds: inputs, sparse or dense as in the file, and what is known about them."""

    inputs: Inputs
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    name: str
    description: str
    simulated: bool
    held: int | None

    def data(self, path: str | PathLike[str], inputs: Inputs, name: str, classes: tuple[str, ...] | None = None) -> EventData:
        """The inputs as a labelled part of a data set; classes without names get their numbers."""
        if self.labels is None:
            raise InputError(f"{path} has no labels: add an array 'labels' with the class of each input, an integer from 0.")
        names = classes or self.classes or tuple(str(label) for label in range(int(self.labels.max(initial=-1)) + 1))
        return EventData(name, self.simulated, inputs, self.labels, names, self.description, self.held)


def read_stored(path: str | PathLike[str], mmap: bool = True) -> StoredEvents:
    """The content of a file, checked."""
    return as_stored(path, read_npz(path, "file of events", HOW, mmap=mmap))


def as_stored(path: str | PathLike[str], arrays: Arrays) -> StoredEvents:
    """The content of the arrays of a file, checked."""
    if "log_confidence" in arrays or "spikes" in arrays:
        raise InputError(f"{path} holds scores, not inputs: give the inputs themselves, or leave the members out.")
    try:
        labels, classes = arrays.get("labels"), arrays["classes"].tolist() if "classes" in arrays else None
        inputs = _sparse_inputs(arrays, labels, classes) if "indices" in arrays else _dense_inputs(arrays)
        labels, names = as_labels_and_classes(labels, classes, len(inputs))
        held = int(arrays.get("held", np.array(0))) or None
        return StoredEvents(
            inputs, labels, names, read_text(arrays, "name"), read_text(arrays, "description"), bool(arrays.get("simulated", False)), held
        )
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from None
    except (TypeError, ValueError):
        raise InputError(f"{path} is not a whole file of events: {HOW}.") from None


def _sparse_inputs(arrays: Arrays, labels: NDArray[Any] | None, classes: list[Any] | None) -> Events:
    if missing := {"shape", "pointers"} - arrays.keys():
        raise InputError(f"indices are there, but not {' and '.join(sorted(missing))}: write it with Events.save.")
    names = None if classes is None else tuple(classes)
    return Events(arrays["indices"], arrays["pointers"], arrays.get("values"), tuple(arrays["shape"].tolist()), labels, names)


def _dense_inputs(arrays: Arrays) -> NDArray[Any]:
    if "inputs" not in arrays:
        raise InputError(f"it holds {', '.join(sorted(arrays)) or 'nothing'} but no 'inputs' and no 'indices'; {HOW}.")
    inputs = arrays["inputs"]
    if "inputs_shape" in arrays and inputs.ndim == 1:  # packed bits, as version 0.1 wrote booleans
        shape = tuple(arrays["inputs_shape"].tolist())
        inputs = np.unpackbits(inputs)[: math.prod(shape)].view(np.bool_).reshape(shape)
    dense = as_inputs(inputs)
    assert isinstance(dense, np.ndarray)
    check_finite(dense, "inputs")
    return dense


def _input_arrays(inputs: Inputs) -> Arrays:
    if isinstance(inputs, Events):
        return inputs.arrays()
    arrays = Events.from_dense(inputs).arrays()
    return arrays if sum(array.nbytes for array in arrays.values()) < inputs.nbytes else {"inputs": inputs}
