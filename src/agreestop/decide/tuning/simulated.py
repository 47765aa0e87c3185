"""Simulated scores for demonstrations, tests and benchmarks: K members count spikes over time.

Each input has a label, a rival class and a hardness. The read-out neuron c of member k fires at
step t with probability

    σ(-2.5 + drive_t(c) + 0.8 · noise(k, c) · (1.2 - known_t)),

where known_t grows from 0 to 1 at a pace set by the hardness, and with it the drive towards the
label. Members share noise and coins to the degree `dependence`. Spike counts become
log-confidences. Nothing here is a trained network: call results from it simulated.
"""

import numpy as np

from agreestop.common import Booleans, InputError, Integers, as_count, as_seed

from ..confidence import log_confidence
from ..scores import Scores

BLOCK = 256  # inputs simulated together


def simulate_spikes(
    n: int,
    steps: int = 80,
    K: int = 6,
    C: int = 10,
    seed: int = 0,
    dependence: float = 0.5,
    signal: float = 2.6,
    pace: float = 15.0,
) -> tuple[Booleans, Integers]:
    """Simulate the read-out spikes of an ensemble.

    Parameters
    ----------
    n, steps, K, C : int
        The numbers of inputs, time steps, members and classes.
    seed : int
        The seed of all random numbers.
    dependence : float
        The share of the noise that all members see: 0 for independent noise, 1 for the same noise.
    signal : float
        The drive towards the label once the input is recognised.
    pace : float
        The typical number of steps until half of the drive is there.

    Returns
    -------
    spikes : ndarray of bool, shape (n, steps, K, C)
    labels : ndarray of int64, shape (n,)

    Examples
    --------
    >>> spikes, labels = simulate_spikes(5, steps=20, K=2, C=3)
    >>> spikes.shape, labels.shape
    ((5, 20, 2, 3), (5,))
    """
    for name, value, least in (("n", n, 1), ("steps", steps, 1), ("K", K, 1), ("C", C, 2)):
        as_count(value, name, least)
    if not 0 <= dependence <= 1:
        raise InputError(
            f"dependence is {dependence}: "
            "give a number from 0 (independent members) to 1 (the same noise for all)."
        )
    rng = np.random.default_rng(as_seed(seed))
    labels = rng.integers(C, size=n)
    spikes = np.empty((n, steps, K, C), dtype=bool)
    for start in range(0, n, BLOCK):
        rows = slice(start, start + BLOCK)
        spikes[rows] = _watch(labels[rows], spikes[rows].shape, rng, dependence, signal, pace)
    return spikes, labels


def _watch(
    labels: Integers,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    dependence: float,
    signal: float,
    pace: float,
) -> Booleans:
    """The spikes of a block of inputs, of the given shape."""
    n, steps, members, classes = shape
    rows = np.arange(n)
    rival = (labels + rng.integers(1, classes, size=n)) % classes
    halfway = pace * rng.gamma(2.0, 0.5, size=(n, 1))
    confusion = rng.beta(1.2, 3.0, size=(n, 1))
    known = 1 / (1 + np.exp((halfway - np.arange(1, steps + 1)) / (0.3 * halfway + 1)))
    drive = np.zeros((n, steps, classes))
    drive[rows, :, labels] += signal * known
    drive[rows, :, rival] += signal * confusion * (1.3 - known)
    shared = rng.normal(size=(n, 1, 1, classes))
    private = rng.normal(size=(n, 1, members, classes))
    noise = np.sqrt(dependence) * shared + np.sqrt(1 - dependence) * private
    unsure = 1.2 - known[:, :, None, None]
    rate = 1 / (1 + np.exp(2.5 - drive[:, :, None] - 0.8 * noise * unsure))
    coin = rng.random(shape)
    common = rng.random((n, steps, 1, classes))
    is_common = rng.random(shape) < dependence
    return np.where(is_common, common, coin) < rate


def simulate_scores(
    n: int,
    steps: int = 80,
    K: int = 6,
    C: int = 10,
    seed: int = 0,
    dependence: float = 0.5,
    signal: float = 2.6,
    pace: float = 15.0,
) -> Scores:
    """Simulate the scores of an ensemble at every step 1..steps.

    Parameters
    ----------
    n, steps, K, C, seed, dependence, signal, pace
        As in `simulate_spikes`.

    Returns
    -------
    Scores
        Log-confidences (n, steps, K, C) with labels.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(5, steps=20, K=2, C=3)
    >>> scores.log_confidence.shape, scores.times[-1]
    ((5, 20, 2, 3), 20)
    """
    spikes, labels = simulate_spikes(n, steps, K, C, seed, dependence, signal, pace)
    counts = np.cumsum(spikes, axis=1, dtype=np.int32)
    return Scores(log_confidence(counts), labels, tuple(range(1, steps + 1)))
