"""Decisions in Parquet files: one file for each shard, written whole or not at all, and all of
them together.

    row          number of the recording in the source
    hash         of the recording: `agreestop.events.input_ids`
    id, label, group   as in the source, where it has them
    stop_index, stop_time   the checkpoint at which it stopped, and its time
    classes      list: the answer
    best         the best class at the stop
    first_risk   see `Decisions`; nan where it is not known
    block        for a rule with a gate
    computed     steps that were computed

The file of a shard carries its `PartSummary`, a mark of the rule, and the key of the job: what all
decisions follow from. A job that finds the file of a shard with its own key uses it. So a job that
was killed continues, and no recording is decided twice or lost.

The plan in the folder holds the key and, once the job is finished, the numbers of its files.
`load_decisions` needs all of these files and accepts no others.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Arrays, InputError, atomic_writer, read_file
from agreestop.decide.calibrated import CalibratedRule, load_rule
from agreestop.decide.checkpoints import Stops
from agreestop.decide.decisions import Decisions
from agreestop.engines.early_stopping import EarlyRun

from .sources import CARRIED, carried_column, import_parquet, open_parquet
from .workers import rule_bytes

METADATA = b"agreestop"
PLAN = "_plan.json"  # readers of Parquet folders skip names that begin with _


@dataclass(frozen=True)
class PartSummary:
    """What the decisions of a shard add up to. seen: recordings among those used for tuning and
    for calibration.
    """

    rows: int
    stop_time: float
    set_size: int
    computed: int
    seen: tuple[int, ...]

    @classmethod
    def of(cls, decisions: Decisions, computed: NDArray[Any], seen: Sequence[int]) -> Self:
        """The sums over decisions."""
        times = float(decisions.stop_time.sum())
        return cls(
            len(decisions), times, int(decisions.set_size.sum()), int(computed.sum()), tuple(seen)
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The sums over several shards."""
        seen = tuple(map(sum, zip(*(part.seen for part in parts), strict=True)))
        names = ("rows", "stop_time", "set_size", "computed")
        rows, times, sizes, computed = (sum(getattr(one, name) for one in parts) for name in names)
        return cls(rows, times, sizes, computed, seen)


def part_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"part-{number:06}.parquet"


def columns_of_run(
    runs: Sequence[EarlyRun], first: int, hashes: NDArray[np.uint64], carried: Arrays
) -> dict[str, Any]:
    """The columns of consecutive decisions; first: the number of the first recording."""
    import pyarrow as pa

    decided = [run.decisions for run in runs]
    sets = np.concatenate([one.sets for one in decided])
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(sets.sum(axis=1), dtype=np.int32)))
    columns: dict[str, Any] = {
        "row": np.arange(first, first + len(sets)),
        "hash": hashes,
        **carried,
    }
    columns["stop_index"] = np.concatenate([one.stop_index for one in decided]).astype(np.int32)
    columns["stop_time"] = np.concatenate([one.stop_time for one in decided])
    columns["classes"] = pa.ListArray.from_arrays(
        ends, pa.array(np.nonzero(sets)[1].astype(np.int32))
    )
    columns["best"] = np.concatenate(
        [np.full(len(one), -1) if one.best is None else one.best for one in decided]
    ).astype(np.int32)
    columns["first_risk"] = np.concatenate(
        [np.full(len(one), np.nan) if one.first_risk is None else one.first_risk for one in decided]
    )
    if decided[0].block is not None:
        columns["block"] = np.concatenate(
            [one.block for one in decided if one.block is not None]
        ).astype(np.int32)
    columns["computed"] = np.concatenate([run.computed for run in runs]).astype(np.int32)
    return columns


def rule_mark(rule: CalibratedRule) -> str:
    """A hash of a calibrated rule."""
    return hashlib.sha256(rule_bytes(rule)).hexdigest()[:16]


def _about(summary: PartSummary, key: str, mark: str) -> dict[bytes, bytes]:
    """What a file of decisions says of itself: the key of its job, the mark of its rule,
    and its summary.
    """
    return {METADATA: json.dumps({"key": key, "rule": mark, **asdict(summary)}).encode()}


def write_part(
    path: Path, columns: dict[str, Any], summary: PartSummary, key: str, mark: str
) -> None:
    """Write the decisions of a shard; mark: the `rule_mark` of its rule."""
    pq = import_parquet()
    import pyarrow as pa

    about = _about(summary, key, mark)
    with atomic_writer(path) as stream:
        pq.write_table(
            pa.table(columns).replace_schema_metadata(about), stream, write_page_checksum=True
        )


def read_part(path: Path, key: str) -> PartSummary | None:
    """The summary of a file that a job with this key wrote.

    None where there is no such file, or where it is damaged.
    """
    import_parquet()
    try:
        with open_parquet(path) as file:
            about = json.loads(file.schema_arrow.metadata[METADATA])
            if about.pop("key") != key:
                return None
            del about["rule"]
            # reading compares the checksums
            rows = sum(len(file.read_row_group(group)) for group in range(file.num_row_groups))
        summary = PartSummary(**{**about, "seen": tuple(about["seen"])})
        return summary if summary.rows == rows else None
    except Exception:  # there is none, or Arrow raises errors of many types for damaged bytes
        return None


def assemble(parts: Sequence[Path], out: Path, summary: PartSummary, key: str, mark: str) -> None:
    """Write the decisions of all shards, in their order, to one file.

    One shard is in memory at a time.
    """
    pq = import_parquet()

    with atomic_writer(out) as stream:
        schema = pq.read_schema(parts[0]).with_metadata(_about(summary, key, mark))
        with pq.ParquetWriter(stream, schema, write_page_checksum=True) as writer:
            for path in parts:
                writer.write_table(_read_table(path).cast(schema))


def write_plan(folder: Path, key: str, parts: Sequence[int] | None = None) -> None:
    """Write the plan of a job. parts: the numbers of its files, once it is finished."""
    with atomic_writer(folder / PLAN) as stream:
        stream.write(
            json.dumps(
                {"key": key} if parts is None else {"key": key, "parts": list(parts)}
            ).encode()
        )


def read_plan(folder: Path) -> tuple[str, list[Path]]:
    """The key of the job that writes to a folder, and its files once it is finished.

    Nothing where there is no plan, or a damaged one.
    """
    try:
        plan = json.loads(read_file(folder / PLAN))
        return str(plan["key"]), [
            part_path(folder, int(number)) for number in plan.get("parts", ())
        ]
    except (
        InputError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        ArithmeticError,
        RecursionError,
    ):
        return "", []


def _read_table(file: Path, key: str | None = None) -> Any:
    """The decisions of a file; key: that of the job that must have written it."""
    import_parquet()
    with suppress(Exception), open_parquet(file) as opened:  # Arrow raises many types
        if key is None or json.loads(opened.schema_arrow.metadata[METADATA])["key"] == key:
            return opened.read()
    raise InputError(
        f"{file} is not a whole file of decisions of its job: remove it, and decide again."
    )


def _tables(out: Path) -> list[Any]:
    """The decisions of a file, or of all files of a finished job, in order."""
    if out.is_file() and out.suffix != ".parquet":
        raise InputError(
            f"{out} does not end in .parquet: give the file or folder that ag.cluster.decide wrote."
        )
    found = sorted(out.glob("part-*.parquet")) if out.is_dir() else [out]
    if not found or not all(file.is_file() for file in found):
        raise InputError(f"{out} holds no decisions: give what ag.cluster.decide wrote.")
    if not out.is_dir():
        return [_read_table(out)]
    key, planned = read_plan(out)
    if not planned or not set(planned) <= set(found):
        why = "some of its files are missing" if planned else "its job is not finished"
        raise InputError(
            f"{out} does not hold all decisions, as {why}: repeat the call of ag.cluster.decide "
            "that writes to it."
        )
    if strays := sorted(set(found) - set(planned)):
        raise InputError(f"{strays[0]} is not of the job that wrote to this folder: remove it.")
    return [_read_table(file, key) for file in planned]


def load_decisions(
    out: str | PathLike[str], rule: CalibratedRule | str | PathLike[str]
) -> Decisions:
    """Decisions that `decide` wrote, in memory and in the order of the source; rule: the one
    that decided, or its file.
    """
    import_parquet()
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(out, (str, PathLike)):
        raise InputError(
            f"out is of type {type(out).__name__}: give the path that ag.cluster.decide wrote to, "
            "and then the rule."
        )
    rule = load_rule(rule) if isinstance(rule, (str, PathLike)) else rule
    mark, tables = rule_mark(rule), _tables(Path(out))
    try:
        if any(json.loads(table.schema.metadata[METADATA])["rule"] != mark for table in tables):
            raise ValueError
        table = pa.concat_tables(tables)
        lengths = pc.list_value_length(table["classes"]).to_numpy()
        flat = pc.list_flatten(table["classes"]).to_numpy()
        found = {
            name: table[name].to_numpy()
            for name in table.column_names
            if name not in ("classes", *CARRIED)
        }
        n, index = len(table), found["stop_index"].astype(np.int64)
        sets = np.zeros((n, rule.classes), bool)
        sets[np.repeat(np.arange(n), lengths), flat] = True
        kinds = "".join(
            found[name].dtype.kind for name in ("row", "stop_index", "best", "hash", "first_risk")
        )
        ranges = (
            flat.min() < 0,
            index.min() < 0,
            found["best"].min() < -1,
            found["best"].max() >= rule.classes,
            found["row"].min() < 0,
        )
        if kinds != "iiiuf" or any(ranges) or (np.diff(found["row"]) < 1).any():
            raise ValueError
        if (np.array(rule.checkpoints)[index] != found["stop_time"]).any():
            raise ValueError
        block = found["block"].astype(np.int64) if "block" in found else np.full(n, -1)
        known = {"best": found["best"].astype(np.int64), "first_risk": found["first_risk"]}
        stops = replace(Stops.empty(n, rule.classes), index=index, sets=sets, block=block, **known)
        groups = rule.find_groups(carried_column(table, "group") if rule.group_names else None, n)
        return rule.decisions(stops, found["hash"] if rule.knows_ids else None, groups=groups)
    except (KeyError, IndexError, TypeError, ValueError, pa.ArrowException):
        # columns are missing, or of another type or range
        raise InputError(
            f"{out} holds no decisions of this rule: give what ag.cluster.decide wrote, and the "
            "rule that decided."
        ) from None
