"""Independent tasks, in this process or in several new ones.

The number of processes does not change any result.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    prepare: Callable[[], Callable[[Task], Result]],
    tasks: Sequence[Task],
    workers: int,
    in_order: bool = False,
) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, in the order in which they are finished, or in the
    order of the tasks.

    `prepare` is called once in each process, with what it reads or holds, and returns the function
    that does a task. With more than one worker, `prepare`, tasks and results are pickled, and a
    script that calls this needs `if __name__ == "__main__":`.
    """
    if min(workers, len(tasks)) <= 1:
        if tasks:
            work = prepare()
            yield from ((task, work(task)) for task in tasks)
        return
    # New processes are started: a fork of a process with threads, such as torch's and
    # scikit-learn's, can hang.
    context = multiprocessing.get_context("spawn")
    ended, end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (prepare, ended))
    try:
        waiting = {executor.submit(_do, task): task for task in tasks}
        for future in waiting if in_order else as_completed(waiting):
            yield waiting[future], future.result()
    except BaseException:
        end.close()  # the workers end in the middle of their tasks
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        end.close()
        ended.close()


_work: list[Callable[[Any], Any]] = []
"""What a worker process does with a task; empty in any other process."""


def _begin(prepare: Callable[[], Callable[[Task], Result]], ended: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the workers
    threading.Thread(target=_end_with_parent, args=(ended,), daemon=True).start()
    _work.append(prepare())


def _end_with_parent(ended: Connection) -> None:
    """End this process when its parent closes the other end of the connection, or has ended,
    also when the parent was killed.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([ended, parent.sentinel])
    os._exit(1)


def _do(task: Any) -> Any:
    return _work[0](task)
