"""Products of spikes in float16 with weights in float32, on a GPU's tensor cores and as exact as in float32.

    w = w₁ + 2^-11 w₂,  each wᵢ in float16:    x W = x W₁ + (2^-11 x) W₂

float16 keeps 11 bits of a number, so two parts hold a weight of float32 to one in its last place, and three of four to the bit; zeros,
ones and 2^-11 are exact; tensor cores multiply float16 exactly and add in float32. So the result differs from a product in float32 by no
more than the order of its additions makes, and two products of float16 are many times as fast as one of float32. The gradient of the
weights, xᵀ G, is computed likewise, with G in parts once it is scaled to the range of float16.

Weights below 2^-14 are held to 2^-36, which no sum of currents shows. Weights beyond 65,504 have no parts: where nothing is trained they
are multiplied in float32, and in training their currents are infinite or not a number.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from .triton_runtime import TRITON_AVAILABLE

SHIFT = 11
"""Bits of float16: the second part is larger than it counts by a factor of 2^11."""
TOP, LARGEST = 15, 100
"""Gradients are scaled to stay below 2^15, which float16 holds, by 2^100 at most, which float32 holds."""


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Spikes in float16, which need no gradient, and weights in float32, on a GPU; not within autocast, which asks for less."""
    return _mixed(x, weight) and x.is_cuda and not x.requires_grad and _offered()


def _mixed(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == torch.float16 and weight.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)


def match_precision(x: Tensor, weight: Tensor) -> Tensor:
    """x in float32 where it came as float16 to weights in float32, and autocast does not narrow those."""
    return x.float() if _mixed(x, weight) else x


@cache
def _offered() -> bool:
    """Whether this PyTorch sums products of float16 into float32."""
    try:
        some = torch.zeros(1, 8, 8, dtype=torch.float16, device="cuda")
        torch.bmm(some, some, out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return False
    return True


def mixed_product(x: Tensor, weight: Tensor) -> Tensor:
    """x (K or 1, N, in) in float16 times weights (K, in, out) in float32: (K, N, out) in float32."""
    if torch.is_grad_enabled() and weight.requires_grad:
        return _MixedProduct.apply(x, weight)  # type: ignore[no-untyped-call]
    shared = len(x) == 1
    parts = _kept_parts(weight, shared)
    if parts is None:
        return torch.bmm(x.float().expand(len(weight), -1, -1), weight)
    return _product(x, parts) if shared else _product_side_by_side(x, parts)


def split_float16(values: Tensor, scale: Tensor | None = None) -> Tensor:
    """Two parts (K, 2, ...) in float16 of values (K, ...) in float32, times a scale."""
    if values.is_cuda and TRITON_AVAILABLE and values.is_contiguous():
        from .split_kernel import split  # imported here since Triton takes a while

        return split(values, 2.0**SHIFT, scale)
    values = values if scale is None else values * scale
    first = values.half()
    return torch.stack([first, ((values - first.float()) * 2.0**SHIFT).half()], 1)


def _spread(x: Tensor, axis: int) -> Tensor:
    """What meets both parts along an axis."""
    return torch.cat([x, x * 2.0**-SHIFT], axis)


def _product(x: Tensor, parts: Tensor) -> Tensor:
    """Inputs that all members share, with parts (K, 2 · in, out) below each other, so that the sum is made in registers."""
    return torch.bmm(_spread(x, 2).expand(len(parts), -1, -1), parts, out_dtype=torch.float32)


def _product_side_by_side(x: Tensor, parts: Tensor) -> Tensor:
    """Inputs of each member, which are large, with parts (K, in, 2 · out) side by side, so that the inputs need not be repeated."""
    first, second = torch.bmm(x, parts, out_dtype=torch.float32).chunk(2, 2)
    return torch.add(first, second, alpha=2.0**-SHIFT)


def _kept_parts(weight: Tensor, shared: bool) -> Tensor | None:
    """Parts of weights that nothing trains, taken apart once, below each other or side by side; None where float16 does not hold them."""
    kept = _KEPT.get(weight)  # type: ignore[no-untyped-call]
    if kept is None or kept[:2] != (weight._version, shared):
        parts = split_float16(weight)
        if not bool(parts.isfinite().all()):
            kept = (weight._version, shared, None)
        else:
            kept = (weight._version, shared, parts.flatten(1, 2) if shared else torch.cat(parts.unbind(1), 2))
        _KEPT[weight] = kept
    return kept[2]


_KEPT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class _MixedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        parts = split_float16(weight)  # anew each time: a recorded step must see what training made of the weights
        return _product(x, parts.flatten(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_y: Tensor) -> tuple[None, Tensor]:
        x, weight = ctx.saved_tensors
        to_y = to_y.contiguous()
        _, exponent = torch.frexp(torch.linalg.vector_norm(to_y, torch.inf))
        scale = torch.exp2((TOP - exponent).clamp(max=LARGEST))
        turned = _spread(x, 1).transpose(1, 2).expand(len(weight), -1, -1)
        to_weight = torch.bmm(turned, split_float16(to_y, scale).flatten(1, 2), out_dtype=torch.float32)
        return None, to_weight.div_(scale)
