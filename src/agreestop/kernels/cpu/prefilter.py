"""The loop of the prefilter: approximate log-risks from spike counts or logits, for each input
and checkpoint.
"""

import math

import numpy as np

from .numba_runtime import jit, jit_inline, jit_uncached

POWERS = np.exp(-np.arange(256.0))
"""exp(-n), which loops look up."""


@jit_inline
def _log_sum(values, first, last, scale):  # type: ignore[no-untyped-def]
    """log Σ exp(scale · value) over values first … last."""
    top = -math.inf
    for index in range(first, last):
        top = max(top, scale * values[index])
    if top == -math.inf:
        return top
    total = 0.0
    for index in range(first, last):
        total += math.exp(scale * values[index] - top)
    return top + math.log(total)


@jit_inline
def _rank(values, order):  # type: ignore[no-untyped-def]
    """Indices by falling value, by insertion, since there are few."""
    for label in range(len(values)):
        at = label
        while at > 0 and values[order[at - 1]] < values[label]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = label


@jit_inline
def _exp_below(difference):  # type: ignore[no-untyped-def]
    """exp(-difference); of counts they are whole numbers, mostly small ones."""
    whole = np.int64(difference)
    if whole == difference and whole < len(POWERS):
        return POWERS[whole]
    return math.exp(-difference)


@jit_inline
def _risk_of_means(counts, temperature, best, parts, pooled, order):  # type: ignore[no-untyped-def]
    """The log-risk where confidences are averaged: they need no logarithms.

    A confidence that vanishes here makes the risk too small, so the rule judges.
    """
    members, classes = counts.shape
    pooled[:] = 0.0
    for member in range(members):
        top, total = counts[member, 0], 0.0
        for label in range(1, classes):
            top = max(top, counts[member, label])
        for label in range(classes):
            parts[member, label] = _exp_below(top - counts[member, label])
            total += parts[member, label]
        share = 1 / total
        for label in range(classes):
            pooled[label] += share * parts[member, label]
    _rank(pooled, order)
    if temperature != 1.0:
        largest = pooled[order[0]]
        for label in range(classes):
            pooled[label] = math.exp(temperature * math.log(pooled[label] / largest))
    outside = 0.0
    for rank in range(classes - 1, best - 1, -1):
        outside += pooled[order[rank]]
    inside = 0.0
    for rank in range(best):
        inside += pooled[order[rank]]
    return math.log(outside / (inside + outside))


@jit_uncached
def may_stop_at(  # type: ignore[no-untyped-def]
    counts, checkpoint, exponent, temperatures, bounds, learned, size, slack, floor, logs, one,
    work, order,
):  # fmt: skip
    """Whether an input with counts or logits (K, C) may stop at a checkpoint.

    logs (K, C), work (2, C), one (K,) and order (C,) are scratch memory.
    """
    members, classes = counts.shape
    bound, best = bounds[checkpoint], min(size, classes)
    if bound == -math.inf:
        return False
    if best == classes:
        return True
    if exponent == 1.0 and not learned.shape[1] and temperatures[checkpoint] > 0:
        risk = _risk_of_means(counts, temperatures[checkpoint], best, logs, work[0], order)
        return not risk >= bound  # nan goes to the rule, which refuses it
    pooled, ranked = work[0], work[1]
    for member in range(members):
        top = -math.inf
        for label in range(classes):
            top = max(top, counts[member, label])
        total = 0.0
        for label in range(classes):
            total += math.exp(counts[member, label] - top)
        rest = math.log(total)
        for label in range(classes):
            logs[member, label] = counts[member, label] - top - rest
    for label in range(classes):
        for member in range(members):
            one[member] = logs[member, label]
        if exponent == math.inf:
            value = one.max()
        elif exponent == -math.inf:
            value = one.min()
        elif exponent == 0:
            value = one.mean()
        else:
            value = (_log_sum(one, 0, members, exponent) - math.log(float(members))) / exponent
        pooled[label] = temperatures[checkpoint] * value
    _rank(pooled, order)
    for label in range(classes):
        ranked[label] = pooled[order[label]]
    whole = _log_sum(ranked, 0, classes, 1.0)
    risk = _log_sum(ranked, best, classes, 1.0) - whole
    if learned.shape[1]:
        # if the order depends on rounding, the rule decides
        if ranked[best - 1] - ranked[best] < slack or ranked[0] - ranked[1] < slack:
            return True
        tail = max(risk, floor)
        log_time = learned[checkpoint, 1]
        dissent = 0.0
        for member in range(members):
            top_label = 0
            for label in range(classes):
                if logs[member, label] > logs[member, top_label]:
                    top_label = label
            dissent += top_label != order[0]
            total = 0.0
            for rank in range(best, classes):
                total += math.exp(logs[member, order[rank]])
            one[member] = max(math.log(max(total, 1e-300)), floor)
        mean = one.mean()
        spread = 0.0
        for member in range(members):
            spread += (one[member] - mean) ** 2
        weights = learned[checkpoint, 2:]
        logit = learned[checkpoint, 0] + weights[0] * tail
        logit += weights[1] * max(_log_sum(ranked, 1, classes, 1.0) - whole, floor)
        logit += weights[2] * (max(_log_sum(ranked, best - 1, classes, 1.0) - whole, floor) - tail)
        logit += (
            weights[3] * mean + weights[4] * one.max() + weights[5] * math.sqrt(spread / members)
        )
        logit += (
            weights[6] * dissent / members + weights[7] * log_time + weights[8] * log_time * tail
        )
        risk = -math.log1p(math.exp(-logit)) if logit > -700 else logit
    return not risk >= bound


@jit(
    "void(float64[:,:,:,::1], int64[::1], float64, float64[::1], float64[::1], float64[:,::1], "
    "int64, float64, float64, boolean[:,::1])"
)
def may_stop(  # type: ignore[no-untyped-def]
    counts, checkpoints, exponent, temperatures, bounds, learned, size, slack, floor, flags
):
    """Fill flags (rows, S) from counts or logits (rows, S, K, C). `bounds` include their slack."""
    rows, steps, members, classes = counts.shape
    logs, one = np.empty((members, classes)), np.empty(members)
    work, order = np.empty((2, classes)), np.empty(classes, np.int64)
    for row in range(rows):
        for index in range(steps):
            flags[row, index] = may_stop_at(
                counts[row, index], checkpoints[index], exponent, temperatures, bounds, learned,
                size, slack, floor, logs, one, work, order,
            )  # fmt: skip
