"""An ensemble and its rule as C sources that decide as the event-driven engine does.

    agreestop, network, rule (.h and .c),        as they are in `c/`, which is readable code
    answer.h, model.h, replay (.h and .c),
    Makefile
    sizes.h, model.c, rule_data.h                written here: sizes, weights, the numbers of the
                                                 rule
    inputs.bin, expected.csv                     with inputs: to compare the C code with Python
                                                 (`make check`)

Weights are stored as the engine stores them: float32, bfloat16, or int8 with a scale for each
member and output. So a rule for int8 weights is calibrated on scores of the engine
"event-driven-int8", and nothing about its promise changes on the device.
"""

import csv
import io
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from agreestop.adapters.engine import AdaptedEngine
from agreestop.common import Floats, InputError, atomic_writer, make_folder
from agreestop.common.errors import visible
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decisions
from agreestop.decide.rule import read_evidence
from agreestop.decide.scores import Scores
from agreestop.engines.early_stopping import BATCH_SIZE, check_rule, checkpoint_steps
from agreestop.engines.side_by_side import SideBySide
from agreestop.ensembles.ensemble import Ensemble
from agreestop.events.container import Events, as_inputs

from .c_text import flash_of, model_text, ram_of, rule_text, sizes_of
from .members import LARGEST, Members, check_exportable, exported_members
from .rules import ExportedRule, exported_rule

NETWORK = ("answer.h", "network.h", "network.c", "rule.h", "rule.c", "model.h")
RUN = ("agreestop.h", "agreestop.c", "replay.h", "replay.c", "Makefile")
WATCH = ("watch.h", "watch.c", "replay.h", "watch_replay.c", "Makefile")
SPOTTER = ("spotter.h", "spotter.c")
DATA = ("model.c", "rule_data.h", "spotter_data.h", "inputs.bin", "expected.csv", "sizes.h")
WRITTEN = tuple(dict.fromkeys((*NETWORK, *RUN, *WATCH, *SPOTTER, *DATA)))
MARKS = "agreestop.h", "answer.h", "spotter_data.h"  # of every export, by which it is recognised
TIED = 1e-11  # that of rule.c
INPUTS_FORMAT = 1
# names of precisions, by the type in which weights are stored
WEIGHTS = {"float32": "float32", "uint16": "bfloat16", "int8": "int8"}


@dataclass(frozen=True)
class CExport:
    """What `to_c` wrote.

    files    the names of the files in `folder`
    weights  how weights are stored: float32, bfloat16 or int8
    flash    bytes of all numbers; the code takes a few thousand more
    ram      bytes of static memory; the stack takes a few hundred more
    inputs   the number of inputs for `make check`
    nearest  over these inputs: the smallest distance of a risk or score to its threshold, ties left
             out; None without inputs
    ties     how often both were equal, up to rounding
    rounded  how many of the ties differ in their last bits: C takes both numbers as equal, and
             Python does not
    note     a sentence about what could not be compared with the calibration
    """

    folder: Path
    files: tuple[str, ...]
    weights: str
    flash: int
    ram: int
    inputs: int = 0
    nearest: float | None = None
    ties: int = 0
    rounded: int = 0
    note: str = ""


def to_c(
    rule: CalibratedRule,
    ensemble: Ensemble | AdaptedEngine,
    folder: str | PathLike[str],
    inputs: ArrayLike | Events | None = None,
    *,
    any_engine: bool = False,
    any_members: bool = False,
) -> CExport:
    """Write C99 sources of the ensemble and the rule to a folder: no allocation, and nothing needed
    but the C library.

    ensemble: an `Ensemble`, or what `agreestop.adapters.from_nir` returned. The weights are those
    of its engine, which must be event-driven. inputs: (n, T, ...) of zeros and ones, or images
    (n, 1, ...), for `make check`. A rule of another engine or of other members is refused, unless
    any_engine or any_members allows it.
    """
    exported = export_parts(rule, ensemble, folder, any_engine, any_members)
    shape, steps = exported.shape, exported.steps
    events = None if inputs is None else as_events(inputs, shape, steps)
    names = exported.names(None if events is None else events.classes)
    contents = exported.contents(RUN, names)
    check = NearTies()
    if events is not None:
        contents["inputs.bin"] = _inputs_file(events, steps)
        scores = score_in_batches(ensemble, events, steps)
        decisions, check = check_decisions(rule, exported.known, scores)
        rows = (
            (row, one.time, len(one.classes), ";".join(names[label] for label in one.classes))
            for row, one in enumerate(decisions)
        )
        contents["expected.csv"] = csv_bytes(("input", "stop_time", "set_size", "classes"), rows)
    write_export(exported.folder, contents)
    return exported.made(contents, names, check, ram_of(exported.sizes))


@dataclass(frozen=True, eq=False)
class ExportedParts:
    """What every export of members and a rule has."""

    folder: Path
    rule: CalibratedRule
    known: ExportedRule
    members: Members
    sizes: dict[str, int]
    shape: tuple[int, ...]
    steps: int

    def names(self, given: Sequence[str] | None) -> tuple[str, ...]:
        """The names of the classes as they are printed."""
        known = given or self.rule.class_names or tuple(map(str, range(self.rule.classes)))
        return tuple(visible(name) for name in known)

    def contents(self, sources: Sequence[str], names: tuple[str, ...]) -> dict[str, bytes]:
        """The files that need no inputs, by name."""
        text = {
            "model.c": model_text(self.members),
            "rule_data.h": rule_text(self.known, self.rule.guarantee, names),
            "sizes.h": defines("AG_SIZES_H", self.sizes),
        }
        return sources_of((*NETWORK, *sources)) | {name: one.encode() for name, one in text.items()}

    def made(
        self, contents: dict[str, bytes], names: Sequence[str], check: "NearTies", ram: int
    ) -> CExport:
        """What was written; ram: static memory besides that of the rule."""
        words = sum(len(name.encode()) + 5 for name in names)
        return CExport(
            self.folder,
            tuple(contents),
            WEIGHTS[self.members[0][0].weights.dtype.name],
            flash_of(self.members) + self.known.flash + words,
            ram + self.known.ram(self.rule.classes),
            *astuple(check),
        )


def export_parts(
    rule: CalibratedRule,
    ensemble: Ensemble | AdaptedEngine,
    folder: str | PathLike[str],
    any_engine: bool,
    any_members: bool,
) -> ExportedParts:
    """Check what is to be exported, and bring it into plain numbers."""
    check_exportable(ensemble)
    path, engine = Path(folder), ensemble.current_engine()
    check_folder(path)
    check_rule(rule, engine, ensemble.options(any_engine=any_engine, any_members=any_members))
    known = exported_rule(rule)
    members = exported_members(ensemble, engine, int(known.members[-1]))
    steps = int(checkpoint_steps(rule, engine, None)[-1])
    if steps > LARGEST:
        raise InputError(
            f"the rule's last checkpoint is step {steps}, and exported code counts to {LARGEST:,}: "
            "calibrate with earlier ones."
        )
    shape = ensemble.input_shape
    assert shape is not None, "the event-driven engine knows it"
    first: Any = engine.engines[0] if isinstance(engine, SideBySide) else engine
    sizes = sizes_of(members, math.prod(shape), rule.classes, known.history, steps) | {
        "AG_COUNTS": int(first.repeats != "once")
    }
    return ExportedParts(path, rule, known, members, sizes, shape, steps)


def sources_of(names: Sequence[str]) -> dict[str, bytes]:
    """Files that are the same in every export."""
    return {name: (files(__package__) / "c" / name).read_bytes() for name in names}


def check_folder(folder: Path) -> None:
    """Refuse a folder whose files an export would replace or remove although they are not of an
    export, before any work.
    """
    if folder.exists():
        make_folder(folder)  # a file in its place is refused
    taken = [name for name in WRITTEN if (folder / name).exists()]
    if taken and not any((folder / name).exists() for name in MARKS):
        raise InputError(
            f"{folder} holds a {taken[0]} that is not of an export, which would be replaced: "
            "choose another folder."
        )


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """What the programs in C print."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def write_export(folder: Path, contents: dict[str, bytes]) -> None:
    """Write the files, and remove those of an earlier export. sizes.h is removed first and written
    last.

    Until it is there nothing compiles, so an interrupted export cannot be mixed up. At any moment
    one of `MARKS` is there, so it can be done again.
    """
    make_folder(folder)
    _remove(folder, "sizes.h")
    for name in sorted(contents, key=lambda one: (one == "sizes.h", one not in MARKS)):
        if name == "sizes.h":
            _remove_others(folder, contents)
        with atomic_writer(folder / name) as stream:
            stream.write(contents[name])
    _remove_others(folder, contents)


def _remove_others(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Remove the files of another export."""
    for name in WRITTEN:
        if name not in contents:
            _remove(folder, name)


def _remove(folder: Path, name: str) -> None:
    try:
        (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot replace {folder / name}: {error.strerror}; choose another folder."
        ) from None


def defines(guard: str, values: Mapping[str, int | str]) -> str:
    """A header of macros."""
    lines = [f"#define {name} {value}\n" for name, value in values.items()]
    head = f"/* Written by agreestop export. */\n#ifndef {guard}\n#define {guard}\n\n"
    return f"{head}{''.join(lines)}\n#endif\n"


# ---- inputs to check with


@dataclass(frozen=True)
class NearTies:
    """How near decisions came to others, as in `CExport`."""

    inputs: int = 0
    nearest: float | None = None
    ties: int = 0
    rounded: int = 0


def as_events(inputs: ArrayLike | Events, shape: tuple[int, ...], steps: int) -> Events:
    """The inputs as events.

    Those that are not as long as the rule, or that hold other values than 0 and 1, are refused.
    """
    given = as_inputs(inputs)
    events = given if isinstance(given, Events) else Events.from_dense(given)
    if (
        events.shape[2:] != shape
        or len(events) < 1
        or events.shape[1] not in (1, *range(steps, events.shape[1] + 1))
    ):
        raise InputError(
            f"the inputs have shape {events.shape}: at least one input of shape {shape} at each of "
            f"{steps} or more steps, or an image of that shape is needed."
        )
    compact = events.compact()
    if compact.values is not None and not (compact.values == 1).all():
        raise InputError(
            "the inputs hold values other than 0 and 1, and exported code takes events: threshold "
            "them, and train on the result."
        )
    return compact


def _inputs_file(events: Events, steps: int) -> bytes:
    """inputs.bin, which `replay` reads; its layout is described in replay.c."""
    n, total = events.shape[:2]
    kept = min(total, steps)
    parts = [
        b"AGINPUTS" + struct.pack("<4I", INPUTS_FORMAT, n, kept, int(np.prod(events.shape[2:])))
    ]
    for pointers in events.pointers[:, : kept + 1]:
        parts.append(np.diff(pointers).astype("<u4").tobytes())
        parts.append(events.indices[pointers[0] : pointers[-1]].astype("<u2").tobytes())
    return b"".join(parts)


def score_in_batches(
    ensemble: Ensemble | AdaptedEngine, events: Events, steps: int
) -> list[Scores]:
    """The scores of the inputs; an image is held for `steps` steps."""
    held = steps if events.shape[1] == 1 else None
    firsts = range(0, len(events), BATCH_SIZE)
    return [
        ensemble.score(events.rows(slice(first, first + BATCH_SIZE)), steps=held)
        for first in firsts
    ]


def check_decisions(
    rule: CalibratedRule, known: ExportedRule, batches: Sequence[Scores]
) -> tuple[Decisions, NearTies]:
    """The decisions of Python, and how near they came to others."""
    parts, near, ties, rounded = [], np.inf, 0, 0
    for scores in batches:
        parts.append(rule.decide(scores, any_engine=True, any_members=True))
        for index, time in enumerate(known.times):
            running = parts[-1].stop_index >= index
            evidence = read_evidence(
                rule.rule, index, np.ascontiguousarray(scores.log_confidence[running, time - 1])
            )
            values = evidence.values if evidence.log_risk is None else evidence.log_risk[:, None]
            distance, *found = _distances(known, index, values)
            near, ties, rounded = min(near, distance), ties + found[0], rounded + found[1]
    stops, sets = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("stop_index", "sets")
    )
    decisions = Decisions(stops, sets, rule.checkpoints)
    return decisions, NearTies(len(decisions), float(near), ties, rounded)


def _distances(known: ExportedRule, index: int, values: Floats) -> tuple[float, int, int]:
    """The smallest distance of values (b, columns) to the thresholds of a look, ties left out,
    the number of ties, and of rounded ones.
    """
    rows = (
        known.thresholds
        if known.blocks is not None
        else known.thresholds[[index if len(known.thresholds) > 1 else 0]]
    )
    if known.policy == "AG_CONFIDENCE":
        values = values.max(axis=1, keepdims=True)
    if known.blocks is not None:
        rows = np.append(rows, [[known.slack]], axis=0)
    limits = rows[:, None, :]  # (blocks, 1, columns)
    gaps = np.where(
        np.isfinite(limits) & np.isfinite(values),
        np.abs(values - np.where(np.isfinite(limits), limits, 0)),
        np.inf,
    )
    tied = gaps <= TIED * (1 + np.abs(np.where(np.isfinite(limits), limits, 0)))
    return (
        float(np.where(tied, np.inf, gaps).min(initial=np.inf)),
        int(np.count_nonzero(tied)),
        int(np.count_nonzero(tied & (gaps > 0))),
    )
