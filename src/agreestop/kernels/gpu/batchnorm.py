# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Batch normalisation in training, for images whose channels are innermost in memory, in passes at
the speed of memory.

    y = γ (x - μ) / σ + β,    μ and σ² over all N positions of a channel
    with s = Σ ∂L/∂y and q = Σ ∂L/∂y (x - μ)/σ:
    ∂L/∂x = γ/σ (∂L/∂y - s/N - q/N (x - μ)/σ),    ∂L/∂γ = q,    ∂L/∂β = s

Forward reads x twice, backward reads x and ∂L/∂y twice. Sums are taken in float32, around the
channel's first value, so that a mean far from zero costs no digits. Each program sums a share
of the positions and one kernel adds the shares, in a fixed order: the same input always gives
the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..srm import Norm
from .runtime import on_device_of

# programs of a sum, a power of two: the blocks of channels share them, and those of a block share
# its positions
SHARES = 512
VALUES, WARPS = 4096, 8  # values that a program takes at a time


@triton.jit
def _sums_kernel(
    x, g, centre, factor, sums, positions, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Two sums for each channel and share. g None: of d = x - centre and of d²; else of g and of
    g · d · factor.
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = column < channels
    middle = tl.load(centre + column, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    start, stride = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    for row in range(start, positions, stride):
        at = row + tl.arange(0, ROWS)[:, None]
        exists = (at < positions) & inside
        index = at.to(tl.int64) * channels + column
        value = tl.load(x + index, mask=exists, other=0.0).to(tl.float32)
        if g is None:
            value = tl.where(exists, value - middle, 0.0)
            first += value
            second = tl.fma(value, value, second)
        else:
            arrived = tl.load(g + index, mask=exists, other=0.0).to(tl.float32)
            first += arrived
            second = tl.fma(arrived, value - middle, second)
    if g is not None:
        second *= tl.load(factor + column, mask=inside, other=0.0)
    target = sums + tl.program_id(0) * 2 * channels + column
    tl.store(target, tl.sum(first, 0)[None, :], mask=inside)
    tl.store(target + channels, tl.sum(second, 0)[None, :], mask=inside)


@triton.jit
def _statistics_kernel(
    sums, centre, weight, bias, running_mean, running_var, numbers, momentum, epsilon, positions,
    channels, SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """numbers (4, channels): mean, 1/σ, and scale and shift of the transform.

    The running statistics move on.
    """
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    share = tl.arange(0, SHARES)[:, None]
    source = sums + share * 2 * channels + channel[None, :]
    first = tl.sum(tl.load(source, mask=inside[None, :], other=0.0), 0) / positions
    second = tl.sum(tl.load(source + channels, mask=inside[None, :], other=0.0), 0) / positions
    var = tl.maximum(second - first * first, 0.0)
    mean = tl.load(centre + channel, mask=inside, other=0.0).to(tl.float32) + first
    inverse = tl.rsqrt(var + epsilon)
    scale = tl.load(weight + channel, mask=inside, other=0.0) * inverse
    tl.store(numbers + channel, mean, mask=inside)
    tl.store(numbers + channels + channel, inverse, mask=inside)
    tl.store(numbers + 2 * channels + channel, scale, mask=inside)
    tl.store(
        numbers + 3 * channels + channel,
        tl.load(bias + channel, mask=inside, other=0.0) - mean * scale,
        mask=inside,
    )
    old_mean = tl.load(running_mean + channel, mask=inside, other=0.0)
    old_var = tl.load(running_var + channel, mask=inside, other=0.0)
    unbiased = var * (positions / tl.maximum(positions - 1.0, 1.0))
    tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), mask=inside)
    tl.store(running_var + channel, old_var + momentum * (unbiased - old_var), mask=inside)


@triton.jit
def _gradients_kernel(
    sums, numbers, weights, factors, positions, channels, SHARES: tl.constexpr, BLOCK: tl.constexpr
):
    """weights (2, channels): ∂L/∂γ and ∂L/∂β. factors (3, channels):
    ∂L/∂x = factors · (∂L/∂y, x, 1).
    """
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    source = sums + tl.arange(0, SHARES)[:, None] * 2 * channels + channel[None, :]
    s = tl.sum(tl.load(source, mask=inside[None, :], other=0.0), 0)
    q = tl.sum(tl.load(source + channels, mask=inside[None, :], other=0.0), 0)
    mean = tl.load(numbers + channel, mask=inside, other=0.0)
    inverse = tl.load(numbers + channels + channel, mask=inside, other=0.0)
    scale = tl.load(numbers + 2 * channels + channel, mask=inside, other=0.0)
    slope = -scale * inverse * q / positions
    tl.store(weights + channel, q, mask=inside)
    tl.store(weights + channels + channel, s, mask=inside)
    tl.store(factors + channel, scale, mask=inside)
    tl.store(factors + channels + channel, slope, mask=inside)
    tl.store(factors + 2 * channels + channel, -scale * s / positions - slope * mean, mask=inside)


@triton.jit
def _transform_kernel(
    x, g, y, numbers, positions, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """y = n₀ x + n₁, or with g: n₀ g + n₁ x + n₂; the rows of `numbers` (…, channels)."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    exists = (row < positions) & (column < channels)
    index = row.to(tl.int64) * channels + column
    value = tl.load(x + index, mask=exists, other=0.0).to(tl.float32)
    first = tl.load(numbers + column, mask=column < channels, other=0.0)
    second = tl.load(numbers + channels + column, mask=column < channels, other=0.0)
    if g is None:
        result = value * first + second
    else:
        arrived = tl.load(g + index, mask=exists, other=0.0).to(tl.float32)
        result = arrived * first + (
            value * second
            + tl.load(numbers + 2 * channels + column, mask=column < channels, other=0.0)
        )
    tl.store(y + index, result.to(y.dtype.element_ty), mask=exists)


def _sum(x: Tensor, g: Tensor | None, centre: Tensor, factor: Tensor | None) -> Tensor:
    positions, channels = x.shape
    columns = min(64, triton.next_power_of_2(channels))
    blocks = triton.cdiv(channels, columns)
    sums = torch.empty(
        (max(1, SHARES // triton.next_power_of_2(blocks)), 2, channels),
        dtype=torch.float32,
        device=x.device,
    )
    grid = (len(sums), blocks)
    _sums_kernel[grid](
        x,
        g,
        centre,
        factor,
        sums,
        positions,
        channels,
        ROWS=VALUES // columns,
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return sums


def _transformed(x: Tensor, g: Tensor | None, numbers: Tensor) -> Tensor:
    (positions, channels), y = x.shape, torch.empty_like(x)
    columns = min(64, triton.next_power_of_2(channels))
    rows = VALUES // columns
    grid = (triton.cdiv(positions, rows), triton.cdiv(channels, columns))
    _transform_kernel[grid](
        x, g, y, numbers, positions, channels, ROWS=rows, COLUMNS=columns, num_warps=WARPS
    )
    return y


def statistics(x: Tensor, norm: Norm) -> Tensor:
    """Mean, 1/σ, scale and shift of the transform, as (4, channels), for x
    (positions, channels).
    """
    channels = x.shape[1]
    numbers = torch.empty((4, channels), dtype=torch.float32, device=x.device)
    with on_device_of(x):
        sums = _sum(x, None, x, None)
        _statistics_kernel[(triton.cdiv(channels, 16),)](
            sums, x, norm.weight, norm.bias, norm.running_mean, norm.running_var, numbers,
            norm.momentum, norm.epsilon, float(len(x)), channels, SHARES=len(sums), BLOCK=16,
        )  # fmt: skip
    return numbers


def gradients(
    x: Tensor, to_y: Tensor, sums: Tensor, numbers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in x, weight and bias, from the sums (shares, 2, channels) of s and q."""
    channels = x.shape[1]
    weights, factors = (
        torch.empty((count, channels), dtype=torch.float32, device=x.device) for count in (2, 3)
    )
    with on_device_of(x):
        _gradients_kernel[(triton.cdiv(channels, 16),)](
            sums, numbers, weights, factors, float(len(x)), channels, SHARES=len(sums), BLOCK=16
        )
        return _transformed(x, to_y, factors), weights[0], weights[1]


class _BatchNorm(torch.autograd.Function):
    """On x (positions, channels)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        numbers = statistics(x, Norm(weight, bias, *rest))
        with on_device_of(x):
            y = _transformed(x, None, numbers[2:])
        ctx.save_for_backward(x, numbers)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_y: Tensor) -> tuple[Tensor | None, ...]:
        x, numbers = ctx.saved_tensors
        to_y = to_y.contiguous()
        with on_device_of(x):
            sums = _sum(x, to_y, numbers[0], numbers[1])
        return *gradients(x, to_y, sums, numbers), None, None, None, None


def can_run(images: Tensor, weight: Tensor) -> bool:
    """Whether images (n, C, H, W) have their channels innermost, on a GPU, and the
    weights are float32.
    """
    fits = (
        images.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and weight.dtype == torch.float32
    )
    return (
        fits
        and images.is_contiguous(memory_format=torch.channels_last)
        and images[:, 0].numel() > 1
    )


def batch_norm(images: Tensor, norm: Norm) -> Tensor:
    """`torch.nn.functional.batch_norm` in training, for which `can_run` holds."""
    rows = images.permute(0, 2, 3, 1)
    y: Tensor = _BatchNorm.apply(rows.reshape(-1, images.shape[1]), *norm)
    return y.view(rows.shape).permute(0, 3, 1, 2)
