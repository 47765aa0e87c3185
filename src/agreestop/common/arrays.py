"""Array types and the checks of numbers and arrays that every package shares."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError, quoted

LARGEST = sys.float_info.max
LONGEST_TEXT = 1000  # characters of a name or an id
# the most bytes of an array of texts whose longest text is more than UNEVEN times the average
WIDE, UNEVEN = 2**26, 16
DEEPEST = 64  # axes of an array
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Anything array-like as a numpy array: lists, tensors on any device, with or without gradient,
    and nested lists of tensors.

    bfloat16, which numpy lacks, becomes float32. Lists of unequal length and arrays with masked
    entries are refused, and lists with texts that would make a far larger array than they are.
    """
    # nothing to convert: a stream comes here at every push
    if type(values) is np.ndarray and values.dtype.kind in "fiub":
        return values
    leaf = values
    while isinstance(leaf, (list, tuple)) and leaf:
        leaf = leaf[0]
    if leaf is not values and (hasattr(leaf, "detach") or isinstance(leaf, np.ma.MaskedArray)):
        values = [as_array(value, name) for value in values]
    if hasattr(values, "detach"):
        values = values.detach().cpu().resolve_conj().resolve_neg()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    if np.ma.is_masked(values):
        raise InputError(
            f"{name} has masked entries, for which nothing can be decided: fill them, or leave "
            "those inputs out."
        )
    if isinstance(values, (list, tuple)):
        check_texts(_texts_in(values), name)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} cannot be read as one array: give numbers of one shape."
        ) from None
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _texts_in(values: Sequence[Any], depth: int = 1) -> Iterator[str | bytes]:
    """The texts in nested lists: one among numbers is enough for numpy to make texts
    of all of them.
    """
    for value in values:
        if isinstance(value, (str, bytes)):
            yield value
        elif isinstance(value, (list, tuple)) and depth < DEEPEST:
            yield from _texts_in(value, depth + 1)


def check_texts(texts: Iterable[str | bytes], name: str) -> None:
    """Refuse texts that are too long for an array, in which each gets the room of the longest: 4
    bytes for each of its characters.
    """
    check_lengths([len(text) for text in texts], name)


def check_lengths(lengths: Sequence[int | None], name: str) -> None:
    """The same for the lengths of texts; None where there is none."""
    known = [length for length in lengths if length]
    longest, count = max(known, default=0), len(lengths)
    if longest > LONGEST_TEXT:
        raise InputError(
            f"{name} holds a text of {longest:,} characters: give texts of at most "
            f"{LONGEST_TEXT:,}."
        )
    if 4 * longest * count > WIDE and longest * count > UNEVEN * sum(known):
        room = f"{4 * longest * count / 1e6:,.0f} MB in an array"
        raise InputError(
            f"{name} holds {count:,} texts, of which one has {longest} characters, so that all "
            f"take {room}: shorten that one."
        )


def as_texts(array: NDArray[Any], name: str) -> NDArray[Any]:
    """An array of Python strings, as pandas and Arrow hold them, as one of numpy's texts; any
    other array as it is.
    """
    if array.dtype != object or not all(isinstance(one, str) for one in array.ravel()):
        return array
    check_texts(array.ravel().tolist(), name)
    return array.astype(np.str_)


def as_names(names: Iterable[object], what: str) -> tuple[str, ...]:
    """Names of classes as strings that a file gives back as they are: no longer than
    LONGEST_TEXT, valid text, not ended by a zero.
    """
    known = tuple(str(name) for name in names)
    check_texts(known, what)
    if any(name.endswith("\0") for name in known) or not is_text("".join(known)):
        given = f"{what} holds codes that are no characters, or a zero at the end of a text"
        raise InputError(f"{given}, which a file would not give back: give plain text.")
    return known


def is_text(text: str) -> bool:
    """Whether all codes of a string are characters; an array of numpy may hold any codes."""
    try:
        text.encode().decode()
    except (ValueError, SystemError):
        return False
    return True


def as_floats(values: ArrayLike, name: str) -> Floats:
    """Real numbers as float64."""
    array = as_array(values, name)
    try:
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} cannot be read as an array of numbers: give real numbers of one shape."
        ) from None


def with_axis(values: ArrayLike, axis: int, name: str) -> Floats:
    """Real numbers as float64, with at least one entry along `axis`."""
    array = as_floats(values, name)
    if not -array.ndim <= axis < array.ndim or array.shape[axis] == 0:
        raise InputError(
            f"{name} has shape {array.shape}: at least one value along axis {axis} is needed."
        )
    return array


def check_finite(values: NDArray[Any], name: str) -> None:
    """Refuse NaN and infinity, without a temporary the size of the array."""
    if values.size and not (values.min() > -np.inf and values.max() < np.inf):
        where = np.unravel_index(int(np.argmin(np.isfinite(values))), values.shape)
        index = ", ".join(str(int(i)) for i in where)
        advice = "clip probabilities first, or take logits through log_confidence()"
        zero = values[where] == -np.inf and name == "log_confidence"
        hint = f"; a confidence of exactly 0 has no finite logarithm, so {advice}" if zero else ""
        raise InputError(
            f"{name} holds {values[where]} at [{index}]: every value must be finite{hint}."
        )


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite real number; a boolean is not."""
    if isinstance(value, int) and abs(value) > LARGEST:  # math.isfinite cannot convert it
        return False
    return (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; a boolean is not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_count(value: int, name: str, least: int = 1) -> int:
    """An integer of at least `least`."""
    if not is_integer(value) or value < least:
        raise InputError(f"{name} is {quoted(value)}: give an integer of at least {least}.")
    return int(value)


def as_seed(seed: int) -> int:
    """A seed: an integer from 0 to 2^63 - 1."""
    if not is_integer(seed) or not 0 <= seed < 2**63:
        raise InputError(f"seed is {quoted(seed)}: give an integer from 0 to 2^63 - 1.")
    return int(seed)


def as_size(size: tuple[int, int]) -> tuple[int, int]:
    """The sensor's height and width: two integers of at least one."""
    if (
        not isinstance(size, (tuple, list))
        or len(size) != 2
        or not all(is_integer(side) and side >= 1 for side in size)
    ):
        raise InputError(
            f"size is {quoted(size)}: give the sensor's height and width in pixels, for example "
            "(20, 20)."
        )
    return int(size[0]), int(size[1])
