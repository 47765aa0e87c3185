"""Products of float16 spikes with float32 weights, on a GPU's tensor cores and as exact
as in float32.

Without training, the weights of a neuron are rounded to 22 bits of its largest one, in two parts of
float16, which hold integers:

    w = unit · (q₁ + 2^-11 q₂),   |qᵢ| ≤ 1024:    x W = unit · (x Q₁ + 2^-11 (x Q₂))

Tensor cores add in float32, where integers up to 2^24 are exact. So both sums are exact, and the
result is rounded once: it does not depend on the order of the additions, on the batch or on the
kernel. The error of a weight is at most 2^-21 of the neuron's largest.

In training the weights change at every step, and each is split into two parts by itself:

    w = w₁ + 2^-11 w₂,  each wᵢ in float16:    x W = x W₁ + (2^-11 x) W₂

float16 has 11 significant bits, so two parts hold a float32 weight to one unit in the last bit,
and three of four weights exactly. Then the result differs from a float32 product only by the order
of its additions. The gradient of the weights, xᵀ G, is computed in the same way, with G scaled to
the range of float16 and then split. Weights below 2^-14 have an error of 2^-36, which is
negligible in a sum of currents. Weights above 65,504 cannot be split: their currents are infinite
or not a number.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from agreestop.kernels import TRITON_AVAILABLE

SHIFT = 11  # significant bits of float16. The second part is stored times 2^11.
# gradients are scaled below 2^15, within float16; all is scaled by at most 2^100, within float32
TOP, LARGEST = 15, 100
EXACT = 2**24  # integers up to here are exact in float32


def can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether x is float16 without gradient and the weights are float32, on a GPU.

    Not within autocast, which asks for less precision.
    """
    return _mixed(x, weight) and x.is_cuda and not x.requires_grad and _supported()


def _mixed(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == torch.float16
        and weight.dtype == torch.float32
        and not torch.is_autocast_enabled(x.device.type)
    )


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
    """x (K or 1, N, in) in float16 times weights (K, in, out) in float32:
    (K, N, out) in float32.
    """
    if torch.is_grad_enabled() and weight.requires_grad:
        return _MixedProduct.apply(x, weight)  # type: ignore[no-untyped-call]
    cached = _CACHE.get(weight)  # type: ignore[no-untyped-call]
    if cached is None or cached[0] != weight._version:
        fixed = fixed_point(weight)
        cached = _CACHE[weight] = (
            weight._version,
            None if fixed is None else _side_by_side(fixed),
            fixed,
        )
    if cached[2] is None:
        return torch.bmm(x.float().expand(len(weight), -1, -1), weight)
    outputs = weight.shape[2]
    sums = torch.bmm(x.expand(len(weight), -1, -1), cached[1], out_dtype=torch.float32)
    high, low = sums[..., :outputs], sums[..., outputs : 2 * outputs]
    return torch.add(high, low, alpha=2.0**-SHIFT).mul_(cached[2].units[:, None])


class FixedPoint(NamedTuple):
    """Weights (K, in, out) in fixed point: parts (K, 2, in, out) of integers in float16, and
    units (K, out).
    """

    parts: Tensor
    units: Tensor


def fixed_point(weight: Tensor) -> FixedPoint | None:
    """The weights in fixed point.

    None if a weight is not finite, or if a neuron has so many inputs that their sum may pass 2^24.
    """
    _, exponent = torch.frexp(weight.abs().amax(1))
    exponent = exponent.clamp(min=-LARGEST).double()  # powers of two are exact in float64
    scaled = torch.round(weight * torch.exp2(2 * SHIFT - 1 - exponent)[:, None])
    high = torch.round(scaled * 2.0**-SHIFT)
    parts = torch.stack([high, scaled - high * 2.0**SHIFT], 1)
    if not bool((parts.abs().sum(2) <= EXACT).all()):  # also if they are not finite
        return None
    return FixedPoint(parts.half(), torch.exp2(exponent - SHIFT + 1).float())


def _side_by_side(fixed: FixedPoint) -> Tensor:
    """Both parts as (K, in, 2 · out), filled up to a multiple of 8 columns, for which tensor
    cores have faster kernels.
    """
    joined = torch.cat(fixed.parts.unbind(1), 2)
    return nn.functional.pad(joined, (0, -joined.shape[2] % 8))


def split_float16(values: Tensor, scale: Tensor | None = None) -> Tensor:
    """Two float16 parts (K, 2, ...) of float32 values (K, ...) times a scale."""
    if values.is_cuda and TRITON_AVAILABLE and values.is_contiguous():
        from .gpu.triton_kernels import split  # importing Triton is slow

        return split(values, 2.0**SHIFT, scale)
    values = values if scale is None else values * scale
    first = values.half()
    return torch.stack([first, ((values - first.float()) * 2.0**SHIFT).half()], 1)


def _spread(x: Tensor, axis: int) -> Tensor:
    """x and 2^-11 x, joined along an axis: the factors of the two parts."""
    return torch.cat([x, x * 2.0**-SHIFT], axis)


def _product(x: Tensor, parts: Tensor) -> Tensor:
    """Product of inputs that the members share with parts (K, 2 · in, out).

    The two products are added in registers.
    """
    return torch.bmm(_spread(x, 2).expand(len(parts), -1, -1), parts, out_dtype=torch.float32)


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
        to_weight = torch.bmm(
            turned, split_float16(to_y, scale).flatten(1, 2), out_dtype=torch.float32
        )
        return None, to_weight.div_(scale)
