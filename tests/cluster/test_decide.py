"""Decisions on a cluster are those of one machine, whatever dies in between. A stand-in for Ray
runs the actors in this process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import agreestop as ag
from agreestop.cluster import Actors, decisions, pool
from agreestop.cluster.parts import PartSummary, columns_of_run, part_path, read_part, write_part
from agreestop.cluster.pool import run_on_actors
from agreestop.cluster.sources import STEP_SHAPE, ParquetFile

from .conftest import Work
from .fake_ray import FakeRay

pq = pytest.importorskip(
    "pyarrow.parquet", reason="files of recordings need pyarrow (the extra cluster)"
)
Files = Callable[[str], list[Path]]


def same(found: ag.Decisions, expected: ag.Decisions) -> bool:
    names = ("stop_index", "sets", "best", "first_risk")
    equal = all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in names)
    return equal and found.notes == expected.notes and found.reuse == expected.reuse


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("out", ["decisions.parquet", "decisions"])
def test_decisions_are_those_of_one_machine(
    work: Work,
    in_files: Files,
    tmp_path: Path,
    use: Callable[[FakeRay], FakeRay],
    suffix: str,
    out: str,
) -> None:
    use(FakeRay())
    source = in_files(suffix)
    run = ag.cluster.decide(work.rule_file, work.members, source, tmp_path / out, shard_rows=256)
    expected = work.ensemble.decide(work.rule, work.events)
    assert same(ag.cluster.load_decisions(tmp_path / out, work.rule), expected.decisions)
    assert (run.recordings, run.shards, run.resumed, run.damaged, run.reuse) == (1100, 6, 0, (), "")
    assert (
        run.mean_time == expected.decisions.stop_time.mean()
        and run.mean_computed == expected.computed.mean()
    )
    table = pq.read_table(tmp_path / out)
    assert table["row"].to_pylist() == list(range(1100))
    assert table["label"].to_pylist() == work.events.labels.tolist()  # type: ignore[union-attr]
    assert suffix == ".npz" or table["id"].to_pylist() == list(range(5000, 6100))
    assert not (tmp_path / "decisions.parquet.parts").exists()


def test_answers_of_each_depth_of_a_tree_are_refused(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    scores = replace(work.ensemble.score(work.events.rows(slice(0, 100))), classes=("a", "b", "c"))
    tree = ag.Tree({"one": ("a", "b"), "c": None})
    rule = ag.AgreeStop(0.8, scores.times, 1, tree=tree, depth="each").calibrate(scores)
    with pytest.raises(ag.InputError, match="one answer"):
        ag.cluster.decide(rule, work.members, tmp_path / "none.npz", tmp_path / "out")


def test_a_folder_that_is_not_whole_is_refused(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source, out = in_files(".npz"), tmp_path / "out"
    ag.cluster.decide(work.rule, work.ensemble, source, out, shard_rows=256)
    stray, part = part_path(out, 99), part_path(out, 2)
    shutil.copy(part, stray)
    with pytest.raises(ag.InputError, match=r"part-000099\.parquet is not of the job"):
        ag.cluster.load_decisions(out, work.rule)
    stray.rename(part)
    ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "other", shard_rows=512)
    whole = part.read_bytes()
    shutil.copy(part_path(tmp_path / "other", 1), part)
    with pytest.raises(ag.InputError, match=r"part-000002\.parquet is not a whole file"):
        ag.cluster.load_decisions(out, work.rule)
    part.unlink()
    with pytest.raises(ag.InputError, match="not hold all decisions, as some of its"):
        ag.cluster.load_decisions(out, work.rule)
    part.write_bytes(whole)
    assert len(ag.cluster.load_decisions(out, work.rule)) == 1100
    for plan in (
        "",
        "[]",
        '{"key": 1, "parts": "x"}',
        '{"key": "1", "parts": [null]}',
        "[" * 100_000,
    ):
        (out / "_plan.json").write_text(plan)
        with pytest.raises(ag.InputError, match="as its job is not finished"):
            ag.cluster.load_decisions(out, work.rule)


@pytest.mark.parametrize("after_work", [False, True])
def test_a_worker_that_dies_loses_nothing_and_repeats_nothing(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay], after_work: bool
) -> None:
    """Every second actor dies in its second shard, before or after it wrote its file."""
    calls: dict[int, int] = {}

    def lose(actor: int, method: str, argument: Any) -> bool:
        calls[actor] = calls.get(actor, 0) + (method == "run")
        return method == "run" and actor % 2 == 0 and calls[actor] == 2

    fake = use(FakeRay(lose, after_work))
    run = ag.cluster.decide(
        work.rule, work.ensemble, in_files(".npz"), tmp_path / "out", shard_rows=256
    )
    assert fake.started > 2 and run.recordings == 1100
    assert same(
        ag.cluster.load_decisions(tmp_path / "out", work.rule),
        work.ensemble.decide(work.rule, work.events).decisions,
    )


def test_a_driver_that_was_killed_continues(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    source = in_files(".npz")

    def lose(actor: int, method: str, argument: Any) -> bool:
        if method == "run" and argument.number == 3:
            raise KeyboardInterrupt
        return False

    use(FakeRay(lose))
    with pytest.raises(KeyboardInterrupt):
        ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out", shard_rows=256)
    with pytest.raises(ag.InputError, match="as its job is not finished"):
        ag.cluster.load_decisions(tmp_path / "out", work.rule)
    finished = sorted((tmp_path / "out").glob("part-*"))
    assert 0 < len(finished) < 6
    times = [path.stat().st_mtime_ns for path in finished]
    use(FakeRay())
    run = ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out", shard_rows=256)
    assert run.resumed == len(finished) and run.recordings == 1100
    assert [path.stat().st_mtime_ns for path in finished] == times
    assert same(
        ag.cluster.load_decisions(tmp_path / "out", work.rule),
        work.ensemble.decide(work.rule, work.events).decisions,
    )


@pytest.mark.parametrize("damage", ["short", "changed"])
def test_a_damaged_part_is_decided_again(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay], damage: str
) -> None:
    use(FakeRay())
    source = in_files(".npz")
    ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out", shard_rows=256)
    part = part_path(tmp_path / "out", 2)
    part.write_bytes(part.read_bytes()[:-20] if damage == "short" else _changed(part))
    run = ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out", shard_rows=256)
    assert run.resumed == 5
    assert same(
        ag.cluster.load_decisions(tmp_path / "out", work.rule),
        work.ensemble.decide(work.rule, work.events).decisions,
    )


def test_a_part_whose_summary_counts_other_rows_is_not_used(work: Work, tmp_path: Path) -> None:
    run = work.ensemble.decide(work.rule, work.events.rows(slice(0, 20)))
    summary = PartSummary.of(run.decisions, run.computed, (0, 0))
    columns = columns_of_run([run], 0, np.arange(20, dtype=np.uint64), {})
    for rows, used in ((20, True), (21, False)):
        write_part(tmp_path / "part.parquet", columns, replace(summary, rows=rows), "key", "mark")
        assert (read_part(tmp_path / "part.parquet", "key") is not None) == used


def test_a_damaged_file_of_all_decisions_is_made_again(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source, out = in_files(".npz"), tmp_path / "out.parquet"
    ag.cluster.decide(work.rule, work.ensemble, source, out, shard_rows=256)
    whole = out.read_bytes()
    out.write_bytes(_changed(out))
    ag.cluster.decide(work.rule, work.ensemble, source, out, shard_rows=256)
    assert out.read_bytes() == whole


def _changed(path: Path) -> bytes:
    """The content with some bytes of the first pages changed."""
    content = bytearray(path.read_bytes())
    for index in range(len(content) // 10, len(content) // 10 + 40):
        content[index] ^= 0x5A
    return bytes(content)


@pytest.mark.parametrize("change", ["no ids", "text", "width", "no labels"])
def test_columns_that_differ_between_files_are_refused_before_any_work(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay], change: str
) -> None:
    fake = use(FakeRay())
    parts = work.events.rows(slice(0, 20)), work.events.rows(slice(20, 40))
    if change == "no labels":
        parts[0].save(tmp_path / "a.npz")
        np.savez(tmp_path / "b.npz", inputs=parts[1].to_dense())
    else:
        ids = {
            "no ids": None,
            "text": [f"r{row}" for row in range(20)],
            "width": np.arange(20, 40, dtype=np.int32),
        }[change]
        ag.cluster.save_recordings(tmp_path / "a.parquet", parts[0], ids=np.arange(20))
        ag.cluster.save_recordings(tmp_path / "b.parquet", parts[1], ids=ids)
    with pytest.raises(ag.InputError, match=r"b\.\w+ has .*, but a\.\w+ has .*give all"):
        ag.cluster.decide(
            work.rule, work.ensemble, sorted(tmp_path.glob("[ab].*")), tmp_path / "out"
        )
    assert fake.started == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best", 77),
        ("best", -2),
        ("row", 5),
        ("row", 0.5),
        ("first_risk", "high"),
        ("stop_index", 0.0),
        ("hash", "a"),
        ("stop_time", 0.5),
    ],
)
def test_forged_decisions_are_refused(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay], name: str, value: float | str
) -> None:
    use(FakeRay())
    work.events.rows(slice(0, 20)).save(tmp_path / "a.npz")
    out = tmp_path / "out.parquet"
    ag.cluster.decide(work.rule, work.ensemble, tmp_path / "a.npz", out)
    table = pq.read_table(out)
    assert len(ag.cluster.load_decisions(out, work.rule)) == 20
    pq.write_table(table.set_column(table.column_names.index(name), name, [[value] * 20]), out)
    with pytest.raises(ag.InputError, match="holds no decisions of this rule"):
        ag.cluster.load_decisions(out, work.rule)


@pytest.mark.parametrize("out", ["", "out.parquet"])
def test_decisions_do_not_go_among_the_recordings(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay], out: str
) -> None:
    """A second call would read them as recordings."""
    fake, source = use(FakeRay()), in_files(".npz")
    for given in (tmp_path, [source[0].parent / "." / "b.npz", tmp_path / ".." / tmp_path.name]):
        with pytest.raises(ag.InputError, match="is in the folder of the recordings"):
            ag.cluster.decide(work.rule, work.ensemble, given, tmp_path / out)
    assert fake.started == 0
    if out:
        # files are read by their names
        assert (
            ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / out).recordings == 1100
        )
        assert (
            ag.cluster.decide(
                work.rule, work.ensemble, (path for path in source), tmp_path / "other"
            ).recordings
            == 1100
        )


def test_recordings_are_not_replaced_by_their_decisions(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    fake, path = use(FakeRay()), tmp_path / "a.parquet"
    ag.cluster.save_recordings(path, work.events.rows(slice(0, 20)))
    before = path.read_bytes()
    for source in (path, tmp_path / "*.parquet", [tmp_path / "." / "a.parquet"]):
        with pytest.raises(ag.InputError, match=r"a\.parquet is read and would be replaced"):
            ag.cluster.decide(work.rule, work.ensemble, source, path)
    assert path.read_bytes() == before and fake.started == 0


def test_recordings_of_another_shape_are_refused(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    """The cells of their events are in range, so only the file can tell."""
    use(FakeRay())
    for shape in ((7,), (2, 4)):
        ag.cluster.save_recordings(tmp_path / "a.parquet", np.ones((3, 12, *shape), bool))
        with pytest.raises(ag.InputError, match=r"steps have the shape \((7,|2, 4)\)"):
            ag.cluster.decide(work.rule, work.ensemble, tmp_path / "a.parquet", tmp_path / "out")
    ag.cluster.save_recordings(tmp_path / "a.parquet", work.events.rows(slice(0, 20)))
    assert (
        ag.cluster.decide(
            work.rule, work.ensemble, tmp_path / "a.parquet", tmp_path / "out"
        ).recordings
        == 20
    )
    table = pq.read_table(tmp_path / "a.parquet")
    for forged in (b"8", b"[0]", b"{", b'["x"]', b"[[8]]"):
        pq.write_table(table.replace_schema_metadata({STEP_SHAPE: forged}), tmp_path / "a.parquet")
        with pytest.raises(ag.InputError, match="names no shape of a step"):
            ParquetFile(str(tmp_path / "a.parquet"), (8,))
    # as other tools write it
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "a.parquet")
    assert ParquetFile(str(tmp_path / "a.parquet"), (8,)).read(0, 20).events.shape == (20, 12, 8)


def test_a_file_knows_the_shape_of_a_step_where_the_network_does_not(tmp_path: Path) -> None:
    ag.cluster.save_recordings(tmp_path / "a.parquet", np.ones((3, 5, 2, 4), bool))
    assert ParquetFile(str(tmp_path / "a.parquet"), ()).read(1, 3).events.shape == (2, 5, 2, 4)


def test_decisions_are_read_with_the_rule_that_decided_or_its_file(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    work.events.rows(slice(0, 20)).save(tmp_path / "a.npz")
    expected = work.ensemble.decide(work.rule, work.events.rows(slice(0, 20))).decisions
    other = ag.AgreeStop(0.85, range(1, 13), 1).calibrate(work.ensemble.score(*_examples()))
    for out in (tmp_path / "out.parquet", tmp_path / "out"):
        ag.cluster.decide(work.rule, work.ensemble, tmp_path / "a.npz", out)
        for rule in (work.rule, work.rule_file, str(work.rule_file)):
            assert same(ag.cluster.load_decisions(out, rule), expected)
        with pytest.raises(ag.InputError, match="holds no decisions of this rule"):
            ag.cluster.load_decisions(out, other)
    with pytest.raises(ag.InputError, match="out is of type CalibratedRule"):
        ag.cluster.load_decisions(cast(Any, work.rule), cast(Any, tmp_path / "out"))
    (tmp_path / "out.csv").write_text("input,stop_time\n")
    with pytest.raises(ag.InputError, match=r"does not end in \.parquet"):
        ag.cluster.load_decisions(tmp_path / "out.csv", work.rule)
    with pytest.raises(ag.InputError, match=r"out\.csv, and only the command line"):
        ag.cluster.decide(work.rule, work.ensemble, tmp_path / "a.npz", tmp_path / "out.csv")


def test_arguments_in_another_order_are_named(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    with pytest.raises(ag.InputError, match="a folder: give a rule file"):
        ag.cluster.decide(tmp_path, work.ensemble, work.rule_file, tmp_path / "out")
    with pytest.raises(ag.InputError, match="a value of type Events: save them"):
        ag.cluster.decide(work.rule, work.ensemble, cast(Any, work.events), tmp_path / "out")
    with pytest.raises(ag.InputError, match=r"ends in \.parquet"):
        ag.cluster.save_recordings(cast(Any, work.events), cast(Any, tmp_path / "a.parquet"))
    with pytest.raises(ag.InputError, match=r"ends in \.parquet"):
        ag.cluster.save_recordings(tmp_path / "a.npz", work.events)
    for rule in (str(work.rule_file), work.rule, work.ensemble):
        with pytest.raises(ag.InputError, match="give a rule that is to be calibrated"):
            ag.cluster.calibrate(cast(Any, rule), work.ensemble, tmp_path)


@pytest.mark.parametrize(("source", "out"), [(5, "out"), ([None], "out"), ("a.npz", None)])
def test_what_is_no_path_is_refused(
    work: Work, use: Callable[[FakeRay], FakeRay], source: Any, out: Any
) -> None:
    use(FakeRay())
    with pytest.raises(ag.InputError, match="give a path"):
        ag.cluster.decide(work.rule, work.ensemble, source, out)


def test_another_job_does_not_mix_with_what_is_there(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source = in_files(".npz")
    ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out")
    with pytest.raises(ag.InputError, match="decisions of another job"):
        ag.cluster.decide(work.rule, work.ensemble, source[:2], tmp_path / "out")


def test_a_file_of_another_rule_is_decided_again(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source, out = in_files(".npz"), tmp_path / "out.parquet"
    ag.cluster.decide(work.rule, work.ensemble, source, out)
    later = ag.AgreeStop(0.97, range(1, 13), 1).calibrate(work.ensemble.score(*_examples()))
    run = ag.cluster.decide(later, work.ensemble, source, out)
    assert run.resumed == 0
    assert same(
        ag.cluster.load_decisions(out, later), work.ensemble.decide(later, work.events).decisions
    )


def test_inputs_that_end_early_keep_their_ends_in_a_part_of_more(work: Work) -> None:
    x, lengths = work.events.rows(slice(0, 20)).to_dense(), np.arange(20) % 12 + 1
    whole, part = (
        work.ensemble.score(x, lengths=lengths),
        work.ensemble.score(x[8:], lengths=lengths[8:], first=8),
    )
    assert np.array_equal(whole.log_confidence[8:], part.log_confidence)


def test_a_shard_that_ends_its_workers_is_named(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay(lambda actor, method, argument: method == "run" and argument.number == 1))
    with pytest.raises(ag.InputError, match=r"a\.npz, rows 256 to 511 ended 4 workers"):
        ag.cluster.decide(
            work.rule, work.ensemble, in_files(".npz"), tmp_path / "out", shard_rows=256
        )


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_damaged_file_is_named_and_skipped_only_when_asked(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay], suffix: str
) -> None:
    use(FakeRay())
    source = in_files(suffix)
    content = bytearray(source[1].read_bytes())
    middle = (
        content.index(work.events.rows(slice(600, 900)).compact().indices[:100].tobytes())
        if suffix == ".npz"
        else 3000
    )
    content[middle] ^= 1
    source[1].write_bytes(content)
    with pytest.raises(ag.InputError, match=rf"b\{suffix}"):
        ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out", shard_rows=256)
    run = ag.cluster.decide(
        work.rule, work.ensemble, source, tmp_path / "out", shard_rows=256, skip_damaged=True
    )
    assert (
        run.recordings == 800
        and len(run.damaged) == 2
        and all(source[1].name in sentence for sentence in run.damaged)
    )
    rows = [*range(600), *range(900, 1100)]
    # numbers are those in the source
    assert pq.read_table(tmp_path / "out")["row"].to_pylist() == rows
    expected = work.ensemble.decide(work.rule, work.events.rows(rows)).decisions
    assert same(ag.cluster.load_decisions(tmp_path / "out", work.rule), expected)


def test_a_file_without_a_header_is_named_before_any_work(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    fake = use(FakeRay())
    source = in_files(".parquet")
    source[2].write_bytes(source[2].read_bytes()[:500])
    with pytest.raises(ag.InputError, match=r"c\.parquet is not a whole Parquet file"):
        ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out")
    assert fake.started == 0
    run = ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out", skip_damaged=True)
    assert run.recordings == 900 and len(run.damaged) == 1


def test_recordings_that_the_rule_was_calibrated_on_are_noticed(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    rule = work.rule.rule.calibrate(work.ensemble.score(work.events.rows(slice(0, 80))))
    run = ag.cluster.decide(rule, work.ensemble, in_files(".npz"), tmp_path / "out", shard_rows=256)
    assert run.reuse.startswith("80 of the 1100 rows were used for calibration")
    expected = work.ensemble.decide(rule, work.events).decisions.reuse  # it lists the rows too
    assert run.reuse == expected.replace(" (rows 0, 1, 2, 3, 4, …)", "")


def test_the_numbers_of_recordings_reach_randomised_rules(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    """Each recording draws its uniform number by its number in the source, so shards must not count
    from 0.
    """
    use(FakeRay())
    source = in_files(".npz")
    pooling = ag.MergePValues(r=1, form="randomized")
    rule = ag.SpikeCP(0.8, (4, 8, 12), 1, pooling).calibrate(work.ensemble.score(*_examples()))
    ag.cluster.decide(rule, work.ensemble, source, tmp_path / "out", shard_rows=256, first=0)
    expected = work.ensemble.decide(rule, work.events, first=0).decisions
    assert same(ag.cluster.load_decisions(tmp_path / "out", rule), expected)
    from_zero = work.ensemble.decide(rule, work.events.rows(slice(600, 900)), first=0).decisions
    assert not np.array_equal(from_zero.stop_index, expected.stop_index[600:900])
    ag.cluster.decide(rule, work.ensemble, source, tmp_path / "own numbers", shard_rows=256)
    own_numbers = ag.cluster.load_decisions(tmp_path / "own numbers", rule)
    assert not np.array_equal(own_numbers.stop_index, expected.stop_index)
    ag.cluster.decide(rule, work.ensemble, source, tmp_path / "again", shard_rows=256)
    assert same(ag.cluster.load_decisions(tmp_path / "again", rule), own_numbers)


def _examples() -> tuple[np.ndarray, np.ndarray]:
    from .conftest import examples

    return examples(200, 4)


def test_groups_come_from_the_source(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    x, y = _examples()
    groups = np.where(np.arange(1100) % 3, "even", "odd")
    rule = ag.AgreeStop(0.8, range(1, 13), 1).calibrate(
        work.ensemble.score(x, y), groups=np.where(np.arange(200) % 2, "even", "odd")
    )
    ag.cluster.save_recordings(tmp_path / "a.parquet", work.events, groups=groups)
    ag.cluster.decide(rule, work.ensemble, tmp_path / "a.parquet", tmp_path / "out.parquet")
    assert same(
        ag.cluster.load_decisions(tmp_path / "out.parquet", rule),
        work.ensemble.decide(rule, work.events, groups=groups).decisions,
    )


def test_a_worker_without_memory_says_so(use: Callable[[FakeRay], FakeRay]) -> None:
    use(FakeRay())
    (finished,) = run_on_actors(Actors(), _Hungry, ["b.parquet, rows 0 to 9"])
    assert finished.result is None and finished.error.startswith(
        "b.parquet, rows 0 to 9 does not fit into the memory of a worker"
    )


class _Hungry:
    def __call__(self, task: str) -> None:
        raise MemoryError


def test_workers_with_other_versions_are_refused(
    use: Callable[[FakeRay], FakeRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeRay())
    monkeypatch.setattr(pool, "versions", lambda: {"python": "3.9.1", "agreestop": "0.2.0"})
    with pytest.raises(ag.InputError, match=r"a worker on .* has python 3\.\d+\.\d+"):
        list(run_on_actors(Actors(), _Hungry, ["task"]))
    monkeypatch.setattr(pool, "versions", lambda: {"no-such-package": "1.0"})
    with pytest.raises(ag.InputError, match="has no-such-package none and the driver"):
        list(run_on_actors(Actors(), _Hungry, ["task"]))


@pytest.mark.parametrize("given", [{}, {"count": 1}, {"address": "auto"}])
def test_a_cluster_without_room_says_so(
    use: Callable[[FakeRay], FakeRay], monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """A local cluster never grows; another one is given time."""
    monkeypatch.setattr(pool, "SECONDS_FOR_ROOM", -1.0)
    use(FakeRay(cores=2))
    with pytest.raises(ag.InputError, match="no machine of the cluster has room"):
        list(run_on_actors(Actors(cpus=4, **given), _Hungry, ["task"]))


class _Echo:
    def __call__(self, task: int) -> int:
        return task


class _Growing(FakeRay):
    """A cluster whose machines come after a while."""

    def wait(self, refs: Any, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        if self.cores:
            return super().wait(refs, num_returns, timeout)
        self.cores = 3
        return [], list(refs)


def test_a_cluster_may_still_be_starting(
    use: Callable[[FakeRay], FakeRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SECONDS_TO_LOOK", 0.0)
    fake, said = use(_Growing(cores=0)), list[str]()
    found = list(run_on_actors(Actors("auto"), _Echo, range(8), said.append))
    assert sorted(one.result for one in found if one.result is not None) == list(range(8))
    assert fake.started == 3 and said == ["waiting for the first worker to start"]


class _Busy(FakeRay):
    """A cluster in which only the first actor ever starts."""

    def wait(self, refs: Any, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        (first,) = (ref for ref in refs if ref[0].number == 1)
        return [first], []


def test_the_end_does_not_wait_for_actors_that_never_start(
    use: Callable[[FakeRay], FakeRay],
) -> None:
    fake = use(_Busy())
    assert [one.result for one in run_on_actors(Actors(count=2), _Echo, range(3))] == [0, 1, 2]
    assert fake.started == fake.killed == 2


class _TwoMachines(FakeRay):
    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "Resources": {"CPU": 3.0}},
            {"Alive": True, "Resources": {"CPU": 3.0}},
        ]


def test_an_actor_does_not_spread_over_two_machines(use: Callable[[FakeRay], FakeRay]) -> None:
    fake = use(_TwoMachines())
    assert len(list(run_on_actors(Actors(cpus=2), _Echo, range(9)))) == 9
    assert fake.started == 2


def test_workers_that_die_at_their_start_now_and_then_do_not_end_a_long_job(
    use: Callable[[FakeRay], FakeRay],
) -> None:
    calls: dict[int, int] = {}

    def lose(actor: int, method: str, argument: Any) -> bool:
        calls[actor] = calls.get(actor, 0) + 1
        return (method == "prepare" and actor % 2 == 0) or calls[actor] == 3

    fake = use(FakeRay(lose, cores=1))
    assert len(list(run_on_actors(Actors(), _Echo, range(12)))) == 12 and fake.started > 20
    use(FakeRay(lambda actor, method, argument: True, cores=1))
    with pytest.raises(ag.InputError, match="workers cannot start"):
        list(run_on_actors(Actors(), _Echo, range(12)))


@pytest.mark.parametrize("error", [ag.InputError("cannot write out"), MemoryError()])
def test_what_is_no_damage_is_not_skipped(
    work: Work,
    in_files: Files,
    tmp_path: Path,
    use: Callable[[FakeRay], FakeRay],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    use(FakeRay())

    def fail(*_: Any) -> None:
        raise error

    if isinstance(error, MemoryError):
        monkeypatch.setattr(decisions.DecisionWorker, "_decide", fail)
    else:
        monkeypatch.setattr(decisions, "write_part", fail)
    with pytest.raises(ag.InputError, match=r"cannot write out|does not fit"):
        ag.cluster.decide(
            work.rule, work.ensemble, in_files(".npz"), tmp_path / "out", skip_damaged=True
        )


def test_the_engine_is_chosen_from_recordings_that_can_be_read(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source, known = in_files(".npz"), work.ensemble.score(*_examples())
    rule = work.rule.rule.calibrate(ag.Scores(known.log_confidence, known.labels, known.times))
    content = bytearray(source[0].read_bytes())
    content[content.index(work.events.compact().indices[:100].tobytes())] ^= 1
    source[0].write_bytes(content)
    run = ag.cluster.decide(rule, work.ensemble, source, tmp_path / "out", skip_damaged=True)
    assert (run.recordings, len(run.damaged), run.engine) == (500, 1, work.ensemble.engine.name)


def test_recordings_of_another_shape_are_named(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source = in_files(".npz")
    ag.events.Events.from_dense(np.zeros((20, 12, 9), bool), np.zeros(20, int)).save(source[1])
    with pytest.raises(ag.InputError, match=r"b\.npz, rows 0 to 19, cannot be used"):
        ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out")


def test_a_job_that_decided_nothing_keeps_no_folder_from_others(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay(cores=0))
    source = in_files(".npz")
    with pytest.raises(ag.InputError, match="has room"):
        ag.cluster.decide(work.rule, work.ensemble, source, tmp_path / "out")
    use(FakeRay())
    assert (
        ag.cluster.decide(work.rule, work.ensemble, source[:2], tmp_path / "out").recordings == 900
    )
    assert len(ag.cluster.load_decisions(tmp_path / "out", work.rule)) == 900


def test_progress_is_reported(
    work: Work, in_files: Files, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    said: list[tuple[str, float]] = []
    ag.cluster.decide(
        work.rule,
        work.ensemble,
        in_files(".npz"),
        tmp_path / "out",
        shard_rows=256,
        progress=lambda *words: said.append(words),
    )
    assert (
        len(said) == 7 and said[-1][1] == 1 and said[-1][0].startswith("1,100 of 1,100 recordings")
    )
