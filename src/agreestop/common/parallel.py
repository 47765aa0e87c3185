"""Independent work on several cores: in threads, or in new processes.

The number of threads or processes does not change any result.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

# work is handed out in small chunks, so one slow thread does not delay the others
CHUNKS_PER_THREAD = 4


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- threads


def parallel_for(
    work: Callable[[int, int, int], None], items: int, threads: int, chunks: int = CHUNKS_PER_THREAD
) -> None:
    """Call work(thread, first, last) on chunks of the items until all are done.

    The calling thread is one of the threads.

    chunks: the number of chunks per thread. Which thread takes which chunk varies, so results must
    not depend on it.
    """
    threads = max(1, min(threads, items))
    if threads == 1:
        return work(0, 0, items)
    size = -(-items // (chunks * threads))
    firsts = iter(range(0, items, size))

    def take(thread: int) -> None:
        for first in firsts:
            work(thread, first, min(first + size, items))

    others = [_pool(os.getpid(), threads).submit(take, thread) for thread in range(1, threads)]
    try:
        take(0)
    finally:
        for other in others:
            if not other.cancel():  # a thread that has not started by now has no work left
                other.result()


def parallel_parts(
    work: Callable[[int, int, int, int], None], items: int, parts: int, threads: int
) -> None:
    """Call work(thread, part, first, last) for equal parts of the items, which do not depend on
    the number of threads.
    """

    def run(thread: int, begin: int, end: int) -> None:
        for part in range(begin, end):
            work(thread, part, items * part // parts, items * (part + 1) // parts)

    parallel_for(run, parts, threads, parts)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Starting a thread takes as long as a small layer, so pools are kept.

    A forked process needs its own.
    """
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="agreestop")


# ---- processes


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
