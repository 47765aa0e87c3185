# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The 3×3 convolution of few spikes, on the CPU: each entry of the input that is not zero adds
weights to the nine positions around it.

    y[p + d, :] += x[p, c] · W[c, d, :]                    for the non-zero x[p, c] of an image
    ∂L/∂W[c, d, :] += x[p, c] · ∂L/∂y[p + d, :]            for the same
    ∂L/∂x[p, :] = Σ_{d, o} ∂L/∂y[p + d, o] · W[:, d, o]    for all positions

Channels are innermost, so three neighbouring positions are one piece of memory. The image that is
written, or whose rows are added, has a border of one position, so no position is a special case. It
lies in the first cache. Even an input without zeros takes no longer than in PyTorch.

Promise: a sum follows the order of the entries, and each multiply-add is rounded once. Images are
summed in PARTS parts, and then the parts. So a result does not depend on the number of threads.
Only `MemberConv2d` calls this module.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from agreestop.common import parallel_parts

from .intrinsics import (
    MASKED,
    NARROW,
    address,
    copy_range,
    get,
    load_like,
    lowest_bit,
    nonzero_mask,
    plus_row_times,
    store,
    zero_sum,
)
from .numba_runtime import empty, jit, jit_template, memory_of, threads_for

PARTS = 16
SIZE, PAIR = 3, 2 * NARROW
COLUMNS = 4  # positions whose gradients in the input are summed together
LEAST_IMAGES = 64  # images from which this is faster than PyTorch
WORTH_A_THREAD = 1 << 16  # entries of the input: about 0.1 ms of work


@jit_template
def _add(zero, target, at, source, begin, count, value):
    """Add `count` numbers of the source, times a value, to the target; count is a
    multiple of 16.
    """
    for lane in range(0, count, NARROW):
        store(
            target,
            at + lane,
            plus_row_times(load_like(zero, target, at + lane), source, begin + lane, value),
        )


ARRAY, SIZES = "float32[::1]", "UniTuple(int64, 4)"


@jit(f"void(int64, int64, {SIZES}, boolean, {ARRAY}, {ARRAY}, {ARRAY}, int32[:, ::1], {ARRAY})")
def _convolve(first, last, sizes, forward, x, weight, y, places, scratch):
    """Images first … last: fill y from the weights, or add the gradients in y to those
    in the weights.

    sizes: height, width, inputs, outputs. places: for each entry of an image, where its weights
    begin, and the first position it reaches.
    """
    height, width, inputs, outputs = sizes
    entries, row, span = height * width * inputs, (width + 2) * outputs, 3 * outputs
    memory, rows = address(scratch), address(weight)
    zero = zero_sum(memory, NARROW)
    whole = entries - entries % MASKED
    for image in range(first, last):
        if forward:
            scratch[:] = 0
        else:
            for line in range(height):
                copy_range(
                    y,
                    (image * height + line) * width * outputs,
                    scratch,
                    (line + 1) * row + outputs,
                    width * outputs,
                )
        for piece in range(0, entries, MASKED):
            left = np.uint64(0)
            if piece < whole:
                left = nonzero_mask(x, image * entries + piece)
            else:
                for entry in range(piece, entries):
                    left |= np.uint64(x[image * entries + entry] != 0) << np.uint64(entry - piece)
            while left != 0:
                entry = piece + lowest_bit(left)
                left &= left - np.uint64(1)
                value = x[image * entries + entry]
                begin = np.int64(places[entry, 0])
                at = np.int64(places[entry, 1])
                for line in range(3):
                    if forward:
                        _add(zero, memory, at + line * row, rows, begin + line * span, span, value)
                    else:
                        _add(zero, rows, begin + line * span, memory, at + line * row, span, value)
        if forward:
            for line in range(height):
                copy_range(
                    scratch,
                    (line + 1) * row + outputs,
                    y,
                    (image * height + line) * width * outputs,
                    width * outputs,
                )


@jit_template
def _sum_around(zero, lanes, rows, inputs, outputs, row, given, at, target, to):
    """Write ∂L/∂x of COLUMNS neighbouring positions, for as many channels as `zero` has lanes."""
    a, b, c, d = zero, zero, zero, zero
    for line in range(3):
        for column in range(3):
            source = at + line * row + column * outputs
            weight = (line * 3 + column) * outputs * inputs + lanes
            for _ in range(outputs):
                a = plus_row_times(a, rows, weight, get(given, source))
                b = plus_row_times(b, rows, weight, get(given, source + outputs))
                c = plus_row_times(c, rows, weight, get(given, source + 2 * outputs))
                d = plus_row_times(d, rows, weight, get(given, source + 3 * outputs))
                source += 1
                weight += inputs
    store(target, to + lanes, a)
    store(target, to + lanes + inputs, b)
    store(target, to + lanes + 2 * inputs, c)
    store(target, to + lanes + 3 * inputs, d)


@jit(f"void(int64, int64, {SIZES}, {ARRAY}, {ARRAY}, {ARRAY}, {ARRAY})")
def _to_inputs(first, last, sizes, to_x, weight, to_y, scratch):
    """The gradients in the images first … last; the weights are (3, 3, outputs, inputs)."""
    height, width, inputs, outputs = sizes
    row = (width + 2) * outputs
    rows = address(weight)
    target = address(to_x)
    given = address(scratch)
    for image in range(first, last):
        for line in range(height):
            copy_range(
                to_y,
                (image * height + line) * width * outputs,
                scratch,
                (line + 1) * row + outputs,
                width * outputs,
            )
        for line in range(height):
            for column in range(0, width, COLUMNS):
                at = line * row + column * outputs
                to = ((image * height + line) * width + column) * inputs
                if inputs % PAIR == 0:
                    for lanes in range(0, inputs, PAIR):
                        _sum_around(
                            zero_sum(rows, PAIR),
                            lanes,
                            rows,
                            inputs,
                            outputs,
                            row,
                            given,
                            at,
                            target,
                            to,
                        )
                else:
                    for lanes in range(0, inputs, NARROW):
                        _sum_around(
                            zero_sum(rows, NARROW),
                            lanes,
                            rows,
                            inputs,
                            outputs,
                            row,
                            given,
                            at,
                            target,
                            to,
                        )


def sizes_fit(inputs: int, outputs: int, width: int, gradient: bool) -> bool:
    """Whether the operator supports these channels, and with `gradient`, which is that of the
    images, this width of an image.
    """
    return outputs % NARROW == 0 and not (gradient and (inputs % NARROW or width % COLUMNS))


def can_run(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether the operator supports images x (n, in, H, W) and weights (out, in, 3, 3): float32
    on the CPU, and many.
    """
    return (
        weight.shape[2:] == (SIZE, SIZE)
        and stride == 1
        and len(x) >= LEAST_IMAGES
        and sizes_fit(weight.shape[1], weight.shape[0], x.shape[3], x.requires_grad)
        and all(
            value.dtype == torch.float32 and value.device.type == "cpu" for value in (x, weight)
        )
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def sparse_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, in, H, W) convolved with weight (out, in, 3, 3), padded by one: (n, out, H, W),
    channels innermost. Needs `can_run`.
    """
    images = x.permute(0, 2, 3, 1).contiguous()
    return _SparseConvolution.apply(images, weight).permute(0, 3, 1, 2)


class _SparseConvolution(torch.autograd.Function):
    """Images (n, H, W, in) and weights (out, in, 3, 3) to (n, H, W, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        sizes, places, y = _sizes(x, weight), _places(x, weight), empty((*x.shape[:3], len(weight)))
        given, rows, filled = memory_of(x), memory_of(_by_input(weight)), memory_of(y)

        def run(_: int, first: int, last: int, scratch: NDArray[np.float32]) -> None:
            _convolve(first, last, sizes, True, given, rows, filled, places, scratch)

        _for_images(run, x, weight)
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        sizes, places, to_x, to_weight = _sizes(x, weight), _places(x, weight), None, None
        given, arrived = memory_of(x), memory_of(to_y.contiguous())
        if ctx.needs_input_grad[0]:
            to_x = empty(x.shape)
            rows = memory_of(_by_input(weight).permute(1, 2, 3, 0).contiguous())
            filled = memory_of(to_x)

            def pass_on(_: int, first: int, last: int, scratch: NDArray[np.float32]) -> None:
                _to_inputs(first, last, sizes, filled, rows, arrived, scratch)

            _for_images(pass_on, x, weight)
        if ctx.needs_input_grad[1]:
            parts = np.zeros((PARTS, weight.numel()), np.float32)

            def add_up(part: int, first: int, last: int, scratch: NDArray[np.float32]) -> None:
                _convolve(first, last, sizes, False, given, parts[part], arrived, places, scratch)

            _for_images(add_up, x, weight)
            outputs, inputs = weight.shape[:2]
            to_weight = (
                torch.from_numpy(parts.sum(0))
                .view(inputs, SIZE, SIZE, outputs)
                .permute(3, 0, 1, 2)
                .flip(2, 3)
            )
        return to_x, to_weight


def _by_input(weight: Tensor) -> Tensor:
    """Weights (in, 3, 3, out): from each input to the positions around it."""
    return weight.detach().flip(2, 3).permute(1, 2, 3, 0).contiguous()


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    _, height, width, inputs = x.shape
    return height, width, inputs, len(weight)


def _places(x: Tensor, weight: Tensor) -> NDArray[np.int32]:
    height, width, inputs, outputs = _sizes(x, weight)
    positions, channels = np.arange(height * width)[:, None], np.arange(inputs)
    # lines with a border have two positions more
    first = (positions + positions // width * 2) * outputs
    both = np.broadcast_arrays(channels * SIZE**2 * outputs, first)
    return np.stack([part.ravel() for part in both], 1).astype(np.int32)


def _for_images(
    work: Callable[[int, int, int, NDArray[np.float32]], None], x: Tensor, weight: Tensor
) -> None:
    """Call work(part, first, last, scratch) for PARTS parts of the images; scratch has room for
    one image of the result with its border.
    """
    height, width, _, outputs = _sizes(x, weight)
    threads = threads_for(x.numel(), WORTH_A_THREAD)
    scratch = np.zeros((threads, (height + 2) * (width + 2) * outputs), dtype=np.float32)
    parallel_parts(
        lambda thread, part, first, last: work(part, first, last, scratch[thread]),
        len(x),
        PARTS,
        threads,
    )
