"""Records of the benchmark against other libraries, as written to `results/bench/*.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agreestop.common import InputError

from .results import write_results

OURS = "agreestop"
DECISIONS, STEP, TRAINED, SECONDS, MEMORY, BYTES = (
    "decisions/s",
    "µs/step",
    "inputs/s",
    "s",
    "MiB",
    "GB/s",
)
RATE = "session-steps/s"
FASTER_IS_MORE = (DECISIONS, TRAINED, BYTES, RATE)
"""Units in which a larger number is better."""


@dataclass(frozen=True)
class BenchRecord:
    """One system at one workload: the median over repeats and the 10 % to 90 % spread, in `unit`.

    work                the name of the workload
    form                how the system was used, in words
    size                what is varied, in a workload named scaling-... or memory-...
    times_fastest_peer  in ours: how many times faster it is than `fastest_peer`, the fastest peer
    at the same workload in the same run
    wanted              in ours: the goal, in words
    coverage, latency   in ours, with early stopping: the decisions on all test inputs; latency is
                        over T
    computed            the share of the steps of all members that were computed
    """

    work: str
    inputs: str
    system: str
    version: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int
    form: str = ""
    batch: int | None = None
    size: float | None = None
    times_fastest_peer: float | None = None
    fastest_peer: str | None = None
    wanted: str | None = None
    coverage: float | None = None
    latency: float | None = None
    set_size: float | None = None
    computed: float | None = None


def times_as_fast(ours: BenchRecord, peer: BenchRecord) -> float:
    """How many times faster ours is than the peer."""
    return ours.median / peer.median if ours.unit in FASTER_IS_MORE else peer.median / ours.median


def compared(ours: BenchRecord, peers: Sequence[BenchRecord]) -> BenchRecord:
    """Our record with its ratio to the fastest peer; unchanged if there are no peers."""
    if not peers:
        return ours
    fastest = min(peers, key=lambda peer: times_as_fast(ours, peer))
    return replace(
        ours, times_fastest_peer=times_as_fast(ours, fastest), fastest_peer=fastest.system
    )


def save_benchmark(path: Path, header: dict[str, Any], records: Sequence[BenchRecord]) -> None:
    """Write the header and the records, completely or not at all. Fields that are None are left
    out.
    """
    plain = [
        {name: value for name, value in asdict(record).items() if value is not None}
        for record in records
    ]
    write_results(path, {**header, "records": plain})


def load_networks(path: Path) -> tuple[dict[str, Any], list[BenchRecord]]:
    """The header and the records of `DEVICE-deep.json`, where networks that were measured by
    themselves since, in `DEVICE-NETWORK.json`, take the place of older records.
    """
    header, records = load_benchmark(path)
    for other in sorted(path.parent.glob(f"{path.stem.removesuffix('-deep')}-*.json")):
        if other != path:
            newer = load_benchmark(other)[1]
            known = {record.inputs for record in newer}
            records = [record for record in records if record.inputs not in known] + newer
    return header, records


def load_benchmark(path: Path) -> tuple[dict[str, Any], list[BenchRecord]]:
    """Read the header and the records."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records = [BenchRecord(**entry) for entry in content.pop("records")]
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: run `python -m benchmarks` first.") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is not a complete file of `python -m benchmarks` ({error}): run it again."
        ) from None
    return content, records
