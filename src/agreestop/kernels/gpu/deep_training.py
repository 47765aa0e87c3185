# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""A layer behind a convolution in training on a GPU: batch normalisation, shortcut, SRM neurons and
2 × 2 max-pool.

    x_t = γ (y_t - μ) / σ + β (+ shortcut)
    the SRM recurrence of `gpu.srm` on x_t,    max-pool of the spikes z_t

Forward, one pass over y_t finds μ and σ, and the kernel of `gpu.deep` does the rest. Backward, one
kernel runs the neurons again from their spike bits, and back. It also sums what batch normalisation
needs for each channel, and a last pass gives ∂L/∂y_t. Neither x_t nor the spikes before the
max-pool reach memory. The max-pool hands a gradient to the first neuron of a window that spiked, or
to its first neuron if none did, as PyTorch does. Bytes of one neuron and step with s bytes for a
current, forward and backward, without those of the convolutions: 2 s + s / 4 and 6 s behind a pool,
3 s and 6 s without one, and 2 s more with a shortcut. Separate passes take 17 s.

Sums are taken in a fixed order: the same input always gives the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..srm import Norm, Surrogate
from .batchnorm import gradients, statistics
from .deep import Affine, saved_neurons
from .runtime import on_device_of
from .triton_kernels import _slope, step_srm

LONGEST_SEGMENT, SHORTEST_SEGMENT = 16, 4  # steps whose spike bits share a word
SHARES = 1024  # programs, a power of two, as in `gpu.batchnorm`
NEURONS, WARPS = 512, 4  # neurons that a program takes at a time


@triton.jit
def _backward_kernel(
    to_spikes, to_currents, sums, currents, shortcut, bits, checkpoints, constants, numbers,
    inside_slope, outside_slope, outputs, size, segments, currents_stride, shortcut_stride,
    positions, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    SLOPE: tl.constexpr, SEGMENT: tl.constexpr, POOL: tl.constexpr, HELD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """HELD: the currents are those of one image, and receive the sum of the
    gradients of all steps.
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = column < channels
    mean = tl.load(numbers + column, mask=inside, other=0.0)
    factor = tl.load(numbers + 2 * channels + column, mask=inside, other=0.0)
    offset = tl.load(numbers + 3 * channels + column, mask=inside, other=0.0)
    a, b, r = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2)
    threshold, gain = tl.load(constants + 3), tl.load(constants + 4)
    reset = -(threshold * r)
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    first_sum, second_sum = zero, zero
    for start in range(tl.program_id(0) * ROWS, positions, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        exists = (row < positions) & inside
        index = row * channels + column
        seen, window = exists, index
        down, right = row // width % height, row % width
        if POOL == 2:  # the last row and column of an odd size are in no window
            seen = exists & (down < height // 2 * 2) & (right < width // 2 * 2)
            window = (
                (row // (width * height) * (height // 2) + down // 2) * (width // 2) + right // 2
            ) * channels + column
        to_i, to_m, to_h, total = zero, zero, zero, zero
        for back in range(segments):
            segment = tl.cast(segments - 1 - back, tl.int64)
            loaded: tl.tuple = ()
            added: tl.tuple = ()
            arrived: tl.tuple = ()
            for step in tl.static_range(SEGMENT):
                at = segment * SEGMENT + step
                loaded = loaded + (  # noqa: RUF005
                    tl.load(currents + at * currents_stride + index, mask=seen, other=0.0),
                )
                arrived = arrived + (  # noqa: RUF005
                    tl.load(to_spikes + at * outputs + window, mask=seen, other=0.0),
                )
                if shortcut is not None:
                    added = added + (  # noqa: RUF005
                        tl.load(shortcut + at * shortcut_stride + index, mask=seen, other=0.0),
                    )
            word = tl.load(bits + segment * size + index, mask=seen, other=0).to(tl.int32)
            receives = word
            if POOL == 2:
                part = down % 2 * 2 + right % 2
                corner = bits + segment * size + (index - (down % 2 * width + right % 2) * channels)
                one = tl.load(corner, mask=seen, other=0).to(tl.int32)
                two = tl.load(corner + channels, mask=seen, other=0).to(tl.int32)
                three = tl.load(corner + width * channels, mask=seen, other=0).to(tl.int32)
                four = tl.load(corner + (width + 1) * channels, mask=seen, other=0).to(tl.int32)
                before = (
                    tl.where(part > 0, one, 0)
                    | tl.where(part > 1, two, 0)
                    | tl.where(part > 2, three, 0)
                )
                receives = (word & ~before) | tl.where(part == 0, ~(one | two | three | four), 0)
            state = checkpoints + (segment - 1) * 3 * size + index
            earlier = seen & (tl.full((ROWS, COLUMNS), 0, tl.int32) + (segments - 1 - back) > 0)
            i = tl.load(state, mask=earlier, other=0.0)
            m = tl.load(state + size, mask=earlier, other=0.0)
            h = tl.load(state + 2 * tl.cast(size, tl.int64), mask=earlier, other=0.0)
            slopes: tl.tuple = ()
            for step in tl.static_range(SEGMENT):
                x = tl.fma(loaded[step].to(tl.float32), factor, offset)
                if shortcut is not None:
                    x += added[step].to(tl.float32)
                i, m, u = step_srm(x, i, m, h, a, b, reset, gain)
                slopes = slopes + (  # noqa: RUF005
                    _slope(u - threshold, inside_slope, outside_slope, SLOPE),
                )
                h = tl.fma(h, r, ((word >> step) & 1).to(tl.float32))
            for step in tl.static_range(SEGMENT - 1, -1, -1):
                came = arrived[step].to(tl.float32)
                if POOL == 2:
                    came = tl.where(((receives >> step) & 1) > 0, came, 0.0)
                to_u = slopes[step] * (to_h + came)
                new_m = tl.fma(to_u, gain, to_m)
                to_x = to_i + new_m
                to_i, to_m, to_h = to_x * b, new_m * a, tl.fma(to_u, -threshold, to_h) * r
                if HELD:
                    total += to_x
                else:
                    target = to_currents + (segment * SEGMENT + step) * size + index
                    tl.store(target, to_x.to(to_currents.dtype.element_ty), mask=exists)
                    first_sum += to_x
                    second_sum = tl.fma(to_x, loaded[step].to(tl.float32) - mean, second_sum)
        if HELD:
            tl.store(to_currents + index, total.to(to_currents.dtype.element_ty), mask=exists)
            first_sum += total
            value = tl.load(currents + index, mask=exists, other=0.0).to(tl.float32)
            second_sum = tl.fma(total, value - mean, second_sum)
    second_sum *= tl.load(numbers + channels + column, mask=inside, other=0.0)
    result = sums + tl.program_id(0) * 2 * channels + column
    tl.store(result, tl.sum(first_sum, 0)[None, :], mask=inside)
    tl.store(result + channels, tl.sum(second_sum, 0)[None, :], mask=inside)


class _NormalisedSpikes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        currents: Tensor,
        shortcut: Tensor | None,
        steps: int,
        constants: Tensor,
        pool: int,
        surrogate: Surrogate,
        *norm: Any,
    ) -> Tensor:
        numbers = statistics(currents.flatten(0, 3), Norm(*norm))
        affine = Affine(numbers[2:3], numbers[3:4])
        spikes, bits, checkpoints = saved_neurons(
            currents, steps, constants, affine, shortcut, pool, segment_of(steps)
        )
        ctx.save_for_backward(currents, shortcut, constants, numbers, bits, checkpoints)
        ctx.pool, ctx.surrogate = pool, surrogate
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_spikes: Tensor) -> tuple[Tensor | None, ...]:
        currents, shortcut, constants, numbers, bits, checkpoints = ctx.saved_tensors
        steps, to_spikes = len(to_spikes), to_spikes.contiguous()
        positions = currents[0, ..., 0].numel()
        channels = currents.shape[-1]
        held = len(currents) < steps
        columns = min(64, triton.next_power_of_2(channels))
        rows = max(1, NEURONS // columns)
        blocks = triton.cdiv(channels, columns)
        shares = min(
            max(1, SHARES // triton.next_power_of_2(blocks)),
            triton.next_power_of_2(triton.cdiv(positions, rows)),
        )
        to_currents = torch.empty_like(currents)
        sums = torch.empty((shares, 2, channels), dtype=torch.float32, device=currents.device)
        with on_device_of(currents):
            _backward_kernel[(shares, blocks)](
                to_spikes, to_currents, sums, currents, shortcut, bits, checkpoints, constants,
                numbers, *ctx.surrogate.factors, to_spikes[0].numel(), currents[0].numel(),
                len(bits), 0 if held else currents.stride(0),
                0 if shortcut is None else shortcut.stride(0), positions, *currents.shape[2:],
                SLOPE=ctx.surrogate.name, SEGMENT=steps // len(bits), POOL=ctx.pool, HELD=held,
                ROWS=rows, COLUMNS=columns, num_warps=WARPS, enable_fp_fusion=True,
            )  # fmt: skip
        to_y, to_weight, to_bias = gradients(
            currents.flatten(0, 3), to_currents.flatten(0, 3), sums, numbers
        )
        return (
            to_y.view(currents.shape),
            None if shortcut is None else to_currents,
            *(None,) * 4,
            to_weight,
            to_bias,
            *(None,) * 4,
        )


def segment_of(steps: int) -> int:
    """The largest number of steps of a segment that divides all steps."""
    return next(
        length for length in range(min(steps, LONGEST_SEGMENT), 0, -1) if steps % length == 0
    )


def can_run(currents: Tensor, shortcut: Tensor | None, steps: int) -> bool:
    """Whether these are currents (T or 1, rows, H, W, C), with a shortcut of the same shape,
    whose steps divide into long segments.
    """
    fits = (
        currents.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and currents[..., 0].numel() > 1
    )
    fits = fits and (
        shortcut is None or (shortcut.shape == currents.shape and len(currents) == steps)
    )
    return (
        fits
        and (steps <= LONGEST_SEGMENT or segment_of(steps) >= SHORTEST_SEGMENT)
        and currents[0].numel() < 2**31
    )


def normalised_spikes(
    currents: Tensor,
    shortcut: Tensor | None,
    steps: int,
    constants: Tensor,
    norm: Norm,
    surrogate: Surrogate,
    pool: int,
) -> Tensor:
    """Spikes (steps, rows, H / pool, W / pool, C) of currents for which `can_run` holds;
    constants (5,) as in `deep.neurons`.
    """
    return _NormalisedSpikes.apply(currents, shortcut, steps, constants, pool, surrogate, *norm)
