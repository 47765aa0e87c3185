"""Work on Ray actors: each actor builds one worker and runs one task after another.

    task of an actor that died      it is handed out again, at most MOST_DEATHS times; so a task
                                    must be safe to repeat
    task that cannot be done        its sentence (an InputError) is the result, and the actor
                                    continues with the next task
    actor with other versions       refused before any work, because decisions could differ
    cluster that grows              new actors start where there is room; a cluster without any room
                                    is given SECONDS_FOR_ROOM

The caller holds all state. Actors are never restarted in place: a new one takes over.
"""

import math
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from platform import python_version
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from agreestop.common import InputError, ProgressCallback, as_count, cores, needs, no_progress

MOST_DEATHS = 3  # actors that one task may end before it is refused
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_LOOK = 5.0  # between two looks at the machines of the cluster
# `ray up` returns before its machines have started and installed their packages
SECONDS_FOR_ROOM = 900.0
ADDRESS = re.compile(r"(?:ray://)?(?:\[([0-9a-fA-F:]+)\]|([^\s:/\[\]]+)):(\d{1,5})")
# the first bytes of HTTP/2, which Ray speaks; the server answers in kind
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
# their versions decide the numbers, and must be the same everywhere
PACKAGES = ("agreestop", "numpy", "torch", "numba")

Task = TypeVar("Task")
Result = TypeVar("Result")
Versions: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class Actors:
    """Where work runs.

    address  "local" for a cluster on this machine, "auto" for the one that runs here, or that of a
             cluster: "10.0.0.1:6379", "ray://…"
    count    how many actors; None: as many as the cluster has room for
    cpus     processor cores of each actor
    gpus     GPUs of each actor, which may be a share such as 0.5
    """

    address: str = "local"
    count: int | None = None
    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.address not in ("local", "auto") and _host_and_port(self.address) is None:
            raise InputError(
                f"the address of the cluster is {str(self.address)[:60]!r}: give 'local', 'auto', "
                "or HOST:PORT of a Ray cluster, such as 10.0.0.1:6379 or ray://10.0.0.1:10001."
            )
        if self.count is not None:
            as_count(self.count, "actors")
        as_count(self.cpus, "cpus")
        if (
            not isinstance(self.gpus, (int, float))
            or not 0 <= self.gpus < 1024
            or (self.gpus > 1 and self.gpus % 1)
        ):
            raise InputError(
                f"gpus is {self.gpus!r}: give the GPUs of each actor, a whole number or a share "
                "below 1; 0 for none."
            )


@dataclass(frozen=True)
class Finished(Generic[Result]):
    """A task that ended: its index, and its result or the sentence that says why there is none.
    running: actors at work.
    """

    index: int
    result: Result | None
    error: str
    running: int


def run_on_actors(
    actors: Actors,
    build: Callable[[], Callable[[Task], Result]],
    tasks: Sequence[Task],
    waiting: Callable[[str], object] = lambda sentence: None,
) -> Iterator[Finished[Result]]:
    """Run tasks on actors, each of which calls `build` once; the results in the order in which
    they are ready.

    build and tasks travel to other machines: they hold settings and bytes, no open files. str(task)
    names a task in error messages. waiting: called with a sentence every few seconds until the
    first actor works.
    """
    if not tasks:
        return
    ray = import_ray()
    with connected(ray, actors):
        yield from _Run(ray, actors, build, tasks, waiting).results()


def map_tasks(
    actors: Actors,
    build: Callable[[], Callable[[Task], Result]],
    tasks: Sequence[Task],
    progress: ProgressCallback = no_progress,
    what: str = "tasks",
) -> list[Result]:
    """The results of all tasks, in their order; the first that cannot be done is an InputError.
    what: the tasks in words.
    """
    found: dict[int, Any] = {}
    for finished in run_on_actors(actors, build, tasks, lambda sentence: progress(sentence, 0.0)):
        if finished.error:
            raise InputError(finished.error)
        found[finished.index] = finished.result
        progress(
            f"{len(found)} of {len(tasks)} {what}, actors at work: {finished.running}",
            len(found) / len(tasks),
        )
    return [found[index] for index in range(len(tasks))]


class _Run(Generic[Task, Result]):
    """The state of one run: the tasks that wait, and for each answer that is awaited its actor
    and its task, None while it is built.
    """

    def __init__(
        self,
        ray: Any,
        actors: Actors,
        build: Any,
        tasks: Sequence[Task],
        waiting: Callable[[str], object],
    ) -> None:
        self._ray, self._actors, self._tasks, self._say_waiting = ray, actors, tasks, waiting
        self._waiting = deque(range(len(tasks)))
        self._deaths: Counter[int | None] = Counter()
        self._awaited: dict[Any, tuple[Any, int | None]] = {}
        self._build = ray.put(build)
        self._kind = ray.remote(num_cpus=actors.cpus, num_gpus=actors.gpus, max_restarts=0)(
            _actor_class()
        )
        self._versions = versions()
        self._most = 0  # actors at a time
        self._had_room, self._looked = monotonic(), -math.inf

    def results(self) -> Iterator[Finished[Result]]:
        left, built = len(self._tasks), False
        try:
            while left:
                self._start_missing()
                found, _ = self._ray.wait(
                    list(self._awaited), num_returns=1, timeout=SECONDS_TO_LOOK
                )
                if not found:
                    if not built:
                        self._say_waiting("waiting for the first worker to start")
                    continue
                actor, index = self._awaited.pop(found[0])
                try:
                    error, value = self._ray.get(found[0])
                except (self._ray.exceptions.RayTaskError, KeyboardInterrupt):
                    raise
                except self._ray.exceptions.RayError as lost:  # the actor, its node or its answer
                    self._take_back(actor, index, lost)
                    continue
                if index is None and error:
                    raise InputError(error)
                self._hand_out(actor)
                if index is None:
                    built, self._deaths[None] = True, 0
                else:
                    left -= 1
                    yield Finished(index, value, error, len(self._awaited))
        finally:
            for actor, _ in self._awaited.values():
                with suppress(Exception):
                    self._ray.kill(actor)

    def _start_missing(self) -> None:
        """Start as many actors as there is work and room for."""
        now = monotonic()
        if now - self._looked >= SECONDS_TO_LOOK:
            room, self._looked = _room(self._ray, self._actors), now
            self._had_room = now if room else self._had_room
            if (
                not room
                and not self._awaited_tasks()
                and (self._actors.address == "local" or now - self._had_room > SECONDS_FOR_ROOM)
            ):
                raise _no_room(self._actors)
            # one that waits for room makes the cluster grow, if it can
            self._most = self._actors.count or max(room, 1)
        building = len(self._awaited) - self._awaited_tasks()
        for _ in range(min(self._most - len(self._awaited), len(self._waiting) - building)):
            actor = self._kind.remote()
            self._awaited[actor.prepare.remote(self._versions, self._build)] = actor, None

    def _awaited_tasks(self) -> int:
        return sum(index is not None for _, index in self._awaited.values())

    def _hand_out(self, actor: Any) -> None:
        if self._waiting:
            index = self._waiting.popleft()
            self._awaited[actor.run.remote(self._tasks[index])] = actor, index
        else:
            self._ray.kill(actor)  # its cores are free for others

    def _take_back(self, actor: Any, index: int | None, lost: Exception) -> None:
        """Let another actor do the task of an actor that died."""
        with suppress(Exception):
            self._ray.kill(actor)
        self._deaths[index] += 1
        # a machine that ends takes all its actors with it
        if self._deaths[index] > MOST_DEATHS + (self._most if index is None else 0):
            what = (
                "workers cannot start"
                if index is None
                else f"{self._tasks[index]} ended {self._deaths[index]} workers"
            )
            why = type(lost).__name__
            raise InputError(
                f"{what} ({why}): see the logs of Ray; if memory is too small, give smaller shards "
                "or larger machines."
            )
        if index is not None:
            self._waiting.appendleft(index)


def _actor_class() -> type:
    """The class of an actor. It travels by value, so a worker without agreestop can say so."""

    class Actor:
        def __init__(self) -> None:
            self._work: Any = None

        def prepare(self, wanted: dict[str, str], build: Any) -> tuple[str, None]:
            """Compare versions with those of the driver, then build the worker.

            Returns a sentence if that failed.
            """
            import platform
            from importlib import metadata

            here = {"python": platform.python_version()}
            for name in wanted.keys() - {"python"}:
                try:
                    here[name] = metadata.version(name)
                except metadata.PackageNotFoundError:
                    here[name] = "none"
            for name, version in wanted.items():
                if here[name] != version:
                    return (
                        f"a worker on {platform.node()} has {name} {here[name]} and the driver has "
                        f"{version}: install the same everywhere.",
                        None,
                    )
            try:
                self._work = build()
            except ValueError as error:
                if type(error).__name__ != "InputError":
                    raise
                return str(error), None
            return "", None

        def run(self, task: Any) -> tuple[str, Any]:
            """The result of a task, or the sentence that says why there is none."""
            try:
                return "", self._work(task)
            except MemoryError:
                advice = (
                    "give a smaller shard_rows, write smaller row groups, or use machines with "
                    "more memory"
                )
                return f"{task} does not fit into the memory of a worker: {advice}.", None
            except ValueError as error:
                if type(error).__name__ != "InputError":
                    raise
                return str(error), None

    return Actor


def versions() -> Versions:
    """The versions of Python and of the packages that decide the numbers; "none" for one that is
    not installed.
    """
    found = {"python": python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def import_ray() -> Any:
    """The package Ray, or a sentence that says what to install."""
    with needs("work on a cluster", advice="leave --ray out on one machine"):
        import ray
        import ray.exceptions
    return ray


@contextmanager
def connected(ray: Any, actors: Actors) -> Iterator[None]:
    """A connection to the cluster; one that is open already is used, and left open."""
    if ray.is_initialized():
        yield
        return
    if (found := _host_and_port(actors.address)) and not _answers(*found):
        raise _not_there(actors.address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if actors.address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {
            "num_cpus": max(cores(), (actors.count or 1) * actors.cpus),
            "include_dashboard": False,
        }
    try:
        ray.init(address=actors.address, **options)
    except RuntimeError as error:
        if "ersion" not in str(error):
            raise _not_there(actors.address, found is not None) from None
        mismatch = " ".join(str(error).split())
        raise InputError(
            f"the cluster at {actors.address} has other versions than this driver: install the "
            f"same. {mismatch}"
        ) from None
    except (ConnectionError, ValueError, OSError, TimeoutError):
        raise _not_there(actors.address, found is not None) from None
    try:
        yield
    finally:
        ray.shutdown()


def _host_and_port(address: Any) -> tuple[str, int] | None:
    """The two parts of the address of a cluster; None if it is none."""
    found = ADDRESS.fullmatch(address) if isinstance(address, str) else None
    return (
        None
        if found is None or not 0 < int(found[3]) < 2**16
        else (found[1] or found[2], int(found[3]))
    )


def _answers(host: str, port: int) -> bool:
    """Whether a server answers there that may be Ray's.

    Ray itself would try for many minutes, and wait for other servers without end.
    """
    try:
        with socket.create_connection((host, port), timeout=SECONDS_TO_CONNECT) as stream:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return True
            stream.sendall(GREETING)
            return stream.recv(9)[3:4] == b"\4"  # settings, the first frame of HTTP/2
    except (OSError, UnicodeError):
        return False


def _not_there(address: str, answers: bool = False) -> InputError:
    """The error for a cluster that cannot be used; answers: whether some server is there."""
    if answers:
        advice = (
            "check that it is Ray, and set its token here (RAY_AUTH_MODE=token and RAY_AUTH_TOKEN) "
            "if it asks for one"
        )
        return InputError(f"a server answers at {address}, but Ray cannot connect to it: {advice}.")
    advice = "start one with `ray start --head`, check the address, or give 'local'"
    return InputError(f"there is no Ray cluster at {address}: {advice}.")


def _room(ray: Any, actors: Actors) -> int:
    """How many actors fit into the machines of the cluster."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = [machine.get("CPU", 0) // actors.cpus for machine in machines]
    if actors.gpus:
        room = [
            min(one, machine.get("GPU", 0) // actors.gpus)
            for one, machine in zip(room, machines, strict=True)
        ]
    return int(sum(room))


def _no_room(actors: Actors) -> InputError:
    wanted = f"cpus={actors.cpus}" + (f" and gpus={actors.gpus:g}" if actors.gpus else "")
    return InputError(
        f"no machine of the cluster has room for an actor with {wanted}: ask for less, or add "
        "machines."
    )
