"""Do calibration rows and new rows look exchangeable? Each test has a rate of false alarms.

    labels_in_blocks   equal labels are neighbours far more often than in a random order (1e-4)
    labels_misplaced   another class is answered in place of each label (1e-4)
    labels_unrelated   the best class is right hardly more often than by chance, as for a weak model
    inputs_differ      new inputs have another distribution of first log-risks (0.01)
    classes_differ     the classes are not as frequent as in calibration (1e-3)

Each returns a question for the user, or an empty string. No promise depends on them: rows that pass
may still not be exchangeable.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from agreestop.common import Floats, Integers
from agreestop.common.errors import quoted

RARE = 1e-4  # false alarms about labels
INPUTS, CLASSES = 0.01, 1e-3  # false alarms of the other two
LEAST_INPUTS, LEAST_FOR_CHANCE = 20, 50
SAME_RISK = 0.01  # nearer log-risks count as equal: another run may round an input otherwise
# Wei and Dudley (2012), for the largest distance D of two empirical distributions:
# P(√(nm/(n+m))·D ≥ x) ≤ 2.2·e^(-2x²)
LARGEST_DISTANCE = 2.2
LEAST_EXPECTED = 5  # rarer classes are counted together
MOST_NAMED = 3
DIFFERENT_INPUTS = "These inputs differ from the calibration inputs"
SHUFFLED = "were the rows shuffled before they were divided (`scores.split` does that)?"


def labels_in_blocks(labels: Integers) -> str:
    """A question if equal labels (n,) stand together, as in rows that were sorted by class.

    In a random order two neighbours are equal with probability p = Σ n_c(n_c - 1)/(n(n - 1)), and
    the number of equal neighbours is spread no more than a binomial one, so
    P(at least r of n - 1) ≤ exp(-(n - 1)·KL(r/(n - 1), p)).
    """
    n, counts = len(labels), np.unique(labels, return_counts=True)[1]
    if n < 3 or len(counts) < 2:
        return ""
    p = float((counts * (counts - 1.0)).sum()) / (n * (n - 1))
    equal = int(np.count_nonzero(labels[1:] == labels[:-1]))
    if not _binomial_excess(equal, n - 1, p):
        return ""
    return (
        f"The labels of the calibration rows come in blocks ({equal} of {n - 1} neighbours are "
        f"equal, and about {p * (n - 1):.0f} would be in a random order): {SHUFFLED} If they were "
        "shuffled first and only sorted afterwards, this does no harm."
    )


def _binomial_excess(count: int, trials: int, p: float) -> bool:
    """Whether so large a count has a probability of at most RARE, by Chernoff's bound."""
    share = count / trials
    if share <= p or p <= 0:
        return p <= 0 < count
    distance = share * math.log(share / p)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - p))
    return trials * distance >= -math.log(RARE)


def labels_misplaced(best: Integers, labels: Integers, classes: int) -> str:
    """A question if labels (n,) and the best columns of the scores (n,) do not belong together.

    One half of the rows chooses the one-to-one table from labels to columns that is right most
    often. The other half compares it with the table that leaves every label where it is, by the
    sign test on the rows where exactly one of both is right.
    """
    best, labels = best[best >= 0], labels[best >= 0]  # a risk may leave the classes unordered
    if len(labels) < LEAST_INPUTS or classes < 2:
        return ""
    shuffled = np.random.default_rng(0).permutation(len(labels))
    best, truth = best[shuffled], labels[shuffled]
    half = len(best) // 2
    table, same = _matching(best[:half], truth[:half], classes), truth == best
    moved = table[truth] == best
    gains, losses = (int(some[half:].sum()) for some in (moved & ~same, same & ~moved))
    if gains <= 2 * losses or not _binomial_excess(gains, gains + losses, 0.5):
        return ""
    labels = np.unique(truth)
    named = ", ".join(
        f"label {label} mostly has class {table[label]}"
        for label in labels[table[labels] != labels][:MOST_NAMED].tolist()
    )
    return (
        f"The best class is the label for {same.sum()} of {len(best)} rows; {named}. Are the "
        "labels and the columns of the scores in the same order, and do both count from 0?"
    )


def _matching(best: Integers, truth: Integers, classes: int) -> Integers:
    """(C,) the column of each label: the most frequent pairs first, each label and column once.

    Labels and columns that are left keep their own number where that is possible.
    """
    table, free = np.full(classes, -1), np.ones(classes, dtype=bool)
    pairs, counts = np.unique(truth * classes + best, return_counts=True)
    own = np.arange(classes) * (classes + 1)
    for pair in (*pairs[np.argsort(-counts, kind="stable")].tolist(), *own.tolist()):
        label, column = divmod(pair, classes)
        if table[label] < 0 and free[column]:
            table[label], free[column] = column, False
    table[table < 0] = np.flatnonzero(free)
    return table


def labels_unrelated(best: Integers, labels: Integers, classes: int) -> str:
    """A question if the best classes (n,) are the labels (n,) hardly more often than by chance."""
    best, labels = best[best >= 0], labels[best >= 0]
    n, right = len(labels), int(np.count_nonzero(best == labels))
    if n < LEAST_FOR_CHANCE:
        return ""
    columns, truth = (np.bincount(values, minlength=classes) / n for values in (best, labels))
    share = float(columns @ truth)
    most = n * share + math.sqrt(n * share * (1 - share))
    if max(columns.max(), truth.max()) == 1 or right > most:
        return ""
    return (
        f"The best class is the label for {right} of {n} rows, hardly more often than by chance "
        f"({n * share:.0f}). Are labels and scores of the same rows, in the same order?"
    )


def inputs_differ(known: Floats | None, new: Floats | None) -> str:
    """A question if first log-risks of new inputs (m,) are distributed otherwise than known (n,).

    It is the test of Kolmogorov and Smirnov, which equal values make more careful.
    """
    if known is None or new is None or min(len(new), len(known)) < LEAST_INPUTS:
        return ""
    sizes = len(known) * len(new) / (len(known) + len(new))
    distance = max(_excess(known, new), _excess(new, known), 0.0)
    if not LARGEST_DISTANCE * math.exp(-2 * sizes * distance**2) <= INPUTS or np.isnan(new).any():
        return ""
    return (
        f"{DIFFERENT_INPUTS} in their risks at the first checkpoint (in random order this happens "
        f"in at most {INPUTS:.0%} of batches). {SHUFFLED.capitalize()} Do they come from other "
        "people, sensors or days?"
    )


def _excess(above: Floats, below: Floats) -> float:
    """How far the empirical distribution of `above` exceeds that of `below` at most.

    Values nearer than SAME_RISK count as equal.
    """
    above, below = np.sort(above), np.sort(below)
    shares = np.arange(1, len(above) + 1) / len(above)
    others = np.searchsorted(below, above + SAME_RISK, side="right") / len(below)
    return float((shares - others).max())


def classes_differ(known: Integers | None, labels: Integers, names: Sequence[str] | None) -> str:
    """A question if classes are not as frequent in `labels` (m,) as in calibration, `known` (C,).

    It is the chi-square test of two samples, with Wilson and Hilferty's normal approximation; rare
    classes are counted together.
    """
    if known is None or min(len(labels), known.sum()) < LEAST_INPUTS:
        return ""
    table = np.stack([known, np.bincount(labels, minlength=len(known))]).astype(np.float64)
    sizes = table.sum(axis=1)
    smallest = sizes.min() / sizes.sum()
    rare = table.sum(axis=0) * smallest < LEAST_EXPECTED
    joined = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    joined = joined[:, joined.sum(axis=0) * smallest >= LEAST_EXPECTED]
    degrees = joined.shape[1] - 1
    if degrees < 1:
        return ""
    expected = joined.sum(axis=0) * (sizes / sizes.sum())[:, None]
    ratio = float(((joined - expected) ** 2 / expected).sum()) / degrees
    spread = 2 / (9 * degrees)
    normal = (ratio ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    if normal < NormalDist().inv_cdf(1 - CLASSES):
        return ""
    there, here = table / sizes[:, None]
    most = int(np.abs(here - there).argmax())
    name = most if names is None else quoted(names[most])
    return (
        f"The classes are not as frequent as in calibration (class {name}: {there[most]:.1%} "
        f"there, {here[most]:.1%} here; in random order this happens in about {CLASSES:.1%} of "
        f"batches): {SHUFFLED}"
    )


def coverage_too_low(coverage: float, low: float, confidence: float) -> str:
    """A question if coverage is below `low`, the least that the calibration draw explains."""
    if coverage >= low:
        return ""
    return (
        f"Coverage is {coverage:.3f}, below {low:.3f}: the draw of the calibration examples ends "
        f"lower with probability {(1 - confidence) / 2:.2g} at most. These inputs may not be "
        f"exchangeable with the calibration examples: {SHUFFLED[:-1]}, were members trained on "
        "some of the rows, or do these come from other people, sensors or days?"
    )
