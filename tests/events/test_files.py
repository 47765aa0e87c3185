"""Files of events: what is written is read, by us and by numpy; damaged and inconsistent files are
refused in a sentence.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreestop.common import InputError
from agreestop.engines.inputs import check_inputs
from agreestop.events import (
    EventData,
    Events,
    dense_rows,
    input_ids,
    load,
    load_events,
    save_events,
)
from agreestop.events.files import read_stored
from tests.decide.strategies import assert_one_sentence
from tests.events.test_container import DTYPES, SHAPES, some_inputs

X = some_inputs((6, 5, 2, 4, 3))
LABELS = np.array([1, 0, 1, 2, 2, 0])
CLASSES = ("a", "bé", "c c")


def assert_same(one: Events, other: Events) -> None:
    assert one.shape == other.shape and one.dtype == other.dtype and one.classes == other.classes
    np.testing.assert_array_equal(one.to_dense(), other.to_dense())
    assert (one.labels is None) == (other.labels is None)
    if one.labels is not None and other.labels is not None:
        np.testing.assert_array_equal(one.labels, other.labels)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_read(
    tmp_path: Path, dtype: Any, shape: tuple[int, ...], mapped: bool
) -> None:
    events = Events.from_dense(some_inputs(shape, dtype))
    events.save(tmp_path / "some.npz")
    assert_same(load(tmp_path / "some.npz", mmap=mapped), events)
    assert [path.name for path in tmp_path.iterdir()] == ["some.npz"]


def test_labels_and_classes_travel_with_the_events(tmp_path: Path) -> None:
    events = Events.from_dense(X, LABELS, CLASSES)
    events.save(tmp_path / "some.npz")
    assert_same(load(tmp_path / "some.npz"), events)
    events.save(tmp_path / "again.npz")
    assert (tmp_path / "some.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def _touch(path: Path) -> None:
    os.utime(path, ns=(0, 10**9))  # long ago, so that every later change has another time


@pytest.mark.parametrize("change", ["cut", "other events", "touched"])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_mapped_file_that_is_changed_in_place_is_refused(
    tmp_path: Path, change: str, sparse: bool
) -> None:
    path = tmp_path / "some.npz"
    if sparse:
        Events.from_dense(X, LABELS).save(path)
    else:
        np.savez(path, inputs=X.astype(np.float32), labels=LABELS)
    _touch(path)
    mapped = read_stored(path).inputs
    part = mapped[2:]
    if change == "cut":
        os.truncate(path, 10)
    elif change == "other events":
        content = bytearray(path.read_bytes())
        with path.open("r+b") as stream:
            stream.write(bytes(reversed(content)))
    else:
        os.utime(path, ns=(0, 2 * 10**9))
    uses: list[Callable[[], object]] = [
        lambda: dense_rows(part, [0]),
        lambda: input_ids(mapped),
        lambda: check_inputs(mapped, None),
    ]
    if isinstance(mapped, Events):
        lengths = np.full(6, 2)
        uses += [
            mapped.compact,
            lambda: mapped.rows([1]),
            lambda: mapped.first_steps(lengths),
            lambda: repr(mapped),
            mapped.to_dense,
        ]
    for use in uses:
        with pytest.raises(InputError, match=r"some.npz was changed in place after") as caught:
            use()
        assert_one_sentence(str(caught.value))


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_mapped_file_that_is_replaced_or_removed_keeps_its_events(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "some.npz"
    Events.from_dense(X).save(path)
    _touch(path)
    mapped = load(path)
    if change == "replaced":
        Events.from_dense(X[::-1]).save(path)
    else:
        path.unlink()
    np.testing.assert_array_equal(mapped.to_dense(), X)


def test_a_file_is_mapped_and_its_arrays_are_aligned(tmp_path: Path) -> None:
    events = Events.from_dense(some_inputs((6, 5, 7), np.float32), LABELS)
    events.save(tmp_path / "some.npz")
    mapped = load(tmp_path / "some.npz")
    for array in (mapped.indices, mapped.values, mapped.rows([5, 2]).indices):
        assert isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
        assert array.offset % 64 == 0 and not array.flags.writeable
    assert not mapped.pointers.flags.owndata and not mapped.pointers.flags.writeable
    assert not isinstance(load(tmp_path / "some.npz", mmap=False).indices, np.memmap)
    with zipfile.ZipFile(tmp_path / "some.npz") as archive:
        assert archive.testzip() is None
        assert all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    events = Events.from_dense(X, LABELS, CLASSES)
    events.save(tmp_path / "some.npz")
    with np.load(tmp_path / "some.npz", allow_pickle=False) as file:
        assert set(file.files) == {"shape", "indices", "pointers", "labels", "classes", "digest"}
        assert file["shape"].tolist() == list(X.shape)
        np.testing.assert_array_equal(file["indices"], events.indices)
        assert tuple(file["classes"]) == CLASSES


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "x",
    [X, X.astype(">f8") * 0.5, np.asfortranarray(X), X.astype(np.uint8)],
    ids=["bool", "big", "fortran", "uint8"],
)
@pytest.mark.parametrize("mapped", [True, False])
def test_what_any_program_writes_is_read(
    tmp_path: Path, write: Any, x: NDArray[Any], mapped: bool
) -> None:
    write(
        tmp_path / "dense.npz", inputs=x, labels=LABELS.astype(np.uint8), classes=np.array(CLASSES)
    )
    assert_same(load(tmp_path / "dense.npz", mmap=mapped), Events.from_dense(x, LABELS, CLASSES))
    write(tmp_path / "alone.npz", inputs=x)
    assert_same(load(tmp_path / "alone.npz", mmap=mapped), Events.from_dense(x))
    sparse = Events.from_dense(x).arrays()
    write(tmp_path / "sparse.npz", **sparse)
    assert_same(load(tmp_path / "sparse.npz", mmap=mapped), Events.from_dense(x))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(
    "x", [X, some_inputs((6, 5, 12), np.float32, 1.0), some_inputs((6, 1, 3, 2, 2), np.uint8, 1.0)]
)
def test_a_part_of_a_data_set_is_read_as_it_was(
    tmp_path: Path, x: NDArray[Any], sparse: bool
) -> None:
    held = 80 if x.shape[1] == 1 else None
    data = EventData(
        "some", True, Events.from_dense(x) if sparse else x, LABELS, CLASSES, "from nowhere", held
    )
    save_events(tmp_path / "some.npz", data)
    read = load_events(tmp_path / "some.npz")
    assert read.inputs.dtype == x.dtype
    np.testing.assert_array_equal(read.inputs, x)
    np.testing.assert_array_equal(read.labels, LABELS)
    assert (read.name, read.simulated, read.classes, read.description, read.held) == (
        "some",
        True,
        CLASSES,
        "from nowhere",
        held,
    )
    assert_same(load(tmp_path / "some.npz"), Events.from_dense(x, LABELS, CLASSES))


def test_a_file_is_as_small_as_its_smaller_form(tmp_path: Path) -> None:
    few, all_cells = (
        some_inputs((50, 20, 2, 8, 8), density=0.02),
        some_inputs((50, 20, 12), np.float32, 1.0),
    )
    for x in (few, all_cells):
        save_events(tmp_path / "some.npz", EventData("some", True, x, np.zeros(50, int), ("a",)))
        assert (tmp_path / "some.npz").stat().st_size < min(
            x.nbytes, 12 * int(np.count_nonzero(x)) + 8 * 1001
        ) + 4000


@pytest.mark.parametrize("x", [X, X.astype(np.uint8)])
def test_files_of_the_first_version_are_read(tmp_path: Path, x: NDArray[Any]) -> None:
    np.savez_compressed(
        tmp_path / "old.npz",
        inputs=np.packbits(x.ravel()) if x.dtype == np.bool_ else x,
        inputs_shape=np.array(x.shape),
        labels=LABELS,
        classes=np.array(CLASSES),
        name=np.array("some"),
        simulated=np.array(True),
        description=np.array("from nowhere"),
        held=np.array(0),
    )
    read = load_events(tmp_path / "old.npz")
    np.testing.assert_array_equal(read.inputs, x)
    assert (read.name, read.simulated, read.classes, read.description, read.held) == (
        "some",
        True,
        CLASSES,
        "from nowhere",
        None,
    )
    assert_same(load(tmp_path / "old.npz"), Events.from_dense(x, LABELS, CLASSES))


def sparse(**changes: Any) -> dict[str, Any]:
    return Events.from_dense(X, LABELS).arrays() | changes


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "scores": ({"log_confidence": np.zeros(3)}, "holds scores, not inputs"),
    "nothing": ({}, "it holds nothing but no 'inputs' and no 'indices'"),
    "x": ({"x": X}, "it holds x but no 'inputs'"),
    "one axis": ({"inputs": np.zeros(3)}, r"inputs has shape \(3,\): \(n, T, \.\.\.\) is needed"),
    "nan": ({"inputs": np.full((6, 2, 3), np.nan)}, r"inputs holds nan at \[0, 0, 0\]"),
    "words": ({"inputs": np.array([["a", "b"]])}, "inputs has dtype <U1"),
    "fewer labels": ({"inputs": X, "labels": LABELS[1:]}, "labels has 5 entries for 6 inputs"),
    "classes": (
        {"inputs": X, "labels": LABELS, "classes": np.array(["a", "b"])},
        "labels holds 2, but there are 2 classes",
    ),
    "no pointers": (
        {"indices": np.arange(3), "shape": np.array([1, 2, 3])},
        "indices are there, but not pointers",
    ),
    "pointers fall": (sparse(pointers=np.flip(sparse()["pointers"])), "pointers must rise"),
    "index beyond": (sparse(shape=np.array([6, 5, 2, 4, 2])), "indices holds 2[0-3], but a step"),
    "other shape": (
        sparse(shape=np.array([6, 4, 2, 4, 3])),
        r"pointers has 31 entries for 6 inputs of 4 steps",
    ),
    "shape of words": (sparse(shape=np.array(["a", "b"])), r"inputs has shape \('a', 'b'\)"),
    "held words": ({"inputs": X, "held": np.array("long")}, "not a whole file of events"),
    "classes in a square": (
        {"inputs": X, "classes": np.array([["a"], ["b"]])},
        r"holds classes of shape \(2, 1\): a list, one axis",
    ),
    "one class": (
        {"inputs": X, "classes": np.array("a")},
        r"holds classes of shape \(\): a list, one axis",
    ),
    "no characters": (
        {"inputs": X, "classes": np.array([0xD800], np.uint32).view("<U1")},
        "classes with codes that are no characters",
    ),
    "held twice": ({"inputs": X, "held": np.array([1])}, "not a whole file of events"),
    "half a step": (sparse(shape=np.array([6, 5, 2, 4, 3.5])), "inputs has shape"),
    "flat shape": (sparse(shape=np.array(720)), "inputs has shape"),
    "many cells": (sparse(shape=np.array([6, 5, 2**60])), r"more than 2\^62 cells"),
    "half of the bits": (
        {"inputs": np.packbits(X)[:45], "inputs_shape": np.array(X.shape)},
        "holds 360 bits for inputs of shape",
    ),
    "more bits": (
        {"inputs": np.zeros(91, np.uint8), "inputs_shape": np.array(X.shape)},
        "holds 728 bits for inputs of shape",
    ),
    "gigabytes of bits": (
        {"inputs": np.zeros(10, np.uint8), "inputs_shape": np.array([10**6, 10**3, 100])},
        "holds 80 bits for inputs",
    ),
    "bits": (
        {"inputs": np.zeros(2, np.uint8), "inputs_shape": np.array([6, 5, 7])},
        r"16 bits for inputs of shape \(6, 5, 7\)",
    ),
}


@pytest.mark.parametrize(("arrays", "match"), MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize("read", [load, load_events])
def test_inconsistent_files_are_refused(
    tmp_path: Path, arrays: dict[str, Any], match: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=match) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert_one_sentence(str(caught.value).replace(str(path), "the file"))


def test_labels_are_needed_in_a_part_of_a_data_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", inputs=X)
    with pytest.raises(InputError, match="has no labels: add an array 'labels'"):
        load_events(tmp_path / "some.npz")


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", inputs=np.array([[object()]]))
    with pytest.raises(InputError, match="holds Python objects in 'inputs'"):
        load(tmp_path / "some.npz")


def test_no_file_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match="not a whole file of events"):
        load(tmp_path / "text.npz")


@pytest.mark.parametrize("digest", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_cut_and_changed_files_are_refused(tmp_path: Path, digest: bool, mapped: bool) -> None:
    """A file is refused wherever it is cut, and wherever a byte of an array is changed."""
    path = tmp_path / "some.npz"
    if digest:
        Events.from_dense(X, LABELS, CLASSES).save(path)
    else:
        np.savez(path, inputs=X, labels=LABELS)
    content = path.read_bytes()
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        with pytest.raises(InputError):
            load(path, mmap=mapped)
    expected = Events.from_dense(X, LABELS, CLASSES if digest else None)
    refused = 0
    for position in range(0, len(content), 13):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]
        )
        try:
            # a byte of the archive that does not matter
            assert_same(load(path, mmap=mapped), expected)
        except InputError:
            refused += 1
    assert refused > 0.3 * len(range(0, len(content), 13))


CUTTING = """
import os, sys
import numpy as np
import torch
import agreestop as ag
from agreestop.events.files import read_stored

def run(path, kind, moment):
    rng = np.random.default_rng(0)
    x = rng.random((100, 30, 40)) < 0.5
    if kind == "dense":
        np.savez(path, inputs=x.astype(np.float32))
    else:
        events = x * rng.integers(1, 5, x.shape) if kind == "counts" else x
        ag.events.Events.from_dense(events).save(path)
    config = ag.networks.FullyConnected((40,), 3, 2, (5,), real_input=kind in ("counts", "dense"))
    network = ag.networks.SpikingNetwork(config, torch.Generator().manual_seed(0)).eval()
    engine = ag.engines.choose_engine(network, "dense" if kind == "dense" else "event-driven")
    examples = ag.engines.score(engine, x[:50], np.zeros(50, int))
    rule = ag.AgreeStop(0.9, range(1, 31), 1).calibrate(examples)
    stored = read_stored(path).inputs
    if kind == "selection":
        stored = stored.rows(rng.permutation(100))
    begin, passes = type(engine).begin, []

    def beginning(self, inputs, first=0):
        passes.append(len(inputs))
        if len(passes) == 2 and moment == "before a batch":
            os.truncate(path, 10)
        made = begin(self, inputs, first)
        if len(passes) == 1 and moment == "within a batch":
            os.truncate(path, 10)
        return made

    type(engine).begin = beginning
    try:
        ag.engines.decide_early(engine, rule, stored, ag.engines.RunOptions(batch_size=32))
    except ag.InputError as error:
        print(kind, moment, error, flush=True)
    finally:
        type(engine).begin = begin

for kind in ("sparse", "selection", "counts", "dense"):
    for moment in ("before a batch", "within a batch"):
        run(sys.argv[1] + kind + moment[:6] + ".npz", kind, moment)
"""


def test_a_file_that_is_cut_while_it_is_used_ends_in_a_sentence(tmp_path: Path) -> None:
    """The system ends a process that reads a map beyond the end of its file, so this runs in one of
    its own.
    """
    pytest.importorskip("torch", reason="engines need PyTorch")
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    done = subprocess.run(
        [sys.executable, "-c", CUTTING, str(tmp_path / "x")], capture_output=True, text=True
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.count("was changed in place after it was loaded: load it again") == 8
