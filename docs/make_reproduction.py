"""Write docs/reproduction.md from results/fig*/numbers.json: every claim of the paper's
experiments, and what was measured.

The functions below judge each claim, nobody judges by eye. A claim is "reproduced" if all its parts
hold on every ensemble, "not reproduced" if none does, and "in part" otherwise. It is "impossible as
printed" if a proof says so; the measurement is shown too.

    PYTHONPATH=. python docs/make_reproduction.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from paper.records import FigureNumbers, FigureRecord, load_numbers

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "reproduction.md"
CM, PM, SINGLE, DC = "confidence-merging", "p-variable-merging", "spikecp", "dcsnn"
NAMES = {"deep": "DE", "variational": "VI", CM: "CM", PM: "PM", DC: "DC-SNN", SINGLE: "one member"}
ENSEMBLES = ("deep", "variational")
DRAFT = {
    ("DVS128 Gesture", "gesture-sim", "fig5"): {
        ("deep", CM): (0.674, 0.622, 0.574, 0.540),
        ("deep", PM): (0.674, 0.611, 0.550, 0.525),
        ("variational", CM): (0.621, 0.562, 0.512, 0.494),
        ("variational", PM): (0.621, 0.525, 0.487, 0.469),
    },
    ("CIFAR-10", "cifar10", "fig6"): {
        ("deep", CM): (0.740, 0.663, 0.600, 0.563),
        ("deep", PM): (0.740, 0.638, 0.575, 0.545),
        ("variational", CM): (0.687, 0.624, 0.562, 0.514),
        ("variational", PM): (0.687, 0.600, 0.538, 0.500),
    },
}
"""Latency over T at K = 1, 3, 5, 9, read from a figure of an earlier draft of the paper."""
DRAFT_SIZES = (1, 3, 5, 9)
STEPS = 80


@dataclass(frozen=True)
class ClaimVerdict:
    """Whether each part of a claim holds, the numbers, and the reason in one line."""

    holds: tuple[bool, ...]
    numbers: str
    why: str = ""
    impossible: bool = False

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.impossible:
            return "**[impossible as printed](#why-p-variable-merging-cannot-beat-its-members)**"
        if all(self.holds):
            return "reproduced"
        return "in part" if any(self.holds) else "**not reproduced**"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its figure, and the function that judges it on the numbers of this
    figure.
    """

    figure: str
    says: str
    judge: Callable[[FigureNumbers], ClaimVerdict]


def records_of(
    numbers: FigureNumbers, rule: str, ensemble: str, checkpoints: str | None = None
) -> list[FigureRecord]:
    """The records of a rule on an ensemble, along the x-axis."""
    found = [
        one
        for one in numbers.records
        if (one.rule, one.ensemble) == (rule, ensemble) and checkpoints in (None, one.checkpoints)
    ]
    return sorted(found, key=lambda one: -math.inf if one.x is None else one.x)


def usual(
    numbers: FigureNumbers, rule: str, ensemble: str, checkpoints: str | None = None
) -> FigureRecord:
    """The record at the default setting, which all figures share."""
    return next(one for one in records_of(numbers, rule, ensemble, checkpoints) if one.default)


def ensembles(numbers: FigureNumbers) -> list[str]:
    return [name for name in ENSEMBLES if any(one.ensemble == name for one in numbers.records)]


def meets_target(records: Iterable[FigureRecord]) -> tuple[bool, ...]:
    """Whether each mean coverage is at least its target minus two standard errors, for the draw of
    the pool where that was measured.
    """
    return tuple(one.coverage >= one.target - 2 * one.coverage_error for one in records)


def along(records: Iterable[FigureRecord]) -> str:
    return " ".join(f"{one.latency:.3f}" for one in records)


def falls(records: list[FigureRecord]) -> bool:
    """Whether the last latency is lower than the first one by more than two standard errors of
    their difference.
    """
    first, last = records[0], records[-1]
    return last.latency < first.latency - 2 * math.hypot(first.latency_error, last.latency_error)


def always_reliable(numbers: FigureNumbers) -> ClaimVerdict:
    parts: list[bool] = []
    words: list[str] = []
    for ensemble in ensembles(numbers):
        for rule in (CM, PM):
            records = records_of(numbers, rule, ensemble)
            parts += meets_target(records)
            worst = min(
                (one for one in records if not one.vacuous),
                key=lambda one: one.coverage - one.target,
            )
            words.append(
                f"{NAMES[ensemble]} {NAMES[rule]} {worst.coverage:.3f} at {worst.target:g}"
            )
    why = (
        "If n = 50 is too small to exclude any class, the sets are full: coverage is 1 and "
        "latency is 1."
    )
    return ClaimVerdict(tuple(parts), "nearest to its target: " + "; ".join(words), why)


def baseline_unreliable(numbers: FigureNumbers) -> ClaimVerdict:
    parts: list[bool] = []
    words: list[str] = []
    for ensemble in ensembles(numbers):
        records = records_of(numbers, DC, ensemble)
        fine = meets_target(records)
        parts += [fine[0], not all(fine)]
        missed = [
            f"{one.coverage:.3f} at {one.target:g}"
            for one, good in zip(records, fine, strict=True)
            if not good
        ]
        words.append(f"{NAMES[ensemble]}: missed " + (", ".join(missed) if missed else "nowhere"))
    why = (
        "Its threshold is chosen for top-1 accuracy, but it answers three classes, which cover "
        "more than the target here."
    )
    return ClaimVerdict(tuple(parts), "; ".join(words), why)


def baseline_short(numbers: FigureNumbers) -> ClaimVerdict:
    parts: list[bool] = []
    words: list[str] = []
    for ensemble in ensembles(numbers):
        records = records_of(numbers, DC, ensemble)
        parts += [not good for good in meets_target(records)]
        words.append(
            f"{NAMES[ensemble]}: {min(one.coverage for one in records):.3f} to "
            f"{max(one.coverage for one in records):.3f}"
        )
    why = (
        ""
        if all(parts)
        else "It answers three classes, which hold the label more often than the top class does."
    )
    return ClaimVerdict(tuple(parts), "coverage " + "; ".join(words), why)


def baseline_waits(numbers: FigureNumbers) -> ClaimVerdict:
    records = {ensemble: records_of(numbers, DC, ensemble) for ensemble in ensembles(numbers)}
    parts = tuple(falls(list(reversed(found))) for found in records.values())
    return ClaimVerdict(
        parts, "; ".join(f"{NAMES[name]} {along(found)}" for name, found in records.items())
    )


def best_is_vi_pm(numbers: FigureNumbers) -> ClaimVerdict:
    found = {
        (ensemble, rule): usual(numbers, rule, ensemble)
        for ensemble in ensembles(numbers)
        for rule in (CM, PM)
    }
    best = min(found, key=lambda key: found[key].latency)
    words = "; ".join(
        f"{NAMES[name]} {NAMES[rule]} {one.latency:.3f}" for (name, rule), one in found.items()
    )
    return ClaimVerdict(
        (best == ("variational", PM),),
        words,
        "PM's sets contain the sets of every member: see the proof below.",
        True,
    )


def latency_falls(rule: str) -> Callable[[FigureNumbers], ClaimVerdict]:
    def judge(numbers: FigureNumbers) -> ClaimVerdict:
        records = {ensemble: records_of(numbers, rule, ensemble) for ensemble in ensembles(numbers)}
        parts = tuple(falls(found) for found in records.values())
        words = "; ".join(f"{NAMES[name]} {along(found)}" for name, found in records.items())
        if rule == PM:
            return ClaimVerdict(
                parts,
                words,
                "PM stops no earlier than its slowest member, so more members can only delay it.",
                True,
            )
        doubtful = " and ".join(NAMES[name] for name, found in records.items() if not falls(found))
        return ClaimVerdict(
            parts,
            words,
            f"On {doubtful} it does not fall by more than two standard errors." if doubtful else "",
        )

    return judge


def best_exponent_cm(numbers: FigureNumbers) -> ClaimVerdict:
    parts: list[bool] = []
    words: list[str] = []
    for ensemble in ensembles(numbers):
        records = records_of(numbers, CM, ensemble)
        best = min(records, key=lambda one: one.latency)
        at_one = next(one for one in records if one.x == 1)
        parts.append(
            at_one.latency
            <= best.latency + 2 * math.hypot(at_one.latency_error, best.latency_error)
        )
        words.append(
            f"{NAMES[ensemble]}: {at_one.latency:.3f} at r = 1, lowest {best.latency:.3f} at r = "
            f"{best.x:g}"
        )
    return ClaimVerdict(
        tuple(parts), "; ".join(words), "r = 1 is within two standard errors of the lowest latency."
    )


def large_exponent_pm(numbers: FigureNumbers) -> ClaimVerdict:
    parts: list[bool] = []
    words: list[str] = []
    for ensemble in ensembles(numbers):
        records = records_of(numbers, PM, ensemble)
        parts.append(records[-1].latency == min(one.latency for one in records))
        useful = [one for one in records if not one.vacuous]
        words.append(
            f"{NAMES[ensemble]}: 1 for r < {useful[0].x:g} (vacuous), then {along(useful)}"
            if useful
            else f"{NAMES[ensemble]}: vacuous"
        )
    why = (
        "With n = 50, every r below 7.4 always gives full sets (a/(n+1) > α/M), so only a "
        "large r can stop early."
    )
    return ClaimVerdict(tuple(parts), "; ".join(words), why)


def all_reliable(numbers: FigureNumbers) -> ClaimVerdict:
    records = [
        one
        for ensemble in ensembles(numbers)
        for rule in (CM, PM)
        for one in records_of(numbers, rule, ensemble)
    ]
    low = min(records, key=lambda one: one.coverage)
    return ClaimVerdict(
        meets_target(records),
        f"lowest mean coverage {low.coverage:.3f} ± {2 * low.coverage_error:.3f}, target "
        f"{low.target:g}",
    )


def vi_earlier(numbers: FigureNumbers) -> ClaimVerdict:
    parts: list[bool] = []
    words: list[str] = []
    for rule in (CM, PM):
        deep, variational = (usual(numbers, rule, ensemble) for ensemble in ENSEMBLES)
        parts.append(variational.latency < deep.latency)
        words.append(f"{NAMES[rule]}: VI {variational.latency:.3f}, DE {deep.latency:.3f}")
    return ClaimVerdict(tuple(parts), "; ".join(words))


def pm_earlier(numbers: FigureNumbers) -> ClaimVerdict:
    pairs = [
        (usual(numbers, PM, ensemble), usual(numbers, CM, ensemble))
        for ensemble in ensembles(numbers)
    ]
    words = "; ".join(
        f"{NAMES[pm.ensemble]}: PM {pm.latency:.3f}, CM {cm.latency:.3f}" for pm, cm in pairs
    )
    return ClaimVerdict(
        tuple(pm.latency < cm.latency for pm, cm in pairs),
        words,
        "PM never stops before its slowest member; CM can.",
        True,
    )


CLAIMS = (
    Claim(
        "fig2",
        "Ensemble-based SpikeCP is always reliable, irrespective of the target accuracy",
        always_reliable,
    ),
    Claim("fig2", "DC-SNN's latency grows with the target", baseline_waits),
    Claim("fig2", "DC-SNN is reliable only when the target is small", baseline_unreliable),
    Claim("fig2", "SpikeCP using VI and PM requires smaller latency", best_is_vi_pm),
    Claim("fig3", "With a larger ensemble DC-SNN's latency falls", latency_falls(DC)),
    Claim("fig3", "With a larger ensemble SpikeCP's latency falls: CM", latency_falls(CM)),
    Claim("fig3", "With a larger ensemble SpikeCP's latency falls: PM", latency_falls(PM)),
    Claim("fig3", "SpikeCP keeps its reliability guarantee for every K", all_reliable),
    Claim("fig3", "DC-SNN falls short of the target accuracy", baseline_short),
    Claim("fig4", "CM has the lowest latency at about r = 1", best_exponent_cm),
    Claim("fig4", "PM has a smaller latency with larger r", large_exponent_pm),
    Claim("fig5", "All ensemble-based SpikeCP schemes meet the target 0.9", all_reliable),
    Claim("fig5", "DC-SNN fails to meet the target accuracy (said, not shown)", baseline_short),
    Claim(
        "fig5", "Latency decreases with K, substantially below that of K = 1: CM", latency_falls(CM)
    ),
    Claim(
        "fig5", "Latency decreases with K, substantially below that of K = 1: PM", latency_falls(PM)
    ),
    Claim("fig5", "VI tends to have lower latency", vi_earlier),
    Claim("fig5", "PM generally yields smaller latency than CM", pm_earlier),
    Claim("fig6", "SpikeCP guarantees reliability with all pooling schemes", all_reliable),
    Claim("fig6", "VI with PM produces the best latency", best_is_vi_pm),
)
TITLES = {
    "fig2": "MNIST-DVS, against the target (Fig. 2)",
    "fig3": "MNIST-DVS, against K (Fig. 3)",
    "fig4": "MNIST-DVS, against r (Fig. 4)",
    "fig5": "DVS128 Gesture, against K (Fig. 5)",
    "fig6": "CIFAR-10, against K (Fig. 6)",
    "fig7": "Real events: N-MNIST and Braille (ours)",
    "fig8": "How many calibration examples each rule needs (ours)",
}
FIRST_OF_DATA = ("fig2", "fig5", "fig6", "fig7")
"""Figures with a comparison of our rules; the other figures show the same data."""
PROOF = """## Why p-variable merging cannot beat its members

The paper merges the members' p-variables as F = a·M_r(p¹, …, p^K) with r = 45 and a = K^(1/r). For
r ≥ K - 1,

    K^(1/r) · ((1/K) Σ_k p_k^r)^(1/r) = (Σ_k p_k^r)^(1/r) ≥ max_k p_k.

So the merged rule keeps every class that some member keeps (p_k > α/M): at every checkpoint its set
contains the union of the members' sets. Therefore, on every input, the merged rule stops no earlier
than its slowest member. The printed rule cannot explain why its latency falls with K in the paper's
figures. We implement the rule as printed and measure it.
"""


def page() -> str:
    numbers = {
        name: load_numbers(path)
        for name in TITLES
        if (path := RESULTS / name / "numbers.json").is_file()
    }
    lines = ["# Reproduction", "", INTRODUCTION]
    for name, title in TITLES.items():
        lines += [f"## {title}", ""]
        if name not in numbers:
            lines += ["Not measured at full scale yet.", ""]
            continue
        lines += _figure(name, numbers[name])
    lines += [PROOF]
    return "\n".join(lines)


INTRODUCTION = """For readers of the paper who want to know what holds. Every claim of the paper's
Section 5 and abstract, with what we measured. Written by `make docs` from
`results/fig*/numbers.json`. `python -m paper all --from-scores` (or `make figures`) makes these
files from the stored score files, and the recipes of the score files are in `paper/recipes`. The
functions that judge the claims are in `docs/make_reproduction.py`. Latency is the mean stopping
time over T. There are n = 50 calibration examples, four checkpoints, at most three classes, 50
realisations, K = 6 members and target 0.9; a figure may sweep one of these. Claims are judged, and
± is stated, by two standard errors: those for the draw of the pool (`coverage_pool_se`), or those
over realisations of one pool (`coverage_se`) in a record that has no others.

DE is a deep ensemble, whose members are trained one by one, and VI a variational one, whose members
are drawn from one trained posterior. CM is confidence merging and PM p-variable merging, the
paper's two ways to pool the members.

Fixed time is the baseline that does not adapt. It has the [same
guarantee](guarantee.md#the-baselines), and it answers every input at the same time, the earliest
step that calibration allows. What a rule gains over it is gained by adapting the time to the input.
The figures call it "one time for all inputs".

The recordings of MNIST-DVS and DVS128 Gesture were not available. Their figures use simulated
stand-ins and say so: `mnist-dvs-sim` (MNIST's digits, moving) and `gesture-sim` (a drawn figure
that performs gestures). CIFAR-10, N-MNIST and Braille are real. 1,100 recordings of N-MNIST were
available.

The abstract claims that variational ensembles with p-variable pooling reduce latency most. This
depends on the claims about PM below.
"""


def _figure(name: str, numbers: FigureNumbers) -> list[str]:
    lines = [f"![{numbers.title}](../results/{name}/figure.png)", ""]
    if claims := [claim for claim in CLAIMS if claim.figure == name]:
        lines += ["| the paper says | verdict | measured | why |", "|---|---|---|---|"]
        for claim in claims:
            judged = claim.judge(numbers)
            lines.append(f"| {claim.says} | {judged.words} | {judged.numbers} | {judged.why} |")
        lines.append("")
    lines += _draft(name, numbers)
    if name in FIRST_OF_DATA:
        lines += _accuracies(numbers) + _best(numbers) + _adapting(numbers) + _above(numbers)
    if numbers.swept == "n":
        lines += [
            "Hollow points: the rule has too few examples to ever stop early; "
            "`rule.examples_needed(K)` gives the number it needs.",
            "",
        ]
    return lines + (_six_and_one(numbers) if numbers.swept == "K" else [])


def _accuracies(numbers: FigureNumbers) -> list[str]:
    """The accuracy of the members at T, on the pool."""
    parts = []
    for source in numbers.header["sources"]:
        single = source["about"]["member_accuracies"]
        together = (
            f"{len(single)} members {min(single):.3f} to {max(single):.3f} each, "
            f"{source['about']['accuracy']:.3f} together"
        )
        parts.append(f"{source['data']} {NAMES[source['ensemble']]}: {together}")
    sizes = {
        source["data"]: (
            f"{source['data']} {source['about']['n_training']:,} + {source['n_tuning']:,} + "
            f"{source['n_pool']:,}"
        )
        for source in numbers.header["sources"]
    }
    return [
        f"Training, tuning and pool: {'; '.join(sizes.values())}. Accuracy at T on the pool: "
        f"{'; '.join(parts)}.",
        "",
    ]


OURS = ("simultaneous", "stop-aware", "agreestop")
FIXED = "fixed-time"
FAR_ABOVE = 0.04
SIMULTANEOUS = (
    "it holds at all checkpoints together, which is more than is needed at the checkpoint "
    "where it stops"
)
AT_FIRST = (
    "nearly all inputs stop at the first checkpoint, where their sets already hold the label "
    "that often, and none can stop earlier"
)
TIES = "scores of few spikes have ties, and ties are counted conservatively"


def _reason(one: FigureRecord) -> str:
    first = (1 / 4 if one.checkpoints == "few" else 1 / STEPS) * 1.1
    return (
        SIMULTANEOUS if one.rule == "simultaneous" else AT_FIRST if one.latency <= first else TIES
    )


def _above(numbers: FigureNumbers) -> list[str]:
    """Why a rule covers far more than its target."""
    lines = [
        "The rules with a Bonferroni correction cover far more than the target, since they divide "
        "α among the checkpoints."
    ]
    for one in numbers.records:
        if one.default and one.rule in OURS and one.coverage > one.target + FAR_ABOVE:
            lines.append(
                f"{one.label}, {one.data} {NAMES[one.ensemble]}, covers {one.coverage:.3f}: "
                f"{_reason(one)}."
            )
    return [*(f"- {line}" for line in lines), ""]


def _six_and_one(numbers: FigureNumbers) -> list[str]:
    """Latency with one member and with the default number, for the same rule."""
    usual = max(one.K for one in numbers.records if one.default)
    lines = ["Latency with one member and with several:", ""]
    lines += [
        f"| ensemble | rule | one member | {usual} members | change |",
        "|---|---|---|---|---|",
    ]
    for ensemble in ensembles(numbers):
        for checkpoints in ("few", "every"):
            for rule in (*OURS, FIXED):
                found = {one.x: one for one in records_of(numbers, rule, ensemble, checkpoints)}
                if 1 in found and usual in found:
                    one, several = found[1], found[usual]
                    share = round(100 * (1 - several.latency / one.latency))
                    change = (
                        f"earlier by {share} %"
                        if share > 0
                        else f"later by {-share} %"
                        if share < 0
                        else "0 %"
                    )
                    lines.append(
                        f"| {NAMES[ensemble]} | {_name(one)} | {one.latency:.3f} | "
                        f"{several.latency:.3f} | {change} |"
                    )
    return [*lines, ""]


def _draft(name: str, numbers: FigureNumbers) -> list[str]:
    """Latency beside that of the paper's earlier draft, if it is known."""
    found = next((table for (_, _, figure), table in DRAFT.items() if figure == name), None)
    if found is None:
        return []
    lines = [
        f"Latency at K = {', '.join(map(str, DRAFT_SIZES))} (ours up to 6), beside values read "
        "from an earlier draft of the paper:",
        "",
    ]
    lines += ["| | paper | ours |", "|---|---|---|"]
    for (ensemble, rule), theirs in found.items():
        ours = {one.x: one.latency for one in records_of(numbers, rule, ensemble)}
        cells = " ".join(f"{ours[size]:.3f}" if size in ours else "-" for size in DRAFT_SIZES)
        lines.append(
            f"| {NAMES[ensemble]} {NAMES[rule]} | {' '.join(f'{value:.3f}' for value in theirs)} | "
            f"{cells} |"
        )
    return [*lines, ""]


def _best(numbers: FigureNumbers) -> list[str]:
    """Our rules beside the best Bonferroni rule, at the default setting."""
    lines = [
        "Our rules have the same guarantee. With four checkpoints no input stops before a quarter "
        "of T; at every step, an input can.",
        "",
    ]
    lines += [
        "| data | ensemble | best Bonferroni rule | best of ours, four checkpoints | best of "
        "ours, every step | fixed time |",
        "|---|---|---|---|---|---|",
    ]
    for data in dict.fromkeys(one.data for one in numbers.records):
        for ensemble in ensembles(numbers):
            here = [
                one
                for one in numbers.records
                if (one.data, one.ensemble) == (data, ensemble) and one.default
            ]
            bonferroni = [one for one in here if one.rule in (CM, PM, SINGLE, "rank-pooling")]
            if not bonferroni:
                continue
            best = min(bonferroni, key=lambda one: one.latency)
            cells = [_cell(best, None)]
            for rules, checkpoints in ((OURS, "few"), (OURS, "every"), ((FIXED,), "every")):
                ours = [one for one in here if one.rule in rules and one.checkpoints == checkpoints]
                cells.append(_cell(min(ours, key=lambda one: one.latency), best) if ours else "-")
            lines.append(
                f"| {data}{' (simulated)' if here[0].simulated else ''} | {NAMES[ensemble]} | "
                + " | ".join(cells)
                + " |"
            )
    return [*lines, ""]


def _adapting(numbers: FigureNumbers) -> list[str]:
    """For each data set, what our best rule at every step gains over fixed time, at the default
    setting.
    """
    lines = []
    for data in dict.fromkeys(one.data for one in numbers.records):
        parts = []
        for ensemble in ensembles(numbers):
            here = [
                one
                for one in numbers.records
                if (one.data, one.ensemble, one.default) == (data, ensemble, True)
            ]
            ours = [one for one in here if one.rule in OURS and one.checkpoints == "every"]
            if fixed := [one for one in here if one.rule == FIXED]:
                parts.append(_gain(min(ours, key=lambda one: one.latency), fixed[0]))
        if parts:
            lines.append(
                f"- {data}, n = {fixed[0].n}: at every step, compared with fixed time, the best of "
                f"ours is {' and '.join(parts)}."
            )
    return [*lines, ""] if lines else []


def _gain(ours: FigureRecord, fixed: FigureRecord) -> str:
    """How much earlier or later our rule stops, in words."""
    change = ours.latency / fixed.latency - 1
    close = abs(ours.latency - fixed.latency) <= 2 * math.hypot(
        ours.latency_error, fixed.latency_error
    )
    size, way = f"{100 * abs(change):.0f} %", "earlier" if change < 0 else "later"
    where = f"on {NAMES[ours.ensemble]}"
    return (
        f"not clearly {way} {where} ({size}, within two standard errors)"
        if close
        else f"{size} {way} {where}"
    )


def _name(one: FigureRecord) -> str:
    """The name of a rule in the tables; that of fixed time in the records is longer."""
    return "fixed time" if one.rule == FIXED else one.label


def _cell(one: FigureRecord, best: FigureRecord | None) -> str:
    share = "" if best is None else f", {one.latency / best.latency:.0%} of it"
    return (
        f"{_name(one)}: {one.latency:.3f}{share} (coverage {one.coverage:.3f} ± "
        f"{2 * one.coverage_error:.3f}, set size {one.set_size:.2f})"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)}")
