"""Open answers: a language model sampled again and again, and how sure the votes are.

Checkpoint t is the t-th sample, in the order of request. Its answer is a string; the classes of a
row are its own answers, in the order in which they appeared, and ties of votes go to the first
shown. What is read at t follows from the first t samples alone. With counts a ≥ b of the two most
frequent answers (a sum of weights in place of a count, where samples have weights):

    beta      e = 2^-(a+b+1) · Σ_{k ≤ b} C(a+b+1, k)     the probability that the second answer has
              the larger share, for a uniform prior on the share (the criterion of adaptive
              consistency)
    share     e = (t - a + 1) / (t + 2)                  the share of other answers, with one more
              vote on either side
    learned   e = σ(b + Σ_j w_j φ_j)                     logistic regression on tuning rows

Everything is logarithmic. The Beta criterion is computed from whole numbers, without overflow.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    StrPath,
    as_checkpoints,
    as_ids,
    joined_members,
    read_file,
)
from agreestop.common.errors import quoted, shortened
from agreestop.common.levels import Rounding

from .checkpoints import Evidence, Index, at_checkpoints
from .leakage import ReadRows, RowScores, TunedRows, join_marks, mark_ids
from .risks import Risk
from .scores import Inputs, classes_of_texts, labels_of
from .tuning.logistic import regress

FORMS = ("beta", "share")
EXACT = 1e-9  # more than the rounding of logarithms of whole numbers
LEAST_ROWS = 20
EARLY = 5  # checkpoints from which a risk is learned: later votes are rarely split, or for long
LEAST_SLOPE = 0.1  # the fitted slope of the Beta logit is raised to this, since it divides
Normalise = Callable[[str], str]


class Answers(Inputs):
    """Answers of a language model to n questions, several samples each.

    Parameters
    ----------
    samples : sequence of sequences of str
        The answers to each question, in the order of request. Rows may differ in length: rules with
        checkpoints up to T need T samples of every row, and read no more.
    labels : sequence of str, optional
        The right answer to each question.
    cost : sequence of sequences of float, optional
        What each sample costs, for example its tokens.
    weights : sequence of sequences of float, optional
        What each sample weighs in the vote, at least 0, for example the exponential of a
        log-probability.
    ids : array (n,), optional
        Whole numbers or strings. Questions that were used before are recognised by them alone,
        since different questions may have the same answers.
    normalise : callable, optional
        Brings an answer to one form, for example ``lambda text: text.strip().lower()``. Give a
        stream answers in this form.

    Examples
    --------
    >>> import agreestop as ag
    >>> answers = ag.Answers([["18", "18", "17"], ["3", "2", "3"]], labels=["18", "4"])
    >>> answers
    Answers(2 questions, 3 samples, with labels)
    """

    readers = "AgreeStop with one answer and a risk such as VoteRisk()"
    label_words = "the right answer to each question, or labels='final'"
    names: tuple[tuple[str, ...], ...]

    def __init__(
        self,
        samples: Sequence[Sequence[str]],
        labels: Sequence[str] | None = None,
        *,
        cost: Sequence[Sequence[float]] | None = None,
        weights: Sequence[Sequence[float]] | None = None,
        ids: ArrayLike | None = None,
        normalise: Normalise | None = None,
    ) -> None:
        texts = _as_samples(samples, normalise)
        n, longest = len(texts), max(map(len, texts))
        self.samples, self.ids = texts, as_ids(ids, n)
        self.gold = None if labels is None else _as_gold(labels, n, normalise)
        self.times: tuple[float, ...] = tuple(range(1, min(map(len, texts)) + 1))
        self._cells = np.full((n, 3, longest), np.nan)
        names = []
        for row, some in enumerate(texts):
            found = {text: code for code, text in enumerate(dict.fromkeys(some))}
            self._cells[row, 0, : len(some)] = [found[text] for text in some]
            names.append(tuple(found))
        self.names, self.weighted = tuple(names), weights is not None
        for channel, given, what in ((1, weights, "weights"), (2, cost, "cost")):
            if given is not None:
                _fill(self._cells[:, channel], given, texts, what)

    @classmethod
    def load(
        cls,
        path: StrPath,
        cost: str | None = None,
        normalise: Normalise | None = None,
    ) -> Self:
        """Read a file of JSON Lines, one question on each line.

        Parameters
        ----------
        path
            Each line has `answers`, a list of strings, and where known `gold`, `tokens` or `cost`,
            `weights` and `id`.
        cost : str, optional
            The name of another list that says what each sample costs.
        normalise : callable, optional
            As in `Answers`.

        Returns
        -------
        Answers

        Examples
        --------
        >>> import tempfile, agreestop as ag
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(f"{folder}/answers.jsonl", "w") as file:
        ...         _ = file.write('{"answers": ["18", "18", "17"], "gold": "18"}')
        ...     ag.Answers.load(f"{folder}/answers.jsonl")
        Answers(1 questions, 3 samples, with labels)
        """
        text = read_file(path, "check the path").decode("utf-8-sig", errors="replace")
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        records = [_as_record(line, f"{path}, line {number}") for number, line in lines]
        if not records:
            raise InputError(f"{path} holds no questions: give a line of JSON for each.")
        first = records[0]
        costs = cost or ("tokens" if "tokens" in first else "cost")
        given = {}
        for name in ("gold", costs, "weights", "id"):
            has = [name in one for one in records]
            if any(has) and not all(has):
                raise InputError(
                    f"{path}, line {lines[has.index(False)][0]} has no {name!r} and others have: "
                    "give it on all lines."
                )
            given[name] = [one[name] for one in records] if all(has) else None
        if cost is not None and given[cost] is None:
            raise InputError(f"{path} has no {cost!r}: it has {', '.join(map(repr, first))}.")
        samples = [one["answers"] for one in records]
        known = {"cost": given[costs], "weights": given["weights"], "ids": given["id"]}
        try:
            return cls(samples, given["gold"], **known, normalise=normalise)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def __repr__(self) -> str:
        lengths = sorted({len(some) for some in self.samples})
        many = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"{lengths[0]}"
        known = {"labels": self.gold is not None, "cost": self._knows(2)}
        known |= {"weights": self._knows(1), "ids": self.ids is not None}
        words = ", ".join(name for name, there in known.items() if there)
        with_words = f", with {words}" if words else ""
        return f"Answers({len(self)} questions, {many} samples{with_words})"

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def unread(self) -> str:
        longest = max(map(len, self.samples))
        if longest == self.times[-1]:
            return ""
        return (
            f"Questions have {self.times[-1]} to {longest} samples, and the first {self.times[-1]} "
            "of each are read: leave short questions out to read more."
        )

    def _knows(self, channel: int) -> bool:
        return bool(np.isfinite(self._cells[0, channel, 0]))

    @property
    def cells(self) -> Floats:
        """(n, M, 3, T): the answer of each sample, from 0 in order of appearance, its weight and
        its cost. A risk reads the first t samples at time t, and no more.
        """
        n, channels, steps = self._cells.shape
        return np.broadcast_to(self._cells[:, None], (n, len(self.times), channels, steps))

    @property
    def sizes(self) -> tuple[int, int]:
        """One member, and T + 1 classes: the answers of a row, and last an answer not given."""
        return 1, int(self.times[-1]) + 1

    @property
    def labels(self) -> Integers | None:
        """The class (n,) of the right answer among the first T samples; T if it was not given."""
        if self.gold is None:
            return None
        return classes_of_texts(self.names, self.gold, int(self.times[-1]))

    def scored(self, columns: Sequence[int]) -> RowScores:
        marks = [mark_ids(np.array([repr(some)])) for some in self.samples]
        return ReadRows(None, join_marks(np.stack(marks)))

    def details(self, stops: Integers | Floats) -> dict[str, Any]:
        """The answers of each row, and what its samples up to the stop cost."""
        asked = np.arange(self._cells.shape[2]) < stops[:, None]
        paid = np.where(asked, self._cells[:, 2], 0.0).sum(axis=1)
        if not self._knows(2):
            return {"texts": self.names}
        most = float(self._cells[:, 2].sum(axis=1).max())
        return {"texts": self.names, "cost": paid, "largest_cost": most}

    def rows(self, rows: slice | Integers | Booleans) -> Self:
        """Some of the questions."""
        chosen, some = np.arange(len(self))[rows].tolist(), copy(self)
        some.samples = tuple(self.samples[row] for row in chosen)
        some.names = tuple(self.names[row] for row in chosen)
        some.gold = None if self.gold is None else tuple(self.gold[row] for row in chosen)
        some.ids = None if self.ids is None else self.ids[rows]
        some._cells = self._cells[rows]
        return some

    def at(self, times: Sequence[float]) -> Self:
        """The same, to be read at these numbers of samples alone."""
        if joined_members(times) or any(time != int(time) or time < 1 for time in times):
            raise InputError(
                "checkpoints of open answers are numbers of samples: give whole numbers such as "
                "range(1, 41)."
            )
        known = tuple(int(time) for time in as_checkpoints(times))
        short = [row for row, some in enumerate(self.samples) if len(some) < known[-1]]
        if short:
            raise InputError(
                f"answers: row {short[0]} has {len(self.samples[short[0]])} samples and the last "
                f"checkpoint is {known[-1]} ({len(short)} rows are too short): leave those rows "
                f"out, or give checkpoints up to {min(map(len, self.samples))}."
            )
        cut = copy(self)
        cut.times, cut._cells = known, self._cells[:, :, : known[-1]]
        shown = cut._cells[:, 0].max(axis=1).astype(np.int64) + 1
        cut.names = tuple(names[:count] for names, count in zip(self.names, shown, strict=True))
        return cut


class Transcript:
    """The samples of one input, as they come; `add` gives what a rule reads.

    paid: what `sample_until` has paid, samples after the stop included.
    """

    def __init__(self, checkpoints: Sequence[float]) -> None:
        steps = int(checkpoints[-1])
        self._cell, self._due = np.full((3, steps), np.nan), set(checkpoints)
        self.answers: list[str] = []
        self.paid = 0.0
        self._codes: dict[str, int] = {}

    def add(self, answer: str, cost: float | None, weight: float | None) -> Floats | None:
        """The samples so far (3, T) if this one is a checkpoint."""
        step = len(self.answers)
        text = _as_text(answer, "the answer", None)
        code = self._codes.setdefault(text, len(self._codes))
        for channel, name, value in ((1, "weight", weight), (2, "cost", cost)):
            if step and np.isfinite(self._cell[channel, 0]) != (value is not None):
                raise InputError(f"{name} is given with some samples alone: give it with all.")
            if value is not None:
                self._cell[channel, step] = _as_amount(value, name)
        self._cell[0, step] = code
        self.answers.append(text)
        return self._cell if step + 1 in self._due else None

    @property
    def names(self) -> tuple[str, ...]:
        """The different answers so far, in order of appearance."""
        return tuple(self._codes)

    @property
    def cost(self) -> float | None:
        """What the samples so far cost, where that is known."""
        paid = self._cell[2, : len(self.answers)]
        return float(paid.sum()) if len(paid) and np.isfinite(paid).all() else None


class OpenRisk(Risk):
    """A risk that reads votes of open answers."""

    reads_answers = True
    rows: TunedRows | None
    times: tuple[float, ...] | None

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        """0 for the most frequent answer and -∞ for others, (b, T + 1), and log e (b,).

        From samples (b, 3, T), of which the first t count.
        """
        return at_checkpoints(index, log_confidence, self._evidence_at)

    def _evidence_at(self, index: int, samples: Floats) -> Evidence:
        assert self.times is not None
        seen = samples[:, :, : int(self.times[index])]
        votes = _votes(seen, samples.shape[2] + 1)
        leads = np.arange(votes.shape[1]) == votes.argmax(axis=1)[:, None]
        return Evidence(np.where(leads, 0.0, -np.inf), self.log_risk(votes, seen))

    @abstractmethod
    def log_risk(self, votes: Floats, seen: Floats) -> Floats:
        """log e (b,) from votes (b, T + 1) and the samples so far (b, 3, t)."""

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(self, times=checkpoints)  # type: ignore[type-var]

    @property
    def tuned(self) -> TunedRows | None:
        return self.rows

    def remembering_ids(self, answers: Answers) -> Self:
        """The same, which remembers that these questions were used to choose it."""
        rows = TunedRows.of_rule(None, len(answers.times), answers.ids)
        return self if answers.ids is None else replace(self, rows=rows)  # type: ignore[type-var]

    @property
    def tunable(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class VoteRisk(OpenRisk, KeptInFiles):
    """The risk that the most frequent of open answers is not the label, from the votes so far.

    Parameters
    ----------
    form : {"beta", "share"}
        "beta" is 2^-(a+b+1) Σ_{k ≤ b} C(a+b+1, k) for the counts a ≥ b of the two most frequent
        answers. "share" is the share of all other answers, with one more vote on either side; it
        also reads weights.
    times : tuple of float, optional
        The numbers of samples at the checkpoints; a rule fills them in.
    rows : TunedRows, optional
        The tuning rows, where `tune` chose it.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> risk = ag.VoteRisk()
    >>> np.exp(risk.criterion(np.array([3, 2]), np.array([0, 2])))
    array([0.0625, 0.5   ])
    """

    form: str = "beta"
    times: tuple[float, ...] | None = None
    rows: TunedRows | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(
                f"form is {self.form!r:.80}: choose {' or '.join(FORMS)}; VoteRisk.fit makes one "
                "that is learned."
            )

    @staticmethod
    def criterion(a: Integers, b: Integers) -> Floats:
        """The logarithm of the Beta criterion for counts a ≥ b."""
        return np.array([_beta(*pair) for pair in zip(a.tolist(), b.tolist(), strict=True)])

    def log_risk(self, votes: Floats, seen: Floats) -> Floats:
        first, second = _two_largest(votes)
        if self.form == "share":
            total = np.add.accumulate(votes, axis=1)[:, -1]
            return np.asarray(np.log((np.maximum(total - first, 0.0) + 1) / (total + 2)))
        if np.isfinite(seen[:, 1]).any():
            raise InputError(
                "weights have no use for the Beta criterion, which counts answers: give "
                "risk=VoteRisk('share'), or leave weights out."
            )
        return self.criterion(first.astype(np.int64), second.astype(np.int64))

    def rounding(self, base: Rounding) -> Rounding:
        """Counts are the same in every run; weights are as exact as any score."""
        if self.form == "share":
            return replace(base, breaks_ties=False)
        return Rounding(EXACT, 0.0)

    @classmethod
    def fit(
        cls, answers: Answers, labels: str | None = None, times: Sequence[float] | None = None
    ) -> "LearnedVotes":
        """Learn a risk from tuning rows. Calibration and test must not use these rows.

        It is the Beta criterion, corrected by one sign of whose weight the rows decide: whether the
        other answers cost more than the leader's, or without costs how long the leader has
        come without a break.

        Parameters
        ----------
        answers : Answers
            Tuning rows. Where they have costs, the risk reads these too.
        labels : "final", optional
            The label is the answer after all samples, in place of the right answers.
        times : sequence of float, optional
            Numbers of samples; 1 to N unless given.

        Returns
        -------
        LearnedVotes
            A risk for AgreeStop.

        Examples
        --------
        >>> import numpy as np, agreestop as ag
        >>> rng = np.random.default_rng(0)
        >>> samples = [rng.choice(["a", "b"], 9, p=(q, 1 - q)).tolist() for q in rng.random(200)]
        >>> risk = ag.VoteRisk.fit(ag.Answers(samples), "final")
        >>> ag.AgreeStop(0.9, range(1, 10), 1, risk=risk).checkpoints[-1]
        9
        """
        if not isinstance(answers, Answers):
            raise InputError(f"answers is a {type(answers).__name__}: give ag.Answers(...).")
        if labels not in (None, "final"):
            raise InputError(f"labels is {labels!r:.80}: give 'final', or answers with labels.")
        if len(answers) < LEAST_ROWS:
            raise InputError(f"there are {len(answers)} tuning rows: give at least {LEAST_ROWS}.")
        data = answers.at(answers.times if times is None else times)
        last, with_cost = data._cells, data._knows(2)
        classes = last.shape[2] + 1
        final = _votes(last, classes).argmax(axis=1)
        truth = final if labels == "final" else labels_of(data)  # type: ignore[arg-type]
        logits, signs, misses = [], [], []
        for time in data.times[:EARLY]:
            seen = last[:, :, : int(time)]
            votes = _votes(seen, classes)
            logit, sign = _logit(votes, seen), _sign(votes, seen, with_cost)
            split = logit > _logit_of(int(time), 0)  # where all agree there is nothing to weigh
            logits.append(logit[split])
            signs.append(sign[split])
            misses.append((votes.argmax(axis=1) != truth)[split])
        features = np.column_stack([np.concatenate(logits), np.concatenate(signs)])
        missed = np.concatenate(misses)
        if missed.all() or not missed.any():
            raise InputError(
                "where the first votes of the tuning rows are split, the most frequent answer is "
                "never or always right, so there is nothing to learn: use VoteRisk()."
            )
        slope, weight, _ = regress(features, missed)
        learned = LearnedVotes(weight / max(slope, LEAST_SLOPE), with_cost, data.times)
        return learned.remembering_ids(data)


@dataclass(frozen=True, eq=False)
class LearnedVotes(OpenRisk, KeptInFiles):
    """A risk learned from tuning rows by `VoteRisk.fit`: logit e = logit Beta + weight · sign.

    The sign of where the votes go is, with costs, how much longer the other answers were than those
    of the leader, as a difference of mean logarithms; without costs, for how many samples the
    leader has come without a break, as a logarithm.

    Attributes
    ----------
    weight : float
        Of the sign, learned where early votes were split.
    with_cost : bool
        Whether the sign is about costs.
    times : (M,), optional
        The numbers of samples it was learned for.
    rows : optional
        The tuning rows, where they have ids.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> hard = rng.beta(1, 3, size=400)
    >>> samples = [["no" if rng.random() < p else "yes" for _ in range(10)] for p in hard]
    >>> risk = ag.VoteRisk.fit(ag.Answers(samples), "final")
    >>> type(risk).__name__, risk.with_cost
    ('LearnedVotes', False)
    """

    weight: float
    with_cost: bool
    times: tuple[float, ...] | None = None
    rows: TunedRows | None = field(default=None, repr=False)

    def log_risk(self, votes: Floats, seen: Floats) -> Floats:
        logit = _logit(votes, seen) + self.weight * _sign(votes, seen, self.with_cost)
        return -np.logaddexp(0.0, -logit)

    def rounding(self, base: Rounding) -> Rounding:
        return replace(base, breaks_ties=False)


@lru_cache(maxsize=2**16)
def _beta(a: int, b: int) -> float:
    """log( 2^-n Σ_{k ≤ b} C(n, k) ), n = a + b + 1: the terms fall from k = b ≤ n/2 on."""
    n = a + b + 1
    term = total = 1.0
    for k in range(b, 0, -1):
        term *= k / (n - k + 1)
        total += term
        if term < 1e-18 * total:
            break
    return math.log(math.comb(n, b)) + math.log(total) - n * math.log(2)


def _votes(seen: Floats, classes: int) -> Floats:
    """Votes (b, classes) of the samples (b, 3, t), added up in the order of the samples."""
    votes, rows = np.zeros((len(seen), classes)), np.arange(len(seen))
    weights = np.where(np.isnan(seen[:, 1]), 1.0, seen[:, 1])
    for step in range(seen.shape[2]):
        votes[rows, seen[:, 0, step].astype(np.int64)] += weights[:, step]
    return votes


def _two_largest(votes: Floats) -> tuple[Floats, Floats]:
    top = np.partition(votes, votes.shape[1] - 2, axis=1)[:, -2:]
    return top[:, 1], top[:, 0]


@lru_cache(maxsize=2**16)
def _logit_of(a: int, b: int) -> float:
    """The logit of the Beta criterion."""
    log = _beta(a, b)
    return log - math.log(-math.expm1(log))


def _logit(votes: Floats, seen: Floats) -> Floats:
    """The logit of the Beta criterion (b,) of counts, also where votes have weights."""
    counts = _counts(votes, seen)
    rows, leader = np.arange(len(votes)), votes.argmax(axis=1)
    own = counts[rows, leader]
    counts[rows, leader] = -1.0
    second = np.maximum(counts.max(axis=1), 0.0)
    pairs = zip(np.maximum(own, second).tolist(), second.tolist(), strict=True)
    return np.array([_logit_of(int(a), int(b)) for a, b in pairs])


def _counts(votes: Floats, seen: Floats) -> Floats:
    return _votes(np.where(np.arange(3)[:, None] == 1, np.nan, seen), votes.shape[1])


def _sign(votes: Floats, seen: Floats, with_cost: bool) -> Floats:
    """What `VoteRisk.fit` weighs beside the counts, (b,): see `LearnedVotes`."""
    t = seen.shape[2]
    agrees = seen[:, 0] == votes.argmax(axis=1)[:, None]
    if not with_cost:
        streak = np.where(agrees.all(axis=1), t, agrees[:, ::-1].argmin(axis=1))
        return np.log1p(streak)
    paid = seen[:, 2]
    if not np.isfinite(paid).all():
        raise InputError("cost is missing, and the risk was learned with it: give the cost.")
    logs, count = np.log1p(paid), np.count_nonzero(agrees, axis=1)
    own, others = (
        np.add.accumulate(np.where(chosen, logs, 0.0), axis=1)[:, -1]
        for chosen in (agrees, ~agrees)
    )
    longer = others / np.maximum(t - count, 1) - own / np.maximum(count, 1)
    return np.where(count < t, longer, 0.0)


def _as_samples(samples: Any, normalise: Normalise | None) -> tuple[tuple[str, ...], ...]:
    advice = "give one list of answers for each question, such as [['18', '18', '17']]"
    if isinstance(samples, (str, bytes)) or not isinstance(samples, (Sequence, np.ndarray)):
        raise InputError(f"samples is a {type(samples).__name__}: {advice}.")
    if not len(samples):
        raise InputError(f"samples is empty: {advice}.")
    rows = []
    for row, some in enumerate(samples):
        if isinstance(some, (str, bytes)) or not isinstance(some, (Sequence, np.ndarray)):
            raise InputError(f"samples: row {row} is {quoted(some)}: {advice}.")
        if not len(some):
            raise InputError(f"samples: row {row} has no answers: leave the question out.")
        where = f"samples: row {row}, answer"
        rows.append(
            tuple(_as_text(text, f"{where} {at}", normalise) for at, text in enumerate(some))
        )
    return tuple(rows)


def _as_text(text: Any, what: str, normalise: Normalise | None) -> str:
    if not isinstance(text, str):
        raise InputError(f"{what} is {quoted(text)}: an answer must be a string, such as '18'.")
    try:
        found = text if normalise is None else normalise(text)
    except Exception as error:  # whatever the function of the caller raises
        raise InputError(
            f"{what} is {quoted(text)}, and normalise fails on it ({shortened(error)}): let it "
            "return such an answer as it is."
        ) from error
    if not isinstance(found, str) or not found.strip():
        given = "" if normalise is None else " after normalise"
        raise InputError(
            f"{what} is {quoted(found)}{given}: give a text, such as 'none' for a sample without "
            "an answer."
        )
    return str(found)


def _as_gold(labels: Any, n: int, normalise: Normalise | None) -> tuple[str, ...]:
    if isinstance(labels, str) or len(labels) != n:
        raise InputError(f"labels must have one right answer for each of the {n} questions.")
    return tuple(
        _as_text(text, f"labels: entry {row}", normalise) for row, text in enumerate(labels)
    )


def _fill(array: Floats, given: Any, texts: Sequence[Sequence[str]], what: str) -> None:
    """Write numbers of every sample into an array (n, N)."""
    if len(given) != len(texts):
        raise InputError(f"{what} has {len(given)} rows for {len(texts)} questions: give one each.")
    for row, (numbers, some) in enumerate(zip(given, texts, strict=True)):
        size = len(numbers) if isinstance(numbers, (Sequence, np.ndarray)) else 0
        if size != len(some):
            raise InputError(
                f"{what}: row {row} has {size} numbers for {len(some)} answers: give one for each."
            )
        array[row, :size] = [_as_amount(value, f"{what}: row {row}") for value in numbers]


def _as_amount(value: Any, what: str) -> float:
    number = np.asarray(value)
    if number.shape != () or number.dtype.kind not in "iuf" or not 0 <= number < 1e100:
        raise InputError(f"{what} holds {quoted(value)}: give finite numbers of at least 0.")
    return float(number)


def _as_record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        raise InputError(f"{where} is not JSON: give one object on each line.") from None
    if not isinstance(record, dict) or "answers" not in record:
        raise InputError(f"{where} has no 'answers': give a list of strings.")
    return record
