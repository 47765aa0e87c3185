"""What a rule declares before calibration, and what all rules share.

A `Rule` is settings: what it reads off an input (`evidence`), what calibration needs of a labelled
example (`reduce`), how that becomes a policy (`fit`), and what then holds (`promise`). Nothing else
in the package asks which rule it has. What an optional extra needs of a rule has a default here
that says that it is not possible.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    StrPath,
    as_checkpoints,
    as_max_set_size,
    join_parts,
    joined_members,
    set_fields,
    warn_user,
)
from agreestop.common.levels import Rounding, Target, as_delta, as_target, in_words

from .checkpoints import Conditions, Evidence, Index, LabelledEvidence, Policy
from .confidence import Pooling, RiskNumbers, log_softmax
from .leakage import Overlap, RowScores, TunedRows, first_reuse
from .scores import Scores, ScoresLike, as_log_confidence, as_scores, load_scores

AT_END = ("answer", "abstain")
LONGEST = 6  # values of a sequence that are all shown
ALTERNATIVE = "calibrate AgreeStop, or SpikeCP with MergeConfidence"

Reduced = dict[str, NDArray[Any]]
"""What calibration needs of n examples: arrays (n, ...) by name."""
Fit = Callable[[Scores], Any]
"""A way to make a score or a risk from tuning data."""


@dataclass(frozen=True, eq=False)
class Terms:
    """What a rule promises, as data: what tables, reports and monitors may know of it.

    kind               one word
    target, delta      the probability of a hit, and the δ of a promise given the calibration data
    loss, max_loss     (C, C) costs, and the mean cost that is promised instead of a target
    largest_loss       for rules that have losses in place of classes: the largest there can be
    abstains           whether an input that nothing stopped is not answered, and cannot miss
    open_answers       whether each input has classes of its own, in the order of its samples
    tree               the tree whose nodes are answered, for rules that have one
    numbers            whether the answer is an interval around a number, in place of classes
    promises           whether anything is promised
    class_conditional  whether it is promised for each true class
    accumulated        whether it is promised for the answers that came by each time
    by_checkpoint      whether δ is divided among checkpoints
    block_names        the blocks of a gate; None without one
    pooling            how members are pooled, where the rule itself does it
    calibration        the kind of calibration, for rules that have several
    """

    kind: str
    target: Fraction | None = None
    delta: Fraction | None = None
    loss: Floats | None = None
    max_loss: Fraction | None = None
    promises: bool = True
    class_conditional: bool = False
    accumulated: bool = False
    by_checkpoint: bool = False
    block_names: tuple[str, ...] | None = None
    pooling: Pooling | None = None
    calibration: str | None = None
    largest_loss: float | None = None
    abstains: bool = False
    open_answers: bool = False
    numbers: bool = False
    tree: Any = None

    @property
    def has_classes(self) -> bool:
        """Whether an answer is a set of classes."""
        return self.largest_loss is None and not self.numbers

    @property
    def reads(self) -> str:
        """What a stream is given: "log_confidence", "answers", "numbers" or "risk"."""
        if self.open_answers:
            return "answers"
        if self.numbers:
            return "numbers"
        return "log_confidence" if self.largest_loss is None else "risk"

    @property
    def is_divided(self) -> bool:
        """Whether classes, blocks, times or checkpoints each have a promise of their own."""
        divided = self.class_conditional or self.accumulated or self.block_names is not None
        return divided or (self.delta is not None and self.by_checkpoint)


@dataclass(frozen=True, eq=False)
class PlainRule:
    """A calibrated rule as plain numbers, for code that does not run Python.

    kind           "risk", "checkpoints", "running", "stopping" or "confidence"
    exponent       r of the generalised mean over members
    temperatures   (M,), or None
    offsets        (M,) what is taken from every score or risk; -∞: nothing stops here
    thresholds     (rows, columns): a row for each checkpoint or block, a column for each class, or
                   one for all; scores are compared in the scale that users see
    blocks, slack  of a gate: (M,) the block of an input whose gate opens at a checkpoint
    """

    kind: str
    exponent: float
    temperatures: Floats | None
    offsets: Floats
    thresholds: Floats
    fixed_time: bool = False
    log_trim: float = 0.0
    final: bool = False
    blocks: Integers | None = None
    slack: float = 0.0


class Rule(ABC):
    """A rule before calibration. `evidence` is fixed before any calibration data are seen."""

    checkpoints: Sequence[float]
    max_set_size: int

    kinds: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The words by which the command line names this rule, and the options of each."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _BUILDERS.update(dict.fromkeys(cls.kinds, cls))

    @cached_property
    def joined_members(self) -> tuple[int, ...] | None:
        """The number of members at each checkpoint of a `Schedule`; None where all are judged."""
        return joined_members(self.checkpoints)

    @property
    @abstractmethod
    def terms(self) -> Terms:
        """What is promised."""

    @property
    def exact_target(self) -> Fraction:
        """The target exactly as written, of a rule that has one."""
        assert self.terms.target is not None
        return self.terms.target

    @property
    def tuned(self) -> TunedRows | None:
        """The rows that something of the rule was fitted on, if there were any."""
        return None

    @abstractmethod
    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        """What the rule reads off log-confidences (b, K, C) at one checkpoint, or one for each."""

    @abstractmethod
    def reduce(self, examples: LabelledEvidence) -> Reduced:
        """What calibration needs of each example."""

    @abstractmethod
    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        """The policy from what `reduce` gave; the evidence of the examples is not used."""

    @abstractmethod
    def best(self, evidence: Evidence) -> Integers:
        """The best class (b,) by evidence of one checkpoint; -1 where there is no order."""

    @abstractmethod
    def rounding(self, base: Rounding) -> Rounding:
        """How far numbers of one input differ between runs, where log-confidences do by `base`."""

    @abstractmethod
    def promise(self) -> str:
        """What holds after calibration, in words."""

    @abstractmethod
    def examples_needed(self, K: int = 1) -> int:
        """The least n with which K members could ever exclude a label or stop early."""

    @abstractmethod
    def calibrate(self, *data: Any, **conditions: Any) -> Any:
        """The calibrated rule; every rule has `calibration.Uncalibrated.calibrate`."""

    def read(
        self,
        given: Any,
        labels: ArrayLike | None = None,
        times: Sequence[float] | None = None,
    ) -> Scores:
        """What a verb was given, as one object with the inputs at all their times."""
        known: ScoresLike = given
        return as_scores(known, labels, times, self.checkpoints)

    def on(self, data: Any) -> Self:
        """The rule with what it takes from the data it is first given."""
        return self

    def read_one(self, given: ArrayLike) -> NDArray[Any]:
        """What a stream is given at one checkpoint, as (K, C)."""
        return as_log_confidence(given, "(K, C)")

    def worded(self, guarantee: str) -> str:
        """The guarantee in the words of what the rule answers."""
        return guarantee

    def history(self) -> Any:
        """What remembers the samples of one input, for rules that read all of them together."""
        return None

    def example_cell(self, members: int, classes: int) -> Floats:
        """What the rule may read at a checkpoint, (K, C), to try it out."""
        return np.full((members, classes), -math.log(classes))

    def read_outputs(self, outputs: NDArray[Any]) -> Floats:
        """What the rule reads off outputs (..., K, C) of members: counts of spikes, or logits."""
        return log_softmax(outputs.astype(np.float64))

    @classmethod
    def load(cls, path: StrPath, times: Sequence[float] | None = None) -> Any:
        """Read a file that the rule can calibrate and decide on, at some of its times."""
        return load_scores(path, times)

    @classmethod
    def load_labelled(
        cls, path: StrPath, purpose: str, times: Sequence[float] | None = None
    ) -> Any:
        """The same for a file that must hold labels, or what stands for them."""
        data = cls.load(path, times)
        if (data.labels if data.has_classes else data.loss) is None:
            raise InputError(f"{path} has no labels: {purpose} needs one label for each input.")
        return data

    # --- what optional extras need: tuning, engines, exported code

    def answer(self, final: bool = False) -> Any:
        """What is answered, for rules that answer the best classes."""
        raise InputError(
            f"the rule is a {type(self).__name__}, and only AgreeStop has a front: give one."
        )

    @property
    def one_threshold(self) -> bool:
        """Whether one threshold serves all checkpoints, so that its shape over time matters."""
        return False

    @property
    def reader(self) -> Any:
        """The score or risk that tuning replaces."""
        return self.untuned().reader

    def untuned(self) -> Self:
        """The rule without the score or risk that tuning will choose."""
        raise InputError(f"{type(self).__name__} has nothing to tune: give SpikeCP or AgreeStop.")

    def with_reader(self, reader: Any) -> Self:
        """The rule with another score or risk."""
        return self.untuned().with_reader(reader)

    def candidates(self, exponents: Sequence[float], members: int) -> Iterator[tuple[str, Fit]]:
        """The scores or risks that tuning tries, each with its name."""
        yield from self.untuned().candidates(exponents, members)

    def smaller_answers(self) -> Iterator[tuple[str, Self]]:
        """Variants with other sizes of answers, each with its name, where size has a price."""
        yield from ()

    def reads(self, members: int) -> bool:
        """Whether the rule can read scores of this number of members."""
        return True

    @property
    def takes_temperatures(self) -> bool:
        """Whether the rule has no temperatures and may have one for each checkpoint."""
        return False

    def with_temperatures(self, tuning: Scores) -> Self:
        """The rule with temperatures fitted on tuning scores, where it takes some."""
        return self

    def prefilter(self, policy: Policy) -> tuple[Floats, RiskNumbers] | None:
        """Thresholds (M,) that an input must be below to stop, and its risk; None: no such test."""
        return None

    def plain(self, policy: Policy) -> PlainRule:
        """The calibrated rule as plain numbers."""
        raise InputError(
            f"a {type(self).__name__} is a rule that exported code does not know: {ALTERNATIVE}."
        )

    @classmethod
    def build(cls, kind: str, **settings: Any) -> "Rule":
        """The rule from the words of the command line; see `build_rule`."""
        return cls(**settings)

    def __repr__(self) -> str:
        return short_repr(self)


_BUILDERS: dict[str, type[Rule]] = {}


def fixed(chosen: Any) -> Fit:
    """A score or risk that needs no tuning data."""
    return lambda data: chosen


def rule_kinds() -> tuple[str, ...]:
    """The words for all rules that can be built from words."""
    return tuple(_BUILDERS)


def rule_class(kind: str) -> type[Rule]:
    """The class of the rules of that kind, which knows what files they read."""
    if kind not in _BUILDERS:
        raise InputError(f"rule is {kind!r}: choose one of {', '.join(_BUILDERS)}.")
    return _BUILDERS[kind]


def build_rule(
    kind: str,
    target: Target | None,
    checkpoints: Sequence[float],
    max_set_size: int,
    **options: Any,
) -> Rule:
    """The rule of that kind, before calibration: the command line builds its rules here.

        build_rule("spikecp", "0.9", (20, 40, 60, 80), 3, pooling="p-values:45")
        build_rule("spikecp", 0.9, range(1, 81), 1, calibration="stop-aware")
        build_rule("agreestop", "0.9", range(1, 81), 1)
        build_rule("fixed-time", "0.9", range(1, 81), 1)
        build_rule("seenn", None, range(1, 81), 1, threshold=0.95)

    The target is 0.9 where it is None and the rule has one. An option of None or False was not
    given. An option that the rule does not have is refused.
    """
    rule_class(kind)
    known = {name: set(builder.kinds[name]) for name, builder in _BUILDERS.items()}
    options |= {"target": target}
    given = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    for name in given:
        if name not in known[kind]:
            others = [other for other in known if name in known[other]]
            named = " or ".join(", ".join(others).rsplit(", ", 1))
            raise InputError(
                f"{name} belongs to the rule {named}, not to {kind}: leave it out, or choose the "
                f"rule {named}."
            )
    if target is None and "target" in known[kind]:
        given["target"] = None if {"loss", "max_loss"} & set(given) else "0.9"
    known_to_all = {"checkpoints": checkpoints, "max_set_size": max_set_size}
    return _BUILDERS[kind].build(kind, **known_to_all, **given)


def validate(rule: Any, needs_target: bool = True) -> None:
    """Check checkpoints, set size, target and δ, and bring them to one form."""
    changes: dict[str, Any] = {
        "checkpoints": as_checkpoints(rule.checkpoints),
        "max_set_size": as_max_set_size(rule.max_set_size),
    }
    names = {field.name for field in fields(rule)}
    if "target" in names and (needs_target or rule.target is not None):
        changes["target"] = as_target(rule.target)
    if "delta" in names:
        changes["delta"] = as_delta(rule.delta)
    set_fields(rule, **changes)


def abstains(at_end: str) -> bool:
    """Whether `at_end` says that an input that nothing stopped is not answered."""
    if at_end not in AT_END:
        raise InputError(f"at_end is {at_end!r:.80}: choose one of {', '.join(AT_END)}.")
    return at_end == "abstain"


def coverage_promise(target: Fraction, class_conditional: bool, delta: Fraction | None) -> str:
    """The coverage guarantee in words."""
    whom = "for each true class, " if class_conditional else ""
    if delta is None:
        return (
            f"{whom}the answer holds the true class with probability at least {in_words(target)}, "
            "over the draw of the calibration examples and of a new example exchangeable with them."
        )
    sure = in_words(1 - delta)
    separate = ""
    if whom:
        separate = (
            f" The probability {sure} is for each class by itself, not for all classes at once."
        )
    return (
        f"{whom}with probability at least {sure} over the draw of the calibration examples, the "
        "answer holds the true class of a new example with probability at least "
        f"{in_words(target)}; calibration and new examples must be i.i.d.{separate}"
    )


def check_conditions(terms: Terms, conditions: Conditions, name: str) -> None:
    """Refuse what has no proof, or no use, for a rule of this name."""
    if (conditions.final or conditions.used) and not terms.promises:
        raise InputError(
            f"{name} promises nothing, so {conditions.used or 'final labels'} have no use: give "
            "SpikeCP or AgreeStop."
        )
    for what, part in (("weights", conditions.weights), ("people", conditions.people)):
        if part is not None and terms.delta is not None:
            raise InputError(f"there is no promise with both {what} and delta: leave one out.")
    if conditions.for_people is not None and (terms.is_divided or conditions.groups is not None):
        raise InputError(
            "for_people has no promise with groups, classes, a gate or accumulated: leave them "
            "out, or leave out for_people."
        )


def shortage(rule: Rule, reduced: Reduced, examples: LabelledEvidence, members: int) -> str:
    """One sentence if the rule can never exclude a label with these examples; else empty.

    It may be too few examples of some class, group or block.
    """
    needed: float = rule.examples_needed(members)
    terms, conditions, unit = rule.terms, examples.conditions, "examples"
    people, weights = conditions.people, conditions.weights
    never = "exclude a label, so its sets stay full and nothing stops early"
    if terms.largest_loss is not None or terms.abstains:
        never = "stop anything"
    if terms.numbers:
        never = "bound a number, so its intervals are infinite and nothing stops early"
    counts: Floats | None = None
    if people is not None and terms.target is not None:
        level = terms.target if conditions.for_people is None else conditions.for_people
        needed, unit = math.ceil(level / (1 - level)), "people with rows"
    elif weights is not None and conditions.max_weight is not None and terms.target:
        needed = float(terms.target / (1 - terms.target))
        unit = "times max_weight, as the sum of the weights,"
        counts = weights / conditions.max_weight

    def count(rows: Booleans) -> float:
        if people is not None:
            return len(np.unique(people[rows]))
        return int(np.count_nonzero(rows)) if counts is None else math.fsum(counts[rows])

    total = count(np.ones(len(examples), dtype=bool))
    if total < needed and not (terms.class_conditional and people is None):
        if people is not None:
            return (
                f"With calibration examples of {total} people this rule can never stop early: it "
                f"needs at least {needed} people."
            )
        if weights is None:
            return (
                f"With {len(examples)} calibration examples this rule can never {never}: it needs "
                f"at least {needed}."
            )
        return (
            f"The weights sum to {total:.4g} times max_weight, so this rule can never exclude a "
            f"label and nothing stops early: they must sum to at least {needed:.4g} times "
            "max_weight."
        )
    for what, names, inside in _parts(terms, reduced, examples):
        each = zip(names, map(count, inside.T), strict=True)
        rare = [f"{what} {name} has {some:g}" for name, some in each if some < needed]
        if rare:
            short = ", ".join(rare[:5]) + (", …" if len(rare) > 5 else "")
            return (
                f"{what.capitalize()}-conditional calibration needs at least {needed:g} {unit} of "
                f"each {what}, but {short}: the rule can never exclude a label by what it knows of "
                f"such a {what}."
            )
    return ""


def _parts(
    terms: Terms, reduced: Reduced, examples: LabelledEvidence
) -> Iterator[tuple[str, Sequence[object], Booleans]]:
    """Classes, groups and blocks with promises of their own: their names, and who is in them."""
    conditions = examples.conditions
    if terms.class_conditional:
        labels = range(examples.classes)
        yield "class", labels, examples.labels[:, None] == np.array(labels)
    if conditions.groups is not None and conditions.group_names is not None:
        yield "group", conditions.group_names, conditions.groups
    if terms.block_names is not None:
        # Inputs that never look ready do not stop early anyway.
        names = terms.block_names[:-1]
        yield "block", names, reduced["blocks"][:, None] == np.arange(len(names))


def refuse_used(
    rule: Rule,
    ids: ArrayLike | None,
    scored: RowScores,
    training: Overlap | None,
    what: str,
) -> None:
    """Refuse rows that the rule was tuned on, or that the members were trained on."""
    found = [] if rule.tuned is None else rule.tuned.overlaps("tuning", ids, scored)
    if reuse := first_reuse(found if training is None else [training, *found]):
        raise InputError(f"{what}: {reuse}")


def warn_of_sizes(rule: Rule, classes: int, sentence: str) -> None:
    """Warn of what makes the rule useless with these calibration examples."""
    if rule.max_set_size >= classes > 1:
        warn_user(
            f"max_set_size is {rule.max_set_size} and there are {classes} classes, so an answer "
            f"may hold all of them and says nothing: give at most {classes - 1}."
        )
    if sentence:
        warn_user(sentence)


def gather_evidence(rule: Rule, array: NDArray[Any], columns: Sequence[int]) -> Evidence:
    """The rule's evidence (n, M, ...) of inputs (n, ..., K, C), one checkpoint after another."""
    inputs = (np.ascontiguousarray(array[:, column], dtype=np.float64) for column in columns)
    return Evidence.stack([read_evidence(rule, index, one) for index, one in enumerate(inputs)])


def read_evidence(rule: Rule, index: Index, log_confidence: Floats) -> Evidence:
    """What the rule reads off its inputs; with a `Schedule`, off the members that have joined.

    nan is refused, because comparisons with it would silently drop classes.
    """
    evidence = _joined_evidence(rule, index, log_confidence)
    for part in (evidence.values, evidence.log_risk):
        # The smallest number is nan if any is. A dot product is no faster, and on many cores its
        # threads wait busily for one another while several judge.
        if part is not None and math.isnan(np.minimum.reduce(part, axis=None, initial=0.0)):
            raise InputError(
                f"the score or risk of this {type(rule).__name__} is nan for some inputs: check "
                "its constants."
            )
    return evidence


def _joined_evidence(rule: Rule, index: Index, log_confidence: Floats) -> Evidence:
    """Evidence of the first k members at the checkpoint (t, k), and of all without a schedule."""
    joined = rule.joined_members
    if joined is None:
        return rule.evidence(index, log_confidence)
    if not isinstance(index, np.ndarray):
        return rule.evidence(index, _first_members(log_confidence, joined[index]))
    members = np.array(joined)[index]
    parts = [np.flatnonzero(members == count) for count in np.unique(members)]
    if len(parts) <= 1:
        count = int(members.max(initial=1))
        return rule.evidence(index, _first_members(log_confidence, count))
    found = [
        rule.evidence(index[rows], _first_members(log_confidence[rows], int(members[rows[0]])))
        for rows in parts
    ]
    return join_parts(found)[np.argsort(np.concatenate(parts))]


def _first_members(log_confidence: Floats, count: int) -> Floats:
    given = log_confidence.shape[1]
    if given < count:
        raise InputError(
            f"log_confidence has {given} members and the schedule looks at {count}: give all that "
            "have joined."
        )
    return np.ascontiguousarray(log_confidence[:, :count])


def short_repr(rule: Any) -> str:
    """What a rule, score or risk was given and differs from the default, in short words.

        AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1)

    What tuning fills in beside its result, such as the rows it used, is left out.
    """
    hidden = ("times", "tuned", "rows")
    given = {one.name: getattr(rule, one.name) for one in fields(rule) if one.name not in hidden}
    if given.get("gate") is not None:
        given.pop("risk", None)  # it is the risk of the gate
    words = {name: _short(value) for name, value in given.items()}
    defaults = {field.name: _default(field) for field in fields(rule)}
    shown = (f"{name}={text}" for name, text in words.items() if text != defaults[name])
    return f"{type(rule).__name__}({', '.join(shown)})"


def _default(field: Field[Any]) -> str | None:
    """The default of a field in short words; None where it has none."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return None if default is MISSING else _short(default)


def _short(value: Any) -> str:
    if is_dataclass(value) and value.__dataclass_params__.repr:  # type: ignore[union-attr]
        return short_repr(value)
    if isinstance(value, Fraction):
        return in_words(value)
    if isinstance(value, np.ndarray):
        return f"array {value.shape}"
    if type(value) in (tuple, list):
        return _short_sequence(value)
    return repr(value)


def _short_sequence(values: Sequence[Any]) -> str:
    """A sequence: all of it where it is short, as a range where it is one, else its ends."""
    if len(values) <= LONGEST:
        return repr(tuple(values))
    steps = set(np.diff(values).tolist()) if all(isinstance(one, int) for one in values) else set()
    if len(steps) == 1:
        return repr(range(values[0], values[-1] + 1, values[1] - values[0]))
    return f"({values[0]!r}, {values[1]!r}, …, {values[-1]!r})"
