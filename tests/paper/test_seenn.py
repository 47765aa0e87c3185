"""SEENN-II on a toy whose first steps show how long an input needs, and its choice of a policy
against a plain loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="policies need PyTorch")

import agreestop as ag
from agreestop.common import Booleans, Floats, InputError, Integers, no_progress
from agreestop.events import EventData
from paper.figures import Setting
from paper.outcomes import MeasureSettings
from paper.seenn import PickedTimes, Seenn2, measure_seenn2, rewards, train_policy, train_seenn2
from paper.step_policy import summarise
from tests.decide.strategies import assert_one_sentence

STEPS, CLASSES, MEMBERS = 8, 4, 2
TIMES = (2, 4, 6, 8)
SETTINGS = (Setting(0.9, 2, 20), Setting(0.6, 2, 20), Setting(0.9, 1, 20))
PROTOCOL = MeasureSettings(realisations=6)


class Toy:
    """Easy inputs have many events and are answered right from step 1. Hard inputs have few and are
    answered wrong before step 5.
    """

    def __init__(self, n: int, seed: int, size: int = 8, held: bool = False) -> None:
        rng = np.random.default_rng([n, seed])
        self.easy: Booleans = np.arange(n) % 2 == 0
        rate = np.where(self.easy, 0.4, 0.1)[:, None, None, None, None]
        inputs: Any = rng.random((n, 1 if held else STEPS, 2, size, size)) < rate
        labels: Integers = rng.integers(CLASSES, size=n)
        right = self.easy[:, None] | (np.arange(1, STEPS + 1) >= 5)
        answered = (labels[:, None] + ~right) % CLASSES
        logits = rng.normal(scale=0.1, size=(n, STEPS, MEMBERS, CLASSES)) + 3.0 * (
            np.arange(CLASSES) == answered[:, :, None, None]
        )
        names = tuple("abcd")
        self.data = EventData(
            "toy",
            True,
            inputs.astype(np.float32) if held else inputs,
            labels,
            names,
            held=STEPS if held else None,
        )
        self.scores = ag.Scores(
            ag.log_confidence(logits), labels, tuple(range(1, STEPS + 1)), names
        )
        self.right: Booleans = right[:, [time - 1 for time in TIMES]]


TUNING, POOL = Toy(96, 0), Toy(80, 1)


def trained(
    tuning: Toy = TUNING,
    betas: tuple[float, ...] = (1.0,),
    seed: int = 0,
    times: tuple[float, ...] = TIMES,
) -> Seenn2:
    return train_seenn2(tuning.data, tuning.scores, times, 1, betas, seed)


@pytest.mark.parametrize(("size", "held"), [(8, False), (3, False), (8, True)])
def test_easy_inputs_are_answered_early_and_hard_ones_late(size: int, held: bool) -> None:
    tuning, pool = Toy(96, 0, size, held), Toy(80, 1, size, held)
    policy = trained(tuning).policies[0]
    assert policy.steps_read == (1 if held else 2)
    picked = policy.pick(pool.data.inputs)
    accuracy, time = pool.right[np.arange(80), picked].mean(), np.array(TIMES)[picked].mean()
    assert accuracy >= 0.95
    assert np.mean(picked[pool.easy] == 0) >= 0.9 and np.mean(picked[~pool.easy] == 2) >= 0.9
    fixed = [later for index, later in enumerate(TIMES) if pool.right[:, index].mean() >= accuracy]
    assert time < 0.75 * min(fixed)


def test_the_expected_reward_is_that_of_the_paper() -> None:
    right = np.array([[True, False, True, True]])
    np.testing.assert_allclose(rewards(right, TIMES, 0.7), [[1 / 2, -0.7, 1 / 8, 1 / 16]])


def test_the_same_seed_gives_the_same_policy() -> None:
    summaries = summarise(TUNING.data.inputs, 2)
    before = torch.random.get_rng_state()
    one, same, other = (
        train_policy(summaries, TUNING.right, TIMES, 2, 1.0, seed, 3).state_dict()
        for seed in (5, 5, 6)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_a_higher_penalty_is_never_less_accurate() -> None:
    """Hard inputs are right more and more often. The probabilities are known, so nothing random is
    compared.
    """
    n, chances = 300, np.array([[0.95, 0.97, 0.98, 1.0], [0.4, 0.6, 0.8, 1.0]])
    rng = np.random.default_rng(0)
    kind = np.arange(n) % 2
    summaries = np.where(kind == 0, 4.0, 1.0)[:, None, None, None] + rng.normal(
        scale=0.3, size=(n, 1, 2, 2)
    )
    right = rng.random((n, 4)) < chances[kind]
    reached, waited = [], []
    for beta in (0.0, 0.5, 2.0, 16.0):
        picked = train_policy(summaries, right, TIMES, 1, beta).pick(summaries[:, None])
        reached.append(chances[kind, picked].mean())
        waited.append(np.array(TIMES)[picked].mean())
    assert reached == sorted(reached) and reached[-1] > 0.98 > 0.75 > reached[0]
    assert waited == sorted(waited) and waited[-1] > waited[0]


def picks(n: int, policies: int, seed: int) -> Integers:
    return np.random.default_rng(seed).integers(len(TIMES), size=(n, policies))


def one_hot(picked: Integers) -> Booleans:
    return picked[:, None, :] == np.arange(len(TIMES))[None, :, None]


def slow_reference(
    picked: Integers,
    confidence: Floats,
    labels: Integers,
    target: float,
    n_calibration: int,
    repeats: int,
    seed: int,
) -> Any:
    """Coverages, latencies and set sizes (repeats, 3) of top-2 answers, input by input."""
    averaged, rng, found = np.exp(confidence).mean(axis=2), np.random.default_rng(seed), []

    def outcome(row: int, policy: int) -> tuple[bool, float]:
        index = picked[row, policy]
        return labels[row] in np.argsort(-averaged[row, index])[:2], TIMES[index] / TIMES[-1]

    for _ in range(repeats):
        order = rng.permutation(len(labels))
        calibration, test = order[:n_calibration], order[n_calibration:]
        figures = [
            np.mean([outcome(row, policy) for row in calibration], axis=0)
            for policy in range(picked.shape[1])
        ]
        enough = [policy for policy, (share, _) in enumerate(figures) if share >= target - 1e-9]
        best = max(share for share, _ in figures)
        among = enough or [policy for policy, (share, _) in enumerate(figures) if share == best]
        chosen = min(among, key=lambda policy: figures[policy][1])
        found.append([*np.mean([outcome(row, chosen) for row in test], axis=0), 2])
    return np.array(found)


@pytest.mark.parametrize("target", [0.5, 0.6, 0.99])
def test_calibration_chooses_as_a_plain_loop_does_on_the_divisions_of_repeat_splits(
    target: float,
) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=60)
    logits = rng.normal(size=(60, len(TIMES), MEMBERS, CLASSES))
    logits[np.arange(60), :, :, labels] += np.array([0.0, 0.3, 0.6, 0.9])[:, None]
    confidence, picked = ag.log_confidence(logits), picks(60, 4, 1)
    rule = PickedTimes(target, TIMES, 2, one_hot(picked), None)
    splits = ag.repeat_splits(rule, confidence, labels, n_calibration=20, repeats=8, seed=3)
    expected = slow_reference(picked, confidence, labels, target, 20, 8, 3)
    np.testing.assert_allclose(
        np.stack([splits.coverages, splits.latencies, splits.set_sizes], axis=1), expected
    )


def at_times(scores: ag.Scores) -> ag.Scores:
    """The scores at the candidate times."""
    return replace(
        scores, log_confidence=scores.log_confidence[:, [time - 1 for time in TIMES]], times=TIMES
    )


def test_every_setting_is_measured() -> None:
    words: list[str] = []

    def progress(what: str, share: float) -> None:
        words.append(what)

    tuning, pool = at_times(TUNING.scores), at_times(POOL.scores)
    found = measure_seenn2(
        TUNING.data, tuning, POOL.data, pool, SETTINGS, 1, PROTOCOL, progress, betas=(0.0, 2.0)
    )
    assert tuple(found) == SETTINGS
    assert words == ["SEENN-II, K = 2", "SEENN-II, K = 1"]
    for outcome in found.values():
        assert outcome.set_size == 1 and not outcome.vacuous
        # half of them at 2 and half at 6 of 8 steps
        assert outcome.coverage >= 0.95 and 0.4 < outcome.latency < 0.6
        assert outcome.coverage_se < 0.05 and 0 < outcome.latency_se < 0.05


def test_rows_that_policies_were_trained_on_are_refused_in_the_pool() -> None:
    rule = trained().rule(0.9, TUNING.data)
    with pytest.raises(InputError, match="96 of the 96 rows were used for tuning"):
        ag.repeat_splits(
            rule, TUNING.scores.log_confidence, TUNING.data.labels, times=TUNING.scores.times
        )


SUMMARIES = np.zeros((3, 1, 2, 2))
RIGHT = np.ones((3, 4), dtype=bool)
SHORT = replace(POOL.scores, log_confidence=POOL.scores.log_confidence[:70], labels=None)
SWAPPED = replace(TUNING.scores, labels=np.roll(POOL.data.labels, 1).repeat(2)[:96])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: train_policy(SUMMARIES[0], RIGHT, TIMES, 2, 1.0),
            r"summaries has shape \(1, 2, 2\)",
        ),
        (lambda: train_policy(SUMMARIES[:0], RIGHT[:0], TIMES, 2, 1.0), "none of them 0"),
        (lambda: train_policy(SUMMARIES * np.nan, RIGHT, TIMES, 2, 1.0), "summaries holds nan"),
        (
            lambda: train_policy(SUMMARIES, RIGHT[:, :3], TIMES, 2, 1.0),
            r"right has dtype bool and shape \(3, 3\): booleans \(3, 4\)",
        ),
        (
            lambda: train_policy(SUMMARIES, RIGHT.astype(int), TIMES, 2, 1.0),
            "right has dtype int64",
        ),
        (lambda: train_policy(SUMMARIES, RIGHT, TIMES, 3, 1.0), "times begins at 2"),
        (lambda: train_policy(SUMMARIES, RIGHT, TIMES, 2, -1.0), "beta is -1.0"),
        (lambda: train_policy(SUMMARIES, RIGHT, TIMES, 2, float("nan")), "beta is nan"),
        (lambda: train_policy(SUMMARIES, RIGHT, TIMES, 2, 1.0, epochs=0), "epochs is 0"),
        (lambda: train_policy(SUMMARIES, RIGHT, TIMES, 2, 1.0, seed=-1), "seed is -1"),
        (lambda: trained(betas=()), "betas is empty"),
        (lambda: trained(times=(2, 9)), "lacks the rule's checkpoint 9"),
        (
            lambda: train_seenn2(POOL.data, SHORT, TIMES, 1),
            "tuning: there are 80 inputs and scores of 70",
        ),
        (
            lambda: train_seenn2(TUNING.data, SWAPPED, TIMES, 1),
            "the labels of the inputs are not those of the scores",
        ),
        (lambda: train_seenn2(TUNING.data, TUNING.scores, TIMES, 0), "max_set_size is 0"),
        (
            lambda: PickedTimes(0.9, TIMES, 1, one_hot(picks(5, 1, 0)), None).evidence(
                0, POOL.scores.log_confidence[:, 0]
            ),
            "scores of 80 rows and picked times of 5",
        ),
        (
            lambda: measure_seenn2(
                TUNING.data, TUNING.scores, POOL.data, SHORT, SETTINGS, 1, PROTOCOL, no_progress
            ),
            "pool: there are 80 inputs and scores of 70",
        ),
    ],
)
def test_wrong_inputs_are_refused(call: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))
