# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""A layer behind a convolution in training on the CPU: batch normalisation, SRM neurons
and 2×2 max-pool.

    x_t = γ (y_t - μ) / σ + β
    the SRM recurrence of `cpu.srm` on x_t,    max-pool of the spikes z_t

Forward, one pass over y_t finds μ and σ, and a second one does the rest. Backward, one pass runs
the neurons again, and back; it also sums what batch normalisation needs, and a last pass gives
∂L/∂y_t. Neither x_t nor the spikes before the max-pool reach memory. The max-pool hands a
gradient to the first neuron of a window that spiked, or to its first neuron if none did, as
PyTorch does. Channels are innermost: a tile is 16 channels of a window, whose state stays in
registers over all steps.

Promise: sums are taken over PARTS parts, and then over these, so no result depends on the number of
threads. Only `SpikingLayer` calls this module.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agreestop.common import parallel_parts

from ..srm import Norm, Surrogate
from . import intrinsics as simd
from .event_neurons import load_constants, step_srm
from .intrinsics import NARROW, address, get, prefetch, put
from .numba_runtime import empty, jit, jit_template, memory_of, threads_for

PARTS = 16
ROWS = 256  # positions that are summed in float32, before double precision
AHEAD = 6  # steps between the prefetch of a window and its use
WINDOW = 4 * NARROW
WORTH_A_THREAD = 1 << 17  # neurons times steps, as in `cpu.srm`


# ---- the loops


@jit("void(int64, int64, int64, float32[::1], float32[::1], float64[:, ::1], float32[::1])")
def _sum_positions(first, last, channels, y, centre, sums, scratch):
    """Add d = y - centre and d², over positions first … last, to the sums (2, channels)."""
    memory, kept = address(y), address(scratch)
    zero = simd.zero_sum(memory, NARROW)
    for channel in range(0, channels, NARROW):
        middle = simd.load_like(zero, address(centre), channel)
        for begin in range(first, last, ROWS):
            one, two = zero, zero
            for row in range(begin, min(begin + ROWS, last)):
                value = simd.subtract(
                    simd.load_like(zero, memory, row * channels + channel), middle
                )
                one, two = simd.add(one, value), simd.fma(value, value, two)
            simd.store(kept, 0, one)
            simd.store(kept, NARROW, two)
            for lane in range(NARROW):
                sums[0, channel + lane] += scratch[lane]
                sums[1, channel + lane] += scratch[NARROW + lane]


@jit("void(int64, int64, int64, float32[:, ::1], float32[::1], float32[::1])")
def _combine(first, last, channels, factors, y, to_x):
    """to_x = p to_x + q y + s in place, with p, q and s for each channel, for
    positions first … last.
    """
    memory, target, table = address(y), address(to_x), address(factors)
    like = simd.zero_sum(memory, NARROW)
    for channel in range(0, channels, NARROW):
        p, q = simd.load_like(like, table, channel), simd.load_like(like, table, channels + channel)
        s = simd.load_like(like, table, 2 * channels + channel)
        for row in range(first, last):
            at = row * channels + channel
            value = simd.fma(simd.load_like(like, memory, at), q, s)
            simd.store(target, at, simd.fma(simd.load_like(like, target, at), p, value))


@jit_template
def _corner(tile, sizes):
    """The index of a tile's first neuron in a step of y, its index in a step of the result, and
    its first channel.
    """
    width, channels = sizes[3], sizes[4]
    pieces = channels // NARROW
    channel, window = tile % pieces * NARROW, tile // pieces
    # the result's lines of all images lie below each other
    across, down = window % (width // 2), window // (width // 2)
    return (
        (2 * down * width + 2 * across) * channels + channel,
        window * channels + channel,
        channel,
    )


SIZES, ARRAY = "UniTuple(int64, 5)", "float32[::1]"


@jit(f"void(int64, int64, {SIZES}, float32[:, ::1], {ARRAY}, {ARRAY})")
def _forward(first, last, sizes, constants, y, spikes):
    """Tiles first … last. sizes: steps, images, height, width, channels."""
    steps, images, height, width, channels = sizes
    source, target, table = address(y), address(spikes), address(constants)
    zero = simd.zero_sum(source, NARROW)
    size = images * height * width * channels
    line = width * channels
    for tile in range(first, last):
        begin, to, channel = _corner(tile, sizes)
        loaded = load_constants(zero, table, channel, channels, 0)
        i1, m1, h1, i2, m2, h2 = zero, zero, zero, zero, zero, zero
        i3, m3, h3, i4, m4, h4 = zero, zero, zero, zero, zero, zero
        for t in range(steps):
            at, later = begin + t * size, begin + min(t + AHEAD, steps - 1) * size
            prefetch(y, later, NARROW)
            prefetch(y, later + channels, NARROW)
            prefetch(y, later + line, NARROW)
            prefetch(y, later + line + channels, NARROW)
            i1, m1, h1, one = step_srm(simd.load_like(zero, source, at), loaded, i1, m1, h1)
            i2, m2, h2, two = step_srm(
                simd.load_like(zero, source, at + channels), loaded, i2, m2, h2
            )
            i3, m3, h3, three = step_srm(
                simd.load_like(zero, source, at + line), loaded, i3, m3, h3
            )
            i4, m4, h4, four = step_srm(
                simd.load_like(zero, source, at + line + channels), loaded, i4, m4, h4
            )
            simd.store(
                target, to + t * (size // 4), simd.ones_where(np.uint16(one | two | three | four))
            )


@jit_template
def _again(current, loaded, inside, outside, one, i, m, h, slopes, at):
    """A step forward that keeps the slope of the arctan surrogate:
    outside / (1 + (inside · (u - θ))²).
    """
    threshold, gain, reset = loaded[5], loaded[6], loaded[7]
    i, m, later, fired = step_srm(current, loaded, i, m, h)
    v = simd.multiply(simd.subtract(simd.fma(h, reset, simd.multiply(m, gain)), threshold), inside)
    simd.store(slopes, at, simd.divide(outside, simd.fma(v, v, one)))
    return i, m, later, fired


@jit_template
def _back(
    zero, loaded, mean, arrived, receives, slopes, at, i, m, h, y, y_at, to_y, first_sum, second_sum
):
    """A step backward: the new gradients in the state, and the sums."""
    a, b, r, threshold, gain = loaded[2], loaded[3], loaded[4], loaded[5], loaded[6]
    to_u = simd.multiply(
        simd.load_like(zero, slopes, at), simd.add(h, simd.where(receives, arrived, zero))
    )
    m = simd.fma(to_u, gain, m)
    to_x = simd.add(i, m)
    h = simd.multiply(simd.subtract(h, simd.multiply(to_u, threshold)), r)
    simd.store(to_y, y_at, to_x)
    centred = simd.subtract(simd.load_like(zero, y, y_at), mean)
    return (
        simd.multiply(to_x, b), simd.multiply(m, a), h, simd.add(first_sum, to_x),
        simd.fma(to_x, centred, second_sum),
    )  # fmt: skip


@jit(
    f"void(int64, int64, {SIZES}, float32[:, ::1], {ARRAY}, {ARRAY}, {ARRAY}, float64[:, ::1], "
    f"{ARRAY}, uint16[::1])"
)
def _backward(first, last, sizes, constants, y, to_spikes, to_x, sums, scratch, bits):
    """Fill to_x, and add Σ to_x and Σ to_x (y - μ) to the sums (2, channels).

    The rows of constants are those of `load_constants`, then μ, and factors inside and outside of
    the surrogate and ones. scratch has room for the slopes of all steps, and bits for the spikes of
    a window that receive a gradient.
    """
    steps, images, height, width, channels = sizes
    source = address(y)
    given = address(to_spikes)
    target = address(to_x)
    table = address(constants)
    slopes = address(scratch)
    zero = simd.zero_sum(source, NARROW)
    size = images * height * width * channels
    line = width * channels
    kept = address(bits)
    for tile in range(first, last):
        begin, to, channel = _corner(tile, sizes)
        loaded = load_constants(zero, table, channel, channels, 0)
        mean = simd.load_like(zero, table, 8 * channels + channel)
        inside = simd.load_like(zero, table, 9 * channels + channel)
        outside = simd.load_like(zero, table, 10 * channels + channel)
        unit = simd.load_like(zero, table, 11 * channels + channel)
        i1, m1, h1, i2, m2, h2 = zero, zero, zero, zero, zero, zero
        i3, m3, h3, i4, m4, h4 = zero, zero, zero, zero, zero, zero
        for t in range(steps):
            at, keep, later = begin + t * size, t * WINDOW, begin + min(t + AHEAD, steps - 1) * size
            prefetch(y, later, NARROW)
            prefetch(y, later + channels, NARROW)
            prefetch(y, later + line, NARROW)
            prefetch(y, later + line + channels, NARROW)
            prefetch(to_spikes, to + t * (size // 4), NARROW)
            x = simd.load_like(zero, source, at)
            i1, m1, h1, one = _again(x, loaded, inside, outside, unit, i1, m1, h1, slopes, keep)
            x = simd.load_like(zero, source, at + channels)
            i2, m2, h2, two = _again(
                x, loaded, inside, outside, unit, i2, m2, h2, slopes, keep + NARROW
            )
            x = simd.load_like(zero, source, at + line)
            i3, m3, h3, three = _again(
                x, loaded, inside, outside, unit, i3, m3, h3, slopes, keep + 2 * NARROW
            )
            x = simd.load_like(zero, source, at + line + channels)
            i4, m4, h4, four = _again(
                x, loaded, inside, outside, unit, i4, m4, h4, slopes, keep + 3 * NARROW
            )
            put(kept, 4 * t, one | ~(one | two | three | four))
            put(kept, 4 * t + 1, two & ~one)
            put(kept, 4 * t + 2, three & ~(one | two))
            put(kept, 4 * t + 3, four & ~(one | two | three))
        i1, m1, h1, i2, m2, h2 = zero, zero, zero, zero, zero, zero
        i3, m3, h3, i4, m4, h4 = zero, zero, zero, zero, zero, zero
        s, q = zero, zero
        for back in range(steps):
            t = steps - 1 - back
            at, keep = begin + t * size, t * WINDOW
            arrived = simd.load_like(zero, given, to + t * (size // 4))
            i1, m1, h1, s, q = _back(
                zero, loaded, mean, arrived, get(kept, 4 * t), slopes, keep, i1, m1, h1, source, at,
                target, s, q
            )  # fmt: skip
            i2, m2, h2, s, q = _back(
                zero, loaded, mean, arrived, get(kept, 4 * t + 1), slopes, keep + NARROW, i2, m2,
                h2, source, at + channels, target, s, q
            )  # fmt: skip
            i3, m3, h3, s, q = _back(
                zero, loaded, mean, arrived, get(kept, 4 * t + 2), slopes, keep + 2 * NARROW, i3,
                m3, h3, source, at + line, target, s, q
            )  # fmt: skip
            i4, m4, h4, s, q = _back(
                zero, loaded, mean, arrived, get(kept, 4 * t + 3), slopes, keep + 3 * NARROW, i4,
                m4, h4, source, at + line + channels, target, s, q,
            )  # fmt: skip
        simd.store(slopes, 0, s)
        simd.store(slopes, NARROW, q)
        for lane in range(NARROW):
            sums[0, channel + lane] += scratch[lane]
            sums[1, channel + lane] += scratch[NARROW + lane]


# ---- the operator


def layer_fits(height: int, width: int, channels: int, surrogate: Surrogate) -> bool:
    """Whether the operator supports currents of this size and this surrogate."""
    return (
        height % 2 == 0 and width % 2 == 0 and channels % NARROW == 0 and surrogate.name == "arctan"
    )


def can_run(y: Tensor, surrogate: Surrogate) -> bool:
    """Whether the operator supports currents y (T, images, H, W, C) and this surrogate."""
    _, images, height, width, channels = y.shape
    fits = layer_fits(height, width, channels, surrogate) and images * height * width > 1
    return fits and y.dtype == torch.float32 and not torch.compiler.is_compiling()


def normalised_spikes(y: Tensor, table: Tensor, norm: Norm, surrogate: Surrogate) -> Tensor:
    """Spikes (T, images, H / 2, W / 2, C) of currents for which `can_run` holds; table: a, b, r,
    θ and c. Statistics move on.
    """
    return _NormalisedSpikes.apply(y, norm.weight, norm.bias, table, norm, surrogate)


class _NormalisedSpikes(torch.autograd.Function):
    """Saves the currents and the statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        table: Tensor,
        norm: Norm,
        surrogate: Surrogate,
    ) -> Tensor:
        steps, images, height, width, channels = y.shape
        positions, memory = y.numel() // channels, memory_of(y)
        centre, parts = memory[:channels].copy(), np.zeros((PARTS, 2, channels))

        def add_up(part: int, first: int, last: int) -> None:
            _sum_positions(
                first, last, channels, memory, centre, parts[part], np.empty(2 * NARROW, np.float32)
            )

        _in_parts(add_up, positions, y)
        first, second = parts.sum(0) / positions
        mean = torch.from_numpy(centre + first)
        var = torch.from_numpy(np.maximum(second - first**2, 0))
        inverse = 1 / torch.sqrt(var + norm.epsilon)
        for running, value in (
            (norm.running_mean, mean),
            (norm.running_var, var * (positions / (positions - 1))),
        ):
            running.mul_(1 - norm.momentum).add_(value, alpha=norm.momentum)
        scale = weight.detach() * inverse
        a, b, r, threshold, gain = table.tolist()
        numbers = (a, b, r, threshold, gain, -threshold * r)
        rows = [
            scale,
            bias.detach() - mean * scale,
            *map(torch.tensor, numbers),
            mean,
            *map(torch.tensor, (*surrogate.factors, 1.0)),
        ]
        constants = torch.stack([row.float().expand(channels) for row in rows]).numpy()
        spikes = empty((steps, images, height // 2, width // 2, channels))
        found = memory_of(spikes)
        _in_parts(
            lambda part, first, last: _forward(
                first, last, tuple(y.shape), constants, memory, found
            ),
            spikes[0].numel() // NARROW,
            y,
        )
        ctx.constants, ctx.inverse = constants, inverse
        ctx.save_for_backward(y, weight)
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_spikes: Tensor) -> tuple[Tensor | None, ...]:
        (y, weight), channels = ctx.saved_tensors, len(ctx.inverse)
        positions = y.numel() // channels
        to_y, parts, constants = empty(y.shape), np.zeros((PARTS, 2, channels)), ctx.constants
        memory, given, target = memory_of(y), memory_of(to_spikes.contiguous()), memory_of(to_y)

        def run(part: int, first: int, last: int) -> None:
            scratch = np.empty(len(y) * WINDOW + 2 * NARROW, np.float32)
            bits = np.empty(4 * len(y), np.uint16)
            _backward(
                first,
                last,
                tuple(y.shape),
                constants,
                memory,
                given,
                target,
                parts[part],
                scratch,
                bits,
            )

        _in_parts(run, to_spikes[0].numel() // NARROW, y)
        s, q = torch.from_numpy(parts.sum(0))
        q, mean = q * ctx.inverse, torch.from_numpy(constants[8]).double()
        p = weight.detach() * ctx.inverse
        slope = -p * q / positions * ctx.inverse
        factors = torch.stack([p, slope, -p * s / positions - slope * mean]).float().numpy()
        _in_parts(
            lambda part, first, last: _combine(first, last, channels, factors, memory, target),
            positions,
            y,
        )
        return to_y, q.float(), s.float(), None, None, None


def _in_parts(work: Callable[[int, int, int], None], items: int, y: Tensor) -> None:
    parallel_parts(
        lambda _, part, first, last: work(part, first, last),
        items,
        PARTS,
        threads_for(y.numel(), WORTH_A_THREAD),
    )
