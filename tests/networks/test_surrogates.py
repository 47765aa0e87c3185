"""Surrogate gradients are the derivatives of their smooth steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agreestop.kernels import SLOPES, Surrogate
from tests.networks.plain import gradients, refused

every_slope = pytest.mark.parametrize("name", SLOPES)
STEPS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "arctan": lambda v, k: 0.5 + torch.arctan(torch.pi * k * v / 2) / torch.pi,
    "fast-sigmoid": lambda v, k: (1 + k * v / (1 + k * v.abs())) / 2,
    "sigmoid": lambda v, k: torch.sigmoid(k * v),
    "triangle": lambda v, k: torch.where(
        v < 0, (1 + k * v).clamp(min=0) ** 2 / 2, 1 - (1 - k * v).clamp(min=0) ** 2 / 2
    ),
    "superspike": lambda v, k: v / (1 + k * v.abs()),
}


@every_slope
@pytest.mark.parametrize("gain", [None, 0.7, 5.0])
def test_the_slope_is_the_derivative_of_its_step(name: str, gain: float | None) -> None:
    surrogate = Surrogate(name, gain)
    v = torch.linspace(-2, 2, 41, dtype=torch.float64)[1::2] + 0.013
    v.requires_grad_()
    (slope,) = gradients(STEPS[name](v, surrogate.gain or 0).sum(), [v])
    torch.testing.assert_close(surrogate.slope(v.detach()), slope)


@every_slope
def test_the_default_slope_peaks_at_one(name: str) -> None:
    assert Surrogate(name).slope(torch.zeros(1)).item() == pytest.approx(1)


def test_a_wrong_name_or_gain_is_refused() -> None:
    refused(
        lambda: Surrogate("relu"),
        "choose one of arctan, fast-sigmoid, sigmoid, triangle, superspike",
    )
    refused(lambda: Surrogate("arctan", -1.0), "gain of the surrogate is -1.0: give a positive")
