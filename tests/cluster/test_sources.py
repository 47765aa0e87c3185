"""Shards cover every recording once, and what is wrong with a source is said in a sentence."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.cluster import Actors, pool, sources
from agreestop.cluster.pool import connected
from agreestop.cluster.sources import count_rows, find_files, open_recordings, plan_shards

from .conftest import Work

SHAPE = (8,)


@pytest.mark.parametrize("rows", [1, 256, 257, 1000, None])
def test_shards_cover_every_recording_once_and_begin_with_a_batch(rows: int | None) -> None:
    counts = [("a", 1000), ("b", 0), ("c", 257), ("d", 70_000)]
    shards = plan_shards(counts, rows)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert [
        number
        for shard in shards
        for number in range(shard.first, shard.first + shard.end - shard.begin)
    ] == list(range(71_257))
    assert all(shard.begin % 256 == 0 for shard in shards)
    blocks = [block for shard in shards for block in shard.blocks()]
    assert sum(end - begin for begin, end in blocks) == 71_257 and all(
        begin % 256 == 0 for begin, _ in blocks
    )


def test_a_billion_recordings_make_a_number_of_files_that_a_folder_can_hold() -> None:
    assert len(plan_shards([(str(number), 10**6) for number in range(1000)])) <= 12_000


def test_files_are_found_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.npz", "a.npz", "c.parquet", "_plan.json", ".x.npz", "notes.txt"):
        (tmp_path / name).touch()
    names = ["a.npz", "b.npz", "c.parquet"]
    assert [Path(file).name for file in find_files(tmp_path)] == names
    assert [Path(file).name for file in find_files(f"{tmp_path}/*.npz")] == names[:2]
    assert [
        Path(file).name for file in find_files([tmp_path / "c.parquet", tmp_path / "a.npz"])
    ] == ["c.parquet", "a.npz"]
    with pytest.raises(ag.InputError, match=r"a\.npz is given twice"):
        find_files([tmp_path, tmp_path / "a.npz"])
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x.npz").symlink_to(tmp_path / "a.npz")
    for same in (tmp_path / "links" / "x.npz", tmp_path / "links" / ".." / "a.npz"):
        with pytest.raises(ag.InputError, match=r"a\.npz is given twice"):
            find_files([tmp_path / "a.npz", same])
    with pytest.raises(ag.InputError, match=r"notes\.txt is neither"):
        find_files(tmp_path / "notes.txt")
    with pytest.raises(ag.InputError, match="there is no file"):
        find_files(tmp_path / "nothing.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ag.InputError, match="holds no recordings"):
        find_files(tmp_path / "empty")


def test_rows_are_counted_without_reading_the_events(work: Work, tmp_path: Path) -> None:
    work.events.save(tmp_path / "sparse.npz")
    np.savez(tmp_path / "dense.npz", inputs=np.zeros((7, 3, 2), bool))
    assert [count_rows(str(tmp_path / name)) for name in ("sparse.npz", "dense.npz")] == [1100, 7]
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    np.savez(tmp_path / "negative.npz", shape=np.array([-5, 3, 2]))
    for name, words in (
        ("damaged", "is not a whole file of events"),
        ("negative", "cannot be used: inputs has shape"),
    ):
        with pytest.raises(ag.InputError, match=rf"{name}\.npz {words}"):
            count_rows(str(tmp_path / f"{name}.npz"))


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_file_that_lost_rows_since_the_job_began_is_refused(
    work: Work, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        work.events.save(path)
    else:
        pytest.importorskip(
            "pyarrow", reason="files of recordings need pyarrow (the extra cluster)"
        )
        ag.cluster.save_recordings(path, work.events)
    file = open_recordings(str(path), SHAPE)
    assert len(file.read(1024, 1100).events) == 76
    with pytest.raises(ag.InputError, match="has 1100 recordings, and had at least"):
        file.read(1024, 1101)


def test_headers_that_lie_about_the_number_of_rows_are_refused_at_once(tmp_path: Path) -> None:
    path, x = tmp_path / "some.npz", np.zeros((10, 5, 4), bool)
    # a dense file, with an array that only sparse ones need
    np.savez(path, inputs=x, shape=np.array([3, 5, 4]))
    assert count_rows(str(path)) == 10 == len(ag.events.load(path))
    np.savez(path, inputs=np.packbits(x), inputs_shape=np.array(x.shape))
    assert count_rows(str(path)) == 10
    sparse = {"indices": np.zeros(0, np.uint8), "pointers": np.zeros(51, np.int64)}
    for arrays in (
        {"inputs": np.packbits(x), "inputs_shape": np.array([2**40, 5, 4])},
        {**sparse, "shape": np.array([2**40, 5, 4])},
        {**sparse, "shape": np.array([-10, 5, 4])},
        {**sparse, "shape": np.array([3, 5, 4])},
        {**sparse, "shape": np.zeros(10**7, np.int64)},
        sparse,
        {"labels": np.zeros(10)},
    ):
        np.savez_compressed(path, **arrays)
        with pytest.raises(ag.InputError, match=r"some\.npz (cannot|is not)"):
            count_rows(str(path))
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(ag.InputError, match="a pipe"):
        count_rows(str(tmp_path / "pipe.npz"))


@pytest.mark.parametrize("missing", ["ray", "pyarrow"])
def test_without_its_packages_a_sentence_says_what_to_install(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    # any module will do in its place
    monkeypatch.setitem(sys.modules, "ray", sys if missing == "pyarrow" else None)
    monkeypatch.setitem(sys.modules, "ray.exceptions", sys if missing == "pyarrow" else None)
    if missing == "pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ag.InputError, match="not installed"):
        ag.cluster.decide(work.rule, work.ensemble, tmp_path, tmp_path / "out")


WRONG = [
    "",
    " ",
    "LOCAL",
    "local ",
    "localhost",
    "nowhere",
    "ray://",
    "http://10.0.0.1:6379",
    ":6379",
    "10.0.0.1:",
    "10.0.0.1:port",
]
WRONG += ["10.0.0.1:99999", "10.0.0.1:0", "a b:6379", "::1:6379", "x" * 400]


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"", None])
def test_a_server_that_is_not_ray_is_refused_at_once(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers otherwise, closes the connection, or says nothing."""
    monkeypatch.setattr(pool, "SECONDS_TO_CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as stream:
                stream.recv(100)
                stream.sendall(answer or b"")
                if answer is None:
                    stream.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        nothing = SimpleNamespace(is_initialized=lambda: False)  # Ray is not asked
        with (
            pytest.raises(ag.InputError, match=f"there is no Ray cluster at ray://{address}: "),
            connected(nothing, Actors(f"ray://{address}")),
        ):
            pass
        thread.join()


@pytest.mark.parametrize("error", [ConnectionError("no token"), RuntimeError("no token")])
def test_a_cluster_that_refuses_the_driver_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(pool, "_answers", lambda host, port: True)

    def init(**options: Any) -> None:
        raise error

    for address, sentence in (
        ("127.0.0.1:6379", r"a server answers at 127\.0\.0\.1:6379.*RAY_AUTH_TOKEN"),
        ("auto", "no Ray cluster at auto"),
    ):
        with (
            pytest.raises(ag.InputError, match=sentence),
            connected(SimpleNamespace(is_initialized=lambda: False, init=init), Actors(address)),
        ):
            pass


@pytest.mark.parametrize(
    "given",
    [{"address": address} for address in WRONG]
    + [{"count": 0}, {"cpus": 0}, {"gpus": -1}, {"gpus": 1.5}],
)
def test_actors_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ag.InputError, match=r"give|needed"):
        Actors(**given)


class TestParquet:
    """Recordings in Parquet files."""

    pa: Any
    pq: Any

    @pytest.fixture(autouse=True)
    def need_arrow(self) -> None:
        type(self).pq = pytest.importorskip(
            "pyarrow.parquet", reason="files of recordings need pyarrow (the extra cluster)"
        )
        type(self).pa = pytest.importorskip("pyarrow")

    @pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
    def test_events_come_back_as_they_were(self, tmp_path: Path, dtype: Any) -> None:
        x = (
            np.random.default_rng(0).random((700, 5, 2, 3))
            * 4
            * (np.random.default_rng(1).random((700, 5, 2, 3)) < 0.3)
        ).astype(dtype)
        ids = [f"recording {row}" for row in range(700)]
        ag.cluster.save_recordings(
            tmp_path / "a.parquet", ag.events.Events.from_dense(x, np.arange(700) % 4), ids
        )
        assert count_rows(str(tmp_path / "a.parquet")) == 700
        file = open_recordings(str(tmp_path / "a.parquet"), (2, 3))
        for begin, end in ((0, 700), (3, 4), (256, 600)):
            part = file.read(begin, end)
            assert part.events.dtype == dtype and np.array_equal(
                part.events.to_dense(), x[begin:end]
            )
            assert part.carried["id"].tolist() == ids[begin:end] and part.carried[
                "label"
            ].tolist() == [row % 4 for row in range(begin, end)]

    def test_an_array_is_written_as_its_events(self, work: Work, tmp_path: Path) -> None:
        part = work.events.rows(slice(0, 9))
        ag.cluster.save_recordings(tmp_path / "a.parquet", part.to_dense())
        assert np.array_equal(
            open_recordings(str(tmp_path / "a.parquet"), SHAPE).read(0, 9).events.to_dense(),
            part.to_dense(),
        )

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"ids": [1, 2, 1]}, "two recordings have the same id"),
            ({"ids": [1, 2]}, "ids has 2 entries"),
            ({"groups": ["a", "b"]}, r"groups has shape \(2,\)"),
            ({"groups": [0.5, 1, 2]}, "groups has shape .* float64"),
        ],
    )
    def test_wrong_ids_and_groups_are_not_written(
        self, work: Work, tmp_path: Path, given: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(ag.InputError, match=sentence):
            ag.cluster.save_recordings(
                tmp_path / "a.parquet", work.events.rows(slice(0, 3)), **given
            )
        assert not list(tmp_path.iterdir())

    def test_rows_are_found_across_row_groups(self, work: Work, tmp_path: Path) -> None:
        ag.cluster.save_recordings(tmp_path / "a.parquet", work.events)
        self.pq.write_table(
            self.pq.read_table(tmp_path / "a.parquet"), tmp_path / "b.parquet", row_group_size=100
        )
        part = open_recordings(str(tmp_path / "b.parquet"), SHAPE).read(256, 777)
        assert np.array_equal(part.events.to_dense(), work.events.rows(slice(256, 777)).to_dense())

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"counts": None}, "has no column counts"),
            ({"counts": [[1, 1], [1]]}, "T must be the same for all rows"),
            ({"counts": [[1, 1], [1, 2]]}, "must add up to the number of its indices"),
            ({"counts": [[1, 1], [3, -1]]}, "must add up to the number of its indices"),
            ({"counts": [2, 2]}, "a list of numbers for each row is needed"),
            ({"counts": [[1, 1], None]}, "nulls: integers are needed"),
            ({"indices": [[0.5, 1], [2, 3]]}, "integers are needed"),
            ({"indices": [[0, 1], [2, 8]]}, "8"),
            ({"values": [[1.0], [1.0, 2.0]]}, "as many values as indices"),
            ({"values": [["a", "b"], ["a", "b"]]}, "numbers are needed"),
            ({"values": [[1.0, 0.0], [1.0, 2.0]]}, "0"),
            ({"id": [1.5, 2.5]}, "the column id"),
            ({"label": ["a", "b"]}, "the column label"),
        ],
    )
    def test_wrong_columns_are_refused(
        self, tmp_path: Path, change: dict[str, Any], sentence: str
    ) -> None:
        columns = {"counts": [[1, 1], [2, 0]], "indices": [[0, 1], [2, 3]]} | change
        self.pq.write_table(
            self.pa.table({name: value for name, value in columns.items() if value is not None}),
            tmp_path / "a.parquet",
        )
        with pytest.raises(ag.InputError, match=sentence) as error:
            open_recordings(str(tmp_path / "a.parquet"), SHAPE).read(0, 2)
        assert "a.parquet" in str(error.value)

    @pytest.mark.parametrize("portion", [1, 100, 10**6])
    @pytest.mark.parametrize("text", [False, True])
    def test_an_id_that_two_recordings_share_is_named(
        self, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion: int, text: bool
    ) -> None:
        monkeypatch.setattr(sources, "ROWS_OF_IDS", portion)
        ids = np.arange(10, 40).astype(str if text else np.int64)
        for name, rows in (("a", slice(0, 10)), ("b", slice(10, 20)), ("c", slice(20, 30))):
            ag.cluster.save_recordings(
                tmp_path / f"{name}.parquet", work.events.rows(rows), ids[rows]
            )
        files = [str(tmp_path / f"{name}.parquet") for name in "abc"]
        sources.check_ids(files)
        ids[24] = ids[3]
        ag.cluster.save_recordings(
            tmp_path / "c.parquet", work.events.rows(slice(20, 30)), ids[20:]
        )
        with pytest.raises(ag.InputError, match=r"a\.parquet, row 3 and .*c\.parquet, row"):
            sources.check_ids(files)
