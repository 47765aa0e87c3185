"""The data sets: on small files in the official formats, and on real ones where they lie in
AGREESTOP_DATA or ../shared/data.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreestop.common import InputError
from agreestop.events import EventData, EventSplits, Recording, checked_recording
from agreestop.events.datasets import (
    catalogue,
    cifar10,
    dvs_gesture,
    mnist_dvs,
    moving_digits,
    n_mnist,
)
from agreestop.events.datasets.braille import load_braille
from agreestop.events.datasets.cifar10 import load_cifar10
from agreestop.events.datasets.dvs_gesture import GESTURES, load_dvs_gesture
from agreestop.events.datasets.mnist_dvs import load_mnist_dvs
from agreestop.events.datasets.n_mnist import load_n_mnist
from tests.decide.strategies import assert_one_sentence
from tests.events.writers import write_aedat2, write_aedat3, write_n_mnist

REAL = Path(os.environ.get("AGREESTOP_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(name: str) -> Path:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"there is no {name} in AGREESTOP_DATA or ../shared/data")
    return path


def sizes(data: EventSplits) -> list[int]:
    return [len(part) for part in (data.training, data.tuning, data.pool)]


def parts(data: EventSplits) -> tuple[Any, ...]:
    return data.training, data.tuning, data.pool


def events(*rows: tuple[int, int, bool, int], size: tuple[int, int] = (128, 128)) -> Recording:
    """A recording of events (x, y, polarity, time)."""
    x, y, polarity, time = (np.array(column) for column in zip(*rows, strict=True))
    return checked_recording(x, y, polarity, time, size)


# cifar10


def write_cifar10(folder: Path, records: int = 20) -> None:
    """Images whose first red pixel is their number in the file and whose second is the file's."""
    folder.mkdir()
    for number, name in enumerate((*cifar10.TRAINING_FILES, cifar10.TEST_FILE)):
        content = np.zeros((records, 3073), np.uint8)
        content[:, 0] = np.arange(records) % 10
        content[:, 1] = np.arange(records)
        content[:, 2] = number
        content[:, 1 + 1024] = 100  # the first green pixel
        content.tofile(folder / name)
    (folder / cifar10.NAMES_FILE).write_text("\n".join(cifar10.CLASSES) + "\n\n")


@pytest.fixture
def cifar10_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cifar10, "RECORDS", 20)
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    return tmp_path


def test_cifar10_is_held_images_in_three_parts(cifar10_folder: Path) -> None:
    data = load_cifar10(cifar10_folder, tuning=30, seed=3)
    assert sizes(data) == [70, 30, 20]
    for part in parts(data):
        assert part.inputs.shape[1:] == (1, 3, 32, 32) and part.inputs.dtype == np.uint8
        assert (part.held, part.steps, part.simulated) == (80, 80, False)
        np.testing.assert_array_equal(part.labels, part.inputs[:, 0, 0, 0, 0] % 10)
        assert (part.inputs[:, 0, 1, 0, 0] == 100).all()
    files = [part.inputs[:, 0, 0, 0, 1] for part in parts(data)]
    assert set(files[0]) | set(files[1]) == {0, 1, 2, 3, 4} and set(files[2]) == {5}
    numbers = [
        file.astype(int) * 20 + part.inputs[:, 0, 0, 0, 0]
        for file, part in zip(files, parts(data), strict=True)
    ]
    assert len(set(np.concatenate(numbers))) == 120
    assert not np.array_equal(numbers[2], np.sort(numbers[2]))
    np.testing.assert_array_equal(
        load_cifar10(cifar10_folder, 30, 3).tuning.inputs, data.tuning.inputs
    )
    assert not np.array_equal(
        load_cifar10(cifar10_folder / "cifar-10-batches-bin", 30, 4).pool.labels, data.pool.labels
    )


def test_a_damaged_cifar10_names_the_official_files(cifar10_folder: Path) -> None:
    folder_path = cifar10_folder / "cifar-10-batches-bin"
    with pytest.raises(InputError, match="tuning is 100: give fewer"):
        load_cifar10(cifar10_folder, tuning=100)
    with pytest.raises(InputError, match=r"there is no file test_batch.bin"):
        load_cifar10(cifar10_folder / "nowhere")
    (folder_path / cifar10.NAMES_FILE).write_text("cat dog")
    with pytest.raises(InputError, match="does not list the ten classes"):
        load_cifar10(cifar10_folder, 30)
    (folder_path / cifar10.NAMES_FILE).unlink()
    content = (folder_path / "data_batch_3.bin").read_bytes()
    (folder_path / "data_batch_3.bin").write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"data_batch_3.bin has 61,459 bytes") as caught:
        load_cifar10(cifar10_folder, 30)
    assert all(
        name in str(caught.value) and md5 in str(caught.value)
        for name, md5 in catalogue.find("cifar10").archives.items()
    )
    (folder_path / "data_batch_3.bin").write_bytes(b"\x0a" + content[1:])
    with pytest.raises(InputError, match="holds the label 10"):
        load_cifar10(cifar10_folder, 30)
    (folder_path / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"there is no file .*data_batch_3.bin"):
        load_cifar10(cifar10_folder, 30)


def test_the_real_cifar10_is_balanced() -> None:
    data = load_cifar10(real("cifar-10-batches-bin").parent)
    assert sizes(data) == [45_000, 5_000, 10_000]
    assert (np.bincount(data.pool.labels) == 1_000).all()
    assert (np.bincount(np.concatenate([data.training.labels, data.tuning.labels])) == 5_000).all()


# braille


def test_spike_trains_keep_the_training_part_of_their_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    trains = rng.integers(0, 2, (30, 8, 5)).astype(np.float32)
    labels = np.arange(30) % 3
    path = tmp_path / "some.npz"
    ends = {"train": slice(0, 16), "val": slice(16, 23), "test": slice(23, 30)}
    content: dict[str, Any] = {f"x_{part}": trains[rows] for part, rows in ends.items()}
    content |= {f"y_{part}": labels[rows] for part, rows in ends.items()}
    np.savez(path, allow_pickle=False, **content)
    data = load_braille(path, steps=None)
    assert sizes(data) == [16, 4, 10]
    assert data.pool.inputs.shape == (10, 8, 5) and data.pool.inputs.dtype == np.bool_
    assert data.pool.name == "braille, pool" and data.pool.classes[:3] == ("Space", "A", "E")
    known = {row.tobytes() for row in trains[:16].astype(bool)}
    assert {row.tobytes() for row in data.training.inputs} == known
    assert not known & {row.tobytes() for part in (data.tuning, data.pool) for row in part.inputs}
    halved = load_braille(path, steps=4)
    for row, joined in zip(data.pool.inputs, halved.pool.inputs, strict=True):
        np.testing.assert_array_equal(joined, row[0::2] | row[1::2])
    assert sizes(load_braille(path, steps=None, sizes=(10, 3, 5))) == [10, 3, 5]
    np.savez(path, allow_pickle=False, **content | {"y_test": np.arange(7) + 1})
    assert load_braille(path, steps=None).pool.classes == tuple("01234567")


def test_spike_trains_without_a_division_are_drawn_from_all_rows(tmp_path: Path) -> None:
    trains = np.zeros((40, 6, 40), bool)
    trains[np.arange(40), :, np.arange(40)] = True
    np.savez(
        tmp_path / "all.npz", x=trains, y=np.arange(40) % 4, classes=np.array(["n", "e", "s", "w"])
    )
    data = load_braille(tmp_path / "all.npz", steps=None, seed=1)
    assert sizes(data) == [24, 6, 10] and data.pool.classes == ("n", "e", "s", "w")
    numbers = [part.inputs[:, 0].argmax(1) for part in parts(data)]
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(40))
    for rows, part in zip(numbers, parts(data), strict=True):
        np.testing.assert_array_equal(part.labels, rows % 4)


@pytest.mark.parametrize(
    ("content", "steps", "match"),
    [
        ({"x": np.zeros((12, 6, 2))}, None, "holds x but not y"),
        ({"a": np.zeros(3), "b": np.zeros(3)}, None, "holds a, b: give x and y, or x_train"),
        (
            {"x": np.zeros((12, 6)), "y": np.zeros(12, int)},
            None,
            r"x in .* has shape \(12, 6\): \(n, T, channels\)",
        ),
        (
            {"x": np.full((12, 6, 2), 2), "y": np.zeros(12, int)},
            None,
            "holds other values than 0 and 1",
        ),
        ({"x": np.zeros((12, 6, 2)), "y": np.zeros(12)}, None, "labels has dtype float64"),
        (
            {"x": np.zeros((12, 6, 2)), "y": np.zeros(12, int)},
            4,
            "steps is 4, .* have 6 steps: give one of 1, 2, 3, 6",
        ),
        (
            {"x": np.zeros((4, 6, 2)), "y": np.zeros(4, int)},
            None,
            "there are 4 inputs: at least 10 are needed",
        ),
        (
            {
                "x_train": np.zeros((4, 6, 2)),
                "y_train": np.zeros(4, int),
                "x_test": np.zeros((4, 6, 3)),
                "y_test": np.zeros(4, int),
            },
            None,
            "different steps or channels",
        ),
    ],
)
def test_other_arrays_are_refused(
    content: dict[str, Any], steps: int | None, match: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "some.npz", allow_pickle=False, **content)
    with pytest.raises(InputError, match=match) as caught:
        load_braille(tmp_path / "some.npz", steps=steps)
    assert_one_sentence(str(caught.value).replace("some.npz", "some"))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([object()] * 3), y=np.zeros(3, int))
    with pytest.raises(InputError, match="holds Python objects in 'x'"):
        load_braille(tmp_path / "objects.npz")
    with pytest.raises(InputError, match=r"there is no file .*nowhere.npz"):
        load_braille(tmp_path / "nowhere.npz")


def test_the_real_braille_letters_make_a_pool_of_300() -> None:
    data = load_braille(real("braille7.npz").parent)
    assert sizes(data) == [980, 120, 300]
    assert data.pool.inputs.shape[1:] == (128, 12) and data.pool.classes == (
        "Space",
        "A",
        "E",
        "I",
        "O",
        "U",
        "Y",
    )
    assert 0.3 < np.asarray(data.pool.inputs).mean() < 0.35
    assert load_braille(
        real("braille7.npz"), steps=256, sizes=(100, 50, 370)
    ).pool.inputs.shape == (370, 256, 12)
    with pytest.raises(InputError, match=r"421 rows of .* that are not for training"):
        load_braille(real("braille7.npz"), sizes=(980, 121, 300))


# n-mnist


def write_n_mnist_folder(folder: Path, training: int, test: int) -> None:
    """Recordings of one event each, at x of the digit and y of the part, in step number // 10."""
    for part, count in (("Train", training), ("Test", test)):
        for number in range(count):
            folder_path = folder / part / str(number % 10)
            folder_path.mkdir(parents=True, exist_ok=True)
            one = (number % 10, len(part), True, 4_000 * (number // 10))
            late = (33, 33, False, 320_000)
            write_n_mnist(folder_path / f"{number:05d}.bin", events(one, late, size=(34, 34)))


def test_a_partial_n_mnist_is_drawn_from_all_recordings(tmp_path: Path) -> None:
    write_n_mnist_folder(tmp_path / "N-MNIST", 30, 20)
    data = load_n_mnist(tmp_path)
    assert sizes(data) == [35, 5, 10]
    for part in parts(data):
        assert part.inputs.shape[1:] == (80, 2, 34, 34) and part.inputs.dtype == np.bool_
        assert "drawn at random from all recordings" in part.description
        rows, step, polarity, _, x = np.nonzero(part.inputs)
        assert (polarity == 0).all()  # ON comes first, and what is later than 320 ms is left out
        np.testing.assert_array_equal(rows, np.arange(len(part)))
        np.testing.assert_array_equal(x, part.labels)
        assert step.max() <= 2
    both = {int(y) for y in np.nonzero(data.pool.inputs)[3]}
    assert both == {4, 5}  # from Train and from Test
    np.testing.assert_array_equal(load_n_mnist(tmp_path / "N-MNIST").pool.inputs, data.pool.inputs)


def test_n_mnist_keeps_its_official_division_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_n_mnist_folder(tmp_path, 30, 20)
    asked = load_n_mnist(tmp_path, sizes=(20, 10, 20))
    monkeypatch.setattr(n_mnist, "TRAINING", 30)
    monkeypatch.setattr(n_mnist, "TEST", 20)
    monkeypatch.setattr(n_mnist, "TUNING", 10)
    complete = load_n_mnist(tmp_path)
    for data in (asked, complete):
        assert sizes(data) == [20, 10, 20]
        assert {
            int(y) for part in (data.training, data.tuning) for y in np.nonzero(part.inputs)[3]
        } == {5}
        assert {int(y) for y in np.nonzero(data.pool.inputs)[3]} == {4}
        assert "of the official test part" in data.pool.description


def test_a_damaged_n_mnist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are no recordings .*garrickorchard"):
        load_n_mnist(tmp_path)
    write_n_mnist_folder(tmp_path, 20, 0)
    with pytest.raises(InputError, match=r"21 recordings of .* are asked"):
        load_n_mnist(tmp_path, sizes=(10, 1, 10))
    with pytest.raises(InputError, match=r"sizes is \(10, 0, 10\)"):
        load_n_mnist(tmp_path, sizes=(10, 0, 10))
    path = tmp_path / "Train" / "3" / "00003.bin"
    for content in (path.read_bytes()[:-1], b"\xff" * 25 + path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"00003.bin is damaged"):
            load_n_mnist(tmp_path)


def test_real_n_mnist_recordings_are_read(tmp_path: Path) -> None:
    with tarfile.open(real("n-mnist-1100.tar.xz"), "r|xz") as archive:
        for _ in range(40):
            member = archive.next()
            assert member is not None
            archive.extract(member, tmp_path, filter="data")
    data = load_n_mnist(tmp_path)
    assert sizes(data) == [28, 4, 8]
    for part in parts(data):
        active = np.asarray(part.inputs).any(axis=(2, 3, 4)).sum(axis=1)
        assert (active >= 70).all() and 0.01 < np.asarray(part.inputs).mean() < 0.05


# mnist-dvs


def test_mnist_dvs_is_cut_and_binned(tmp_path: Path) -> None:
    for digit in range(10):
        for number in (1, 2):
            folder_path = tmp_path / f"grabbed_data{digit}" / "scale4"
            folder_path.mkdir(parents=True, exist_ok=True)
            corner = (54, 48, number == 1, 1_000)
            rows = (
                corner,
                (54 + digit, 73, False, 26_000 + number),
                (53, 60, True, 30_000),
                (60, 74, True, 40_000),
                (60, 60, True, 2_001_000),
            )
            write_aedat2(folder_path / f"mnist_{digit}_scale04_{number:04d}.aedat", events(*rows))
    # a piece of one that is there
    write_aedat2(tmp_path / "mnist_3_scale04_0001_qt1.aedat", events((0, 0, True, 0)))
    write_aedat2(tmp_path / "mnist_3_scale08_0009.aedat", events((0, 0, True, 0)))
    (tmp_path / "notes.aedat").write_text("nothing")
    data = load_mnist_dvs(tmp_path, seed=2)
    assert sizes(data) == [14, 2, 4]
    for part in parts(data):
        assert part.inputs.shape[1:] == (80, 2, 26, 26)
        for row, label in zip(part.inputs, part.labels, strict=True):
            assert row.sum() == 2 and row[0, :, 0, 0].sum() == 1 and row[1, 1, 25, label]
    names = sorted(path.name for path in mnist_dvs.find_recordings(tmp_path))
    assert len(names) == 20 and not any("qt1" in name for name in names)
    assert [path.name for path in mnist_dvs.find_recordings(tmp_path, 8)] == [
        "mnist_3_scale08_0009.aedat"
    ]
    assert sizes(load_mnist_dvs(tmp_path, sizes=(3, 2, 1), steps=10)) == [3, 2, 1]


def test_a_missing_mnist_dvs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recordings"):
        load_mnist_dvs(tmp_path, scale=16)
    with pytest.raises(InputError, match="scale is 5: give 4, 8 or 16"):
        load_mnist_dvs(tmp_path, scale=5)


@pytest.mark.parametrize("scale", mnist_dvs.SCALES)
def test_real_mnist_dvs_recordings_show_a_digit_in_the_window(scale: int, tmp_path: Path) -> None:
    source = mnist_dvs.find_recordings(real("mnist-dvs-sample"), scale)[0]
    for number in range(10):
        (tmp_path / f"mnist_0_scale{scale:02d}_{number:04d}.aedat").symlink_to(source)
    data = load_mnist_dvs(tmp_path, scale)
    picture = data.pool.inputs[0].sum(axis=(0, 1))
    assert picture[4:22, 4:22].sum() > 0.5 * picture.sum() > 100
    np.testing.assert_array_equal(data.pool.inputs[0], data.training.inputs[0])


# dvs-gesture


def write_gestures(folder: Path, people: Sequence[int], name: str) -> None:
    """One recording for each person, with all eleven gestures of 3 s; the events encode the person
    and the gesture.
    """
    lines = []
    for person in people:
        stem = f"user{person:02d}_led"
        rows, table = [], ["class,startTime_usec,endTime_usec"]
        for gesture in range(1, 12):
            start = 5_000_000 * gesture
            table.append(f"{gesture},{start},{start + 1_000_000}")
            rows += [
                (4 * gesture + 1, 4 * person + 3, True, start)
            ] * 300  # more than a byte counts
            rows += [(4 * gesture + dx, 4 * person, False, start + 31_000) for dx in range(3)]
            rows.append((0, 0, True, start + 1_000_000))  # after its end
        write_aedat3(folder / f"{stem}.aedat", events(*rows))
        (folder / f"{stem}_labels.csv").write_text("\n".join(table) + "\n")
        lines.append(f"{stem}.aedat")
    (folder / name).write_text("\n".join(lines) + "\n\n")


@pytest.fixture
def gesture_folder(tmp_path: Path) -> Path:
    (tmp_path / "DvsGesture").mkdir()
    write_gestures(tmp_path / "DvsGesture", range(1, 7), "trials_to_train.txt")
    write_gestures(tmp_path / "DvsGesture", (24, 25), "trials_to_test.txt")
    return tmp_path


def test_gestures_are_counts_of_people_who_are_not_shared(gesture_folder: Path) -> None:
    data = load_dvs_gesture(gesture_folder, tuning=2, seed=1)
    assert sizes(data) == [44, 22, 22]
    seen = []
    for part in parts(data):
        assert (
            part.inputs.shape[1:] == (80, 2, 32, 32)
            and part.inputs.dtype == np.uint8
            and part.classes == GESTURES
        )
        assert (np.bincount(part.labels) == len(part) // 11).all()
        rows, steps, polarity, person, gesture = np.nonzero(part.inputs)
        assert set(zip(steps.tolist(), polarity.tolist(), strict=True)) == {(0, 0), (1, 1)}
        np.testing.assert_array_equal(gesture - 1, part.labels[rows])
        np.testing.assert_array_equal(
            part.inputs.values.reshape(len(part), 2), np.tile([255, 3], (len(part), 1))
        )
        seen.append({int(one) for one in person})
        assert not np.array_equal(part.labels, np.sort(part.labels))
    assert seen[2] == {24, 25} and seen[0] | seen[1] == {1, 2, 3, 4, 5, 6} and not seen[0] & seen[1]
    fine = load_dvs_gesture(gesture_folder / "DvsGesture", tuning=2, seed=1, downsample=1, steps=3)
    assert fine.pool.inputs.shape == (22, 3, 2, 128, 128)


def test_problems_with_gestures_are_reported(gesture_folder: Path) -> None:
    folder_path = gesture_folder / "DvsGesture"
    with pytest.raises(InputError, match="tuning is 6, but the training part has 6"):
        load_dvs_gesture(gesture_folder, tuning=6)
    with pytest.raises(InputError, match="downsample is 3: give the side of a cell"):
        load_dvs_gesture(gesture_folder, downsample=3)
    tests = (folder_path / "trials_to_test.txt").read_text()
    for text, match in (
        ("user24_led.aedat\nuser01_led.aedat\n", r"user01_led.aedat is in both"),
        ("user24_led.aedat\n../secret\n", r"names '../secret', which is no user<NN>_<light>.aedat"),
        (
            "user24_led.aedat\nuser26_led.aedat\n",
            r"there is no file .*user26_led.aedat, which trials_to_test.txt asks for",
        ),
        ("\n", "names no recordings"),
    ):
        (folder_path / "trials_to_test.txt").write_text(text)
        with pytest.raises(InputError, match=match):
            load_dvs_gesture(gesture_folder, tuning=2)
    (folder_path / "trials_to_test.txt").write_text(tests)
    (folder_path / "user24_led_labels.csv").unlink()
    with pytest.raises(InputError, match=r"there is no file .*user24_led_labels.csv"):
        load_dvs_gesture(gesture_folder, tuning=2)
    (folder_path / "trials_to_train.txt").unlink()
    with pytest.raises(InputError, match=r"there are no files trials_to_train.txt"):
        load_dvs_gesture(gesture_folder)


# the catalogue


def test_every_record_is_complete_and_simulated_ones_say_so() -> None:
    assert catalogue.NAMES == (
        "mnist-dvs",
        "dvs-gesture",
        "cifar10",
        "n-mnist",
        "braille",
        "digits",
        "mnist-dvs-sim",
    )
    for entry in catalogue.DATA_SETS:
        assert entry.what.endswith(".") and len(entry.sizes) == 3 and entry.classes >= 2
        assert (
            entry.simulated
            == ("simulated" in entry.what)
            == (entry.name in ("digits", "mnist-dvs-sim"))
        )
        assert entry.simulated or (entry.address or "").startswith("http")
        assert all(len(md5) == 32 for md5 in entry.archives.values())
    assert catalogue.find("digits").sizes == (moving_digits.TRAINING, moving_digits.TUNING, 597)
    assert sum(catalogue.find("dvs-gesture").sizes[:2]) == dvs_gesture.COMPLETE[0]


def test_data_sets_are_loaded_by_name_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGREESTOP_CACHE", str(tmp_path / "cache"))
    write_n_mnist_folder(tmp_path, 30, 20)
    data = catalogue.load("n-mnist", tmp_path, seed=5, sizes=(10, 5, 8))
    kept = list((tmp_path / "cache").iterdir())
    assert len(kept) == 1
    with monkeypatch.context() as patch:
        patch.setattr(n_mnist, "read_n_mnist", lambda path: pytest.fail("read again"))
        again = catalogue.load("n-mnist", tmp_path, seed=5, sizes=(10, 5, 8))
    np.testing.assert_array_equal(again.pool.inputs, data.pool.inputs)
    np.testing.assert_array_equal(again.pool.labels, data.pool.labels)
    assert not np.array_equal(
        catalogue.load("n-mnist", tmp_path, sizes=(10, 5, 8), cache=False).pool.labels,
        data.pool.labels,
    )
    write_n_mnist(tmp_path / "Train" / "0" / "99999.bin", events((1, 1, True, 5), size=(34, 34)))
    catalogue.load("n-mnist", tmp_path, seed=5, sizes=(10, 5, 8))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_each_recorded_data_set_is_dispatched(
    cifar10_folder: Path, gesture_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGREESTOP_CACHE", str(tmp_path / "cache"))
    assert len(catalogue.load("cifar10", cifar10_folder, tuning=10).tuning) == 10
    assert len(catalogue.load("dvs-gesture", gesture_folder, tuning=2).pool) == 22
    np.savez(tmp_path / "braille7.npz", x=np.zeros((20, 128, 2), bool), y=np.arange(20) % 7)
    assert catalogue.load("braille", tmp_path, sizes=(10, 5, 5)).pool.classes[0] == "Space"


def test_workers_do_not_change_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGREESTOP_CACHE", str(tmp_path))
    made = []

    def simulate(seed: int = 0, steps: int = 2, workers: int = 1) -> EventSplits:
        made.append((seed, steps, workers))
        part = EventData(
            "some", True, np.zeros((2, steps, 1, 1, 1), bool), np.zeros(2, int), ("a",)
        )
        return EventSplits(part, part, part)

    simulated = replace(catalogue.find("digits"), load=simulate, cached=True)
    catalogue.load(simulated, workers=4)
    assert catalogue.load(simulated).pool.steps == 2
    catalogue.load(simulated, seed=3, steps=5)
    assert made == [(0, 2, 4), (3, 5, 1)]


def test_wrong_names_options_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no data set 'mnist'"):
        catalogue.load("mnist")
    with pytest.raises(InputError, match="gesture-sim is part of the reproduction"):
        catalogue.load("gesture-sim")
    with pytest.raises(InputError, match="n-mnist has no option 'views'"):
        catalogue.load("n-mnist", tmp_path, views=3)
    with pytest.raises(InputError, match="no folder is given"):
        catalogue.load("cifar10")
    with pytest.raises(InputError, match=r"there is no .*nowhere: give the folder"):
        catalogue.load("mnist-dvs", tmp_path / "nowhere")
    with pytest.raises(InputError, match="digits needs none: leave it out"):
        catalogue.load("digits", tmp_path)


def test_checks_distinguish_whole_partial_and_damaged_copies(
    cifar10_folder: Path, gesture_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = catalogue.check("cifar10", cifar10_folder)
    assert whole.whole and whole.usable and len(whole.found) == 6
    (cifar10_folder / "cifar-10-binary.tar.gz").write_bytes(b"something else")
    (cifar10_folder / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"")
    damaged = catalogue.check("cifar10", cifar10_folder)
    assert not damaged.usable and len(damaged.problems) == 2 and len(damaged.found) == 5
    assert (
        "not c32a1d4ab5d03f1284b67883e8d87530" in damaged.problems[0]
        and "has 0 bytes" in damaged.problems[1]
    )

    monkeypatch.setattr(dvs_gesture, "COMPLETE", (66, 22))
    assert catalogue.check("dvs-gesture", gesture_folder).whole
    monkeypatch.setattr(dvs_gesture, "COMPLETE", (66, 23))
    partial = catalogue.check("dvs-gesture", gesture_folder)
    assert (
        partial.usable
        and not partial.whole
        and "22 of 23 gestures of the test part" in partial.problems[0]
    )
    (gesture_folder / "DvsGesture" / "user03_led.aedat").write_text("nothing")
    assert "1 files are damaged" in catalogue.check("dvs-gesture", gesture_folder).problems[0]

    folder = tmp_path / "digits"
    write_n_mnist_folder(folder, 10, 5)
    for digit in range(10):
        write_aedat2(folder / f"mnist_{digit}_scale08_0001.aedat", events((0, 0, True, 0)))
    for name in ("n-mnist", "mnist-dvs"):
        result = catalogue.check(name, folder)
        assert result.usable and not result.whole and len(result.problems) == 1
    (folder / "Train" / "3" / "00003.bin").write_bytes(b"123456")
    (folder / "mnist_9_scale08_0001.aedat").write_text("nothing")
    for name in ("n-mnist", "mnist-dvs"):
        result = catalogue.check(name, folder)
        assert not result.usable and "1 files are damaged" in result.problems[1]
    assert not catalogue.check("mnist-dvs-sim", folder).usable
    assert catalogue.check("digits").whole
    assert "no folder is given" in catalogue.check("braille").problems[0]


def test_an_archive_with_the_right_checksum_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Train.zip").write_bytes(b"recordings")
    right = {"Train.zip": hashlib.md5(b"recordings").hexdigest()}
    entry = catalogue.find("n-mnist")
    monkeypatch.setattr(catalogue, "DATA_SETS", (replace(entry, archives=right),))
    result = catalogue.check("n-mnist", tmp_path)
    assert (
        "Train.zip has the right checksum" in result.found[0]
        and "there are no recordings" in result.problems[0]
    )


def test_loading_reports_its_progress_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_n_mnist_folder(tmp_path, 30, 20)
    reports: list[tuple[str, float]] = []
    catalogue.load(
        "n-mnist", tmp_path, cache=False, progress=lambda what, share: reports.append((what, share))
    )
    shares = [share for _, share in reports]
    assert reports[0] == ("n-mnist: training", 0.0) and reports[-1] == ("n-mnist", 1.0)
    assert shares == sorted(shares) and len(shares) > 50
    assert list(dict(reports)) == [
        "n-mnist: training",
        "n-mnist: tuning",
        "n-mnist: pool",
        "n-mnist",
    ]
