"""Compiled loops against PyTorch's own operators, over random shapes, memory orders, extremes and
all weight types.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="networks need PyTorch")
pytest.importorskip("numba", reason="the loops need numba")

from torch import Tensor

from agreestop.engines import Dense, EventDriven
from agreestop.kernels import SLOPES, SRMParameters, SRMState, Surrogate
from agreestop.kernels.cpu.sparse_product import sparse_product
from agreestop.networks import Convolutional, FullyConnected, Neuron, SpikingNetwork, srm
from tests.engines.test_event_driven import exactly
from tests.networks.plain import generator, gradients

SIZES = st.sampled_from([1, 5, 127, 128, 129, 260])
MAGNITUDES = st.sampled_from([0.0, 1e-38, 1e-4, 1.0, 1e4, 1e30])
quick = settings(max_examples=25, deadline=None, derandomize=True)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


@exactly
@quick
@given(
    steps=st.integers(4, 9),
    members=st.integers(1, 3),
    batch=st.integers(1, 4),
    neurons=SIZES,
    order=st.permutations([1, 2, 3]),
    magnitude=MAGNITUDES,
    slope=st.sampled_from([name for name in SLOPES if name != "sigmoid"]),
    begun=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_the_loop_of_neurons_has_the_bits_of_their_steps_in_pytorch(
    steps: int,
    members: int,
    batch: int,
    neurons: int,
    order: list[int],
    magnitude: float,
    slope: str,
    begun: bool,
    seed: int,
) -> None:
    axes = (0, *order)  # the order in memory
    shaped = normal(steps, members, batch, neurons, seed=seed).permute(axes).contiguous()
    given_currents = shaped.permute([axes.index(axis) for axis in range(4)])
    a, b, r, threshold = (
        0.05 + 0.9 * torch.rand(members, 1, 1, generator=generator(seed + index))
        for index in range(4)
    )
    before = (
        [abs(normal(members, batch, neurons, seed=seed + index)) for index in range(3)]
        if begun
        else None
    )
    found = []
    for fused in (None, False):
        leaves = [
            value.clone().requires_grad_()
            for value in (given_currents * magnitude, *(before or ()))
        ]
        state = SRMState(*leaves[1:]) if begun else None
        spikes, after = srm(
            leaves[0], state, SRMParameters(a, b, r, threshold, surrogate=Surrogate(slope)), fused
        )
        to_spikes = normal(*spikes.shape, seed=seed + 9)
        loss = (spikes * to_spikes).sum() + sum(value.sum() for value in after)
        found.append(
            [spikes.detach(), *(value.detach() for value in after), *gradients(loss, leaves)]
        )
    for fast, slow in zip(*found, strict=True):
        assert torch.equal(fast.nan_to_num(7.0), slow.nan_to_num(7.0))


@quick
@given(
    members=st.integers(1, 3),
    rows=st.integers(1, 70),
    inputs=st.integers(1, 150),
    outputs=SIZES,
    shared=st.booleans(),
    binary=st.booleans(),
    rate=st.sampled_from([0.0, 0.02, 0.3]),
    magnitude=MAGNITUDES,
    seed=st.integers(0, 2**20),
)
def test_the_loop_of_products_is_the_product_of_pytorch(
    members: int,
    rows: int,
    inputs: int,
    outputs: int,
    shared: bool,
    binary: bool,
    rate: float,
    magnitude: float,
    seed: int,
) -> None:
    shape = (2, rows, inputs) if shared else (2, members, rows, inputs)
    x = (torch.rand(*shape, generator=generator(seed)) < rate).float()
    x = x if binary else x * normal(*shape, seed=seed + 1)
    weight = normal(members, inputs, outputs, seed=seed + 2) * magnitude
    found = sparse_product(x, weight, 1.0)
    assert found is not None
    wide = x.double() if not shared else x.double()[:, None]
    torch.testing.assert_close(
        found.double(), wide @ weight.double(), rtol=1e-5, atol=1e-5 * magnitude
    )


PRECISIONS = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "bfloat16" else [])
    for name in ("float32", "bfloat16", "int8")
]


@exactly
@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 3),
    hidden=st.sampled_from([1, 5, 16, 17, 65, 130]),
    classes=st.sampled_from([1, 3, 17]),
    channels=st.sampled_from([0, 1, 4, 17]),
    rows=st.integers(1, 3),
    steps=st.integers(1, 12),
    rate=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_every_weight_type_gives_the_spikes_of_the_dense_engine_where_it_rounds_nothing(
    precision: str,
    members: int,
    hidden: int,
    classes: int,
    channels: int,
    rows: int,
    steps: int,
    rate: float,
    seed: int,
) -> None:
    """Weights are whole 64ths up to 127, which each neuron has: so int8 and bfloat16 hold them, and
    sums are exact in any order.
    """
    shape, neuron = (2, 4, 6), Neuron(threshold=2.0)
    config = (
        Convolutional(
            shape,
            classes,
            members=members,
            channels=(channels,),
            hidden=(hidden,),
            neuron=neuron,
            real_input=False,
        )
        if channels
        else FullyConnected(shape, classes, members=members, hidden=(hidden,), neuron=neuron)
    )
    network, draws = SpikingNetwork(config, generator(seed)).eval(), generator(seed)
    with torch.no_grad():
        for layer in network.layers:
            weight = layer.synapses.weight
            weight.copy_(torch.randint(-127, 128, weight.shape, generator=draws))
            # one input of each neuron
            largest = weight[:, :1] if weight.ndim == 3 else weight[:, :, :1, :1, :1]
            largest.copy_(torch.where(largest < 0, -127.0, 127.0))
            weight.div_(64)
    inputs = np.random.default_rng(seed).random((rows, steps, *shape)) < rate
    expected = Dense(network).begin(inputs).advance(steps)
    found = EventDriven(network, precision).begin(inputs).advance(steps)
    assert np.array_equal(found, expected)
    assert expected.any() or rate < 1 or steps < 8 or hidden < 16 or classes < 17 or channels
