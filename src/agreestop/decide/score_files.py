"""Score files: what any model hands to the decision layer.

A `.npz` with either `log_confidence` (n, M, K, C) and `times` (M,), or `spikes`: read-out spikes (n, T, K, C) as packed bits with
`spikes_shape`, lossless and 64 times smaller, from which every checkpoint follows. `labels` (n,) and the names `classes` (C,) are
optional, and so is `engine`, what computed the scores. Nothing in such a file is executed or unpickled.
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

from .checks import as_checkpoints, as_labels, as_log_confidence, columns_of
from .confidence import log_confidence


@dataclass(frozen=True, eq=False)
class Scores:
    """Log-confidences (n, M, K, C) at `times`, with labels, class names and the engine that computed them where they are known."""

    log_confidence: NDArray[Any]
    labels: Integers | None
    times: tuple[float, ...]
    classes: tuple[str, ...] | None = None
    engine: str = ""

    def __post_init__(self) -> None:
        array = as_log_confidence(self.log_confidence)
        times = as_checkpoints(self.times)
        if len(times) != array.shape[1]:
            raise InputError(
                f"times names {len(times)} moments and log_confidence has {array.shape[1]} checkpoints: give one time for each."
            )
        if self.labels is not None:
            object.__setattr__(self, "labels", as_labels(self.labels, len(array), array.shape[3]))
        _check_names(self.classes, array.shape[3], "log_confidence")
        object.__setattr__(self, "times", times)

    def __len__(self) -> int:
        return len(self.log_confidence)

    def rows(self, rows: slice | Integers) -> Scores:
        """Some of the inputs."""
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, log_confidence=self.log_confidence[rows], labels=labels)


def _check_names(classes: Sequence[str] | None, count: int, what: str) -> None:
    if classes is not None and len(classes) != count:
        raise InputError(f"classes names {len(classes)} classes and {what} has {count}: give one name for each.")


def save_scores(path: str | PathLike[str], scores: Scores) -> None:
    """Write scores to a `.npz`, whole or not at all."""
    content = {"log_confidence": scores.log_confidence, "times": np.array(scores.times)}
    _save(path, content, scores.labels, scores.classes, scores.engine)


def save_spikes(
    path: str | PathLike[str],
    spikes: ArrayLike,
    labels: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    engine: str = "",
) -> None:
    """Write read-out spikes (n, T, K, C), booleans or 0 and 1, as packed bits."""
    array = np.asarray(spikes)
    if array.ndim != 4 or array.size == 0:
        raise InputError(f"spikes has shape {array.shape}: (n, T, K, C), none of them 0, is needed.")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise InputError("spikes must hold booleans, or 0 and 1: at most one spike for each neuron and step.")
    truth = None if labels is None else as_labels(labels, len(array), array.shape[3])
    _check_names(classes, array.shape[3], "spikes")
    content = {"spikes": np.packbits(array.astype(bool).ravel()), "spikes_shape": np.array(array.shape)}
    _save(path, content, truth, None if classes is None else tuple(classes), engine)


def _save(
    path: str | PathLike[str], content: dict[str, NDArray[Any]], labels: Integers | None, classes: tuple[str, ...] | None, engine: str
) -> None:
    if labels is not None:
        content["labels"] = labels
    if classes is not None:
        content["classes"] = np.array(classes, dtype=np.str_)
    if engine:
        content["engine"] = np.array(engine)
    with atomic_writer(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **content)


@dataclass(frozen=True, eq=False)
class Spikes:
    """Read-out spikes (n, T, K, C), with labels, class names and the engine that computed them where they are known."""

    spikes: Booleans
    labels: Integers | None
    classes: tuple[str, ...] | None
    engine: str


def load_spikes(path: str | PathLike[str]) -> Spikes:
    """Read a file that `save_spikes` wrote."""
    content = _read(path)
    if "spikes" not in content:
        raise InputError(f"{path} holds {sorted(content)} but no 'spikes': give a file that save_spikes wrote.")
    classes = tuple(str(name) for name in read_list(path, content, "classes")) if "classes" in content else None
    return Spikes(_unpack(path, content), content.get("labels"), classes, read_text(content, "engine"))


def load_scores(path: str | PathLike[str], times: Sequence[float] | None = None) -> Scores:
    """Read a score file, at all its times or at those named."""
    content = _read(path)
    labels = content.get("labels")
    classes = tuple(str(name) for name in read_list(path, content, "classes")) if "classes" in content else None
    engine = read_text(content, "engine")
    if "spikes" in content:
        spikes = _unpack(path, content)
        known = tuple(range(1, spikes.shape[1] + 1))
        wanted = known if times is None else as_checkpoints(times)
        return Scores(_counts_at(spikes, columns_of(wanted, len(known), known, "spikes")), labels, wanted, classes, engine)
    if "inputs" in content or "indices" in content:
        raise InputError(f"{path} holds inputs, not scores: give the members that are to watch them too (--members).")
    for name in ("log_confidence", "times"):
        if name not in content:
            raise InputError(f"{path} holds {sorted(content)} but no {name!r}: a score file has log_confidence and times, or spikes.")
    scores = Scores(content["log_confidence"], labels, tuple(read_list(path, content, "times")), classes, engine)
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
