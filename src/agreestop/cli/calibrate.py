"""`agreestop calibrate`: a score file with labels becomes a rule file."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agreestop.common.errors import InputError
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.confidence_rules import DCSNN, SEENN
from agreestop.decide.pooling import MODEL_AVERAGE, MergeConfidence
from agreestop.decide.risks import TopMass
from agreestop.decide.rule_files import load_rule
from agreestop.decide.score_files import Scores, load_scores
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.tuned_rows import TunedRows, mark_rows
from agreestop.decide.tuning import EXPONENTS, tune

from .console import in_full, out, progress_bar, telling_warnings
from .parse import POOLINGS, parse_checkpoints, parse_pooling


class RuleName(StrEnum):
    """The rules by the names of the command line."""

    spikecp = "spikecp"
    agreestop = "agreestop"
    dcsnn = "dcsnn"
    seenn = "seenn"


class CalibrationName(StrEnum):
    """The calibrations of SpikeCP."""

    bonferroni = "bonferroni"
    simultaneous = "simultaneous"
    stop_aware = "stop-aware"


def calibrate(
    scores: Annotated[Path, typer.Argument(help="Score file with labels, used for nothing else.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Rule file to write.")],
    rule: Annotated[RuleName | None, typer.Option(help="Which rule. [default: agreestop, or spikecp with --calibration]")] = None,
    target: Annotated[str | None, typer.Option(help="Probability that the answer holds the true class. [default: 0.9]")] = None,
    checkpoints: Annotated[str, typer.Option(help="Times at which to look: 20,40,60,80, or 1-80, or all.")] = "all",
    max_set_size: Annotated[int, typer.Option(help="Largest set that may stop early; the last checkpoint may answer more.")] = 1,
    pooling: Annotated[str | None, typer.Option(help=f"How members are pooled: {POOLINGS}. [default: confidence:1]")] = None,
    calibration: Annotated[CalibrationName | None, typer.Option(help="spikecp: how. [default: bonferroni]")] = None,
    tuning: Annotated[Path | None, typer.Option(help="spikecp, agreestop: score file of other rows to tune on.")] = None,
    fill: Annotated[bool, typer.Option("--fill", help="agreestop: always answer max-set-size classes; a little earlier.")] = False,
    class_conditional: Annotated[bool, typer.Option("--class-conditional", help="The promise for each true class.")] = False,
    delta: Annotated[str | None, typer.Option(help="Hold for all but this share of calibration draws, such as 0.1.")] = None,
    threshold: Annotated[float | None, typer.Option(help="seenn: the confidence at which to stop.")] = None,
) -> None:
    """Calibrate a rule on a score file with labels and write it to a rule file."""
    data = load_scores(scores)
    if data.labels is None:
        raise InputError(f"{scores} has no labels: calibration needs one label for each input.")
    times = parse_checkpoints(checkpoints, data.times)
    rule = rule or (RuleName.agreestop if calibration is None else RuleName.spikecp)
    if calibration is not None and rule is not RuleName.spikecp:
        raise InputError(f"--calibration goes with --rule spikecp, not {rule}: leave it out, or choose that rule.")
    if target is not None and rule is RuleName.seenn:
        raise InputError("--rule seenn has no --target: leave it out, or choose a rule with a guarantee.")
    target = target or "0.9"
    if rule not in (RuleName.spikecp, RuleName.agreestop) and (tuning or class_conditional or delta or pooling):
        raise InputError(
            f"--rule {rule} takes no --pooling, --tuning, --class-conditional or --delta: leave them out, or choose another rule."
        )
    if threshold is not None and rule is not RuleName.seenn:
        raise InputError("--threshold goes with --rule seenn: leave it out, or choose that rule.")
    if rule is RuleName.dcsnn:
        chosen: SpikeCP | AgreeStop | DCSNN | SEENN = DCSNN(target, times, max_set_size)
    elif rule is RuleName.seenn:
        if threshold is None:
            raise InputError("--rule seenn stops at a confidence that you fix: give it with --threshold, for example 0.9.")
        chosen = SEENN(threshold, times, max_set_size)
    else:
        chosen = _settings(rule, target, times, max_set_size, pooling, calibration, fill, class_conditional, delta)
        if tuning is not None:
            chosen = _tuned(chosen, tuning, data, fixed_pooling=pooling is not None)
    with telling_warnings():
        calibrated = chosen.calibrate(data.log_confidence, data.labels, times=data.times)
    replace(calibrated, engine=data.engine).save(output)
    summary = load_rule(output)
    out.print(f"Wrote {output}: {rule}, calibrated on n = {summary.n}, K = {summary.members}, C = {summary.classes}.", markup=False)
    out.print(in_full(summary), markup=False)


def _settings(
    rule: RuleName,
    target: str,
    times: tuple[float, ...],
    max_set_size: int,
    pooling: str | None,
    calibration: CalibrationName | None,
    fill: bool,
    class_conditional: bool,
    delta: str | None,
) -> SpikeCP | AgreeStop:
    pool = MODEL_AVERAGE if pooling is None else parse_pooling(pooling)
    if rule is RuleName.spikecp:
        if fill:
            raise InputError("--fill goes with --rule agreestop: leave it out, or choose that rule.")
        return SpikeCP(
            target, times, max_set_size, pool, calibration.value if calibration else "bonferroni", None, class_conditional, delta
        )
    if pool is not None and not isinstance(pool, MergeConfidence):
        raise InputError(f"--pooling is {pooling!r}, but agreestop pools confidences: give confidence:R, or choose --rule spikecp.")
    return AgreeStop(target, times, max_set_size, fill, TopMass(pool or MODEL_AVERAGE), class_conditional, delta)


def _tuned(rule: SpikeCP | AgreeStop, path: Path, data: Scores, fixed_pooling: bool) -> SpikeCP | AgreeStop:
    """The rule with the score or risk that stops earliest on the tuning file."""
    tuning = load_scores(path)
    if tuning.labels is None:
        raise InputError(f"{path} has no labels: tuning needs one label for each input.")
    rows = TunedRows.of(tuning.log_confidence).cut(range(len(tuning.times)), len(tuning.times))
    if reuse := rows.reuse(mark_rows(data.log_confidence, range(len(data.times)))):
        raise InputError(f"calibration: {reuse}")
    pool = rule.risk.pooling if isinstance(rule, AgreeStop) and isinstance(rule.risk, TopMass) else getattr(rule, "pooling", None)
    exponents = (pool.r,) if fixed_pooling and isinstance(pool, MergeConfidence) else EXPONENTS
    with progress_bar("tuning") as tell:
        tuned = tune(rule, tuning.log_confidence, tuning.labels, tuning.times, min(len(data), len(tuning) // 2), exponents, progress=tell)
    best = tuned.trials[0]
    out.print(f"Tuned on {path}: {best.name} (latency {best.latency:.3f} of the last checkpoint there).", markup=False)
    return tuned.rule
