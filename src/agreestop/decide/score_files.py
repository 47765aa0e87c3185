"""Scores: what any model hands to the decision layer, in memory or as a file.

A score file is a `.npz` with either `log_confidence` (n, M, K, C) and `times` (M,), or `spikes`: read-out spikes (n, T, K, C) as packed
bits with `spikes_shape`, lossless and 64 times smaller, from which every checkpoint follows. Optional are `labels` (n,), the names
`classes` (C,), `engine` and `ensemble_digest`, which say what computed the scores, and `ids` (n,). Nothing in such a file is executed
or unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Arrays, Booleans, Floats, InputError, Integers, atomic_writer, read_list, read_npz, read_text

from .checks import as_checkpoints, as_ids, as_labels, as_log_confidence, as_times, columns_of
from .confidence import log_confidence
from .tuned_rows import TunedRows, mark_rows


@dataclass(frozen=True, eq=False)
class Scores:
    """Log-confidences (n, M, K, C) of n inputs at M times, from K members, for C classes, with what else is known of them.

    labels           (n,) class indices, or None
    times            (M,) increasing
    classes          (C,) names of the classes
    engine           what computed the scores
    ensemble_digest  the members that computed them, as a hash
    ids              (n,) a hash of each input, or whole numbers or strings of your own: rows that were tuned on are recognised by them
    """

    log_confidence: NDArray[Any]
    labels: Integers | None
    times: tuple[float, ...]
    classes: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        array = as_log_confidence(self.log_confidence)
        object.__setattr__(self, "log_confidence", array)
        object.__setattr__(self, "times", as_times(self.times, array.shape[1]))
        _check(self, len(array), array.shape[3], "log_confidence")

    def __len__(self) -> int:
        return len(self.log_confidence)

    def rows(self, rows: slice | Integers | Booleans) -> Scores:
        """Some of the inputs."""
        return replace(self, log_confidence=self.log_confidence[rows], **_rows(self, rows))


@dataclass(frozen=True, eq=False)
class Spikes:
    """Read-out spikes (n, T, K, C), with what else is known of them; see `Scores`."""

    spikes: Booleans
    labels: Integers | None = None
    classes: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        array = np.asarray(self.spikes)
        if array.ndim != 4 or array.size == 0:
            raise InputError(f"spikes has shape {array.shape}: (n, T, K, C), none of them 0, is needed.")
        if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
            raise InputError("spikes must hold booleans, or 0 and 1: at most one spike for each neuron and step.")
        object.__setattr__(self, "spikes", array.astype(bool, copy=False))
        _check(self, len(array), array.shape[3], "spikes")

    def __len__(self) -> int:
        return len(self.spikes)

    def rows(self, rows: slice | Integers | Booleans) -> Spikes:
        """Some of the inputs."""
        return replace(self, spikes=self.spikes[rows], **_rows(self, rows))


def _check(data: Scores | Spikes, n: int, classes: int, what: str) -> None:
    """Check what is known of n inputs and bring it to one form."""
    if data.labels is not None:
        object.__setattr__(data, "labels", as_labels(data.labels, n, classes))
    if data.classes is not None:
        if len(data.classes) != classes:
            raise InputError(f"classes names {len(data.classes)} classes and {what} has {classes}: give one name for each.")
        object.__setattr__(data, "classes", tuple(str(name) for name in data.classes))
    object.__setattr__(data, "ids", as_ids(data.ids, n))


def _rows(data: Scores | Spikes, rows: slice | Integers | Booleans) -> dict[str, Any]:
    return {name: None if (values := getattr(data, name)) is None else values[rows] for name in ("labels", "ids")}


@dataclass(frozen=True, eq=False)
class Examples:
    """Checked log-confidences (n, M, K, C), with whatever else is known: labels (n,), times, ids (n,), and where the scores come from."""

    log_confidence: NDArray[Any]
    labels: Integers | None = None
    times: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    ids: NDArray[Any] | None = None

    @classmethod
    def of(cls, given: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None) -> Examples:
        """The examples of a `Scores`, which brings its own labels and times, or of an array with the labels and times beside it."""
        if isinstance(given, (Scores, Examples)):
            for name, value in (("labels", labels), ("times", times)):
                if value is not None:
                    raise InputError(f"{name} are given together with scores, which hold their own: leave {name} out, or give arrays.")
            if isinstance(given, Examples):
                return given
            source = given.engine, given.ensemble_digest, given.ids
            return cls(given.log_confidence, given.labels, given.times, given.classes, *source)
        array = as_log_confidence(given)
        known = None if times is None else as_times(times, array.shape[1])
        return cls(array, None if labels is None else as_labels(labels, len(array), array.shape[3]), known)

    @property
    def truth(self) -> Integers:
        """The labels, which must be known."""
        if self.labels is None:
            raise InputError("labels are missing: give one class index for each input, or scores that hold labels.")
        return self.labels

    @property
    def checkpoints(self) -> int:
        return int(self.log_confidence.shape[1])

    @property
    def classes(self) -> int:
        return int(self.log_confidence.shape[3])

    def columns(self, checkpoints: Sequence[float]) -> list[int]:
        """The entries of the time axis that are a rule's checkpoints."""
        return columns_of(checkpoints, self.checkpoints, self.times)

    def rows(self, rows: Booleans | Integers) -> Examples:
        """Some of the examples."""
        labels, ids = (None if values is None else values[rows] for values in (self.labels, self.ids))
        return replace(self, log_confidence=self.log_confidence[rows], labels=labels, ids=ids)

    def at(self, index: int) -> Floats:
        """(n, K, C) log-confidences of one checkpoint."""
        return np.ascontiguousarray(self.log_confidence[:, index], dtype=np.float64)

    def of_label(self, values: Floats) -> Floats:
        """The entry of each row's own label, from values (n, C)."""
        return values[np.arange(len(values)), self.truth]

    def as_tuned(self) -> TunedRows:
        """The mark that a score or risk keeps of the rows it was tuned on."""
        return TunedRows.of(self.log_confidence, self.ids)

    def refuse_tuned(self, tuned: TunedRows | None, columns: list[int], what: str) -> None:
        """Refuse rows that a score or risk was tuned on."""
        if tuned is None:
            return
        reuse = tuned.reuse_of(self.ids) if tuned.knows(self.ids) else tuned.reuse(mark_rows(self.log_confidence, columns))
        if reuse:
            raise InputError(f"{what}: {reuse}")


ScoresLike: TypeAlias = Scores | Examples | ArrayLike


def save_scores(path: str | PathLike[str], scores: Scores) -> None:
    """Write scores to a `.npz`, whole or not at all."""
    _save(path, scores, {"log_confidence": scores.log_confidence, "times": np.array(scores.times)})


def save_spikes(
    path: str | PathLike[str],
    spikes: ArrayLike | Spikes,
    labels: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    engine: str = "",
    ensemble_digest: str = "",
    ids: ArrayLike | None = None,
) -> None:
    """Write read-out spikes (n, T, K, C), booleans or 0 and 1, as packed bits."""
    if not isinstance(spikes, Spikes):
        spikes = Spikes(np.asarray(spikes), labels, classes, engine, ensemble_digest, ids)  # type: ignore[arg-type]
    _save(path, spikes, {"spikes": np.packbits(spikes.spikes.ravel()), "spikes_shape": np.array(spikes.spikes.shape)})


def _save(path: str | PathLike[str], data: Scores | Spikes, content: Arrays) -> None:
    for name in ("labels", "classes", "engine", "ensemble_digest", "ids"):
        value = getattr(data, name)
        if value is not None and not (isinstance(value, str) and not value):
            content[name] = np.asarray(value)
    with atomic_writer(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **content)


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
        "engine": read_text(content, "engine"),
        "ensemble_digest": read_text(content, "ensemble_digest"),
        "ids": content.get("ids"),
    }


def load_scores(path: str | PathLike[str], times: Sequence[float] | None = None) -> Scores:
    """Read a score file, at all its times or at those named."""
    content = _read(path)
    if "inputs" in content or "pointers" in content:
        raise InputError(
            f"{path} holds inputs, not scores: score them first (`ensemble.score`), or decide on them with `agreestop decide --members`."
        )
    if "spikes" in content:
        spikes = _unpack(path, content)
        steps = range(1, spikes.shape[1] + 1)
        wanted = as_checkpoints(steps if times is None else times)
        return Scores(_counts_at(spikes, columns_of(wanted, len(steps), steps, "spikes")), times=wanted, **_known(path, content))
    for name in ("log_confidence", "times"):
        if name not in content:
            raise InputError(f"{path} holds {sorted(content)} but no {name!r}: a score file has log_confidence and times, or spikes.")
    scores = Scores(content["log_confidence"], times=tuple(read_list(path, content, "times")), **_known(path, content))
    if times is None:
        return scores
    wanted = as_checkpoints(times)
    columns = columns_of(wanted, len(scores.times), scores.times)
    return replace(scores, log_confidence=scores.log_confidence[:, columns], times=wanted)


def _read(path: str | PathLike[str]) -> Arrays:
    return read_npz(path, "score file", "write one with save_scores, save_spikes or numpy.savez")


def _unpack(path: str | PathLike[str], content: Arrays) -> Booleans:
    sizes = content.get("spikes_shape", np.empty(0, dtype=np.int64))
    shape = tuple(sizes.ravel().tolist()) if sizes.dtype.kind in "iu" else ()
    bits = content["spikes"]
    if len(shape) != 4 or min(shape) < 1 or bits.dtype != np.uint8 or bits.ndim != 1 or bits.size != -(-int(np.prod(shape)) // 8):
        raise InputError(f"{path} holds spikes of {bits.size} bytes for the shape {shape}: write it with save_spikes.")
    return np.unpackbits(bits, count=int(np.prod(shape))).astype(bool).reshape(shape)


def _counts_at(spikes: Booleans, columns: list[int]) -> NDArray[np.float64]:
    """Log-confidences at some steps, without the counts of all the others."""
    kept = np.empty((len(spikes), len(columns), *spikes.shape[2:]))
    for start in range(0, len(spikes), 256):
        counts = np.cumsum(spikes[start : start + 256], axis=1, dtype=np.int32)
        kept[start : start + 256] = log_confidence(counts[:, columns])
    return kept
