"""Products of float16 spikes with float32 weights, on a GPU's tensor cores and as exact as in float32.

    w = w₁ + 2^-11 w₂,  each wᵢ in float16:    x W = x W₁ + (2^-11 x) W₂

float16 has 11 significant bits, so two parts hold a float32 weight to one unit in the last bit, and three of four weights exactly. Zeros,
ones and 2^-11 are exact. Tensor cores multiply float16 exactly and add in float32. So the result differs from a float32 product only by the
order of its additions, and two float16 products are many times faster than one float32 product. The gradient of the weights, xᵀ G, is
computed in the same way, with G scaled to the range of float16 and then split.

Weights below 2^-14 have an error of 2^-36, which is negligible in a sum of currents. Weights above 65,504 cannot be split: without training
they are multiplied in float32, and in training their currents are infinite or not a number.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from .gpu_runtime import TRITON_AVAILABLE

SHIFT = 11  # significant bits of float16. The second part is stored times 2^11.
TOP, LARGEST = 15, 100  # gradients are scaled below 2^15, within float16, by at most 2^100, within float32


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether x is float16 without gradient and the weights are float32, on a GPU. Not within autocast, which asks for less precision."""
    return _mixed(x, weight) and x.is_cuda and not x.requires_grad and _supported()


def _mixed(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == torch.float16 and weight.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)


def match_precision(x: Tensor, weight: Tensor) -> Tensor:
    """x, converted to float32 if it is float16, the weights are float32, and autocast is off."""
    return x.float() if _mixed(x, weight) else x


@cache
def _supported() -> bool:
    """Whether this PyTorch has float16 products with a float32 result."""
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
    parts = _cached_parts(weight, shared)
    if parts is None:
        return torch.bmm(x.float().expand(len(weight), -1, -1), weight)
    return _product(x, parts) if shared else _product_side_by_side(x, parts)


def split_float16(values: Tensor, scale: Tensor | None = None) -> Tensor:
    """Two float16 parts (K, 2, ...) of float32 values (K, ...) times a scale."""
    if values.is_cuda and TRITON_AVAILABLE and values.is_contiguous():
        from .triton_kernels import split  # importing Triton is slow

        return split(values, 2.0**SHIFT, scale)
    values = values if scale is None else values * scale
    first = values.half()
    return torch.stack([first, ((values - first.float()) * 2.0**SHIFT).half()], 1)


def _spread(x: Tensor, axis: int) -> Tensor:
    """x and 2^-11 x, joined along an axis: the factors of the two parts."""
    return torch.cat([x, x * 2.0**-SHIFT], axis)


def _product(x: Tensor, parts: Tensor) -> Tensor:
    """Product of inputs that the members share with parts (K, 2 · in, out). The two products are added in registers."""
    return torch.bmm(_spread(x, 2).expand(len(parts), -1, -1), parts, out_dtype=torch.float32)


def _product_side_by_side(x: Tensor, parts: Tensor) -> Tensor:
    """Product of each member's own inputs with parts (K, in, 2 · out), so the large inputs need not be repeated."""
    first, second = torch.bmm(x, parts, out_dtype=torch.float32).chunk(2, 2)
    return torch.add(first, second, alpha=2.0**-SHIFT)


def _cached_parts(weight: Tensor, shared: bool) -> Tensor | None:
    """Cached parts of weights that are not trained, joined along inputs (shared) or outputs. None if float16 cannot hold them."""
    cached = _CACHE.get(weight)  # type: ignore[no-untyped-call]
    if cached is None or cached[:2] != (weight._version, shared):
        parts = split_float16(weight)
        if not bool(parts.isfinite().all()):
            cached = (weight._version, shared, None)
        else:
            cached = (weight._version, shared, parts.flatten(1, 2) if shared else torch.cat(parts.unbind(1), 2))
        _CACHE[weight] = cached
    return cached[2]


_CACHE: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class _MixedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        parts = split_float16(weight)  # not cached: a CUDA graph must see the current weights
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
