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
from agreestop.common import InputError, atomic_writer, make_folder
from agreestop.common.errors import visible
from agreestop.decide.calibrated import CalibratedRule
from agreestop.engines.early_stopping import check_rule, checkpoint_steps
from agreestop.engines.side_by_side import SideBySide
from agreestop.ensembles.ensemble import Ensemble
from agreestop.events.container import Events

from .c_text import flash_of, model_text, ram_of, rule_text, sizes_of
from .checks import NearTies, as_events, check_decisions, score_in_batches
from .members import LARGEST, Members, check_exportable, exported_members
from .rules import ExportedRule, exported_rule

NETWORK = ("answer.h", "network.h", "network.c", "rule.h", "rule.c", "model.h")
RUN = ("agreestop.h", "agreestop.c", "replay.h", "replay.c", "Makefile")
WATCH = ("watch.h", "watch.c", "replay.h", "watch_replay.c", "Makefile")
SPOTTER = ("spotter.h", "spotter.c")
DATA = ("model.c", "rule_data.h", "spotter_data.h", "inputs.bin", "expected.csv", "sizes.h")
WRITTEN = tuple(dict.fromkeys((*NETWORK, *RUN, *WATCH, *SPOTTER, *DATA)))
MARKS = "agreestop.h", "answer.h", "spotter_data.h"  # files by which an export is recognised
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
        self, contents: dict[str, bytes], names: Sequence[str], check: NearTies, ram: int
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
