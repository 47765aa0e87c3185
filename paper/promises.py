"""`python -m paper promises`: what each promise keeps and costs, on the score files of the figures.

    <output>/promises/numbers.json                        all records
    <output>/promises/blocks-<target>.png, .svg           coverage in each block of a gate
    <output>/promises/answered-<target>.png, .svg         coverage of the answers that came so far
    <output>/promises/latency.png, .svg                   latency of the gate against the rule
                                                          without one

Gate, marginal rule, fixed time and the published rule for accumulated errors (Ringel et al. 2024)
see the same scores and the same random divisions of the pool. Gates are fixed on the tuning split,
with `Gate.count_blocks` blocks. Everything looks at every step. The same command measures latency
against work, see `fronts`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import (
    Booleans,
    InputError,
    Integers,
    ProgressCallback,
    atomic_writer,
    make_folder,
    run_tasks,
)
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.checkpoints import Conditions, Evidence, LabelledEvidence
from agreestop.decide.risks import FixedTime, Gate
from agreestop.decide.tuning.splits import Pool, realisations
from agreestop.decide.tuning.tune import tune
from agreestop.report.contents import coverage_of_inputs, versions

from .outcomes import SpikeCounts
from .sources import POOL, TUNING, ScoreSource, load_source

LARGE, SMALL = ("mnist-dvs-sim", "cifar10"), ("gesture-sim", "n-mnist", "braille")
ENSEMBLES = ("deep", "variational")
SIZES, TARGETS, COUNTS, FEW = (1, 3), (0.9, 0.95), (200, 1000), 100
MEMBERS, DELTA = 6, 0.1
LARGEST_POOL, TUNING_ROWS = 3000, 2000
REALISATIONS, SEED = 20, 0
FINAL_TARGET = 0.99
PRICED_DATA, PRICED_TARGET, PRICES, PRICED_ROWS, PRICED_N = (
    ("cifar10", "deep"),
    0.99,
    (0.0, 0.2, 0.5),
    1000,
    200,
)
LEAST_SHARE, NEXT_SHARE = (
    0.05,
    0.03,
)  # inputs answered at the first time that is kept, and from one kept time to the next
# a draw breaks the published promise where this many inputs lie this many errors under the target
LEAST_INPUTS, CLEARLY = 50, 2.0

MARGINAL, GATE, FIXED = "AgreeStop", "AgreeStop with a gate", "one time for all inputs"
ACCUMULATED, ACCUMULATED_GATE = "accumulated, risk below α", "accumulated, thresholds from tuning"
FINAL, PRICED = "AgreeStop without labels", "tuned AgreeStop"


@dataclass(frozen=True)
class Part:
    """Coverage of one part of the test inputs, over all realisations; the interval counts every
    input of the pool once.
    """

    name: str
    share: float
    coverage: float
    low: float
    high: float


@dataclass(frozen=True)
class PromiseRecord:
    """One rule at one setting: means over realisations.

    latency, ratio       mean stopping time over T, and over that of the marginal rule
    stopped              share of inputs that stopped before T
    vacuous              share of realisations in which nothing stopped before T
    broken               share of realisations in which the answers up to some time clearly missed
                         more than 1 - target
    blocks               coverage in the blocks of the gate of this setting; only the gated rule
                         promises it
    answered             coverage of the answers up to a few times
    accuracy, accuracy_T share of inputs whose best class is right, at the stop and at T
    price                the price on set size, for tuned rules
    """

    data: str
    simulated: bool
    ensemble: str
    rule: str
    max_set_size: int
    target: float
    n: int
    coverage: float
    low: float
    high: float
    latency: float
    set_size: float
    stopped: float
    vacuous: float
    broken: float
    ratio: float | None = None
    blocks: tuple[Part, ...] = ()
    answered: tuple[Part, ...] = ()
    accuracy: float | None = None
    accuracy_T: float | None = None
    price: float | None = None
    notes: str = field(default="")


@dataclass(frozen=True, eq=False)
class _Runs:
    """What became of every input of the pool in every realisation, (R, n)."""

    tested: Booleans
    hits: Booleans
    stops: Integers
    sizes: Integers

    @classmethod
    def of(cls, rule: AgreeStop, examples: LabelledEvidence, truth: Integers, n: int) -> _Runs:
        pool = Pool.of(rule, examples)
        shape = REALISATIONS, len(pool)
        tested, hits = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        stops, sizes = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for repeat, run in enumerate(realisations(rule, pool, n, REALISATIONS, SEED)):
            tested[repeat, run.test], stops[repeat, run.test] = True, run.stops
            hits[repeat, run.test] = run.sets[np.arange(len(run.test)), truth[run.test]]
            sizes[repeat, run.test] = np.count_nonzero(run.sets, axis=1)
        return cls(tested, hits, stops, sizes)

    def part(self, name: str, chosen: Booleans) -> Part | None:
        """Coverage of the tested inputs that are chosen, (R, n) or (n,)."""
        rows = self.tested & chosen
        if not rows.any():
            return None
        coverage = coverage_of_inputs(self.hits, rows)
        return Part(
            name,
            float(rows.sum() / self.tested.sum()),
            float(coverage),
            coverage.low,
            coverage.high,
        )

    def record(
        self,
        source: ScoreSource,
        rule: AgreeStop,
        name: str,
        n: int,
        gate: Gate | None = None,
        blocks: Any = (),
    ) -> PromiseRecord:
        last, target = len(rule.checkpoints) - 1, float(rule.target or 0)
        whole = coverage_of_inputs(self.hits, self.tested)
        early = self.tested & (self.stops < last)
        parts = (
            []
            if gate is None
            else [self.part(words, blocks == block) for block, words in enumerate(gate.block_names)]
        )
        answered = [
            self.part(f"{rule.checkpoints[index]:g}", self.stops <= index)
            for index in range(last + 1)
        ]
        return PromiseRecord(
            data=source.data,
            simulated=source.simulated,
            ensemble=source.ensemble,
            rule=name,
            max_set_size=rule.max_set_size,
            target=target,
            n=n,
            coverage=float(whole),
            low=whole.low,
            high=whole.high,
            latency=float((self.stops[self.tested] + 1).mean() / (last + 1)),
            set_size=float(self.sizes[self.tested].mean()),
            stopped=float(early.sum() / self.tested.sum()),
            vacuous=float((~early.any(axis=1)).mean()),
            broken=float(
                np.mean([self._breaks(repeat, target, last) for repeat in range(len(self.tested))])
            ),
            blocks=tuple(part for part in parts if part is not None),
            answered=_thin(
                [part for part in answered if part is not None and part.share >= LEAST_SHARE]
            ),
        )

    def _breaks(self, repeat: int, target: float, last: int) -> bool:
        rows = self.tested[repeat]
        counts = np.cumsum(np.bincount(self.stops[repeat, rows], minlength=last + 1))
        hits = np.cumsum(
            np.bincount(self.stops[repeat, rows & self.hits[repeat]], minlength=last + 1)
        )
        enough = counts >= LEAST_INPUTS
        error = np.sqrt(target * (1 - target) / np.maximum(counts, 1))
        return bool((hits / np.maximum(counts, 1) < target - CLEARLY * error)[enough].any())


def _thin(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Some of the parts, the last one among them, whose shares grow by a few per cent."""
    kept: list[Part] = []
    for part in parts:
        if not kept or part.share >= kept[-1].share + NEXT_SHARE or part is parts[-1]:
            kept.append(part)
    return tuple(kept)


@dataclass(frozen=True, eq=False)
class _Evidence:
    """The scores of one ensemble, with what rules read off the pool."""

    source: ScoreSource
    tuning: SpikeCounts
    pool: SpikeCounts

    @classmethod
    def load(cls, scores: Path, data: str, ensemble: str) -> _Evidence:
        source = load_source(scores / data / ensemble, data, ensemble)
        return cls(
            source,
            SpikeCounts.of(source.tuning, TUNING_ROWS),
            SpikeCounts.of(source.pool, LARGEST_POOL),
        )

    @property
    def times(self) -> tuple[int, ...]:
        return tuple(range(1, self.pool.steps + 1))

    @property
    def members(self) -> int:
        return min(MEMBERS, self.source.members)

    def read(self, rule: AgreeStop) -> LabelledEvidence:
        """What the rule reads off the pool."""
        parts = [rule.evidence(step - 1, self.pool.at(step, self.members)) for step in self.times]
        return LabelledEvidence(Evidence.stack(parts), self.pool.labels, self.pool.counts.shape[3])

    def tuning_scores(self, rows: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.stack([self.tuning.at(step, self.members)[:rows] for step in self.times], axis=1)


def measure(scores: Path, data: str, ensemble: str) -> list[PromiseRecord]:
    """All records of one ensemble."""
    found = _Evidence.load(scores, data, ensemble)
    return [*_conditional(found), *_without_labels(found), *_priced(found)]


def _conditional(found: _Evidence) -> Iterator[PromiseRecord]:
    """The gate beside the marginal rule, fixed time and the published rule."""
    counts = COUNTS if found.source.data in LARGE else (FEW,)
    tuning, times = found.tuning_scores(TUNING_ROWS), found.times
    for size in SIZES:
        plain = AgreeStop(0.9, times, size)
        pool, fixed = found.read(plain), found.read(replace(plain, fill=True, risk=FixedTime()))
        for target in TARGETS:
            gates: dict[int, tuple[Gate, LabelledEvidence, Integers]] = {}
            for n in counts:
                blocks = Gate.count_blocks(n, target)
                if blocks not in gates:
                    gate = Gate.fit(
                        tuning,
                        found.tuning.labels,
                        times,
                        target=target,
                        max_set_size=size,
                        blocks=blocks,
                    )
                    shaped = replace(pool, evidence=pool.evidence.minus(gate.offsets))
                    assert shaped.evidence.log_risk is not None
                    gates[blocks] = gate, shaped, gate.opened(shaped.evidence.log_risk)[1]
                gate, shaped, inside = gates[blocks]
                rule = replace(plain, target=target)
                published = replace(rule, delta=DELTA, accumulated=True)
                tried = {
                    MARGINAL: (rule, pool),
                    GATE: (AgreeStop(target, times, size, gate=gate), shaped),
                    FIXED: (replace(rule, fill=True, risk=FixedTime()), fixed),
                    ACCUMULATED: (published, pool),
                    ACCUMULATED_GATE: (replace(published, risk=gate), shaped),
                }
                latency = math.nan
                for name, (one, evidence) in tried.items():
                    record = _Runs.of(one, evidence, pool.labels, n).record(
                        found.source, one, name, n, gate, inside
                    )
                    latency = record.latency if name == MARGINAL else latency
                    yield replace(record, ratio=record.latency / latency)


def _without_labels(found: _Evidence) -> Iterator[PromiseRecord]:
    """The ensemble's own best class at T instead of the label, one class answered."""
    if found.source.data not in LARGE:
        return
    rule = AgreeStop(FINAL_TARGET, found.times, 1)
    pool = found.read(rule)
    final = rule.best(pool.evidence[:, -1])
    unlabelled = replace(pool, labels=final, conditions=Conditions(final=True))
    for n in COUNTS:
        runs, truth = (
            _Runs.of(rule, unlabelled, final, n),
            _Runs.of(rule, unlabelled, pool.labels, n),
        )
        at_end = np.broadcast_to(final == pool.labels, truth.tested.shape)
        record = runs.record(found.source, rule, FINAL, n)
        yield replace(
            record,
            accuracy=float(truth.hits[truth.tested].mean()),
            accuracy_T=float(at_end[truth.tested].mean()),
            broken=math.nan,
        )


def _priced(found: _Evidence) -> Iterator[PromiseRecord]:
    """Tuning with a price on set size."""
    if (found.source.data, found.source.ensemble) != PRICED_DATA:
        return
    plain = AgreeStop(PRICED_TARGET, found.times, 1)
    tuning, labels = found.tuning_scores(PRICED_ROWS), found.tuning.labels[:PRICED_ROWS]
    for price in (None, *PRICES):
        rule, note = plain, "not tuned"
        if price is not None:
            tuned = tune(
                plain,
                tuning,
                labels,
                n_calibration=PRICED_N,
                exponents=(1.0,),
                repeats=8,
                price_of_size=price,
            )
            assert isinstance(tuned.rule, AgreeStop)
            rule, note = tuned.rule, tuned.note or tuned.trials[0].name
        pool = found.read(rule)
        record = _Runs.of(rule, pool, pool.labels, PRICED_N).record(
            found.source, rule, PRICED, PRICED_N
        )
        yield replace(record, price=price, notes=note)


def run_promises(
    scores: Path, output: Path, command: str, progress: ProgressCallback, workers: int = 1
) -> list[PromiseRecord]:
    """Measure everything, and write `numbers.json`."""
    pairs = [(data, ensemble) for data in (*LARGE, *SMALL) for ensemble in ENSEMBLES]
    missing = [
        path
        for pair in pairs
        for name in (TUNING, POOL)
        if not (path := scores.joinpath(*pair, name)).is_file()
    ]
    if missing:
        raise InputError(
            f"promises needs {missing[0]}, which does not exist: run in the repository, or give "
            "--scores."
        )
    make_folder(output / "promises")
    records: list[PromiseRecord] = []
    for number, (pair, found) in enumerate(
        run_tasks(partial(_measurer, scores), pairs, workers, in_order=True), 1
    ):
        records += found
        progress(", ".join(pair), number / len(pairs))
    protocol = {
        "members": MEMBERS,
        "delta": DELTA,
        "realisations": REALISATIONS,
        "largest_pool": LARGEST_POOL,
        "tuning_rows": TUNING_ROWS,
        "seed": SEED,
    }
    header = {
        "command": command,
        "protocol": protocol,
        "versions": dict(versions("agreestop", "numpy", "scikit-learn")),
    }
    save(output / "promises" / "numbers.json", records, header)
    return records


def _measurer(scores: Path) -> Callable[[tuple[str, str]], list[PromiseRecord]]:
    return lambda pair: measure(scores, *pair)


def save(path: Path, records: Sequence[Any], header: dict[str, Any]) -> None:
    """Write records, which are dataclasses, as JSON, which has no nan; six digits are enough."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return None if math.isnan(value) else round(value, 6)
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value

    lines = ",\n".join(json.dumps(plain(asdict(record)), ensure_ascii=False) for record in records)
    text = json.dumps(header, indent=1)[:-2] + ',\n "records": [\n' + lines + "\n]}\n"
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def load(path: Path) -> list[PromiseRecord]:
    """Read records that `save` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [
        PromiseRecord(
            **{
                **one,
                **{
                    name: tuple(Part(**part) for part in one[name])
                    for name in ("blocks", "answered")
                },
            }
        )
        for one in content["records"]
    ]
