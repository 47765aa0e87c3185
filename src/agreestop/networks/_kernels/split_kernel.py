"""Numbers in float32 taken apart into two of float16, as `mixed_product` has them, in one pass over memory, written in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _split_kernel(values: tl.tensor, scale: tl.tensor, parts: tl.tensor, count: tl.tensor, factor: tl.tensor, BLOCK: tl.constexpr) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    member = tl.program_id(1).to(tl.int64)
    value = tl.load(values + member * count + place, mask=there, other=0.0)
    if scale is not None:
        value *= tl.load(scale)
    first = value.to(tl.float16)
    target = parts + member * 2 * count + place
    tl.store(target, first, mask=there)
    tl.store(target + count, ((value - first.to(tl.float32)) * factor).to(tl.float16), mask=there)


def split(values: Tensor, factor: float, scale: Tensor | None = None) -> Tensor:
    """Parts (K, 2, ...) of contiguous values (K, ...), times a scale."""
    members, count = len(values), values[0].numel()
    parts = torch.empty((members, 2, *values.shape[1:]), dtype=torch.float16, device=values.device)
    with torch.cuda.device(values.device) if values.is_cuda else torch.no_grad():
        _split_kernel[(triton.cdiv(count, BLOCK), members)](
            values, scale, parts, count, factor, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
    return parts
