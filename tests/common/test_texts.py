"""Texts never multiply memory: an array gives each the room of the longest, so lengths are checked
before one is made.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.cli import main
from agreestop.common import InputError, as_array, as_texts
from agreestop.decide import save_spikes
from agreestop.decide.scores import load_spikes

MOST = 60 * 2**20  # bytes that a refusal may take; the arrays would have taken gigabytes
SCORES = ag.simulate_scores(300)
GROUPED = ag.AgreeStop(0.9, (20, 40), 1).calibrate(SCORES, groups=np.arange(300) % 2)


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail where more than MOST bytes are taken. numpy reports its arrays here."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def uneven(n: int, length: int) -> list[str]:
    return [*map(str, range(n - 1)), "x" * length]


def with_field(name: str, value: Any) -> ag.Scores:
    """The scores with one field replaced, by anything."""
    return replace(SCORES, **{name: value})


REFUSED: dict[str, Callable[[], Any]] = {
    "a long id among 100,000": lambda: as_array(uneven(100_000, 10_000), "ids"),
    "a long text among numbers": lambda: as_array(
        [[1.0, 2.0]] * 5_000 + [[1.0, "x" * 10**6]], "log_confidence"
    ),
    "bytes": lambda: as_array([b"a"] * 100_000 + [b"x" * 10**5], "ids"),
    "a column of pandas": lambda: as_texts(np.array(uneven(100_000, 10_000), object), "ids"),
    "an id of scores": lambda: with_field("ids", uneven(300, 10**6)),
    "a group": lambda: ag.AgreeStop(0.9, (20, 40), 1).calibrate(SCORES, groups=uneven(300, 10**6)),
    "the group of a new input": lambda: GROUPED.decide(SCORES, groups=uneven(300, 10**6)),
    "a class": lambda: with_field("classes", uneven(SCORES.log_confidence.shape[3], 10**6)),
    "a class of events": lambda: ag.events.Events.from_dense(
        np.ones((2, 3, 4), bool), [0, 1], uneven(2000, 10**6)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_too_long_is_refused_before_an_array_is_made(name: str) -> None:
    with little_memory(), pytest.raises(InputError, match=r"holds a text of [\d,]+ characters"):
        REFUSED[name]()


def test_a_text_much_longer_than_the_others_is_refused() -> None:
    with little_memory(), pytest.raises(InputError, match="100,000 texts, of which one has 900"):
        as_array(uneven(100_000, 900), "ids")
    assert as_array(uneven(1_000, 900), "ids").shape == (1_000,)  # 4 MB
    assert as_array(["x" * 40] * 10_000, "ids").dtype == np.dtype("U40")


def test_a_line_of_3_megabytes_in_a_file_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ag.save_scores(tmp_path / "scores.npz", SCORES)
    (tmp_path / "groups.txt").write_text("\n".join(uneven(300, 3 * 10**6)))
    words = [
        "calibrate",
        "scores.npz",
        "--checkpoints",
        "20,40",
        "--groups",
        "groups.txt",
        "-o",
        "a.rule",
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agreestop", *words])
    with little_memory(), pytest.raises(SystemExit) as ended:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert (
        ended.value.code == 2
        and "groups.txt holds a text of 3,000,000 characters" in said
        and not Path("a.rule").exists()
    )


@pytest.mark.parametrize("kind", ["equal values", "one long recording", "texts"])
def test_a_parquet_file_of_a_kilobyte(kind: str, tmp_path: Path) -> None:
    """Equal values take next to nothing in the file: 965 bytes became 2.2 GB."""
    pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    pytest.importorskip("torch", reason="agreestop.cluster needs PyTorch")
    import pyarrow.parquet as pq

    from agreestop.cluster.sources import check_ids, count_rows, open_recordings

    rows, steps = {
        "equal values": (2**23, 1),
        "one long recording": (1, 2**25),
        "texts": (3000, 1),
    }[kind]
    ends = np.arange(rows + 1) * steps
    columns: dict[str, Any] = {
        "counts": pa.LargeListArray.from_arrays(ends, pa.array(np.zeros(rows * steps, np.int32)))
    }
    columns["indices"] = pa.LargeListArray.from_arrays(
        np.zeros(rows + 1, np.int64), pa.array(np.zeros(0, np.uint16))
    )
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 10**6 if kind == "texts" else "a"])
    )
    columns["id"] = texts
    path = str(tmp_path / "bomb.parquet")
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=rows)
    assert Path(path).stat().st_size < 100_000
    del columns, texts
    before = pa.total_allocated_bytes()
    with little_memory():
        check_ids([path])
        with pytest.raises(
            InputError, match="times its size" if kind != "texts" else "the column id holds a text"
        ):
            assert count_rows(path) == rows
            open_recordings(path, (4,)).read(0, rows)
    assert pa.total_allocated_bytes() - before < MOST


def test_an_honest_parquet_file_of_sparse_recordings(tmp_path: Path) -> None:
    """Long recordings with few events take little in the file, too."""
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    pytest.importorskip("torch", reason="agreestop.cluster needs PyTorch")
    from agreestop.cluster.sources import open_recordings

    rng = np.random.default_rng(0)
    n, steps = 2000, 5000
    steps_with_events = np.unique(rng.integers(n * steps, size=10 * n))
    pointers = np.searchsorted(steps_with_events, np.arange(n * steps + 1))
    recordings = ag.events.Events(
        np.full(len(steps_with_events), 3, np.uint16), pointers, None, (n, steps, 4)
    )
    ag.cluster.save_recordings(
        tmp_path / "a.parquet", recordings, ids=[f"recording {row}" for row in range(n)]
    )
    found = open_recordings(str(tmp_path / "a.parquet"), (4,)).read(0, n)
    assert (
        np.array_equal(found.events.indices, recordings.indices)
        and found.carried["id"][7] == "recording 7"
    )


# ---- what is saved can be loaded


def test_scores_that_compress_too_well_are_saved_as_they_are(tmp_path: Path) -> None:
    """A reader refuses a file that unpacks to more than 200 times its size, so none is written."""
    flat = ag.Scores(np.full((2000, 80, 3, 10), -1.0, np.float32), None, tuple(range(1, 81)))
    ag.save_scores(tmp_path / "flat.npz", flat)
    assert np.array_equal(ag.load_scores(tmp_path / "flat.npz").log_confidence, flat.log_confidence)
    silent = np.zeros((1000, 80, 8, 10), bool)
    save_spikes(tmp_path / "silent.npz", silent)
    assert np.array_equal(load_spikes(tmp_path / "silent.npz").spikes, silent)
    ag.save_scores(tmp_path / "usual.npz", SCORES)  # compressed, as before
    assert (tmp_path / "usual.npz").stat().st_size < SCORES.log_confidence.nbytes


NAMES = tuple(map(str, range(SCORES.log_confidence.shape[3])))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", ("\ud800", *NAMES[1:])),
        ("classes", ("0\0", *NAMES[1:])),
        ("engine", "\ud800"),
        ("engine", 5),
        ("ensemble_digest", None),
        ("ids", ["\ud800"] * 300),
        ("times", (*SCORES.times[:-1], 10**30)),
        ("times", (*SCORES.times[:-1], 1e300)),
    ],
)
def test_what_a_file_could_not_give_back_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError):
        with_field(field, value)


def test_a_rule_that_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    rule = ag.AgreeStop(0.9, (20, 40), 1).calibrate(SCORES)
    rule.save(tmp_path / "a.rule")
    before = (tmp_path / "a.rule").read_bytes()
    with pytest.raises(InputError, match="cannot be kept in a file"):
        replace(rule, n=2**63).save(tmp_path / "a.rule")
    with pytest.raises(InputError, match="cannot be kept in a file"):
        replace(rule, class_names=("\ud800", *NAMES[1:])).save(tmp_path / "a.rule")
    assert (tmp_path / "a.rule").read_bytes() == before
