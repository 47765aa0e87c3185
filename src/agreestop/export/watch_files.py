"""A watched ensemble, or a spotter alone, as C sources that find what Python finds.

    watch, spotter (.h and .c)       as they are in `c/`, with the files of every export
    spotter_data.h                   written here: the spotter's threshold and rest, the window of
                                     its score, and the classes that it detects
    inputs.bin, expected.csv         with recordings: to compare C with Python (`make check`)

Per step the network runs once, the spikes of the last `window` steps are kept as bits, and the
spotter's score is computed from their counts. Memory is static and does not grow.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from agreestop.adapters.engine import AdaptedEngine
from agreestop.common import Booleans, InputError, as_array
from agreestop.decide.calibrated import CalibratedRule, check_calibrated
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import CalibratedSpotter
from agreestop.engines.watching import Event, Heard, event_columns, event_of
from agreestop.ensembles.ensemble import Ensemble
from agreestop.events.container import Events

from .c_files import (
    INPUTS_FORMAT,
    SPOTTER,
    WATCH,
    CExport,
    ExportedParts,
    check_folder,
    csv_bytes,
    defines,
    export_parts,
    sources_of,
    write_export,
)
from .c_text import c_double, watch_ram_of
from .checks import TIED, NearTies, check_decisions
from .members import LARGEST

LONGEST_REST = 2**32 - 1


def spotter_to_c(spotter: CalibratedSpotter, folder: str | PathLike[str]) -> CExport:
    """Write a calibrated spotter as C sources, for scores that your own code pushes.

    spotter.c, spotter.h and spotter_data.h, C99 and C++: no allocation, one struct of 16 bytes for
    each stream, and the alarms of `spotter.stream()`.

    Examples
    --------
    >>> import tempfile, numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> spotter = ag.Spotter(0.1).calibrate([rng.normal(size=50) for _ in range(20)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ag.export.spotter_to_c(spotter, folder).files
    ('spotter.h', 'spotter.c', 'spotter_data.h')
    """
    check_calibrated(spotter, CalibratedSpotter)
    path = Path(folder)
    check_folder(path)
    contents = sources_of(SPOTTER) | {"spotter_data.h": _spotter_text(spotter).encode()}
    write_export(path, contents)
    return CExport(path, tuple(contents), "no", flash=12, ram=16)


def watch_to_c(
    spotter: CalibratedSpotter,
    rule: CalibratedRule,
    ensemble: Ensemble | AdaptedEngine,
    folder: str | PathLike[str],
    recordings: Sequence[ArrayLike] | Events | None = None,
    *,
    window: int,
    event: Event | None = None,
    skip: int = 0,
    any_engine: bool = False,
    any_members: bool = False,
) -> CExport:
    """Write C99 sources of `ensemble.watch(spotter, rule, window=window, event=event, skip=skip)`.

    ensemble, any_engine and any_members are as for `to_c`. recordings: arrays (T_i, ...) of zeros
    and ones, for `make check`, which compares each detection and each decision with Python. event:
    by default the event of the scores that the spotter was calibrated on.
    """
    exported = export_parts(rule, ensemble, folder, any_engine, any_members)
    event = event_of(spotter) if event is None else event
    how: Any = {"window": window, "event": event}
    allowed: Any = {"any_engine": any_engine, "any_members": any_members, "skip": skip}
    # refuses what does not fit together
    note = ensemble.watch(spotter, rule, **how, **allowed).note
    for name, count in (("window", window), ("skip", skip)):
        if count > LARGEST:
            raise InputError(
                f"{name} is {count}, and exported code counts to {LARGEST:,}: use a shorter one."
            )
    streams = None if recordings is None else _as_streams(recordings, exported.shape)
    classes = recordings.classes if isinstance(recordings, Events) else None
    names = exported.names(classes)
    columns = event_columns(event, ensemble.class_names or rule.class_names, rule.classes)
    contents = exported.contents((*WATCH, *SPOTTER), names)
    contents["spotter_data.h"] = _spotter_text(
        spotter, window, skip, columns, rule.classes, note
    ).encode()
    check = NearTies()
    if streams is not None:
        contents["inputs.bin"] = _streams_file(streams)
        found = [_watched(ensemble.watch(spotter, rule, **how, **allowed), one) for one in streams]
        contents["expected.csv"] = _found_csv(found, names)
        heard = ensemble.listen(streams, **how)
        check = _check(spotter, rule, exported, heard, skip)
    write_export(exported.folder, contents)
    made = exported.made(contents, names, check, watch_ram_of(exported.sizes, window))
    return replace(made, note=note)


def _spotter_text(
    spotter: CalibratedSpotter,
    window: int = 0,
    skip: int = 0,
    columns: Sequence[int] = (),
    classes: int = 0,
    note: str = "",
) -> str:
    """spotter_data.h, with the promise in words on top."""
    if spotter.spotter.rest > LONGEST_REST:
        raise InputError(
            f"the spotter rests for {spotter.spotter.rest} steps, and exported code counts to "
            f"{LONGEST_REST:,}: calibrate a shorter rest."
        )
    values = {"AG_THRESHOLD": c_double(spotter.threshold), "AG_REST": f"{spotter.spotter.rest}u"}
    if window:
        event = ", ".join(str(int(one in columns)) for one in range(classes))
        values |= {"AG_WINDOW": str(window), "AG_SKIP": str(skip), "AG_EVENT": f"{{{event}}}"}
    promise = f"{spotter.guarantee} {note}".rstrip().replace("*/", "* /")
    return f"/* The spotter's promise: {promise} */\n" + defines("AG_SPOTTER_DATA_H", values)


# ---- recordings to check with


def _as_streams(recordings: Sequence[ArrayLike] | Events, shape: tuple[int, ...]) -> list[Booleans]:
    """Recordings (T_i, ...) of zeros and ones."""
    given = recordings.to_dense() if isinstance(recordings, Events) else recordings
    streams = []
    for row, one in enumerate(given):
        array = as_array(one, f"recordings[{row}]")
        if array.shape[1:] != shape or not len(array):
            raise InputError(
                f"recordings[{row}] has shape {array.shape}: give steps of shape {shape}, one at "
                "least."
            )
        if not ((array == 0) | (array == 1)).all():
            raise InputError(
                f"recordings[{row}] holds values other than 0 and 1, and exported code takes "
                "events: threshold them, and train on the result."
            )
        streams.append(array.astype(bool))
    if not streams:
        raise InputError("recordings is empty: give at least one recording, or None.")
    return streams


def _streams_file(streams: Sequence[Booleans]) -> bytes:
    """inputs.bin, whose layout is described in watch_replay.c."""
    cells = streams[0][0].size
    parts = [b"AGSTREAM" + struct.pack("<3I", INPUTS_FORMAT, len(streams), cells)]
    for stream in streams:
        parts.append(struct.pack("<I", len(stream)))
        for frame in stream.reshape(len(stream), -1):
            events = np.flatnonzero(frame)
            parts += [struct.pack("<I", len(events)), events.astype("<u2").tobytes()]
    return b"".join(parts)


def _watched(session: Any, stream: Booleans) -> list[tuple[int, Any]]:
    """The detections and decisions of a stream, with their steps."""
    pushed = ((step, session.push(frame=frame)) for step, frame in enumerate(stream))
    return [(step, found) for step, found in pushed if found is not None]


def _found_csv(found: Sequence[Sequence[tuple[int, Any]]], names: Sequence[str]) -> bytes:
    rows: list[tuple[Any, ...]] = []
    for stream, steps in enumerate(found):
        for step, one in steps:
            answer: tuple[Any, ...] = ("detection", None, None)
            if isinstance(one, Decision):
                words = ";".join(names[label] for label in one.classes)
                answer = ("decision", len(one.classes), words)
            rows.append((stream, step, *answer))
    return csv_bytes(("stream", "step", "found", "set_size", "classes"), rows)


def _check(
    spotter: CalibratedSpotter,
    rule: CalibratedRule,
    exported: ExportedParts,
    heard: Heard,
    skip: int,
) -> NearTies:
    """How near scores came to the spotter's threshold outside its rests, and risks of complete
    windows to the rule's.
    """
    alarms = [spotter.alarms(scores) for scores in heard.scores]
    gaps = []
    for scores, own in zip(heard.scores, alarms, strict=True):
        awake = np.ones(len(scores), dtype=bool)
        for alarm in own:
            awake[alarm + 1 : alarm + 1 + spotter.spotter.rest] = False
        gaps.append(np.abs(scores[awake] - spotter.threshold))
    distances = np.concatenate(gaps)
    tied = distances <= TIED * (1 + abs(spotter.threshold))
    windows = []
    for number in range(max(map(len, alarms))):
        at = np.array([own[number] if number < len(own) else -1 for own in alarms])
        ends = np.array([len(scores) for scores in heard.scores]) - exported.steps - skip
        if ((at >= 0) & (at < ends)).any():
            nothing = np.zeros(len(at), np.int64)
            windows.append(heard.after(at, nothing, steps=exported.steps, skip=skip))
    ruled = check_decisions(rule, exported.known, windows)[1] if windows else NearTies()
    nearest = min(distances[~tied].min(initial=np.inf), ruled.nearest or np.inf)
    rounded = int(np.count_nonzero(tied & (distances > 0)))
    ties = int(np.count_nonzero(tied)) + ruled.ties
    return NearTies(len(heard.scores), float(nearest), ties, rounded + ruled.rounded)
