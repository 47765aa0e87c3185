"""The studies of streams on small simulated data, and on real data where they are at hand."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the studies train networks, which need PyTorch")
pytest.importorskip("matplotlib", reason="the studies draw figures")
pytest.importorskip("sklearn", reason="the study of transitions needs scikit-learn")

from agreestop.common import no_progress
from benchmarks.spotting import METHODS, SPOTTER
from benchmarks.transitions import STRIDE, WINDOWS, Worn, features, recordings_of, run_transitions
from benchmarks.wake_word import LEVELS, WORD, Spoken, crossings, run_wake_word, tape
from benchmarks.watch import run_watch

DATA = os.environ.get("AGREESTOP_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="AGREESTOP_DATA names no folder with audiomnist.npz and hapt.npz"
)


def check(record: dict[str, Any]) -> None:
    assert set(record["methods"]) == set(METHODS)
    for one in record["methods"].values():
        assert 0 <= one["found"] <= 1 and one["capped"] <= record["cap"]
    assert record["methods"][SPOTTER]["found"] > 0.5
    assert record["methods"][SPOTTER]["capped"] < 3 * record["promised"]
    assert 0 < record["named"]["seconds"] <= record["named"]["seconds_at_end"]


@pytest.mark.slow
def test_a_word_is_spotted_and_the_digit_after_it_named(tmp_path: Path) -> None:
    written = run_wake_word(
        Spoken.simulated(27, 3), 3, tmp_path / "wake-word.json", no_progress, small=True
    )
    record = json.loads(written[0].read_text())
    check(record)
    assert all(path.exists() for path in written) and len(written) == 3
    assert (
        record["c"]["equal"]
        and record["c"]["detections"] > 10
        and record["c"]["flash_of_model"] < record["c"]["flash"]
    )


@pytest.mark.slow
def test_transitions_are_spotted_and_the_posture_after_them_named(tmp_path: Path) -> None:
    written = run_transitions(
        Worn.simulated(24), 3, tmp_path / "transitions.json", no_progress, trees=5
    )
    check(json.loads(written[0].read_text()))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
def test_the_c_code_of_the_long_stream_finds_what_python_finds(tmp_path: Path) -> None:
    pytest.importorskip("nir", reason="agreestop[nir] is not installed")
    watched = run_watch(2000, tmp_path / "watch.json")["watched"]
    assert set(watched) == {"ensemble", "C", "NIR", "torch module"} and watched["C"]["equal"]
    assert (
        all(len(one["parts"]) == 10 for one in watched.values()) and watched["C"]["detections"] > 0
    )


def test_a_tape_says_where_its_words_are() -> None:
    """The bands of simulated digits are loud in the words and in the digits after them."""
    spoken, rng = Spoken.simulated(2, 2), np.random.default_rng(0)
    one = tape(spoken, 1, rng)
    assert len(one.words) == len(one.digits) == 3 and WORD not in one.digits
    assert len(one.inputs) >= 3000
    rises = np.asarray(one.inputs[:, :, LEVELS > 100, 0].any(axis=2))  # (T, bands)
    for start, end in one.words:
        own, before = (
            rises[start:end, 2 * WORD : 2 * WORD + 2],
            rises[max(start - 25, 0) : start, 2 * WORD : 2 * WORD + 2],
        )
        assert own.any() and not before.any()


def test_events_are_crossings_of_levels() -> None:
    mel = np.array([[0], [200], [200], [100], [0]], dtype=np.uint8)
    found = crossings(mel)[:, 0]
    assert found.shape == (5, len(LEVELS), 2)
    assert found[:, :, 0].sum(axis=1).tolist() == [0, len(LEVELS), 0, 0, 0]
    assert found[:, :, 1].sum(axis=1).tolist() == [
        0,
        0,
        0,
        (LEVELS >= 100).sum(),
        (LEVELS < 100).sum(),
    ]


def test_features_see_the_past_alone() -> None:
    x = np.random.default_rng(0).normal(size=(400, 6))
    own = features(x)
    changed = x.copy()
    changed[200:] += 5
    steps = 200 // STRIDE
    assert np.array_equal(features(changed)[:steps], own[:steps]) and not np.allclose(
        features(changed)[steps:], own[steps:]
    )
    last = x[400 - WINDOWS[0] :]
    assert own[-1, :6] == pytest.approx(last.mean(axis=0), abs=1e-5) and own[
        -1, 6:12
    ] == pytest.approx(last.std(axis=0), abs=1e-5)


@needs_data
def test_real_recordings_have_the_events_that_their_pages_state() -> None:
    every = recordings_of(Worn.load(Path(DATA or "")))
    assert len({one.person for one in every}) == 30 and len(every) == 61
    assert sum(len(one.events) for one in every) > 300
    spoken = Spoken.load(Path(DATA or ""))
    assert len(spoken.label) == 30_000 and len(np.unique(spoken.speaker)) == 60
