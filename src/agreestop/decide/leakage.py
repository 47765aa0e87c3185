"""Can rows be trusted: which were used before, and which do not look exchangeable?

Rows that were used for training, tuning or calibration are refused later.

Rows are compared by their ids, where both sides have ids of one kind, and by their scores. One
never switches the other off: parts may number their ids alike, and a row may be scored again.

By scores, a row is eight numbers, its sketch: random projections of log(1 - log-confidence) at four
of the rule's checkpoints. Two runs of one input move a sketch by less than `SLACKS[0]` in float32,
and by less than `SLACKS[1]` where scores were stored as float16.

Other rows may look alike by chance: empty recordings have equal ids, and silent rows of spike
counts have equal scores. The rows that were used show how often. A row repeats at most as often as
its scores do at the checkpoint where they repeat least, and n rows cannot distinguish a rate below
4/n from 0. Where nothing ever repeats, as with scores that are not counts, a single row is enough.
Scores that are merely near each other thin out evenly: the number of rows in the shell from one to
ten slacks says how many to expect inside. Only more than all that is called reuse.

Further tests ask whether calibration rows and new rows look exchangeable. Each has a rate of false
alarms, and returns a question for the user, or an empty string. No promise depends on them: rows
that pass may still not be exchangeable.

    labels_in_blocks   equal labels are neighbours far more often than in a random order (1e-4)
    labels_misplaced   another class is answered in place of each label (1e-4)
    labels_unrelated   the best class is right hardly more often than by chance, as for a weak model
    inputs_differ      new inputs have another distribution of first log-risks (0.01)
    classes_differ     the classes are not as frequent as in calibration (1e-3)
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_times,
    columns_of,
    joined_members,
    mix,
)
from agreestop.common.errors import quoted
from agreestop.common.kept import KeptInFiles

Marks = NDArray[np.uint64]
Sketches = NDArray[np.float32]

NUMBERS = 8  # projections in a sketch
CHECKPOINTS = 4  # that a sketch reads
SLACKS = (1e-5, 1.5e-3)  # float16 has 11 bits: errors of 3e-4 in a sketch, and hardly any of 1.5e-3
LEAST_DISTINCT = 0.3  # from this share of different ids on, equal id and equal scores are one row
SHELL = 10  # slacks
FARTHEST = np.float32(1e30)  # log-confidences below -1e30 are read as that: float32 ends at 3e38
LARGEST = 1e6  # no number of a sketch is as large: log(1e30) is 69
SHOWN = 5  # rows that a sentence lists
LONGEST_NUMBER = 19  # digits from which on a text is no 64-bit number


# --- Sketches: a few numbers of the scores of a row, which hardly move when it is scored again


def _projections(size: int, count: int) -> Sketches:
    """(size, count) fixed random weights; the squares of each column add up to 1."""
    words = mix(np.arange(1, size * count + 1, dtype=np.uint64)) >> np.uint64(11)
    values = (words.astype(np.float64) / 2.0**52 - 1.0).reshape(count, size).T
    return (values / np.sqrt((values**2).sum(axis=0))).astype(np.float32)


def sketch_cells(log_confidence: NDArray[np.floating], count: int = NUMBERS) -> Sketches:
    """Up to NUMBERS projections (n, count) of log-confidences (n, K, C) of one checkpoint."""
    flat = log_confidence.reshape(len(log_confidence), -1)
    below = np.minimum(np.negative(flat), FARTHEST).astype(np.float32)
    weights = np.ascontiguousarray(_projections(flat.shape[1], NUMBERS)[:, :count].T)
    # Unlike a matrix product, it gives a row the same numbers in a batch of any size.
    return np.einsum("nk,pk->np", np.log(np.float32(1.0) + below), weights)


def _read_by_sketches(columns: Sequence[int]) -> list[int]:
    """The columns that a sketch reads: spread evenly over the checkpoints, the last among them."""
    parts = min(CHECKPOINTS, len(columns))
    return [columns[-(-len(columns) * part // parts) - 1] for part in range(1, parts + 1)]


def _sketch(cells: Sequence[Sketches]) -> Sketches:
    """(n, NUMBERS): the first projection of every checkpoint read, then the second, and so on."""
    numbers = (divmod(number, len(cells)) for number in range(NUMBERS))
    return np.stack([cells[part][:, number] for number, part in numbers], axis=1)


def sketch_rows(log_confidence: NDArray[np.floating], columns: Sequence[int]) -> Sketches:
    """Sketches (n, NUMBERS) of rows (n, ..., K, C) for a rule with these checkpoints."""
    read = _read_by_sketches(columns)
    count = -(-NUMBERS // len(read))
    return _sketch([sketch_cells(log_confidence[:, column], count) for column in read])


def near(sketches: Sketches, known: Sketches, slack: float, others: bool = False) -> Booleans:
    """Which sketches (n, q) have a known one (m, q) within the slack in every number.

    Known ones are put in the order of one key, which moves by no more than √q slacks between near
    ones. others: one at another index, for sketches among themselves.
    """
    weights = _projections(sketches.shape[1], 1)[:, 0].astype(np.float64)
    keys, known_keys = (one.astype(np.float64) @ weights for one in (sketches, known))
    order, reach = np.argsort(known_keys, kind="stable"), slack * math.sqrt(sketches.shape[1])
    turn = order if others else np.argsort(keys, kind="stable")  # searches in order are fast
    known, known_keys, sketches, keys = known[order], known_keys[order], sketches[turn], keys[turn]
    at = np.searchsorted(known_keys, keys - reach, "left")
    end = np.searchsorted(known_keys, keys + reach, "right")
    found, active = np.zeros(len(sketches), dtype=bool), np.flatnonzero(at < end)
    while len(active):
        places = at[active]
        alike = np.abs(known[places, 0] - sketches[active, 0]) <= slack
        if others:
            alike &= places != active
        some = active[alike]
        found[some] = (np.abs(known[places[alike]] - sketches[some]) <= slack).all(axis=1)
        at[active] += 1
        active = active[~found[active] & (at[active] < end[active])]
    result = np.empty_like(found)
    result[turn] = found
    return result


# --- Exact marks: of the scores in rules of 0.2 and in fingerprints, and of ids


def join_marks(marks: Marks) -> Marks:
    """Marks (..., m) as one mark (...)."""
    weights = mix(np.arange(1, marks.shape[-1] + 1, dtype=np.uint64)) | np.uint64(1)
    return np.asarray((mix(marks) * weights).sum(axis=-1, dtype=np.uint64))


def mark_rows(log_confidence: NDArray[np.floating], columns: Sequence[int]) -> Marks:
    """An exact mark of each row (n, ..., K, C) at some checkpoints, as if it were in float32."""
    cells = []
    for column in columns:
        with np.errstate(over="ignore"):
            cell = np.ascontiguousarray(log_confidence[:, column], dtype=np.float32)
        cells.append(join_marks(cell.reshape(len(cell), -1).view(np.uint32).astype(np.uint64)))
    return join_marks(np.stack(cells, axis=1))


def data_fingerprint(rows: Marks, labels: Integers) -> str:
    """A name for the calibration data, whatever the order of their rows."""
    marks = join_marks(np.column_stack([rows, labels.astype(np.uint64)]))
    return hashlib.sha256(np.sort(marks).astype("<u8").tobytes()).hexdigest()[:16]


def mark_ids(ids: ArrayLike) -> Marks:
    """Ids as 64-bit numbers: whole numbers stay what they are, strings are hashed."""
    array = np.asarray(ids)
    if array.dtype.kind in "iu":
        return array.astype(np.uint64)
    texts = (str(text).encode() for text in array)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def refuse_known_people(people: NDArray[Any], known: Marks | None) -> None:
    """Refuse people (n,) who have one of these marks; the number 7 and the text "7" are one."""
    if known is None:
        return
    persons = np.unique(people)
    texts = persons.astype(np.str_)
    seen = _is_among(mark_ids(persons), known) | _is_among(mark_ids(texts), known)
    whole = np.char.isdecimal(texts) & (np.char.str_len(texts) < LONGEST_NUMBER)
    seen[whole] |= _is_among(texts[whole].astype(np.uint64), known)
    if seen.any():
        raise InputError(
            f"{np.count_nonzero(seen)} of the {len(persons)} people are among those whom the "
            "rule was calibrated on, or who trained its models: evaluate on other people."
        )


def people_in_common(ours: Marks, theirs: Marks) -> int:
    """How many people two sets of marks share; the number 7 and the text "7" are one."""
    as_text, their_text = (mark_ids(marks.astype(np.str_)) for marks in (ours, theirs))
    seen = _is_among(ours, theirs) | _is_among(as_text, theirs) | _is_among(ours, their_text)
    return int(np.count_nonzero(seen))


def kind_of_ids(ids: ArrayLike) -> str:
    """ "hash" for unsigned 64-bit numbers, "number" for other whole numbers, "text" for strings."""
    dtype = np.asarray(ids).dtype
    return "hash" if dtype == np.uint64 else "number" if dtype.kind in "iu" else "text"


def _is_among(marks: Marks, known: Marks) -> Booleans:
    return np.isin(marks, known, kind="sort")  # the other method overflows in numpy 2.0


# --- How often fresh rows look like known ones by chance


def _rate(twins: Booleans) -> float:
    """The share of rows that repeat another one, and four standard errors; 0 if none does."""
    share = float(twins.mean()) if len(twins) else 0.0
    return min(1.0, share + 4 * math.sqrt(share / max(1, len(twins))))


def _chance(rates: Sequence[float], n: int) -> float:
    """The rate at which fresh rows may repeat n rows whose parts repeat at these rates."""
    return min(1.0, max(min(rates), 4 / max(1, n))) if any(rates) else 0.0


def chance_of_ids(ids: Marks) -> float:
    """The rate at which fresh rows may have one of these ids."""
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return _chance([_rate(counts[inverse.reshape(-1)] > 1)], len(ids))


def _chances_of_sketches(sketches: Sketches, checkpoints: int) -> tuple[float, ...]:
    """For each of SLACKS, the rate at which fresh rows may be within it of these (n, NUMBERS)."""
    parts = min(CHECKPOINTS, checkpoints)
    some = [sketches[:, part::parts] for part in range(parts)]
    rates = ([_rate(near(one, one, slack, others=True)) for one in some] for slack in SLACKS)
    return tuple(_chance(known, len(sketches)) for known in rates)


@dataclass(frozen=True)
class Overlap:
    """How many of `total` rows are among the rows that were used for something, `use`.

    by          what was compared: "ids", "scores", or "" where nothing could be
    chance      the rate at which fresh rows may look like the used ones
    background  how many more rows may look so, because scores lie near each other
    rows        indices of the first rows that were found
    unlike      whether ids are equal and scores are not: each part may count its ids from 0
    """

    use: str
    by: str = ""
    seen: int = 0
    total: int = 0
    chance: float = 0.0
    background: float = 0.0
    rows: tuple[int, ...] = ()
    unlike: bool = False

    @classmethod
    def of(cls, use: str, by: str, found: Booleans, chance: float, unlike: bool = False) -> Self:
        """The overlap where these rows (n,) were found."""
        first = tuple(np.flatnonzero(found)[:SHOWN].tolist())
        return cls(use, by, int(found.sum()), len(found), chance, 0.0, first, unlike)

    @property
    def by_chance(self) -> float:
        """The most rows that chance explains."""
        mean = self.total * self.chance
        return mean + self.background + 4 * math.sqrt(mean * (1 - self.chance) + self.background)

    @property
    def reuse(self) -> str:
        """A sentence if more rows were used than chance explains, else an empty string."""
        if self.seen <= self.by_chance:
            return ""
        listed = ", ".join(map(str, self.rows)) + ", …" * (self.seen > SHOWN)
        which = f" (row{'s' * (self.seen > 1)} {listed})" if self.rows else ""
        found = f"{self.seen} of the {self.total} rows were used for {self.use}{which}"
        if self.unlike:
            return (
                f"{found} by their ids, but their scores are others: if each part counts its ids "
                "from 0, give others or leave them out, else keep the parts apart."
            )
        if self.use == "training":
            return f"{found}: take other rows, such as scores.rows(~scores.trained)."
        return (
            f"{found}: keep tuning, calibration and test data apart, or drop these with "
            "scores.rows(others)."
        )

    @property
    def note(self) -> str:
        """A sentence on what could not be checked, else an empty string."""
        if not self.by and self.use == "training":
            return (
                "It is not known which rows the members were trained on, so these could not be "
                "compared with them."
            )
        if not self.by:
            return (
                f"Rows could not be compared with those used for {self.use}: "
                "there are no ids, or ids of another kind."
            )
        if self.reuse or not self.chance:
            return ""
        if self.by == "ids":
            return (
                f"{self.seen} of the {self.total} rows have ids of rows used for {self.use}; "
                "repeats among those explain as many."
            )
        return (
            f"Rows were compared with those used for {self.use} by their scores, which repeat by "
            f"chance: up to {math.floor(self.by_chance)} reused rows would not be noticed; "
            "ids would show them."
        )


def training_overlap(trained: Booleans | None, chance: float) -> Overlap | None:
    """How many inputs (n,) the members were trained on; None where they do not know."""
    return None if trained is None else Overlap.of("training", "ids", trained, chance)


def or_unknown(training: Overlap | None, ensemble_digest: str) -> Overlap | None:
    """The overlap with training rows, or an unknown one where a named ensemble does not say."""
    return Overlap("training") if training is None and ensemble_digest else training


def first_reuse(overlaps: Sequence[Overlap]) -> str:
    """The sentence on the first use of rows, by the comparison that finds most; else empty."""
    found = [overlap for overlap in overlaps if overlap.reuse]
    same = [overlap for overlap in found if overlap.use == found[0].use]
    return max(same, key=lambda overlap: overlap.seen).reuse if same else ""


class ScoredRows:
    """What rows are compared by, read from their log-confidences (n, ..., K, C) when it is needed.

    columns: the rule's checkpoints. Exact marks take as long as deciding.
    """

    def __init__(self, log_confidence: NDArray[Any], columns: Sequence[int]) -> None:
        self._log_confidence, self._columns = log_confidence, columns

    @cached_property
    def sketches(self) -> Sketches:
        """(n, NUMBERS)"""
        return sketch_rows(self._log_confidence, self._columns)

    @cached_property
    def marks(self) -> Marks:
        """(n,) exact marks, for rules of 0.2."""
        return mark_rows(self._log_confidence, self._columns)


@dataclass(frozen=True, eq=False)
class ReadRows:
    """What rows are compared by, where it was read before; without sketches, by ids alone."""

    sketches: Sketches | None
    marks: Marks


RowScores: TypeAlias = ScoredRows | ReadRows


def _marked(ids: ArrayLike | None) -> tuple[Marks | None, str]:
    """The marks of ids, and of what kind the ids are."""
    return (None, "") if ids is None else (mark_ids(ids), kind_of_ids(ids))


@dataclass(frozen=True, eq=False)
class TunedRows(KeptInFiles):
    """Rows that something was fitted on: their sketches and, where known, their ids.

    sketches   (n, M, NUMBERS) projections at every checkpoint or, once cut to a rule's checkpoints,
               (n, NUMBERS)
    chances    the rates at which fresh rows may repeat them, for each of SLACKS; known once cut
    ids        (n,) marks of the rows' ids; id_kind says what they are, because hashes cannot be
               compared with numbers of one's own
    marks      (n,) exact marks instead of sketches, and their chance: rules of 0.2 have these
    """

    marks: Marks | None = None
    chance: float = 0.0
    ids: Marks | None = None
    id_kind: str = ""
    sketches: Sketches | None = None
    chances: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 <= chance <= 1 for chance in (self.chance, *self.chances)):
            raise ValueError(f"a chance of {self.chance}, {self.chances}")
        if self.marks is not None and self.marks.ndim != 1:
            raise ValueError(f"marks of shape {self.marks.shape}")
        if self.sketches is not None:
            *axes, numbers = self.sketches.shape
            cut = len(axes) == 1 and len(self.chances) == len(SLACKS)
            if numbers != NUMBERS or not (cut or len(axes) == 2):
                raise ValueError(f"sketches of shape {self.sketches.shape}")
            if not (np.abs(self.sketches) <= LARGEST).all():
                raise ValueError("sketches that no scores have")

    @classmethod
    def of(cls, log_confidence: NDArray[np.floating], ids: ArrayLike | None = None) -> Self:
        """The rows of an array (n, M, K, C), one checkpoint after another."""
        return cls.of_cells([sketch_cells(cell) for cell in log_confidence.swapaxes(0, 1)], ids)

    @classmethod
    def of_cells(cls, cells: Sequence[Sketches], ids: ArrayLike | None = None) -> Self:
        """Rows from the projections (n, NUMBERS) of each of their checkpoints."""
        return cls(None, 0.0, *_marked(ids), np.stack(cells, axis=1))

    @classmethod
    def of_rule(
        cls, sketches: Sketches | None, checkpoints: int, ids: ArrayLike | None = None
    ) -> Self:
        """Rows from their sketches (n, NUMBERS) for a rule with this number of checkpoints."""
        chances = () if sketches is None else _chances_of_sketches(sketches, checkpoints)
        return cls(None, 0.0, *_marked(ids), sketches, chances)

    def __repr__(self) -> str:
        return f"TunedRows(n={len(self)})"

    def __len__(self) -> int:
        parts = (self.sketches, self.marks, self.ids)
        return max((len(part) for part in parts if part is not None), default=0)

    @property
    def is_cut(self) -> bool:
        """Whether these are rows at a rule's checkpoints."""
        return self.sketches is None or self.sketches.ndim == 2

    def cut(self, columns: Sequence[int], fitted: int) -> Self:
        """The same rows at some of the `fitted` checkpoints."""
        if self.sketches is not None and self.sketches.ndim == 3:
            sketches = _sketch([self.sketches[:, one] for one in _read_by_sketches(columns)])
            chances = _chances_of_sketches(sketches, len(columns))
            return replace(self, sketches=sketches, chances=chances)
        if list(columns) != list(range(fitted)):
            raise InputError(
                "this score or risk was taken from a rule with other checkpoints: "
                "give it as it was fitted."
            )
        return self

    def also(self, other: Self | None) -> Self:
        """These rows and the rows of another tuned object with the same checkpoints."""
        if other is None:
            return self
        mixed = self.ids is not None and other.ids is not None and self.id_kind != other.id_kind
        never = (0.0,) * len(SLACKS)
        return type(self)(
            _joined(self.marks, other.marks, _is_among),
            max(self.chance, other.chance),
            None if mixed else _joined(self.ids, other.ids, _is_among),
            self.id_kind or other.id_kind,
            _joined(self.sketches, other.sketches, _is_near),
            tuple(map(max, self.chances or never, other.chances or never)),
        )

    def seen(self, rows: RowScores) -> Booleans:
        """Which of the given rows are among these, by their scores."""
        return self._by_scores("", rows)[0][1]

    def are_among(self, others: RowScores) -> Booleans:
        """Which of these rows are among others, by their scores."""
        if self.sketches is not None and others.sketches is not None:
            return near(self.sketches, others.sketches, SLACKS[0])
        if self.marks is not None:
            return _is_among(self.marks, others.marks)
        return np.zeros(len(self), dtype=bool)

    def overlaps(
        self, use: str, ids: ArrayLike | None, scored: RowScores | None = None
    ) -> list[Overlap]:
        """Compare rows with these, used for `use`: by ids of the same kind, and by their scores."""
        found, compared = [], [] if scored is None else self._by_scores(use, scored)
        if ids is not None and self.ids is not None and self.id_kind in ("", kind_of_ids(ids)):
            known = _is_among(mark_ids(ids), self.ids)
            both = known & compared[-1][1] if compared else known
            own = compared and self.id_kind != "hash"  # ids that a user gave, not hashes of inputs
            distinct = len(np.unique(self.ids)) >= LEAST_DISTINCT * len(self.ids)
            if own and both.any() and distinct:
                found.append(Overlap.of(use, "ids", both, 0.0))
            else:
                unlike = bool(own) and not both.any()
                found.append(Overlap.of(use, "ids", known, chance_of_ids(self.ids), unlike))
        overlaps = [overlap for overlap, _ in compared]
        found += [overlap for overlap in overlaps if overlap.reuse][:1] or overlaps[:1]
        return found or [Overlap(use)]

    def _by_scores(self, use: str, scored: RowScores) -> list[tuple[Overlap, Booleans]]:
        """Overlaps by scores, from the strictest comparison on, and the rows (n,) in them."""
        tried = []
        if self.marks is not None:
            seen = _is_among(scored.marks, self.marks)
            tried.append((Overlap.of(use, "scores", seen, self.chance), seen))
        for slack, chance in zip(SLACKS, self.chances, strict=False):
            if self.sketches is None or scored.sketches is None:
                break
            seen = near(scored.sketches, self.sketches, slack)
            overlap = Overlap.of(use, "scores", seen, chance)
            if overlap.reuse:  # rare, so it may take a while
                shell = near(scored.sketches[~seen], self.sketches, SHELL * slack)
                overlap = replace(overlap, background=float(shell.sum()) / (SHELL - 1))
            tried.append((overlap, seen))
        return tried


def _is_near(sketches: Sketches, known: Sketches) -> Booleans:
    return near(sketches.reshape(len(sketches), -1), known.reshape(len(known), -1), SLACKS[0])


Part = TypeVar("Part", bound=NDArray[Any])


def _joined(
    one: Part | None, two: Part | None, among: Callable[[Part, Part], Booleans]
) -> Part | None:
    """The rows of both parts, without the rows of the second that are among the first."""
    if one is None or two is None:
        return two if one is None else one
    return np.concatenate([one, two[~among(two, one)]])  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows that members were trained on.

    ids     hashes of their inputs, in increasing order
    chance  the rate at which fresh inputs may equal one of them
    """

    ids: Marks
    chance: float = 0.0

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or not 0 <= self.chance <= 1:
            raise ValueError(f"hashes of shape {self.ids.shape}, a chance of {self.chance}")

    @classmethod
    def of(cls, ids: Marks) -> Self:
        """The rows with these hashes, of which some may be equal."""
        return cls(np.unique(ids), chance_of_ids(ids))

    def __repr__(self) -> str:
        return f"TrainingRows(n={len(self.ids)})"

    def also(self, other: Self | None) -> Self:
        """These rows and others."""
        if other is None:
            return self
        return type(self)(np.union1d(self.ids, other.ids), max(self.chance, other.chance))

    def find(self, ids: Marks) -> Booleans:
        """Which inputs, by their hashes, are among these rows."""
        first, after = (np.searchsorted(self.ids, ids, side) for side in ("left", "right"))
        return first < after


Kept = TypeVar("Kept", bound=Any)


def cut_fitted(fitted: Kept, checkpoints: tuple[float, ...]) -> Kept:
    """A fitted score or risk cut to a rule's checkpoints, in every field with a checkpoint axis.

    Without named times the object must have been fitted for as many checkpoints as the rule has.
    """
    known = {field.name: getattr(fitted, field.name) for field in fields(fitted)}
    cut = [field.name for field in fields(fitted) if field.metadata.get("per_checkpoint")]
    available, kind = len(known[cut[0]]), type(fitted).__name__
    all_members = fitted.times is not None and not joined_members(fitted.times)
    if all_members and joined_members(checkpoints):
        raise InputError(
            f"the {kind} was fitted with all members at every time, but the rule has a schedule: "
            "fit it on scores.at(schedule)."
        )
    columns = columns_of(checkpoints, as_times(fitted.times, available, kind, checkpoints), kind)
    changes = {name: known[name][columns] for name in cut}
    for name, rows in known.items():
        if isinstance(rows, TunedRows):
            changes[name] = rows.cut(columns, available)
    return replace(fitted, times=checkpoints, **changes)


# --- Do calibration rows and new rows look exchangeable?

RARE = 1e-4  # false alarms about labels
INPUTS, CLASSES = 0.01, 1e-3  # false alarms of the other two
LEAST_INPUTS, LEAST_FOR_CHANCE = 20, 50
LEAST_COPIED = 0.1  # of the rows: fewer may be recordings without any events
MOST_ALIKE = 1.5  # times as many rows may be alike at the last checkpoint as are copies
SAME_RISK = 0.01  # nearer log-risks count as equal: another run may round an input otherwise
# Wei and Dudley (2012), for the largest distance D of two empirical distributions:
# P(√(nm/(n+m))·D ≥ x) ≤ 2.2·e^(-2x²)
LARGEST_DISTANCE = 2.2
LEAST_EXPECTED = 5  # rarer classes are counted together
MOST_NAMED = 3
DIFFERENT_INPUTS = "These inputs differ from the calibration inputs"
SHUFFLED = "were the rows shuffled before they were divided (`scores.split` does that)?"


def labels_in_blocks(labels: Integers) -> str:
    """A question if equal labels (n,) stand together, as in rows that were sorted by class.

    In a random order two neighbours are equal with probability p = Σ n_c(n_c - 1)/(n(n - 1)), and
    the number of equal neighbours is spread no more than a binomial one, so
    P(at least r of n - 1) ≤ exp(-(n - 1)·KL(r/(n - 1), p)).
    """
    n, counts = len(labels), np.unique(labels, return_counts=True)[1]
    if n < 3 or len(counts) < 2:
        return ""
    p = float((counts * (counts - 1.0)).sum()) / (n * (n - 1))
    equal = int(np.count_nonzero(labels[1:] == labels[:-1]))
    if not _binomial_excess(equal, n - 1, p):
        return ""
    return (
        f"The labels of the calibration rows come in blocks ({equal} of {n - 1} neighbours are "
        f"equal, and about {p * (n - 1):.0f} would be in a random order): {SHUFFLED} If they were "
        "shuffled first and only sorted afterwards, this does no harm."
    )


def _binomial_excess(count: int, trials: int, p: float) -> bool:
    """Whether so large a count has a probability of at most RARE, by Chernoff's bound."""
    share = count / trials
    if share <= p or p <= 0:
        return p <= 0 < count
    distance = share * math.log(share / p)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - p))
    return trials * distance >= -math.log(RARE)


def rows_copied(sketches: Sketches | None, checkpoints: int, ids: NDArray[Any] | None) -> str:
    """A sentence if many rows (n, NUMBERS) stand several times, as after oversampling.

    Where the ids are hashes of the inputs, they tell. Else copies are alike at all checkpoints. Of
    rows that are alike by chance at the last one, such as counts of few spikes, most were different
    before.
    """
    parts = min(CHECKPOINTS, checkpoints)
    if sketches is None or parts < 2 or len(sketches) < LEAST_INPUTS:
        return ""
    n = len(sketches)
    if ids is not None and kind_of_ids(ids) == "hash":
        copies = alike_at_end = n - len(np.unique(ids))
    else:
        copies = n - _different(sketches)
        alike_at_end = n - _different(sketches[:, parts - 1 :: parts])
    if copies < LEAST_COPIED * n or alike_at_end > MOST_ALIKE * copies:
        return ""
    return (
        f"{copies} of the {n} calibration rows are copies of others, which new inputs are "
        "not, so the promise does not cover them: give each row once."
    )


def _different(numbers: Sketches) -> int:
    """How many rows (n, m) differ."""
    rows = np.ascontiguousarray(numbers)
    return len(np.unique(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))))


def risks_reversed(risk: Floats, loss: Floats) -> str:
    """A question if losses (n, M) are smaller where risks (n, M) are larger."""
    ranks = risk.argsort(axis=0, kind="stable").argsort(axis=0) - (len(risk) - 1) / 2
    shares = (ranks * (loss - loss.mean(axis=0))).mean(axis=1)
    if len(risk) < LEAST_FOR_CHANCE or shares.mean() * math.sqrt(len(risk)) >= -4 * shares.std():
        return ""
    return (
        "The loss is smaller where the risk is larger: is the risk a confidence, or the loss a "
        "reward? An input stops where its risk is small."
    )


def labels_misplaced(best: Integers, labels: Integers, classes: int) -> str:
    """A question if labels (n,) and the best columns of the scores (n,) do not belong together.

    One half of the rows chooses the one-to-one table from labels to columns that is right most
    often. The other half compares it with the table that leaves every label where it is, by the
    sign test on the rows where exactly one of both is right.
    """
    best, labels = best[best >= 0], labels[best >= 0]  # a risk may leave the classes unordered
    if len(labels) < LEAST_INPUTS or classes < 2:
        return ""
    shuffled = np.random.default_rng(0).permutation(len(labels))
    best, truth = best[shuffled], labels[shuffled]
    half = len(best) // 2
    table, same = _matching(best[:half], truth[:half], classes), truth == best
    moved = table[truth] == best
    gains, losses = (int(some[half:].sum()) for some in (moved & ~same, same & ~moved))
    if gains <= 2 * losses or not _binomial_excess(gains, gains + losses, 0.5):
        return ""
    labels = np.unique(truth)
    named = ", ".join(
        f"label {label} mostly has class {table[label]}"
        for label in labels[table[labels] != labels][:MOST_NAMED].tolist()
    )
    return (
        f"The best class is the label for {same.sum()} of {len(best)} rows; {named}. Are the "
        "labels and the columns of the scores in the same order, and do both count from 0?"
    )


def _matching(best: Integers, truth: Integers, classes: int) -> Integers:
    """(C,) the column of each label: the most frequent pairs first, each label and column once.

    Labels and columns that are left keep their own number where that is possible.
    """
    table, free = np.full(classes, -1), np.ones(classes, dtype=bool)
    pairs, counts = np.unique(truth * classes + best, return_counts=True)
    own = np.arange(classes) * (classes + 1)
    for pair in (*pairs[np.argsort(-counts, kind="stable")].tolist(), *own.tolist()):
        label, column = divmod(pair, classes)
        if table[label] < 0 and free[column]:
            table[label], free[column] = column, False
    table[table < 0] = np.flatnonzero(free)
    return table


def labels_unrelated(best: Integers, labels: Integers, classes: int) -> str:
    """A question if the best classes (n,) are the labels (n,) hardly more often than by chance."""
    best, labels = best[best >= 0], labels[best >= 0]
    n, right = len(labels), int(np.count_nonzero(best == labels))
    if n < LEAST_FOR_CHANCE:
        return ""
    columns, truth = (np.bincount(values, minlength=classes) / n for values in (best, labels))
    share = float(columns @ truth)
    most = n * share + math.sqrt(n * share * (1 - share))
    if max(columns.max(), truth.max()) == 1 or right > most:
        return ""
    return (
        f"The best class is the label for {right} of {n} rows, hardly more often than by chance "
        f"({n * share:.0f}). Are labels and scores of the same rows, in the same order?"
    )


def inputs_differ(known: Floats | None, new: Floats | None) -> str:
    """A question if first log-risks of new inputs (m,) are distributed otherwise than known (n,).

    It is the test of Kolmogorov and Smirnov, which equal values make more careful.
    """
    if known is None or new is None or min(len(new), len(known)) < LEAST_INPUTS:
        return ""
    sizes = len(known) * len(new) / (len(known) + len(new))
    distance = max(_excess(known, new), _excess(new, known), 0.0)
    if not LARGEST_DISTANCE * math.exp(-2 * sizes * distance**2) <= INPUTS or np.isnan(new).any():
        return ""
    return (
        f"{DIFFERENT_INPUTS} in their risks at the first checkpoint (in random order this happens "
        f"in at most {INPUTS:.0%} of batches). {SHUFFLED.capitalize()} Do they come from other "
        "people, sensors or days?"
    )


def _excess(above: Floats, below: Floats) -> float:
    """How far the empirical distribution of `above` exceeds that of `below` at most.

    Values nearer than SAME_RISK count as equal.
    """
    above, below = np.sort(above), np.sort(below)
    shares = np.arange(1, len(above) + 1) / len(above)
    others = np.searchsorted(below, above + SAME_RISK, side="right") / len(below)
    return float((shares - others).max())


def classes_differ(known: Integers | None, labels: Integers, names: Sequence[str] | None) -> str:
    """A question if classes are not as frequent in `labels` (m,) as in calibration, `known` (C,).

    It is the chi-square test of two samples, with Wilson and Hilferty's normal approximation; rare
    classes are counted together.
    """
    if known is None or min(len(labels), known.sum()) < LEAST_INPUTS:
        return ""
    table = np.stack([known, np.bincount(labels, minlength=len(known))]).astype(np.float64)
    sizes = table.sum(axis=1)
    smallest = sizes.min() / sizes.sum()
    rare = table.sum(axis=0) * smallest < LEAST_EXPECTED
    joined = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    joined = joined[:, joined.sum(axis=0) * smallest >= LEAST_EXPECTED]
    degrees = joined.shape[1] - 1
    if degrees < 1:
        return ""
    expected = joined.sum(axis=0) * (sizes / sizes.sum())[:, None]
    ratio = float(((joined - expected) ** 2 / expected).sum()) / degrees
    spread = 2 / (9 * degrees)
    normal = (ratio ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    if normal < NormalDist().inv_cdf(1 - CLASSES):
        return ""
    there, here = table / sizes[:, None]
    most = int(np.abs(here - there).argmax())
    name = most if names is None else quoted(names[most])
    return (
        f"The classes are not as frequent as in calibration (class {name}: {there[most]:.1%} "
        f"there, {here[most]:.1%} here; in random order this happens in about {CLASSES:.1%} of "
        f"batches): {SHUFFLED}"
    )


def coverage_too_low(coverage: float, low: float, confidence: float) -> str:
    """A question if coverage is below `low`, the least that the calibration draw explains."""
    if coverage >= low:
        return ""
    return (
        f"Coverage is {coverage:.3f}, below {low:.3f}: the draw of the calibration examples ends "
        f"lower with probability {(1 - confidence) / 2:.2g} at most. These inputs may not be "
        f"exchangeable with the calibration examples: {SHUFFLED[:-1]}, were members trained on "
        "some of the rows, or do these come from other people, sensors or days?"
    )
