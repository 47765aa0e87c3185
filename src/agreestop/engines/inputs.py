"""Checks of what engines are given: a device, batches of inputs, and single steps of a live
input.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    InputError,
    Integers,
    as_array,
    check_finite,
    in_memory,
    is_integer,
    time_last,
)
from agreestop.events.container import Events

LARGEST = float(np.finfo(np.float32).max)
NOT_BINARY = (
    "holds values other than 0 and 1: set real_input=True in the settings of the network to use "
    "them."
)


def check_device(device: object) -> str:
    """A device of PyTorch: "cpu", "cuda" or "cuda:1", or for "auto" a GPU if there is one."""
    import torch  # models without PyTorch use the other checks

    name = str(device)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device is {device!r}: choose 'auto', 'cpu' or 'cuda'.")
    if name != "cpu" and int(name[5:] or 0) >= torch.cuda.device_count():
        found = "no such GPU" if torch.cuda.is_available() else "no GPU"
        raise InputError(
            f"device is {device!r}, but PyTorch finds {found}: give device='cpu', or install "
            "PyTorch with CUDA."
        )
    return name


def check_inputs(
    inputs: ArrayLike | Events, shape: Sequence[int] | None, real_input: bool = True
) -> NDArray[Any]:
    """Inputs (n, T, *shape) of booleans or finite numbers, with n and T at least 1; shape None:
    any. Only 0 and 1 unless real_input.

    `Events`, of which engines are given a batch at a time, become an array.
    """
    array = (
        inputs.to_dense() if isinstance(inputs, Events) else in_memory(as_array(inputs, "inputs"))
    )
    check_shape(array.shape, shape)
    if array.dtype.kind not in "bfiu":
        raise InputError(f"inputs has dtype {array.dtype}: booleans or numbers are needed.")
    _check_range(array, "inputs")
    if not real_input and not is_binary(array):
        raise InputError(f"inputs {NOT_BINARY}")
    # PyTorch refuses arrays with negative strides, and warns of read-only ones, such as those
    # an array of a mapped file is not writeable
    return array.copy() if min(array.strides) < 0 or not array.flags.writeable else array


def check_event_inputs(inputs: Events, shape: Sequence[int], real_input: bool) -> Events:
    """The same of `Events`, which stay events: those of these inputs, one after the other."""
    check_shape(inputs.shape, shape)
    events = inputs.compact()
    if events.values is not None:
        _check_range(events.values, "inputs")
        if not real_input and not is_binary(events.values):
            raise InputError(f"inputs {NOT_BINARY}")
    return events


def check_shape(given: tuple[int, ...], shape: Sequence[int] | None) -> None:
    """Refuse inputs of another shape than (n, T, *shape); None: any shape of a step."""
    inner = "..." if shape is None else ", ".join(map(str, shape))
    if len(given) < 2 or 0 in given or (shape is not None and tuple(given[2:]) != tuple(shape)):
        hint = "" if shape is None else time_last(given, shape)
        raise InputError(
            f"inputs has shape {given}: (n, T, {inner}), n and T at least 1, is what these members "
            f"take{hint}."
        )


def is_binary(array: NDArray[Any]) -> bool:
    """Whether every value is 0 or 1, tested without a temporary of the size of the array."""
    if array.dtype.kind in "bui":
        return (
            array.dtype == np.bool_ or not array.size or bool(array.min() >= 0 and array.max() <= 1)
        )
    return all(bool(((row == 0) | (row == 1)).all()) for row in array)


def _check_range(array: NDArray[Any], name: str) -> None:
    """Refuse numbers that are not finite, or not in float32, in which engines compute."""
    if array.dtype.kind == "f" and array.size:
        check_finite(array, name)
        if array.dtype.itemsize > 4 and max(-array.min(), array.max()) > LARGEST:
            raise InputError(
                f"{name} reaches {max(-array.min(), array.max()):.3g}, which float32 cannot hold: "
                "rescale the inputs."
            )


def check_steps(steps: int, total: int, time: int) -> None:
    """Refuse a number of steps that is not between 1 and those that are left.

    An image (total 1) is held for any number.
    """
    left = total - time
    if not is_integer(steps) or steps < 1 or (total > 1 and steps > left):
        raise InputError(
            f"steps is {steps!r} and {left} of {total} time steps are left: give an integer from 1 "
            f"to {left}."
        )


def check_kept_rows(rows: Booleans, running: int) -> Booleans:
    """A boolean for each running input."""
    mask = np.asarray(rows)
    if mask.shape != (running,) or mask.dtype != np.bool_:
        raise InputError(
            f"rows has shape {mask.shape} and dtype {mask.dtype}: one boolean for each of the "
            f"{running} inputs still running is needed."
        )
    return mask


def check_events(events: ArrayLike, size: int, repeats: str = "once") -> Integers:
    """Flat indices of the active inputs of one step, from 0 to size - 1, as int64.

    Repeated ones are refused if `repeats` says so.
    """
    indices = as_array(events, "events")
    if indices.size == 0:
        return np.zeros(0, np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise InputError(
            f"events has shape {indices.shape} and dtype {indices.dtype}: a list of the flat "
            "indices of active inputs is needed, "
            "or push(frame=array) for a dense step."
        )
    if len(indices) == size > 2 and indices.min() >= 0 and indices.max() <= 1:
        raise InputError(
            f"events holds {size} numbers that are all 0 or 1, one for each input: give a whole "
            "step as push(frame=array)."
        )
    if indices.min() < 0 or indices.max() >= size:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise InputError(
            f"events holds {wrong}, but the inputs are numbered 0 to {size - 1}: drop events "
            "outside the sensor."
        )
    if repeats == "refused" and len(set(indices.tolist())) < len(indices):
        first = np.argmax(np.bincount(indices) > 1)
        raise InputError(
            f"events names {first} more than once in a step, and these members may or may not have "
            "been trained on counts: push(frame=array) with the number of events of each input, or "
            "name each index once."
        )
    return indices.astype(np.int64)


def count_repeats(
    pointers: Integers, indices: Integers, inputs: int
) -> tuple[Integers, Integers, NDArray[np.float32] | None]:
    """Steps in which each event comes once: pointers (n + 1,), indices (events,), and how often
    each came, or None if all came once.
    """
    steps = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    found, counts = np.unique(steps * inputs + indices, return_counts=True)
    if len(found) == len(indices):
        return pointers, indices, None
    return (
        np.searchsorted(found, np.arange(len(pointers)) * inputs),
        found % inputs,
        counts.astype(np.float32),
    )


def check_frame(frame: ArrayLike, shape: Sequence[int], real_input: bool = True) -> NDArray[Any]:
    """One dense step of booleans or finite numbers in the given shape, or flattened, returned flat.

    Only 0 and 1 unless real_input.
    """
    array = as_array(frame, "frame")
    if array.shape not in (tuple(shape), (math.prod(shape),)) or array.dtype.kind not in "bfiu":
        raise InputError(
            f"frame has shape {array.shape} and dtype {array.dtype}: booleans or numbers of shape "
            f"{tuple(shape)} are needed."
        )
    _check_range(array, "frame")
    if not real_input and not is_binary(array):
        raise InputError(f"frame {NOT_BINARY}")
    return array.reshape(-1)


def check_one_of(events: ArrayLike | None, frame: ArrayLike | None) -> None:
    """Refuse a step given twice or not at all."""
    if (events is None) == (frame is None):
        raise InputError(
            "one of events and frame is needed: push(indices), push([]) for a pause, or "
            "push(frame=array)."
        )


def dense_step(
    events: ArrayLike | None,
    frame: ArrayLike | None,
    shape: Sequence[int],
    real_input: bool,
    repeats: str,
) -> NDArray[np.float32]:
    """One step of a live input, given by events or by a frame, as an array of that shape.

    repeats: what an event that is named several times means: it counts "once" or "each" time,
    or is "refused"
    """
    check_one_of(events, frame)
    step = np.zeros(math.prod(shape), np.float32)
    if frame is not None:
        step[:] = check_frame(frame, shape, real_input)
    elif events is not None:
        indices = check_events(events, step.size, repeats)
        step[indices] = (
            np.bincount(indices, minlength=step.size)[indices] if repeats == "each" else 1
        )
    return step.reshape(shape)
