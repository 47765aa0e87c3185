"""What every adapter returns: an engine with the verbs of an ensemble, `score`,
`decide` and `live`.
"""

from collections.abc import Callable, Sequence
from typing import final

from numpy.typing import ArrayLike

from agreestop.common import as_array, warn_of_time_last
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.scores import Scores
from agreestop.decide.spotting import CalibratedSpotter
from agreestop.engines.early_stopping import BATCH_SIZE, EarlyRun, decide_early, score
from agreestop.engines.ending import as_lengths
from agreestop.engines.inputs import check_shape
from agreestop.engines.live import LiveSession
from agreestop.engines.protocol import Engine
from agreestop.engines.watching import Event, Heard, WatchSession, listen
from agreestop.events.container import Events, Inputs, as_inputs
from agreestop.networks.modules import ModuleMembers


@final
class AdaptedEngine:
    """K members that watch the same inputs, ready to run.

    `from_module` and the other adapters make one.

    engine: what runs the members, an `agreestop.engines.Engine`. digest: gives a hash of the
    members, which scores and rules carry. modules: those members; the first inputs may tell them
    the shape of a step.
    """

    def __init__(self, engine: Engine, digest: Callable[[], str], modules: ModuleMembers) -> None:
        self.engine, self._digest, self._modules = engine, digest, modules

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine!r})"

    @property
    def network(self) -> ModuleMembers:
        """What the engine runs: the K members."""
        return self._modules

    @property
    def members(self) -> int:
        """The number of members K."""
        return self.engine.members

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.engine.classes

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one step of an input; None where it is not known before the first inputs."""
        return self._modules.input_shape

    @property
    def digest(self) -> str:
        """SHA-256 over the tensors and settings of the members, in hexadecimal.

        Scores and rules carry it.
        """
        return self._digest()

    def _inputs(self, x: ArrayLike | Events) -> Inputs:
        """The inputs (n, T, ...); the first ones tell modules the shape of a step."""
        inputs = as_inputs(x)
        if self._modules.input_shape is None:
            warn_of_time_last(inputs.shape, inputs.dtype.kind)
            self._modules.input_shape = tuple(inputs.shape[2:])
        check_shape(inputs.shape, self._modules.input_shape)
        return inputs

    def score(
        self,
        x: ArrayLike | Events,
        y: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        steps: int | None = None,
        classes: Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Scores:
        """Log-confidences of every member after every step, for inputs (n, T, ...) or images
        (n, 1, ...) held for `steps` steps.

        y (n,) are the labels, which calibration needs. Labels and class names come from x if x is
        an `Events` that has them. Inputs that end early have lengths (n,), or a mask (n, T) that is
        True up to their ends: the scores at its end stand for all later steps of an input.
        """
        inputs = self._inputs(x)
        ends = as_lengths(lengths, mask, inputs.shape)
        return score(self.engine, inputs, y, classes, steps, self.digest, batch_size, ends)

    def decide(
        self,
        rule: CalibratedRule,
        x: ArrayLike | Events,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        steps: int | None = None,
        groups: ArrayLike | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        batch_size: int = BATCH_SIZE,
    ) -> EarlyRun:
        """Decide on inputs (n, T, ...), or on images (n, 1, ...) held for `steps`, and stop
        computing where the rule stops.

        The decisions are those of `rule.decide` on the scores of the same inputs. `computed`
        (n,) counts the steps that were computed. lengths or mask say where inputs end, as for
        `score`. A rule that was calibrated with another engine or with other members is
        refused, unless `any_engine` or `any_members` is True. groups are those of the inputs,
        for a rule with groups.
        """
        inputs = self._inputs(x)
        ends = as_lengths(lengths, mask, inputs.shape)
        return decide_early(
            self.engine,
            rule,
            inputs,
            batch_size,
            None,
            any_engine,
            any_members,
            self.digest,
            steps,
            groups,
            ends,
        )

    def listen(self, recordings: Sequence[ArrayLike], *, window: int, event: Event) -> Heard:
        """Run the members over recordings, n arrays (T_i, ...); see `Ensemble.listen`."""
        for one in recordings[:1]:
            self._inputs(as_array(one, "recordings[0]")[None])  # tells modules the shape of a step
        return listen(self.engine, recordings, window, event, None, self.digest)

    def watch(
        self,
        spotter: CalibratedSpotter,
        rule: CalibratedRule,
        *,
        window: int,
        event: Event,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> WatchSession:
        """Watch a stream without an end; see `Ensemble.watch`."""
        named = None, self.digest, any_engine, any_members
        return WatchSession(self.engine, spotter, rule, window, event, *named)

    def live(
        self,
        rule: CalibratedRule,
        *,
        group: ArrayLike | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        number: int | None = None,
    ) -> LiveSession:
        """Watch one live input: call `session.push(frame=array)` or `session.push(indices)` for
        each step, until there is a decision.

        `session.end()` answers for a stream that is over. number: the number of the input, for
        rules with randomised merging, whose random numbers are fresh without it. group: the input's
        group, for a rule with groups.
        """
        return LiveSession(self.engine, rule, number, any_engine, any_members, self.digest, group)
