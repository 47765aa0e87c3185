"""Binning: a recording as T frames of the pixels that fired, or of how often they fired.

    by time   step of an event at time t:           ⌊(t - start) T / (stop - start)⌋ for a window start <= t < stop
    by count  step of the i-th of n events, from 0:  the k with ⌊k n / T⌋ <= i < ⌊(k + 1) n / T⌋
    cell      an event at (y, x) of a crop of h × w pixels from (top, left) falls into the cell
              (⌊(y - top) H / h⌋, ⌊(x - left) W / w⌋) of H × W, ON before OFF

All arithmetic is on integers, so every event inside window and crop falls into exactly one cell. In addition to the result, memory holds
about 40 bytes for each event.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, Integers, as_count, as_size, is_integer

from .formats.recording import Recording

MOST = 255  # the largest count of events in a cell and step
CELLS = 2**21  # cells that are counted together
MOST_CELLS = 2**33


def bin_events(
    recording: Recording,
    steps: int,
    by: str = "time",
    crop: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
    binary: bool = True,
    window: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """Events (T, 2, H, W), ON before OFF: bool where a pixel fired, or with binary=False uint8 counts, which stop at 255.

    steps   T
    by      "time": steps of equal length; "count": steps with equal numbers of the events inside window and crop
    crop    (top, left, height, width) of the part of the sensor to keep; default: the whole sensor
    size    (H, W) to which the crop is reduced; default: the size of the crop
    window  (start, stop) in the recording's microseconds; default: from the first event to the last. If the window is longer than
            the recording, the last steps are empty

    Example: in a recording of MNIST-DVS at scale 4 the digit stays within 52 × 52 pixels around the sensor's centre, so
    bin_events(recording, 80, crop=(37, 41, 52, 52), size=(26, 26)).
    """
    count = as_count(steps, "steps")
    if by not in ("time", "count"):
        raise InputError(f"by is {by!r}: give 'time' for steps of equal length, or 'count' for steps of equally many events.")
    top, left, height, width = _as_crop(crop, recording.size)
    rows, columns = (height, width) if size is None else as_size(size)
    if rows > height or columns > width:
        raise InputError(f"size is {size!r}, more than the {height} × {width} pixels there are: give at most as many.")
    frame = 2 * rows * columns
    if count * frame > MOST_CELLS:
        raise InputError(f"{count} steps of 2 × {rows} × {columns} pixels are more than 2^33 cells: give fewer steps or a smaller size.")
    frames: NDArray[Any] = np.zeros((count, frame), np.bool_ if binary else np.uint8)
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise InputError(f"window is {window!r}: give its start and its stop in microseconds.")
        start, stop = window
        recording = recording.between(start, stop)
    else:
        start, stop = recording.span

    y, x, polarity, time = recording.y, recording.x, recording.polarity, recording.time
    if (height, width) != recording.size:
        inside = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
        y, x, polarity, time = y[inside], x[inside], polarity[inside], time[inside]
    if not len(time):
        return frames.reshape(count, 2, rows, columns)
    row_cells = (np.arange(recording.size[0]) - top) * rows // height * columns
    column_cells = (np.arange(recording.size[1]) - left) * columns // width
    cells = row_cells[y] + column_cells[x]
    cells += ~polarity * (rows * columns)

    bounds = _even_parts(len(time), count) if by == "count" else np.searchsorted(time, start + _even_parts(stop - start, count, up=True))
    group = max(1, CELLS // frame)
    for first in range(0, count, group):
        some = bounds[first : first + group + 1]
        if some[0] == some[-1]:
            continue
        positions = cells[some[0] : some[-1]] + np.repeat(np.arange(len(some) - 1) * frame, np.diff(some))
        target = frames[first : first + group].reshape(-1)
        if binary:
            target[positions] = True
        else:
            target[:] = np.minimum(np.bincount(positions, minlength=target.size), MOST)
    return frames.reshape(count, 2, rows, columns)


def _even_parts(length: int, parts: int, up: bool = False) -> Integers:
    """k · length / parts for k = 0..parts, rounded down or up, without a product of more than 64 bits."""
    each, rest = divmod(length, parts)
    numbers = np.arange(parts + 1)
    share = -(-numbers * rest // parts) if up else numbers * rest // parts
    return numbers * each + share


def _as_crop(crop: tuple[int, int, int, int] | None, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """(top, left, height, width) within the sensor."""
    if crop is None:
        return 0, 0, *size
    if not isinstance(crop, (tuple, list)) or len(crop) != 4 or not all(is_integer(value) for value in crop):
        raise InputError(f"crop is {crop!r}: give (top, left, height, width) in pixels.")
    top, left, height, width = (int(value) for value in crop)
    if min(top, left) < 0 or min(height, width) < 1 or top + height > size[0] or left + width > size[1]:
        raise InputError(f"crop is {crop!r}, which does not lie within the sensor's {size[0]} × {size[1]} pixels: give less.")
    return top, left, height, width
