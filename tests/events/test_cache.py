"""The cache of frames: frames are found again, damaged files are made again, and several runs may
share the cache.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreestop.events import EventData, Events, EventSplits
from agreestop.events.datasets import catalogue
from agreestop.events.datasets.catalogue import CacheWarning, cache_folder, cached, fingerprint

KEY = "0123abcd"


def make(kind: Any = np.bool_, seed: int = 0) -> EventSplits:
    rng = np.random.default_rng(seed)

    def part(name: str, n: int, held: int | None) -> EventData:
        inputs = rng.integers(0, 2 if kind is np.bool_ else 200, (n, 1, 3, 5, 7)).astype(kind)
        return EventData(
            f"some, {name}",
            True,
            inputs,
            rng.integers(0, 2, n),
            ("a", "bé"),
            "events are simulated",
            held,
        )

    return EventSplits(part("training", 5, 80), part("tuning", 3, None), part("pool", 4, None))


def fail() -> EventSplits:
    pytest.fail("made again")


def assert_same(one: EventSplits, other: EventSplits) -> None:
    for name in ("training", "tuning", "pool"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.inputs.dtype == theirs.inputs.dtype
        np.testing.assert_array_equal(mine.inputs, theirs.inputs)
        np.testing.assert_array_equal(mine.labels, theirs.labels)
        for word in ("name", "simulated", "classes", "description", "held"):
            assert getattr(mine, word) == getattr(theirs, word)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.float32])
def test_frames_are_read_from_the_cache(kind: Any, tmp_path: Path) -> None:
    made = cached(tmp_path / "new", KEY, lambda: make(kind))
    found = cached(tmp_path / "new", KEY, fail)
    assert_same(made, make(kind))
    assert_same(found, made)
    array = (
        found.pool.inputs.indices if isinstance(found.pool.inputs, Events) else found.pool.inputs
    )
    assert not array.flags.writeable and not array.flags.owndata  # it is mapped
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"{KEY}.npz"]


def spoil(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    return {
        "cut": content[:-1],
        "empty": b"",
        "bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "start": b"\xff" * 64 + content[64:],
        "text": b"hello\n" * 100,
        "half": content[:middle],
    }[how]


@pytest.mark.parametrize("how", ["cut", "empty", "bit", "start", "text", "half"])
def test_a_damaged_file_causes_one_warning_and_is_made_again(how: str, tmp_path: Path) -> None:
    made = cached(tmp_path, KEY, make)
    path = tmp_path / f"{KEY}.npz"
    path.write_bytes(spoil(path.read_bytes(), how))
    with pytest.warns(CacheWarning, match="frames are made again") as caught:
        assert_same(cached(tmp_path, KEY, make), made)
    assert len(caught) == 1
    assert_same(cached(tmp_path, KEY, fail), made)


def test_the_file_of_another_key_is_not_taken(tmp_path: Path) -> None:
    cached(tmp_path, "other", lambda: make(seed=1))
    (tmp_path / "other.npz").rename(tmp_path / f"{KEY}.npz")
    with pytest.warns(CacheWarning, match="was made from other files"):
        assert_same(cached(tmp_path, KEY, make), make())


def test_a_cache_that_cannot_be_used_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(CacheWarning, match="not kept for the next time") as caught:
        assert_same(cached(tmp_path / "file", KEY, make), make())
    assert len(caught) == 1
    (tmp_path / f"{KEY}.npz").mkdir()
    with pytest.warns(CacheWarning) as caught:
        assert_same(cached(tmp_path, KEY, make), make())
    assert "is a folder, a pipe or a device" in str(caught[0].message) and "not kept" in str(
        caught[1].message
    )


def test_a_run_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        cached(tmp_path, KEY, lambda: 1 // 0)  # type: ignore[arg-type,return-value]

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path, KEY, make)
    assert not list(tmp_path.iterdir())


def test_runs_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as runs:
        for data in runs.map(
            lambda number: cached(tmp_path, f"key{number % 2}", lambda: make(seed=number % 2)),
            range(60),
        ):
            assert len(data.pool) == 4
    for number in (0, 1):
        assert_same(cached(tmp_path, f"key{number}", fail), make(seed=number))
    assert len(list(tmp_path.iterdir())) == 2


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AGREESTOP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == tmp_path / ".cache" / "agreestop"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert cache_folder() == tmp_path / ".cache" / "agreestop"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "shared" / "agreestop"
    cached(None, KEY, make)
    assert (tmp_path / "shared" / "agreestop" / f"{KEY}.npz").is_file()
    monkeypatch.setenv("AGREESTOP_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_other_settings_and_other_files_make_another_key(tmp_path: Path) -> None:
    one, two = tmp_path / "one.bin", tmp_path / "two.bin"
    for path in (one, two):
        path.write_bytes(b"1234")
        os.utime(path, ns=(0, 10**9))
    keys = [fingerprint({"steps": 80}, (one, two), tmp_path)]
    assert fingerprint({"steps": 80}, (two, one), tmp_path) == keys[0]
    keys.append(fingerprint({"steps": 40}, (one, two), tmp_path))
    keys.append(fingerprint({"steps": 80}, (one,), tmp_path))
    os.utime(two, ns=(0, 10**9 + 1))
    keys.append(fingerprint({"steps": 80}, (one, two), tmp_path))
    two.write_bytes(b"12345")
    os.utime(two, ns=(0, 10**9))
    keys.append(fingerprint({"steps": 80}, (one, two), tmp_path))
    two.rename(tmp_path / "three.bin")
    keys.append(fingerprint({"steps": 80}, (one, tmp_path / "three.bin"), tmp_path))
    assert len(set(keys)) == len(keys)
