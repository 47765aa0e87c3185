# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The neurons behind a convolution, on a GPU: one kernel from the convolution's output to the next
layer's input.

    x_t = scale · y_t + shift (+ shortcut)
    the SRM recurrence of `gpu.srm` on x_t,    2 × 2 max-pool of the spikes z_t

y_t is what the convolution wrote, in bfloat16 or float32, with channels innermost. Batch
normalisation is the scale and shift of a channel, so neither it, nor the sum with the shortcut, nor
spikes that a max-pool drops ever reach memory. The state stays in registers. Bytes per neuron and
step, for S steps in one call and currents of s bytes:

    y_t in              s
    shortcut in         s
    spikes out          s, or s/4 behind a pool
    state in and out    24 / S

Each slot (row of the batch) has its own time, for normalisation whose statistics depend on the
step, and starts from zero where `begins` is not negative. So one call serves inputs that are at
different steps (continuous batching).

In training (`gpu_deep_training`) the state starts from zero, and what the backward pass needs is
saved as in `gpu.srm`: the spikes as bits, one word for each neuron and segment of at most 16 steps,
and the state at the start of each segment except the first.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .runtime import on_device_of
from .triton_kernels import step_srm

TOGETHER = 8  # loads that are started before the first value is used
OUTPUTS, WARPS = 512, 4  # outputs of a program


class Affine(NamedTuple):
    """Scale and shift of each channel, (times, channels) in float32: the last row holds for
    all later steps.
    """

    scale: Tensor
    shift: Tensor


@triton.jit
def _affine(value, scale, shift, row, last, channel, exists, factor, offset):
    """value · scale + shift; `factor` and `offset` are those of all steps, if there is
    only one time.
    """
    if last > 0:
        factor = tl.load(scale + row + channel, mask=exists, other=0.0)
        offset = tl.load(shift + row + channel, mask=exists, other=0.0)
    return tl.fma(value, factor, offset)


@triton.jit
def _store(target, size, state, exists):
    tl.store(target, state[0], mask=exists)
    tl.store(target + size, state[1], mask=exists)
    tl.store(target + 2 * tl.cast(size, tl.int64), state[2], mask=exists)


@triton.jit
def _neurons_kernel(
    currents, shortcut, spikes, state, bits, checkpoints, constants, times, begins, scale, shift,
    shortcut_scale, shortcut_shift, outputs, size, currents_stride, shortcut_stride,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, groups, LAST: tl.constexpr,
    GROUP: tl.constexpr, SEGMENT: tl.constexpr, POOL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """outputs and size: the spikes that are written, and the neurons, of one step.

    LAST: the last row of the scales.

    SEGMENT: steps of a segment, a multiple of GROUP; 0 saves nothing for a backward pass, and has a
    state instead.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # at most 2^31, as the caller sees to
    exists = index < outputs
    channel, position = index % channels, index // channels
    down, across = height // POOL, width // POOL
    slot = position // (down * across)
    first = (
        (slot * height + position // across % down * POOL) * width + position % across * POOL
    ) * channels + channel
    time = tl.zeros((BLOCK,), tl.int32)
    if LAST > 0:
        time = tl.load(times + slot, mask=exists, other=0)
    factor, offset, shortcut_factor, shortcut_offset = 1.0, 0.0, 1.0, 0.0
    if scale is not None:
        factor = tl.load(scale + channel, mask=exists, other=0.0)
        offset = tl.load(shift + channel, mask=exists, other=0.0)
    if shortcut_scale is not None:
        shortcut_factor = tl.load(shortcut_scale + channel, mask=exists, other=0.0)
        shortcut_offset = tl.load(shortcut_shift + channel, mask=exists, other=0.0)
    a, b, r = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2)
    threshold, gain = tl.load(constants + 3), tl.load(constants + 4)
    reset = -(threshold * r)
    states: tl.tuple = ()
    words: tl.tuple = ()
    zero = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(POOL * POOL):
        i, m, h = zero, zero, zero
        if SEGMENT == 0:
            neuron = state + (first + (part // POOL * width + part % POOL) * channels)
            goes_on = exists & (tl.load(begins + slot, mask=exists, other=0) < 0)
            i = tl.load(neuron, mask=goes_on, other=0.0)
            m = tl.load(neuron + size, mask=goes_on, other=0.0)
            h = tl.load(neuron + 2 * tl.cast(size, tl.int64), mask=goes_on, other=0.0)
        states = states + ((i, m, h),)  # noqa: RUF005
        words = words + (tl.zeros((BLOCK,), tl.int32),)  # noqa: RUF005
    for group in range(groups):
        loaded: tl.tuple = ()
        added: tl.tuple = ()
        for step in tl.static_range(GROUP):
            for part in tl.static_range(POOL * POOL):
                source = first + (part // POOL * width + part % POOL) * channels
                at = tl.cast(group * GROUP + step, tl.int64)
                loaded = loaded + (  # noqa: RUF005
                    tl.load(currents + at * currents_stride + source, mask=exists, other=0.0),
                )
                if shortcut is not None:
                    added = added + (  # noqa: RUF005
                        tl.load(shortcut + at * shortcut_stride + source, mask=exists, other=0.0),
                    )
        for step in tl.static_range(GROUP):
            at = group * GROUP + step
            row = tl.minimum(time + at, LAST) * channels
            any_spike = tl.zeros((BLOCK,), tl.float32)
            later: tl.tuple = ()
            longer: tl.tuple = ()
            for part in tl.static_range(POOL * POOL):
                x = loaded[step * POOL * POOL + part].to(tl.float32)
                if scale is not None:
                    x = _affine(x, scale, shift, row, LAST, channel, exists, factor, offset)
                if shortcut is not None:
                    more = added[step * POOL * POOL + part].to(tl.float32)
                    if shortcut_scale is not None:
                        more = _affine(
                            more,
                            shortcut_scale,
                            shortcut_shift,
                            row,
                            LAST,
                            channel,
                            exists,
                            shortcut_factor,
                            shortcut_offset,
                        )
                    x += more
                i, m, h = states[part]
                i, m, u = step_srm(x, i, m, h, a, b, reset, gain)
                spiked = u >= threshold
                spike = spiked.to(tl.float32)
                word = words[part]
                if SEGMENT > 0:
                    word |= spiked.to(tl.int32) << (at % SEGMENT)
                longer = longer + (word,)  # noqa: RUF005
                later = later + ((i, m, tl.fma(h, r, spike)),)  # noqa: RUF005
                any_spike = tl.maximum(any_spike, spike)
            states, words = later, longer
            tl.store(
                spikes + tl.cast(at, tl.int64) * outputs + index,
                any_spike.to(spikes.dtype.element_ty),
                mask=exists,
            )
        if SEGMENT > 0:
            steps_done = tl.full((BLOCK,), 0, tl.int32) + (group + 1) * GROUP
            segment = tl.cast((group + 1) * GROUP // SEGMENT - 1, tl.int64)
            ended = exists & (steps_done % SEGMENT == 0)
            fresh: tl.tuple = ()
            for part in tl.static_range(POOL * POOL):
                at = first + (part // POOL * width + part % POOL) * channels
                tl.store(bits + segment * size + at, words[part].to(tl.int16), mask=ended)
                _store(
                    checkpoints + segment * 3 * size + at,
                    size,
                    states[part],
                    ended & (steps_done < groups * GROUP),
                )
                fresh = fresh + (tl.where(ended, 0, words[part]),)  # noqa: RUF005
            words = fresh
    if SEGMENT == 0:
        for part in tl.static_range(POOL * POOL):
            _store(
                state + (first + (part // POOL * width + part % POOL) * channels),
                size,
                states[part],
                exists,
            )


def neurons(
    currents: Tensor,
    steps: int,
    state: Tensor,
    constants: Tensor,
    times: Tensor,
    begins: Tensor,
    affine: Affine | None = None,
    shortcut: Tensor | None = None,
    shortcut_affine: Affine | None = None,
    pool: int = 1,
) -> Tensor:
    """Spikes (steps, rows, H / pool, W / pool, C) in the dtype of the currents.

    Moves the state (3, rows, H, W, C) on.

    currents, and the shortcut that is added to them: (steps, rows, H, W, C), dense; or (1, ...),
    held for all steps. constants (5,): a, b, r, θ and c. times (rows,) int32: the steps before this
    call, which choose the row of `affine`. begins (rows,): a row with a number of at least 0 starts
    from a state of zero. shortcut_affine has as many times as `affine`.
    """
    spikes = empty_spikes(currents, steps, pool)
    together = next(
        count for count in range(max(1, TOGETHER // pool**2), 0, -1) if steps % count == 0
    )
    _launch(
        spikes,
        currents,
        shortcut,
        (state, None, None),
        constants,
        (times, begins),
        (affine, shortcut_affine),
        pool,
        together,
        0,
    )
    return spikes


def saved_neurons(
    currents: Tensor,
    steps: int,
    constants: Tensor,
    affine: Affine,
    shortcut: Tensor | None,
    pool: int,
    segment: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Spikes as `neurons`, from a state of zero; and bits (segments, neurons) and states
    (segments - 1, 3, neurons) of a backward pass.
    """
    spikes, size = empty_spikes(currents, steps, pool), currents[0].numel()
    bits = torch.empty((steps // segment, size), dtype=torch.int16, device=currents.device)
    checkpoints = torch.empty(
        (steps // segment - 1, 3, size), dtype=torch.float32, device=currents.device
    )
    together = next(
        count for count in range(max(1, TOGETHER // pool**2), 0, -1) if segment % count == 0
    )
    _launch(
        spikes,
        currents,
        shortcut,
        (None, bits, checkpoints),
        constants,
        (None, None),
        (affine, None),
        pool,
        together,
        segment,
    )
    return spikes, bits, checkpoints


def empty_spikes(currents: Tensor, steps: int, pool: int) -> Tensor:
    """Memory for the spikes (steps, rows, H / pool, W / pool, C) of these currents."""
    rows, height, width, channels = currents.shape[1:]
    if currents[0].numel() >= 2**31:
        raise RuntimeError(
            f"out of memory: {rows} rows have {currents[0].numel():,} neurons in one layer, and "
            "2^31 can be numbered"
        )
    return torch.empty(
        (steps, rows, height // pool, width // pool, channels),
        dtype=currents.dtype,
        device=currents.device,
    )


def _launch(
    spikes: Tensor,
    currents: Tensor,
    shortcut: Tensor | None,
    states: tuple[Tensor | None, Tensor | None, Tensor | None],
    constants: Tensor,
    times: tuple[Tensor | None, Tensor | None],
    affines: tuple[Affine | None, Affine | None],
    pool: int,
    together: int,
    segment: int,
) -> None:
    strides = [
        0 if value is None or len(value) == 1 else value.stride(0) for value in (currents, shortcut)
    ]
    scales = [part for affine in affines for part in (affine or (None, None))]
    last = 0 if affines[0] is None else len(affines[0].scale) - 1
    with on_device_of(currents):
        _neurons_kernel[(triton.cdiv(spikes[0].numel(), OUTPUTS),)](
            currents, shortcut, spikes, *states, constants, *times, *scales, spikes[0].numel(),
            currents[0].numel(), *strides, *currents.shape[2:], len(spikes) // together, LAST=last,
            GROUP=together, SEGMENT=segment, POOL=pool, BLOCK=OUTPUTS,
            num_warps=WARPS, enable_fp_fusion=True,  # what must round once says so itself
        )  # fmt: skip
