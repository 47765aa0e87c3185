"""The Triton operator and the plain one give the same spikes, state and gradients, for every
layout, dtype, slope and number of steps.

On a GPU the kernels run there. Elsewhere they run in Triton's interpreter, which rounds after each
product; PyTorch may not. A potential within rounding of the threshold may then spike in one and not
in the other. The same holds for GPUs that round differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import agreestop.networks.neurons as srm_module
from agreestop.kernels import SLOPES, TRITON_AVAILABLE, Chunk, SRMParameters, SRMState, Surrogate
from agreestop.networks import SRM, FullyConnected, Neuron, SpikingNetwork, operations, srm
from tests.networks.plain import generator, gradients, plain_loop, refused

if not TRITON_AVAILABLE:
    pytest.skip(
        "there are no kernels for GPUs, or Triton is not installed: pip install triton, 300 MB to "
        "fetch",
        allow_module_level=True,
    )

from agreestop.kernels.gpu import srm as fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

LAYOUTS = {
    "plain": (0, 1, 2, 3),
    "linear": (1, 0, 2, 3),
    "convolution": (0, 2, 1, 3),
    "members last": (0, 2, 3, 1),
    "time last": (3, 2, 1, 0),
}
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def currents_of(
    *shape: int,
    order: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 3,
) -> Tensor:
    """Random currents with the given order of axes in memory."""
    values = (torch.randn(*shape, generator=generator(seed)) + 0.2).to(dtype).to(DEVICE)
    order = order or range(len(shape))
    return (
        values.permute(*order)
        .contiguous()
        .permute(*(order.index(axis) for axis in range(len(shape))))
    )


def constants(
    members: int, ndim: int = 4, learned: bool = False, name: str = "arctan"
) -> tuple[SRM, SRMParameters]:
    """A layer whose members differ in every constant."""
    module = SRM(members, Neuron(threshold=0.8, learned=learned, surrogate=Surrogate(name))).to(
        DEVICE
    )
    with torch.no_grad():
        for index, value in enumerate(module.state_dict().values()):
            value += torch.linspace(-0.2, 0.3, members).roll(index).to(DEVICE)
    return module, module.parameters_for(torch.empty((1,) * ndim))


def run(
    currents: Tensor,
    parameters: SRMParameters,
    leaves: Sequence[Tensor],
    fused: bool | None,
    state: bool = False,
) -> tuple[Tensor, SRMState, tuple[Tensor, ...]]:
    """Spikes, state, and the gradients in currents, state and leaves of one loss of spikes and
    state after.
    """
    x = currents.detach().requires_grad_()
    shape = currents.shape[1:]
    before = [
        torch.rand(shape, generator=generator(seed)).to(DEVICE).requires_grad_()
        for seed in range(3 * state)
    ]
    spikes, after = srm(x, SRMState(*before) if state else None, parameters, fused=fused)
    weights = torch.randn(currents.shape, generator=generator(11)).to(currents)
    loss = (spikes * weights).float().sum()
    if state:
        loss = loss + sum((value.square().sum() for value in after), torch.zeros(()).to(DEVICE))
    return (
        spikes.detach(),
        SRMState(*(v.detach() for v in after)),
        gradients(loss, [x, *before, *leaves]),
    )


def agree(
    currents: Tensor, learned: bool = False, name: str = "arctan", state: bool = False
) -> None:
    """Check that the fused operator gives the same as the plain one."""
    module, parameters = constants(currents.shape[1], currents.ndim, learned, name)
    leaves = list(module.parameters())
    spikes, after, found = run(currents, parameters, leaves, True, state)
    expected_spikes, expected_after, expected = run(
        currents, module.parameters_for(currents), leaves, False, state
    )
    assert spikes.dtype == expected_spikes.dtype and spikes.stride() == expected_spikes.stride()
    # with these seeds no potential is within rounding of θ
    torch.testing.assert_close(spikes, expected_spikes, rtol=0, atol=0)
    assert 0.02 < spikes.float().mean() < 0.98
    torch.testing.assert_close(tuple(after), tuple(expected_after), rtol=1e-5, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and other.abs().max() > 0
        bound = ROUNDING[one.dtype]
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * float(other.abs().max()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("learned", [False, True])
def test_every_layout_in_memory(layout: str, learned: bool) -> None:
    agree(currents_of(19, 2, 3, 5, order=LAYOUTS[layout]), learned, state=True)


@pytest.mark.parametrize("order", [(0, 2, 1, 3, 4, 5), (0, 2, 4, 5, 1, 3)])
def test_images_with_channels_first_and_last(order: tuple[int, ...]) -> None:
    agree(currents_of(6, 2, 2, 3, 2, 4, order=order), state=True)


@pytest.mark.parametrize("name", SLOPES)
def test_every_slope(name: str) -> None:
    agree(currents_of(9, 2, 3, 4, order=(1, 0, 2, 3)), True, name, state=True)


@pytest.mark.parametrize("steps", [1, 2, 16, 17, 32, 50])
def test_every_number_of_steps(steps: int) -> None:
    agree(currents_of(steps, 2, 3, 11, order=(1, 0, 2, 3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_currents_of_half_precision(dtype: torch.dtype) -> None:
    agree(currents_of(18, 2, 3, 5, order=(1, 0, 2, 3), dtype=dtype), True, state=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float16_spikes_equal_float32_spikes(layout: str) -> None:
    currents = currents_of(19, 2, 3, 5, order=LAYOUTS[layout])
    _, parameters = constants(2, 4)
    wide, after = srm(currents, None, parameters, fused=True)
    narrow, also_after = srm(currents, None, parameters, fused=True, float16_spikes=True)
    assert narrow.dtype == torch.float16 and narrow.stride() == wide.stride()
    assert torch.equal(narrow.float(), wide) and wide.any()
    assert all(torch.equal(one, other) for one, other in zip(after, also_after, strict=True))


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (5, 1), (3, 67)])
def test_odd_sizes_and_several_tiles(shape: tuple[int, int]) -> None:
    agree(currents_of(12, 3, *shape, order=(1, 0, 2, 3)), True)


def test_a_slice_of_a_larger_tensor_and_a_step_expanded_over_time() -> None:
    agree(currents_of(9, 2, 6, 5)[:, :, ::2, 1:])
    agree(currents_of(20, 2, 3, 5, order=(1, 0, 2, 3))[4:13])
    agree(currents_of(1, 2, 3, 5, order=(0, 2, 1, 3)).expand(9, -1, -1, -1))


def test_constants_that_the_members_share() -> None:
    module, shared = SRM(1, Neuron(learned=True)).to(DEVICE), currents_of(9, 3, 2, 5)
    results = [
        run(shared, module.parameters_for(shared), list(module.parameters()), choice)
        for choice in (True, False)
    ]
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_a_loss_of_the_state_only_and_no_second_derivative() -> None:
    _, parameters = constants(2)
    found: list[Tensor] = []
    for choice in (True, False):
        x = currents_of(5, 2, 1, 3).requires_grad_()
        _, after = srm(x, None, parameters, fused=choice)
        found += gradients(after.membrane.square().sum(), [x])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    x = currents_of(5, 2, 1, 3).requires_grad_()
    (first,) = torch.autograd.grad(
        srm(x, None, parameters, fused=True)[0].sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError):
        first.sum().backward()  # type: ignore[no-untyped-call]


def test_gradients_equal_those_of_autograd_in_float64() -> None:
    currents = currents_of(20, 2, 3, 5, order=(1, 0, 2, 3))
    module, parameters = constants(2, learned=True)
    _, _, found = run(currents, parameters, list(module.parameters()), True)
    wide = module.double()
    x = currents.double().requires_grad_()
    spikes, _ = plain_loop(
        x, SRMState(*(torch.zeros_like(x[0]) for _ in range(3))), wide.parameters_for(x)
    )
    weights = torch.randn(currents.shape, generator=generator(11)).to(x)
    for one, other in zip(
        found, gradients((spikes * weights).sum(), [x, *wide.parameters()]), strict=True
    ):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cuts", [(1,), (7, 8), (1, 2, 3, 15)])
def test_a_sequence_in_chunks_gives_the_same_as_the_whole(cuts: tuple[int, ...]) -> None:
    """The bits are equal: the rounding of a step does not depend on the segments."""
    currents = currents_of(20, 2, 3, 5, order=(1, 0, 2, 3))
    _, parameters = constants(2)
    with torch.no_grad():
        whole, end = srm(currents, None, parameters, fused=True)
        parts, state = [], None
        for chunk in torch.tensor_split(currents, cuts):
            spikes, state = srm(chunk, state, parameters, fused=True)
            parts.append(spikes)
    assert state is not None
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(state), tuple(end), rtol=0, atol=0)


def test_a_spike_differs_only_if_the_potential_is_within_rounding_of_the_threshold() -> None:
    """The threshold of each member is exactly its highest potential. The two operators may differ
    at that step, but not before.
    """
    currents = currents_of(20, 12, 1, 1).abs()
    _, p = constants(12)
    a, b = p.membrane_decay, p.synapse_decay
    silent = (
        currents,
        SRMState(*(torch.zeros_like(currents[0]) for _ in range(3))),
        a,
        b,
        p.refractory_decay,
        torch.full_like(a, 1e9),
    )
    potentials = torch.empty_like(currents)
    srm_module._advance(*silent, p.scale * (1 - a) * (1 - b), potentials)
    threshold, step = potentials.max(0)
    with torch.no_grad():
        one, other = (
            srm(currents, None, replace(p, threshold=threshold), fused=choice)[0]
            for choice in (True, False)
        )
    before = torch.arange(20, device=DEVICE).view(20, 1, 1, 1) < step
    assert threshold.min() > 0 and other.gather(0, step[None]).all()
    assert not one[before].any() and not other[before].any()
    same = one.gather(0, step[None]) == other.gather(0, step[None])
    torch.testing.assert_close(one[:, same[0]], other[:, same[0]], rtol=0, atol=0)


def test_bits_and_checkpoints_are_saved_only_with_gradients() -> None:
    currents = currents_of(40, 2, 3, 5)
    _, p = constants(2)
    a, b, r, threshold = p.membrane_decay, p.synapse_decay, p.refractory_decay, p.threshold
    held = (a, b, r, threshold, p.scale * (1 - a) * (1 - b))
    _, _, (bits, checkpoints) = fused.forward(Chunk(currents, None, held), 0)
    assert not bits.numel() and not checkpoints.numel()
    spikes, _, (bits, checkpoints) = fused.forward(
        Chunk(currents, None, held), fused.LONGEST_SEGMENT
    )
    assert bits.dtype == torch.int16 and bits.shape == (3, 30) and checkpoints.shape == (2, 3, 30)
    # 40 steps in 3 segments of at most 14
    unpacked = torch.stack([bits[t // 14] >> (t % 14) & 1 for t in range(40)])
    torch.testing.assert_close(unpacked.view(40, 2, 3, 5).float(), spikes)


def test_a_network_gives_the_same_with_both_operators() -> None:
    network = SpikingNetwork(
        FullyConnected((12,), 4, members=2, hidden=(9,)), generator(), deviation=0.5
    ).to(DEVICE)
    x = (torch.rand(10, 3, 12, generator=generator(1)) < 0.4).float().to(DEVICE)
    found: list[Any] = []
    for choice in (False, True):
        for layer in network.modules():
            if isinstance(layer, SRM):
                layer.fused = choice
        spikes, _ = network(x)
        found.append(
            (
                spikes.detach(),
                gradients(spikes.cumsum(0).square().sum(), list(network.parameters())),
            )
        )
    assert found[0][0].any()
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("default:Triton is not installed")
def test_the_choice_of_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    _, parameters = constants(2)
    currents = currents_of(3, 2, 1, 2)
    refused(
        lambda: srm(currents.double(), None, parameters, fused=True), "a float32 state is needed"
    )
    refused(lambda: srm(currents[:, :, :0], None, parameters, fused=True), "hold nothing")
    decay = torch.rand(2, 1, 2).to(DEVICE)
    wide = SRMParameters(decay, decay, decay, decay)
    refused(lambda: srm(currents, None, wide, fused=True), r"one number or \(2, 1, 1\) is needed")
    if DEVICE == "cuda":
        srm(currents, None, wide)
    monkeypatch.setattr(operations, "TRITON_AVAILABLE", False)
    refused(lambda: srm(currents, None, parameters, fused=True), "Triton is not installed")
    if DEVICE == "cuda":
        with pytest.warns(UserWarning, match="install triton"):
            srm(currents, None, parameters)
    monkeypatch.undo()
    monkeypatch.setattr(fused, "INTERPRETED", False)
    refused(lambda: srm(currents.cpu(), None, parameters, fused=True), "a GPU is needed")
