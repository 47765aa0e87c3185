"""Simulated scores: K members that count spikes while they watch an input, for demonstrations, tests and benchmarks.

Each input has a label, a rival class and a hardness. Member k's read-out neuron c fires at step t with probability
σ(base + drive), where the drive towards the label grows with time at a pace set by the hardness; noise is shared between
members to the degree `dependence`. Spike counts become log-confidences. Nothing here is a trained network, and
whatever is drawn from it is called simulated.
"""

from __future__ import annotations

import numpy as np

from .checks import Booleans, Integers
from .confidence import log_confidence
from .score_files import Scores


def simulate_spikes(
    n: int,
    steps: int = 80,
    K: int = 6,
    C: int = 10,
    seed: int = 0,
    dependence: float = 0.5,
    signal: float = 2.2,
    pace: float = 25.0,
) -> tuple[Booleans, Integers]:
    """Read-out spikes (n, steps, K, C) and labels (n,).

    dependence  share of the noise that all members see: 0 independent, 1 the same noise for all
    signal      drive towards the label once it is recognised
    pace        typical number of steps until half of the drive is there
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(C, size=n)
    rival = (labels + rng.integers(1, C, size=n)) % C
    halfway = pace * rng.gamma(2.0, 0.5, size=n)
    confusion = rng.beta(1.2, 3.0, size=n)
    clock = np.arange(1, steps + 1)
    known = 1 / (1 + np.exp(-(clock - halfway[:, None]) / (0.3 * halfway[:, None] + 1)))
    drive = np.zeros((n, steps, C))
    rows = np.arange(n)
    drive[rows, :, labels] += signal * known
    drive[rows, :, rival] += signal * confusion[:, None] * (1.3 - known)
    shared = rng.normal(size=(n, 1, 1, C))
    private = rng.normal(size=(n, 1, K, C))
    noise = np.sqrt(dependence) * shared + np.sqrt(1 - dependence) * private
    rate = 1 / (1 + np.exp(-(-2.5 + drive[:, :, None, :] + 0.8 * noise * (1.2 - known[:, :, None, None]))))
    common = rng.random((n, steps, 1, C))
    own = rng.random((n, steps, K, C))
    coin = np.where(rng.random((n, steps, K, C)) < dependence, common, own)
    return coin < rate, labels


def simulate_scores(
    n: int,
    steps: int = 80,
    K: int = 6,
    C: int = 10,
    seed: int = 0,
    dependence: float = 0.5,
    signal: float = 2.2,
    pace: float = 25.0,
) -> Scores:
    """Simulated scores at every step 1..steps; see `simulate_spikes` for the settings."""
    spikes, labels = simulate_spikes(n, steps, K, C, seed, dependence, signal, pace)
    counts = np.cumsum(spikes, axis=1, dtype=np.float64)
    return Scores(log_confidence(counts), labels, tuple(range(1, steps + 1)))
