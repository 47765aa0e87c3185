"""Long work: a callback that takes what is being done and the share that is done, and stages that
report to one callback.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

ProgressCallback: TypeAlias = Callable[[str, float], None]
"""Called with a few words and the share of the work that is done, from 0 to 1."""


def no_progress(what: str, share: float) -> None:
    """Report to nobody."""


@final
class Stages:
    """Stages of one job, counted ahead, that report to one callback as "3 of 8, deep: epoch 2".

    weights  how long each stage takes, in any unit; a share s of stage k counts as
             (w_1 + … + w_{k-1} + s·w_k) / Σ w
    """

    def __init__(self, progress: ProgressCallback, weights: Sequence[float]) -> None:
        self._progress, self._weights, self._begun = progress, tuple(weights), 0

    def begin(self, name: str) -> ProgressCallback:
        """Start the next stage; the returned callback takes the share of this
        stage that is done.
        """
        done = sum(self._weights[: self._begun])
        weight = self._weights[self._begun]
        total = sum(self._weights) or 1.0
        self._begun += 1
        heading = f"{self._begun} of {len(self._weights)}, {name}"

        def report(what: str, share: float) -> None:
            self._progress(f"{heading}: {what}", (done + share * weight) / total)

        return report
