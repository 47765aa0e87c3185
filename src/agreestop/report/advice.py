"""Which rule to take, in sentences: what the numbers of a report say to someone who has to choose.

Each piece of advice rests on an interval: a difference that chance explains is not
given as a reason.
"""

from collections.abc import Iterator, Sequence

from agreestop.decide.agree_stop import AgreeStop

from .contents import GroupCoverage, Section
from .records import MeasurementSettings, Record, promise_of

FIXED = "fixed time, every step"
WIDE = 0.04  # single calibration draws that end this far below the target are worth a sentence
MOST_NAMED = 4


def advise(section: Section, measured: MeasurementSettings) -> list[str]:
    """Sentences, the most important first."""
    headline = section.summary.headline
    if headline.examples_needed is not None:
        needed = (
            f"Label at least {headline.examples_needed} examples for calibration (here there were "
            f"{measured.n_calibration})"
        )
        return [
            (
                f"{needed}, or lower the target: with fewer, no rule can keep the promise and stop "
                "early."
            )
        ]
    if not section.summary.kept:
        return [
            "No rule kept the promise here. It can only fail by chance or where rows are not "
            "exchangeable: check whether rows repeat, "
            "come from one recording, or are sorted by time."
        ]
    return [*_choice(section), *_groups(section, measured), *_draws(section, measured)]


def rule_in_code(record: Record, max_set_size: int) -> str:
    """Lines of Python that tune and calibrate the rule of a record of AgreeStop or of
    stop-aware calibration.
    """
    every = "every step" in record.label
    checkpoints = "calibration_scores.times" if every else repr(tuple(record.checkpoints))
    settings = f"target={record.target:g}, checkpoints={checkpoints}, max_set_size={max_set_size}"
    if record.rule == "agreestop":
        rule = f"ag.AgreeStop({settings})"
    else:
        pooled = 'pooling=ag.MergeConfidence(), calibration="stop-aware"'
        rule = f"ag.SpikeCP(\n    {settings},\n    {pooled},\n)"
    tuning = "rule = ag.tune(rule, tuning_scores).rule  # rows that are used for nothing else"
    calibrating = "calibrated = rule.calibrate(calibration_scores)"
    return f"import agreestop as ag\n\nrule = {rule}\n{tuning}\n{calibrating}"


def rule_on_command_line(record: Record, max_set_size: int) -> str:
    """The command that does the same as `rule_in_code`, for score files of your own."""
    rule = "agreestop" if record.rule == "agreestop" else "spikecp --calibration stop-aware"
    times = ",".join(f"{time:g}" for time in record.checkpoints)
    chosen = "" if "every step" in record.label else f" --checkpoints {times}"
    return (
        f"agreestop calibrate calibration.npz --tuning tuning.npz --rule {rule}{chosen} "
        f"--target {record.target:g} --max-set-size {max_set_size} -o rule"
    )


def _choice(section: Section) -> Iterator[str]:
    """Which rule, and what it is worth."""
    summary, headline = section.summary, section.summary.headline
    share = summary.share_of_horizon(headline)
    yield (
        f"Take {headline.label}: of our rules that kept the promise it stops earliest, at "
        f"{per_cent(share, 1)} of T on average."
    )
    fixed = next(
        (
            rule
            for rule in summary.rules
            if rule.label == FIXED and promise_of(rule) in ("kept", "within its interval")
        ),
        None,
    )
    if fixed is not None:
        other = summary.share_of_horizon(fixed)
        if share.high < other.low:
            yield (
                "Adapting to each input is worth it: one fixed time for all inputs would be "
                f"{per_cent(other, 1)} of T with the same promise."
            )
        else:
            yield (
                f"One fixed time for all inputs, {per_cent(other, 1)} of T, is as early within its "
                "interval, and simpler."
            )
    if (smaller := summary.smaller) is not None:
        sizes = f"{smaller.set_size:.2f} classes instead of {headline.set_size:.2f}"
        yield f"For smaller answers take {smaller.label}: {sizes}, as early within the interval."
    if summary.one_member is not None and summary.one_member.earlier.low <= 0:
        yield (
            f"One member stops as early as {headline.K} within its interval: further members bring "
            "nothing here."
        )
    if headline.set_size > len(section.classes) / 2:
        yield (
            "The answers name more than half of the classes: the model hardly tells them apart; a "
            "better model helps more than a rule."
        )


def _groups(section: Section, measured: MeasurementSettings) -> Iterator[str]:
    """Groups that are covered less often than promised on average, and the promise
    that covers them.
    """
    parts, headline = section.breakdown, section.summary.headline
    target = headline.target
    needed = AgreeStop(target, (1,), 1, class_conditional=True).examples_needed()
    each = f"it needs at least {needed} calibration examples of each"
    if low := _below(parts.by_class, target):
        yield (
            f"Less often right than {target:g}: class {low}. If each class needs the promise, give "
            f"class_conditional=True: {each} class, and here there were about "
            f"{measured.n_calibration // len(section.classes)}."
        )
    if low := _below(parts.by_group, target):
        yield (
            f"Less often right than {target:g}: group {low}. If each group needs the promise, "
            f"give groups= to calibrate: {each} group."
        )
    if low := _below(parts.by_time, target):
        rule = "give" if headline.rule == "agreestop" else "take AgreeStop with"
        yield (
            f"Less often right than {target:g}: answers at {low}. If early answers need the "
            f"promise, {rule} accumulated=True and delta=0.1: the answers that came by each time "
            "then keep it, and come later. A gate does not help here, because it promises by the "
            "time at which an input first looked ready, not by the time of its stop."
        )


def _draws(section: Section, measured: MeasurementSettings) -> Iterator[str]:
    lowest, target = section.breakdown.lowest, section.summary.headline.target
    if lowest < target - WIDE:
        yield (
            f"With {measured.n_calibration} calibration examples, single draws ended as low as "
            f"{per_cent(lowest, 1)}: more examples narrow that, "
            "or give delta=0.1 for a promise that 90 % of the draws keep."
        )


def _below(groups: Sequence[GroupCoverage], target: float) -> str:
    """The groups whose whole interval lies below the target, in words; empty for none."""
    low = sorted(
        (group for group in groups if group.coverage.high < target),
        key=lambda group: group.coverage,
    )
    more = f" and {len(low) - MOST_NAMED} more" if len(low) > MOST_NAMED else ""
    named = (f"{group.name} ({per_cent(group.coverage)})" for group in low[:MOST_NAMED])
    return ", ".join(named) + more


def per_cent(share: float, digits: int = 0) -> str:
    """A share as the page writes it: "20.3 %"."""
    return f"{100 * share:.{digits}f} %"
