"""Score files: what is written is read, spikes are packed without loss, and whatever else is there
is refused with a sentence.
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import Booleans
from tests.decide.strategies import assert_one_sentence, make_sample, simulate_spikes

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
TIMES = (1, 2.5, 4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scores") / "scores.npz"


def small_scores(classes: tuple[str, ...] | None = ("wave", "clap", "ähm", "")) -> ag.Scores:
    sample = make_sample(12)
    return ag.Scores(sample.log_confidence, sample.labels, TIMES, classes)


def write(path: Path, **content: Any) -> None:
    np.savez(path, **content)


def refusal(path: Path, **settings: Any) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(ag.InputError) as caught:
        ag.load_scores(path, **settings)
    return str(caught.value)


@given(
    data=st.data(), shape=SHAPES, labelled=st.booleans(), named=st.booleans(), single=st.booleans()
)
def test_scores_come_back_as_they_were(
    path: Path,
    data: st.DataObject,
    shape: tuple[int, ...],
    labelled: bool,
    named: bool,
    single: bool,
) -> None:
    dtype = np.float32 if single else np.float64
    values = data.draw(hnp.arrays(dtype, shape, elements=st.floats(-(2.0**100), 0, width=32)))
    labels = (
        data.draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, shape[3] - 1)))
        if labelled
        else None
    )
    names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
    classes = (
        tuple(data.draw(st.lists(names, min_size=shape[3], max_size=shape[3]))) if named else None
    )
    times = tuple(
        sorted(
            data.draw(
                st.sets(
                    st.integers(1, 400).map(lambda t: t / 4), min_size=shape[1], max_size=shape[1]
                )
            )
        )
    )
    ag.save_scores(path, ag.Scores(values, labels, times, classes))
    loaded = ag.load_scores(path)
    assert loaded.log_confidence.dtype == dtype
    np.testing.assert_array_equal(loaded.log_confidence, values)
    assert loaded.times == times
    assert loaded.classes == classes
    assert (loaded.labels is None) == (labels is None)
    if labels is not None:
        assert loaded.labels is not None
        np.testing.assert_array_equal(loaded.labels, labels)


def checkpoints_of(spikes: Booleans, times: tuple[int, ...]) -> NDArray[Any]:
    """Log-confidences of the counts up to each time, one by one."""
    return np.stack([ag.log_confidence(spikes[:, :time].sum(axis=1)) for time in times], axis=1)


@given(data=st.data(), shape=SHAPES)
@settings(max_examples=40)
def test_spikes_come_back_as_counts_at_every_step(
    path: Path, data: st.DataObject, shape: tuple[int, ...]
) -> None:
    spikes = data.draw(hnp.arrays(np.bool_, shape))
    ag.save_spikes(path, spikes)
    loaded = ag.load_scores(path)
    assert loaded.times == tuple(range(1, shape[1] + 1))
    assert loaded.labels is None
    np.testing.assert_array_equal(
        loaded.log_confidence, checkpoints_of(spikes, tuple(range(1, shape[1] + 1)))
    )


def test_spikes_are_packed_eight_to_a_byte(path: Path) -> None:
    spikes, labels = simulate_spikes(301, steps=40, K=3, C=5, seed=1)
    ag.save_spikes(path, spikes.astype(np.uint8), labels, ("a", "b", "c", "d", "e"))
    with np.load(path) as file:
        assert file["spikes"].nbytes == -(-spikes.size // 8)
        assert file["spikes_shape"].tolist() == [301, 40, 3, 5]
    loaded = ag.load_scores(path, times=(10, 25, 40))
    assert loaded.times == (10, 25, 40)
    assert loaded.classes == ("a", "b", "c", "d", "e")
    assert loaded.labels is not None
    np.testing.assert_array_equal(loaded.labels, labels)
    np.testing.assert_array_equal(loaded.log_confidence, checkpoints_of(spikes, (10, 25, 40)))


def test_some_of_the_times_may_be_read(path: Path) -> None:
    scores = small_scores()
    ag.save_scores(path, scores)
    loaded = ag.load_scores(path, times=(1, 4))
    assert loaded.times == (1, 4)
    np.testing.assert_array_equal(loaded.log_confidence, scores.log_confidence[:, [0, 2]])
    assert "times lacks the rule's checkpoint 3" in refusal(path, times=(1, 3))
    ag.save_spikes(path, np.ones((2, 5, 1, 2), dtype=bool))
    assert "checkpoint 6" in refusal(path, times=(2, 6))
    assert "checkpoint 2.5" in refusal(path, times=(2.5,))


def test_a_file_from_plain_numpy_will_do(path: Path) -> None:
    sample = make_sample(6)
    write(
        path,
        log_confidence=sample.log_confidence,
        times=[1, 2, 3],
        labels=sample.labels.astype(np.uint8),
        note=np.array("extra"),
    )
    loaded = ag.load_scores(str(path))
    assert loaded.times == (1, 2, 3)
    assert loaded.labels is not None and loaded.labels.dtype == np.int64


def test_rows_of_scores() -> None:
    scores = small_scores()
    some = scores.rows(np.array([3, 1]))
    assert len(scores) == 12 and len(some) == 2
    assert scores.labels is not None and some.labels is not None
    assert some.labels.tolist() == scores.labels[[3, 1]].tolist()
    np.testing.assert_array_equal(some.log_confidence, scores.log_confidence[[3, 1]])
    assert (some.times, some.classes) == (scores.times, scores.classes)
    assert len(scores.rows(slice(4))) == 4
    assert ag.Scores(scores.log_confidence, None, TIMES).rows(slice(4)).labels is None


GOOD = make_sample(4).log_confidence


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (
            {"labels": [0, 1]},
            r"holds \['labels'\] but no 'log_confidence': .* \(inputs, checkpoints, members, "
            r"classes\) and times: .* numpy\.savez\.",
        ),
        ({"log_confidence": GOOD}, "but no 'times'"),
        (
            {"log_confidence": GOOD, "times": [1, 2]},
            "times names 2 moments and log_confidence has 3 checkpoints",
        ),
        ({"log_confidence": GOOD, "times": [1, 3, 2]}, "checkpoints must increase"),
        ({"log_confidence": GOOD, "times": ["a", "b", "c"]}, "give times as numbers"),
        ({"log_confidence": GOOD, "times": [[1], [2], [3]]}, "a list, one axis"),
        ({"log_confidence": GOOD[0], "times": [1, 2, 3]}, "4 axes"),
        ({"log_confidence": -GOOD, "times": [1, 2, 3]}, "at most 0"),
        ({"log_confidence": GOOD.astype(complex), "times": [1, 2, 3]}, "must hold real numbers"),
        ({"log_confidence": np.full(GOOD.shape, np.nan), "times": [1, 2, 3]}, "holds nan"),
        (
            {"log_confidence": GOOD, "times": [1, 2, 3], "labels": [0, 1, 2]},
            "3 entries for 4 inputs",
        ),
        ({"log_confidence": GOOD, "times": [1, 2, 3], "labels": [0, 1, 2, 9]}, "labels holds 9"),
        (
            {"log_confidence": GOOD, "times": [1, 2, 3], "labels": [0.0, 1, 2, 3]},
            "class indices as integers",
        ),
        (
            {"log_confidence": GOOD, "times": [1, 2, 3], "classes": ["a"]},
            "classes names 1 classes and log_confidence has 4",
        ),
        ({"spikes": np.zeros(3, dtype=np.uint8)}, "spikes of 3 bytes for the shape"),
        ({"spikes": np.zeros(3, dtype=np.uint8), "spikes_shape": [2, 2, 2]}, "spikes of 3 bytes"),
        (
            {"spikes": np.zeros(3, dtype=np.uint8), "spikes_shape": [1, 2, 2, 2]},
            "spikes of 3 bytes",
        ),
        (
            {"spikes": np.zeros(3, dtype=np.uint8), "spikes_shape": [0, 2, 2, 2]},
            "spikes of 3 bytes",
        ),
        (
            {"spikes": np.zeros(3, dtype=np.uint8), "spikes_shape": [-3, -1, 2, 4]},
            "spikes of 3 bytes",
        ),
        (
            {"spikes": np.zeros((3, 1), dtype=np.uint8), "spikes_shape": [3, 1, 2, 4]},
            "spikes of 3 bytes",
        ),
        ({"spikes": np.zeros(3), "spikes_shape": [3, 1, 2, 4]}, "spikes of 3 bytes"),
        (
            {"spikes": np.zeros(3, dtype=np.uint8), "spikes_shape": [3, 1, 2, 4], "labels": [0, 1]},
            "2 entries for 3 inputs",
        ),
    ],
)
def test_a_file_with_other_content_is_refused(
    path: Path, content: dict[str, Any], match: str
) -> None:
    write(path, **content)
    with pytest.raises(ag.InputError, match=match) as caught:
        ag.load_scores(path)
    assert_one_sentence(str(caught.value).replace(str(path), "FILE"))


@pytest.mark.parametrize(
    "content",
    [
        {"log_confidence": GOOD[:, :1], "times": 3},
        {"log_confidence": GOOD, "times": [1, 2, 3], "classes": "abcd"},
        {"spikes": np.zeros(3, dtype=np.uint8), "spikes_shape": ["a", "b", "c", "d"]},
    ],
)
def test_a_file_with_single_values_for_lists_is_refused(
    path: Path, content: dict[str, Any]
) -> None:
    write(path, **content)
    refusal(path)


def test_objects_are_not_unpickled(path: Path) -> None:
    np.savez(path, allow_pickle=True, log_confidence=np.array([{"a": 1}], dtype=object), times=[1])
    assert "holds Python objects in 'log_confidence': convert it to numbers" in refusal(path)


@pytest.mark.parametrize("foreign", [b"", b"hello", bytes(100), b"agreestop-rule 1 2 3\n"])
def test_a_foreign_file_is_refused(path: Path, foreign: bytes) -> None:
    path.write_bytes(foreign)
    assert "is not a whole score file" in refusal(path)


def test_a_foreign_file_is_refused_in_one_sentence(path: Path) -> None:
    path.write_bytes(b"hello")
    assert_one_sentence(refusal(path).replace(str(path), "FILE"))


@pytest.mark.parametrize("name", ["scores.npy", "scores.csv", "train.py", "rule"])
def test_a_file_of_another_format_is_told_apart(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"0.1,0.9")
    assert "is no .npz file" in refusal(tmp_path / name)


def test_a_zip_of_other_things_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is not a whole score file" in refusal(path)


def test_a_single_array_is_refused(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, GOOD)
    refusal(path)


def test_a_missing_file_is_said(path: Path, tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.npz")
    assert "is a folder, a pipe or a device: give a file" in refusal(tmp_path)


def test_a_truncated_file_is_refused(path: Path) -> None:
    ag.save_scores(path, small_scores())
    content = path.read_bytes()
    for length in range(0, len(content), 41):
        path.write_bytes(content[:length])
        refusal(path)


def test_a_file_with_an_altered_byte_is_refused_or_read_as_it_was(path: Path) -> None:
    scores = small_scores()
    ag.save_scores(path, scores)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        altered = bytearray(content)
        altered[position] ^= 0x5A
        path.write_bytes(altered)
        try:
            loaded = ag.load_scores(path)
        except ag.InputError:
            continue
        np.testing.assert_array_equal(loaded.log_confidence, scores.log_confidence)


def test_a_failure_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.npz"
    ag.save_scores(path, small_scores())
    before = path.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ag.InputError, match="No space left on device"):
        ag.save_spikes(path, np.ones((1, 1, 1, 1), dtype=bool))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores.npz"]


def test_the_name_of_a_file_is_kept_as_given(tmp_path: Path) -> None:
    ag.save_scores(tmp_path / "scores", small_scores())
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores"]
    assert ag.load_scores(tmp_path / "scores").times == TIMES


SPIKES = np.zeros((2, 3, 1, 4), dtype=bool)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda path: ag.save_spikes(path, SPIKES[0]),
            r"\(n, T, K, C\), none of them 0, is needed",
        ),
        (lambda path: ag.save_spikes(path, SPIKES[:0]), "none of them 0"),
        (lambda path: ag.save_spikes(path, SPIKES + 2), "at most one spike"),
        (lambda path: ag.save_spikes(path, np.full(SPIKES.shape, np.nan)), "at most one spike"),
        (lambda path: ag.save_spikes(path, SPIKES, [0]), "1 entries for 2 inputs"),
        (lambda path: ag.save_spikes(path, SPIKES, [0, 4]), "labels holds 4"),
        (
            lambda path: ag.save_spikes(path / "no" / "folder", SPIKES),
            "choose a folder that exists",
        ),
        (lambda path: ag.Scores(GOOD, None, (1, 2)), "times names 2 moments"),
        (lambda path: ag.Scores(GOOD, None, (1, 2, 3), ("a", "b")), "classes names 2 classes"),
        (lambda path: ag.Scores(GOOD, np.array([0, 1, 2, 4]), (1, 2, 3)), "labels holds 4"),
    ],
)
def test_what_no_file_can_hold_is_refused(
    tmp_path: Path, call: Callable[[Path], object], match: str
) -> None:
    with pytest.raises(ag.InputError, match=match):
        call(tmp_path / "scores.npz")
    assert list(tmp_path.iterdir()) == []


def test_spikes_with_too_few_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ag.InputError, match="classes names 1"):
        ag.save_spikes(tmp_path / "spikes.npz", SPIKES, classes=("a",))


def test_spikes_that_unpack_to_far_more_than_their_file_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz",
        spikes=np.zeros(2**20, np.uint8),
        spikes_shape=np.array([2**13, 32, 4, 8]),
    )
    with pytest.raises(ag.InputError, match="would unpack to 8,388,608 spikes"):
        ag.load_scores(tmp_path / "a.npz")


def test_compressed_scores_that_take_far_more_than_their_file_are_refused(tmp_path: Path) -> None:
    """Calibration needs several times the memory of the scores, so a small file of zeros must not
    ask for much.
    """
    np.savez_compressed(
        tmp_path / "a.npz", log_confidence=np.zeros((2**12, 32, 4, 8)), times=np.arange(1.0, 33.0)
    )
    with pytest.raises(ag.InputError, match=r"would take 33,55\d,\d+ bytes, more"):
        ag.load_scores(tmp_path / "a.npz")
