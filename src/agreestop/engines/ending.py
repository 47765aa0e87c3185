"""Inputs that end before the last step: an engine that computes each input up to its own length.

    evidence of an input of length L after step t:   that after step min(t, L)

An input that has ended costs nothing more. Its spike counts, or its last logits, stand for every
later step. So an input is answered from what was known at its end, and calibration and decisions
treat such inputs alike, as the guarantee needs.
"""

from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError, Integers, as_array
from agreestop.events.container import Events, Inputs

from .inputs import check_kept_rows
from .protocol import DividingEngine, Engine, Live, Pass


def as_lengths(
    lengths: ArrayLike | None, mask: ArrayLike | None, shape: tuple[int, ...]
) -> Integers:
    """The steps (n,) of inputs (n, T, ...), from `lengths` (n,) or from a `mask` (n, T) that is
    True up to the end of each input.
    """
    if lengths is not None and mask is not None:
        raise InputError("lengths and mask are both given: give one of them.")
    n, steps = shape[:2]
    if mask is not None:
        inside = as_array(mask, "mask")
        if (
            inside.shape != (n, steps)
            or inside.dtype != np.bool_
            or (inside[:, 1:] > inside[:, :-1]).any()
        ):
            raise InputError(
                f"mask has shape {inside.shape} and dtype {inside.dtype}: booleans ({n}, {steps}) "
                "are needed, True from the first step of each input to its last."
            )
        lengths = inside.sum(1)
    found = as_array(lengths, "lengths")
    if (
        found.shape != (n,)
        or found.dtype.kind not in "iu"
        or found.size == 0
        or found.min() < 1
        or found.max() > steps
    ):
        given = (
            f"lengths has shape {found.shape} and dtype {found.dtype}"
            if found.shape != (n,) or found.dtype.kind not in "iu"
            else ""
        )
        given = given or f"lengths run from {found.min()} to {found.max()}"
        raise InputError(
            f"{given}: one integer from 1 to {steps} is needed for each of the {n} inputs."
        )
    return found.astype(np.int64)


def without_padding(inputs: Inputs, lengths: Integers) -> Inputs:
    """The inputs (n, T, ...), with zeros after the end of each, so that padding of any kind
    has no effect.
    """
    if isinstance(inputs, Events):
        return inputs.first_steps(lengths)
    ended = np.arange(inputs.shape[1]) >= lengths[:, None]
    return np.where(
        ended.reshape(*ended.shape, *[1] * (inputs.ndim - 2)), inputs.dtype.type(0), inputs
    )


@final
class EndingInputs:
    """The `Engine` that runs inputs of these lengths (n,), numbered from `first` on, on
    another engine.

    `first` of `begin` says which of them a batch holds.
    """

    def __init__(self, engine: Engine, lengths: Integers, first: int = 0) -> None:
        self._engine, self._lengths, self._first = engine, lengths, first
        self.name, self.members, self.output = engine.name, engine.members, engine.output
        self.reason, self.copies_weights = engine.reason, engine.copies_weights

    @property
    def classes(self) -> int:
        return self._engine.classes

    def chunk_steps(self, rows: int) -> int:
        return self._engine.chunk_steps(rows)

    def begin(self, inputs: Inputs, first: int = 0) -> "EndingPass":
        lengths = self._lengths[first - self._first :][: len(inputs)]
        return EndingPass(self._engine.begin(inputs, first), lengths, self.output == "spikes")

    def live(self, number: int = 0) -> Live:
        return self._engine.live(number)

    def members_slice(self, first: int, last: int) -> "EndingInputs | None":
        part = (
            self._engine.members_slice(first, last)
            if isinstance(self._engine, DividingEngine)
            else None
        )
        return None if part is None else EndingInputs(part, self._lengths, self._first)


@final
class EndingPass:
    """A batch on its way through time, whose rows leave the pass of the engine at their ends.

    See `protocol.Pass`.
    """

    def __init__(self, run: Pass, lengths: Integers, spikes: bool) -> None:
        self._run, self._left, self._spikes = run, lengths, spikes
        # the rows that the pass of the engine still holds
        self._inside = np.ones(len(lengths), bool)
        # (rows, K, C): the output that each row repeats after its end
        self._last: NDArray[Any] | None = None

    @property
    def rows(self) -> int:
        return len(self._left)

    def advance(self, steps: int) -> NDArray[Any]:
        parts = []
        while steps:
            running = self._left > 0
            # up to the next end
            count = min(steps, int(self._left[running].min())) if running.any() else steps
            parts.append(self._advance(running, count))
            steps -= count
        return np.concatenate(parts, axis=1)

    def _advance(self, running: Booleans, steps: int) -> NDArray[Any]:
        """Outputs (rows, steps, K, C) of steps in which no row ends before the last."""
        if running.any():
            self._run.keep(running[self._inside])
            self._inside = running
            found = self._run.advance(steps)
            if self._last is None:
                self._last = np.zeros((self.rows, *found.shape[2:]), found.dtype)
            if not self._spikes:
                self._last[running] = found[:, -1]
        assert self._last is not None, "every input has a first step"
        outputs = np.repeat(self._last[:, None], steps, axis=1)
        if running.any():
            outputs[running] = found
        self._left = np.where(running, self._left - steps, 0)
        return outputs

    def keep(self, rows: Booleans) -> None:
        mask = check_kept_rows(rows, self.rows)
        self._run.keep(mask[self._inside])
        self._inside, self._left = self._inside[mask], self._left[mask]
        self._last = None if self._last is None else self._last[mask]
