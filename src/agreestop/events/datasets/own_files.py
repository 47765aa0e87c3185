"""Own data: training, tuning and pool from three files of events, or from one file that is divided (format: `agreestop.events.files`).

Every part comes in a random order drawn from the seed, so that any first rows of the pool may serve for calibration.
"""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from agreestop.common import InputError, as_seed, is_number

from ..container import Events, Inputs
from ..data import NUMBERS, PARTS, EventData, EventSplits, Sizes, as_sizes, as_sizes_of, draw
from ..files import StoredEvents, read_stored

SHARES = (0.6, 0.15, 0.25)
DESCRIPTION = "own data from files"


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
    training, tuning, pool  a file for each part, with inputs of the same shape (T, ...) and the same classes
    shares                  which shares of one file training, tuning and pool get; by default (0.6, 0.15, 0.25)
    sizes                   how many inputs training, tuning and pool get, drawn at random; by default all inputs are used
    seed                    chooses the parts, and their order

    Numbers become float32, or stay uint8; booleans stay booleans.
    """
    paths = _as_paths(file, (training, tuning, pool))
    if shares is not None and (sizes is not None or len(paths) == 3):
        raise InputError("shares divide one file by themselves: give no sizes with them, and no files of the single parts.")
    rng = np.random.default_rng(as_seed(seed))
    stored = [read_stored(path) for path in paths]
    parts = [_with_classes(one, path, stored, paths) for one, path in zip(stored, paths, strict=True)]
    if len(parts) == 1:
        wanted = as_sizes_of(len(parts[0]), sizes, _as_shares(shares))
        sources, rows = parts * 3, draw(len(parts[0]), wanted, rng, f"inputs of {paths[0]}")
    else:
        wanted = (len(parts[0]), len(parts[1]), len(parts[2])) if sizes is None else as_sizes(sizes)
        sources = parts
        rows = [draw(len(part), (size,), rng, f"inputs of {path}")[0] for part, size, path in zip(parts, wanted, paths, strict=True)]
    name = paths[0].stem if len(paths) == 1 else "files"
    return EventSplits.of(name, (source.rows(some) for source, some in zip(sources, rows, strict=True)))


def _as_paths(file: str | PathLike[str] | None, parts: Sequence[str | PathLike[str] | None]) -> list[Path]:
    given = [path for path in parts if path is not None]
    if (file is None) == (not given) or len(given) not in (0, 3):
        names = [name for name, path in zip(("file", *PARTS), (file, *parts), strict=True) if path is not None]
        raise InputError(f"{' and '.join(names) or 'no file'} given: give either one file, or all three of training, tuning and pool.")
    paths = [Path(file)] if file is not None else [Path(path) for path in given]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("two of training, tuning and pool are the same file: give three files, or one file that is divided.")
    return paths


def _as_shares(shares: Sequence[float] | None) -> tuple[float, float]:
    values = SHARES if shares is None else tuple(shares)
    if len(values) != 3 or not all(is_number(share) and share > 0 for share in values) or abs(sum(values) - 1) > 1e-6:
        raise InputError(f"shares is {shares!r}: give three positive numbers that add up to 1, for example {SHARES}.")
    return values[0], values[1]


def _with_classes(one: StoredEvents, path: Path, stored: Sequence[StoredEvents], paths: Sequence[Path]) -> EventData:
    """The inputs of one file, with the names of the classes and the dtype of all files."""
    for other, where in zip(stored, paths, strict=True):
        if other.inputs.shape[1:] != one.inputs.shape[1:]:
            raise InputError(
                f"{path} has inputs of shape {one.inputs.shape[1:]} and {where} of {other.inputs.shape[1:]}: make them the same."
            )
        if None not in (one.classes, other.classes) and one.classes != other.classes:
            raise InputError(f"{path} names the classes {one.classes} and {where} {other.classes}: give the same names in the same order.")
        if one.held != other.held:
            raise InputError(f"{path} holds images for {one.held} steps and {where} for {other.held}: make them the same.")
    names = next((other.classes for other in stored if other.classes is not None), None)
    labels = np.concatenate([other.labels for other in stored if other.labels is not None] or [np.zeros(0, np.int64)])
    classes = names or tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))
    dtypes = {_number_type(other.inputs) for other in stored}
    inputs = _converted(one.inputs, dtypes.pop() if len(dtypes) == 1 else np.float32)
    try:
        return replace(one, description=one.description or DESCRIPTION).data(path, inputs, one.name, classes)
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path} cannot be used: {error}") from None


def _number_type(inputs: Inputs) -> type[np.generic]:
    """The dtype of NUMBERS that holds these inputs."""
    if inputs.dtype in NUMBERS:
        return inputs.dtype.type
    values = inputs.values if isinstance(inputs, Events) else inputs
    if inputs.dtype.kind in "iu" and values is not None and values.min(initial=0) >= 0 and values.max(initial=0) <= 255:
        return np.uint8
    return np.float32


def _converted(inputs: Inputs, dtype: type[np.generic]) -> Inputs:
    if inputs.dtype == dtype:
        return inputs
    if not isinstance(inputs, Events):
        return inputs.astype(dtype)
    values = np.ones(len(inputs.indices), dtype) if inputs.values is None else inputs.values.astype(dtype)
    if not values.all():  # tiny numbers became 0
        return Events.from_dense(inputs.to_dense().astype(dtype))
    return Events(inputs.indices, inputs.pointers, values, inputs.shape)
