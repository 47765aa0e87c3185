"""cifar10: the 60,000 colour images of CIFAR-10, each held still in front of the network
for T = 80 steps.

The files are those of the binary release, `cifar-10-batches-bin`: five of 10,000 training images
and one of 10,000 test images,

    data_batch_1.bin … data_batch_5.bin,    10,000 records each: 1 byte label (0 to 9), 3 × 1,024
    test_batch.bin                          bytes of red, green and blue, each row by row
    batches.meta.txt                        the ten names, one on each line

Training and tuning are the training images in an order drawn from the seed, and tuning gets the
last of them. The pool are the test images, in an order drawn from the seed too. Nothing is
unpickled: the Python release, which is pickled, is not read.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, Integers, as_count, as_seed, read_file

from ..data import (
    DAMAGED,
    FOUND,
    DataSet,
    EventSplits,
    Findings,
    address_of,
    divide,
    find_folder,
    make_splits,
)

STEPS = 80
TUNING = 5_000
RECORDS = 10_000  # in each file
RECORD = 1 + 3 * 32 * 32
FOLDER = "cifar-10-batches-bin"
TRAINING_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
NAMES_FILE = "batches.meta.txt"
LONGEST_NAMES = 10_000  # bytes of that file
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ADDRESS = address_of("cifar10")
ADVICE = (
    f"get cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530) from {ADDRESS} and unpack "
    "it"
)


def load_cifar10(
    folder: Path, tuning: int = TUNING, seed: int = 0, steps: int = STEPS
) -> EventSplits:
    """Images (n, 1, 3, 32, 32), bytes from 0 to 255, held for `steps`: 50,000 for training and
    tuning, and a pool of 10,000.

    tuning  how many of the training images are kept for tuning
    seed    chooses which, and the order of every part
    steps   T, how long each image is shown
    """
    rng = np.random.default_rng(as_seed(seed))
    as_count(steps, "steps")
    as_count(tuning, "tuning")
    path, known = find_files(folder), len(TRAINING_FILES) * RECORDS
    if tuning >= known:
        raise InputError(f"tuning is {tuning}: give fewer than the {known:,} training images.")
    batches = [read_batch(path / name) for name in (*TRAINING_FILES, TEST_FILE)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    rows = divide(
        known,
        len(labels),
        (known - tuning, tuning, RECORDS),
        rng,
        ("training images", "test images"),
    )
    return make_splits(
        "cifar10", rows, lambda some, _: (images[some], labels[some]), CLASSES, held=steps
    )


def find_files(folder: Path) -> Path:
    """The folder with the files of the binary release: the given one, or the one that the
    archive makes in it.

    Another order of the classes is refused; a missing list of names is taken to have the
    official order.
    """
    missing = f"there is no file {TEST_FILE} in {folder} or in {FOLDER} there: {ADVICE}."
    found = find_folder(folder, FOLDER, lambda path: (path / TEST_FILE).is_file(), missing)
    names = found / NAMES_FILE
    if (
        names.is_file()
        and tuple(read_file(names, most=LONGEST_NAMES).decode(errors="replace").split()) != CLASSES
    ):
        raise InputError(
            f"{names} does not list the ten classes of CIFAR-10 in their order: {ADVICE}."
        )
    return found


def read_batch(path: Path) -> tuple[NDArray[np.uint8], Integers]:
    """Images (10000, 1, 3, 32, 32) and labels (10000,) of one file."""
    content = np.frombuffer(read_file(path, ADVICE), np.uint8)
    if len(content) != RECORDS * RECORD:
        raise InputError(
            f"{path} has {len(content):,} bytes and not {RECORDS * RECORD:,}, so it is not whole: "
            f"{ADVICE}."
        )
    records = content.reshape(RECORDS, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        raise InputError(
            f"{path} holds the label {labels.max()}, but CIFAR-10 has ten classes, 0 to 9, so it "
            f"is damaged: {ADVICE}."
        )
    return records[:, 1:].reshape(RECORDS, 1, 3, 32, 32), labels


def _check(folder: Path) -> Findings:
    path = find_files(folder)
    for name in (*TRAINING_FILES, TEST_FILE):
        try:
            images, _ = read_batch(path / name)
            yield FOUND, f"{name}: {len(images):,} images."
        except InputError as error:
            yield DAMAGED, str(error)


DATA_SET = DataSet.recorded("cifar10", load=load_cifar10, check=_check, cached=False)
