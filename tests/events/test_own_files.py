"""Own data from files: three parts that share no input, in random order, whatever the shape;
mistakes are refused in a sentence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreestop.common import InputError
from agreestop.events import (
    EventData,
    Events,
    EventSplits,
    input_ids,
    load_events,
    load_files,
    save_events,
)
from tests.decide.strategies import assert_one_sentence


def numbered(n: int, shape: tuple[int, ...] = (8, 12), first: int = 0) -> NDArray[np.float32]:
    """Inputs that are zero but for their number, which the first cell holds."""
    x = np.zeros((n, *shape), np.float32)
    x.reshape(n, -1)[:, 0] = np.arange(first, first + n) + 1
    return x


def numbers(part: EventData) -> list[int]:
    dense = part.inputs.to_dense() if isinstance(part.inputs, Events) else part.inputs
    return [int(number) - 1 for number in dense.reshape(len(part), -1)[:, 0]]


def assert_parts(data: EventSplits, sizes: list[int]) -> None:
    assert [len(part) for part in data] == sizes
    everything = [number for part in data for number in numbers(part)]
    assert len(set(everything)) == len(everything)
    for part in data:
        assert part.labels.tolist() == [number % 3 for number in numbers(part)]
        assert numbers(part) != sorted(numbers(part))


@pytest.mark.parametrize("shape", [(8, 12), (5, 2, 4, 4), (7,)])
@pytest.mark.parametrize("sparse", [True, False])
def test_one_file_is_divided(tmp_path: Path, shape: tuple[int, ...], sparse: bool) -> None:
    x, y = numbered(100, shape), np.arange(100) % 3
    if sparse:
        Events.from_dense(x, y, ("a", "b", "c")).save(tmp_path / "mine.npz")
    else:
        np.savez(tmp_path / "mine.npz", inputs=x, labels=y, classes=np.array(["a", "b", "c"]))
    data = load_files(tmp_path / "mine.npz", seed=1)
    assert_parts(data, [60, 15, 25])
    if sparse:
        assert isinstance(data.pool.inputs, Events) and isinstance(
            data.pool.inputs.indices, np.memmap
        )
    else:  # the smaller of both forms
        assert isinstance(data.pool.inputs, Events) == (len(shape) > 1)
    assert (
        data.pool.name == "mine, pool"
        and data.pool.description == "own data from files"
        and not data.pool.simulated
    )
    assert (
        data.pool.classes == ("a", "b", "c")
        and data.pool.shape == shape[1:]
        and data.pool.steps == shape[0]
    )
    assert numbers(load_files(tmp_path / "mine.npz", seed=1).pool) == numbers(data.pool)
    assert numbers(load_files(tmp_path / "mine.npz", seed=2).pool) != numbers(data.pool)
    assert_parts(load_files(tmp_path / "mine.npz", shares=(0.5, 0.3, 0.2)), [50, 30, 20])
    assert_parts(load_files(tmp_path / "mine.npz", sizes=(20, 10, 30)), [20, 10, 30])


def write_three(folder: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    paths = {}
    for first, (name, n) in zip(
        (0, 30, 42), (("training", 30), ("tuning", 12), ("pool", 21)), strict=True
    ):
        arrays: dict[str, Any] = {
            "inputs": numbered(n, first=first),
            "labels": np.arange(first, first + n) % 3,
        } | changes.get(name, {})
        paths[name] = folder / f"{name}.npz"
        np.savez(paths[name], **{key: array for key, array in arrays.items() if array is not None})
    return paths


def test_three_files_are_three_parts(tmp_path: Path) -> None:
    data = load_files(**write_three(tmp_path))
    assert_parts(data, [30, 12, 21])
    assert [min(numbers(part)) for part in data] == [0, 30, 42]
    assert data.tuning.name == "files, tuning" and data.pool.classes == ("0", "1", "2")
    assert_parts(load_files(**write_three(tmp_path), sizes=(10, 12, 5)), [10, 12, 5])
    named = load_files(**write_three(tmp_path, pool={"classes": np.array(["x", "y", "z"])}))
    assert named.training.classes == ("x", "y", "z")


def test_words_of_the_file_are_kept(tmp_path: Path) -> None:
    images = numbered(40, (1, 3, 4, 4)).astype(np.uint8)
    save_events(
        tmp_path / "a.npz",
        EventData("some", True, images, np.arange(40) % 3, ("a", "b", "c"), "drawn by hand", 80),
    )
    data = load_files(tmp_path / "a.npz")
    assert (data.pool.simulated, data.pool.description, data.pool.held, data.pool.steps) == (
        True,
        "drawn by hand",
        80,
        80,
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("bool", "bool"),
        ("uint8", "uint8"),
        ("int64", "uint8"),
        ("int64 300", "float32"),
        ("int8 -1", "float32"),
        ("float64", "float32"),
    ],
)
@pytest.mark.parametrize("sparse", [True, False])
def test_numbers_become_what_networks_take(
    tmp_path: Path, given: str, kept: str, sparse: bool
) -> None:
    dtype, _, value = given.partition(" ")
    x = (np.random.default_rng(0).random((20, 4, 6)) < 0.3).astype(dtype)
    x[0, 0, 0] = int(value or 1)
    Events.from_dense(x, np.zeros(20, int)).save(tmp_path / "a.npz") if sparse else np.savez(
        tmp_path / "a.npz", inputs=x, labels=[0] * 20
    )
    data = load_files(tmp_path / "a.npz")
    assert all(part.inputs.dtype == np.dtype(kept) for part in data)
    assert sorted(np.concatenate([input_ids(part.inputs) for part in data])) == sorted(input_ids(x))


def test_tiny_numbers_may_become_zero(tmp_path: Path) -> None:
    x = np.full((10, 2, 2), 1e-60)
    x[:, 0] = 1
    Events.from_dense(x, np.zeros(10, int)).save(tmp_path / "a.npz")
    data = load_files(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.training.inputs.to_dense(), x[:6].astype(np.float32))


def test_parts_of_different_numbers_become_one_kind(tmp_path: Path) -> None:
    paths = write_three(tmp_path, tuning={"inputs": numbered(12, first=30).astype(np.uint8)})
    assert {part.inputs.dtype for part in load_files(**paths)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("labels", "absent"), [([1, 2, 3], 0), ([0, 1, 3], 2), ([0, 5, 10], 1)])
def test_labels_that_skip_a_class_are_refused_unless_the_classes_have_names(
    tmp_path: Path, labels: list[int], absent: int
) -> None:
    y = np.array(labels)[np.arange(40) % 3]
    np.savez(tmp_path / "a.npz", inputs=numbered(40), labels=y)
    with pytest.raises(InputError, match=f"no input has the label {absent}") as caught:
        load_files(tmp_path / "a.npz")
    assert_one_sentence(str(caught.value).replace(".npz", ""))
    names = [f"class {label}" for label in range(max(labels) + 1)]
    np.savez(tmp_path / "a.npz", inputs=numbered(40), labels=y, classes=np.array(names))
    assert load_files(tmp_path / "a.npz").pool.classes == tuple(names)


@pytest.mark.parametrize("sparse", [True, False])
def test_numbers_that_float32_cannot_hold_are_refused(tmp_path: Path, sparse: bool) -> None:
    x = numbered(20).astype(np.float64)
    x[3, 0, 0] = 1e39
    Events.from_dense(x, np.zeros(20, int)).save(tmp_path / "a.npz") if sparse else np.savez(
        tmp_path / "a.npz", inputs=x, labels=[0] * 20
    )
    with pytest.raises(InputError, match="inputs as float32 holds inf"):
        load_files(tmp_path / "a.npz")


def test_a_label_beyond_all_classes_makes_no_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=numbered(20), labels=[0] * 19 + [10**9])
    with pytest.raises(InputError, match="labels holds 1000000000"):
        load_events(tmp_path / "a.npz")


WRONG_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"pool": {"labels": None}}, r"pool has no labels: add an array 'labels'"),
    "other shape": (
        {"tuning": {"inputs": numbered(12, (8, 11))}},
        r"inputs of shape \(8, 12\) and .* of \(8, 11\): make them the same",
    ),
    "other classes": (
        {
            "tuning": {"classes": np.array(["a", "b", "c"])},
            "pool": {"classes": np.array(["a", "c", "b"])},
        },
        r"names the classes \('a', 'b', 'c'\) and .*: give the same names in the same order",
    ),
    "unknown class": (
        {"training": {"classes": np.array(["a", "b"])}},
        "labels holds 2, but there are 2 classes",
    ),
    "fewer labels": (
        {"training": {"labels": np.zeros(29, int)}},
        "labels has 29 entries for 30 inputs",
    ),
}


@pytest.mark.parametrize(("changes", "match"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_files(**write_three(tmp_path, **changes))
    words = str(caught.value).replace(f"{tmp_path}/", "").replace(".npz", "")
    assert_one_sentence(words)
    assert re.search(match, words), words


WRONG_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "no file given: give either one file, or all three"),
    "both": ({"file": "a", "pool": "b"}, "file and pool given: give either one file"),
    "two": ({"training": "a", "pool": "b"}, "training and pool given"),
    "the same": (
        {"training": "a", "tuning": "b", "pool": "./a"},
        "two of training, tuning and pool are the same file",
    ),
    "no such": ({"file": "nowhere.npz"}, "there is no file nowhere"),
    "shares": (
        {"shares": (0.5, 0.5)},
        r"shares is \(0.5, 0.5\): give three positive numbers that add up to 1",
    ),
    "large shares": ({"shares": (0.5, 0.5, 0.5)}, "add up to 1"),
    "both sizes": (
        {"shares": (0.5, 0.25, 0.25), "sizes": (1, 1, 1)},
        "shares divide one file by themselves",
    ),
    "too many": ({"sizes": (10, 5, 6)}, "21 inputs of .* are asked for, but there are 20"),
    "seed": ({"seed": -1}, "seed is -1"),
}


@pytest.mark.parametrize(("settings", "match"), WRONG_CALLS.values(), ids=WRONG_CALLS.keys())
def test_wrong_calls_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", inputs=numbered(20), labels=np.arange(20) % 3)
    whole = (
        {"file": "mine.npz"}
        if settings and not {"file", "training", "pool"} & settings.keys()
        else {}
    )
    with pytest.raises(InputError, match=match) as caught:
        load_files(**(whole | settings))
    assert_one_sentence(str(caught.value).replace(".npz", ""))


def test_few_inputs_make_no_three_parts(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", inputs=numbered(9), labels=np.zeros(9, int))
    with pytest.raises(InputError, match="there are 9 inputs"):
        load_files(tmp_path / "few.npz")
