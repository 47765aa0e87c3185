# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""A Triton kernel that splits float32 values into two float16 parts in one pass over memory; `mixed_product` has the equation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_runtime import on_device_of

BLOCK = 1024


@triton.jit
def _split_kernel(values, scale, parts, count, factor, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = index < count
    member = tl.program_id(1).to(tl.int64)
    value = tl.load(values + member * count + index, mask=exists, other=0.0)
    if scale is not None:
        value *= tl.load(scale)
    first = value.to(tl.float16)
    target = parts + member * 2 * count + index
    tl.store(target, first, mask=exists)
    tl.store(target + count, ((value - first.to(tl.float32)) * factor).to(tl.float16), mask=exists)


def split(values: Tensor, factor: float, scale: Tensor | None = None) -> Tensor:
    """Parts (K, 2, ...) in float16 of contiguous values (K, ...) times a scale. The second part is multiplied by the factor."""
    members, count = len(values), values[0].numel()
    parts = torch.empty((members, 2, *values.shape[1:]), dtype=torch.float16, device=values.device)
    with on_device_of(values):
        _split_kernel[(triton.cdiv(count, BLOCK), members)](
            values, scale, parts, count, factor, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
    return parts
