"""SEENN-II's policy network: what it reads, what it does not read, and its initial values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paper.step_policy import StepPolicy, summarise
from tests.networks.plain import generator, refused

TIMES = (2, 4, 8)
every_shape = pytest.mark.parametrize("shape", [(2, 8, 9), (1, 16, 16), (2, 3, 12), (700, 1, 1)])


def events(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) < 0.3


def policy_for(shape: tuple[int, int, int], steps_read: int = 2, seed: int = 0) -> StepPolicy:
    """A policy whose last layer is not 0, so that its picks depend on the input."""
    policy = StepPolicy(shape, TIMES, steps_read, generator(seed))
    with torch.no_grad():
        policy.layers[-1].weight.normal_(generator=generator(seed + 1))  # type: ignore[operator]
    return policy


@every_shape
def test_a_new_policy_gives_every_time_the_same_probability(shape: tuple[int, int, int]) -> None:
    logits = StepPolicy(shape, TIMES, 2, generator())(torch.rand(5, *shape, generator=generator()))
    assert torch.equal(logits, torch.zeros(5, 3))


@every_shape
def test_later_events_change_nothing(shape: tuple[int, int, int]) -> None:
    policy, inputs = policy_for(shape), events(40, 8, *shape)
    policy.standardise(torch.from_numpy(summarise(inputs, 2)))
    picked = policy.pick(inputs)
    assert len(np.unique(picked)) > 1
    changed = inputs.copy()
    changed[:, 2:] = ~changed[:, 2:]
    np.testing.assert_array_equal(policy.pick(changed), picked)
    np.testing.assert_array_equal(policy.pick(inputs[:, :2]), picked)
    assert (policy.pick(~inputs) != picked).any()


def test_a_summary_is_the_sum_of_the_first_steps() -> None:
    inputs = events(4, 6, 2, 3, 3)
    np.testing.assert_array_equal(
        summarise(inputs, 4), inputs[:, :4].astype(np.float32).sum(axis=1)
    )
    counts = np.full((1, 3, 1, 2, 2), 200, dtype=np.uint8)
    assert (summarise(counts, 3) == 600).all()


@every_shape
def test_the_same_generator_gives_the_same_policy_and_the_global_one_is_left_alone(
    shape: tuple[int, int, int],
) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (policy_for(shape, seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_units_of_the_inputs_do_not_matter_once_standardised() -> None:
    x = torch.rand(20, 2, 8, 8, generator=generator())
    policy = policy_for((2, 8, 8))
    policy.standardise(x)
    logits = policy(x)
    policy.standardise(255 * x)
    torch.testing.assert_close(policy(255 * x), logits)


def test_a_constant_channel_gives_finite_logits() -> None:
    x = torch.zeros(4, 2, 8, 8)
    policy = policy_for((2, 8, 8))
    policy.standardise(x)
    assert bool(policy(x).isfinite().all())


def test_a_batch_is_picked_for_as_single_inputs_are() -> None:
    policy, inputs = policy_for((1, 2, 2)), events(600, 2, 1, 2, 2)
    np.testing.assert_array_equal(
        policy.pick(inputs), [policy.pick(one[None])[0] for one in inputs]
    )
    assert policy.pick(inputs[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: StepPolicy((2, 8), TIMES, 2, generator()), r"shape is \(2, 8\)"),  # type: ignore[arg-type]
        (lambda: StepPolicy((2, 0, 8), TIMES, 2, generator()), "none of them 0"),
        (lambda: StepPolicy((2, 8, 8), (4, 2), 2, generator()), "checkpoints must increase"),
        (lambda: StepPolicy((2, 8, 8), TIMES, 0, generator()), "steps_read is 0"),
        (lambda: StepPolicy((2, 8, 8), TIMES, 1.5, generator()), "steps_read is 1.5"),  # type: ignore[arg-type]
        (
            lambda: StepPolicy((2, 8, 8), TIMES, 3, generator()),
            "times begins at 2, but the policy reads 3 steps",
        ),
        (
            lambda: policy_for((2, 8, 8))(torch.zeros(1, 1, 8, 8)),
            r"shape \(1, 1, 8, 8\): \(n, 2, 8, 8\) is needed",
        ),
        (lambda: policy_for((2, 8, 8)).pick(events(3, 1, 2, 8, 8)), "with at least 2 steps"),
        (lambda: policy_for((2, 8, 8)).pick(events(3, 4, 8, 8)), r"\(n, steps, channels, H, W\)"),
        (lambda: policy_for((2, 8, 8)).pick(events(3, 4, 1, 8, 8)), r"\(n, 2, 8, 8\) is needed"),
    ],
)
def test_wrong_inputs_are_refused(call: Any, match: str) -> None:
    refused(call, match)
