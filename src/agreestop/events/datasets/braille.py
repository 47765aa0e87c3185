"""braille: letters under a moving artificial fingertip, or any other spike trains in an `.npz`.

The file holds arrays of spike trains, 0 or 1, and the labels 0 to C-1, divided into parts or not:

    x_train, x_val, x_test  (n, T, channels)     y_train, y_val, y_test  (n,)
    x                       (n, T, channels)     y                       (n,)
    classes                 (C,) the names of the classes; may be missing

With a division, training is drawn from `train`, and tuning and pool from all other rows in an order
drawn from the seed; without one, all three are drawn from all rows. So the pool is exchangeable,
and rows that the file sets apart stay unseen in training.

The seven letters: 1,400 readings, 200 of each letter, of 12 taxels in 256 steps of 5 ms
(980 + 280 + 140 rows), which become 980 for training, 120 for tuning and a pool of 300. They come
from the Braille data of Müller-Cleve and others (2022), as used for the spiking benchmarks of NIR
(Pedersen and others, 2024): a taxel's ON and OFF events are one channel.
"""

from pathlib import Path

import numpy as np

from agreestop.common import (
    Arrays,
    Booleans,
    InputError,
    Integers,
    as_count,
    as_labels,
    as_seed,
    read_list,
    read_npz,
)

from ..data import (
    FOUND,
    DataSet,
    EventSplits,
    Findings,
    Sizes,
    address_of,
    as_sizes_of,
    class_numbers,
    divide,
    make_splits,
)

STEPS = 128
FILE = "braille7.npz"
CLASSES = ("Space", "A", "E", "I", "O", "U", "Y")
ADDRESS = address_of("braille")
SHARES = (0.6, 0.15)  # training and tuning, where the file has no division
# tuning, as a share of the rows that are not for training, where the file has one
TUNING_SHARE = 2 / 7


def load_braille(
    path: Path, steps: int | None = STEPS, sizes: Sizes | None = None, seed: int = 0
) -> EventSplits:
    """Spike trains (n, T, channels) of an .npz; by default the seven Braille letters, (n, 128, 12).

    path    the file, or the folder with braille7.npz
    steps   T, a divisor of the file's T: a channel fires in a step if it fires in any of the steps
            that are joined; None: the file's T
    sizes   sizes of training, tuning and pool; by default all rows are used
    seed    chooses the parts, and their order
    """
    rng = np.random.default_rng(as_seed(seed))
    file = path / FILE if path.is_dir() else path
    missing = f"give an .npz of spike trains; those of Braille letters come from {ADDRESS}"
    content = read_npz(
        file, ".npz of plain arrays", "write one with numpy.savez, without objects", missing
    )
    training, others = _known_and_others(content, file)
    arrays = [_spike_trains(content, f"x{part}", f"y{part}", file) for part in (*training, *others)]
    if len({trains.shape[1:] for trains, _ in arrays}) > 1:
        raise InputError(
            f"{file} holds spike trains of different steps or channels: give all of its parts the "
            "same (T, channels)."
        )
    trains = _join_steps(np.concatenate([trains for trains, _ in arrays]), steps, file)
    labels = np.concatenate([labels for _, labels in arrays])
    known = sum(len(labels) for _, labels in arrays[: len(training)])
    if sizes is None and known:
        tuning = max(1, round((len(labels) - known) * TUNING_SHARE))
        sizes = (known, tuning, len(labels) - known - tuning)
    whats = (
        f"training rows of {file}",
        f"rows of {file}{' that are not for training' if known else ''}",
    )
    rows = divide(known, len(labels), as_sizes_of(len(labels), sizes, SHARES), rng, whats, first=1)
    return make_splits(
        "braille",
        rows,
        lambda some, _: (trains[some], labels[some]),
        _class_names(file, content, labels),
    )


def _known_and_others(content: Arrays, path: Path) -> tuple[list[str], list[str]]:
    """The endings of the names of the arrays: those for training, where the file says which,
    and the others.
    """
    others = [part for part in ("_val", "_test") if f"x{part}" in content]
    if "x_train" in content and others:
        return ["_train"], others
    if "x" in content:
        return [], [""]
    given = ", ".join(sorted(content)) or "nothing"
    raise InputError(
        f"{path} holds {given}: give x and y, or x_train and y_train with x_val and y_val, x_test "
        "and y_test, or both."
    )


def _spike_trains(content: Arrays, x: str, y: str, path: Path) -> tuple[Booleans, Integers]:
    if y not in content:
        raise InputError(f"{path} holds {x} but not {y}: give one label for each spike train.")
    trains, labels = content[x], content[y]
    if trains.ndim != 3 or trains.size == 0:
        raise InputError(
            f"{x} in {path} has shape {trains.shape}: (n, T, channels), none of them 0, is needed."
        )
    if trains.dtype.kind not in "biuf" or not np.isin(trains, (0, 1)).all():
        raise InputError(
            f"{x} in {path} holds other values than 0 and 1: give spike trains, 1 where a channel "
            "fires."
        )
    return trains.astype(bool), as_labels(labels, len(trains), 2**31)


def _join_steps(trains: Booleans, steps: int | None, path: Path) -> Booleans:
    """(n, T, channels): a step is the OR of the steps that it joins."""
    count, length, channels = trains.shape
    wanted = length if steps is None else as_count(steps, "steps")
    if length % wanted:
        divisors = ", ".join(str(step) for step in range(1, length + 1) if length % step == 0)
        raise InputError(
            f"steps is {wanted}, but the spike trains of {path} have {length} steps: give one of "
            f"{divisors}."
        )
    joined: Booleans = np.logical_or.reduce(
        trains.reshape(count, wanted, length // wanted, channels), axis=2
    )
    return joined


def _class_names(path: Path, content: Arrays, labels: Integers) -> tuple[str, ...]:
    """The names in the file; without them, those of the Braille letters, or numbers where there
    are more classes.
    """
    if "classes" in content:
        return tuple(str(name) for name in read_list(path, content, "classes"))
    return CLASSES if labels.max() < len(CLASSES) else class_numbers(labels)


def _check(path: Path) -> Findings:
    data = load_braille(path)
    yield (
        FOUND,
        f"{sum(len(part) for part in data):,} spike trains of {len(data.pool.classes)} classes.",
    )


DATA_SET = DataSet.recorded("braille", load=load_braille, check=_check, cached=False)
