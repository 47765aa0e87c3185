"""What `agreestop calibrate` fixes on the rows of --tuning: a gate, a risk of open answers, when to
give up, or the score or risk that stops earliest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agreestop.common import InputError
from agreestop.common.levels import Target
from agreestop.decide.answers import FORMS, Answers, OpenRisk, VoteRisk
from agreestop.decide.confidence import pooling_of
from agreestop.decide.merging import parse_pooling
from agreestop.decide.risks import Gate, TopMass
from agreestop.decide.rule import Rule
from agreestop.decide.scores import Scores, load_scores
from agreestop.decide.tuning.give_up import GiveUp
from agreestop.decide.tuning.tune import EXPONENTS, tune

from .console import errors_name_options, progress_bar, show


def gate_from(
    tuning: Path | None,
    blocks: str | None,
    target: Target | None,
    max_set_size: int,
    pooling: str | None,
    times: Sequence[float],
    n: int,
) -> Gate:
    """The gate from the rows of the tuning file."""
    if tuning is None:
        raise InputError(
            "--gate is fixed on other rows than those for calibration: give them with --tuning."
        )
    promised: Target = "0.9" if target is None else target
    with errors_name_options():
        pool = None if pooling is None else parse_pooling(pooling)
        count: int | tuple[float, ...] = Gate.count_blocks(n, promised)
    if pool is not None and pool.by_rank:
        raise InputError(
            f"--pooling is {pooling!r}, but a gate pools confidences: give confidence:R, or leave "
            "--gate out."
        )
    if blocks is not None:
        try:
            ends = tuple(float(part) for part in blocks.split(","))
        except ValueError:
            raise InputError(
                f"--blocks is {blocks!r}: give a number such as 4, or times such as 10,20,40."
            ) from None
        count = int(ends[0]) if len(ends) == 1 and ends[0].is_integer() else ends
    data = labelled_scores(tuning, "a gate", times)
    with errors_name_options():
        gate = Gate.fit(
            data,
            target=promised,
            max_set_size=max_set_size,
            blocks=count,
            risk=None if pool is None else TopMass(pooling_of(pool)),
        )
    show(f"Gate fixed on {tuning}: blocks {', '.join(gate.block_names)}.")
    return gate


def vote_risk(form: str, kind: str, tuning: Path | None, labels: str | None, data: Any) -> OpenRisk:
    """The risk of open answers of that name."""
    if kind != "agreestop" or not isinstance(data, Answers):
        raise InputError("--risk is for open answers (a .jsonl file): leave it out, or tune.")
    if form not in (*FORMS, "learned"):
        raise InputError(f"--risk is {form!r}: choose {', '.join(FORMS)} or learned.")
    if (form == "learned") != (tuning is not None):
        raise InputError(
            f"--risk is {form!r}: give --tuning, questions of their own, for learned and for no "
            "other."
        )
    if form != "learned":
        return VoteRisk(form)
    assert tuning is not None
    answers = Answers.load(tuning)
    with errors_name_options():
        learned = VoteRisk.fit(answers, labels, data.times)
    show(f"Risk learned on {tuning}: {len(answers)} questions.")
    return learned


def give_up_from(
    share: str,
    tuning: Path | None,
    max_set_size: int,
    pooling: str | None,
    times: Sequence[float],
) -> GiveUp:
    """When to give up, from the rows of the tuning file."""
    if tuning is None:
        raise InputError(
            "--give-up is fixed on other rows than those for calibration: give them with --tuning."
        )
    data = labelled_scores(tuning, "giving up", times)
    with errors_name_options():
        pool = None if pooling is None else parse_pooling(pooling)
        risk = None if pool is None else TopMass(pooling_of(pool))
        found = GiveUp.fit(data, max_set_size=max_set_size, share=share, risk=risk)
    show(f"Give-up line fixed on {tuning}: {len(data)} rows.")
    return found


def tuned_rule(
    rule: Rule,
    path: Path,
    n_calibration: int,
    pooling: str | None,
    price_of_size: float,
    labels: str | None,
) -> Rule:
    """The rule with the score or risk that stops earliest on the rows of the tuning file."""
    tuning = rule.load_labelled(path, "tuning")
    open_answers = isinstance(tuning, Answers)
    pool = None if pooling is None else parse_pooling(pooling)
    exponents = EXPONENTS if pool is None or pool.r is None else (pool.r,)
    with progress_bar("tuning") as progress, errors_name_options():
        tuned = tune(
            rule,
            tuning,
            labels if open_answers else None,
            n_calibration=min(n_calibration, len(tuning) // (4 if open_answers else 2)),
            exponents=exponents,
            progress=progress,
            price_of_size=price_of_size,
        )
    best = tuned.trials[0]
    show(
        tuned.note
        or (
            f"Tuned on {path}: {best.name} (latency {best.latency:.3f} of the last checkpoint "
            "there)."
        )
    )
    return tuned.rule


def labelled_scores(path: Path, purpose: str, checkpoints: Sequence[float] | None = None) -> Scores:
    """The scores of a file that must have labels, at all of its times or at the given ones."""
    data = load_scores(path, checkpoints)
    if data.labels is None:
        raise InputError(f"{path} has no labels: {purpose} needs one label for each input.")
    return data
