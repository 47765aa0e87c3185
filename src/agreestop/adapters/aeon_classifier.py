"""`EarlyClassifier` with aeon's interface: series are shown in growing lengths, and those without a
decision yet are -1.

labels, decided = early.predict(X[:, :, :20])
labels, decided = early.update_predict(X[~decided, :, :40])

`predict` begins at the start and goes up to the last checkpoint that X reaches. `update_predict`
goes on where the last call ended, with the series not decided yet.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Booleans, InputError, needs
from agreestop.common.levels import Target
from agreestop.decide.checkpoints import State, Stops, run_rounds
from agreestop.decide.decisions import Decisions

from .estimators import EarlyClassifier, RuleMaker

with needs("AeonEarlyClassifier", "aeon", advice="use EarlyClassifier"):
    from aeon.classification.early_classification import BaseEarlyClassifier

SAME_SETTINGS = (
    "estimator",
    "checkpoints",
    "target",
    "max_set_size",
    "rule",
    "seed",
    "calibration",
    "folds",
    "one_model",
)


class AeonEarlyClassifier(BaseEarlyClassifier):  # type: ignore[misc]
    """`EarlyClassifier`, with the same settings, as an early classifier of aeon.

    The promise is that of `EarlyClassifier`.

    state_info has a row for each series of the last call: the index of the last checkpoint that was
    seen, whether there is a decision, the index of the class, and the time of that checkpoint.
    `early_` is the fitted `EarlyClassifier`.
    """

    _tags: ClassVar[dict[str, bool]] = {"capability:multivariate": True}

    def __init__(
        self,
        estimator: Any,
        checkpoints: Any,
        target: Target,
        *,
        max_set_size: int = 1,
        rule: str | RuleMaker = "agreestop",
        seed: int = 0,
        calibration: float = 0.3,
        folds: int = 3,
        one_model: bool = False,
    ) -> None:
        self.estimator, self.checkpoints, self.target = estimator, checkpoints, target
        self.max_set_size, self.rule, self.seed = max_set_size, rule, seed
        self.calibration, self.folds, self.one_model = calibration, folds, one_model
        super().__init__()

    def _fit(self, X: Any, y: Any) -> "AeonEarlyClassifier":
        self.early_ = EarlyClassifier(**{name: getattr(self, name) for name in SAME_SETTINGS}).fit(
            X, y
        )
        return self

    def _predict(self, X: Any) -> tuple[NDArray[Any], Booleans]:
        return self._watch(X, 0, self.early_.rule_.start(len(X)))

    def _update_predict(self, X: Any) -> tuple[NDArray[Any], Booleans]:
        if len(X) != len(self._state):
            raise InputError(
                f"X has {len(X)} series, but {len(self._state)} series had no decision after the "
                "last call: give those, in the same order, or call reset_state_info."
            )
        return self._watch(X, self._next, self._state)

    def _watch(self, X: Any, first: int, state: State) -> tuple[NDArray[Any], Booleans]:
        """Go on from checkpoint `first` to the last one that X reaches."""
        early = self.early_
        reached = sum(time <= X.shape[2] for time in early.checkpoints_)
        if reached <= first:
            raise InputError(
                f"X has {X.shape[2]} times: the next checkpoint is "
                f"{early.checkpoints_[min(first, reached)]}, so give more."
            )
        stops, every = Stops.empty(len(X), len(early.classes_)), np.arange(len(X))
        rounds = ((index, every, every) for index in range(first, reached))
        state, running = run_rounds(early._judge(X), state, rounds, stops.put)
        self._state, self._next, decided = state.rows(running), reached, ~running
        last = np.where(decided, stops.index, reached - 1)
        self.state_info = np.column_stack(
            [last, decided, stops.best, np.array(early.checkpoints_)[last]]
        )
        return np.array(
            [
                early.classes_[best] if done else -1
                for best, done in zip(stops.best, decided, strict=True)
            ]
        ), decided

    def _score(self, X: Any, y: Any) -> tuple[float, float, float]:
        """Harmonic mean of accuracy and 1 - earliness, accuracy, and earliness: the mean share
        of a series that was seen.
        """
        decisions: Decisions = self.early_.decide(X)
        accuracy = float(np.mean(self.early_.classes_[decisions.best] == np.asarray(y)))
        earliness = float(np.mean(decisions.stop_time) / X.shape[2])
        return harmonic_mean(accuracy, earliness), accuracy, earliness

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        from sklearn.linear_model import LogisticRegression

        return {"estimator": LogisticRegression(), "checkpoints": 3, "target": 0.5, "folds": 0}


def harmonic_mean(accuracy: float, earliness: float) -> float:
    """2·a·(1 - e) / (a + 1 - e); 0 where both are 0."""
    total = accuracy + 1 - earliness
    return 2 * accuracy * (1 - earliness) / total if total else 0.0
