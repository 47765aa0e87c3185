"""Scores: what any model hands to the decision layer, in memory or as a file.

A score file is a `.npz` with either `log_confidence` (n, M, K, C) and `times` (M,), or `spikes`:
read-out spikes (n, T, K, C) as packed bits with `spikes_shape`, lossless and 64 times smaller, from
which every checkpoint follows. Optional are `labels` (n,), the names `classes` (C,), `engine` and
`ensemble_digest`, which say what computed the scores, `ids` (n,), `trained` (n,) with
`trained_chance` and, beside log_confidence, `lengths` (n,), `rounding` and `heard`.
Nothing in such a file is executed or unpickled.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Arrays,
    Booleans,
    Floats,
    InputError,
    Integers,
    StrPath,
    as_array,
    as_checkpoints,
    as_ids,
    as_labels,
    as_names,
    as_row_names,
    as_seed,
    as_times,
    atomic_writer,
    check_finite,
    check_members,
    columns_of,
    is_number,
    joined_members,
    read_list,
    read_npz,
    read_text,
    set_fields,
)
from agreestop.common.errors import quoted, shortened
from agreestop.common.npz import MOST_RATIO

from .checkpoints import select
from .confidence import log_confidence
from .leakage import RowScores, ScoredRows

# Spikes that any file may unpack to, and for each byte of a larger one (real ones: up to 110).
MOST_SPIKES, SPIKES_PER_BYTE = 2**22, 300
AXES = {"n": "inputs", "m": "inputs", "M": "checkpoints", "K": "members", "C": "classes"}
HOW_TO_WRITE = "write one with save_scores or numpy.savez"
MOST_ROUNDING = 0.1  # larger differences are not rounding
ROUNDED = Fraction(1, 10**9)  # shares that are sums of floats may be this much above 1
UNPACKED = 2**25  # bytes that compressed scores may always take; calibration takes several times it
EXAMPLE = "give shares above 0 that sum to at most 1, for example split(0.3, 0.7)"


class Inputs(ABC):
    """What rules read: n inputs at M times. `cells` (n, M, ...) is what is known at each time.

    by_time  the fields (n, M, ...) with one entry for each input and time
    by_row   the other fields with one entry for each input
    what     one word for the inputs
    """

    by_time: ClassVar[tuple[str, ...]] = ()
    by_row: ClassVar[tuple[str, ...]] = ("labels", "ids")
    what: ClassVar[str] = "log_confidence"
    has_classes: ClassVar[bool] = True  # where not, losses or numbers stand for labels
    readers: ClassVar[str] = "AgreeStop or SpikeCP"  # the rules that read them
    label_words: ClassVar[str] = "one class index for each input, or scores that hold labels"

    times: tuple[float, ...]
    ids: NDArray[Any] | None
    labels: Any
    # What only some inputs know.
    classes: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    heard: str = ""
    lengths: Integers | None = None
    rounding: float = 0.0
    trained: Booleans | None = None
    trained_chance: float = 0.0
    weighted: bool | None = None  # whether samples of open answers weigh; None for other inputs
    names: tuple[tuple[str, ...], ...] | None = None  # the different answers of each input

    @property
    @abstractmethod
    def cells(self) -> NDArray[Any]:
        """What rules read: (n, M, K, C)."""

    @property
    def sketched(self) -> NDArray[Any]:
        """Numbers of at most 0 by which rows are recognised: (n, M, K, C).

        A risk, or a pair of numbers, would be near another row's by chance, so each checkpoint has
        a second one.
        """
        if self.has_classes:
            return self.cells
        own = -np.abs(self.cells)
        return np.concatenate([own, np.roll(own, own.shape[1] // 2, axis=1)], axis=-1)

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def unread(self) -> str:
        """A sentence where rows hold more than is read; else empty."""
        return ""

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of members and of classes."""
        members, classes = self.cells.shape[2:]
        return members, classes

    def scored(self, columns: Sequence[int]) -> RowScores:
        """What the inputs are recognised by at some of their times."""
        return ScoredRows(self.sketched, columns)

    def details(self, stops: Integers | Floats) -> dict[str, Any]:
        """Fields of `Decisions` that only these inputs know, from the times (n,) of the stops."""
        return {}

    @property
    def loss(self) -> Floats | None:
        """What stands for labels where there are no classes."""
        return None

    def rows(self, rows: slice | Integers | Booleans) -> Self:
        """Some of the inputs.

        Parameters
        ----------
        rows
            A slice, indices or a mask (n,).
        """
        return select(self, rows, *self.by_time, *self.by_row)

    def at(self, times: Sequence[float]) -> Self:
        """The same at some of their times, or at the checkpoints of a `Schedule`.

        What is fitted is then fitted at these.
        """
        wanted = as_checkpoints(times)
        columns = columns_of(wanted, self.times, self.what)
        known = {name: getattr(self, name) for name in self.by_time}
        cut: Any = {name: part[:, columns] for name, part in known.items() if part is not None}
        return replace(self, times=wanted, **cut)  # type: ignore[type-var]

    def split(
        self, *shares: float, seed: int = 0, groups: ArrayLike | None = None
    ) -> tuple[Self, ...]:
        """Divide the inputs at random into parts, for example for tuning, calibration and test.

        Parameters
        ----------
        *shares
            Shares of the inputs, above 0 and together at most 1. Part boundaries are rounded, so a
            part differs from its share by less than one input; shares that sum to 1 leave no input
            out.
        seed
            The same seed gives the same parts.
        groups
            (n,) whole numbers or strings, such as people or recordings: inputs of one group stay
            together, and shares are of the groups. Without them, inputs with one id stay together.

        Returns
        -------
        tuple
            One part for each share, with inputs in random order. No input is in two parts.

        Examples
        --------
        >>> import agreestop as ag
        >>> calibration, test = ag.simulate_scores(100).split(0.3, 0.7)
        >>> len(calibration), len(test)
        (30, 70)
        """
        rng = np.random.default_rng(as_seed(seed))
        if groups is None and self.ids is not None and len(np.unique(self.ids)) < len(self):
            groups = self.ids
        if groups is None:
            parts = _parts(rng.permutation(len(self)), shares, "inputs")
        else:
            groups = as_row_names(groups, len(self), "groups")
            names, group_of = np.unique(groups, return_inverse=True)
            chosen = _parts(rng.permutation(len(names)), shares, "groups")
            parts = [rng.permutation(np.flatnonzero(np.isin(group_of, part))) for part in chosen]
        return tuple(self.rows(part) for part in parts)


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Inputs):
    """Log-confidences of n inputs at M times, from K members, for C classes.

    Parameters
    ----------
    log_confidence : (n, M, K, C)
        Logarithms of confidences, none above 0; see `log_confidence`.
    labels : (n,) or None
        Class indices; or names, where `classes` gives them.
    times : (M,)
        Increasing times, or a `Schedule` of M checkpoints.
    classes : (C,), optional
        Names of the classes.
    engine, ensemble_digest
        What computed the scores, and the members that did, as a hash.
    ids : (n,), optional
        A hash of each input, or whole numbers or strings of your own. Rows that were tuned on are
        recognised by them.
    lengths : (n,), optional
        Where inputs may end early, the steps of each: its scores at its end stand for all later
        times. The guarantee of a rule that is calibrated on them says so.
    rounding
        How far the log-confidences of one input may differ between runs, such as alone and in a
        batch; 0 for counts of spikes. It is a lower bound of what the library allows for itself:
        thresholds stay clear of shared values by more.
    trained : (n,), optional
        Whether the members were trained on an input, where they know it. Such rows are refused in
        calibration and evaluation.
    trained_chance
        The rate at which fresh inputs may equal a training input, such as empty recordings.
    heard
        Where the inputs are windows of streams: the window, event, skip and spotter that made
        them.

    Examples
    --------
    >>> import numpy as np
    >>> import agreestop as ag
    >>> probabilities = np.array([[[[0.8, 0.2]], [[0.9, 0.1]]]])
    >>> ag.Scores(np.log(probabilities), labels=[0], times=(10, 20))
    Scores(1 inputs at 2 times, 1 member, 2 classes with labels)
    """

    log_confidence: NDArray[Any]
    labels: Integers | None
    times: tuple[float, ...]
    classes: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    ids: NDArray[Any] | None = None
    lengths: Integers | None = None
    rounding: float = 0.0
    trained: Booleans | None = None
    trained_chance: float = 0.0
    heard: str = ""

    by_time = ("log_confidence",)
    by_row = ("labels", "ids", "lengths", "trained")

    def __post_init__(self) -> None:
        array = as_log_confidence(self.log_confidence)
        times = as_times(self.times, array.shape[1])
        check_members(times, array.shape[2])
        set_fields(self, log_confidence=array, times=times)
        _check(self, array, "log_confidence")
        _check_text("heard", self.heard)
        if self.lengths is not None:
            set_fields(self, lengths=_as_lengths(self.lengths, len(array)))
        meaning = ", the largest difference between two runs"
        set_fields(self, rounding=_as_share(self.rounding, "rounding", MOST_ROUNDING, meaning))

    def __repr__(self) -> str:
        n, times, members, classes = self.log_confidence.shape
        known = [one for one in ("labels", "classes", "ids") if getattr(self, one) is not None]
        many = f"{members} member{'s' * (members > 1)}, {classes} classes"
        named = f" with {', '.join(known)}" if known else ""
        return f"Scores({n} inputs at {times} times, {many}{named})"

    @property
    def cells(self) -> NDArray[Any]:
        return self.log_confidence


@dataclass(frozen=True, eq=False)
class Spikes:
    """Read-out spikes (n, T, K, C), with what else is known of them; see `Scores`."""

    spikes: Booleans
    labels: Integers | None = None
    classes: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    ids: NDArray[Any] | None = None
    trained: Booleans | None = None
    trained_chance: float = 0.0

    def __post_init__(self) -> None:
        array = as_array(self.spikes, "spikes")
        if array.ndim != 4 or array.size == 0:
            raise InputError(
                f"spikes has shape {array.shape}: (n, T, K, C), none of them 0, is needed."
            )
        if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
            raise InputError(
                "spikes must hold booleans, or 0 and 1: at most one spike for each neuron and step."
            )
        set_fields(self, spikes=array.astype(bool, copy=False))
        _check(self, array, "spikes")

    def __len__(self) -> int:
        return len(self.spikes)

    def rows(self, rows: slice | Integers | Booleans) -> Self:
        """Some of the inputs."""
        return select(self, rows, "spikes", "labels", "ids", "trained")


def _check(data: Scores | Spikes, array: NDArray[Any], what: str) -> None:
    """Check what is known of the inputs of an array, and bring it to one form."""
    n, classes = len(array), array.shape[3]
    if data.classes is not None:
        if len(data.classes) != classes:
            raise InputError(
                f"classes names {len(data.classes)} classes and {what} has {classes}: "
                "give one name for each."
            )
        set_fields(data, classes=as_names(data.classes, "classes"))
    if data.labels is not None:
        set_fields(data, labels=as_labels(data.labels, n, classes, data.classes))
    _check_text("engine", data.engine)
    _check_text("ensemble_digest", data.ensemble_digest)
    if data.trained is not None:
        trained = as_array(data.trained, "trained")
        if trained.shape != (n,) or trained.dtype != np.bool_:
            raise InputError(
                f"trained has shape {trained.shape} and dtype {trained.dtype}: {n} booleans are "
                "needed, True for each input that the members were trained on."
            )
        set_fields(data, trained=trained)
    chance = _as_share(data.trained_chance, "trained_chance", 1.0)
    set_fields(data, ids=as_ids(data.ids, n), trained_chance=chance)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"{name} is {quoted(text)}: give a text, or leave it out.")
    as_names([text], name)


def _parts(order: Integers, shares: Sequence[float], what: str) -> list[Integers]:
    """An order of units cut into parts by their shares."""
    if not shares:
        raise InputError("no shares are given: give one for each part, as in split(0.3, 0.7).")
    for share in shares:
        if not is_number(share) or not 0 < share <= 1:
            raise InputError(f"a share is {quoted(share)}: {EXAMPLE}.")
    *_, total = sums = list(itertools.accumulate(Fraction(str(share)) for share in shares))
    if total > 1 + ROUNDED:
        raise InputError(f"the shares sum to {float(total):g}: {EXAMPLE}.")
    n = len(order)
    parts = np.split(order, [min(round(n * one), n) for one in sums])[:-1]
    for share, part in zip(shares, parts, strict=True):
        if not len(part):
            raise InputError(
                f"a share of {share:g} of {n} {what} holds none: "
                f"give a larger share, or more {what}."
            )
    return parts


def _as_lengths(lengths: ArrayLike, n: int) -> Integers:
    array = as_array(lengths, "lengths")
    if array.shape != (n,) or array.dtype.kind not in "iu" or (n and array.min() < 1):
        raise InputError(
            f"lengths has shape {array.shape} and dtype {array.dtype}: "
            f"{n} whole numbers of at least 1 are needed, one for each input."
        )
    return array.astype(np.int64)


def _as_share(value: object, name: str, most: float, meaning: str = "") -> float:
    number = np.asarray(value)
    if number.shape != () or number.dtype.kind not in "iuf" or not 0 <= number <= most:
        raise InputError(
            f"{name} is {quoted(value)}: a number from 0 to {most} is needed{meaning}."
        )
    return float(number)


def _axes_in_words(array: NDArray[Any], axes: str) -> str:
    """What the axes stand for, and how the scores of one model get the axis of members."""
    letters = axes.strip("()").split(", ")
    *first, last = (AXES[letter] for letter in letters)
    words = f" for {', '.join(first)} and {last}"
    if array.ndim != len(letters) - 1:
        return words
    places = ", ".join("None" if letter == "K" else ":" for letter in letters)
    return f"{words}; if they are of one model, give log_confidence[{places}]"


def as_log_confidence(log_confidence: ArrayLike, axes: str = "(n, M, K, C)") -> NDArray[Any]:
    """The array itself, checked: number of axes, not empty, finite, nowhere positive.

    float32 stays float32.
    """
    array = as_array(log_confidence, "log_confidence")
    if array.dtype.kind not in "fiu":
        raise InputError(f"log_confidence has dtype {array.dtype}: it must hold real numbers.")
    if array.ndim != (ndim := axes.count(",") + 1) or not array.size:
        given = f"log_confidence has shape {array.shape}"
        if array.ndim != ndim:
            raise InputError(
                f"{given}: {ndim} axes {axes} are needed{_axes_in_words(array, axes)}."
            )
        raise InputError(f"{given} and holds nothing: every axis of {axes} must be at least 1.")
    low, high = array.min(), array.max()
    if not (low > -np.inf and high <= 0):
        check_finite(array, "log_confidence")
        if low >= 0 and high <= 1:
            raise InputError(
                "log_confidence lies between 0 and 1 like probabilities: "
                "give their logarithm, numpy.log(probabilities)."
            )
        raise InputError(
            f"log_confidence reaches {high:.6g}, but the logarithm of a confidence is at most 0: "
            "pass spike counts or logits through log_confidence() first."
        )
    return array


ScoresLike: TypeAlias = Inputs | ArrayLike
Kind = TypeVar("Kind", bound=Inputs)


def refuse_beside(what: str, **given: object) -> None:
    """Refuse labels or times beside an object that holds its own."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name} are given together with {what}, which hold their own: leave {name} out, "
                "or give arrays."
            )


def as_scores(
    given: ScoresLike,
    labels: ArrayLike | None = None,
    times: Sequence[float] | None = None,
    checkpoints: Sequence[float] | None = None,
) -> Scores:
    """A `Scores` itself, or an array (n, M, K, C) with the labels and times beside it.

    An array without times has the rule's `checkpoints`, each of them once, or 1, 2, ..., M.
    """
    if isinstance(given, Scores):
        refuse_beside("scores", labels=labels, times=times)
        return given
    if isinstance(given, Inputs):
        raise InputError(
            f"Scores are needed here, and {type(given).__name__} are for {given.readers}: give one "
            "of them."
        )
    array = as_array(given, "log_confidence")
    if times is None and array.ndim == 4:
        steps = array.shape[1]
        known = range(1, steps + 1) if checkpoints is None else tuple(dict.fromkeys(checkpoints))
        times = as_times(None, steps, checkpoints=known)
    return Scores(array, labels, times)  # type: ignore[arg-type]


def labels_of(scores: Scores) -> Integers:
    """The labels, which must be known; zeros where losses or numbers stand for them."""
    if not scores.has_classes:
        return np.zeros(len(scores), dtype=np.int64)
    if scores.labels is None:
        raise InputError(f"labels are missing: give {scores.label_words}.")
    return scores.labels


def classes_of_texts(names: Sequence[Sequence[str]], texts: Sequence[str], never: int) -> Integers:
    """The class (n,) of each text among the answers of its input; `never` where it is none."""
    pairs = zip(names, texts, strict=True)
    return np.array([known.index(one) if one in known else never for known, one in pairs])


def at_checkpoint(scores: Scores, index: int) -> Floats:
    """(n, K, C) log-confidences of one checkpoint; with a schedule, of the members that joined."""
    joined = joined_members(scores.times)
    count = None if joined is None else joined[index]
    return np.ascontiguousarray(scores.log_confidence[:, index, :count], dtype=np.float64)


def save_scores(path: StrPath, scores: Scores) -> None:
    """Write scores to a `.npz`, completely or not at all.

    Parameters
    ----------
    path
        The file, which is replaced if it exists.
    scores
        What `load_scores` will give back.

    Examples
    --------
    >>> import tempfile
    >>> import agreestop as ag
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ag.save_scores(f"{folder}/scores.npz", ag.simulate_scores(5))
    ...     ag.load_scores(f"{folder}/scores.npz", times=(20, 40, 80))
    Scores(5 inputs at 3 times, 6 members, 10 classes with labels)
    """
    if not isinstance(scores, Scores):
        raise InputError(
            f"the scores are a {type(scores).__name__}: "
            "give the path first, then a Scores: save_scores(path, scores)."
        )
    if joined_members(scores.times):
        raise InputError(
            "these scores are cut to the checkpoints of a schedule: "
            "save the scores that they were cut from."
        )
    _save(path, scores)


def save_spikes(
    path: StrPath,
    spikes: ArrayLike | Spikes,
    labels: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    engine: str = "",
    ensemble_digest: str = "",
    ids: ArrayLike | None = None,
    trained: ArrayLike | None = None,
    trained_chance: float = 0.0,
) -> None:
    """Write read-out spikes to a `.npz` as packed bits, completely or not at all.

    Parameters
    ----------
    path
        The file, which is replaced if it exists. `load_scores` reads it.
    spikes : (n, T, K, C)
        Booleans, or 0 and 1.
    labels, classes, engine, ensemble_digest, ids, trained, trained_chance
        As in `Scores`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import agreestop as ag
    >>> spikes = np.random.default_rng(0).random((5, 80, 6, 10)) < 0.1
    >>> labels = np.arange(5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ag.save_spikes(f"{folder}/spikes.npz", spikes, labels)
    ...     ag.load_scores(f"{folder}/spikes.npz", times=(20, 40, 80))
    Scores(5 inputs at 3 times, 6 members, 10 classes with labels)
    """
    if not isinstance(spikes, Spikes):
        known: Any = (labels, classes, engine, ensemble_digest, ids, trained, trained_chance)
        spikes = Spikes(spikes, *known)  # type: ignore[arg-type]
    _save(path, spikes)


def _save(path: StrPath, data: Scores | Spikes) -> None:
    """Write every field that says something, under its name."""
    known = {field.name: getattr(data, field.name) for field in fields(data)}
    unknown = (None, "", 0.0)
    content = {
        name: np.asarray(value)
        for name, value in known.items()
        if isinstance(value, np.ndarray) or value not in unknown
    }
    cells = 0
    if isinstance(data, Spikes):
        cells = data.spikes.size
        content["spikes"] = np.packbits(data.spikes.ravel())
        content["spikes_shape"] = np.array(data.spikes.shape)
    size = sum(array.nbytes for array in content.values())
    with atomic_writer(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **content)
        if _too_dense(size, cells, stream.tell()):
            # `load` would take it for a file that was made to fill the memory.
            stream.seek(0)
            stream.truncate()
            np.savez(stream, allow_pickle=False, **content)


def _too_dense(unpacked: int, spikes: int, stored: int) -> bool:
    """Whether `stored` bytes hold more than a reader unpacks: bytes of arrays, and spikes."""
    largest = max(UNPACKED, MOST_RATIO * stored)
    return unpacked > largest or spikes > max(MOST_SPIKES, SPIKES_PER_BYTE * stored)


def made_of(kind: type[Kind], path: StrPath, content: Arrays, *names: str) -> Kind:
    """Inputs of a kind from arrays of a file, which its sentences then name."""
    known: dict[str, Any] = {name: content[name] for name in names if name in content}
    if "times" in content:
        known["times"] = tuple(read_list(path, content, "times"))
    try:
        return kind(**known)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def load_spikes(path: StrPath) -> Spikes:
    """Read a file that `save_spikes` wrote."""
    content = _read(path)
    if "spikes" not in content:
        raise InputError(
            f"{path} holds {shortened(sorted(content))} but no 'spikes': "
            "give a file that save_spikes wrote."
        )
    return Spikes(_unpack(path, content), **_known(path, content))


def holds_answers(path: StrPath) -> bool:
    """Whether a file is one of open answers, by its name."""
    return Path(path).suffix.lower() in (".jsonl", ".ndjson")


def load_scores(path: StrPath, times: Sequence[float] | None = None) -> Scores:
    """Read a score file, which `save_scores`, `save_spikes` or `numpy.savez` wrote.

    Parameters
    ----------
    path
        The file.
    times
        Some of its times, or a `Schedule`; without them all times are read.

    Returns
    -------
    Scores

    Examples
    --------
    See `save_scores`.
    """
    if holds_answers(path):
        raise InputError(
            f"{path} holds open answers, not scores: they are for AgreeStop (--rule agreestop)."
        )
    content = _read(path)
    if "inputs" in content or "pointers" in content:
        raise InputError(
            f"{path} holds inputs, not scores: score them first, with `ensemble.score` or "
            "`agreestop score FILE --members MEMBERS`."
        )
    if "risk" in content:
        raise InputError(
            f"{path} holds risks, not scores: calibrate a StopRule on them (--rule stop)."
        )
    if "centre" in content or "lower" in content:
        raise InputError(
            f"{path} holds numbers, not scores: calibrate an IntervalStop on them (--rule "
            "interval)."
        )
    if "offsets" in content:
        raise InputError(
            f"{path} holds recordings without an end, not scores of finite inputs: they are for a "
            "Spotter (--rule spotter)."
        )
    if "spikes" in content:
        spikes = _unpack(path, content)
        steps = range(1, spikes.shape[1] + 1)
        wanted = as_checkpoints(steps if times is None else times)
        counted = _counts_at(spikes, columns_of(wanted, steps, "spikes"))
        return Scores(counted, times=wanted, **_known(path, content))
    for name in ("log_confidence", "times"):
        if name not in content:
            raise InputError(
                f"{path} holds {shortened(sorted(content))} but no {name!r}: a score file has "
                f"log_confidence (inputs, checkpoints, members, classes) and times: {HOW_TO_WRITE}."
            )
    known = _known(path, content, "lengths", "rounding")
    moments = tuple(read_list(path, content, "times"))
    heard = read_text(path, content, "heard")
    scores = Scores(content["log_confidence"], times=moments, heard=heard, **known)
    return scores if times is None else scores.at(times)


def _read(path: StrPath) -> Arrays:
    return read_npz(path, "score file", HOW_TO_WRITE, unpacked_limit=UNPACKED)


def _known(path: StrPath, content: Arrays, *more: str) -> dict[str, Any]:
    """What a file says of its inputs: the fields that `Scores` and `Spikes` share, and more."""
    names = ("ids", "trained", "trained_chance", *more)
    known: dict[str, Any] = {name: content[name] for name in names if name in content}
    if "classes" in content:
        known["classes"] = tuple(read_list(path, content, "classes"))
    texts = {name: read_text(path, content, name) for name in ("engine", "ensemble_digest")}
    return {"labels": content.get("labels"), **known, **texts}


def _unpack(path: StrPath, content: Arrays) -> Booleans:
    """The spikes (n, T, K, C) of a file, whose sizes are checked before memory is taken."""
    sizes, bits = content.get("spikes_shape", np.empty(0)), content["spikes"]
    shape = tuple(sizes.ravel().tolist()) if sizes.dtype.kind in "iu" else ()
    count = math.prod(shape)
    fits = bits.dtype == np.uint8 and bits.shape == (-(-count // 8),)
    if len(shape) != 4 or min(shape) < 1 or not fits:
        raise InputError(
            f"{path} holds spikes of {bits.size} bytes for the shape {shortened(shape)}: "
            "write it with save_spikes."
        )
    if _too_dense(0, count, Path(path).stat().st_size):
        raise InputError(
            f"{path} would unpack to {count:,} spikes, far more than a file of its size holds: "
            "divide it."
        )
    return np.unpackbits(bits, count=count).astype(bool).reshape(shape)


def _counts_at(spikes: Booleans, columns: list[int]) -> Floats:
    """Log-confidences at some steps, without the counts of all the others."""
    kept = np.empty((len(spikes), len(columns), *spikes.shape[2:]))
    for start in range(0, len(spikes), 256):
        rows = slice(start, start + 256)
        counts = np.cumsum(spikes[rows], axis=1, dtype=np.int32)
        kept[rows] = log_confidence(counts[:, columns])
    return kept
