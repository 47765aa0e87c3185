"""`agreestop calibrate`: a score file with labels becomes a rule file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from agreestop.common import InputError
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.build import KINDS, POOLINGS, build_rule
from agreestop.decide.merging import MergeConfidence
from agreestop.decide.risks import TopMass
from agreestop.decide.score_files import Scores, load_scores
from agreestop.decide.spikecp import CALIBRATIONS, SpikeCP
from agreestop.decide.tuning import EXPONENTS, tune

from .console import guarantee_in_words, printed_warnings, progress_bar, show


def calibrate(
    scores: Annotated[Path, typer.Argument(help="Score file with labels that is used for nothing else.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Rule file to write.")],
    rule: Annotated[str | None, typer.Option(help=f"{', '.join(KINDS)}. [default: agreestop, or spikecp with --calibration]")] = None,
    target: Annotated[str | None, typer.Option(help="Probability that the answer holds the true class. [default: 0.9]")] = None,
    checkpoints: Annotated[str, typer.Option(help="Times at which the rule may stop: 20,40,60,80, or 1-80, or all.")] = "all",
    max_set_size: Annotated[int, typer.Option(help="Largest set that may stop early; an answer at the last checkpoint may be larger.")] = 1,
    pooling: Annotated[str | None, typer.Option(help=f"How the members are pooled: {POOLINGS}. [default: confidence:1]")] = None,
    calibration: Annotated[str | None, typer.Option(help=f"spikecp: {', '.join(CALIBRATIONS)}. [default: bonferroni]")] = None,
    tuning: Annotated[Path | None, typer.Option(help="spikecp, agreestop: score file with labels of other inputs, to tune on.")] = None,
    fill: Annotated[bool, typer.Option("--fill", help="agreestop: always answer max-set-size classes; stops earlier.")] = False,
    class_conditional: Annotated[bool, typer.Option("--class-conditional", help="Keep the promise for each true class.")] = False,
    delta: Annotated[str | None, typer.Option(help="Keep the promise for all but this share of calibration draws, such as 0.1.")] = None,
    threshold: Annotated[float | None, typer.Option(help="seenn: the confidence at which to stop.")] = None,
) -> None:
    """Calibrate a rule on a score file with labels and write it to a rule file."""
    data = labelled_scores(scores, "calibration")
    times = parse_checkpoints(checkpoints, data.times)
    kind = rule or ("agreestop" if calibration is None else "spikecp")
    chosen = build_rule(
        *(kind, target, times, max_set_size),
        pooling=pooling,
        calibration=calibration,
        fill=fill,
        class_conditional=class_conditional,
        delta=delta,
        threshold=threshold,
    )
    if tuning is not None:
        if not isinstance(chosen, (SpikeCP, AgreeStop)):
            raise InputError(f"--tuning belongs to the rule spikecp or agreestop, not to {kind}: leave it out, or choose one of these.")
        chosen = _tuned(chosen, tuning, len(data), fixed_pooling=pooling is not None)
    with printed_warnings():
        calibrated = chosen.calibrate(data)
    calibrated.save(output)
    sizes = f"n = {calibrated.n}, K = {calibrated.members}, C = {calibrated.classes}"
    show(f"Wrote {output}: {kind}, calibrated on {sizes}.", guarantee_in_words(calibrated))


def labelled_scores(path: Path, purpose: str, checkpoints: Sequence[float] | None = None) -> Scores:
    """The scores of a file that must have labels, at all of its times or at the given ones."""
    data = load_scores(path, checkpoints)
    if data.labels is None:
        raise InputError(f"{path} has no labels: {purpose} needs one label for each input.")
    return data


def _tuned(rule: SpikeCP | AgreeStop, path: Path, n_calibration: int, fixed_pooling: bool) -> SpikeCP | AgreeStop:
    """The rule with the score or risk that stops earliest on the rows of the tuning file."""
    tuning = labelled_scores(path, "tuning")
    pool = rule.risk.pooling if isinstance(rule, AgreeStop) and isinstance(rule.risk, TopMass) else getattr(rule, "pooling", None)
    exponents = (pool.r,) if fixed_pooling and isinstance(pool, MergeConfidence) else EXPONENTS
    with progress_bar("tuning") as progress:
        count = min(n_calibration, len(tuning) // 2)
        tuned = tune(rule, tuning, n_calibration=count, exponents=exponents, progress=progress)
    best = tuned.trials[0]
    show(f"Tuned on {path}: {best.name} (latency {best.latency:.3f} of the last checkpoint there).")
    return tuned.rule


def parse_checkpoints(text: str, available: tuple[float, ...]) -> tuple[float, ...]:
    """'all', '20,40,60,80', '1-80' (every time of the file in that range), or a mixture of the last two."""
    if text.strip() == "all":
        return available
    chosen: list[float] = []
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?:\s*-\s*(\d+(?:\.\d+)?))?\s*", part)
        if bounds is None:
            raise InputError(f"--checkpoints is {text!r}: give times such as 20,40,60,80, a range such as 1-80, or all.")
        low, high = float(bounds[1]), float(bounds[2] or bounds[1])
        inside = [time for time in available if low <= time <= high]
        if not inside:
            given = f"{available[0]} to {available[-1]}"
            raise InputError(f"--checkpoints asks for {part.strip()}, but the file has times {given}: choose among those.")
        chosen += inside
    return tuple(chosen)
