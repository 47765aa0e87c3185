"""Do calibration rows and new rows look exchangeable? Tests that end in a question for the user, each with its rate of false alarms.

    labels_in_blocks   equal labels are neighbours far more often than in a random order (rate 1e-4)
    labels_misplaced   another class is answered in place of each label (rate 1e-4)
    labels_unrelated   the best class is right hardly more often than by chance, which a weak model does too
    inputs_differ      the first log-risks of new inputs are distributed otherwise than those of calibration (rate 0.01)
    classes_differ     the classes are not as frequent as in calibration (rate 1e-3)

Each returns a sentence, or an empty string. No promise depends on them: rows that pass may still
not be exchangeable.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from agreestop.common import Floats, Integers

RARE = 1e-4  # false alarms about labels
INPUTS, CLASSES = 0.01, 1e-3  # false alarms of the other two
LEAST_INPUTS, LEAST_FOR_CHANCE = 20, 50
SAME_RISK = 0.01  # log-risks nearer than this count as equal: one input may be rounded otherwise in another run
# Wei and Dudley (2012), for the largest distance D of two empirical distributions: P(√(nm/(n+m))·D ≥ x) ≤ 2.2·e^(-2x²)
LARGEST_DISTANCE = 2.2
LEAST_EXPECTED = 5  # rarer classes are counted together
MOST_NAMED = 3
DIFFERENT_INPUTS = "These inputs differ from the calibration inputs"
SHUFFLED = "were the rows shuffled before they were divided (`scores.split` does that)?"


def labels_in_blocks(labels: Integers) -> str:
    """A sentence if equal labels (n,) stand together, as in rows that were sorted by class.

    In a random order two neighbours are equal with probability p = Σ n_c(n_c - 1)/(n(n - 1)), and the number of equal neighbours is spread
    no more than a binomial one, so P(at least r of n - 1) ≤ exp(-(n - 1)·KL(r/(n - 1), p)).
    """
    n = len(labels)
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    if n < 3 or len(counts) < 2:
        return ""
    p = float((counts * (counts - 1)).sum()) / (n * (n - 1))
    equal = int(np.count_nonzero(labels[1:] == labels[:-1]))
    if not _binomial_excess(equal, n - 1, p):
        return ""
    seen = f"{equal} of {n - 1} neighbours are equal, and about {p * (n - 1):.0f} would be in a random order"
    harmless = "If they were shuffled first and only sorted afterwards, this does no harm."
    return f"The labels of the calibration rows come in blocks ({seen}): {SHUFFLED} {harmless}"


def _binomial_excess(count: int, trials: int, p: float) -> bool:
    """Whether so large a count has a probability of at most RARE, by Chernoff's bound."""
    share = count / trials
    if share <= p or p <= 0:
        return p <= 0 < count
    distance = share * math.log(share / p) + (0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - p)))
    return trials * distance >= -math.log(RARE)


def labels_misplaced(best: Integers, labels: Integers, classes: int) -> str:
    """A sentence if labels (n,) and the columns of the scores, of which `best` (n,) are the best, do not belong together.

    One half of the rows chooses the one-to-one table from labels to columns that is right most often, and the other half compares it with
    the table that leaves every label where it is: by the sign test on the rows where exactly one of both is right.
    """
    best, labels = best[best >= 0], labels[best >= 0]  # a risk may leave the classes without an order
    if len(labels) < LEAST_INPUTS or classes < 2:
        return ""
    shuffled = np.random.default_rng(0).permutation(len(labels))
    best, truth = best[shuffled], labels[shuffled]
    half = len(best) // 2
    table = _matching(best[:half], truth[:half], classes)
    moved, same = table[truth[half:]] == best[half:], truth[half:] == best[half:]
    gains, losses = int((moved & ~same).sum()), int((same & ~moved).sum())
    if gains <= 2 * losses or not _binomial_excess(gains, gains + losses, 0.5):
        return ""
    pairs = [(label, int(table[label])) for label in np.unique(truth).tolist() if table[label] != label][:MOST_NAMED]
    named = ", ".join(f"label {label} mostly has class {column}" for label, column in pairs)
    seen = f"The best class is the label for {np.count_nonzero(best == truth)} of {len(best)} rows; {named}"
    return f"{seen}. Are the labels and the columns of the scores in the same order, and do both count from 0?"


def _matching(best: Integers, truth: Integers, classes: int) -> Integers:
    """(C,) the column of each label: pairs are taken in the order of how often they occur, each label and each column once.

    Labels and columns that are left keep their own number where that is possible.
    """
    table, free = np.full(classes, -1), np.ones(classes, dtype=bool)
    pairs, counts = np.unique(truth * classes + best, return_counts=True)
    for pair in pairs[np.argsort(-counts, kind="stable")].tolist():
        label, column = divmod(pair, classes)
        if table[label] < 0 and free[column]:
            table[label], free[column] = column, False
    for label in np.flatnonzero(table < 0).tolist():
        if free[label]:
            table[label], free[label] = label, False
    table[table < 0] = np.flatnonzero(free)
    return table


def labels_unrelated(best: Integers, labels: Integers, classes: int) -> str:
    """A sentence if the best classes (n,) are the labels (n,) hardly more often than if the two had nothing to do with each other."""
    best, labels = best[best >= 0], labels[best >= 0]
    n, right = len(labels), int(np.count_nonzero(best == labels))
    if n < LEAST_FOR_CHANCE:
        return ""
    columns, truth = (np.bincount(values, minlength=classes) / n for values in (best, labels))
    if max(columns.max(), truth.max()) == 1:
        return ""
    share = float(columns @ truth)
    if right > n * share + math.sqrt(n * share * (1 - share)):
        return ""
    seen = f"The best class is the label for {right} of {n} rows, hardly more often than by chance ({n * share:.0f})"
    return f"{seen}. Are labels and scores of the same rows, in the same order?"


def inputs_differ(known: Floats | None, new: Floats | None) -> str:
    """A sentence if the first log-risks of new inputs (m,) are distributed otherwise than those of the calibration examples (n,).

    It is the test of Kolmogorov and Smirnov, which equal values make more careful.
    """
    if known is None or new is None or len(new) < LEAST_INPUTS or len(known) < LEAST_INPUTS or np.isnan(new).any():
        return ""
    known, new = np.sort(known), np.sort(new)
    sizes = len(known) * len(new) / (len(known) + len(new))
    if LARGEST_DISTANCE * math.exp(-2 * sizes * _distance(known, new) ** 2) > INPUTS:
        return ""
    happens = f"in random order this happens in at most {INPUTS:.0%} of batches"
    asked = f"{SHUFFLED[0].upper()}{SHUFFLED[1:]} Do they come from other people, sensors or days?"
    return f"{DIFFERENT_INPUTS} in their risks at the first checkpoint ({happens}). {asked}"


def _distance(first: Floats, second: Floats) -> float:
    """The largest distance of two empirical distributions, of sorted values, where values nearer than SAME_RISK count as equal."""

    def excess(above: Floats, below: Floats) -> float:
        shares = np.arange(1, len(above) + 1) / len(above)
        return float((shares - np.searchsorted(below, above + SAME_RISK, side="right") / len(below)).max())

    return max(excess(first, second), excess(second, first), 0.0)


def classes_differ(known: Integers | None, labels: Integers, names: Sequence[str] | None) -> str:
    """A sentence if classes are not as frequent among `labels` (m,) as in calibration, where they occurred `known` (C,) times.

    It is the chi-square test of two samples, with Wilson and Hilferty's normal approximation; rare classes are counted together.
    """
    if known is None or len(labels) < LEAST_INPUTS or known.sum() < LEAST_INPUTS:
        return ""
    table = np.stack([known, np.bincount(labels, minlength=len(known))]).astype(np.float64)
    sizes, totals = table.sum(axis=1), table.sum(axis=0)
    rare = totals * sizes.min() / sizes.sum() < LEAST_EXPECTED
    joined = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    joined = joined[:, joined.sum(axis=0) * sizes.min() / sizes.sum() >= LEAST_EXPECTED]
    degrees = joined.shape[1] - 1
    if degrees < 1:
        return ""
    expected = joined.sum(axis=0) * (sizes / sizes.sum())[:, None]
    statistic = float(((joined - expected) ** 2 / expected).sum())
    spread = 2 / (9 * degrees)
    if ((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < NormalDist().inv_cdf(1 - CLASSES):
        return ""
    shares = table / sizes[:, None]
    most = int(np.abs(shares[1] - shares[0]).argmax())
    name = f"class {most}" if names is None else f"class {names[most]!r}"
    seen = f"{name}: {shares[0, most]:.1%} there, {shares[1, most]:.1%} here"
    happens = f"in random order this happens in about {CLASSES:.1%} of batches"
    return f"The classes are not as frequent as in calibration ({seen}; {happens}): {SHUFFLED}"


def coverage_too_low(coverage: float, low: float, confidence: float) -> str:
    """A sentence if coverage is below `low`, the least that the draw of the calibration examples explains at this level."""
    if coverage >= low:
        return ""
    rare = f"{(1 - confidence) / 2:.2g}"
    seen = f"Coverage is {coverage:.3f}, below {low:.3f}: the draw of the calibration examples ends lower with probability {rare} at most"
    asked = "were members trained on some of the rows, or do these come from other people, sensors or days?"
    return f"{seen}. These inputs may not be exchangeable with the calibration examples: {SHUFFLED[:-1]}, {asked}"
