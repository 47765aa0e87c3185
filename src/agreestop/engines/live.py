"""One live input under a calibrated rule, step by step."""

from typing import final

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import log_softmax
from agreestop.decide.decisions import Decision

from .early_stopping import checkpoint_steps
from .prefilter import can_prefilter_on_cpu, prefilter_for
from .protocol import Engine


@final
class LiveSession:
    """One live input, an engine and a rule: push each step until there is a decision.

    A pause is a step without events. A push after the decision is refused. `number` is the number of the input, for rules with randomised
    merging and for members drawn for each input; it counts up by itself where None.
    """

    def __init__(
        self,
        engine: Engine,
        calibrated: CalibratedRule,
        number: int | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        ensemble_digest: str = "",
    ) -> None:
        calibrated.check_source(engine.name, ensemble_digest, any_engine, any_members)
        self._times = checkpoint_steps(calibrated, engine, None)
        self._session = calibrated.stream(number)
        self._live = engine.live(self._session.number)
        self._prefilter = prefilter_for(calibrated) if engine.output == "spikes" and can_prefilter_on_cpu() else None
        self.time = 0

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._session.decision

    def push(self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None) -> Decision | None:
        """Run the next step and return the decision if the rule stops here, else None.

        events: flat indices of the active inputs. frame: instead, one dense step of booleans or numbers.
        """
        session = self._session
        if session.decision is not None:
            raise InputError(f"this input stopped at time {session.decision.time}: open a new session for the next input.")
        evidence = self._live.push(events) if frame is None and events is not None else self._live.push(events, frame=frame)
        self.time += 1
        if self.time < self._times[session.index]:
            return None
        if self._prefilter is not None and not self._prefilter.may_stop(evidence[None, None], np.array([session.index]))[0, 0]:
            session.index += 1
            return None
        return session.push(log_softmax(evidence.astype(np.float64)))
