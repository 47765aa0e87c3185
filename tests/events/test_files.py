"""Event streams in files: what is written is read, and whatever else is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agreestop.common.errors import InputError
from agreestop.events.data import EventData
from agreestop.events.files import load_events, save_events


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = EventData("some", False, rng.random((3, 5, 2, 3, 7)) < 0.3, np.array([1, 0, 1]), ("a", "bé"), "from nowhere")
    save_events(tmp_path / "some.npz", data)
    read = load_events(tmp_path / "some.npz")
    np.testing.assert_array_equal(read.inputs, data.inputs)
    np.testing.assert_array_equal(read.labels, data.labels)
    assert (read.name, read.simulated, read.classes, read.description) == ("some", False, ("a", "bé"), "from nowhere")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_events(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", inputs=np.zeros(3))
    for name in ("text.npz", "other.npz"):
        with pytest.raises(InputError, match="not a whole file of event streams"):
            load_events(tmp_path / name)
    np.savez(tmp_path / "scores.npz", log_confidence=np.zeros(3))
    with pytest.raises(InputError, match="holds scores, not inputs"):
        load_events(tmp_path / "scores.npz")
