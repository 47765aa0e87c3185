"""The SRM recurrence of a whole chunk of steps in one GPU kernel, forward and backward,
written in Triton.

    i_t = b i_{t-1} + x_t,           m_t = a m_{t-1} + i_t,    u_t = c m_t - θ r h_{t-1}
    z_t = 1 where u_t ≥ θ,           h_t = r h_{t-1} + z_t

    backward, from t = T down to 1, with q_t = g(u_t - θ) (η_t + ∂L/∂z_t) the gradient in u_t:
    μ_t += c q_t,    ∂L/∂x_t = ι_t + μ_t,    η_t -= θ q_t
    then   ι_{t-1} = b ∂L/∂x_t,    μ_{t-1} = a μ_t,    η_{t-1} = r η_t

A GPU program takes a tile of neurons of one member through all steps. The state stays in
registers, always in float32, so a chunk reads each current once and writes each spike once. The
time loop runs over segments of at most 16 steps. Only the steps of one segment are unrolled, so
their loads run together.

The backward pass needs u_t in reverse, and running the recurrence backwards is not stable. So
three things are saved: the currents, which are in memory already; the spikes as bits, 16 steps
of a neuron per word; and (i, m, h) at the start of each segment except the first. The backward
pass runs a segment forward again, with spikes from the bits, so rounding cannot change one, and
then backward. Bytes per neuron and step, forward and backward, at T = 80 (s bytes per current:
4, or 2 in bfloat16):

                                  bytes                                   float32  bfloat16  saved
    currents, bits and segments   (2 s + 0.9) + (3 s + 0.7) = 5 s + 1.6   21.6     11.6      s + 0.7
    every u_t in float32          (2 s + 4.2) + (2 s + 4)   = 4 s + 8.2   24.2     16.2      4

Promise: operations and their order are those of `srm` step by step. Forward, each multiply-add
rounds once on a GPU, so chunks give the same bits as the whole sequence. PyTorch may round
differently; a potential within rounding of the threshold may then spike in one and not in the
other. Gradients agree up to rounding. No atomic operation is used, so the same input always gives
the same bits. Only `srm` calls this module.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..srm import Chunk, Constants, Kernels, Layout, SRMState, Surrogate, empty_like, run_kernels
from .runtime import on_device_of
from .triton_kernels import backward_kernel, forward_kernel

# steps whose spike bits share a word. The backward pass holds this many slopes per neuron
# in registers.
LONGEST_SEGMENT = 16
# shorter if constants are learned: the backward pass then also holds the states of a segment
LONGEST_SEGMENT_LEARNED = 8


WIDE, INFERENCE, FORWARD, BACKWARD = (512, 4), (128, 2), (256, 2), (256, 4)
"""Neurons of a program, a power of two, and its warps of 32 threads; the fastest on an H200:
forward with currents of two bytes, forward with four bytes (inference, training), and backward.
"""


class _Grid(NamedTuple):
    """Rows and columns of a tile, the number of programs, and the warps of each."""

    rows: int
    columns: int
    programs: int
    warps: int

    @staticmethod
    def of(sizes: tuple[int, int, int], tile: tuple[int, int]) -> "_Grid":
        """The grid for the tile, or for a smaller one if the tile would leave processors idle."""
        (outer, members, inner), (neurons, warps) = sizes, tile
        while neurons > 128 and math.prod(sizes) < 512 * neurons:
            neurons //= 2
        if math.prod(sizes) < 512 * neurons:
            neurons, warps = 32, 1
        columns = min(neurons, triton.next_power_of_2(inner))
        rows = min(neurons // columns, triton.next_power_of_2(outer))
        return _Grid(
            rows, columns, members * triton.cdiv(outer, rows) * triton.cdiv(inner, columns), warps
        )


# ---- the operator


def forward(
    chunk: Chunk, longest: int, float16_spikes: bool = False
) -> tuple[Tensor, SRMState, tuple[Tensor, Tensor]]:
    """Spikes, state after, and bits and checkpoints for the backward pass, with segments of at
    most `longest` steps; 0 saves nothing.
    """
    (currents, before, constants), layout, size = chunk, Layout.of(chunk), chunk.currents[0].numel()
    # the fewest segments; the steps are spread over them evenly
    count = -(-len(currents) // (longest or LONGEST_SEGMENT))
    length = -(-len(currents) // count)
    spikes = empty_like(currents, torch.float16 if float16_spikes else None)
    after = layout.empty_state(currents)
    bits = torch.empty((count if longest else 0, size), dtype=torch.int16, device=currents.device)
    checkpoints = torch.empty(
        (count - 1 if longest else 0, 3, size), dtype=torch.float32, device=currents.device
    )
    currents, filled = layout.fitting(currents), layout.fitting(spikes, copy=False)
    grid = _Grid.of(
        layout.sizes, WIDE if currents.element_size() < 4 else FORWARD if longest else INFERENCE
    )
    with on_device_of(currents):
        forward_kernel[(grid.programs,)](
            currents, filled, layout.dense(before), tuple(after), bits if longest else None,
            checkpoints if longest else None, constants, len(currents), count, layout.sizes,
            layout.strides(currents), layout.strides(filled), _strides_of(constants),
            SEGMENT=length, EVEN=count * length == len(currents), ROWS=grid.rows,
            COLUMNS=grid.columns, num_warps=grid.warps,
            # explicit, because Triton's default is about to change; what must round once
            # says so itself
            enable_fp_fusion=True,
        )  # fmt: skip
    if filled is not spikes:
        spikes.copy_(filled)
    return spikes, after, (bits, checkpoints)


def backward(
    chunk: Chunk,
    saved: Sequence[Tensor],
    surrogate: Surrogate,
    to_spikes: Tensor,
    to_after: SRMState | None,
    learned: bool,
) -> tuple[Tensor, SRMState | None, Tensor | None]:
    """Gradients in the currents, and, if needed, in the state before them and in the constants
    (5, members); see `Kernels`.
    """
    (currents, before, constants), layout, (bits, checkpoints) = chunk, Layout.of(chunk), saved
    to_currents = empty_like(currents)
    to_before = layout.empty_state(currents) if chunk.before is not None else None
    filled, currents, to_spikes = (
        layout.fitting(to_currents, copy=False),
        layout.fitting(currents),
        layout.fitting(to_spikes),
    )
    grid = _Grid.of(layout.sizes, BACKWARD)
    count = len(bits)
    length = -(-len(currents) // len(bits))
    sums = (
        torch.empty((grid.programs, 5), dtype=torch.float32, device=currents.device)
        if learned
        else None
    )
    inside, outside = surrogate.factors
    with on_device_of(currents):
        backward_kernel[(grid.programs,)](
            to_spikes, layout.dense(to_after), filled, to_before and tuple(to_before), sums,
            currents, layout.dense(before), bits, checkpoints, constants, inside, outside,
            len(currents), count, layout.sizes, layout.strides(to_spikes), layout.strides(filled),
            layout.strides(currents), _strides_of(constants), SLOPE=surrogate.name, SEGMENT=length,
            EVEN=count * length == len(currents), ROWS=grid.rows, COLUMNS=grid.columns,
            num_warps=grid.warps, enable_fp_fusion=True,  # as in `forward`
        )  # fmt: skip
    if filled is not to_currents:
        to_currents.copy_(filled)
    return (
        to_currents,
        to_before,
        None if sums is None else sums.view(layout.sizes[1], -1, 5).sum(1).t(),
    )


def _strides_of(constants: Constants) -> tuple[int, ...]:
    return tuple(value.stride(0) if value.numel() > 1 else 0 for value in constants)


KERNELS = Kernels(
    lambda chunk, learned: forward(chunk, LONGEST_SEGMENT_LEARNED if learned else LONGEST_SEGMENT),
    backward,
)


# ---- called by `srm`

INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when Triton was imported: the kernels then run on the CPU,
slowly, for tests.
"""


def objection(currents: Tensor, dtype: torch.dtype, constants: Constants) -> str | None:
    """The reason why the kernels cannot run on these, or None."""
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        return f"Triton is {triton.__version__} and 3.3 is needed"  # kernels that take tuples
    if not currents.numel():
        return f"the currents have shape {tuple(currents.shape)} and hold nothing"
    if not (currents.is_cuda or INTERPRETED):
        return f"the currents are on {currents.device} and a GPU is needed"
    if dtype != torch.float32 or currents.dtype not in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ):
        return (
            f"the currents are {currents.dtype} and the state {dtype}, and a float32 state is "
            "needed"
        )
    shape = (currents.shape[1], *(1,) * (currents.ndim - 2))
    if any(value.numel() > 1 and tuple(value.shape) != shape for value in constants):
        return (
            f"the constants have shape {tuple(constants[0].shape)} and one number or {shape} is "
            "needed"
        )
    return None


def srm_fused(
    currents: Tensor,
    before: SRMState | None,
    constants: Constants,
    surrogate: Surrogate,
    float16_spikes: bool = False,
) -> tuple[Tensor, SRMState]:
    """Spikes and the state after them, as `srm`; before None: the state is zero."""
    trained = torch.is_grad_enabled() and any(
        value.requires_grad for value in (currents, *(before or ()), *constants)
    )
    chunk = Chunk(currents, before, constants)
    if not trained:
        return forward(chunk, 0, float16_spikes)[:2]
    return run_kernels(KERNELS, surrogate, chunk)
