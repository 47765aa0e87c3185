"""What every adapter returns: an engine with the verbs of an ensemble, `score`, `decide` and
`live`.
"""

from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import InputError, warn_of_time_last
from agreestop.decide.intervals import FORMS, Numbers
from agreestop.decide.scores import Scores
from agreestop.engines.early_stopping import BATCH_SIZE, run_to_end
from agreestop.engines.inputs import check_shape
from agreestop.engines.protocol import Engine
from agreestop.engines.runner import Runner
from agreestop.events.container import Events, Inputs, as_inputs, input_ids
from agreestop.networks.modules import ModuleMembers

NUMBERS_ROUNDING = 1e-5  # of numbers from float32, as a share of their size
PAIRS = {"numbers": FORMS[False], "ends": FORMS[True]}


@final
class AdaptedEngine(Runner):
    """K members that watch the same inputs, ready to run.

    `from_module` and the other adapters make one.

    make: gives what runs the members, an `agreestop.engines.Engine`. modules: those members; the
    first inputs may tell them the shape of a step.
    """

    def __init__(self, make: Callable[[], Engine], modules: ModuleMembers) -> None:
        super().__init__()
        self._modules, self._make = modules, make
        self.current_engine()  # says at once what cannot run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._engine!r})"

    def _make_engine(self) -> Engine:
        return self._make()

    @property
    def network(self) -> ModuleMembers:
        """What the engine runs: the K members."""
        return self._modules

    @property
    def members(self) -> int:
        """The number of members K."""
        return self.engine.members

    def engine_for(self, inputs: Inputs, steps: int | None = None) -> Engine:
        """Check inputs and give the engine; the first ones tell modules the shape of a step."""
        if self._modules.input_shape is None:
            warn_of_time_last(inputs.shape, inputs.dtype.kind)
            self._modules.input_shape = tuple(inputs.shape[2:])
        check_shape(inputs.shape, self._modules.input_shape)
        return self.current_engine()

    def score(self, x: ArrayLike | Events, y: ArrayLike | None = None, **options: Any) -> Scores:
        """As `Runner.score`; modules that give numbers have `numbers` in its place."""
        if self._modules.output in PAIRS:
            raise InputError("these modules give numbers, not classes: call numbers(x, y).")
        return super().score(x, y, **options)

    def _check_watching(self) -> None:
        if self._modules.output in PAIRS:
            raise InputError(
                "these modules give numbers, not classes, and a spotter's score is the log-odds of "
                "classes: make scores of your own, and give them to ag.Spotter."
            )
        super()._check_watching()

    def numbers(
        self,
        x: ArrayLike | Events,
        y: ArrayLike | None = None,
        *,
        steps: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Numbers:
        """What modules with the output "numbers" or "ends" give after every step.

        For inputs (n, T, ...), or images (n, 1, ...) held for `steps` steps. y (n,) are the true
        numbers, which calibration needs.
        """
        if (names := PAIRS.get(self._modules.output)) is None:
            raise InputError('these modules give classes: call score, or give output="numbers".')
        inputs = as_inputs(x)
        engine = self.engine_for(inputs, steps)
        pairs = run_to_end(engine, inputs, batch_size, steps).astype(np.float64)
        known: dict[str, Any] = {name: pairs[..., one] for one, name in enumerate(names)}
        return Numbers(
            **known,
            labels=y,
            ids=input_ids(inputs),
            engine=engine.name,
            ensemble_digest=self.options().digest,
            rounding=NUMBERS_ROUNDING,
        )
