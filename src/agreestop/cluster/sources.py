"""Recordings in files, and their division into shards.

A source is a file, a folder, a pattern such as "data/*.parquet", or a list of these. Files are
taken in the order of their names, in a list as they are given. Every recording has a number: its
position in the source. A shard is a range of rows of one file that begins at a multiple of the
batch size, so an engine sees the same batches as on one machine.

    events files   what `Events.save` or numpy.savez wrote; see `agreestop.events.files`
    Parquet        one recording a row:
                   counts   list of T integers: the events in each step
                   indices  list of integers: the cells of these events, step after step, increasing
                            within each step
                   values   list of numbers other than 0, one an event; left out where
                            every event is 1
                   id, label, group   optional: integers or text, an integer, and for a rule with
                                      groups the group
                   A cell is an index of the flattened step, in the order of numpy.ravel. The shape
                   of a step is in the metadata of the file where `save_recordings` wrote it; else
                   it is that of the network.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    InputError,
    as_array,
    as_count,
    as_ids,
    as_texts,
    atomic_writer,
    check_lengths,
    check_writable,
    needs,
)
from agreestop.decide.leakage import mark_ids
from agreestop.engines.early_stopping import BATCH_SIZE
from agreestop.events import Events, load
from agreestop.events.files import read_outline

SUFFIXES = (".npz", ".parquet")
STEP_SHAPE = b"agreestop.step_shape"
CARRIED = ("id", "label", "group")
# few enough files for one folder; enough rows that starting a shard costs nothing
MOST_SHARDS, LEAST_ROWS = 10_000, 4096
BLOCK_ROWS = 4096  # recordings that a worker holds in memory
# bytes that the rows of any file may take, and for each byte of a larger one
UNPACKED, MOST_RATIO = 1 << 26, 1000
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # bytes of a value; 8 for the others
ROWS_OF_IDS = 1 << 25  # ids that are compared together
Source: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]


@dataclass(frozen=True)
class Shard:
    """Rows begin to end - 1 of a file. number: of the shard; first: the number of its first
    recording in the source.
    """

    number: int
    path: str
    begin: int
    end: int
    first: int

    def __str__(self) -> str:
        return f"{self.path}, rows {self.begin} to {self.end - 1}"

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The rows in pieces that fit into memory."""
        for begin in range(self.begin, self.end, BLOCK_ROWS):
            yield begin, min(begin + BLOCK_ROWS, self.end)


@dataclass(frozen=True, eq=False)
class CarriedEvents:
    """Some recordings, and the columns that are carried through to the decisions."""

    events: Events
    carried: dict[str, NDArray[Any]]


def find_files(source: Source) -> list[str]:
    """The files of a source."""
    given = as_paths(source)
    files = [file for one in given for file in _expand(fspath(one))]
    if not files:
        raise InputError(
            f"{', '.join(str(one) for one in given) or 'the source'} holds no recordings: give "
            "files that end in .npz or .parquet."
        )
    # a link and a relative path may lead to the same file
    resolved = [Path(file).resolve() for file in files]
    if len(set(resolved)) < len(files):
        twice = next(file for file in resolved if resolved.count(file) > 1)
        raise InputError(f"{twice} is given twice: give every file once.")
    for file in files:
        if Path(file).suffix not in SUFFIXES:
            raise InputError(
                f"{file} is neither an events file (.npz) nor a Parquet file (.parquet): convert "
                "it, or leave it out."
            )
    return files


def as_paths(source: Source) -> list[str | PathLike[str]]:
    """The paths of a source, as they are given."""
    if isinstance(source, (Events, np.ndarray)):
        raise InputError(
            f"the source is a value of type {type(source).__name__}: save them (Events.save, "
            "ag.cluster.save_recordings), and give a path."
        )
    given = (
        [source]
        if isinstance(source, (str, PathLike))
        else list(source)
        if isinstance(source, Iterable)
        else [source]
    )
    if wrong := [one for one in given if not isinstance(one, (str, PathLike))]:
        raise InputError(
            f"the source holds {_short(wrong[0])}: give a path, or a list of paths, of files or "
            "folders."
        )
    return given


def _short(value: Any) -> str:
    """A value in a few words."""
    words = repr(value)
    return words if len(words) < 40 else f"a value of type {type(value).__name__}"


def check_apart(source: Sequence[str | PathLike[str]], out: Path) -> None:
    """Refuse to write over a file of recordings, or among those of a folder, where a second call
    would read the decisions.
    """
    if out.is_file():
        check_writable(out, *find_files(source))
    written = out.resolve().parent if out.suffix == ".parquet" else out.resolve()
    if any(Path(one).is_dir() and Path(one).resolve() == written for one in source):
        raise InputError(
            f"{out} is in the folder of the recordings, and would be read as one of them: give "
            "another folder."
        )


def _expand(path: str) -> list[str]:
    if Path(path).is_dir():
        return sorted(
            str(file)
            for file in Path(path).iterdir()
            if file.suffix in SUFFIXES and file.name[0] not in "._"
        )
    if Path(path).exists():
        return [path]
    found = sorted(glob(path, recursive=True))  # noqa: PTH207  (a pattern may be absolute)
    if not found:
        raise InputError(
            f"there is no file {path}: check the path, or give a folder or a pattern such as "
            "'data/*.parquet'."
        )
    return found


def count_rows(path: str) -> int:
    """The number of recordings in a file, from its header alone."""
    if path.endswith(".parquet"):
        return int(open_parquet(path).metadata.num_rows)
    return read_outline(path)[0]


def plan_shards(counts: Sequence[tuple[str, int]], rows: int | None = None) -> list[Shard]:
    """Divide files, given with their numbers of rows, into shards of about `rows` rows.

    By default there are about MOST_SHARDS at most.
    """
    total = sum(count for _, count in counts)
    size = as_count(
        max(LEAST_ROWS, -(-total // MOST_SHARDS)) if rows is None else rows, "shard_rows"
    )
    size = -(-size // BATCH_SIZE) * BATCH_SIZE
    shards: list[Shard] = []
    first = 0
    for path, count in counts:
        for begin in range(0, count, size):
            shards.append(Shard(len(shards), path, begin, min(begin + size, count), first + begin))
        first += count
    return shards


def open_recordings(path: str, input_shape: tuple[int, ...]) -> "EventsFile | ParquetFile":
    """A file of recordings, checked as far as its header goes; input_shape: the
    shape of one step.
    """
    return ParquetFile(path, input_shape) if path.endswith(".parquet") else EventsFile(path)


class EventsFile:
    """A file that `Events.save` or numpy.savez wrote, memory-mapped where that is possible."""

    def __init__(self, path: str) -> None:
        self.path, self._events = path, load(path)

    def read(self, begin: int, end: int) -> CarriedEvents:
        """Some of the rows."""
        if end > len(self._events):
            raise _fewer_rows(self.path, end, len(self._events))
        part = self._events.rows(slice(begin, end))
        return CarriedEvents(part, {} if part.labels is None else {"label": part.labels})


class ParquetFile:
    """A Parquet file with one recording a row."""

    def __init__(self, path: str, input_shape: tuple[int, ...]) -> None:
        self.path, self._file = path, open_parquet(path)
        names = self._file.schema_arrow.names
        if missing := {"counts", "indices"} - set(names):
            raise InputError(
                f"{path} has no column {' and no column '.join(sorted(missing))}: write it with "
                "ag.cluster.save_recordings."
            )
        self._columns = [
            name for name in ("counts", "indices", "values", *CARRIED) if name in names
        ]
        known = _step_shape(path, self._file)
        if known is not None and input_shape and known != input_shape:
            raise InputError(
                f"{path} holds recordings whose steps have the shape {known}: the network takes "
                f"{input_shape}."
            )
        self._shape = input_shape or known or ()
        sizes = [
            self._file.metadata.row_group(group).num_rows
            for group in range(self._file.metadata.num_row_groups)
        ]
        self._starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)

    def read(self, begin: int, end: int) -> CarriedEvents:
        """Some of the rows. Only the row groups that hold them are read."""
        import pyarrow as pa

        if end > self._starts[-1]:
            raise _fewer_rows(self.path, end, int(self._starts[-1]))
        first = np.searchsorted(self._starts, begin, "right") - 1
        last = np.searchsorted(self._starts, end, "left")
        position, parts = int(self._starts[first]), []
        try:
            for batch in self._file.iter_batches(
                BATCH_SIZE, list(range(first, last)), self._columns
            ):
                low, high = max(begin - position, 0), min(end - position, len(batch))
                if low < high:
                    parts.append(batch.slice(low, high - low))
                position += len(batch)
            return self._recordings(pa.Table.from_batches(parts))
        except InputError as error:
            raise InputError(
                f"{self.path}, rows {begin} to {end - 1}, cannot be used: {error}"
            ) from None
        except MemoryError:
            raise
        except Exception:  # Arrow raises errors of many types for damaged bytes
            raise InputError(
                f"{self.path} is not a whole Parquet file: copy it again, or leave it out."
            ) from None

    def _recordings(self, table: Any) -> CarriedEvents:
        columns = {
            name: _as_numpy(table.column(name), name)
            for name in self._columns
            if name not in CARRIED
        }
        (counts, steps), (indices, events) = columns["counts"], columns["indices"]
        if len(set(steps.tolist())) != 1:
            raise InputError(
                "counts must have one entry for each of T steps, and T must be the same for all "
                "rows."
            )
        per_step = counts.reshape(len(table), -1)
        if counts.min(initial=0) < 0 or (per_step.sum(axis=1) != events).any():
            raise InputError("the counts of a row must add up to the number of its indices.")
        values = None
        if "values" in columns:
            values, sizes = columns["values"]
            if (sizes != events).any():
                raise InputError("a row must have as many values as indices.")
        pointers = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
        shape = (len(table), per_step.shape[1], *self._shape)
        carried = {name: carried_column(table, name) for name in CARRIED if name in self._columns}
        return CarriedEvents(Events(indices, pointers, values, shape), carried)


def _step_shape(path: str, file: Any) -> tuple[int, ...] | None:
    """The shape of a step that a Parquet file names; None where it names none."""
    stored = (file.schema_arrow.metadata or {}).get(STEP_SHAPE)
    if stored is None:
        return None
    try:
        return tuple(as_count(size, "a size") for size in json.loads(stored))
    except (InputError, TypeError, ValueError, RecursionError):
        raise InputError(
            f"{path} names no shape of a step that can be read: write it with "
            "ag.cluster.save_recordings."
        ) from None


def _fewer_rows(path: str, end: int, rows: int) -> InputError:
    return InputError(
        f"{path} has {rows} recordings, and had at least {end} when the job began: leave files as "
        "they are, and call again."
    )


def open_parquet(path: str | PathLike[str]) -> Any:
    """A Parquet file, unless its metadata declare far more than a file of its size holds.

    Texts are not repeated in memory.
    """
    pq = import_parquet()
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}: check the path.")
    try:
        metadata = pq.read_metadata(path)
        declared = _declared_bytes(metadata)
        if declared > max(UNPACKED, MOST_RATIO * Path(path).stat().st_size):
            raise InputError(
                f"{path} declares {declared:,} bytes of rows, more than {MOST_RATIO} times its "
                "size: check that it is the right file, or divide it."
            )
        columns = map(metadata.schema.column, range(metadata.num_columns))
        texts = [
            column.path
            for column in columns
            if column.path in CARRIED and column.physical_type == "BYTE_ARRAY"
        ]
        return pq.ParquetFile(
            path, metadata=metadata, page_checksum_verification=True, read_dictionary=texts
        )
    except InputError:
        raise
    except Exception:  # Arrow raises errors of many types for damaged bytes
        raise InputError(
            f"{path} is not a whole Parquet file: copy it again, or leave it out."
        ) from None


def _declared_bytes(metadata: Any) -> int:
    """The bytes that the rows of a file take in memory.

    Equal values take next to nothing in the file, however many they are.
    """
    total = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            values = max(chunk.num_values, group.num_rows) * WIDTHS.get(chunk.physical_type, 8)
            total += max(values, chunk.total_uncompressed_size)
    return total


def import_parquet() -> Any:
    """pyarrow's Parquet module, or a sentence that says what to install."""
    with needs("a Parquet file"):
        import pyarrow.parquet
    return pyarrow.parquet


def _as_numpy(column: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The entries of a column of lists, one row after the other, and the length of each list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        raise InputError(f"{name} is of type {kind}: a list of numbers for each row is needed.")
    flat = pc.list_flatten(column)
    number = pa.types.is_integer(kind.value_type) or (
        name == "values" and pa.types.is_floating(kind.value_type)
    )
    if column.null_count or flat.null_count or not number:
        raise InputError(
            f"{name} holds {kind.value_type} or nulls: "
            f"{'numbers' if name == 'values' else 'integers'} are needed."
        )
    return flat.to_numpy(), pc.list_value_length(column).to_numpy()


def carried_column(table: Any, name: str) -> NDArray[Any]:
    """One of the columns that are carried through to the decisions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = (
        pa.chunked_array([table.column(name)])
        if isinstance(table, pa.RecordBatch)
        else table.column(name)
    )
    if pa.types.is_dictionary(column.type):
        for part in column.chunks:  # before each text is repeated for all of its rows
            check_lengths(pc.binary_length(part.dictionary).to_pylist(), f"the column {name}")
        column = column.cast(column.type.value_type)
    array = as_texts(column.to_numpy(), f"the column {name}")
    if column.null_count or array.dtype.kind not in ("iu" if name == "label" else "iuU"):
        needed = "integers" if name == "label" else "integers or text"
        raise InputError(
            f"the column {name} is of type {column.type} or holds nulls: {needed} are needed."
        )
    return array


def check_carried(files: Iterable[str]) -> None:
    """Refuse files that differ in the columns that are carried to the decisions, or in their
    types: one table could not hold them.
    """
    known: dict[str, str] = {}
    for file in dict.fromkeys(files):
        known[file] = _carried_types(file)
        if known[file] != (expected := next(iter(known.values()))):
            first = Path(next(iter(known))).name
            raise InputError(
                f"{file} has {known[file]}, but {first} has {expected}: give all files the same "
                "columns with the same types."
            )


def _carried_types(file: str) -> str:
    """The carried columns of a file with their types, in words."""
    import pyarrow as pa

    if not file.endswith(".parquet"):
        return "label (int64)" if read_outline(file)[1] else "neither id nor label nor group"
    schema = open_parquet(file).schema_arrow
    types = {name: schema.field(name).type for name in CARRIED if name in schema.names}
    # text may be stored with a dictionary
    types = {name: getattr(kind, "value_type", kind) for name, kind in types.items()}
    words = [
        f"{name} ({kind if pa.types.is_primitive(kind) else 'text'})"
        for name, kind in types.items()
    ]
    return ", ".join(words) or "neither id nor label nor group"


def check_ids(files: Iterable[str]) -> None:
    """Refuse an id that two recordings share; ids are compared in portions that fit into memory.

    Files without ids of their own are left out, and those that cannot be read too: a
    worker names them.
    """
    named = [
        file
        for file in files
        if file.endswith(".parquet") and _ids_of(file, count=True) is not None
    ]
    portions = np.uint64(1 + sum(count_rows(file) for file in named) // ROWS_OF_IDS)
    for portion in range(int(portions)):
        marks = [np.empty(0, np.uint64)]
        rows = [np.empty(0, np.int64)]
        owners = [np.empty(0, np.int64)]
        for owner, file in enumerate(named):
            ids = _ids_of(file)
            mine = np.flatnonzero(ids % portions == portion) if ids is not None else rows[0]
            marks.append(marks[0] if ids is None else ids[mine])
            rows.append(mine)
            owners.append(np.full(len(mine), owner))
        order = np.argsort(joined := np.concatenate(marks), kind="stable")
        same = joined[order][1:] == joined[order][:-1]
        if same.any():
            both = order[np.argmax(same) : np.argmax(same) + 2]
            where = [
                f"{named[np.concatenate(owners)[one]]}, row {np.concatenate(rows)[one]}"
                for one in both
            ]
            raise InputError(
                f"{' and '.join(where)}, have the same id: give every recording an id of its own, "
                "or none."
            )


def _ids_of(file: str, count: bool = False) -> NDArray[np.uint64] | None:
    """Marks of the ids of a file.

    None where it has none or cannot be read. count: only whether there are any.
    """
    try:
        opened = open_parquet(file)
        if "id" not in opened.schema_arrow.names:
            return None
        marks = [
            mark_ids(carried_column(batch, "id"))
            for batch in (() if count else opened.iter_batches(LEAST_ROWS, columns=["id"]))
        ]
        return np.concatenate([np.empty(0, np.uint64), *marks])
    except (InputError, OSError, ValueError):  # errors of Arrow are among them
        return None


def save_recordings(
    path: str | PathLike[str],
    events: Events | ArrayLike,
    ids: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> None:
    """Write recordings, `Events` or an array (n, T, ...), as a Parquet file with one row each,
    whole or not at all.

    ids, groups  (n,) integers or strings, where they are known; no two recordings share an id. The
                 columns: `agreestop.cluster.sources`
    """
    pq = import_parquet()
    import pyarrow as pa

    if not isinstance(path, (str, PathLike)) or Path(path).suffix != ".parquet":
        raise InputError(
            f"path is {_short(path)}: give the name of a file that ends in .parquet, and then the "
            "recordings."
        )
    part = (events if isinstance(events, Events) else Events.from_dense(events)).compact()
    n, steps = part.shape[:2]
    ends = np.concatenate((np.zeros(1, np.int64), part.pointers[:, -1]))
    columns: dict[str, Any] = {} if ids is None else {"id": np.asarray(as_ids(ids, n))}
    if ids is not None and len(np.unique(columns["id"])) < n:
        raise InputError(
            "two recordings have the same id: give every recording an id of its own, or none."
        )
    counts = pa.array(np.diff(part.pointers, axis=1).astype(np.int32).reshape(-1))
    columns["counts"] = pa.LargeListArray.from_arrays(np.arange(0, n * steps + 1, steps), counts)
    columns["indices"] = pa.LargeListArray.from_arrays(ends, pa.array(part.indices))
    if part.values is not None:
        columns["values"] = pa.LargeListArray.from_arrays(ends, pa.array(part.values))
    if part.labels is not None:
        columns["label"] = part.labels
    if groups is not None:
        columns["group"] = found = as_texts(as_array(groups, "groups"), "groups")
        if found.shape != (n,) or found.dtype.kind not in "iuU":
            raise InputError(
                f"groups has shape {found.shape} and dtype {found.dtype}: give an integer or a "
                "string for each recording."
            )
    with atomic_writer(path) as stream:
        table = pa.table(columns).replace_schema_metadata({STEP_SHAPE: json.dumps(part.shape[2:])})
        pq.write_table(table, stream, row_group_size=LEAST_ROWS, write_page_checksum=True)
