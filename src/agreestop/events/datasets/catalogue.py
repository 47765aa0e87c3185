"""The data sets: what each is, where it comes from, whether its files are whole, and how it is loaded.

A record says what its official source says. Checksums are those of the official archives: CIFAR-10 publishes its own; those of N-MNIST
and DVS128 Gesture, whose authors publish none, are the ones that the libraries Tonic and SpikingJelly check their downloads with.
Where nothing is known for certain, nothing stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

from agreestop.common.errors import InputError

from ..data import EventSplits
from ..formats import aedat2, aedat3
from ..formats.n_mnist import EVENT
from . import braille, cifar10, digits, dvs_gesture, gesture_sim, mnist_dvs, n_mnist
from . import mnist_dvs_sim as mnist
from .cache import cached, fingerprint
from .division import LEAST

FOUND, PARTIAL, DAMAGED = "found", "partial", "damaged"
Findings = Iterator[tuple[str, str]]  # one of the above, and a sentence
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True)
class Archive:
    """An official archive and its MD5."""

    name: str
    md5: str


@dataclass(frozen=True)
class DataSet:
    """What is known of a data set.

    name       what `load` and the command line call it
    simulated  True where a simulator makes the events
    what       what it is, in a sentence
    inputs     the shape of an input, and T
    classes    how many there are
    sizes      of training, tuning and pool, as `load` gives them from all files; of dvs-gesture, whose tuning part are whole people, about
    address    its official home; None where nothing needs to be fetched
    download   how much is to be fetched; None where that is not published, or nothing is
    archives   the official archives whose checksum is known
    files      what must lie in the folder
    """

    name: str
    simulated: bool
    what: str
    inputs: str
    classes: int
    sizes: tuple[int, int, int]
    address: str | None
    download: str | None
    archives: tuple[Archive, ...]
    files: str


@dataclass(frozen=True)
class Check:
    """Whether a data set's files are there and whole.

    found     what is there, in sentences
    problems  what is missing or damaged, in sentences; none where all is whole
    usable    whether `load` takes the files as they are: all of them, or a partial copy
    """

    name: str
    found: tuple[str, ...]
    problems: tuple[str, ...]
    usable: bool

    @property
    def whole(self) -> bool:
        return not self.problems


DATA_SETS: tuple[DataSet, ...] = (
    DataSet(
        "mnist-dvs",
        False,
        "Handwritten digits of MNIST moving on a screen in front of an event camera.",
        "2 × 26 × 26, T = 80",
        10,
        (7_000, 1_000, 2_000),
        mnist_dvs.ADDRESS,
        None,
        (),
        "grabbed_data0 ... grabbed_data9, each with scale4, scale8 and scale16 of 1,000 files mnist_<digit>_scale<NN>_<number>.aedat",
    ),
    DataSet(
        "dvs-gesture",
        False,
        "Eleven hand and arm gestures of 29 people in front of an event camera, under three lights.",
        "2 × 32 × 32, T = 80",
        11,
        (972, 204, 288),
        dvs_gesture.ADDRESS,
        None,
        (Archive("DvsGesture.tar.gz", "8a5c71fb11e24e5ca5b11866ca6c00a1"),),
        "trials_to_train.txt, trials_to_test.txt, and of each trial user<NN>_<light>.aedat and user<NN>_<light>_labels.csv",
    ),
    DataSet(
        "cifar10",
        False,
        "Colour photographs in ten classes, each held still for T steps.",
        "3 × 32 × 32, T = 80",
        10,
        (45_000, 5_000, 10_000),
        cifar10.ADDRESS,
        "162 MB",
        (Archive(cifar10.ARCHIVE, cifar10.ARCHIVE_MD5),),
        "cifar-10-batches-bin with data_batch_1.bin ... data_batch_5.bin, test_batch.bin and batches.meta.txt (the binary release)",
    ),
    DataSet(
        "n-mnist",
        False,
        "The digits of MNIST in front of an event camera that makes three quick movements.",
        "2 × 34 × 34, T = 80",
        10,
        (55_000, 5_000, 10_000),
        n_mnist.ADDRESS,
        None,
        (Archive("Train.zip", "20959b8e626244a1b502305a9e6e2031"), Archive("Test.zip", "69ca8762b2fe404d9b9bad1103e97832")),
        "Train and Test, each with folders 0 ... 9 of files <number>.bin",
    ),
    DataSet(
        "braille",
        False,
        "Seven Braille letters under an artificial fingertip of 12 taxels; or any spike trains in an .npz.",
        "12 channels, T = 128",
        7,
        (980, 120, 300),
        braille.ADDRESS,
        None,
        (),
        "braille7.npz with x_train, y_train, x_val, y_val, x_test and y_test",
    ),
    DataSet(
        "digits",
        True,
        "scikit-learn's 8 × 8 digits moving in front of a simulated event camera.",
        "2 × 16 × 16, T = 80",
        10,
        (900, 300, 597),
        None,
        None,
        (),
        "none: the images are in scikit-learn",
    ),
    DataSet(
        "mnist-dvs-sim",
        True,
        "MNIST's digits moving in front of a simulated event camera; a stand-in for mnist-dvs.",
        "2 × 26 × 26, T = 80",
        10,
        (mnist.TRAINING, mnist.TUNING, mnist.POOL),
        "https://yann.lecun.com/exdb/mnist",
        "12 MB",
        (),
        f"MNIST's {', '.join(MNIST_FILES[:3])} and {MNIST_FILES[3]}, gzipped or not",
    ),
    DataSet(
        "gesture-sim",
        True,
        "Eleven gestures of simulated people in front of a simulated event camera; a stand-in for dvs-gesture.",
        "2 × 32 × 32, T = 80",
        11,
        (gesture_sim.TRAINING, gesture_sim.TUNING, gesture_sim.POOL),
        None,
        None,
        (),
        "none: everything is simulated",
    ),
)
NAMES = tuple(entry.name for entry in DATA_SETS)


def find(name: str) -> DataSet:
    """The record of that name."""
    for entry in DATA_SETS:
        if entry.name == name:
            return entry
    raise InputError(f"there is no data set {name!r}: choose one of {', '.join(NAMES)}.")


def load(name: str, folder: str | PathLike[str] | None = None, seed: int = 0, cache: bool = True, **settings: Any) -> EventSplits:
    """The three parts of a data set, each with its inputs in random order.

    name      one of `NAMES`
    folder    where its files lie, in the official layout; for mnist-dvs-sim those of MNIST; for digits and gesture-sim none
    seed      chooses the parts, and all that is simulated
    cache     whether binned and simulated frames are kept for the next time, in `cache.cache_folder()`
    settings  further options of the data set's own function, such as sizes=(700, 100, 200)
    """
    way = _WAYS[find(name).name]
    options = way.options(name, {"seed": seed, **settings})
    if not way.files:
        if folder is not None:
            raise InputError(f"a folder is given, {folder}, but {name} needs none: leave it out.")
        make = partial(way.function, **options)
    else:
        make = partial(way.function, _as_folder(name, folder), **options)
    if not cache or not way.slow:
        return make()
    root = Path(folder or ".")
    sources = way.sources(root, options) if way.files else ()
    known = {option: value for option, value in options.items() if option != "workers"}  # which leaves the result as it is
    return cached(None, fingerprint({"data set": name, **known}, sources, root), make)


def check(name: str, folder: str | PathLike[str] | None = None) -> Check:
    """Whether the files of a data set are there and whole: how many, how long, and of archives that lie beside them the checksum."""
    findings = list(_findings(find(name), folder))
    found = tuple(sentence for kind, sentence in findings if kind == FOUND)
    problems = tuple(sentence for kind, sentence in findings if kind != FOUND)
    return Check(name, found, problems, usable=all(kind != DAMAGED for kind, _ in findings))


@dataclass(frozen=True)
class _Way:
    """How a data set is loaded and checked. files: whether it needs any. slow: whether its frames are worth keeping."""

    function: Callable[..., EventSplits]
    check: Callable[[Path], Findings]
    files: bool = True
    slow: bool = True
    sources: Callable[[Path, Mapping[str, Any]], Iterable[Path]] = lambda folder, options: ()

    def options(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options of the function, those that were not given with their defaults."""
        known = {option: value.default for option, value in list(signature(self.function).parameters.items())[self.files :]}
        for option in given:
            if option not in known:
                raise InputError(f"{name} has no option {option!r}: it has {', '.join(known)}.")
        return known | dict(given)


def _as_folder(name: str, folder: str | PathLike[str] | None) -> Path:
    entry = find(name)
    if folder is None or not Path(folder).exists():
        given = "no folder is given" if folder is None else f"there is no {folder}"
        raise InputError(f"{given}: give the folder with the files of {name}, which come from {entry.address}.")
    return Path(folder)


def _findings(entry: DataSet, folder: str | PathLike[str] | None) -> Findings:
    way = _WAYS[entry.name]
    try:
        if way.files:
            place = _as_folder(entry.name, folder)
            yield from _check_archives(entry, place)
            yield from way.check(place)
        else:
            yield from way.check(Path())
    except InputError as error:
        yield DAMAGED, str(error)


def _check_archives(entry: DataSet, folder: Path) -> Findings:
    for archive in entry.archives:
        path = folder / archive.name
        if path.is_file():
            with path.open("rb") as stream:
                md5 = hashlib.file_digest(stream, "md5").hexdigest()
            if md5 == archive.md5:
                yield FOUND, f"{archive.name} has the right checksum, md5 {md5}."
            else:
                yield DAMAGED, f"{archive.name} has the md5 {md5}, not {archive.md5}: get it again from {entry.address}."


def _check_cifar10(folder: Path) -> Findings:
    place = cifar10.find_files(folder)
    cifar10.check_names(place)
    for name in (*cifar10.TRAINING_FILES, cifar10.TEST_FILE):
        try:
            images, _ = cifar10.read_batch(place / name)
            yield FOUND, f"{name}: {len(images):,} images."
        except InputError as error:
            yield DAMAGED, str(error)


def _check_n_mnist(folder: Path) -> Findings:
    files = n_mnist.find_recordings(folder)
    everything = files.training + files.test
    known = f"{len(files.training):,} of {n_mnist.TRAINING:,} training recordings"
    sentence = f"{known} and {len(files.test):,} of {n_mnist.TEST:,} test recordings"
    yield _amount(len(everything), n_mnist.TRAINING + n_mnist.TEST, sentence, n_mnist.ADDRESS)
    yield from _not_whole(everything, lambda path: (size := path.stat().st_size) > 0 and size % EVENT == 0, n_mnist.ADDRESS)


def _check_mnist_dvs(folder: Path) -> Findings:
    none = True
    for scale in mnist_dvs.SCALES:
        try:
            paths = mnist_dvs.find_recordings(folder, scale)
        except InputError:  # a scale that nobody wants need not be there
            continue
        none, complete = False, 10 * mnist_dvs.OF_EACH_DIGIT
        yield _amount(len(paths), complete, f"{len(paths):,} of {complete:,} recordings of scale {scale}", mnist_dvs.ADDRESS)
        yield from _not_whole(paths, partial(_begins_with, aedat2.VERSION), mnist_dvs.ADDRESS)
    if none:
        raise InputError(f"there are no recordings mnist_<digit>_scale<NN>_<number>.aedat in {folder}: get them from {mnist_dvs.ADDRESS}.")


def _check_dvs_gesture(folder: Path) -> Findings:
    for name, part, complete in zip(dvs_gesture.LISTS, ("training", "test"), dvs_gesture.COMPLETE, strict=True):
        trials = dvs_gesture.find_trials(folder, name)
        count = sum(len(aedat3.read_gesture_labels(trial.labels)) for trial in trials)
        sentence = f"{count:,} of {complete:,} gestures of the {part} part, in {len(trials)} recordings"
        yield _amount(count, complete, sentence, dvs_gesture.ADDRESS)
        yield from _not_whole([trial.recording for trial in trials], partial(_begins_with, aedat3.VERSION), dvs_gesture.ADDRESS)


def _check_braille(path: Path) -> Findings:
    data = braille.load_braille(path)
    count = sum(len(part) for part in (data.training, data.tuning, data.pool))
    yield FOUND, f"{count:,} spike trains of {len(data.pool.classes)} classes."


def _check_digits(folder: Path) -> Findings:
    if find_spec("sklearn") is None:
        yield DAMAGED, "scikit-learn, which holds the images, is missing: install agreestop[learn]."
    else:
        yield FOUND, "scikit-learn, which holds the images, is installed."


def _check_mnist(folder: Path) -> Findings:
    mnist.simulate_mnist(folder, 0, (1, 1, 1))  # which reads all of the files
    yield FOUND, "MNIST's four files are whole."


def _check_nothing(folder: Path) -> Findings:
    yield FOUND, "nothing is needed: everything is simulated."


def _amount(count: int, complete: int, sentence: str, address: str) -> tuple[str, str]:
    """What `sentence` says is there, and whether it is all, enough for three parts, or too little."""
    if count == complete:
        return FOUND, f"{sentence}."
    return PARTIAL if count >= LEAST else DAMAGED, f"{sentence}: get the others from {address}."


def _not_whole(paths: Iterable[Path], whole: Callable[[Path], bool], address: str) -> Findings:
    wrong = [path for path in paths if not whole(path)]
    if wrong:
        yield DAMAGED, f"{len(wrong):,} files are damaged, the first of them {wrong[0]}: get them again from {address}."


def _begins_with(start: bytes, path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(start)) == start


def _n_mnist_sources(folder: Path, options: Mapping[str, Any]) -> Iterable[Path]:
    files = n_mnist.find_recordings(folder)
    return files.training + files.test


def _mnist_dvs_sources(folder: Path, options: Mapping[str, Any]) -> Iterable[Path]:
    return mnist_dvs.find_recordings(folder, options["scale"])


def _dvs_gesture_sources(folder: Path, options: Mapping[str, Any]) -> Iterable[Path]:
    place = dvs_gesture.find_place(folder)
    for name in dvs_gesture.LISTS:
        yield place / name
        for trial in dvs_gesture.find_trials(folder, name):
            yield trial.recording
            yield trial.labels


def _mnist_sources(folder: Path, options: Mapping[str, Any]) -> Iterable[Path]:
    return [path for name in MNIST_FILES for path in (folder / name, folder / f"{name}.gz") if path.is_file()]


_WAYS: dict[str, _Way] = {
    "mnist-dvs": _Way(mnist_dvs.load_mnist_dvs, _check_mnist_dvs, sources=_mnist_dvs_sources),
    "dvs-gesture": _Way(dvs_gesture.load_dvs_gesture, _check_dvs_gesture, sources=_dvs_gesture_sources),
    "cifar10": _Way(cifar10.load_cifar10, _check_cifar10, slow=False),
    "n-mnist": _Way(n_mnist.load_n_mnist, _check_n_mnist, sources=_n_mnist_sources),
    "braille": _Way(braille.load_braille, _check_braille, slow=False),
    "digits": _Way(digits.simulate_digits, _check_digits, files=False, slow=False),
    "mnist-dvs-sim": _Way(mnist.simulate_mnist, _check_mnist, sources=_mnist_sources),
    "gesture-sim": _Way(gesture_sim.simulate_gestures, _check_nothing, files=False),
}
