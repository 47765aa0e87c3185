"""Array types, and the checks that every package shares: of numbers, arrays, labels, names, times
and checkpoints. A hash of numbers.

A checkpoint of a `Schedule` is a pair (time, members): the rule judges the first k members after t
steps. Checkpoints come in a fixed order in which neither number ever falls, so all that holds for
times holds for pairs. A member that joins late replays what it missed, so an input that stops at
(t, k) has cost t·k member-steps.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, Self, TypeAlias, TypeGuard, TypeVar

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
Result = TypeVar("Result")


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
    except InputError:  # the object says itself what it is for
        raise
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
        raise InputError(
            f"{name} holds {count:,} texts, of which one has {longest} characters, so that all "
            f"take {4 * longest * count / 1e6:,.0f} MB in an array: shorten that one."
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
        raise InputError(
            f"{what} holds codes that are no characters, or a zero at the end of a text, which a "
            "file would not give back: give plain text."
        )
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
    if array.dtype.kind == "c":  # numpy would drop the imaginary parts
        raise InputError(f"{name} has dtype {array.dtype}: give real numbers.")
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


def as_shape(shape: Sequence[int] | int, name: str) -> tuple[int, ...]:
    """Integers of at least 1; one integer is a shape of one axis."""
    sizes = tuple(shape) if isinstance(shape, (Sequence, np.ndarray)) else (shape,)
    if not all(is_integer(size) and size >= 1 for size in sizes):
        raise InputError(f"{name} is {shape!r}: integers of at least 1 are needed.")
    return tuple(int(size) for size in sizes)


def are_sizes(sizes: object, count: int) -> bool:
    """Whether these are `count` integers of at least 1."""
    return (
        isinstance(sizes, (tuple, list))
        and len(sizes) == count
        and all(is_integer(size) and size >= 1 for size in sizes)
    )


def as_size(size: tuple[int, int]) -> tuple[int, int]:
    """The sensor's height and width: two integers of at least one."""
    if not are_sizes(size, 2):
        raise InputError(
            f"size is {quoted(size)}: give the sensor's height and width in pixels, for example "
            "(20, 20)."
        )
    return int(size[0]), int(size[1])


def without_names(labels: Any, names: Sequence[str] | None) -> Any:
    """Labels that are names of classes, as class indices; other labels as they are."""
    if names is None:
        return labels
    array = as_array(labels, "labels")
    if array.dtype.kind not in "UO" or not all(isinstance(one, str) for one in array.ravel()):
        return labels
    index_of = {name: index for index, name in enumerate(names)}
    for one in array.ravel():
        if one not in index_of:
            raise InputError(
                f"labels holds {quoted(str(one))}, which is not among the classes {quoted(names)}: "
                "give names of classes, or class indices."
            )
    return np.array([index_of[one] for one in array.ravel()], np.int64).reshape(array.shape)


def as_labels(
    labels: ArrayLike, n: int, classes: int, names: Sequence[str] | None = None
) -> Integers:
    """Labels as int64: one for each of n inputs, integers in 0..classes-1, or names of classes."""
    array = as_array(without_names(labels, names), "labels")
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


Words = NDArray[np.uint64]


GAMMA = np.uint64(0x9E3779B97F4A7C15)


FIRST = np.uint64(0xBF58476D1CE4E5B9)


SECOND = np.uint64(0x94D049BB133111EB)


def mix(words: Words) -> Words:
    """The scrambled words, in a new array: SplitMix64 (Steele, Lea and Flood, 2014), one to one.

        z ← (z ⊕ z ≫ 30) · 0xBF58476D1CE4E5B9
        z ← (z ⊕ z ≫ 27) · 0x94D049BB133111EB,   z ← z ⊕ z ≫ 31

    The n-th number of the stream that starts at s is mix(s + n·GAMMA), for hashes and for streams
    of random numbers. All arithmetic is modulo 2^64.
    """
    mixed: Words = words ^ (words >> np.uint64(30))
    mixed *= FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def name_groups(groups: ArrayLike, n: int) -> tuple[str, ...]:
    """The names of the groups of n inputs: each value of (n,), or numbers for columns of (n, G)."""
    array = _as_groups(groups, n)
    if array.ndim == 2:
        return tuple(map(str, range(array.shape[1])))
    return tuple(np.unique(array.astype(np.str_)).tolist())


def find_groups(groups: ArrayLike, names: Sequence[str], n: int) -> Booleans:
    """(n, G): which of the named groups each input belongs to; unknown groups are left out."""
    array = _as_groups(groups, n)
    if array.ndim == 1:
        if array.dtype.kind in "iu" and not any(_is_whole(name) for name in names):
            raise InputError(
                "groups holds whole numbers, but the rule knows groups by name, such as "
                f"{names[0]!r}: give names."
            )
        return np.asarray(array.astype(np.str_)[:, None] == np.array(names, dtype=np.str_))
    if tuple(names) != tuple(map(str, range(len(names)))):
        raise InputError(
            f"groups has columns, but the rule knows groups by name, such as {names[0]!r}: give "
            "one name for each input."
        )
    if array.shape[1] != len(names):
        raise InputError(
            f"groups has {array.shape[1]} columns and the rule knows {len(names)} groups: give one "
            "column for each."
        )
    return array.astype(np.bool_)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _as_groups(groups: ArrayLike, n: int) -> NDArray[Any]:
    array = as_texts(as_array(groups, "groups"), "groups")
    columns = array.ndim == 2 and array.dtype == np.bool_ and array.shape[1] > 0
    if not columns and not (array.ndim == 1 and array.dtype.kind in "iuU"):
        raise InputError(
            f"groups has shape {array.shape} and dtype {array.dtype}: give (n,) whole numbers or "
            "strings, or (n, G) booleans."
        )
    if not columns:
        return as_row_names(array, n, "groups")
    if len(array) != n:
        raise InputError(f"groups has {len(array)} entries for {n} inputs: give one for each.")
    return array


def as_people(people: ArrayLike, n: int) -> Integers:
    """The person of each of n inputs, numbered from 0."""
    _, numbers = np.unique(as_row_names(people, n, "people"), return_inverse=True)
    if numbers.max(initial=0) == 0:
        raise InputError(
            "people names one person alone: give the person of each row, and rows of at least two."
        )
    return np.asarray(numbers, dtype=np.int64)


EXAMPLE = "for example Schedule([(1, 1), (1, 2), (2, 3), (4, 6)])"


LATEST = 2**53  # floats hold every integer up to this one


def as_time(value: Any) -> float:
    """Check a time: a number above 0. Integral numbers become integers."""
    if not is_number(value) or value <= 0:
        raise InputError(
            f"checkpoints holds {quoted(value)}: "
            "times must be positive and finite, so give times as numbers above 0."
        )
    if value > LATEST:
        raise InputError(
            f"checkpoints holds {value!r:.40}: times go up to 2^53, so count time in a larger unit."
        )
    return int(value) if float(value).is_integer() else float(value)


class Schedule(tuple[float, ...]):
    """Checkpoints of a rule as pairs (time, members), for members that join over time.

    A schedule is the tuple of its times, which may repeat.

    Parameters
    ----------
    looks : iterable of (float, int)
        The pairs (time, members), in an order in which neither number falls and no pair repeats.

    Attributes
    ----------
    looks : tuple of (float, int)
        The pairs (time, members).
    members : tuple of int
        The number of members at each checkpoint.
    times : tuple of float
        The times without repeats.

    Examples
    --------
    >>> import agreestop as ag
    >>> schedule = ag.Schedule([(1, 1), (1, 2), (2, 3)])
    >>> schedule.members, schedule.times
    ((1, 2, 3), (1, 2))
    >>> rule = ag.AgreeStop(0.9, checkpoints=schedule, max_set_size=1)
    """

    members: tuple[int, ...]

    def __new__(cls, looks: Iterable[tuple[float, int]]) -> Self:
        try:
            given = [(time, count) for time, count in looks]
        except (TypeError, ValueError):
            raise InputError(f"a schedule needs pairs (time, members), {EXAMPLE}.") from None
        if not given:
            raise InputError(
                f"the schedule is empty: give at least one pair (time, members), {EXAMPLE}."
            )
        schedule = super().__new__(cls, [as_time(time) for time, _ in given])
        for _, count in given:
            if not is_integer(count) or count < 1:
                raise InputError(
                    f"the schedule holds {count!r} members: give whole numbers of at least 1."
                )
        schedule.members = tuple(int(count) for _, count in given)
        for earlier, later in pairwise(schedule.looks):
            if later[0] < earlier[0] or later[1] < earlier[1] or later == earlier:
                raise InputError(
                    f"the schedule's look {later} follows {earlier}, but neither number may fall "
                    "and no look may repeat: put the looks in order."
                )
        return schedule

    @property
    def looks(self) -> tuple[tuple[float, int], ...]:
        """The pairs (time, members)."""
        return tuple(zip(self, self.members, strict=True))

    @property
    def times(self) -> tuple[float, ...]:
        """The times without repeats."""
        return tuple(dict.fromkeys(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.looks == other.looks

    def __ne__(self, other: object) -> bool:  # the inherited one compares only the times
        return not self == other

    def __hash__(self) -> int:
        return hash(self.looks)

    def __repr__(self) -> str:
        return f"Schedule({list(self.looks)})"

    def __getnewargs__(self) -> tuple[tuple[tuple[float, int], ...]]:
        return (self.looks,)


def joined_members(checkpoints: Iterable[float]) -> tuple[int, ...] | None:
    """The number of members at each checkpoint of a `Schedule`; None for times (all members)."""
    return checkpoints.members if isinstance(checkpoints, Schedule) else None


def check_members(checkpoints: Iterable[float], members: int) -> None:
    """Refuse a schedule that asks for more members than there are."""
    joined = joined_members(checkpoints)
    if joined is not None and joined[-1] > members:
        raise InputError(
            f"the schedule asks for {joined[-1]} members and there are {members}: "
            f"ask for at most {members}."
        )


def as_checkpoints(checkpoints: Sequence[float]) -> tuple[float, ...]:
    """Check checkpoint times: positive, finite and strictly increasing, or a `Schedule`.

    Integral numbers become integers, and a schedule stays a schedule.
    """
    if isinstance(checkpoints, Schedule):
        return checkpoints
    given: Any = None if isinstance(checkpoints, str) else checkpoints  # a text is no list of times
    try:
        times = tuple(map(as_time, tuple(given)))
    except TypeError:
        raise InputError(
            f"checkpoints is {checkpoints!r}: give a list of times, for example (20, 40, 60, 80)."
        ) from None
    if not times:
        raise InputError("checkpoints is empty: give at least one time at which the rule may stop.")
    for earlier, later in pairwise(times):
        if later <= earlier:
            raise InputError(
                f"checkpoints must increase, but {later} follows {earlier}: "
                "sort them and drop repeats."
            )
    return times


def as_times(
    times: Sequence[float] | None,
    available: int,
    what: str = "log_confidence",
    checkpoints: Sequence[float] = (),
) -> tuple[float, ...]:
    """Check the times of an array with `available` checkpoints; None: the rule's checkpoints."""
    if times is None and len(checkpoints) != available:
        raise InputError(
            f"{what} has {available} checkpoints and the rule has {len(checkpoints)}: "
            "give as many, or pass times= to have a longer array cut to the rule's checkpoints."
        )
    known = as_checkpoints(checkpoints if times is None else times)
    if len(known) != available:
        raise InputError(
            f"times names {len(known)} moments and {what} has {available} checkpoints: "
            "give one time for each index of its second axis."
        )
    return known


def as_max_set_size(size: int) -> int:
    """Check the largest set that may stop, I_th: an integer of at least 1."""
    if not is_integer(size) or size < 1:
        raise InputError(
            f"max_set_size is {size!r}: "
            "give the largest set that may stop, an integer of at least 1."
        )
    return int(size)


def columns_of(
    checkpoints: Sequence[float], times: Sequence[float], what: str = "log_confidence"
) -> list[int]:
    """The position of each checkpoint among the times.

    The checkpoints of a schedule are found by time, or by pair among those of another schedule.
    """
    wanted: Sequence[object] = checkpoints
    known: Sequence[object] = times
    if (there := joined_members(times)) is not None:
        if (asked := joined_members(checkpoints)) is None:
            raise InputError(
                f"{what} is cut to the looks of a schedule, but the rule has plain checkpoints: "
                "give the rule the schedule."
            )
        wanted, known = (
            list(zip(checkpoints, asked, strict=True)),
            list(zip(times, there, strict=True)),
        )
    columns = {time: column for column, time in enumerate(known)}
    for time in wanted:
        if time not in columns:
            raise InputError(
                f"times lacks the rule's checkpoint {time}: {what} has {len(known)} times from "
                f"{known[0]} to {known[-1]}, so give a rule with checkpoints among these, or "
                "scores at every checkpoint of the rule."
            )
    return [columns[time] for time in wanted]


def set_fields(result: object, **values: object) -> None:
    """Set fields of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def join_parts(parts: Sequence[Result], axis: int = 0) -> Result:
    """Arrays, or results with arrays as fields, one after the other along the inputs (axis 0),
    the steps (1) or the members (2). None if any part is None.
    """
    given: Any = parts
    kind: Any = type(given[0])
    joined: Any = None
    if len(given) == 1:
        joined = given[0]
    elif is_dataclass(given[0]):
        names = [field.name for field in fields(given[0])]
        joined = kind(
            *(join_parts([getattr(part, name) for part in given], axis) for name in names)
        )
    elif not any(part is None for part in given):
        joined = np.concatenate(given, axis)
    return joined
