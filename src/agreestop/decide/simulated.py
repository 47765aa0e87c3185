"""Simulated scores: K members that count spikes while they watch an input, for demonstrations, tests and benchmarks.

Each input has a label, a rival class and a hardness. Member k's read-out neuron c fires at step t with probability
σ(base + drive), where the drive towards the label grows with time at a pace set by the hardness; noise is shared between
members to the degree `dependence`. Spike counts become log-confidences. Nothing here is a trained network, and
whatever is drawn from it is called simulated.
"""

import numpy as np

from agreestop.common import Booleans, InputError, Integers, as_count, as_seed

from .confidence import log_confidence
from .score_files import Scores

BLOCK = 256  # inputs simulated together


def simulate_spikes(
    n: int, steps: int = 80, K: int = 6, C: int = 10, seed: int = 0, dependence: float = 0.5, signal: float = 2.6, pace: float = 15.0
) -> tuple[Booleans, Integers]:
    """Read-out spikes (n, steps, K, C) and labels (n,).

    dependence  share of the noise that all members see: 0 independent, 1 the same noise for all
    signal      drive towards the label once it is recognised
    pace        typical number of steps until half of the drive is there
    """
    for name, value, least in (("n", n, 1), ("steps", steps, 1), ("K", K, 1), ("C", C, 2)):
        as_count(value, name, least)
    if not 0 <= dependence <= 1:
        raise InputError(f"dependence is {dependence}: give a number from 0 (independent members) to 1 (the same noise for all).")
    rng = np.random.default_rng(as_seed(seed))
    labels = rng.integers(C, size=n)
    spikes = np.empty((n, steps, K, C), dtype=bool)
    for start in range(0, n, BLOCK):
        block = slice(start, min(start + BLOCK, n))
        spikes[block] = _watch(labels[block], spikes[block].shape, rng, dependence, signal, pace)
    return spikes, labels


def _watch(labels: Integers, shape: tuple[int, ...], rng: np.random.Generator, dependence: float, signal: float, pace: float) -> Booleans:
    n, steps, members, classes = shape
    rival = (labels + rng.integers(1, classes, size=n)) % classes
    halfway = pace * rng.gamma(2.0, 0.5, size=(n, 1))
    confusion = rng.beta(1.2, 3.0, size=(n, 1))
    known = 1 / (1 + np.exp((halfway - np.arange(1, steps + 1)) / (0.3 * halfway + 1)))
    drive = np.zeros((n, steps, classes))
    rows = np.arange(n)
    drive[rows, :, labels] += signal * known
    drive[rows, :, rival] += signal * confusion * (1.3 - known)
    shared = rng.normal(size=(n, 1, 1, classes))
    private = rng.normal(size=(n, 1, members, classes))
    noise = np.sqrt(dependence) * shared + np.sqrt(1 - dependence) * private
    rate = 1 / (1 + np.exp(2.5 - drive[:, :, None] - 0.8 * noise * (1.2 - known[:, :, None, None])))
    coin = rng.random((n, steps, members, classes))
    common = rng.random((n, steps, 1, classes))
    is_common = rng.random((n, steps, members, classes)) < dependence
    return np.where(is_common, common, coin) < rate


def simulate_scores(
    n: int, steps: int = 80, K: int = 6, C: int = 10, seed: int = 0, dependence: float = 0.5, signal: float = 2.6, pace: float = 15.0
) -> Scores:
    """Simulated scores at every step 1..steps; see `simulate_spikes` for the settings."""
    spikes, labels = simulate_spikes(n, steps, K, C, seed, dependence, signal, pace)
    counts = np.cumsum(spikes, axis=1, dtype=np.int32)
    return Scores(log_confidence(counts), labels, tuple(range(1, steps + 1)))
