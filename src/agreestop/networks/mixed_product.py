"""Products of spikes in bf16 with weights in float32, on a GPU's tensor cores and as exact as in float32.

    w = w₁ + w₂ + w₃,  each wᵢ in bf16:    x W = x W₁ + x W₂ + x W₃

bf16 keeps 8 bits of a number and float32 24, so three parts hold a weight to its last bit; zeros and ones are exact in bf16; tensor cores
multiply bf16 exactly and add in float32. So the result differs from a product in float32 by the order of the additions alone, and three
products of bf16 are several times as fast as one of float32. The gradient of the weights, xᵀ G, is computed likewise, with G in parts.

Numbers below 2^-110 lose their last parts, which float32 would keep; no current is that small.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

PARTS = 3
TRITON = find_spec("triton") is not None


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Spikes in bf16 and weights in float32 on a GPU, and not within autocast, which asks for less."""
    return _mixed(x, weight) and x.is_cuda and _offered()


def _mixed(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and weight.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)


def as_wide_as(x: Tensor, weight: Tensor) -> Tensor:
    """x in float32 where it came as bf16 to weights in float32, and autocast does not narrow those."""
    return x.float() if _mixed(x, weight) else x


@cache
def _offered() -> bool:
    """Whether this PyTorch sums products of bf16 into float32."""
    try:
        some = torch.zeros(1, 8, 8, dtype=torch.bfloat16, device="cuda")
        torch.bmm(some, some, out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return False
    return True


def mixed_product(x: Tensor, weight: Tensor) -> Tensor:
    """x (K or 1, N, in) in bf16 times weights (K, in, out) in float32: (K, N, out) in float32."""
    if torch.is_grad_enabled() and weight.requires_grad:
        return _MixedProduct.apply(x, weight)  # type: ignore[no-untyped-call]
    return _product(x, _kept_parts(weight))


def in_parts(values: Tensor) -> tuple[Tensor, ...]:
    """Three tensors in bf16 whose sum is the float32 given."""
    if values.is_cuda and TRITON and values.is_contiguous():
        from .parts_kernel import split  # imported here since Triton takes a while

        return split(values)
    found: list[Tensor] = []
    rest = values
    for _ in range(PARTS):
        found.append(rest.bfloat16())
        rest = rest - found[-1].float()
    return tuple(found)


def _product(x: Tensor, parts: Tensor) -> Tensor:
    """In one product along inputs that are repeated for each part, so that the sum is made in registers."""
    return torch.bmm(x.repeat(1, 1, PARTS).expand(len(parts), -1, -1), parts, out_dtype=torch.float32)


def _parts(weight: Tensor) -> Tensor:
    """All parts below each other, (K, 3 · in, out)."""
    return torch.cat(in_parts(weight), 1)


def _kept_parts(weight: Tensor) -> Tensor:
    """The same for weights that nothing trains, which are taken apart once."""
    kept = _KEPT.get(weight)  # type: ignore[no-untyped-call]
    if kept is None or kept[0] != weight._version:
        kept = _KEPT[weight] = (weight._version, _parts(weight))
    return kept[1]


_KEPT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class _MixedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, _parts(weight))  # anew each time: a recorded step must see what training made of the weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_y: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        turned = x.transpose(1, 2).expand(len(weight), -1, -1)
        to_weight: Tensor | None = None
        for part in in_parts(to_y.contiguous()):
            share = torch.bmm(turned, part, out_dtype=torch.float32)
            to_weight = share if to_weight is None else to_weight.add_(share)
        assert to_weight is not None
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(to_y, weight.transpose(1, 2))
            to_x = (to_x.sum(0, keepdim=True) if len(x) == 1 else to_x).to(x.dtype)
        return to_x, to_weight
