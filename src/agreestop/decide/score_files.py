"""Scores: what any model hands to the decision layer, in memory or as a file.

A score file is a `.npz` with either `log_confidence` (n, M, K, C) and `times` (M,), or `spikes`: read-out spikes (n, T, K, C) as packed
bits with `spikes_shape`, lossless and 64 times smaller, from which every checkpoint follows. Optional are `labels` (n,), the names
`classes` (C,), `engine` and `ensemble_digest`, which say what computed the scores, `ids` (n,), `trained` (n,) with `trained_chance` and,
beside log_confidence, `lengths` (n,) and `rounding`.
Nothing in such a file is executed or unpickled.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Arrays,
    Booleans,
    Floats,
    InputError,
    Integers,
    as_array,
    as_names,
    as_seed,
    atomic_writer,
    is_number,
    read_list,
    read_npz,
    read_text,
)
from agreestop.common.npz import MOST_RATIO

from .checks import as_checkpoints, as_ids, as_labels, as_log_confidence, as_row_names, as_times, columns_of
from .confidence import log_confidence
from .schedules import Schedule, check_members, members_at
from .tuned_rows import Overlap

MOST_SPIKES, SPIKES_PER_BYTE = 2**22, 300  # spikes that any file may unpack to, and for each byte of a larger one (real ones: up to 110)
MOST_ROUNDING = 0.1  # differences beyond this are no rounding
ROUNDED = Fraction(1, 10**9)  # shares that are sums of floats may be this much above 1
UNPACKED = 2**25  # bytes that compressed scores may always take: calibration takes several times as much


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """Log-confidences (n, M, K, C) of n inputs at M times, from K members, for C classes, with what else is known of them.

    labels           (n,) class indices, or None
    times            (M,) increasing, or a `Schedule` of M looks
    classes          (C,) names of the classes
    engine           what computed the scores
    ensemble_digest  the members that computed them, as a hash
    ids              (n,) a hash of each input, or whole numbers or strings of your own: rows that were tuned on are recognised by them
    lengths          (n,) where inputs may end early, the steps of each: its scores at its end stand for all later times. The guarantee of
                     a rule that is calibrated on them says so
    rounding         how far the log-confidences of one input may differ between runs, such as alone and in a batch; 0 for counts of spikes.
                     A lower bound of what the library allows for itself: thresholds stay clear of shared values by more
    trained          (n,) whether the members were trained on an input, where they know it: such rows are refused in calibration and
                     evaluation
    trained_chance   the rate at which fresh inputs may equal one of training, such as empty recordings
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

    def __post_init__(self) -> None:
        array = as_log_confidence(self.log_confidence)
        object.__setattr__(self, "log_confidence", array)
        object.__setattr__(self, "times", as_times(self.times, array.shape[1]))
        check_members(self.times, array.shape[2])
        _check(self, len(array), array.shape[3], "log_confidence")
        if self.lengths is not None:
            object.__setattr__(self, "lengths", _as_lengths(self.lengths, len(array)))
        object.__setattr__(self, "rounding", _as_rounding(self.rounding))

    def __len__(self) -> int:
        return len(self.log_confidence)

    def __repr__(self) -> str:
        n, moments, members, classes = self.log_confidence.shape
        known = "".join(f", {name}" for name in ("labels", "classes", "ids") if getattr(self, name) is not None)
        many = f"{members} member" + ("s" if members > 1 else "")
        return f"Scores({n} inputs at {moments} times, {many}, {classes} classes{known and ' with ' + known[2:]})"

    def rows(self, rows: slice | Integers | Booleans) -> Self:
        """Some of the inputs."""
        return replace(self, log_confidence=self.log_confidence[rows], **_rows(self, rows))

    def split(self, *shares: float, seed: int = 0, groups: ArrayLike | None = None) -> tuple[Self, ...]:
        """Divide the inputs at random into parts, for example for tuning, calibration and test; no input is in two parts.

        shares  of the inputs, above 0 and together at most 1. Part boundaries are rounded, so a part
                differs from its share by less than one input; shares that sum to 1 leave no input
                out. Inputs of a part are in random order
        seed    the same seed gives the same parts
        groups  (n,) whole numbers or strings, such as people or recordings: inputs of one group
                stay together, and shares are of the groups. Without them, inputs with one id stay
                together

        >>> import agreestop as ag
        >>> calibration, test = ag.simulate_scores(100).split(0.3, 0.7)
        >>> len(calibration), len(test)
        (30, 70)
        """
        rng = np.random.default_rng(as_seed(seed))
        if groups is None and self.ids is not None and len(np.unique(self.ids)) < len(self):
            groups = self.ids
        if groups is None:
            return tuple(self.rows(rows) for rows in _parts(rng.permutation(len(self)), shares, "inputs"))
        names, member_of = np.unique(as_row_names(groups, len(self), "groups"), return_inverse=True)
        parts = _parts(rng.permutation(len(names)), shares, "groups")
        return tuple(self.rows(rng.permutation(np.flatnonzero(np.isin(member_of, part)))) for part in parts)

    def at(self, times: Sequence[float]) -> "Scores":
        """The scores at some of their times, or at the looks of a `Schedule`, at which scores and risks are then fitted."""
        return at_times(self, times)


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
            raise InputError(f"spikes has shape {array.shape}: (n, T, K, C), none of them 0, is needed.")
        if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
            raise InputError("spikes must hold booleans, or 0 and 1: at most one spike for each neuron and step.")
        object.__setattr__(self, "spikes", array.astype(bool, copy=False))
        _check(self, len(array), array.shape[3], "spikes")

    def __len__(self) -> int:
        return len(self.spikes)

    def rows(self, rows: slice | Integers | Booleans) -> Self:
        """Some of the inputs."""
        return replace(self, spikes=self.spikes[rows], **_rows(self, rows))


def _check(data: Scores | Spikes, n: int, classes: int, what: str) -> None:
    """Check what is known of n inputs and bring it to one form."""
    if data.labels is not None:
        object.__setattr__(data, "labels", as_labels(data.labels, n, classes))
    if data.classes is not None:
        if len(data.classes) != classes:
            raise InputError(f"classes names {len(data.classes)} classes and {what} has {classes}: give one name for each.")
        object.__setattr__(data, "classes", as_names(data.classes, "classes"))
    for name in ("engine", "ensemble_digest"):
        if not isinstance(getattr(data, name), str):
            raise InputError(f"{name} is {getattr(data, name)!r:.40}: give a text, or leave it out.")
        as_names([getattr(data, name)], name)
    object.__setattr__(data, "ids", as_ids(data.ids, n))
    if data.trained is not None:
        object.__setattr__(data, "trained", _as_trained(data.trained, n))
    object.__setattr__(data, "trained_chance", _as_share(data.trained_chance, "trained_chance", 1.0))


def _as_trained(trained: ArrayLike, n: int) -> Booleans:
    array = as_array(trained, "trained")
    if array.shape != (n,) or array.dtype != np.bool_:
        given = f"trained has shape {array.shape} and dtype {array.dtype}"
        raise InputError(f"{given}: {n} booleans are needed, True for each input that the members were trained on.")
    return array


def _parts(order: Integers, shares: Sequence[float], what: str) -> list[Integers]:
    """An order of units cut into parts by their shares."""
    if not shares:
        raise InputError("no shares are given: give one for each part, for example split(0.3, 0.7).")
    for share in shares:
        if not is_number(share) or not 0 < share <= 1:
            raise InputError(f"a share is {share!r}: give shares above 0 that sum to at most 1, for example split(0.3, 0.7).")
    exact = [Fraction(str(share)) for share in shares]
    if sum(exact) > 1 + ROUNDED:
        raise InputError(f"the shares sum to {float(sum(exact)):g}: give shares above 0 that sum to at most 1.")
    ends = [min(round(len(order) * total), len(order)) for total in itertools.accumulate(exact)]
    parts = [order[begin:end] for begin, end in itertools.pairwise([0, *ends])]
    for share, part in zip(shares, parts, strict=True):
        if not len(part):
            raise InputError(f"a share of {share:g} of {len(order)} {what} holds none: give a larger share, or more {what}.")
    return parts


def _as_lengths(lengths: ArrayLike, n: int) -> Integers:
    array = as_array(lengths, "lengths")
    if array.shape != (n,) or array.dtype.kind not in "iu" or (n and array.min() < 1):
        given = f"lengths has shape {array.shape} and dtype {array.dtype}"
        raise InputError(f"{given}: {n} whole numbers of at least 1 are needed, one for each input.")
    return array.astype(np.int64)


def _as_rounding(value: object) -> float:
    return _as_share(value, "rounding", MOST_ROUNDING, ", the largest difference between two runs")


def _as_share(value: object, name: str, most: float, meaning: str = "") -> float:
    number = np.asarray(value)
    if number.shape != () or number.dtype.kind not in "iuf" or not 0 <= number <= most:
        raise InputError(f"{name} is {value!r:.40}: a number from 0 to {most} is needed{meaning}.")
    return float(number)


def _rows(data: Scores | Spikes, rows: slice | Integers | Booleans) -> dict[str, Any]:
    known = {name: getattr(data, name) for name in ("labels", "ids", "lengths", "trained") if hasattr(data, name)}
    return {name: None if values is None else values[rows] for name, values in known.items()}


ScoresLike: TypeAlias = Scores | ArrayLike


def as_scores(
    given: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None, checkpoints: Sequence[float] | None = None
) -> Scores:
    """A `Scores` itself, which brings its own labels and times, or an array (n, M, K, C) with the labels and times beside it.

    An array without times has those of the rule's `checkpoints`, each of them once, or 1, 2, ..., M.
    """
    if isinstance(given, Scores):
        for name, value in (("labels", labels), ("times", times)):
            if value is not None:
                raise InputError(f"{name} are given together with scores, which hold their own: leave {name} out, or give arrays.")
        return given
    array = as_array(given, "log_confidence")
    if times is None and array.ndim == 4:
        steps = array.shape[1]
        known = range(1, steps + 1) if checkpoints is None else tuple(dict.fromkeys(checkpoints))
        times = as_times(None, steps, checkpoints=known)
    return Scores(array, labels, times)  # type: ignore[arg-type]


def training_overlap(scores: Scores) -> Overlap | None:
    """How many inputs the members were trained on; None where they do not know."""
    return None if scores.trained is None else Overlap.of("training", "ids", scores.trained, scores.trained_chance)


def labels_of(scores: Scores) -> Integers:
    """The labels, which must be known."""
    if scores.labels is None:
        raise InputError("labels are missing: give one class index for each input, or scores that hold labels.")
    return scores.labels


def at_checkpoint(scores: Scores, index: int) -> Floats:
    """(n, K, C) log-confidences of one checkpoint; of the first members, where the times are a schedule."""
    return np.ascontiguousarray(scores.log_confidence[:, index, : members_at(scores.times, index)], dtype=np.float64)


def save_scores(path: str | PathLike[str], scores: Scores) -> None:
    """Write scores to a `.npz`, whole or not at all."""
    if not isinstance(scores, Scores):
        raise InputError(f"the scores are a {type(scores).__name__}: give the path first, then a Scores: save_scores(path, scores).")
    if isinstance(scores.times, Schedule):
        raise InputError("these scores are cut to the looks of a schedule: save the scores that they were cut from.")
    rounding = {"rounding": np.array(scores.rounding)} if scores.rounding else {}
    _save(path, scores, {"log_confidence": scores.log_confidence, "times": np.array(scores.times), **rounding})


def save_spikes(
    path: str | PathLike[str],
    spikes: ArrayLike | Spikes,
    labels: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    engine: str = "",
    ensemble_digest: str = "",
    ids: ArrayLike | None = None,
    trained: ArrayLike | None = None,
    trained_chance: float = 0.0,
) -> None:
    """Write read-out spikes (n, T, K, C), booleans or 0 and 1, as packed bits."""
    if not isinstance(spikes, Spikes):
        spikes = Spikes(spikes, labels, classes, engine, ensemble_digest, ids, trained, trained_chance)  # type: ignore[arg-type]
    _save(path, spikes, {"spikes": np.packbits(spikes.spikes.ravel()), "spikes_shape": np.array(spikes.spikes.shape)})


def _save(path: str | PathLike[str], data: Scores | Spikes, content: Arrays) -> None:
    for name in ("labels", "classes", "engine", "ensemble_digest", "ids", "lengths", "trained"):
        value = getattr(data, name, None)
        if value is not None and not (isinstance(value, str) and not value):
            content[name] = np.asarray(value)
    if data.trained_chance:
        content["trained_chance"] = np.array(data.trained_chance)
    cells = math.prod(getattr(data, "spikes", np.empty(0)).shape)
    size = sum(array.nbytes for array in content.values())
    with atomic_writer(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **content)
        if _too_dense(size, cells, stream.tell()):  # `load` would take it for a file that was made to fill the memory
            stream.seek(0)
            stream.truncate()
            np.savez(stream, allow_pickle=False, **content)


def _too_dense(unpacked: int, spikes: int, stored: int) -> bool:
    """Whether a file of `stored` bytes holds more than a reader unpacks: bytes of arrays, and spikes."""
    return unpacked > max(UNPACKED, MOST_RATIO * stored) or spikes > max(MOST_SPIKES, SPIKES_PER_BYTE * stored)


def load_spikes(path: str | PathLike[str]) -> Spikes:
    """Read a file that `save_spikes` wrote."""
    content = _read(path)
    if "spikes" not in content:
        raise InputError(f"{path} holds {sorted(content)} but no 'spikes': give a file that save_spikes wrote.")
    return Spikes(_unpack(path, content), **_known(path, content))


def _known(path: str | PathLike[str], content: Arrays) -> dict[str, Any]:
    """What a file says of its inputs: the fields that `Scores` and `Spikes` share."""
    return {
        "labels": content.get("labels"),
        "classes": tuple(read_list(path, content, "classes")) if "classes" in content else None,
        "engine": read_text(path, content, "engine"),
        "ensemble_digest": read_text(path, content, "ensemble_digest"),
        "ids": content.get("ids"),
        "trained": content.get("trained"),
        "trained_chance": content.get("trained_chance", 0.0),
    }


def load_scores(path: str | PathLike[str], times: Sequence[float] | None = None) -> Scores:
    """Read a score file, at all its times or at those named."""
    content = _read(path)
    if "inputs" in content or "pointers" in content:
        advice = "score them first, with `ensemble.score` or `agreestop score FILE --members MEMBERS`"
        raise InputError(f"{path} holds inputs, not scores: {advice}.")
    if "spikes" in content:
        spikes = _unpack(path, content)
        steps = range(1, spikes.shape[1] + 1)
        wanted = as_checkpoints(steps if times is None else times)
        return Scores(_counts_at(spikes, columns_of(wanted, steps, "spikes")), times=wanted, **_known(path, content))
    for name in ("log_confidence", "times"):
        if name not in content:
            raise InputError(f"{path} holds {sorted(content)} but no {name!r}: a score file has log_confidence and times, or spikes.")
    known = {**_known(path, content), "lengths": content.get("lengths"), "rounding": content.get("rounding", 0.0)}
    scores = Scores(content["log_confidence"], times=tuple(read_list(path, content, "times")), **known)
    return scores if times is None else at_times(scores, times)


def at_times(scores: Scores, times: Sequence[float]) -> Scores:
    """The scores at some of their times."""
    wanted = as_checkpoints(times)
    return replace(scores, log_confidence=scores.log_confidence[:, columns_of(wanted, scores.times)], times=wanted)


def _read(path: str | PathLike[str]) -> Arrays:
    return read_npz(path, "score file", "write one with save_scores, save_spikes or numpy.savez", unpacked_limit=UNPACKED)


def _unpack(path: str | PathLike[str], content: Arrays) -> Booleans:
    sizes = content.get("spikes_shape", np.empty(0, dtype=np.int64))
    shape = tuple(sizes.ravel().tolist()) if sizes.dtype.kind in "iu" else ()
    bits = content["spikes"]
    if len(shape) != 4 or min(shape) < 1 or bits.dtype != np.uint8 or bits.ndim != 1 or bits.size != -(-math.prod(shape) // 8):
        raise InputError(f"{path} holds spikes of {bits.size} bytes for the shape {shape}: write it with save_spikes.")
    if _too_dense(0, math.prod(shape), Path(path).stat().st_size):
        raise InputError(f"{path} would unpack to {math.prod(shape):,} spikes, far more than a file of its size holds: divide it.")
    return np.unpackbits(bits, count=math.prod(shape)).astype(bool).reshape(shape)


def _counts_at(spikes: Booleans, columns: list[int]) -> NDArray[np.float64]:
    """Log-confidences at some steps, without the counts of all the others."""
    kept = np.empty((len(spikes), len(columns), *spikes.shape[2:]))
    for start in range(0, len(spikes), 256):
        counts = np.cumsum(spikes[start : start + 256], axis=1, dtype=np.int32)
        kept[start : start + 256] = log_confidence(counts[:, columns])
    return kept
