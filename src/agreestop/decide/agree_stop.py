"""AgreeStop: answer the best I classes as soon as the estimated risk e that they miss is small.

For a threshold λ the rule stops at the first checkpoint with e_t < λ. Small λ is safe. A
calibration example first fails at

    W(x, y) = inf{ λ : the answer at λ misses y },    k = ⌊(n+1)(1-p)⌋,    λ ≤ the k-th smallest W.

The λ that miss y are a union of intervals (u, v], so no λ ≤ W misses; a miss of the new example
needs W < W_(k), which by exchangeability has probability at most k/(n+1) ≤ 1-p. `answer_kinds`
gives the two numbers a checkpoint, `checkpoints` makes W of them, and `thresholds` makes λ of W.
`accumulated` has a promise and a test of its own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    StrPath,
    as_checkpoints,
    as_seed,
    is_integer,
    is_number,
    set_fields,
)
from agreestop.common.levels import (
    UNIT,
    UNITS,
    Rounding,
    Target,
    as_delta,
    as_target,
    in_words,
    least_n,
    quantile_rank,
)

from .answer_kinds import BestClasses, NodeOfTree, Tree
from .answers import Answers, Transcript, VoteRisk
from .calibration import Uncalibrated
from .checkpoints import Evidence, Index, LabelledEvidence, Policy
from .confidence import MergeConfidence, RiskNumbers, pooling_of
from .leakage import TunedRows
from .merging import as_pooling
from .risks import FixedTime, Gate, Risk, TopMass
from .rule import (
    Fit,
    PlainRule,
    Reduced,
    Rule,
    Terms,
    abstains,
    coverage_promise,
    fixed,
    validate,
)
from .scores import Scores, holds_answers, refuse_beside
from .thresholds import (
    OF_A_DEPTH,
    EachDepth,
    OneThreshold,
    allowed_by_costs,
    allowed_by_failures,
    as_loss,
    as_max_loss,
    check_costs,
    fit_thresholds,
    reduce_costs,
    refuse_never,
    tie_width,
    with_broken_ties,
)
from .tuning.give_up import GiveUp
from .tuning.learned_risk import LearnedRisk

TRIMS = (0.5, 0.25, 0.1, 0.0)
EACH = "each"


@dataclass(frozen=True, eq=False, repr=False)
class AgreeStop(Uncalibrated, KeptInFiles):
    """Stop when the best `max_set_size` classes are sure enough.

    The estimated risk that they miss must fall under a calibrated threshold.

    Parameters
    ----------
    target : float, str or Fraction
        The probability that the answer holds the true class, taken exactly as written; None with
        `loss`.
    checkpoints : sequence of float, or Schedule
        Times at which the rule may stop, increasing.
    max_set_size : int
        I, the largest answer that may stop early. The last answer may be larger.
    fill : bool
        False answers, of the I best classes, only those that the threshold keeps (smaller sets).
        True answers all of them and stops a little earlier.
    risk : Risk
        How sure the best classes are: `TopMass()` unless another is given.
    class_conditional : bool
        Keep the promise for each true class by itself.
    delta : float, optional
        δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw.
    gate : Gate, optional
        The promise for each block of times at which an input first looked ready. The rule uses the
        risk of the gate.
    loss, max_loss : array (C, C) and float, optional
        In place of a target (target=None): costs, and the mean cost that is promised.
    accumulated : bool
        The published promise for the inputs that stopped by each time, which needs delta.
    trim : float
        Between the two values of fill: the share of the threshold that a class must reach; 1 is
        fill=False and 0 is fill=True.
    at_end : {"answer", "abstain"}
        What becomes of an input that nothing stopped. "answer": its last answer may hold more than
        `max_set_size` classes. "abstain": it is not answered, and its set is empty.
    break_ties : bool
        For risks of few values, such as votes: an input decides with a threshold that a random
        number of its own makes a little smaller, and calibration allows for that exactly. Without
        it, ties make a rule safer than promised, and later.
    tree : Tree, optional
        Answer with a node of a tree of classes: at depth `depth` as soon as that is sure enough, or
        deeper. max_set_size counts nodes and is 1.
    depth : int, "each" or None
        With a tree: the depth that is asked, where 1 is the coarsest. "each" answers once for each
        depth in one pass, every depth with a threshold and a promise of its own
        (`Decisions.by_depth`). None asks for classes, with a threshold that keeps the promise for
        the first answers of all depths at once.
    seed : int
        Of these random numbers: the same number and seed give the same draw.
    give_up : GiveUp, optional
        With at_end="abstain": an input with too little hope ends before the last checkpoint. The
        rule uses the risk of it.

    Notes
    -----
    *Guarantee.* P(the answer holds the label) ≥ target, over the draw of the calibration examples
    and of a new example exchangeable with them. The risk must be fixed before calibration. With
    at_end="abstain", P(the input is answered, and the answer misses the label) ≤ 1 - target.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, test = ag.simulate_scores(600, steps=20, K=3, C=4, seed=1).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 21), max_set_size=1)
    >>> calibrated = rule.calibrate(calibration)
    >>> decisions = calibrated.decide(test)
    >>> bool(decisions.stop_time.mean() < 20)
    True
    """

    target: Target | None
    checkpoints: Sequence[float]
    max_set_size: int
    fill: bool = False
    risk: Risk = field(default_factory=TopMass)
    class_conditional: bool = False
    delta: Target | None = None
    gate: Gate | None = None
    loss: Floats | None = None
    max_loss: Target | None = None
    accumulated: bool = False
    trim: float = 1.0
    at_end: str = "answer"
    break_ties: bool = False
    seed: int = 0
    give_up: GiveUp | None = None
    tree: Tree | None = None
    depth: int | str | None = 1

    kinds: ClassVar = {
        "agreestop": (
            *("target", "pooling", "risk", "fill", "class_conditional", "delta", "gate", "loss"),
            *("max_loss", "accumulated", "trim", "at_end", "break_ties", "seed", "give_up"),
            *("tree", "depth"),
        ),
        "fixed-time": (
            *("target", "pooling", "class_conditional", "delta", "loss", "max_loss", "at_end"),
        ),
    }

    def __post_init__(self) -> None:
        validate(self, needs_target=self.loss is None and self.max_loss is None)
        if not isinstance(self.risk, Risk):
            raise InputError(
                f"risk is {self.risk!r:.80}: give a risk such as TopMass(...), TopMass.fit(...) or "
                "LearnedRisk.fit(...)."
            )
        if self.give_up is not None:
            self._use_give_up(self.give_up, self.risk)
        if self.gate is not None:
            self._use_gate(self.gate)
        self.risk.check_size(self.max_set_size)
        set_fields(self, risk=self.risk.cut(as_checkpoints(self.checkpoints)))
        if not (is_number(self.trim) and 0 <= self.trim <= 1):
            raise InputError(f"trim is {self.trim!r}: give a share of the threshold, from 0 to 1.")
        if self.fill and self.trim not in (0, 1):
            raise InputError(
                f"fill=True answers all of the best classes, so trim={self.trim!r} has no use: "
                "give one of them."
            )
        one_of = (self.target is None) == (self.loss is None)
        if one_of or (self.loss is None) != (self.max_loss is None):
            raise InputError(
                "give either a target, or target=None with loss, a cost matrix, and max_loss, the "
                "mean cost to promise."
            )
        if self.loss is not None and self.max_loss is not None:
            if self.delta is not None:
                raise InputError(
                    "a promise about loss is a mean over calibration draws: leave out delta, or "
                    "give a target."
                )
            loss = as_loss(self.loss)
            set_fields(self, loss=loss, max_loss=as_max_loss(self.max_loss, loss))
        abstains(self.at_end)
        if self.accumulated:
            if self.delta is None or self.gate or self.class_conditional or self.loss is not None:
                raise InputError(
                    "accumulated=True needs delta, for example 0.1, and goes without gate, loss "
                    "and class_conditional."
                )
            if abstains(self.at_end):
                raise InputError(
                    'accumulated=True is a promise about answers alone: leave out at_end="abstain".'
                )
            self.risk.own_limit(1 - self.exact_target)
            if self.break_ties:
                raise InputError("accumulated=True has no proof with break_ties: leave one out.")
        set_fields(self, seed=as_seed(self.seed))
        if self.risk.reads_answers:
            self._check_open()
        if self.tree is not None:
            self._check_tree(self.tree)

    def _check_tree(self, tree: Tree) -> None:
        """Refuse what has no proof, or no meaning, with a tree."""
        if not isinstance(tree, Tree):
            raise InputError(f"tree is {tree!r:.80}: give ag.Tree(...).")
        depth: Any = self.depth
        if depth not in (None, EACH) and not (is_integer(depth) and 1 <= depth <= tree.depth):
            raise InputError(
                f"depth is {depth!r:.80}: give a depth from 1 to {tree.depth}, 'each', or None for "
                "all at once."
            )
        used = self._used_for_sets(
            ("give_up", self.give_up is not None),
            ("fill or trim", self.fill or self.trim != 1),
            (f"risk={type(self.risk).__name__}", not self.risk.pools_classes),
        )
        if used:
            raise InputError(
                f"there is no promise with a tree and {used[0]}: leave it out, with "
                "max_set_size=1 and TopMass as the risk."
            )

    def _check_open(self) -> None:
        """Refuse what has no meaning for open answers."""
        if used := self._used_for_sets(("class_conditional", self.class_conditional)):
            raise InputError(
                f"{used[0]} is for classes that all inputs share, and open answers are different "
                "in each: leave it out, with max_set_size=1."
            )

    def _used_for_sets(self, *more: tuple[str, bool]) -> list[str]:
        """The names of the settings in use that are about sets of classes, and of some more."""
        known = (
            ("loss", self.loss is not None),
            ("gate", self.gate is not None),
            ("accumulated", self.accumulated),
            (f"max_set_size={self.max_set_size}", self.max_set_size > 1),
        )
        return [name for name, used in (*known, *more) if used]

    def _use_gate(self, gate: Gate) -> None:
        if not isinstance(gate, Gate):
            raise InputError(f"gate is {gate!r:.80}: give what Gate.fit returned.")
        if not self.risk.is_default and not isinstance(self.risk, Gate):
            raise InputError(
                "a rule with a gate uses the risk of the gate: give the risk to Gate.fit, and "
                "leave it out here."
            )
        set_fields(self, gate=gate.cut(as_checkpoints(self.checkpoints)))
        set_fields(self, risk=self.gate)

    def read(
        self, given: Any, labels: ArrayLike | None = None, times: Sequence[float] | None = None
    ) -> Any:
        """Scores, or `Answers` at the rule's checkpoints."""
        if not isinstance(given, Answers):
            if self.risk.reads_answers:
                kind = type(given).__name__
                raise InputError(f"the rule reads open answers, not {kind}: give ag.Answers(...).")
            return super().read(given, labels, times)
        refuse_beside("answers", labels=labels, times=times)
        if self.tree is not None:
            raise InputError(
                "a tree groups classes that all inputs share, and open answers are different in "
                "each: leave the tree out."
            )
        if not (self.risk.reads_answers or self.risk.is_default):
            raise InputError(
                f"risk is a {type(self.risk).__name__}, which reads scores: give VoteRisk() or "
                "VoteRisk.fit(...) for open answers, or leave it out."
            )
        return given.at(self.checkpoints)

    @classmethod
    def load(cls, path: StrPath, times: Sequence[float] | None = None) -> Any:
        if not holds_answers(path):
            return super().load(path, times)
        found = Answers.load(path)
        return found if times is None else found.at(times)

    @classmethod
    def load_labelled(
        cls, path: StrPath, purpose: str, times: Sequence[float] | None = None
    ) -> Any:
        if holds_answers(path):  # the promise may be about the answers themselves
            return cls.load(path, times)
        return super().load_labelled(path, purpose, times)

    def on(self, data: Any) -> Self:
        """With the Beta criterion for open answers, and the classes of a tree in their order."""
        if self.tree is not None:
            return replace(self, tree=self.tree.for_classes(data.classes))
        known = self.risk.reads_answers or not isinstance(data, Answers)
        return self if known else replace(self, risk=VoteRisk())

    def worded(self, guarantee: str) -> str:
        if not self.risk.reads_answers:
            return guarantee
        final = "class that the ensemble itself answers best at the last checkpoint"
        vote = f"most frequent answer of {self.checkpoints[-1]} samples"
        words = guarantee.replace(final, vote).replace("holds the true class", "is the right one")
        return words.replace("holds the most", "is the most") + (
            " The probability is over the random numbers that break ties too."
            if self.break_ties
            else ""
        )

    def history(self) -> Transcript | None:
        return Transcript(self.checkpoints) if self.risk.reads_answers else None

    def _use_give_up(self, give_up: GiveUp, given: Risk) -> None:
        if not isinstance(give_up, GiveUp):
            raise InputError(f"give_up is {give_up!r:.80}: give what GiveUp.fit returned.")
        if not abstains(self.at_end) or self.loss is not None:
            raise InputError(
                'give_up ends inputs without an answer: give at_end="abstain" and a target.'
            )
        checkpoints, risk = as_checkpoints(self.checkpoints), give_up.risk
        if risk is not None:  # not yet the rule's own
            own = given if self.gate is None else self.gate
            if risk is not own and not (self.gate is None and given.is_default):
                raise InputError(
                    "a rule with give_up uses its risk: give the risk, or the gate, to GiveUp.fit."
                )
            set_fields(self, risk=risk.cut(checkpoints))
        set_fields(self, give_up=replace(give_up.cut(checkpoints), risk=None))

    @cached_property
    def terms(self) -> Terms:
        return Terms(
            self.risk.kind or "agreestop",
            None if self.target is None else as_target(self.target),
            as_delta(self.delta),
            self.loss,
            None if self.max_loss is None else Fraction(self.max_loss),
            class_conditional=self.class_conditional,
            accumulated=self.accumulated,
            block_names=None if self.gate is None else self.gate.block_names,
            abstains=abstains(self.at_end),
            open_answers=self.risk.reads_answers,
            tree=self.tree,
        )

    @property
    def tuned(self) -> TunedRows | None:
        tuned = self.risk.tuned
        if self.give_up is None or self.give_up.rows is None:
            return tuned
        return self.give_up.rows.also(tuned)

    @property
    def _delta(self) -> Fraction | None:
        """δ, divided among the blocks of a gate."""
        delta = self.terms.delta
        return delta if delta is None or self.gate is None else delta / (len(self.gate.ends) + 1)

    @cached_property
    def _node(self) -> NodeOfTree:
        assert self.tree is not None
        depth = self.depth if isinstance(self.depth, int) else self.tree.depth
        return NodeOfTree(self.tree.nodes, depth, self.depth is None)

    @property
    def _one_for_each_depth(self) -> tuple[Self, ...]:
        """The rules of single depths that `depth="each"` joins; none otherwise."""
        if self.tree is None or self.depth != EACH:
            return ()
        return tuple(replace(self, depth=depth) for depth in range(1, self.tree.depth + 1))

    def answer(self, final: bool = False) -> Any:
        """What is answered; final: about the ensemble's own best class at the last checkpoint."""
        if self.tree is not None:
            return replace(self._node, final=final, abstains=abstains(self.at_end))
        keeps_all = self.fill or self.trim == 0
        log_trim = -math.inf if keeps_all else math.log(self.trim)
        return BestClasses(self.max_set_size, log_trim, final, abstains(self.at_end))

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        if self.tree is not None:
            return self._node.evidence(self.risk.logits(index, log_confidence))
        return self.risk.evidence(index, log_confidence, self.max_set_size)

    def rounding(self, base: Rounding) -> Rounding:
        rounding = self.risk.rounding(base)
        if self.tree is not None:
            return rounding
        trimmed = -math.inf < self.answer().log_trim < 0
        # Masses over the trim factor may lie among the risks that are exact.
        return replace(rounding, exact_above=math.inf) if trimmed else rounding

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        """W and W_η (n,), or the steps of the costs, and the numbers (n, ...) compared with λ."""
        answer, rounding = self.answer(examples.conditions.final), self.rounding(examples.rounding)
        evidence, labels = examples.evidence, examples.labels
        found: Reduced = {"numbers": answer.compared(evidence)}
        for rule in self._one_for_each_depth:
            own = rule.answer(answer.final).reduce(evidence, labels, rounding)
            found |= {f"{name} {rule.depth}": values for name, values in own.items()}
        if self.depth == EACH:
            return found
        may_run = evidence
        if self.give_up is not None:
            may_run = answer.shut(evidence, self.give_up.running(evidence.risk, rounding))
            evidence = answer.shut(evidence, self.give_up.running(evidence.risk))
        if self.gate is not None:
            may_run = answer.shut(may_run, self.gate.opened(may_run.risk)[0])
            opened, found["blocks"] = self.gate.opened(evidence.risk)
            evidence = answer.shut(evidence, opened)
        if self.loss is not None:
            check_costs(self.loss, examples)
            return found | reduce_costs(self.loss, answer, evidence, labels, rounding)
        if self.accumulated:
            failures = answer.failures(evidence, labels, None)
            ends = {"fails": failures.fails, "fails_end": failures.fails_end}
            return found | {"opens": failures.opens} | ends
        found |= answer.reduce(evidence, labels, rounding)
        if self.give_up is not None:  # in another run an input may just not be given up
            found["rounded"] = answer.reduce(may_run, labels, rounding)["rounded"]
        return found

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        fitted = []
        for rule in self._one_for_each_depth:
            own = {name: reduced[f"{name} {rule.depth}"] for name in OF_A_DEPTH}
            fitted.append(rule._fit({"numbers": reduced["numbers"], **own}, examples))
        return EachDepth(tuple(fitted)) if fitted else self._fit(reduced, examples)

    def _fit(self, reduced: Reduced, examples: LabelledEvidence) -> OneThreshold:
        answer, gate = self.answer(examples.conditions.final), self.gate
        rounding, width = self.rounding(examples.rounding), 0.0
        if self.break_ties:
            width = tie_width(rounding)
            reduced = with_broken_ties(reduced, width, self.seed)
        if self.accumulated:
            if examples.conditions.used:
                raise InputError(
                    f"accumulated=True has no promise with {examples.conditions.used}: leave them "
                    "out."
                )
            limit = self.risk.own_limit(1 - self.exact_target)
            return accumulate(answer, reduced, limit, self.exact_target, self._delta)
        if self.loss is None:
            allowed = allowed_by_failures(reduced, examples, self.exact_target, self._delta)
        else:
            allowed = allowed_by_costs(reduced, self.loss, Fraction(self.max_loss or 0))
        known = answer, reduced, examples, rounding, allowed, self.class_conditional, gate
        policy = fit_thresholds(*known)
        if self.risk.reads_answers and not (answer.final or answer.abstains):
            never = np.count_nonzero(examples.labels == examples.classes - 1)
            of_all = f"the {len(examples)} questions was never sampled"
            refuse_never(policy, f": the right answer of {never} of {of_all}" if never else "")
        lines = None if self.give_up is None else self.give_up.ceilings
        return replace(policy, width=width, seed=self.seed, ceilings=lines)

    def promise(self) -> str:
        if self.max_loss is not None:
            whom = "for each true class, " if self.class_conditional else ""
            words = (
                f"{whom}the mean cost of an answer is at most {in_words(Fraction(self.max_loss))}, "
                "over the draw of the calibration examples and of a new example exchangeable with "
                "them; an answer costs what the best of its classes costs in place of the true "
                "class."
            )
        elif self.accumulated:
            sure = in_words(1 - Fraction(self.terms.delta or 0))
            return (
                f"with probability at least {sure} over the draw of the calibration examples, for "
                "every time, the answers that came by then hold the true class with probability at "
                f"least {in_words(self.exact_target)}; calibration and new examples must be i.i.d."
            )
        else:
            words = coverage_promise(self.exact_target, self.class_conditional, self.terms.delta)
        if self.tree is not None:
            words += self._about_depths
        if abstains(self.at_end):
            wrong = "costs nothing"
            if self.target is not None:
                wrong = "counts as right"
            given_up = ", or that is given up," if self.give_up is not None else ""
            words = f"{words} An input that nothing stops{given_up} is not answered, which {wrong}."
        if self.gate is None:
            return words
        return f"for each block of times at which an input first looked ready, {words}"

    @property
    def _about_depths(self) -> str:
        """Of which answers of a tree the promise is."""
        if self.depth is None:
            return " This is promised of the first answers at all depths together."
        if self.depth == EACH:
            return (
                " This is promised of the first answer at each depth by itself, not of all depths "
                "together."
            )
        return (
            f" The answer is a node at depth {self.depth} or finer; at the last checkpoint it may "
            "be coarser."
        )

    def example_cell(self, members: int, classes: int) -> Floats:
        if self.risk.reads_answers:
            return np.array([0.0, np.nan, 0.0])[:, None].repeat(classes - 1, axis=1)
        return super().example_cell(members, classes)

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which the rule could ever stop early.

        It is for each class, group and block where the promise is for each of them.
        """
        if self.loss is not None and self.max_loss is not None:
            largest = Fraction(str(float(self.loss.max())))
            return math.ceil(largest / Fraction(self.max_loss)) - 1
        return least_n(self.exact_target, self._delta)

    def best(self, evidence: Evidence) -> Integers:
        """The most probable class (b,); -1 where an offset of -∞ leaves no order."""
        if self.tree is not None:
            return evidence.values[:, -1].argmin(axis=-1)
        best = evidence.values.argmax(axis=-1)
        return np.where(evidence.values[np.arange(len(best)), best] < np.inf, best, -1)

    # --- tuning, engines, exported code

    @property
    def one_threshold(self) -> bool:
        return True

    @property
    def reader(self) -> Risk:
        return self.risk

    def untuned(self) -> Self:
        if self.give_up is not None:
            raise InputError(
                "the rule has give_up, which holds its risk: tune the rule without it, then give "
                "the tuned risk to GiveUp.fit."
            )
        if self.tree is not None:
            raise InputError(
                "the rule has a tree: fit its risk with TopMass.fit(tuning), which is all that "
                "tuning could choose."
            )
        if self.gate is not None:
            raise InputError(
                "the rule has a gate, which holds its risk: tune the rule without it, then give "
                "the tuned risk to Gate.fit."
            )
        if self.risk.reads_answers:
            raise InputError("the rule reads open answers: tune it on ag.Answers(...).")
        if not self.risk.tunable:
            raise InputError(
                "a fixed time has no risk to tune: calibrate it as it is, or tune AgreeStop with "
                "another risk."
            )
        return replace(self, risk=TopMass())

    def with_reader(self, reader: Risk) -> Self:
        return replace(self, risk=reader)

    def candidates(self, exponents: Sequence[float], members: int) -> Iterator[tuple[str, Fit]]:
        for r in exponents if members > 1 else (1.0,):
            pooling = MergeConfidence(r)
            yield f"top mass, r={r:g}", fixed(TopMass(pooling))
            yield f"top mass with temperatures, r={r:g}", partial(TopMass.fit, pooling=pooling)
        if find_spec("sklearn"):
            yield "learned risk, r=1", partial(LearnedRisk.fit, max_set_size=self.max_set_size)

    def smaller_answers(self) -> Iterator[tuple[str, Self]]:
        if not self.fill and self.trim == 1 and self.max_set_size > 1:
            yield from ((f"trim {trim:g}", replace(self, trim=trim)) for trim in TRIMS)

    @property
    def takes_temperatures(self) -> bool:
        return self.gate is None and self.give_up is None and self.risk.takes_temperatures

    def with_temperatures(self, tuning: Scores) -> Self:
        return replace(self, risk=self.risk.with_temperatures(tuning))

    def prefilter(self, policy: Policy) -> tuple[Floats, RiskNumbers] | None:
        count = len(self.checkpoints)
        numbers = None if self.tree is not None else self.risk.numbers(count)
        if self.give_up is not None:
            return None  # an input above a threshold may be given up
        if numbers is None or numbers.fixed_time or not isinstance(policy, OneThreshold):
            return None
        if policy.by_checkpoint:
            return policy.values[0], numbers
        # A checkpoint that neither opens the gate nor stops the input changes nothing.
        gate = -math.inf if policy.blocks is None else policy.slack
        return np.full(count, max(float(policy.values.max()), gate)), numbers

    def plain(self, policy: Policy) -> PlainRule:
        if self.break_ties:
            raise InputError(
                "break_ties needs random numbers, which exported code has not: calibrate without "
                "it."
            )
        assert isinstance(policy, OneThreshold)
        if self.tree is not None:
            raise InputError("exported code knows no trees: calibrate without one.")
        if abstains(self.at_end):
            raise InputError(
                'exported code answers every input: calibrate with at_end="answer", or decide in '
                "Python."
            )
        numbers, answer = self.risk.numbers(len(self.checkpoints)), self.answer()
        if numbers is None or numbers.learned.shape[1]:
            raise InputError(
                f"the risk is a {type(self.risk.innermost).__name__}, which exported code does not "
                "know: calibrate with TopMass, as it is or tuned."
            )
        final = policy.answer.final  # type: ignore[attr-defined]
        return PlainRule(
            "risk",
            numbers.exponent,
            numbers.temperatures,
            numbers.offsets,
            policy.values[0][:, None],
            numbers.fixed_time,
            answer.log_trim,
            final,
            policy.blocks,
            policy.slack,
        )

    @classmethod
    def build(
        cls, kind: str, *, pooling: Any = None, risk: Risk | None = None, **settings: Any
    ) -> Rule:
        given = as_pooling(pooling)
        if given is not None and not isinstance(given, MergeConfidence):
            raise InputError(
                f"pooling is {pooling!r}, but {kind} pools confidences: give confidence:R, or "
                "choose the rule spikecp."
            )
        chosen = pooling_of(given)
        if kind == "fixed-time":
            return cls(fill=True, risk=FixedTime(chosen), **settings)
        if "give_up" in settings:
            risk = settings["give_up"].risk
        return cls(risk=risk or settings.get("gate") or TopMass(chosen), **settings)


BESIDE = 2 * UNITS * UNIT
"""The limit is fixed: a risk of exactly 1 - target is above it in every run."""


def accumulate(
    answer: BestClasses, reduced: Reduced, limit: float, target: Fraction, delta: Fraction | None
) -> OneThreshold:
    """Open one checkpoint after another, from the last one backwards, until a test fails.

    limit: the log-risk below which the risk itself says that misses are rarer than 1 - target.
    """
    opens = reduced["opens"]
    rows, checkpoints = np.arange(len(opens)), opens.shape[1]
    limit -= BESIDE
    thresholds = np.full(checkpoints, -np.inf)
    for first in range(checkpoints - 1, -1, -1):
        ready = opens < limit
        ready[:, :first] = False
        stops = np.where(ready.any(axis=1), ready.argmax(axis=1), checkpoints - 1)
        fails = np.where(ready[rows, stops], reduced["fails"][rows, stops], reduced["fails_end"])
        stopped = np.cumsum(np.bincount(stops, minlength=checkpoints))[first:].tolist()
        missed = np.bincount(stops[fails < limit], minlength=checkpoints)
        misses = np.cumsum(missed)[first:].tolist()
        counts = dict.fromkeys(zip(stopped, misses, strict=True))
        if not all(m and m - bad >= quantile_rank(m, target, delta) for m, bad in counts):
            break
        thresholds[first] = limit
    return OneThreshold(answer, thresholds[None], thresholds[None], by_checkpoint=True)
