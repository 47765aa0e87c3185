"""Score files: what any model hands to the decision layer.

A `.npz` with either `log_confidence` (n, M, K, C) and `times` (M,), or `spikes`: read-out spikes (n, T, K, C) as packed bits with
`spikes_shape`, lossless and 64 times smaller, from which every checkpoint follows. Optional are `labels` (n,), the names `classes` (C,),
`engine` and `ensemble_digest`, which say what computed the scores, and `ids` (n,). Nothing in such a file is executed or unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common.arrays import Booleans, Integers
from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer
from agreestop.common.npz import Arrays, read_list, read_npz, read_text

from .checks import as_checkpoints, as_ids, as_labels, as_log_confidence, columns_of
from .confidence import log_confidence


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
        times = as_checkpoints(self.times)
        if len(times) != array.shape[1]:
            raise InputError(
                f"times names {len(times)} moments and log_confidence has {array.shape[1]} checkpoints: give one time for each."
            )
        if self.labels is not None:
            object.__setattr__(self, "labels", as_labels(self.labels, len(array), array.shape[3]))
        object.__setattr__(self, "log_confidence", array)
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "classes", _as_names(self.classes, array.shape[3], "log_confidence"))
        object.__setattr__(self, "ids", as_ids(self.ids, len(array)))

    def __len__(self) -> int:
        return len(self.log_confidence)

    def rows(self, rows: slice | Integers | Booleans) -> Scores:
        """Some of the inputs."""
        labels, ids = (None if values is None else values[rows] for values in (self.labels, self.ids))
        return replace(self, log_confidence=self.log_confidence[rows], labels=labels, ids=ids)


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
        if self.labels is not None:
            object.__setattr__(self, "labels", as_labels(self.labels, len(array), array.shape[3]))
        object.__setattr__(self, "spikes", array.astype(bool, copy=False))
        object.__setattr__(self, "classes", _as_names(self.classes, array.shape[3], "spikes"))
        object.__setattr__(self, "ids", as_ids(self.ids, len(array)))

    def __len__(self) -> int:
        return len(self.spikes)

    def rows(self, rows: slice | Integers | Booleans) -> Spikes:
        """Some of the inputs."""
        labels, ids = (None if values is None else values[rows] for values in (self.labels, self.ids))
        return replace(self, spikes=self.spikes[rows], labels=labels, ids=ids)


def _as_names(classes: Sequence[str] | None, count: int, what: str) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if len(classes) != count:
        raise InputError(f"classes names {len(classes)} classes and {what} has {count}: give one name for each.")
    return tuple(str(name) for name in classes)


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
    return _spikes(path, content)


def _spikes(path: str | PathLike[str], content: Arrays) -> Spikes:
    labels, classes = _labels_and_names(path, content)
    return Spikes(_unpack(path, content), labels, classes, *_source(content))


def _labels_and_names(path: str | PathLike[str], content: Arrays) -> tuple[Integers | None, tuple[str, ...] | None]:
    return content.get("labels"), tuple(read_list(path, content, "classes")) if "classes" in content else None


def _source(content: Arrays) -> tuple[str, str, NDArray[Any] | None]:
    return read_text(content, "engine"), read_text(content, "ensemble_digest"), content.get("ids")


def load_scores(path: str | PathLike[str], times: Sequence[float] | None = None) -> Scores:
    """Read a score file, at all its times or at those named."""
    content = _read(path)
    if "spikes" in content:
        data = _spikes(path, content)
        known = tuple(range(1, data.spikes.shape[1] + 1))
        wanted = known if times is None else as_checkpoints(times)
        values = _counts_at(data.spikes, columns_of(wanted, len(known), known, "spikes"))
        return Scores(values, data.labels, wanted, data.classes, data.engine, data.ensemble_digest, data.ids)
    if "inputs_shape" in content:
        raise InputError(f"{path} holds inputs, not scores: give the members that are to watch them too (--members).")
    for name in ("log_confidence", "times"):
        if name not in content:
            raise InputError(f"{path} holds {sorted(content)} but no {name!r}: a score file has log_confidence and times, or spikes.")
    labels, classes = _labels_and_names(path, content)
    scores = Scores(content["log_confidence"], labels, tuple(read_list(path, content, "times")), classes, *_source(content))
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
