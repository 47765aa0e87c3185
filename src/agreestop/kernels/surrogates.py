"""Surrogate gradients: slopes g that replace the derivative of a spike.

    forward   z = 1 where v ≥ 0, else 0          (v is the potential minus the threshold)
    backward  dz/dv := g(v)

Every slope except SuperSpike is the derivative of a smooth step from 0 to 1, so it integrates to
one. SuperSpike has a peak of one. The default gains give every slope a peak of one, so the gradient
through the refractory path does not grow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from agreestop.common import InputError


def arctan(v: Tensor, gain: float) -> Tensor:
    """g(v) = (k/2) / (1 + (π k v / 2)²), the derivative of 1/2 + arctan(π k v / 2) / π."""
    return v.mul(0.5 * math.pi * gain).square_().add_(1).reciprocal_().mul_(0.5 * gain)


def fast_sigmoid(v: Tensor, gain: float) -> Tensor:
    """g(v) = (k/2) / (1 + k |v|)², the derivative of (1 + k v / (1 + k |v|)) / 2."""
    return v.abs().mul_(gain).add_(1).square_().reciprocal_().mul_(0.5 * gain)


def sigmoid(v: Tensor, gain: float) -> Tensor:
    """g(v) = k σ(k v) (1 - σ(k v)), the derivative of the logistic function σ(k v)."""
    s = v.mul(gain).sigmoid_()
    return s.mul_(1 - s).mul_(gain)


def triangle(v: Tensor, gain: float) -> Tensor:
    """g(v) = k max(0, 1 - k |v|)."""
    return v.abs().mul_(-gain).add_(1).clamp_(min=0).mul_(gain)


def superspike(v: Tensor, gain: float) -> Tensor:
    """g(v) = 1 / (1 + k |v|)², of Zenke and Ganguli (2018)."""
    return v.abs().mul_(gain).add_(1).square_().reciprocal_()


SLOPES: dict[str, tuple[Callable[[Tensor, float], Tensor], float]] = {
    "arctan": (arctan, 2.0),
    "fast-sigmoid": (fast_sigmoid, 2.0),
    "sigmoid": (sigmoid, 4.0),
    "triangle": (triangle, 1.0),
    "superspike": (superspike, 10.0),
}


@final
@dataclass(frozen=True)
class Surrogate:
    """A surrogate gradient: the name of a slope g, one of SLOPES, and its gain k. gain=None
    takes the default gain of the slope.
    """

    name: str = "arctan"
    gain: float | None = None

    def __post_init__(self) -> None:
        if self.name not in SLOPES:
            raise InputError(f"surrogate is {self.name!r}: choose one of {', '.join(SLOPES)}.")
        gain = SLOPES[self.name][1] if self.gain is None else self.gain
        if isinstance(gain, bool) or not isinstance(gain, (int, float)) or not 0 < gain < math.inf:
            raise InputError(f"gain of the surrogate is {gain!r}: give a positive, finite number.")
        object.__setattr__(self, "gain", float(gain))

    def slope(self, v: Tensor) -> Tensor:
        """g(v), in a new tensor of the shape of v."""
        assert self.gain is not None
        return SLOPES[self.name][0](v, self.gain)

    @property
    def factors(self) -> tuple[float, float]:
        """The factor of v and the factor of the result in g(v), for the kernels."""
        k = self.gain
        assert k is not None
        inside = 0.5 * math.pi * k if self.name == "arctan" else k
        return inside, {"arctan": 0.5 * k, "fast-sigmoid": 0.5 * k, "superspike": 1.0}.get(
            self.name, k
        )
