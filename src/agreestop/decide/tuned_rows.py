"""Which rows were used for training, tuning or calibration, so that calibration and evaluation can refuse them.

Rows are compared by their ids, where both sides have ids of one kind, and by their scores. One never switches the other off: ids may have
been numbered anew, and a row may have been scored again.

By scores, a row is eight numbers, its sketch: random projections of log(1 - log-confidence) at four of the rule's checkpoints. Two runs
of one input move a sketch by less than `SLACKS[0]` in float32, by less than `SLACKS[1]` where scores were stored as float16.

Other rows may look alike by chance: empty recordings have equal ids, and silent rows of spike counts have equal scores. The rows that
were used show how often: a row repeats at most as often as its scores do at the checkpoint where they repeat least, and n rows cannot
distinguish a rate below 4/n from 0. Where nothing ever repeats, as with scores that are not counts, a single row is enough. Scores that
are merely near each other thin out evenly: what the shell from one to ten slacks holds says how many to expect inside. Only more than all
that is called reuse.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, mix

from .checks import as_times, columns_of
from .rule_files import KeptInFiles
from .schedules import Schedule

Marks = NDArray[np.uint64]
Sketches = NDArray[np.float32]

NUMBERS = 8  # of a sketch
LOOKS = 4  # checkpoints that a sketch reads
SLACKS = (1e-5, 1.5e-3)  # float16 has 11 bits: errors of 3e-4 in a sketch, and hardly any of 1.5e-3
LEAST_DISTINCT = 0.3  # the share of different ids from which a row with the id and the scores of another is that row
SHELL = 10  # slacks
FARTHEST = 1e30  # a log-confidence below -1e30 is read as that: float32 ends at 3e38
LARGEST = 1e6  # no number of a sketch is as large: log(1e30) is 69
SHOWN = 5  # rows that a sentence lists


def _weights(count: int) -> Marks:
    return mix(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def _projections(size: int, count: int) -> Sketches:
    """(size, count) fixed random weights; the squares of each column add up to 1."""
    words = mix(np.arange(1, size * count + 1, dtype=np.uint64)) >> np.uint64(11)
    values = (words.astype(np.float64) / 2.0**52 - 1.0).reshape(count, size).T
    scaled = values / np.sqrt((values**2).sum(axis=0))
    return scaled.astype(np.float32)


def sketch_cells(log_confidence: NDArray[np.floating], count: int = NUMBERS) -> Sketches:
    """Up to NUMBERS projections (n, count) of the log-confidences (n, K, C) of one checkpoint."""
    flat = log_confidence.reshape(len(log_confidence), -1)
    below = np.minimum(np.negative(flat), np.asarray(FARTHEST).astype(np.promote_types(flat.dtype, np.float32)))
    values: Sketches = np.log(np.float32(1.0) + below.astype(np.float32))
    weights = np.ascontiguousarray(_projections(flat.shape[1], NUMBERS)[:, :count].T)
    # Unlike a matrix product, it gives a row the same numbers in a batch of any size.
    return np.einsum("nk,pk->np", values, weights)


def _looks(checkpoints: int) -> list[int]:
    """The indices of the checkpoints that a sketch reads: spread evenly, the last among them."""
    parts = min(LOOKS, checkpoints)
    return [-(-checkpoints * part // parts) - 1 for part in range(1, parts + 1)]


def _read_looks(cells: Sequence[Sketches]) -> Sketches:
    """(n, NUMBERS) from the projections of each look: the first projection of every look, then the second, and so on."""
    parts = len(cells)
    return np.stack([cells[number % parts][:, number // parts] for number in range(NUMBERS)], axis=1)


def sketch_rows(log_confidence: NDArray[np.floating], columns: Sequence[int]) -> Sketches:
    """Sketches (n, NUMBERS) of rows (n, ..., K, C) for a rule with these checkpoints."""
    looks = [columns[look] for look in _looks(len(columns))]
    return _read_looks([sketch_cells(log_confidence[:, look], -(-NUMBERS // len(looks))) for look in looks])


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Sketches (n, q) in the order of one key, so that near ones stand next to each other."""

    sketches: Sketches
    keys: Floats
    order: Integers

    @classmethod
    def of(cls, sketches: Sketches) -> Self:
        keys = cls.key(sketches)
        order = np.argsort(keys, kind="stable")
        return cls(sketches[order], keys[order], order)

    @staticmethod
    def key(sketches: Sketches) -> Floats:
        """One number for each sketch; it moves by no more than √q times what every number of the sketch moves by."""
        return sketches.astype(np.float64) @ _projections(sketches.shape[1], 1)[:, 0].astype(np.float64)

    def range_of(self, keys: Floats, slack: float) -> tuple[Integers, Integers]:
        """Where sketches stand that may be within the slack of others with these keys: from, and up to before."""
        reach = slack * math.sqrt(self.sketches.shape[1])
        return np.searchsorted(self.keys, keys - reach, "left"), np.searchsorted(self.keys, keys + reach, "right")

    def near(self, sketches: Sketches, slack: float, begin: Integers, end: Integers) -> Booleans:
        """Which sketches have one of these, from `begin` up to before `end`, within the slack in every number."""
        found = np.zeros(len(sketches), dtype=bool)
        active, at = np.flatnonzero(begin < end), begin.copy()
        while len(active):
            alike = np.abs(self.sketches[at[active], 0] - sketches[active, 0]) <= slack
            some = active[alike]
            found[some] = (np.abs(self.sketches[at[some]] - sketches[some]) <= slack).all(axis=1)
            at[active] += 1
            active = active[~found[active] & (at[active] < end[active])]
        return found


def _near(sketches: Sketches, known: Sketches, slack: float) -> Booleans:
    """Which sketches (n, q) have one of the known ones (m, q) within the slack in every number."""
    ordered = _Sorted.of(known)
    return ordered.near(sketches, slack, *ordered.range_of(ordered.key(sketches), slack))


def _twins(sketches: Sketches, slack: float) -> Booleans:
    """Which sketches have another one among them within the slack."""
    ordered = _Sorted.of(sketches)
    begin, end = ordered.range_of(ordered.keys, slack)
    own = np.arange(len(sketches))
    after = ordered.near(ordered.sketches, slack, own + 1, end)
    found = after | ordered.near(ordered.sketches, slack, begin, np.where(after, begin, own))
    twins = np.empty_like(found)
    twins[ordered.order] = found
    return twins


def mark_cells(log_confidence: NDArray[np.floating]) -> Marks:
    """One exact mark for each leading entry of an array (..., K, C), the same in float32 and float64."""
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(log_confidence, dtype=np.float32).reshape(*log_confidence.shape[:-2], -1)
    bits = flat.view(np.uint32).astype(np.uint64)
    return np.asarray((mix(bits) * _weights(flat.shape[-1])).sum(axis=-1, dtype=np.uint64))


def join_marks(marks: Marks) -> Marks:
    """(n, M) marks of cells to (n,) marks of rows."""
    return np.asarray((mix(marks) * _weights(marks.shape[-1])).sum(axis=-1, dtype=np.uint64))


def mark_rows(log_confidence: NDArray[np.floating], columns: Sequence[int]) -> Marks:
    """One exact mark for each row of an array (n, ..., K, C), read at some of its checkpoints."""
    return join_marks(np.stack([mark_cells(log_confidence[:, column]) for column in columns], axis=1))


def mark_ids(ids: ArrayLike) -> Marks:
    """Ids as 64-bit numbers: whole numbers stay what they are, strings are hashed."""
    array = np.asarray(ids)
    if array.dtype.kind in "iu":
        return array.astype(np.uint64)
    digests = b"".join(hashlib.blake2b(str(text).encode(), digest_size=8).digest() for text in array)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def kind_of_ids(ids: ArrayLike) -> str:
    """ "hash" for 64-bit hashes, which are unsigned, "number" for other whole numbers, "text" for strings."""
    dtype = np.asarray(ids).dtype
    return "hash" if dtype == np.uint64 else "number" if dtype.kind in "iu" else "text"


def _is_among(marks: Marks, known: Marks) -> Booleans:
    return np.isin(marks, known, kind="sort")  # the other method overflows on 64-bit words in numpy 2.0


def _rate(twins: Booleans) -> float:
    """The share of rows that repeat another one, and four standard errors of it; 0 if none does."""
    share = float(twins.mean()) if len(twins) else 0.0
    return min(1.0, share + 4 * math.sqrt(share / max(1, len(twins))))


def _repeats(marks: Marks) -> Booleans:
    _, inverse, counts = np.unique(marks, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse.reshape(-1)] > 1)


def _chance(rates: Sequence[float], n: int) -> float:
    """The rate at which fresh rows may repeat n rows whose parts repeat at these rates."""
    return min(1.0, max(min(rates), 4 / n)) if any(rates) else 0.0


def chance_of_ids(ids: Marks) -> float:
    """The rate at which fresh rows may have one of these ids."""
    return _chance([_rate(_repeats(ids))], max(1, len(ids)))


@dataclass(frozen=True)
class Overlap:
    """How many of `total` rows are among the rows that were used for something, `use`, by one way to compare them.

    by          what was compared: "ids", "scores", or "" where nothing could be
    chance      the rate at which fresh rows may look like those
    background  how many more rows may look like those, because scores lie near each other
    rows        indices of the first rows that were found
    unlike      whether ids are equal and scores are not: ids may have been numbered anew
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
    def of(cls, use: str, by: str, found: Booleans, chance: float, background: float = 0.0, unlike: bool = False) -> Self:
        """The overlap where these rows (n,) were found."""
        first = tuple(np.flatnonzero(found)[: SHOWN + 1].tolist())
        return cls(use, by, int(found.sum()), len(found), chance, background, first, unlike)

    @property
    def by_chance(self) -> float:
        """The most rows that chance explains."""
        spread = self.total * self.chance * (1 - self.chance) + self.background
        return self.total * self.chance + self.background + 4 * math.sqrt(spread)

    @property
    def reuse(self) -> str:
        """A sentence if more rows were used than chance explains, else an empty string."""
        if self.seen <= self.by_chance:
            return ""
        listed = ", ".join(map(str, self.rows[:SHOWN])) + (", …" if self.seen > SHOWN else "")
        which = f" (row{'s' if self.seen > 1 else ''} {listed})" if self.rows else ""
        found = f"{self.seen} of the {self.total} rows were used for {self.use}{which}"
        if self.unlike:
            advice = "if ids were numbered anew in each part, give others or leave them out, else keep the parts apart"
            return f"{found} by their ids, but their scores are others: {advice}."
        if self.use == "training":
            return f"{found}: take other rows, such as scores.rows(~scores.trained)."
        return f"{found}: keep tuning, calibration and test data apart, or drop these with scores.rows(others)."

    @property
    def note(self) -> str:
        """A sentence on what could not be checked, else an empty string."""
        if not self.by and self.use == "training":
            return "It is not known which rows the members were trained on, so these could not be compared with them."
        if not self.by:
            return f"Rows could not be compared with those used for {self.use}: there are no ids, or ids of another kind."
        if self.reuse or not self.chance:
            return ""
        if self.by == "ids":
            return f"{self.seen} of the {self.total} rows have ids of rows used for {self.use}; repeats among those explain as many."
        return (
            f"Rows were compared with those used for {self.use} by their scores, which repeat by chance: "
            f"up to {math.floor(self.by_chance)} reused rows would not be noticed; ids would show them."
        )


def or_unknown(training: Overlap | None, ensemble_digest: str) -> Overlap | None:
    """The overlap with training rows; one that says that it is unknown, where an ensemble is named that does not know its rows."""
    return Overlap("training") if training is None and ensemble_digest else training


def first_reuse(overlaps: Sequence[Overlap]) -> str:
    """The sentence on the first use of rows, by the way of comparing that finds most of them; empty if no row was used."""
    found = [overlap for overlap in overlaps if overlap.reuse]
    same = [overlap for overlap in found if overlap.use == found[0].use]
    return max(same, key=lambda overlap: overlap.seen).reuse if same else ""


class RowScores(Protocol):
    """What rows are compared by where their scores are known."""

    @property
    def sketches(self) -> Sketches:
        """(n, NUMBERS)"""
        ...

    @property
    def marks(self) -> Marks:
        """(n,) exact marks, for rules of 0.2."""
        ...


class ScoredRows:
    """Log-confidences (n, ..., K, C) of rows at the rule's checkpoints, read when they are needed: exact marks take as long as deciding."""

    def __init__(self, log_confidence: NDArray[Any], columns: Sequence[int]) -> None:
        self._log_confidence, self._columns = log_confidence, columns

    @cached_property
    def sketches(self) -> Sketches:
        return sketch_rows(self._log_confidence, self._columns)

    @cached_property
    def marks(self) -> Marks:
        return mark_rows(self._log_confidence, self._columns)


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Rows whose scores were read before: see `RowScores`."""

    sketches: Sketches
    marks: Marks


@dataclass(frozen=True, eq=False)
class TunedRows(KeptInFiles):
    """Rows that something was fitted on: their sketches and, where known, their ids.

    sketches   (n, M, NUMBERS) projections at every checkpoint or, once cut to a rule's checkpoints, (n, NUMBERS)
    chances    the rates at which fresh rows may repeat them, for each of SLACKS; known once they are cut
    ids        (n,) marks of the rows' ids; id_kind says what they are: hashes and numbers of one's own cannot be compared
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
            cut = self.sketches.ndim == 2 and len(self.chances) == len(SLACKS)
            if self.sketches.shape[-1] != NUMBERS or not (cut or self.sketches.ndim == 3):
                raise ValueError(f"sketches of shape {self.sketches.shape}")
            if not np.isfinite(self.sketches).all() or (np.abs(self.sketches) > LARGEST).any():
                raise ValueError("sketches that no scores have")

    @classmethod
    def of(cls, log_confidence: NDArray[np.floating], ids: ArrayLike | None = None) -> Self:
        """The rows of an array (n, M, K, C), one checkpoint after another."""
        cells = [sketch_cells(log_confidence[:, column]) for column in range(log_confidence.shape[1])]
        return cls.of_cells(cells, ids)

    @classmethod
    def of_cells(cls, cells: Sequence[Sketches], ids: ArrayLike | None = None) -> Self:
        """Rows from the projections (n, NUMBERS) of each of their checkpoints."""
        sketches = np.stack(cells, axis=1)
        return cls(sketches=sketches) if ids is None else cls(None, 0.0, mark_ids(ids), kind_of_ids(ids), sketches)

    @classmethod
    def of_rule(cls, sketches: Sketches, checkpoints: int, ids: ArrayLike | None = None) -> Self:
        """Rows from their sketches (n, NUMBERS) for a rule with so many checkpoints."""
        looks = len(_looks(checkpoints))
        chances = tuple(_chance_of_sketches(sketches, looks, slack) for slack in SLACKS)
        marks, kind = (None, "") if ids is None else (mark_ids(ids), kind_of_ids(ids))
        return cls(None, 0.0, marks, kind, sketches, chances)

    def __repr__(self) -> str:
        return f"TunedRows(n={len(self)})"

    def __len__(self) -> int:
        return max(len(part) for part in (self.sketches, self.marks, self.ids, ()) if part is not None)

    @property
    def is_cut(self) -> bool:
        """Whether these are rows at a rule's checkpoints."""
        return self.sketches is None or self.sketches.ndim == 2

    def cut(self, columns: Sequence[int], fitted: int) -> Self:
        """The same rows at some of the `fitted` checkpoints."""
        if self.sketches is not None and self.sketches.ndim == 3:
            looks = [columns[look] for look in _looks(len(columns))]
            sketches = _read_looks([self.sketches[:, look] for look in looks])
            chances = tuple(_chance_of_sketches(sketches, len(looks), slack) for slack in SLACKS)
            return replace(self, sketches=sketches, chances=chances)
        if list(columns) != list(range(fitted)):
            raise InputError("this score or risk was taken from a rule with other checkpoints: give it as it was fitted.")
        return self

    def also(self, other: Self | None) -> Self:
        """These rows and those of another tuned object with the same checkpoints."""
        if other is None:
            return self
        sketches = _joined(self.sketches, other.sketches, lambda one, two: _near(_flat(two), _flat(one), SLACKS[0]))
        marks = _joined(self.marks, other.marks, lambda one, two: _is_among(two, one))
        mixed = self.ids is not None and other.ids is not None and self.id_kind != other.id_kind
        ids = None if mixed else _joined(self.ids, other.ids, lambda one, two: _is_among(two, one))
        pairs = zip(self.chances or (0.0,) * len(SLACKS), other.chances or (0.0,) * len(SLACKS), strict=True)
        chances = tuple(max(pair) for pair in pairs) if sketches is not None else ()
        return type(self)(marks, max(self.chance, other.chance), ids, self.id_kind or other.id_kind, sketches, chances)

    def seen(self, rows: RowScores) -> Booleans:
        """Which of the given rows are among these, by their scores."""
        parts = [] if self.sketches is None else [_near(rows.sketches, self.sketches, SLACKS[0])]
        parts += [] if self.marks is None else [_is_among(rows.marks, self.marks)]
        return np.logical_or.reduce(parts)

    def are_among(self, others: RowScores) -> Booleans:
        """Which of these rows are among others, by their scores."""
        if self.sketches is not None:
            return _near(self.sketches, others.sketches, SLACKS[0])
        return np.zeros(len(self), dtype=bool) if self.marks is None else _is_among(self.marks, others.marks)

    def overlaps(self, use: str, ids: ArrayLike | None, scored: RowScores | None = None) -> list[Overlap]:
        """Compare rows with these, which were used for `use`: by ids of the same kind, and by their scores."""
        found, by_scores = [], None if scored is None else self._by_scores(use, scored)
        if ids is not None and self.ids is not None and self.id_kind in ("", kind_of_ids(ids)):
            known = _is_among(mark_ids(ids), self.ids)
            own = by_scores is not None and self.id_kind != "hash"  # ids that a user gave, and not hashes of inputs
            both = known & by_scores[1] if by_scores is not None else known
            if own and both.any() and len(np.unique(self.ids)) >= LEAST_DISTINCT * len(self.ids):
                found.append(Overlap.of(use, "ids", both, 0.0))
            else:
                found.append(Overlap.of(use, "ids", known, chance_of_ids(self.ids), 0.0, own and not both.any()))
        if by_scores is not None:
            found.append(by_scores[0])
        return found or [Overlap(use)]

    def _by_scores(self, use: str, scored: RowScores) -> tuple[Overlap, Booleans] | None:
        """The overlap by scores, and the rows (n,) that may be among these."""
        tried = []
        if self.marks is not None:
            seen = _is_among(scored.marks, self.marks)
            tried.append((Overlap.of(use, "scores", seen, self.chance), seen))
        if self.sketches is not None:
            for slack, chance in zip(SLACKS, self.chances, strict=True):
                seen = _near(scored.sketches, self.sketches, slack)
                overlap = Overlap.of(use, "scores", seen, chance)
                if overlap.reuse:  # rare, so it may take a while
                    shell = _near(scored.sketches[~seen], self.sketches, SHELL * slack)
                    overlap = replace(overlap, background=float(shell.sum()) / (SHELL - 1))
                tried.append((overlap, seen))
        if not tried:
            return None
        overlap = next((overlap for overlap, _ in tried if overlap.reuse), tried[0][0])
        return overlap, tried[-1][1]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows that members were trained on: hashes of their inputs, in increasing order, and the rate at which fresh inputs may equal one."""

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
        return self if other is None else type(self)(np.union1d(self.ids, other.ids), max(self.chance, other.chance))

    def find(self, ids: Marks) -> Booleans:
        """Which inputs, by their hashes, are among these rows."""
        if not len(self.ids):
            return np.zeros(len(ids), dtype=bool)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.asarray(self.ids[places] == ids)


def _chance_of_sketches(sketches: Sketches, looks: int, slack: float) -> float:
    """The rate at which fresh rows may be within the slack of these (n, NUMBERS), from how often they repeat at each look."""
    return _chance([_rate(_twins(sketches[:, look::looks], slack)) for look in range(looks)], len(sketches))


def _flat(sketches: Sketches) -> Sketches:
    return sketches.reshape(len(sketches), -1)


Part = TypeVar("Part", bound=NDArray[Any])


def _joined(one: Part | None, two: Part | None, repeated: Callable[[Part, Part], Booleans]) -> Part | None:
    """The rows of both parts; those of the second that the first has are left out."""
    if one is None or two is None:
        return two if one is None else one
    return np.concatenate([one, two[~repeated(one, two)]])  # type: ignore[return-value]


Fitted = TypeVar("Fitted", bound=Any)


def cut_fitted(fitted: Fitted, checkpoints: tuple[float, ...]) -> Fitted:
    """A fitted score or risk restricted to a rule's checkpoints: every field with an axis of checkpoints is cut.

    Without named times the object must have been fitted for exactly as many checkpoints as the rule has.
    """
    per_checkpoint = [field.name for field in fields(fitted) if field.metadata.get("per_checkpoint")]
    available = len(getattr(fitted, per_checkpoint[0]))
    kind = type(fitted).__name__
    if isinstance(checkpoints, Schedule) and fitted.times is not None and not isinstance(fitted.times, Schedule):
        raise InputError(
            f"the {kind} was fitted with all members at every time, but the rule has a schedule: fit it on scores.at(schedule)."
        )
    columns = columns_of(checkpoints, as_times(fitted.times, available, kind, checkpoints), kind)
    changes: dict[str, Any] = {"times": checkpoints, **{name: getattr(fitted, name)[columns] for name in per_checkpoint}}
    for field in fields(fitted):
        if isinstance(rows := getattr(fitted, field.name), TunedRows):
            changes[field.name] = rows.cut(columns, available)
    return replace(fitted, **changes)
