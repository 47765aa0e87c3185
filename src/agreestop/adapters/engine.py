"""What every adapter returns: an engine with the verbs of an ensemble, `score`, `decide` and
`live`.
"""

from typing import cast, final

from agreestop.common import warn_of_time_last
from agreestop.engines.inputs import check_shape
from agreestop.engines.protocol import Engine
from agreestop.engines.runner import Runner
from agreestop.events.container import Inputs
from agreestop.networks.modules import ModuleMembers


@final
class AdaptedEngine(Runner):
    """K members that watch the same inputs, ready to run.

    `from_module` and the other adapters make one.

    engine: what runs the members, an `agreestop.engines.Engine`. modules: those members; the first
    inputs may tell them the shape of a step.
    """

    def __init__(self, engine: Engine, modules: ModuleMembers) -> None:
        super().__init__()
        self._modules = modules
        if engine.copies_weights:
            self._digest = self.digest  # of the weights that the engine has copied
        self._engine = engine

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._engine!r})"

    @property
    def engine(self) -> Engine:
        """What runs the members."""
        return cast(Engine, self._engine)

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
        return self.engine
