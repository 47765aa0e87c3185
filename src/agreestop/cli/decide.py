"""`agreestop decide`: a rule file, and a score file or members and their inputs,
become decisions.
"""

import csv
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from agreestop.common import InputError, Integers, atomic_writer, check_writable, file_lock
from agreestop.common.errors import visible
from agreestop.decide.calibrated import CalibratedRule, load_rule
from agreestop.decide.decisions import Decision, Decisions
from agreestop.decide.drift.monitor import DriftMonitor
from agreestop.decide.leakage import DIFFERENT_INPUTS
from agreestop.decide.rule_files import kept_kind

from .console import (
    Engine,
    Members,
    Ray,
    check_one_file,
    errors_name_options,
    never_stops,
    progress_bar,
    refuse_options,
    say,
)
from .spot import NOT_FOR_A_SPOTTER, SPOTTER, decide_alarms, takes_no
from .texts import read_lines

FORMATS = (".csv", ".json", ".npz")
CLUSTER_FORMATS = (".parquet", "")  # one file, or a folder
MOST_NAMED = 10  # damaged files that are named on the terminal
RuleFile = Annotated[Path, typer.Argument(help="Rule file that `agreestop calibrate` wrote.")]
AnyEngine = Annotated[
    bool,
    typer.Option("--any-engine", help="Allow another engine than the rule was calibrated with."),
]
AnyMembers = Annotated[
    bool,
    typer.Option("--any-members", help="Allow other members than the rule was calibrated with."),
]


def decide(
    context: typer.Context,
    rule: RuleFile,
    scores: Annotated[
        Path,
        typer.Argument(
            help=(
                "Score file, or a file of risks for a rule stop or of recordings for a "
                "spotter, or with --members a file of "
                "inputs (with --ray also a folder)."
            )
        ),
    ],
    members: Members = None,
    engine: Engine = "auto",
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the group of each input, one on a line, for a rule with groups."
        ),
    ] = None,
    any_engine: AnyEngine = False,
    any_members: AnyMembers = False,
    monitor: Annotated[
        Path | None,
        typer.Option(
            "--monitor",
            help=(
                "Drift monitor to go on with, or to begin; it uses the labels or final answers of "
                "the scores."
            ),
        ),
    ] = None,
    ray: Ray = None,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged",
            help=(
                "With --ray: leave out files and shards that cannot be read, and name and count "
                "them."
            ),
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help=(
                "File to write: .csv, .json, .npz; with --ray also .parquet, or a folder. Without "
                "it: CSV on the terminal."
            ),
        ),
    ] = None,
) -> None:
    """Decide for every input when to stop and what to answer.

    With --ray, inputs may also be a folder or Parquet files, and a call that was killed continues
    when it is repeated.
    """
    if output is not None and output.suffix not in (
        FORMATS if ray is None else (*FORMATS, *CLUSTER_FORMATS)
    ):
        raise InputError(
            f"{output} ends in {output.suffix!r}: give a name that ends in {', '.join(FORMATS)}, "
            "or with --ray in .parquet, or a folder."
        )
    if ray is not None and (members is None or output is None):
        raise InputError(
            "--ray runs members on inputs and writes a file: give "
            f"{'--members' if members is None else '-o'} too."
        )
    if ray is not None and groups is not None:
        raise InputError(
            "--groups is given with --ray, where groups come from the column 'group' of Parquet "
            "files: leave it out."
        )
    kept = output is not None and output.suffix in CLUSTER_FORMATS  # as the cluster writes it
    if skip_damaged and not kept:
        raise InputError(
            "--skip-damaged is for --ray and -o FILE.parquet, whose rows say which inputs they are "
            "about: give both."
        )
    if output is not None and not kept:
        check_writable(output, rule, scores, members)
    if kept_kind(rule) == SPOTTER:
        refuse_options(context, takes_no("any_engine", "any_members"), NOT_FOR_A_SPOTTER)
        decide_alarms(rule, scores, output, any_engine=any_engine, any_members=any_members)
        return
    calibrated = load_rule(rule)
    if calibrated.group_names is not None and groups is None and ray is None:
        raise InputError(f"{rule} has groups: give the group of each input with --groups.")
    if monitor is not None:
        check_writable(monitor)
        DriftMonitor.resume(monitor, calibrated)
    if sentence := never_stops(calibrated):
        say(sentence)
    labels, classes = None, None
    if ray is not None and members is not None and output is not None:
        allowed = {
            "any_engine": any_engine,
            "any_members": any_members,
            "skip_damaged": skip_damaged,
        }
        target = _decide_on_ray(ray, rule, calibrated, members, scores, engine, output, allowed)
        if kept and monitor is None:
            return
        decisions, classes = _load_decisions(target, calibrated, scores)
    elif members is None:
        if engine != "auto":
            raise InputError(
                f"--engine is {engine}, but without --members nothing is run: leave it out, or "
                "give members and inputs."
            )
        data = calibrated.rule.load(scores, calibrated.checkpoints)
        inside = None if groups is None else read_lines(groups, len(data))
        with errors_name_options():
            decisions = calibrated.decide(
                data, groups=inside, any_engine=any_engine, any_members=any_members
            )
        labels = decisions.final_best if calibrated.final else data.labels
        classes = data.classes
        say_unchecked(calibrated, data.engine, data.ensemble_digest)
    else:
        decisions, classes = _run_members(
            calibrated, members, scores, engine, groups, any_engine, any_members
        )
    for note in decisions.notes:
        if "group" in note or DIFFERENT_INPUTS in note:
            say(note)
    if decisions.reuse:
        say(f"These decisions say nothing about new inputs: {decisions.reuse}")
    if monitor is not None:
        _watch(monitor, calibrated, decisions, labels)
    if kept:
        return
    names = class_names(calibrated, classes)
    if output is None:
        typer.echo(_as_csv(decisions, names), nl=False)
        return
    _write(output, decisions, names)
    if ray is not None:
        shutil.rmtree(_parts(output), ignore_errors=True)
    mean, last = float(np.mean(decisions.stop_time)), decisions.checkpoints[-1]
    early = f"latency {mean / last:.3f} of T"
    if decisions.texts is not None:
        early = f"{mean:.3g} of {last:g} samples on average"
    words = f"set size {decisions.set_size.mean():.2f}"
    if not decisions.has_classes or decisions.texts is not None:
        words = f"{decisions.answered.mean():.1%} answered"
    if decisions.lower is not None:
        words = f"width {decisions.width.mean():.4g}"
    say(f"Wrote {output}: {len(decisions)} decisions, {early}, {words}.")


def _write(output: Path, decisions: Decisions, names: Sequence[str]) -> None:
    """Write decisions in the format that the name of the file says."""
    with atomic_writer(output) as stream:
        if output.suffix == ".csv":
            stream.write(_as_csv(decisions, names).encode())
        elif output.suffix == ".json":
            content = json.dumps(_records(decisions, names), ensure_ascii=False, indent=1)
            stream.write(content.encode() + b"\n")
        else:
            np.savez_compressed(
                stream,
                stop_time=decisions.stop_time,
                stop_index=decisions.stop_index,
                **_arrays(decisions),
            )


def _arrays(decisions: Decisions) -> dict[str, Any]:
    """What was answered, as arrays."""
    if decisions.lower is not None and decisions.upper is not None:
        return {"lower": decisions.lower, "upper": decisions.upper}
    if decisions.texts is not None:
        return {"answers": np.array(["".join(names) for names in decisions.names])}
    if not decisions.has_classes:
        return {"answered": decisions.answered}
    if decisions.depth_index is None:
        return {"sets": decisions.sets}
    return {
        "sets": decisions.sets,
        "depth_index": decisions.depth_index,
        "depth_sets": decisions.depth_sets,
    }


def _records(decisions: Decisions, names: Sequence[str]) -> list[dict[str, Any]]:
    """A record for each decision, with these names of the classes."""
    return [
        {"input": row, "stop_time": one.time, **_answer(one, decisions, names)}
        for row, one in enumerate(decisions)
    ]


def _answer(one: Decision, decisions: Decisions, names: Sequence[str]) -> dict[str, Any]:
    if decisions.texts is not None:
        cost = {} if one.cost is None else {"cost": one.cost}
        return {"answered": one.answered, "answer": "".join(one.names or ()), **cost}
    if one.lower is not None:
        return {"lower": one.lower, "upper": one.upper}
    if not decisions.has_classes:
        return {"answered": one.answered}
    answer: dict[str, Any] = {
        "set_size": len(one.classes),
        "classes": [names[label] for label in one.classes],
    }
    if decisions.tree is not None:
        answer["answer"] = "".join(one.names or ())
        for depth, at in enumerate(one.by_depth, 1):
            answer[f"depth_{depth}_answer"] = "".join(at.names or ())
            answer[f"depth_{depth}_time"] = at.time
    return answer


def _as_csv(decisions: Decisions, names: Sequence[str]) -> str:
    """The records with a header; classes are joined by semicolons."""
    records, text = _records(decisions, names), io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        if "classes" in record:
            record["classes"] = ";".join(record["classes"])
        writer.writerow(record)
    return text.getvalue()


def class_names(calibrated: CalibratedRule, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the classes for the terminal: those of a file, else those of the rule, else
    their numbers.
    """
    return tuple(
        visible(name)
        for name in names or calibrated.class_names or map(str, range(calibrated.classes))
    )


def say_unchecked(calibrated: CalibratedRule, engine: str, ensemble_digest: str) -> None:
    """Say in one line what could not be compared with the calibration, because a file, of version
    0.1 for example, does not name it.

    Rules and scores that know neither engine nor members come from a model that is not ours, and
    nothing is said of them.
    """
    pairs = {
        "engine": (calibrated.engine, engine),
        "members": (calibrated.ensemble_digest, ensemble_digest),
    }
    unknown = [what for what, names in pairs.items() if not all(names)]
    if unknown and any(name for names in pairs.values() for name in names):
        say(
            f"Not checked: {' and '.join(unknown)}, which must be those of the calibration; the "
            "rule file or the scores do not name them."
        )


def load_members(path: Path, engine: str, calibrated: CalibratedRule) -> Any:
    """The ensemble of a file, on the engine of the calibration where none is named. Says what
    could not be compared.
    """
    from agreestop.ensembles import load

    wanted = calibrated.engine if engine == "auto" and calibrated.engine else engine
    ensemble = load(path, engine=wanted)
    say_unchecked(calibrated, wanted, ensemble.digest)
    return ensemble


def _run_members(
    calibrated: CalibratedRule,
    members: Path,
    inputs: Path,
    engine: str,
    groups: Path | None,
    any_engine: bool,
    any_members: bool,
) -> tuple[Decisions, tuple[str, ...] | None]:
    """Run the members on each input until its decision, and say which engine ran and how
    much it computed.
    """
    from agreestop.events.files import load as load_inputs

    check_one_file(inputs)
    data = load_inputs(inputs)
    ensemble = load_members(members, engine, calibrated)
    inside = None if groups is None else read_lines(groups, len(data))
    with errors_name_options():
        run = ensemble.decide(
            calibrated, data, groups=inside, any_engine=any_engine, any_members=any_members
        )
    steps = calibrated.checkpoints[-1] if data.shape[1] == 1 else data.shape[1]
    share = float(run.computed.mean()) / steps
    say(
        f"The {ensemble.engine.name} engine computed {share:.0%} of the {steps} steps, in "
        f"{run.seconds:.2f} s."
    )
    return run.decisions, data.classes


def _parts(output: Path) -> Path:
    """The folder of the decisions of shards, until all of them are in the file."""
    return output.with_name(f"{output.name}.parts")


def _decide_on_ray(
    address: str,
    rule: Path,
    calibrated: CalibratedRule,
    members: Path,
    inputs: Path,
    engine: str,
    output: Path,
    allowed: dict[str, bool],
) -> Path:
    """Decide on a Ray cluster, and say which engine ran and how much it computed; the file or
    folder of the decisions.
    """
    from agreestop import cluster

    target = output if output.suffix in CLUSTER_FORMATS else _parts(output)
    with progress_bar(output.name) as progress:
        run = cluster.decide(
            rule,
            members,
            inputs,
            target,
            address=address,
            engine=engine,
            progress=progress,
            **allowed,
        )
    steps = f"{run.mean_computed:.1f} of {calibrated.checkpoints[-1]:g} steps of a recording"
    when = (
        f"in {run.seconds:.2f} s"
        if run.resumed < run.shards
        else "in an earlier call, whose decisions are there"
    )
    say(
        f"The {run.engine} engine decided on {run.recordings:,} recordings and computed {steps}, "
        f"{when}."
    )
    for sentence in run.damaged[:MOST_NAMED]:
        say(f"Skipped: {sentence}")
    if run.damaged:
        say(f"Skipped in all: {len(run.damaged)} files and shards that cannot be read.")
    if target == output:
        if run.reuse:
            say(f"These decisions say nothing about new inputs: {run.reuse}")
        say(f"Wrote {output}.")
    return target


def _load_decisions(
    target: Path, calibrated: CalibratedRule, inputs: Path
) -> tuple[Decisions, tuple[str, ...] | None]:
    """Decisions of a cluster, and the names of the classes where the inputs are one file
    that has them.
    """
    from agreestop import cluster
    from agreestop.events.files import load as load_inputs

    classes = load_inputs(inputs).classes if inputs.suffix == ".npz" else None
    return cluster.load_decisions(target, calibrated), classes


def _watch(
    path: Path, calibrated: CalibratedRule, decisions: Decisions, labels: Integers | None
) -> None:
    """Give the decisions to the monitor in a file, and say what it found.

    Labels that are not here will never be known.

    A rule about final answers is watched with those of the scores; members that run stop early and
    leave none. Commands and servers that run at the same time take turns, so that none of their
    decisions is lost.
    """
    with file_lock(path.resolve(), say):
        monitor = DriftMonitor.resume(path, calibrated)
        monitor.observe(decisions)
        if monitor.level is not None:
            monitor.update(decisions, labels)
        monitor.save(path)
    say(f"{monitor!r}.")
