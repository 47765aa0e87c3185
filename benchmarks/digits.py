"""An ensemble on the embedded digits, trained for a moment, and its rule: what the studies of the
cluster and of the server run.
"""

from dataclasses import dataclass
from typing import Any

import agreestop as ag
from agreestop.decide.calibrated import CalibratedRule

from .workers import stopping_rule

MEMBERS, HIDDEN, EPOCHS, N_CALIBRATION = 6, 256, 2, 200


@dataclass(frozen=True, eq=False)
class DigitsStudy:
    """Members, a rule calibrated on the scores of the first inputs of the pool, and the other
    inputs of the pool.
    """

    ensemble: Any
    scores: ag.Scores
    rule: CalibratedRule
    inputs: Any

    @classmethod
    def make(cls) -> "DigitsStudy":
        data = ag.events.load_data_set("digits")
        training, pool = data.training, data.pool
        network = ag.networks.FullyConnected(pool.shape, len(pool.classes), hidden=(HIDDEN,))
        ensemble = ag.ensembles.DeepEnsemble(
            network, members=MEMBERS, seed=0, device="cpu", engine="event-driven"
        )
        ensemble.fit(training.inputs, training.labels, epochs=EPOCHS, progress=False)
        known = ensemble.score(
            pool.rows(slice(0, N_CALIBRATION)).inputs, pool.labels[:N_CALIBRATION]
        )
        return cls(
            ensemble, known, stopping_rule(known), pool.rows(slice(N_CALIBRATION, None)).inputs
        )
