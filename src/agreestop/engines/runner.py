"""Members and the engine that runs them: which engine fits, and what an ensemble and an adapted
model can both do.

    engine = choose_engine(network)       the one that is named, or that fits network and inputs
    scores = runner.score(x, y)
    run = runner.decide(rule, x)          stops computing an input soon after the rule stops
    session = runner.live(rule)           one live input

Inputs are arrays (n, T, ...) of booleans or numbers, an `Events`, or images (n, 1, ...) that are
held for a number of steps. Scores carry the name of the engine and the digest of the members, and
a rule refuses those of others.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from agreestop.common import InputError, as_array, as_labels
from agreestop.common.errors import quoted
from agreestop.decide.calibrated import CalibratedRule, check_calibrated
from agreestop.decide.leakage import ScoredRows, TrainingRows
from agreestop.decide.scores import Scores
from agreestop.decide.spotting import CalibratedSpotter
from agreestop.events.container import Events, Inputs, as_inputs, input_ids
from agreestop.kernels import TRITON_AVAILABLE
from agreestop.networks.architectures import Convolutional, FullyConnected, SpikingNetwork
from agreestop.networks.digests import KnownDigest, Runnable, check_network
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior

from .dense import Dense, FreshMembers
from .early_stopping import (
    BATCH_SIZE,
    EarlyRun,
    RunOptions,
    check_rule,
    decide_early,
    score,
)
from .gpu.engine import Fused
from .inputs import check_device
from .live import LivePlan, LiveSession
from .protocol import ENGINES, Engine
from .watching import Event, Heard, WatchSession, listen

FRESH_DRAWS = 2  # in the seed; the draws for tuning have 0, those for calibration and test 1
LIGHT_PRECISIONS = ("int8", "bfloat16")  # the lightest first
DENSE_FROM = 0.3  # from this share of active inputs on, a matrix product is faster than event lists


class Runner(ABC):
    """K members and the engine that runs them."""

    fresh: bool = False
    class_names: tuple[str, ...] | None = None
    training_rows: TrainingRows | None = None

    def __init__(self) -> None:
        self._known = KnownDigest()
        self._engine: Engine | None = None
        self._ran = ""  # the digest of the weights that the engine was made with
        self._plan: LivePlan | None = None  # of the last rule that was live

    @property
    @abstractmethod
    def network(self) -> Runnable:
        """What the engine runs: the K members, or the posterior from which members are drawn for
        every input.
        """

    @property
    def engine(self) -> Engine:
        """The engine that runs the members, and its `reason` says why.

        Comparing all weights takes longer than opening a live input. So an engine that has copied
        them runs its copy until `current_engine` or a method that calls it, such as `score`,
        `decide` or `watch`, finds that they have changed.
        """
        return self.current_engine() if self._engine is None else self._engine

    def current_engine(self) -> Engine:
        """The engine, made anew if it has copied weights that have changed since.

        Open sessions keep what they began with.
        """
        made = self._engine
        if made is None or (made.copies_weights and self._ran != self.digest):
            self._engine = made = self._make_engine()
            self._ran = self.digest if made.copies_weights else ""
        return made

    @abstractmethod
    def _make_engine(self) -> Engine:
        """A new engine for the members as they are."""

    @abstractmethod
    def engine_for(self, inputs: Inputs, steps: int | None = None) -> Engine:
        """Check inputs and give the engine."""

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one step of an input; None for modules of your own before the first ones."""
        return self.network.input_shape

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.network.classes

    @property
    def digest(self) -> str:
        """SHA-256 over the tensors and settings of the members, in hexadecimal.

        Scores and rules carry it. It is computed anew only after the members have changed.
        """
        return self._known.of(self.network, **self._more_settings)

    @property
    def _more_settings(self) -> dict[str, Any]:
        """What the digest covers beside the network."""
        return {}

    def options(self, **given: Any) -> RunOptions:
        """Options with what is known of the members that the engine runs."""
        digest = self._ran or self.digest
        return RunOptions(digest=digest, training=self.training_rows, **given)

    def score(
        self,
        x: ArrayLike | Events,
        y: ArrayLike | None = None,
        *,
        steps: int | None = None,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
        first: int = 0,
    ) -> Scores:
        """Log-confidences of every member after every step, for inputs (n, T, ...) or images
        (n, 1, ...) held for `steps` steps.

        y (n,) are the labels, which calibration needs. Labels and class names come from x if x is
        an `Events` that has them. Inputs that end early have lengths (n,), or a mask (n, T) that is
        True up to their ends: the scores at its end stand for all later steps of an input. first:
        the number of the first input, where x is a part of more.
        """
        inputs = as_inputs(x)
        engine = self.engine_for(inputs, steps)
        options = self.options(
            batch_size=batch_size, steps=steps, lengths=lengths, mask=mask, first=first
        )
        known = self.class_names
        if isinstance(inputs, Events):
            y, known = inputs.labels if y is None else y, inputs.classes or known
        labels = None if y is None else as_labels(y, len(inputs), engine.classes, classes or known)
        return score(engine, inputs, labels, classes or known, options)

    def decide(
        self,
        rule: CalibratedRule,
        x: ArrayLike | Events,
        *,
        steps: int | None = None,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        batch_size: int = BATCH_SIZE,
        first: int | None = None,
    ) -> EarlyRun:
        """Decide on inputs (n, T, ...), or on images (n, 1, ...) held for `steps`, and stop
        computing where the rule stops.

        The decisions are those of `rule.decide` on the scores of the same inputs. `computed` (n,)
        counts the steps that were computed. A rule that was calibrated with another engine or with
        other members is refused, unless `any_engine` or `any_members` is True. groups are those of
        the inputs, for a rule with groups. lengths or mask say where inputs end, as for `score`.
        first: the number of the first input, on which randomised merging and members that are
        drawn for every input depend; without it, numbers begin at 0 and the random numbers of
        merging are fresh.
        """
        check_calibrated(rule)
        inputs = as_inputs(x)
        engine = self.engine_for(inputs, steps)
        allowed = {"any_engine": any_engine, "any_members": any_members}
        ends = {"lengths": lengths, "mask": mask}
        options = self.options(
            batch_size=batch_size, steps=steps, groups=groups, first=first, **ends, **allowed
        )
        return decide_early(engine, rule, inputs, options)

    def listen(self, recordings: Sequence[ArrayLike], *, window: int, event: Event) -> Heard:
        """Run the members over recordings, n arrays (T_i, ...), without a start or an end.

        `.scores` are for `Spotter.calibrate`: at every step the log-odds of the class `event`, a
        number, a name or several, from the counts over the last `window` steps. `.after(alarms,
        labels, steps=M)` are the scores after alarms, for the class rule of `watch`.
        """
        self._check_watching()
        if recordings is None or isinstance(recordings, (str, dict)):
            raise InputError(
                f"recordings is {quoted(recordings)}: give a list of arrays (T_i, ...), one for "
                "each recording."
            )
        if self.input_shape is None:
            for one in recordings[:1]:  # tells modules the shape of a step
                self.engine_for(as_array(one, "recordings[0]")[None])
        engine, names = self.current_engine(), self.class_names
        return listen(engine, recordings, window, event, names, self.options().digest)

    def watch(
        self,
        spotter: CalibratedSpotter,
        rule: CalibratedRule,
        *,
        window: int,
        event: Event | None = None,
        skip: int = 0,
        group: ArrayLike | None = None,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> WatchSession:
        """Watch a stream without an end: call `session.push(indices)` or `push(frame=array)`.

        A push returns a `Detection` where the spotter's score is above its threshold, later the
        rule's `Decision` on the steps after it, else None. window and event as for `listen`; by
        default the event of the scores that the spotter was calibrated on. skip: steps after a
        detection that the rule does not count, as in `.after(..., skip=)`, so that the rest of the
        event is not taken for what follows it. group: the stream's group, for a rule with groups.
        See `agreestop.engines.watching` for what is promised.
        """
        self._check_watching()
        engine, names = self.current_engine(), self.class_names
        options = self.options(any_engine=any_engine, any_members=any_members)
        return WatchSession(engine, spotter, rule, window, event, names, options, skip, group)

    def _check_watching(self) -> None:
        """Refuse members that cannot watch a stream without an end."""
        if self.fresh:
            raise InputError(
                "members are drawn for every input, and a stream without an end is one input: use "
                "fresh=False."
            )

    def live(
        self,
        rule: CalibratedRule,
        *,
        group: ArrayLike | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        number: int | None = None,
    ) -> LiveSession:
        """Watch one live input: call `session.push(indices)` or `session.push(frame=array)` for
        each step, until there is a decision.

        `session.end()` answers for a stream that is over. number: the number of the input, for
        rules with randomised merging and for members that are drawn for every input. By default it
        counts up, and the random numbers of merging are fresh. group: the input's group, for a rule
        with groups.

        Members that were edited since the engine copied their weights are not noticed here; see
        `engine`.
        """
        check_calibrated(rule)
        engine = self.engine
        options = self.options(any_engine=any_engine, any_members=any_members)
        plan = self._plan
        if plan is None or plan.engine is not engine or plan.calibrated is not rule:
            check_rule(rule, engine, options)
            self._plan = plan = LivePlan.of(engine, rule)
        return LiveSession(engine, rule, number, group, options=options, plan=plan)


# ---- the choice of an engine


def choose_engine(
    network: Runnable,
    name: str = "auto",
    density: float = 0.0,
    seed: int = 0,
    device: str = "auto",
) -> Engine:
    """The engine of that name, or with "auto" the one that fits; its `reason` then says why.

    density: the share of inputs that are active in a step, where it is known. device: "cpu" keeps
    "auto" from choosing the GPU. A posterior draws members for each input, from the seed, on the
    dense engine. Modules of the user run on the dense engine.
    """
    names = (*ENGINES, FreshMembers.name)
    if name not in names:
        raise InputError(f"engine is {name!r}: choose one of {', '.join(names)}.")
    if isinstance(network, (Posterior, ModulePosterior)):
        if name not in ("auto", FreshMembers.name):
            raise InputError(
                f"engine is {name!r}, but a posterior runs on {FreshMembers.name}: name that, or "
                "give members."
            )
        engine: Engine = FreshMembers(network, (seed, FRESH_DRAWS))
        reason = "members are drawn for each input"
    elif name == FreshMembers.name:
        raise InputError(
            f"engine is {name!r}, which draws members for each input: give the posterior, not "
            "members drawn from it."
        )
    else:
        check_network(network)
        on_gpu = check_device(device) != "cpu"
        chosen, reason = _fitting(network, density, on_gpu) if name == "auto" else (name, "")
        if chosen == "dense":
            engine = Dense(network, "cuda" if on_gpu and name == "auto" else "cpu")
        elif isinstance(network, SpikingNetwork):
            engine = _make(network, chosen)
        else:
            raise InputError(
                f"engine is {name!r}, but own modules run on the dense engine: choose dense or "
                "auto."
            )
    if name == "auto":
        engine.reason = f"The {engine.name} engine was chosen since {reason}."
    return engine


def _make(network: SpikingNetwork, name: str) -> Engine:
    if name.startswith("event-driven"):
        from .event_driven.engine import EventDriven

        return EventDriven(
            network, name.removeprefix("event-driven").removeprefix("-") or "float32"
        )
    if not torch.cuda.is_available():
        raise InputError(
            f"engine is {name!r}, but PyTorch finds no GPU: choose dense or event-driven, or auto."
        )
    return (
        Fused(network, bf16=name == "fused-bfloat16")
        if TRITON_AVAILABLE
        else Dense(network, "cuda")
    )


def _fitting(
    network: SpikingNetwork | ModuleMembers, density: float, on_gpu: bool
) -> tuple[str, str]:
    """The name of the engine that fits, and why."""
    if isinstance(network, ModuleMembers):
        return "dense", "the other engines do not know own modules"
    if on_gpu:
        return "fused", "there is a GPU"
    kind = type(network.config)
    if kind not in (FullyConnected, Convolutional):
        return "dense", f"the event-driven engine does not know {kind.__name__}"
    if find_spec("numba") is None:
        return "dense", "numba, which the event-driven engine needs, is not installed"
    if density >= DENSE_FROM:
        return "dense", f"{density:.0%} of the inputs are active in a step"
    return "event-driven", "there is no GPU in use and the inputs are sparse"


def lightest_engine(
    network: SpikingNetwork, calibrated: CalibratedRule, inputs: ArrayLike | Events
) -> Engine:
    """The event-driven engine with the lightest weights (int8, bfloat16, float32) whose decisions
    on these inputs are those of float32.

    Give inputs of the tuning split and a rule that was calibrated on some of them; another rule is
    refused. Then score, calibrate and decide with the engine that is returned, on other rows:
    calibration rows must not choose the engine.
    """
    full = choose_engine(network, "event-driven")
    _check_tuning_rows(full, calibrated, inputs)
    options = RunOptions(any_engine=True)
    reference = decide_early(full, calibrated, inputs, options).decisions
    for precision in LIGHT_PRECISIONS:
        engine = choose_engine(network, f"event-driven-{precision}")
        decisions = decide_early(engine, calibrated, inputs, options).decisions
        if np.array_equal(decisions.stop_index, reference.stop_index) and np.array_equal(
            decisions.sets, reference.sets
        ):
            return engine
    return full


def _check_tuning_rows(
    engine: Engine, calibrated: CalibratedRule, inputs: ArrayLike | Events
) -> None:
    """Refuse a rule that was calibrated on rows that are not among the inputs, by their ids or
    else by their scores.
    """
    rows = calibrated.rows
    if rows is None:
        raise InputError(
            "the rule does not say which rows it was calibrated on: calibrate it again, on rows of "
            "the tuning split."
        )
    if rows.ids is not None and rows.id_kind == "hash":
        known = np.isin(rows.ids, input_ids(inputs))
    else:
        columns = [int(time) - 1 for time in calibrated.checkpoints]
        known = rows.are_among(
            ScoredRows(
                score(engine, inputs, options=RunOptions(steps=columns[-1] + 1)).log_confidence,
                columns,
            )
        )
    if not known.all():
        raise InputError(
            f"{np.sum(~known)} of the {len(known)} rows that the rule was calibrated on are not "
            "among these inputs: give the inputs of the tuning split, and a rule that was "
            "calibrated on some of them."
        )
