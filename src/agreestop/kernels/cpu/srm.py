"""The SRM recurrence of a whole chunk of steps on the CPU, forward and backward, in loops that
numba compiles.

    i_t = b i_{t-1} + x_t,           m_t = a m_{t-1} + i_t,    u_t = c m_t - θ r h_{t-1}
    z_t = 1 where u_t ≥ θ,           h_t = r h_{t-1} + z_t

    backward, from t = T down to 1, with q_t = g(u_t - θ) (η_t + ∂L/∂z_t) the gradient in u_t:
    μ_t += c q_t,    ∂L/∂x_t = ι_t + μ_t,    η_t -= θ q_t
    then   ι_{t-1} = b ∂L/∂x_t,    μ_{t-1} = a μ_t,    η_{t-1} = r η_t

    ∂L/∂a = Σ μ_t m_{t-1},   ∂L/∂b = Σ ∂L/∂x_t i_{t-1},   ∂L/∂r = Σ η_t h_{t-1}
    ∂L/∂θ = -Σ q_t (1 + r h_{t-1}),   ∂L/∂c = Σ q_t m_t

A tile of neurons of one member runs through all steps with its state in the first cache, so a
chunk reads each current once and writes each spike once. Only the currents are saved for the
backward pass: a tile is run forward again, with the same roundings and so the same spikes, and
then backward.

Promise: operations and their order are those of `srm` step by step. Each multiply-add is rounded
once, as in PyTorch's own kernels on processors that support it. Spikes, state, and gradients in
currents and state have the same bits. The exception is the sigmoid slope, whose exponential
differs. Gradients in the constants are summed within tiles, then over tiles in double precision. No
result depends on the number of threads.

The loops run over `LANES` elements, a compile-time constant, so the compiler can use whole vectors.
A tile with fewer neurons is padded with silent ones. Only `srm` calls this module.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreestop.common import parallel_for

from ..srm import Chunk, Constants, Kernels, Layout, SRMState, Surrogate, empty_like, run_kernels
from .event_neurons import integrate_srm
from .intrinsics import copy_range, fma, power_of_two, prefetch
from .numba_runtime import empty, jit, jit_inline, threads_for

LANES = 128  # neurons of a tile: eight cache lines per step
INCOMING, SYNAPSE, MEMBRANE, REFRACTORY, POTENTIAL, OUTGOING, SUMS = (
    row * LANES for row in range(7)
)
"""Rows of a tile's scratch memory; the last are five rows of sums.

In the backward pass the state rows hold the gradient in the state.
"""
SCRATCH = SUMS + 5 * LANES
AHEAD = 4  # steps between the prefetch of a row and its use
# the formula of `_slopes` for each surrogate
SLOPES = {"arctan": 0, "fast-sigmoid": 1, "superspike": 1, "triangle": 2, "sigmoid": 3}
LEAST_STEPS = 4  # steps from which the loops are faster than PyTorch
# neurons times steps: 0.1 ms of work, a few times longer than waking a thread
WORTH_A_THREAD = 1 << 17


# ---- the loops; an array of all steps has strides for time, outer axis and member, and its inner
# axis is dense; a state is dense


@jit_inline
def _load_state(state, begin, count, scratch):  # type: ignore[no-untyped-def]
    scratch[:] = 0
    if len(state[0]):
        copy_range(state[0], begin, scratch, SYNAPSE, count)
        copy_range(state[1], begin, scratch, MEMBRANE, count)
        copy_range(state[2], begin, scratch, REFRACTORY, count)


@jit_inline
def _store_state(scratch, state, begin, count):  # type: ignore[no-untyped-def]
    copy_range(scratch, SYNAPSE, state[0], begin, count)
    copy_range(scratch, MEMBRANE, state[1], begin, count)
    copy_range(scratch, REFRACTORY, state[2], begin, count)


@jit_inline
def _tile(tile, sizes):  # type: ignore[no-untyped-def]
    """Outer index, member, first neuron of the inner axis, its index in a state, and the
    number of neurons.
    """
    _, members, inner = sizes
    across = (inner + LANES - 1) // LANES
    begin = tile % across * LANES
    return (
        tile // across // members,
        tile // across % members,
        begin,
        tile // across * inner + begin,
        min(LANES, inner - begin),
    )


@jit_inline
def _advance(scratch, a, b, r, threshold, gain):  # type: ignore[no-untyped-def]
    """One step of a tile."""
    reset = -(threshold * r)
    for j in range(LANES):
        refractory = scratch[REFRACTORY + j]
        synapse, membrane, potential = integrate_srm(
            scratch[INCOMING + j],
            a,
            b,
            gain,
            reset,
            scratch[SYNAPSE + j],
            scratch[MEMBRANE + j],
            refractory,
        )
        spike = np.float32(1) if potential >= threshold else np.float32(0)
        scratch[SYNAPSE + j] = synapse
        scratch[MEMBRANE + j] = membrane
        scratch[REFRACTORY + j] = fma(refractory, r, spike)
        scratch[POTENTIAL + j] = potential
        scratch[OUTGOING + j] = spike


STEPS, STATE = "float32[::1], UniTuple(int64, 3)", "UniTuple(float32[::1], 3)"
"""An array of all steps with its strides of time, outer axis and member; a state, empty
where it is zero.
"""
# steps, members and neurons of the inner axis; a, b, r, θ and c for each member
SIZES, CONSTANTS = "UniTuple(int64, 3)", "float32[:, ::1]"


@jit(f"void(int64, int64, {SIZES}, {CONSTANTS}, {STEPS}, {STEPS}, {STATE}, {STATE}, float32[::1])")
def _forward(first, last, sizes, constants, currents, c_at, spikes, s_at, before, after, scratch):  # type: ignore[no-untyped-def]
    for tile in range(first, last):
        outer, member, begin, at, count = _tile(tile, sizes)
        a, b, r, threshold, gain = constants[member]
        _load_state(before, at, count, scratch)
        source = outer * c_at[1] + member * c_at[2] + begin
        target = outer * s_at[1] + member * s_at[2] + begin
        for t in range(sizes[0]):
            prefetch(currents, source + min(t + AHEAD, sizes[0] - 1) * c_at[0], LANES)
            prefetch(spikes, target + min(t + AHEAD, sizes[0] - 1) * s_at[0], LANES)
            copy_range(currents, source + t * c_at[0], scratch, INCOMING, count)
            _advance(scratch, a, b, r, threshold, gain)
            copy_range(scratch, OUTGOING, spikes, target + t * s_at[0], count)
        _store_state(scratch, after, at, count)


@jit_inline
def _exponential(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0 in vector instructions: 2^n e^f with |f| ≤ log(2)/2, and e^f by its series."""
    x = max(x, np.float32(-87))
    n = np.floor(fma(x, np.float32(1 / math.log(2)), np.float32(0.5)))
    f = fma(n, np.float32(-0.693359375), x)  # log(2) in two parts; the first is exact in few bits
    f = fma(n, np.float32(0.693359375 - math.log(2)), f)
    p = fma(np.float32(1 / 720), f, np.float32(1 / 120))
    p = fma(p, f, np.float32(1 / 24))
    p = fma(p, f, np.float32(1 / 6))
    p = fma(p, f, np.float32(1 / 2))
    p = fma(p, f, np.float32(1))
    return fma(p, f, np.float32(1)) * power_of_two(n)


@jit_inline
def _slopes(scratch, threshold, kind, inside, outside):  # type: ignore[no-untyped-def]
    """Write g(u - θ) of `kernels.srm` into OUTGOING; `inside` multiplies v and
    `outside` the result.
    """
    if kind == 0:
        for j in range(LANES):
            v = (scratch[POTENTIAL + j] - threshold) * inside
            scratch[OUTGOING + j] = np.float32(1) / (v * v + np.float32(1)) * outside
    elif kind == 1:
        for j in range(LANES):
            v = abs(scratch[POTENTIAL + j] - threshold) * inside + np.float32(1)
            scratch[OUTGOING + j] = np.float32(1) / (v * v) * outside
    elif kind == 2:
        for j in range(LANES):
            v = abs(scratch[POTENTIAL + j] - threshold) * -inside + np.float32(1)
            scratch[OUTGOING + j] = max(v, np.float32(0)) * outside
    else:
        for j in range(LANES):
            e = _exponential(-abs(scratch[POTENTIAL + j] - threshold) * inside)
            s = np.float32(1) / (np.float32(1) + e)
            scratch[OUTGOING + j] = e * s * s * outside


@jit_inline
def _retreat(scratch, slopes, begin, threshold, gain):  # type: ignore[no-untyped-def]
    """One step backward: gradients in the currents, in u (in POTENTIAL), and in the state
    before its decay.
    """
    for j in range(LANES):
        to_potential = slopes[begin + np.uint64(j)] * (
            scratch[REFRACTORY + j] + scratch[INCOMING + j]
        )
        to_membrane = fma(to_potential, gain, scratch[MEMBRANE + j])
        scratch[POTENTIAL + j] = to_potential
        scratch[MEMBRANE + j] = to_membrane
        scratch[REFRACTORY + j] = fma(to_potential, -threshold, scratch[REFRACTORY + j])
        scratch[OUTGOING + j] = scratch[SYNAPSE + j] + to_membrane


@jit_inline
def _add_up(scratch, states, begin, r):  # type: ignore[no-untyped-def]
    """Add this step to the gradients in the constants; `states` holds the state before the step,
    followed by the state after it.
    """
    for j in range(LANES):
        at = begin + np.uint64(j)
        synapse = states[at]
        membrane = states[at + np.uint64(LANES)]
        refractory = states[at + np.uint64(2 * LANES)]
        to_potential = scratch[POTENTIAL + j]
        scratch[SUMS + j] = fma(scratch[MEMBRANE + j], membrane, scratch[SUMS + j])
        scratch[SUMS + LANES + j] = fma(scratch[OUTGOING + j], synapse, scratch[SUMS + LANES + j])
        scratch[SUMS + 2 * LANES + j] = fma(
            scratch[REFRACTORY + j], refractory, scratch[SUMS + 2 * LANES + j]
        )
        scratch[SUMS + 3 * LANES + j] -= fma(to_potential * r, refractory, to_potential)
        scratch[SUMS + 4 * LANES + j] = fma(
            to_potential, states[at + np.uint64(4 * LANES)], scratch[SUMS + 4 * LANES + j]
        )


@jit_inline
def _decay(scratch, a, b, r):  # type: ignore[no-untyped-def]
    for j in range(LANES):
        scratch[SYNAPSE + j] = scratch[OUTGOING + j] * b
        scratch[MEMBRANE + j] *= a
        scratch[REFRACTORY + j] *= r


@jit(
    f"void(int64, int64, {SIZES}, {CONSTANTS}, int64, float32, float32, {STEPS}, {STATE}, {STEPS}, "
    f"{STATE}, {STEPS}, {STATE}, "
    "float64[:, ::1], float32[::1], float32[::1], float32[::1])"
)
def _backward(  # type: ignore[no-untyped-def]
    first, last, sizes, constants, kind, inside, outside, currents, c_at, before, to_spikes, g_at,
    to_after, to_currents, gc_at, to_before, sums, scratch, slopes, states,
):  # fmt: skip
    """If `sums` has a row for each tile, it receives five sums per tile, and `states` holds the
    states of all steps.
    """
    steps, learned = sizes[0], len(sums) > 0
    for tile in range(first, last):
        outer, member, begin, at, count = _tile(tile, sizes)
        a, b, r, threshold, gain = constants[member]
        _load_state(before, at, count, scratch)
        source = outer * c_at[1] + member * c_at[2] + begin
        for t in range(steps):
            prefetch(currents, source + min(t + AHEAD, steps - 1) * c_at[0], LANES)
            copy_range(currents, source + t * c_at[0], scratch, INCOMING, count)
            if learned:
                copy_range(scratch, SYNAPSE, states, t * 3 * LANES, 3 * LANES)
            _advance(scratch, a, b, r, threshold, gain)
            _slopes(scratch, threshold, kind, inside, outside)
            copy_range(scratch, OUTGOING, slopes, t * LANES, LANES)
        if learned:
            copy_range(scratch, SYNAPSE, states, steps * 3 * LANES, 3 * LANES)
        _load_state(to_after, at, count, scratch)
        source = outer * g_at[1] + member * g_at[2] + begin
        target = outer * gc_at[1] + member * gc_at[2] + begin
        for t in range(steps - 1, -1, -1):
            prefetch(to_spikes, source + max(t - AHEAD, 0) * g_at[0], LANES)
            prefetch(to_currents, target + max(t - AHEAD, 0) * gc_at[0], LANES)
            copy_range(to_spikes, source + t * g_at[0], scratch, INCOMING, count)
            _retreat(scratch, slopes, np.uint64(t * LANES), threshold, gain)
            if learned:
                _add_up(scratch, states, np.uint64(t * 3 * LANES), r)
            _decay(scratch, a, b, r)
            copy_range(scratch, OUTGOING, to_currents, target + t * gc_at[0], count)
        _store_state(scratch, to_before, at, count)
        if learned:
            for constant in range(5):
                total = 0.0
                for j in range(LANES):
                    total += scratch[SUMS + constant * LANES + j]
                sums[tile, constant] = total


# ---- the operator


def can_run(currents: Tensor, state: SRMState | None, constants: Constants) -> bool:
    """Whether the operator supports these: float32 on the CPU, constants with one number or
    shape (K, 1, ..., 1), and enough steps.
    """
    shape = (currents.shape[1], *(1,) * (currents.ndim - 2))
    return (
        len(currents) >= LEAST_STEPS
        and currents.numel() > 0
        and all(
            value.dtype == torch.float32 and value.device.type == "cpu"
            for value in (currents, *constants, *(state or ()))
        )
        and all(value.numel() == 1 or value.shape == shape for value in constants)
        and not torch.compiler.is_compiling()
    )


def fused_srm(
    currents: Tensor, state: SRMState | None, constants: Constants, surrogate: Surrogate
) -> tuple[Tensor, SRMState]:
    """The result of `srm` for currents (T, ...), the state before them, and a, b, r, θ and c.

    Needs `can_run`.
    """
    return run_kernels(KERNELS, surrogate, Chunk(currents, state, constants))


def _run_forward(chunk: Chunk, learned: bool) -> tuple[Tensor, SRMState, tuple[()]]:
    currents, layout = chunk.currents, Layout.of(chunk)
    spikes, after = empty_like(currents, allocate=empty), layout.empty_state(currents, empty)
    filled = layout.fitting(spikes, copy=False)
    threads, tiles = threads_for(currents.numel(), WORTH_A_THREAD), math.prod(_grid(layout))
    scratch = np.empty((threads, SCRATCH), dtype=np.float32)
    arguments = (
        *_steps(layout, currents),
        *_steps(layout, filled),
        _arrays(layout, chunk.before),
        _arrays(layout, after),
    )
    shared = (len(currents), *layout.sizes[1:]), _table(layout, chunk.constants), *arguments
    parallel_for(
        lambda thread, first, last: _forward(first, last, *shared, scratch[thread]), tiles, threads
    )
    return spikes if filled is spikes else spikes.copy_(filled), after, ()


def _run_backward(
    chunk: Chunk,
    saved: Sequence[Tensor],
    surrogate: Surrogate,
    to_spikes: Tensor,
    to_after: SRMState | None,
    learned: bool,
) -> tuple[Tensor, SRMState | None, Tensor | None]:
    currents, layout, steps = chunk.currents, Layout.of(chunk), len(chunk.currents)
    to_currents = empty_like(currents, allocate=empty)
    to_before = layout.empty_state(currents, empty)
    filled = layout.fitting(to_currents, copy=False)
    threads, tiles = threads_for(currents.numel(), WORTH_A_THREAD), math.prod(_grid(layout))
    sizes = (SCRATCH, steps * LANES, (steps + 1) * 3 * LANES if learned else 0)
    scratch, slopes, states = (np.empty((threads, size), dtype=np.float32) for size in sizes)
    sums = np.empty((tiles if learned else 0, 5))
    given = (
        *_steps(layout, currents),
        _arrays(layout, chunk.before),
        *_steps(layout, to_spikes),
        _arrays(layout, to_after),
    )
    made = *_steps(layout, filled), _arrays(layout, to_before), sums
    table, slope = _table(layout, chunk.constants), (SLOPES[surrogate.name], *surrogate.factors)
    shared = (steps, *layout.sizes[1:]), table, *slope, *given, *made
    parallel_for(
        lambda thread, first, last: _backward(
            first, last, *shared, scratch[thread], slopes[thread], states[thread]
        ),
        tiles,
        threads,
    )
    totals = torch.from_numpy(sums.reshape(*_grid(layout), 5).sum((0, 2)).T) if learned else None
    return (
        to_currents if filled is to_currents else to_currents.copy_(filled),
        to_before if chunk.before is not None else None,
        totals,
    )


KERNELS = Kernels(_run_forward, _run_backward)


# ---- tensors as the loops see them


def _grid(layout: Layout) -> tuple[int, int, int]:
    """Tiles along the outer axis, members, and tiles along the inner axes."""
    outer, members, inner = layout.sizes
    return outer, members, -(-inner // LANES)


def _steps(layout: Layout, values: Tensor) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
    """Memory of values (T, ...), and their strides of time, outer axis and member.

    Values with another layout are copied.
    """
    values = layout.fitting(values.detach())
    strides = layout.strides(values)
    assert strides is not None
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True)
    )
    return values.as_strided((span,), (1,)).numpy(), strides


def _arrays(layout: Layout, state: SRMState | None) -> tuple[NDArray[np.float32], ...]:
    """Memory of the three tensors of a state; empty for None, which means zeros."""
    tensors = layout.dense(state) or (torch.empty(0),) * 3
    return tuple(value.detach().as_strided((value.numel(),), (1,)).numpy() for value in tensors)


def _table(layout: Layout, constants: Constants) -> NDArray[np.float32]:
    """The constants, one row per member."""
    return torch.stack(
        [value.detach().reshape(-1).expand(layout.sizes[1]) for value in constants], dim=1
    ).numpy()
