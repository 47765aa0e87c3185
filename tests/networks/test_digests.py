"""The digest of the members: every way to change a weight changes it, and weights that are as
before are not hashed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need PyTorch")

import torch

import agreestop as ag
from agreestop.adapters import from_module
from agreestop.networks import digests


class Small(torch.nn.Module):
    """Weights of odd sizes and one that begins in the middle of its memory, a buffer, and a plain
    attribute.
    """

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 4)
        self.bias = torch.nn.Parameter(torch.randn(6)[1:5])
        self.register_buffer("mean", torch.zeros(3))
        self.threshold = 1.0

    def forward(self, x_t: Any, state: Any) -> Any:
        return self.linear(x_t.float() - self.mean) * self.threshold + self.bias, state


def step_of(name: str, **options: Any) -> Callable[[Small], None]:
    def step(module: Small) -> None:
        optimiser = getattr(torch.optim, name)(module.parameters(), lr=0.1, **options)
        module(torch.ones(1, 3), None)[0].sum().backward()
        optimiser.step()

    return step


def in_place(module: Small) -> None:
    with torch.no_grad():
        module.linear.weight.add_(1)


def loaded(module: Small) -> None:
    other = Small()
    torch.nn.init.zeros_(other.linear.bias)
    module.load_state_dict(other.state_dict())


def set_weight(module: Small) -> None:
    module.linear.weight = torch.nn.Parameter(module.linear.weight + 1)


def swap_rows(module: Small) -> None:
    module.linear.weight.data[:] = module.linear.weight.data.flip(0)


def set_data(module: Small) -> None:
    module.linear.weight.data = module.linear.weight.data + 1


EDITS: dict[str, Callable[[Small], Any]] = {
    "in place": in_place,
    "optimiser": step_of("SGD"),
    "fused optimiser": step_of("Adam", fused=True),
    "load_state_dict": loaded,
    "another parameter": set_weight,
    "data in place": lambda module: module.linear.weight.data.mul_(2),
    "data of one number": lambda module: module.bias.data[3:].add_(1e-6),
    "data swapped": swap_rows,
    "data of another sign": lambda module: module.linear.weight.data.neg_(),
    "other data": set_data,
    "NumPy": lambda module: np.negative(
        module.linear.bias.detach().numpy(), out=module.linear.bias.detach().numpy()
    ),
    "minus zero": lambda module: module.mean.neg_(),
    "dtype": lambda module: module.double(),
    "attribute": lambda module: setattr(module, "threshold", 2.0),
}


@pytest.mark.parametrize("edit", EDITS)
def test_every_change_of_a_member_changes_the_digest(edit: str) -> None:
    module = Small()
    engine = from_module([module])
    before = engine.digest
    assert engine.digest == digests.KnownDigest().of(engine.network) == before
    EDITS[edit](module)
    assert engine.digest == digests.KnownDigest().of(engine.network) != before


def test_version_counters_would_not_notice_every_change() -> None:
    """The control: why weights are compared, and not their version counters."""
    module = Small()
    before = module.linear.weight._version
    module.linear.weight.data.mul_(2)
    assert module.linear.weight._version == before


def test_weights_are_hashed_once_after_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    digest_of = digests.digest_of
    monkeypatch.setattr(digests, "digest_of", lambda *given: hashed.append(0) or digest_of(*given))  # type: ignore[func-returns-value]
    module = Small()
    engine = from_module([module])
    x = np.random.default_rng(0).normal(size=(40, 5, 3))
    for changes in (1, 2):
        rule = ag.AgreeStop(0.8, range(1, 6), 1).calibrate(engine.score(x, np.arange(40) % 4))
        for _ in range(3):
            engine.live(rule).push(frame=x[0, 0])
            engine.decide(rule, x + 1)
        assert len(hashed) == changes
        in_place(module)
