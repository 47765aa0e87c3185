"""Engines side by side: members that differ in size or kind, each run by an engine of its own,
as one ensemble.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError

from .protocol import Engine, Live, Pass, describe


@final
class SideBySide:
    """The `Engine` of the members of several engines of one kind, in their order.

    All have the same output and classes.
    """

    reason = ""

    def __init__(self, engines: Sequence[Engine]) -> None:
        for what, values in (
            ("outputs", [engine.output for engine in engines]),
            ("classes", [engine.classes for engine in engines]),
        ):
            if len(set(values)) > 1:
                raise InputError(
                    f"the members have the {what} {', '.join(map(str, values))}: those of all "
                    "members must be equal."
                )
        first = engines[0]
        self._engines = list(engines)
        self.name = first.name
        self.output = first.output
        self.classes = first.classes
        self.copies_weights = first.copies_weights
        self.members = sum(engine.members for engine in engines)

    __repr__ = describe

    @property
    def engines(self) -> list[Engine]:
        """The engines, in the order of their members."""
        return self._engines

    def chunk_steps(self, rows: int) -> int:
        return self._engines[0].chunk_steps(rows)

    def begin(self, inputs: Any, first: int = 0) -> "SideBySidePass":
        return SideBySidePass([engine.begin(inputs, first) for engine in self._engines])

    def live(self, number: int = 0) -> "SideBySideLive":
        return SideBySideLive([engine.live(number) for engine in self._engines])

    def members_slice(self, first: int, last: int) -> "SideBySide | None":
        """Some of the members; None where an engine of several members would have to be divided."""
        ends = np.cumsum([0, *(engine.members for engine in self._engines)]).tolist()
        if first not in ends or last not in ends:
            return None
        return SideBySide(self._engines[ends.index(first) : ends.index(last)])


@final
class SideBySidePass:
    """A batch on its way through time; see `protocol.Pass`."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes

    @property
    def rows(self) -> int:
        return self._passes[0].rows

    def advance(self, steps: int) -> NDArray[Any]:
        return np.concatenate([run.advance(steps) for run in self._passes], axis=2)

    def keep(self, rows: Booleans) -> None:
        for run in self._passes:
            run.keep(rows)


@final
class SideBySideLive:
    """One live input; see `protocol.Live`."""

    def __init__(self, inputs: Sequence[Live]) -> None:
        self._inputs = inputs

    def push(
        self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None
    ) -> NDArray[Any]:
        return np.concatenate([one.push(events, frame=frame) for one in self._inputs])
