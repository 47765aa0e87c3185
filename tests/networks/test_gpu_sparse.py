"""A layer that multiplies only the inputs that spike gives the spikes and states of the plain
product and recurrence, bit for bit.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from agreestop.kernels import TRITON_AVAILABLE, SRMState
from agreestop.kernels.mixed_product import EXACT, SHIFT, FixedPoint, fixed_point
from agreestop.networks import SRM, Neuron, srm
from tests.networks.plain import generator

if not TRITON_AVAILABLE:
    pytest.skip(
        "there are no kernels for GPUs, or Triton is not installed: pip install triton, 300 MB to "
        "fetch",
        allow_module_level=True,
    )

from agreestop.kernels.gpu.sparse import SparseLayer, spiking_layers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEMBERS, INPUTS = 2, 150


def layers(*sizes: int) -> list[tuple[FixedPoint, SRM]]:
    """Members whose weights differ in size, and whose neurons differ in every constant."""
    made = []
    for inputs, neurons in pairwise((INPUTS, *sizes)):
        weight = (
            torch.randn(MEMBERS, inputs, neurons, generator=generator(1))
            * torch.tensor([0.4, 0.2])[:, None, None]
        )
        srms = SRM(MEMBERS, Neuron(threshold=0.8))
        for index, value in enumerate(srms.state_dict().values()):
            value += torch.linspace(-0.2, 0.3, MEMBERS).roll(index)
        fixed = fixed_point(weight.to(DEVICE))
        assert fixed is not None
        made.append((fixed, srms.to(DEVICE)))
    return made


def sparse(made: list[tuple[FixedPoint, SRM]]) -> list[SparseLayer]:
    return [
        SparseLayer.of(fixed, neurons.parameters_for(torch.empty(1, 1, 1, 1)).constants)
        for fixed, neurons in made
    ]


def spikes_in(steps: int, rows: int, seed: int = 2) -> Tensor:
    """Each input spikes in few rows or none, so the lists of tiles differ; one row never spikes."""
    rates = 0.5 * (torch.rand(rows, INPUTS, generator=generator(seed)) < 0.3)
    rates[1:2] = 0
    return (
        (torch.rand(steps, rows, INPUTS, generator=generator(seed + 1)) < rates).half().to(DEVICE)
    )


def expected(
    x: Tensor, made: list[tuple[FixedPoint, SRM]], states: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """From sums in float64, rounded once."""
    spikes, afters = x[:, None].expand(-1, MEMBERS, -1, -1), []
    for (fixed, neurons), state in zip(made, states, strict=True):
        weight = fixed.parts[:, 0].double() + fixed.parts[:, 1].double() * 2.0**-SHIFT
        currents = (
            torch.einsum("skri,kin->skrn", spikes.double(), weight).float() * fixed.units[:, None]
        )
        spikes, after = srm(
            currents, SRMState(*state), neurons.parameters_for(currents), fused=True
        )
        afters.append(torch.stack(list(after)))
    return spikes, afters


@pytest.mark.parametrize(
    ("steps", "rows", "sizes"),
    [
        pytest.param(16, 8, (140,), marks=pytest.mark.slow),
        (20, 11, (140, 5)),
        (1, 1, (20, 7)),
        pytest.param(16, 9, (20, 130, 3), marks=pytest.mark.slow),
    ],
)
def test_the_layers_equal_the_plain_ones(steps: int, rows: int, sizes: tuple[int, ...]) -> None:
    made, x = layers(*sizes), spikes_in(steps, rows)
    states = [
        torch.rand(3, MEMBERS, rows, neurons, generator=generator(5)).to(DEVICE)
        for neurons in sizes
    ]
    begins = torch.tensor([-1, 3, 0][:rows] + [-1] * (rows - 3), device=DEVICE)
    spikes, afters = expected(
        x, made, [torch.where((begins >= 0)[:, None], 0, state) for state in states]
    )
    found = spiking_layers(x, sparse(made), states, begins)
    assert found.dtype == torch.bool and (steps == 1 or 0.02 < float(found.float().mean()) < 0.9)
    assert torch.equal(found.float(), spikes)
    assert all(torch.equal(state, after) for state, after in zip(states, afters, strict=True))


def test_a_row_does_not_depend_on_the_others() -> None:
    made, x = sparse(layers(140)), spikes_in(16, 8)
    begins = torch.zeros(8, dtype=torch.int64, device=DEVICE)
    together = spiking_layers(x, made, [torch.empty(3, MEMBERS, 8, 140, device=DEVICE)], begins)
    alone = spiking_layers(
        x[:, 5:6].contiguous(), made, [torch.empty(3, MEMBERS, 1, 140, device=DEVICE)], begins[:1]
    )
    assert torch.equal(alone[:, :, 0], together[:, :, 5])


def test_weights_in_fixed_point_hold_22_bits_of_a_neurons_largest() -> None:
    weight = (
        torch.randn(3, 40, 7, generator=generator(6))
        * torch.tensor([1e-30, 1.0, 1e9])[:, None, None]
    )
    weight[1, 0, 0] = 1e6  # the other neurons keep their precision
    fixed = fixed_point(weight)
    assert fixed is not None
    held = (fixed.parts[:, 0].double() + fixed.parts[:, 1].double() * 2.0**-SHIFT) * fixed.units[
        :, None
    ].double()
    largest = weight.abs().amax(1, keepdim=True).double()
    assert bool(((held - weight.double()).abs() <= largest * 2.0**-21).all())
    assert float(fixed.parts.abs().max()) <= 1024 and torch.equal(fixed.parts, fixed.parts.round())
    zeros = fixed_point(torch.zeros(1, 4, 2))
    assert zeros is not None and not zeros.parts.any() and bool(zeros.units.isfinite().all())


def test_weights_without_exact_sums_have_no_fixed_point() -> None:
    weight = torch.ones(1, EXACT // 1024 + 1, 1)
    assert fixed_point(weight * 0.9999) is None
    assert fixed_point(weight[:, :-1] * 0.9999) is not None
    weight = torch.ones(1, 4, 2)
    weight[0, 0, 0] = float("nan")
    assert fixed_point(weight) is None
    weight[0, 0, 0] = float("inf")
    assert fixed_point(weight) is None
