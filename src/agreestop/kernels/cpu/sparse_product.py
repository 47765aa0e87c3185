"""The product of few spikes with many weights, on the CPU: rows of weights are added for the inputs
that are not zero.

    y[k, t, b, :] = Σ_{i : x ≠ 0} x[t, b, i] · W[k, i, :]
    ∂L/∂W[k, i, :] = Σ_{t, b : x ≠ 0} x[t, b, i] · ∂L/∂y[k, t, b, :]

for an input x[t, b, i] that the members share, or x[t, k, b, i] for one input per member. The
non-zero entries are listed once, row by row, for the forward pass and all members. The backward
pass transposes the list, input by input. Both sums are then one loop: each target row adds the
source rows in its list. A task takes the columns of one member that fit a few registers, and copies
these columns of all source rows next to each other, so they stay in the second cache.

Promise: a row is summed in the order of its list, and each multiply-add is rounded once. A
result does not depend on the number of threads, and a row of y does not depend on the other
rows. The result is that of PyTorch's product, up to the order of the sum. Only `MemberLinear`
calls this module.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from agreestop.common import parallel_for

from .intrinsics import (
    MASKED,
    address,
    copy_range,
    count_bits,
    get,
    lowest_bit,
    nonzero_mask,
    plus_row_times,
    store,
    zero_sum,
)
from .numba_runtime import empty, jit, jit_template, threads_for

WIDE, NARROW = 64, 16
"""Columns of a task.

Four wide registers hide the latency of an addition; one is enough for a read-out with few classes.
"""
# the fraction of non-zero entries up to which this is faster than PyTorch's product. Measured
# break-even: 0.3 to 0.45.
MAX_DENSITY = 0.25
LEAST_ROWS, LEAST_PRODUCTS = 16, 1 << 21
"""Rows of x from which copying the weights pays, and dense multiplications from which this is
faster than PyTorch.
"""
WORTH_A_THREAD = 1 << 18  # additions: 0.05 ms of work, about as long as waking a thread


# ---- the loops


@jit_template
def _add_rows(zero, lanes, rows, indices, values, begin, end, to):  # type: ignore[no-untyped-def]
    """Write the sum, over entries begin … end of a list, of value times row.

    Rows have `lanes` columns; the sum begins at `to`.
    """
    total = zero
    for entry in range(begin, end):
        total = plus_row_times(
            total, rows, np.int64(get(indices, entry)) * lanes, get(values, entry)
        )
    store(rows, to, total)


@jit("void(int64, int64, float32[::1], int64, int64[::1])")
def _count(first, last, x, width, counts):  # type: ignore[no-untyped-def]
    """Count the non-zero entries of each row of x."""
    whole = width - width % MASKED
    for row in range(first, last):
        begin, total = row * width, 0
        for at in range(0, whole, MASKED):
            total += count_bits(nonzero_mask(x, begin + at))
        for index in range(whole, width):
            total += x[begin + index] != 0
        counts[row] = total


# the first entry of each row's list; the indices of the entries; their values
LISTS = "int64[::1], uint32[::1], float32[::1]"


@jit(f"void(int64, int64, float32[::1], int64, {LISTS})")
def _list(first, last, x, width, starts, indices, values):  # type: ignore[no-untyped-def]
    """List the non-zero entries of each row of x, and their values, from starts[row] on."""
    whole = width - width % MASKED
    for row in range(first, last):
        begin, n = row * width, starts[row]
        for at in range(0, whole, MASKED):
            left = nonzero_mask(x, begin + at)
            while left:
                indices[n] = at + lowest_bit(left)
                left &= left - np.uint64(1)
                n += 1
        for index in range(whole, width):
            if x[begin + index] != 0:
                indices[n] = index
                n += 1
        for entry in range(starts[row], n):
            values[entry] = x[begin + np.int64(indices[entry])]


@jit(f"void(int64, int64, int64, int64, {LISTS}, {LISTS}, int64[:, ::1])")
def _turn(  # type: ignore[no-untyped-def]
    first,
    last,
    rows,
    width,
    starts,
    indices,
    values,
    turned_starts,
    turned_indices,
    turned_values,
    scratch,
):
    """Transpose the lists of some members: for each input, the rows of the member that
    contain it, in order.
    """
    for member in range(first, last):
        begin, end, next_of = starts[member * rows], starts[(member + 1) * rows], scratch[member]
        next_of[:] = 0
        for entry in range(begin, end):
            next_of[indices[entry]] += 1
        total = begin
        for index in range(width):
            turned_starts[member * width + index] = total
            total, next_of[index] = total + next_of[index], total
        for row in range(rows):
            for entry in range(starts[member * rows + row], starts[member * rows + row + 1]):
                n = next_of[indices[entry]]
                turned_indices[n] = row
                turned_values[n] = values[entry]
                next_of[indices[entry]] = n + 1


@jit(
    "void(int64, int64, UniTuple(int64, 4), int64, int64, float32[::1], float32[::1], boolean, "
    f"{LISTS}, float32[::1])"
)
def _gather(  # type: ignore[no-untyped-def]
    first, last, sizes, lanes, blocks, source, target, shared, starts, indices, values, scratch
):
    """target[k, row] = Σ source[k, i] over the list of the row.

    A task is a member, some columns and a block of rows.
    """
    sources, targets, columns, across = sizes
    total, rows_at = sources * lanes, address(scratch)
    for task in range(first, last):
        member = task // (across * blocks)
        left = task // blocks % across * lanes
        block = task % blocks
        count = min(lanes, columns - left)
        for row in range(sources):
            copy_range(
                source, (member * sources + row) * columns + left, scratch, row * lanes, count
            )
        lists = 0 if shared else member * targets
        for row in range(targets * block // blocks, targets * (block + 1) // blocks):
            begin, end = starts[lists + row], starts[lists + row + 1]
            if lanes == WIDE:
                _add_rows(
                    zero_sum(rows_at, WIDE),
                    WIDE,
                    rows_at,
                    address(indices),
                    address(values),
                    begin,
                    end,
                    total,
                )
            else:
                _add_rows(
                    zero_sum(rows_at, NARROW),
                    NARROW,
                    rows_at,
                    address(indices),
                    address(values),
                    begin,
                    end,
                    total,
                )
            copy_range(scratch, total, target, (member * targets + row) * columns + left, count)


# ---- lists


@dataclass(frozen=True, eq=False)
class Active:
    """The non-zero entries of x (lists, rows, width); the members share one list, or have one each.

    Entries starts[k · rows + n] … starts[k · rows + n + 1] of `indices` and `values` belong to row
    n of list k, in order.
    """

    lists: int
    rows: int
    width: int
    starts: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]

    @staticmethod
    def of(x: Tensor, max_density: float) -> "Active | None":
        """The lists of x (lists, rows, width), or None if a larger fraction than
        max_density is not zero.
        """
        lists, rows, width = x.shape
        flat, threads = x.detach().reshape(-1).numpy(), threads_for(x.numel(), WORTH_A_THREAD)
        starts = np.zeros(lists * rows + 1, dtype=np.int64)
        parallel_for(
            lambda _, first, last: _count(first, last, flat, width, starts[1:]),
            lists * rows,
            threads,
        )
        np.cumsum(starts, out=starts)
        if starts[-1] > max_density * x.numel():
            return None
        indices = np.empty(starts[-1], dtype=np.uint32)
        values = np.empty(starts[-1], dtype=np.float32)
        parallel_for(
            lambda _, first, last: _list(first, last, flat, width, starts, indices, values),
            lists * rows,
            threads,
        )
        return Active(lists, rows, width, starts, indices, values)

    @staticmethod
    def whole(x: Tensor) -> "Active":
        """Lists of all entries of x (lists, rows, width), zeros included."""
        lists, rows, width = x.shape
        starts = np.arange(lists * rows + 1) * width
        indices = np.tile(np.arange(width, dtype=np.uint32), lists * rows)
        return Active(lists, rows, width, starts, indices, x.detach().reshape(-1).numpy())

    def transposed(self) -> "Active":
        """The same lists input by input: rows and width are exchanged."""
        starts = np.empty(self.lists * self.width + 1, dtype=np.int64)
        scratch = np.empty((self.lists, self.width), dtype=np.int64)
        starts[-1] = len(self.indices)
        turned = Active(
            self.lists,
            self.width,
            self.rows,
            starts,
            np.empty_like(self.indices),
            np.empty_like(self.values),
        )
        shared = self.rows, self.width, *self._arrays, *turned._arrays, scratch
        parallel_for(
            lambda _, first, last: _turn(first, last, *shared),
            self.lists,
            threads_for(len(self.indices), WORTH_A_THREAD),
        )
        return turned

    def add_rows_to(self, source: Tensor, target: Tensor) -> None:
        """Fill target (K, rows, columns) with sums of rows of source (K, width, columns).

        Both are dense.
        """
        members, sources, columns = source.shape
        lanes = NARROW if columns <= 2 * NARROW else WIDE
        across = -(-columns // lanes)
        work = members // self.lists * len(self.indices) * columns + source.numel() + target.numel()
        threads = threads_for(work, WORTH_A_THREAD)
        blocks = min(self.rows, -(-2 * threads // (members * across))) if threads > 1 else 1
        sizes = (sources, self.rows, columns, across)
        memory = (source.detach().view(-1).numpy(), target.view(-1).numpy())
        # lanes past the last column are summed too
        scratch = [torch.zeros((sources + 1) * lanes).numpy() for _ in range(threads)]
        shared = sizes, lanes, blocks, *memory, self.lists < members, *self._arrays
        parallel_for(
            lambda thread, first, last: _gather(first, last, *shared, scratch[thread]),
            members * across * blocks,
            threads,
        )

    @property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
        return self.starts, self.indices, self.values


# ---- the operator


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether the operator supports these: float32 on the CPU, large enough, and no gradient in
    an input that the members share.
    """
    members, inputs, outputs = weight.shape
    rows = x.numel() // (inputs if x.ndim == 3 else members * inputs)
    return (
        rows >= LEAST_ROWS
        and members * rows * inputs * outputs >= LEAST_PRODUCTS
        and all(
            value.dtype == torch.float32 and value.device.type == "cpu" for value in (x, weight)
        )
        and (x.ndim == 4 or not (x.requires_grad and torch.is_grad_enabled()))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def sparse_product(x: Tensor, weight: Tensor, max_density: float = MAX_DENSITY) -> Tensor | None:
    """x (T, batch, in) or (T, K, batch, in) times weight (K, in, out): (T, K, batch, out), with the
    members outermost in memory.

    None if a larger fraction of x than max_density is not zero: PyTorch's product is then faster.
    Needs `can_run`, except for the sizes.
    """
    members, inputs, _ = weight.shape
    rows = (
        x.reshape(1, -1, inputs) if x.ndim == 3 else x.transpose(0, 1).reshape(members, -1, inputs)
    )
    active = Active.of(rows, max_density)
    return None if active is None else _SparseProduct.apply(active, x, weight)  # type: ignore[no-untyped-call]


class _SparseProduct(torch.autograd.Function):
    """Saves the lists, and the weights if the input needs a gradient, but not the input."""

    @staticmethod
    def forward(ctx: Any, active: Active, x: Tensor, weight: Tensor) -> Tensor:
        (members, _, outputs), steps, batch = weight.shape, len(x), x.shape[-2]
        y = empty((members, steps, batch, outputs))
        active.add_rows_to(weight.contiguous(), y.flatten(1, 2))
        ctx.active = active
        ctx.save_for_backward(weight if ctx.needs_input_grad[1] else None)
        return y.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_y: Tensor) -> tuple[Tensor | None, ...]:
        to_x = to_weight = None
        steps, members, batch, outputs = to_y.shape
        rows = to_y.transpose(0, 1).reshape(members, steps * batch, outputs)
        if ctx.needs_input_grad[1]:
            (weight,) = ctx.saved_tensors
            filled = empty((members, steps * batch, ctx.active.width))
            turned = weight.transpose(1, 2)
            if outputs <= NARROW:
                # for few classes as fast as PyTorch, and it uses our threads
                Active.whole(rows).add_rows_to(turned.contiguous(), filled)
            else:
                torch.bmm(rows, turned, out=filled)
            to_x = filled.view(members, steps, batch, -1).transpose(0, 1)
        if ctx.needs_input_grad[2]:
            to_weight = empty((members, ctx.active.width, outputs))
            ctx.active.transposed().add_rows_to(rows.contiguous(), to_weight)
        return None, to_x, to_weight
