"""On a true local cluster of two workers: the same decisions as on one machine, when a worker or
the driver is killed too.

`make cluster` runs these tests; where Ray is missing they are skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import agreestop as ag
from agreestop.cluster import Actors
from agreestop.cluster.pool import run_on_actors

from .conftest import Work
from .test_decide import same

ray = pytest.importorskip("ray", reason="these tests need Ray: run `make cluster`")
pytest.importorskip("pyarrow", reason="files of recordings need pyarrow (the extra cluster)")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]  # warnings of Ray itself are not ours


@pytest.fixture(scope="module", autouse=True)
def one_cluster() -> Iterator[None]:
    """A cluster that most tests share, because starting one takes a while."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


class Process:
    """A worker that gives its process, once two workers are there; it waits a minute at most."""

    def __call__(self, folder: str) -> int:
        (Path(folder) / str(os.getpid())).touch()
        for _ in range(600):
            if len(list(Path(folder).iterdir())) > 1:
                break
            time.sleep(0.1)
        return os.getpid()


class Suicide:
    """A worker that dies in a task the first time."""

    def __call__(self, path: str) -> str:
        if not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return path


def own_actors() -> list[int]:
    """The processes of actors that descend from this one: other clusters on the machine are left
    alone.
    """
    parents, names = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = status.read_text().split(" (", 1)
            names[int(number)] = (status.parent / "cmdline").read_bytes()
            parents[int(number)] = int(rest.rpartition(") ")[2].split()[1])
        except OSError:  # it has ended
            continue

    def descends(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    return [
        process
        for process, name in names.items()
        if name.startswith(b"ray::Actor") and descends(process)
    ]


def test_two_actors_are_two_processes(tmp_path: Path) -> None:
    found = list(run_on_actors(Actors("local", 2), Process, [str(tmp_path)] * 6))
    assert (
        sorted(one.index for one in found) == list(range(6))
        and len({one.result for one in found}) == 2
    )


def test_a_worker_that_dies_in_every_task_is_replaced_every_time(tmp_path: Path) -> None:
    tasks = [str(tmp_path / str(number)) for number in range(4)]
    found = list(run_on_actors(Actors("local", 2), Suicide, tasks))
    assert sorted(one.result or "" for one in found) == tasks


def test_decisions_while_workers_are_killed(
    work: Work, tmp_path: Path, in_files: Callable[[str], list[Path]]
) -> None:
    """Workers are killed from outside, one after the other, while they decide."""
    victims: list[int] = []

    def kill_one(what: str, share: float) -> None:
        left = [one for one in own_actors() if one not in victims]
        if share and len(victims) < 3 and left:
            victims.append(left[0])
            os.kill(left[0], signal.SIGKILL)

    run = ag.cluster.decide(
        work.rule_file,
        work.members,
        in_files(".parquet"),
        tmp_path / "out.parquet",
        actors=2,
        shard_rows=256,
        progress=kill_one,
    )
    assert victims and run.recordings == 1100
    assert same(
        ag.cluster.load_decisions(tmp_path / "out.parquet", work.rule),
        work.ensemble.decide(work.rule, work.events).decisions,
    )


DRIVER = """
import os, signal, sys
import agreestop as ag

def killed(what, share):
    if share >= 0.4:
        os.kill(os.getpid(), signal.SIGKILL)

ag.cluster.decide(*sys.argv[1:4], sys.argv[4], actors=2, shard_rows=256, progress=killed)
"""


def test_the_driver_is_killed_and_the_same_call_continues(work: Work, tmp_path: Path) -> None:
    work.events.save(tmp_path / "a.npz")
    paths = [work.rule_file, work.members, tmp_path / "a.npz", tmp_path / "out"]
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, paths)], capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*.parquet")}
    assert 0 < len(finished) < 5
    run = ag.cluster.decide(*paths, actors=2, shard_rows=256)
    assert run.resumed >= len(finished) and all(
        path.stat().st_mtime_ns == when for path, when in finished.items()
    )
    assert same(
        ag.cluster.load_decisions(tmp_path / "out", work.rule),
        work.ensemble.decide(work.rule, work.events).decisions,
    )


def test_a_damaged_shard_is_named_by_its_worker(work: Work, tmp_path: Path) -> None:
    ag.cluster.save_recordings(tmp_path / "a.parquet", work.events)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[len(content) // 4] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(ag.InputError, match=r"a\.parquet is not a whole Parquet file"):
        ag.cluster.decide(
            work.rule, work.ensemble, tmp_path / "a.parquet", tmp_path / "out", actors=1
        )


def test_a_cluster_that_is_not_there_is_refused(work: Work, tmp_path: Path) -> None:
    """This ends the connection that the other tests share, so it is the last one."""
    work.events.save(tmp_path / "a.npz")
    assert ray.is_initialized()  # what was open before stays open
    ray.shutdown()
    for address in ("127.0.0.1:1", "auto"):
        with pytest.raises(ag.InputError, match="there is no Ray cluster at"):
            ag.cluster.decide(
                work.rule, work.ensemble, tmp_path / "a.npz", tmp_path / "out", address=address
            )


def test_ray_accepts_the_cluster_file_of_the_page() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    yaml = pytest.importorskip("yaml", reason="Ray brings PyYAML")

    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    given = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    validate_config(prepare_config(given))
    with pytest.raises(Exception, match="available_node_typos"):
        validate_config(prepare_config({**given, "available_node_typos": {}}))
