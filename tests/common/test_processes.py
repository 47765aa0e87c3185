"""Tasks in several processes: the results of one process, errors that reach the caller, and no
process left behind.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agreestop.common import run_tasks


def prepare(factor: int) -> Callable[[int], tuple[int, int]]:
    def work(task: int) -> tuple[int, int]:
        if task < 0:
            raise ValueError(f"task {task}")
        if task >= 1000:
            time.sleep(task)
        return factor * task, os.getpid()

    return work


def test_several_processes_give_the_results_of_one() -> None:
    one = {task: value for task, (value, _) in run_tasks(partial(prepare, 3), range(6), 1)}
    several = dict(run_tasks(partial(prepare, 3), range(6), 2))
    assert (
        {task: value for task, (value, _) in several.items()}
        == one
        == {task: 3 * task for task in range(6)}
    )
    assert os.getpid() not in {process for _, process in several.values()}


def test_nothing_is_prepared_where_there_is_no_task() -> None:
    def fail() -> Callable[[int], int]:
        raise AssertionError

    assert list(run_tasks(fail, [], 2)) == []


def test_an_error_reaches_the_caller_and_ends_the_workers_but_no_other_process() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with pytest.raises(ValueError, match="task -1"):
            # the second worker would sleep for 1000 s
            list(run_tasks(partial(prepare, 3), [-1, 1000, 1000], 2))
        assert multiprocessing.active_children() == [other]
    finally:
        other.kill()
        other.join()


def test_workers_end_when_the_results_are_no_longer_wanted() -> None:
    results = run_tasks(partial(prepare, 3), [1, 1000, 1000], 2)
    assert next(results)[0] == 1
    results.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


PARENT = """
import functools, os, sys, time
from agreestop.common import run_tasks

def work(folder, task):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(60)

def prepare(folder):
    return functools.partial(work, folder)

if __name__ == "__main__":
    list(run_tasks(functools.partial(prepare, sys.argv[1]), [0, 1], 2))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes as POSIX does")
def test_the_workers_of_a_killed_parent_end(tmp_path: Path) -> None:
    script, folder = tmp_path / "parent.py", tmp_path / "workers"
    script.write_text(PARENT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    _wait_until(lambda: len(list(folder.iterdir())) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    workers = [int(path.name) for path in folder.iterdir()]
    _wait_until(lambda: not any(_runs(worker) for worker in workers))


def _wait_until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("waited 30 s in vain")


def _runs(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
