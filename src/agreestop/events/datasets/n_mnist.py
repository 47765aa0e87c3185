"""n-mnist: MNIST's digits in front of an event camera that makes three quick movements
(Orchard and others, 2015).

The files lie as they are published, 60,000 for training and 10,000 for the test, in the folder
itself or in N-MNIST there:

    Train/<digit>/<number>.bin,  Test/<digit>/<number>.bin

A recording lasts about 300 ms. It is binned into T = 80 steps of 4 ms, which end at 320 ms of the
camera's time and are thus the same for every recording; the few events in a thousand that come
later are left out. A pixel of 2 × 34 × 34 fires in a step or not.

In a complete copy, training and tuning are drawn from the training recordings, 5,000 of them for
tuning, and the pool are the test recordings, all in an order drawn from the seed. In a partial copy
all three parts are drawn from all recordings, 7 : 1 : 2, except where the sizes that are asked for
fit its two official parts. The description of the data says which.

A file is a recording of 34 × 34 pixels with 5 bytes for each event, big-endian, and nothing else:

    uint8   x
    uint8   y
    1 bit   polarity, 1 for ON
    23 bits time in microseconds, up to 8.4 s

x counts from the left and y from the top, which shows the digits upright and unmirrored. We checked
on 1,100 recordings that a set bit is ON: single events of pixels at the border come from leak
currents and are ON, and 99 of 100 of them have the bit set. The moving digits then make ON events
behind them, as if they were darker than their background.

The files have no header, so a file of any other kind reads as events, most of them outside the
sensor: `skipped.outside` counts them.
"""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import numpy as np

from agreestop.common import (
    Booleans,
    InputError,
    ProgressCallback,
    as_seed,
    open_file,
)

from ..data import (
    DataSet,
    EventSplits,
    Findings,
    Sizes,
    address_of,
    as_finding,
    as_sizes_of,
    bin_files,
    check_each,
    divide,
    find_folder,
)
from ..formats.recording import (
    Columns,
    Recording,
    Skipped,
    bin_events,
    bytes_left,
    read_blocks,
)

SIZE = (34, 34)
EVENT = 5  # bytes
STEPS = 80
SPAN = 320_000  # microseconds
TRAINING, TEST = 60_000, 10_000  # recordings of a complete copy
TUNING = 5_000
SHARES = (0.7, 0.1)
FOLDER = "N-MNIST"
ADDRESS = address_of("n-mnist")

OFFICIAL = (
    "training and tuning are of the official training part, the pool of the official test part"
)
DRAWN = "training, tuning and pool are drawn at random from all recordings that are there"


def load_n_mnist(
    folder: Path,
    sizes: Sizes | None = None,
    seed: int = 0,
    steps: int = STEPS,
    progress: ProgressCallback | None = None,
) -> EventSplits:
    """Event streams (n, 80, 2, 34, 34).

    sizes  sizes of training, tuning and pool; by default all recordings are used
    steps  T, over the same 320 ms
    """
    rng = np.random.default_rng(as_seed(seed))
    training, test = find_recordings(folder)
    everything = training + test
    complete = (len(training), len(test)) == (TRAINING, TEST)
    wanted = (
        (TRAINING - TUNING, TUNING, TEST)
        if complete and sizes is None
        else as_sizes_of(len(everything), sizes, SHARES)
    )
    official = (
        complete
        if sizes is None
        else wanted[0] + wanted[1] <= len(training) and wanted[2] <= len(test)
    )
    whats = ("training recordings", "test recordings" if official else f"recordings of {folder}")
    rows = divide(len(training) if official else 0, len(everything), wanted, rng, whats)
    labels = np.array([int(path.parent.name) for path in everything])
    note = OFFICIAL if official else DRAWN
    return bin_files(
        "n-mnist",
        everything,
        labels,
        rows,
        lambda path: _bin(path, steps),
        progress=progress,
        note=note,
    )


def find_recordings(folder: Path) -> tuple[list[Path], list[Path]]:
    """The training and the test recordings, in the order of digit and number.

    Files with other names are ignored.
    """
    missing = (
        "there are no recordings Train/<digit>/<number>.bin or Test/<digit>/<number>.bin in "
        f"{folder}: get them from {ADDRESS}."
    )
    found = find_folder(folder, FOLDER, lambda path: any(path.glob("T*/[0-9]/*.bin")), missing)
    return sorted(found.glob("Train/[0-9]/*.bin")), sorted(found.glob("Test/[0-9]/*.bin"))


def read_n_mnist(source: str | PathLike[str] | bytes) -> Recording:
    """The recording in a file, or in the bytes of one.

    Memory: 13 bytes for each event, and a few more where times run backwards.
    """
    if isinstance(source, bytes):
        return _decode("the content", len(source), [source])
    with open_file(source) as stream:
        length = bytes_left(stream)
        return _decode(str(source), length, read_blocks(stream, length, EVENT))


def _decode(name: str, length: int, blocks: Iterable[bytes]) -> Recording:
    if not length:
        raise InputError(
            f"{name} is empty: N-MNIST's files hold at least one event of {EVENT} bytes, so get it "
            "again."
        )
    columns = Columns(length // EVENT)
    for content in blocks:
        events = np.frombuffer(content, np.uint8, len(content) // EVENT * EVENT).reshape(-1, EVENT)
        high = events[:, 2].astype(np.int32)
        time = (high & 127) << 16 | events[:, 3].astype(np.int32) << 8 | events[:, 4]
        columns.add(events[:, 0], events[:, 1], high >= 128, time.astype(np.int64))
    return columns.recording(name, "N-MNIST", SIZE, Skipped(cut_bytes=length % EVENT))


def _bin(path: Path, steps: int) -> Booleans:
    recording = read_n_mnist(path)
    if recording.skipped.cut_bytes or recording.skipped.outside > len(recording):
        raise InputError(
            f"{path} is damaged or is no recording of N-MNIST: get it again from {ADDRESS}."
        )
    return bin_events(recording, steps, window=(0, SPAN))


def _check(folder: Path) -> Findings:
    training, test = find_recordings(folder)
    sentence = (
        f"{len(training):,} of {TRAINING:,} training recordings and {len(test):,} of {TEST:,} test "
        "recordings"
    )
    yield as_finding(len(training + test), TRAINING + TEST, sentence, ADDRESS)
    yield from check_each(
        training + test,
        lambda path: (size := path.stat().st_size) > 0 and size % EVENT == 0,
        ADDRESS,
    )


DATA_SET = DataSet.recorded("n-mnist", load=load_n_mnist, check=_check)
