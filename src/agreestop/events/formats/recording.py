"""Recordings of event cameras: single events with position, polarity and time, the result of the
readers of all file formats.

Whatever a file holds, its reader gives a `Recording` or an `InputError`; every event that is left
out or moved is counted.

    event outside the sensor                 left out, counted in `skipped.outside`
    event that is no valid polarity event    left out, counted in `skipped.special`
    packet of another kind                   left out, counted in `skipped.packets`
    file cut off in its last event, packet   whole events are kept; `skipped.cut_bytes` counts the
                                             bytes of the rest, `skipped.missing` the events that a
                                             cut packet announces and the file does not hold
    time that runs backwards                 all events are kept and sorted by time, events of
                                             one time in the order of the file; `reordered`
                                             counts the events that are earlier than the event
                                             before them in the file
    time counter that wraps around           unwrapped, where the format defines its range
    no event of the sensor at all            refused in a sentence; only a file without content
                                             after its header is an empty recording

`bin_events` turns a recording into T frames of the pixels that fired, or of how often they fired:

    by time   an event at time t of a window start <= t < stop is in step
              ⌊(t - start) T / (stop - start)⌋
    by count  the i-th of n events, from 0, is in the step k with ⌊k n / T⌋ <= i < ⌊(k + 1) n / T⌋
    cell      an event at (y, x) of a crop of h × w pixels from (top, left) falls into the cell
              (⌊(y - top) H / h⌋, ⌊(x - left) W / w⌋) of H × W, ON before OFF

All arithmetic is on integers, so every event inside window and crop falls into exactly one cell. In
addition to the result, memory holds about 40 bytes for each event.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError, Integers, as_count, as_size, is_integer

Coordinates: TypeAlias = NDArray[np.uint16]

LONGEST_SIDE = 2**15
LATEST = 2**62  # the difference of two times still fits an int64
BLOCK = 2**16  # events decoded together: they fit the processor's cache
MOST = 255  # the largest count of events in a cell and step
CELLS = 2**21  # cells that are counted together
MOST_CELLS = 2**33


@dataclass(frozen=True)
class Skipped:
    """Counts of what a reader left out.

    outside    events outside the sensor
    special    events that are no valid polarity events: external inputs, addresses of other
               devices, events marked invalid
    packets    packets of other kinds than polarity events
    cut_bytes  bytes at the end of the file that make no whole event
    missing    events that the last packet announces and the file does not hold
    """

    outside: int = 0
    special: int = 0
    packets: int = 0
    cut_bytes: int = 0
    missing: int = 0


NOTHING = Skipped()


@dataclass(frozen=True, eq=False)
class Recording:
    """n events of a sensor of H × W pixels, sorted by time, all of them on the sensor: make one
    with `checked_recording`.

    x, y       (n,) uint16: the column from the left, the row from the top
    polarity   (n,) bool: True where the light increased (ON), False where it decreased (OFF)
    time       (n,) int64, microseconds, never decreasing
    size       (H, W)
    skipped    what was left out
    reordered  events that were earlier than the event before them, before they were sorted
    """

    x: Coordinates
    y: Coordinates
    polarity: Booleans
    time: Integers
    size: tuple[int, int]
    skipped: Skipped = NOTHING
    reordered: int = 0

    def __len__(self) -> int:
        return len(self.time)

    @property
    def span(self) -> tuple[int, int]:
        """The time of the first event, and the microsecond after the last event; (0, 0) where
        there are no events.
        """
        return (int(self.time[0]), int(self.time[-1]) + 1) if len(self) else (0, 0)

    def between(self, start: int, stop: int) -> Self:
        """The events of start <= time < stop, as views; `skipped` and `reordered` are those of
        the whole recording.
        """
        if not (is_integer(start) and is_integer(stop) and -LATEST <= start < stop <= LATEST):
            raise InputError(
                f"the window is {start!r} to {stop!r}: give two whole numbers of microseconds, the "
                "later one last."
            )
        first, last = np.searchsorted(self.time, (start, stop))
        part = slice(int(first), int(last))
        return replace(
            self, x=self.x[part], y=self.y[part], polarity=self.polarity[part], time=self.time[part]
        )


def checked_recording(
    x: ArrayLike,
    y: ArrayLike,
    polarity: ArrayLike,
    time: ArrayLike,
    size: tuple[int, int],
    skipped: Skipped = NOTHING,
) -> Recording:
    """A recording of events (n,): events outside the sensor are left out, the others are sorted by
    time, and both are counted.

    Coordinates and times are integers, polarities booleans. Arrays that need no change
    are not copied.
    """
    height, width = as_size(size)
    if max(height, width) > LONGEST_SIDE:
        raise InputError(
            f"size is {size!r}: give a sensor of at most {LONGEST_SIDE} pixels a side."
        )
    columns, rows, times = _as_integers(x, "x"), _as_integers(y, "y"), _as_integers(time, "time")
    signs = np.asarray(polarity)
    if signs.dtype != np.bool_:
        raise InputError(
            f"polarity has dtype {signs.dtype}: give booleans, True for ON and False for OFF."
        )
    if not columns.shape == rows.shape == signs.shape == times.shape or times.ndim != 1:
        raise InputError(
            f"x, y, polarity and time have shapes {columns.shape}, {rows.shape}, {signs.shape} and "
            f"{times.shape}: give one axis and as many entries in each."
        )
    outside = reordered = 0
    if times.size:
        if times.min() < -LATEST or times.max() >= LATEST:
            raise InputError(
                f"time reaches from {times.min()} to {times.max()}: give microseconds, less than "
                "2^62 either side of 0."
            )
        if not (_below(columns, width) and _below(rows, height)):
            inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
            outside = len(inside) - int(np.count_nonzero(inside))
            columns, rows, signs, times = (
                columns[inside],
                rows[inside],
                signs[inside],
                times[inside],
            )
        reordered = int(np.count_nonzero(times[1:] < times[:-1]))
        if reordered:
            order = np.argsort(times, kind="stable")
            columns, rows, signs, times = columns[order], rows[order], signs[order], times[order]
    short_x, short_y = (array.astype(np.uint16, copy=False) for array in (columns, rows))
    left_out = replace(skipped, outside=skipped.outside + outside)
    return Recording(
        short_x,
        short_y,
        signs,
        times.astype(np.int64, copy=False),
        (height, width),
        left_out,
        reordered,
    )


def bin_events(
    recording: Recording,
    steps: int,
    by: str = "time",
    crop: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
    binary: bool = True,
    window: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """Events (T, 2, H, W), ON before OFF: bool where a pixel fired, or with binary=False uint8
    counts, which stop at 255.

    steps   T
    by      "time": steps of equal length; "count": steps with equal numbers of the events inside
            window and crop
    crop    (top, left, height, width) of the part of the sensor to keep; default: the whole sensor
    size    (H, W) to which the crop is reduced; default: the size of the crop
    window  (start, stop) in the recording's microseconds; default: from the first event to the
            last. If the window is longer than the recording, the last steps are empty

    Example: in a recording of MNIST-DVS at scale 4 the digit stays within 52 × 52 pixels around the
    sensor's centre, so bin_events(recording, 80, crop=(37, 41, 52, 52), size=(26, 26)).
    """
    count = as_count(steps, "steps")
    if by not in ("time", "count"):
        raise InputError(
            f"by is {by!r}: give 'time' for steps of equal length, or 'count' for steps of equally "
            "many events."
        )
    top, left, height, width = _as_crop(crop, recording.size)
    rows, columns = (height, width) if size is None else as_size(size)
    if rows > height or columns > width:
        raise InputError(
            f"size is {size!r}, more than the {height} × {width} pixels there are: give at most as "
            "many."
        )
    frame = 2 * rows * columns
    if count * frame > MOST_CELLS:
        raise InputError(
            f"{count} steps of 2 × {rows} × {columns} pixels are more than 2^33 cells: give fewer "
            "steps or a smaller size."
        )
    frames: NDArray[Any] = np.zeros((count, frame), np.bool_ if binary else np.uint8)
    if window is not None and (not isinstance(window, (tuple, list)) or len(window) != 2):
        raise InputError(f"window is {window!r}: give its start and its stop in microseconds.")
    start, stop = recording.span if window is None else window
    if window is not None:
        recording = recording.between(start, stop)

    y, x, polarity, time = recording.y, recording.x, recording.polarity, recording.time
    if (height, width) != recording.size:
        inside = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
        y, x, polarity, time = y[inside], x[inside], polarity[inside], time[inside]
    row_cells = (np.arange(recording.size[0]) - top) * rows // height * columns
    column_cells = (np.arange(recording.size[1]) - left) * columns // width
    cells = row_cells[y] + column_cells[x]
    cells += ~polarity * (rows * columns)

    bounds = (
        _even_parts(len(time), count)
        if by == "count"
        else np.searchsorted(time, start + _even_parts(stop - start, count, up=True))
    )
    group = max(1, CELLS // frame)
    for first in range(0, count, group):
        some = bounds[first : first + group + 1]
        if some[0] == some[-1]:
            continue
        positions = cells[some[0] : some[-1]] + np.repeat(
            np.arange(len(some) - 1) * frame, np.diff(some)
        )
        target = frames[first : first + group].reshape(-1)
        if binary:
            target[positions] = True
        else:
            target[:] = np.minimum(np.bincount(positions, minlength=target.size), MOST)
    return frames.reshape(count, 2, rows, columns)


def _as_integers(values: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} has dtype {array.dtype}: give integers.")
    return array


def _below(values: NDArray[Any], bound: int) -> bool:
    """Whether all values are from 0 to bound - 1, without a temporary array."""
    return bool(values.max() < bound and (values.dtype.kind == "u" or values.min() >= 0))


class Columns:
    """Memory for up to `capacity` events, 13 bytes each, which a reader fills block by block."""

    def __init__(self, capacity: int) -> None:
        self._columns = [
            np.empty(capacity, kind) for kind in (np.uint16, np.uint16, np.bool_, np.int64)
        ]
        self._filled = 0

    def add(self, x: NDArray[Any], y: NDArray[Any], polarity: Booleans, time: Integers) -> None:
        """Append a block of events."""
        first, self._filled = self._filled, self._filled + len(time)
        for column, values in zip(self._columns, (x, y, polarity, time), strict=True):
            column[first : self._filled] = values

    def recording(
        self, source: str, kind: str, size: tuple[int, int], skipped: Skipped
    ) -> Recording:
        """The recording of all events added; refused where the source has content but no event
        of the sensor.
        """
        x, y, polarity, time = (column[: self._filled] for column in self._columns)
        recording = checked_recording(x, y, polarity, time, size, skipped)
        if not len(recording) and recording.skipped != NOTHING:
            parts = ", ".join(
                f"{name} {count}" for name, count in vars(recording.skipped).items() if count
            )
            raise InputError(
                f"{source} holds no event of the sensor (left out: {parts}): check that it is a "
                f"whole {kind} file."
            )
        return recording


def bytes_left(stream: BinaryIO) -> int:
    """The number of bytes from here to the end of the file."""
    return os.fstat(stream.fileno()).st_size - stream.tell()


def read_blocks(stream: BinaryIO, length: int, event: int) -> Iterator[bytes]:
    """The next `length` bytes of the file, in blocks of whole events of `event` bytes each.

    Only the last block may end within an event.
    """
    while length > 0 and (content := stream.read(min(length, event * BLOCK))):
        length -= len(content)
        yield content


def _even_parts(length: int, parts: int, up: bool = False) -> Integers:
    """k · length / parts for k = 0..parts, rounded down or up, without a product of
    more than 64 bits.
    """
    each, rest = divmod(length, parts)
    numbers = np.arange(parts + 1)
    share = -(-numbers * rest // parts) if up else numbers * rest // parts
    return numbers * each + share


def _as_crop(
    crop: tuple[int, int, int, int] | None, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """(top, left, height, width) within the sensor."""
    if crop is None:
        return 0, 0, *size
    if (
        not isinstance(crop, (tuple, list))
        or len(crop) != 4
        or not all(is_integer(value) for value in crop)
    ):
        raise InputError(f"crop is {crop!r}: give (top, left, height, width) in pixels.")
    top, left, height, width = (int(value) for value in crop)
    if (
        min(top, left) < 0
        or min(height, width) < 1
        or top + height > size[0]
        or left + width > size[1]
    ):
        raise InputError(
            f"crop is {crop!r}, which does not lie within the sensor's {size[0]} × {size[1]} "
            "pixels: give less."
        )
    return top, left, height, width
