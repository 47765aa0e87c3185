"""Two engines on the same inputs, step by step: to trust an import, or to find where
it goes wrong.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers
from agreestop.engines.early_stopping import BATCH_SIZE, run_to_end
from agreestop.events.container import Events

SHOWN = 8  # steps in the printed report


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """What two engines give for n inputs of T steps, K members and C classes.

    output            "spikes" or "logits"
    totals            (2, T): spikes of each engine in each step, over all inputs, members and
                      classes; the sum of logits
    difference        (T,): the largest difference of an output in each step; 1 for a spike that
                      only one engine has
    evidence          (T,): the largest difference of the read-out after each step: of spike counts
                      so far, or of logits
    same_class        (T,): how often the class with the most evidence is the same, or the classes
                      that share it, among all inputs and members
    first_difference  (n,): the first step, from 1, in which outputs of an input differ; 0
                      where none does
    """

    output: str
    totals: Floats
    difference: Floats
    evidence: Floats
    same_class: Floats
    first_difference: Integers

    @property
    def equal(self) -> bool:
        """Whether all outputs are equal."""
        return not self.first_difference.any()

    def __str__(self) -> str:
        """A table of some steps, with the first in which outputs differ."""
        steps, n = len(self.difference), len(self.first_difference)
        if self.equal:
            return f"equal: all {self.output} of {n} inputs over {steps} steps."
        found = self.first_difference[self.first_difference > 0]
        shown = sorted(
            {
                *np.linspace(1, steps, min(SHOWN, steps)).round().astype(int).tolist(),
                int(found.min()),
            }
        )
        lines = [
            f"{len(found)} of {n} inputs differ, first at step {found.min()}. Some steps:",
            f"{'step':>6}{'total a':>12}{'total b':>12}",
        ]
        lines[1] += f"{'difference':>13}{'read-out':>12}{'same class':>12}"
        for step in shown:
            a, b = self.totals[:, step - 1]
            lines.append(
                f"{step:>6}{a:>12.6g}{b:>12.6g}"
                f"{self.difference[step - 1]:>13.3g}{self.evidence[step - 1]:>12.3g}"
                f"{self.same_class[step - 1]:>12.3f}"
            )
        return "\n".join(lines)


def compare(
    engine_a: Any,
    engine_b: Any,
    inputs: ArrayLike | Events,
    *,
    steps: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Comparison:
    """Run two engines to the end on inputs (n, T, ...), or on images (n, 1, ...) held for `steps`,
    and compare them step by step.

    Engines are those of adapters or ensembles, or these themselves. They must have the same number
    of members and classes and the same kind of output. Print the result for a table.
    """
    first, second = (getattr(given, "engine", given) for given in (engine_a, engine_b))
    for what in ("members", "classes", "output"):
        found: list[Any] = [getattr(engine, what, None) for engine in (first, second)]
        if found[0] is None or found[0] != found[1]:
            if None in found:
                raise InputError(
                    f"engine_{'ab'[found.index(None)]} is no engine: give what an adapter "
                    "returned, or an ensemble."
                )
            raise InputError(
                f"engine_a has {what} {found[0]} and engine_b {found[1]}: give two engines of the "
                f"same {what}."
            )
    a, b = (
        run_to_end(engine, inputs, batch_size, steps).astype(np.float64)
        for engine in (first, second)
    )
    evidence_a, evidence_b = (
        values.cumsum(axis=1) if first.output == "spikes" else values for values in (a, b)
    )
    differ = (a != b).any(axis=(2, 3))
    return Comparison(
        output=first.output,
        totals=np.stack([values.sum(axis=(0, 2, 3)) for values in (a, b)]),
        difference=np.abs(a - b).max(axis=(0, 2, 3)),
        evidence=np.abs(evidence_a - evidence_b).max(axis=(0, 2, 3)),
        same_class=(_best(evidence_a) == _best(evidence_b)).all(axis=3).mean(axis=(0, 2)),
        first_difference=np.where(differ.any(axis=1), differ.argmax(axis=1) + 1, 0),
    )


def _best(evidence: Floats) -> Booleans:
    """Which classes have the most evidence, (n, T, K, C): several where they tie."""
    return evidence == evidence.max(axis=3, keepdims=True)
