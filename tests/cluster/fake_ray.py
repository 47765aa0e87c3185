"""A stand-in for Ray in one process: actors are objects, and a plan says which calls lose their
actor.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class RayError(Exception):
    """The actor, its machine or its answer was lost."""


class RayTaskError(RayError):
    """The call raised an error."""


class FakeExceptions:
    RayError, RayTaskError = RayError, RayTaskError


class FakeRay:
    """lose(actor, method, argument) says whether the actor dies before it answers; after_work:
    whether it dies after the work was done.
    """

    exceptions = FakeExceptions

    def __init__(
        self,
        lose: Callable[[int, str, Any], bool] = lambda *_: False,
        after_work: bool = False,
        cores: int = 2,
    ) -> None:
        self.lose, self.after_work, self.cores = lose, after_work, cores
        self.started = self.killed = 0

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "Resources": {"CPU": float(self.cores)}},
            {"Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def put(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def remote(self, **options: Any) -> Callable[[type], Any]:
        fake = self

        class Kind:
            def __init__(self, kind: type) -> None:
                self.kind = kind

            def remote(self) -> Any:
                fake.started += 1
                return Handle(fake, self.kind(), fake.started)

        return Kind

    def wait(
        self, refs: Sequence[Any], num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        return [refs[-1]], list(refs[:-1])  # the latest first, so that results come out of order

    def get(self, ref: Any) -> Any:
        handle, name, arguments = ref
        lost = self.lose(handle.number, name, arguments[0])
        answer = None if lost and not self.after_work else getattr(handle.actor, name)(*arguments)
        if lost:
            raise RayError("the actor died")
        return answer


class Handle:
    def __init__(self, fake: FakeRay, actor: Any, number: int) -> None:
        self.fake, self.actor, self.number = fake, actor, number
        self.prepare, self.run = Call(self, "prepare"), Call(self, "run")


class Call:
    def __init__(self, handle: Handle, name: str) -> None:
        self.handle, self.name = handle, name

    def remote(self, *arguments: Any) -> Any:
        return Ref((self.handle, self.name, arguments))


class Ref(tuple[Any, ...]):
    """Every call has a reference of its own, whatever its arguments."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other
