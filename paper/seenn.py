"""SEENN-II as a baseline: a policy network picks, early in an input, the time at which the ensemble
answers. It has no guarantee.

    reward of candidate m    r_m = 2^(-4 t_m / T) if the answer at t_m is right, else -β
                             (T: the last candidate)
    objective                maximise the mean over tuning inputs of Σ_m π_m r_m

Li, Geller, Kim and Panda (NeurIPS 2023) sample the time from π and follow the REINFORCE gradient
r·∇log π of this objective. Here the ensemble is already trained and does not change, so the rewards
of all M times are known. The gradient is that of the expectation itself: the same objective and, on
average, the same gradient, without the variance of samples. They count t in steps and have few
steps. With 80 steps, 2^-t is nearly 0 at all but the first ones, so time is counted here in
quarters of T. An answer is the I most probable classes by averaged confidence. It is right if it
holds the label.

Policies of several β are trained on the tuning split. In each realisation the calibration rows
choose one of them: the one with the least mean time among those whose answers hold the label on at
least a share p of the rows, or else the most accurate one. The share on other inputs may be lower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    ProgressCallback,
    as_checkpoints,
    as_floats,
    as_max_set_size,
    as_seed,
    check_finite,
    columns_of,
)
from agreestop.common.levels import Rounding, Target, as_target
from agreestop.decide.baselines import ConfidenceThreshold
from agreestop.decide.calibration import Uncalibrated
from agreestop.decide.checkpoints import Evidence, Index, LabelledEvidence, Policy, State, Verdict
from agreestop.decide.confidence import MODEL_AVERAGE
from agreestop.decide.leakage import TunedRows
from agreestop.decide.rule import Reduced, Terms, validate
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.splits import repeat_splits
from agreestop.events.data import EventData
from agreestop.kernels.cpu.numba_runtime import single_threaded

from .figures import Setting
from .outcomes import MeasureSettings, RuleOutcome
from .step_policy import StepPolicy, summarise

BETAS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0)
EPOCHS = 60
BATCH = 64
LEARNING_RATE = 3e-3
HALVINGS = 4


def rewards(right: Booleans, times: Sequence[float], beta: float) -> Floats:
    """r (n, M): 2^(-4 t/T) where the answer is right, -beta where it is wrong."""
    clock = np.array(as_checkpoints(times), dtype=np.float64)
    return np.where(right, 2.0 ** (-HALVINGS * clock / clock[-1]), -beta)


def train_policy(
    summaries: ArrayLike,
    right: ArrayLike,
    times: Sequence[float],
    steps_read: int,
    beta: float,
    seed: int = 0,
    epochs: int = EPOCHS,
) -> StepPolicy:
    """Train a policy on summaries (n, channels, H, W) of the first `steps_read` steps; right (n, M)
    says which answers are right.

    beta is the penalty of a wrong answer: with a larger one the policy answers later and is right
    more often. The optimiser is Adam with a cosine schedule on the exact policy gradient. Weights
    and the order of the inputs depend only on the seed.
    """
    x, known = _as_summaries(summaries), np.asarray(right)
    if known.shape != (len(x), len(as_checkpoints(times))) or known.dtype != np.bool_:
        raise InputError(
            f"right has dtype {known.dtype} and shape {known.shape}: booleans ({len(x)}, "
            f"{len(times)}), inputs by times, are needed."
        )
    _check_beta(beta)
    as_seed(seed)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise InputError(f"epochs is {epochs!r}: an integer of at least 1 is needed.")
    policy = StepPolicy(
        (x.shape[1], x.shape[2], x.shape[3]), times, steps_read, torch.Generator().manual_seed(seed)
    )
    inputs, earned = torch.from_numpy(x), torch.from_numpy(rewards(known, times, beta)).float()
    policy.standardise(inputs)
    with single_threaded():  # these operators are too small to gain from a second thread
        _climb(policy, inputs, earned, seed, epochs)
    return policy


def _climb(policy: StepPolicy, inputs: Tensor, earned: Tensor, seed: int, epochs: int) -> None:
    """Raise the expected reward by gradient ascent; earned (n, M) is the reward of each time."""
    optimiser = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(inputs))
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        for rows in np.array_split(order, math.ceil(len(inputs) / BATCH)):
            loss = -(policy(inputs[rows]).softmax(1) * earned[rows]).sum(1).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()


def _as_summaries(summaries: ArrayLike) -> NDArray[np.float32]:
    array = as_floats(summaries, "summaries").astype(np.float32)
    if array.ndim != 4 or array.size == 0:
        raise InputError(
            f"summaries has shape {array.shape}: (n, channels, H, W), none of them 0, is needed."
        )
    check_finite(array, "summaries")
    return array


def _check_beta(beta: float) -> None:
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0 <= beta < math.inf:
        raise InputError(
            f"beta is {beta!r}: give the penalty of a wrong answer, a finite number of at least 0."
        )


@dataclass(frozen=True, eq=False)
class Seenn2:
    """Policies over the same candidate times, one for each β, for answers of `max_set_size`
    classes; `tuned`: their training rows.
    """

    times: tuple[float, ...]
    max_set_size: int
    betas: tuple[float, ...]
    policies: tuple[StepPolicy, ...]
    tuned: TunedRows

    def rule(self, target: Target, pool: EventData) -> PickedTimes:
        """The rule for the rows of this pool, in their order. Give it to `repeat_splits` with the
        scores of the same inputs.
        """
        picks = np.stack([policy.pick(pool.inputs) for policy in self.policies], axis=1)
        picked = picks[:, None, :] == np.arange(len(self.times))[None, :, None]
        return PickedTimes(target, self.times, self.max_set_size, picked, self.tuned)


def train_seenn2(
    data: EventData,
    scores: Scores,
    times: Sequence[float],
    max_set_size: int,
    betas: Sequence[float] = BETAS,
    seed: int = 0,
    epochs: int = EPOCHS,
) -> Seenn2:
    """Train a policy for each β on the tuning inputs and the ensemble's scores (n, T, K, C) of
    them.

    A policy reads a stream up to the first candidate time. It reads an image that is held still as
    a whole.
    """
    known, size = as_checkpoints(times), as_max_set_size(max_set_size)
    if not len(betas):
        raise InputError("betas is empty: give at least one penalty of a wrong answer.")
    for beta in betas:
        _check_beta(beta)
    _check_match(data, scores, "tuning")
    columns = columns_of(known, scores.times)
    chosen = scores.log_confidence[:, columns]
    right = _holds(MODEL_AVERAGE.pool(chosen), data.labels, size)
    steps_read = 1 if data.held is not None else math.floor(known[0])
    summaries = summarise(data.inputs, steps_read)
    policies = tuple(
        train_policy(summaries, right, known, steps_read, beta, seed, epochs) for beta in betas
    )
    return Seenn2(
        known, size, tuple(betas), policies, TunedRows.of(chosen).cut(range(len(known)), len(known))
    )


def _check_match(data: EventData, scores: Scores, what: str) -> None:
    if len(data) != len(scores):
        raise InputError(
            f"{what}: there are {len(data)} inputs and scores of {len(scores)}: give the scores of "
            "these inputs."
        )
    if not len(data):
        raise InputError(f"{what}: there are no inputs: give at least one.")
    if scores.labels is not None and not np.array_equal(scores.labels, data.labels):
        raise InputError(
            f"{what}: the labels of the inputs are not those of the scores: give the scores of "
            "these inputs, in their order."
        )


@dataclass(frozen=True, eq=False, repr=False)
class PickedTimes(Uncalibrated):
    """SEENN-II on one pool: `picked` (n, M, B) says which time each of B policies picks for each
    row. Calibration chooses a policy.

    It needs all rows of the pool, in order, since the policies read the inputs and not the
    log-confidences. It has no guarantee.
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    picked: Booleans
    training_rows: TunedRows | None

    def __post_init__(self) -> None:
        validate(self)

    @property
    def terms(self) -> Terms:
        return Terms("seenn-ii", as_target(self.target), promises=False)

    @property
    def tuned(self) -> TunedRows | None:
        return self.training_rows

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        """Averaged log-confidence (n, C), then for each policy 1 where it picks this
        time, else 0.
        """
        if len(log_confidence) != len(self.picked):
            raise InputError(
                f"there are scores of {len(log_confidence)} rows and picked times of "
                f"{len(self.picked)}: give the scores of the same pool."
            )
        return Evidence(
            np.concatenate([MODEL_AVERAGE.pool(log_confidence), self.picked[:, index]], axis=1)
        )

    def best(self, evidence: Evidence) -> Integers:
        """The class (b,) of the largest averaged confidence, from evidence of one checkpoint."""
        return evidence.values[:, : -self.picked.shape[2]].argmax(axis=1)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        """For each example and policy (n, B): whether its answer is right, and the time
        it picks.
        """
        values, classes = examples.evidence.values, examples.classes
        picked = values[:, :, classes:] == 1
        right = _holds(values[:, :, :classes], examples.labels, self.max_set_size)
        times = np.array(self.checkpoints, dtype=np.float64)
        return {
            "right": (picked & right[:, :, None]).any(axis=1),
            "times": times[picked.argmax(axis=1)],
        }

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> PickedPolicy:
        correct = np.count_nonzero(reduced["right"], axis=0).tolist()
        waited = reduced["times"].sum(axis=0).tolist()
        needed = as_target(self.target) * len(examples)
        enough = [policy for policy, count in enumerate(correct) if count >= needed]
        if enough:
            chosen = min(enough, key=lambda policy: waited[policy])
        else:
            chosen = min(range(len(correct)), key=lambda policy: (-correct[policy], waited[policy]))
        return PickedPolicy(chosen, examples.classes, self.max_set_size)

    def promise(self) -> str:
        return (
            "no guarantee: the policy met the target on the calibration data, or came as near "
            "as it could."
        )

    def rounding(self, base: Rounding) -> Rounding:
        """How far averaged confidences of one input may differ between two runs."""
        return base

    def examples_needed(self, K: int = 1) -> int:
        """One example is enough to choose a policy. No number of examples gives a guarantee."""
        return 1


@dataclass(frozen=True, eq=False)
class PickedPolicy(Policy):
    """Stop at the time that policy number `chosen` picks; answer the top I classes."""

    chosen: int
    classes: int
    max_set_size: int

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        sets = _answers(evidence.values[:, : self.classes], self.max_set_size)
        return Verdict((evidence.values[:, self.classes + self.chosen] == 1) | last, sets, state)


def _answers(confidence: Floats, max_set_size: int) -> Booleans:
    """The top I classes of pooled log-confidences (b, C), the answer of every rule without a
    guarantee.
    """
    return (
        ConfidenceThreshold(-math.inf, max_set_size)
        .judge(0, True, Evidence(confidence), State(len(confidence)))
        .sets
    )


def _holds(confidence: Floats, labels: Integers, max_set_size: int) -> Booleans:
    """Whether the answers to (n, M, C) hold the labels (n,): (n, M)."""
    n, checkpoints, classes = confidence.shape
    sets = _answers(confidence.reshape(-1, classes), max_set_size).reshape(n, checkpoints, classes)
    return sets[np.arange(n), :, labels]


def measure_seenn2(
    tuning_data: EventData,
    tuning: Scores,
    pool_data: EventData,
    pool: Scores,
    settings: Sequence[Setting],
    max_set_size: int,
    protocol: MeasureSettings,
    progress: ProgressCallback,
    betas: Sequence[float] = BETAS,
    epochs: int = EPOCHS,
) -> dict[Setting, RuleOutcome]:
    """What SEENN-II reaches at each setting, on the same realisations as the other rules.

    The candidate times are those of the scores. Policies are trained once for each number of
    members. They read a stream up to the first candidate time, so nothing stops before it. Latency
    is over the last candidate time.
    """
    _check_match(pool_data, pool, "pool")
    found: dict[Setting, RuleOutcome] = {}
    sizes = dict.fromkeys(setting.K for setting in settings)
    for index, members in enumerate(sizes):
        progress(f"SEENN-II, K = {members}", index / len(sizes))
        trained = train_seenn2(
            tuning_data,
            _first_members(tuning, members),
            tuning.times,
            max_set_size,
            betas,
            protocol.seed,
            epochs,
        )
        rule, scores = trained.rule(settings[0].target, pool_data), _first_members(pool, members)
        for setting in settings:
            if members == setting.K:
                aimed = replace(rule, target=setting.target)
                splits = repeat_splits(
                    *(
                        aimed,
                        scores.log_confidence,
                        pool_data.labels,
                        setting.n,
                        protocol.realisations,
                        protocol.seed,
                        scores.times,
                    )
                )
                coverage, latency = splits.coverage, splits.normalized_latency
                found[setting] = RuleOutcome(
                    float(coverage), coverage.se, float(latency), latency.se, float(splits.set_size)
                )
    return found


def _first_members(scores: Scores, members: int) -> Scores:
    return replace(scores, log_confidence=scores.log_confidence[:, :, :members])
