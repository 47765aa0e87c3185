"""NIR graphs for the tests, and NIR's equations in plain numpy, node by node and step by step, in
double precision.
"""

from __future__ import annotations

from typing import Any

import nir
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
UNIT = 2.0**-6  # weights are multiples of it, so that their float32 sums are exact in any order


def chain(*nodes: Any) -> Any:
    """Nodes one after the other."""
    return nir.NIRGraph.from_list(*nodes)


def weights(rng: np.random.Generator, *shape: int, spread: float = 0.6) -> Array:
    return np.round(rng.normal(0.1, spread, shape) / UNIT) * UNIT


def neurons(
    kind: str, shape: tuple[int, ...], rng: np.random.Generator, uniform: bool = False
) -> Any:
    """Neurons with constants of their own: of each, or of all alike."""

    def between(low: float, high: float) -> Array:
        return np.full(shape, rng.uniform(low, high)) if uniform else rng.uniform(low, high, shape)

    given: dict[str, Array] = {"r": between(0.8, 1.6)}
    if kind not in ("I", "IF"):
        given["v_leak"] = between(-0.2, 0.2)
    if kind in ("LI", "LIF"):
        given["tau"] = between(3e-3, 9e-3)
        given["r"] = between(3.0, 6.0)
    if kind.startswith("Cuba"):
        given |= {
            "tau_mem": between(3e-3, 9e-3),
            "tau_syn": between(2e-3, 4e-3),
            "w_in": between(3.0, 5.0),
            "r": between(3.0, 6.0),
        }
    if kind.endswith("F"):
        given |= {"v_threshold": between(0.7, 1.1), "v_reset": between(-0.2, 0.1)}
    return getattr(nir, kind)(**given)


def convolve(
    x: Array, weight: Array, bias: Array, stride: Any, padding: Any, dilation: Any, groups: int
) -> Array:
    """A convolution of (channels, height, width) as explicit loops."""
    (out, each, high, wide), (down, right), (top, left) = weight.shape, stride, padding
    x = np.pad(x, ((0, 0), (top, top), (left, left)))
    height = (x.shape[1] - dilation[0] * (high - 1) - 1) // down + 1
    width = (x.shape[2] - dilation[1] * (wide - 1) - 1) // right + 1
    found = np.zeros((out, height, width))
    for channel in range(out):
        first = channel // (out // groups) * each
        for row in range(height):
            for column in range(width):
                rows, columns = (
                    row * down + dilation[0] * np.arange(high),
                    column * right + dilation[1] * np.arange(wide),
                )
                found[channel, row, column] = (
                    x[first : first + each][:, rows][:, :, columns] * weight[channel]
                ).sum() + bias[channel]
    return found


class Reference:
    """A node over time."""

    def __init__(self, node: Any, dt: float, reset: str) -> None:
        self.node, self.dt, self.reset = node, dt, reset
        self.i: Any = 0.0
        self.v: Any = 0.0

    def step(self, x: Array) -> Array:
        node, kind = self.node, type(self.node).__name__
        if kind in ("Affine", "Linear"):
            return node.weight @ x.ravel() + getattr(node, "bias", 0)
        if kind == "Scale":
            return x * node.scale
        if kind == "Flatten":
            return x.ravel()
        if kind == "Threshold":
            return (x > node.threshold).astype(float)
        if kind == "Conv2d":
            return convolve(
                x, node.weight, node.bias, node.stride, node.padding, node.dilation, node.groups
            )
        if kind == "Conv1d":
            flat = (
                x[:, None],
                node.weight[:, :, None],
                node.bias,
                (1, node.stride),
                (0, node.padding),
                (1, node.dilation),
                node.groups,
            )
            return convolve(*flat)[:, 0]
        if kind in ("SumPool2d", "AvgPool2d"):
            high, wide = node.kernel_size
            weight = np.ones((len(x), 1, high, wide)) / (high * wide if kind == "AvgPool2d" else 1)
            return convolve(x, weight, np.zeros(len(x)), node.stride, node.padding, (1, 1), len(x))
        return self.integrate(kind, x)

    def integrate(self, kind: str, x: Array) -> Array:
        node, dt = self.node, self.dt
        if kind.startswith("Cuba"):
            self.i = self.i + dt / node.tau_syn * (node.w_in * x - self.i)
            self.v = self.v + dt / node.tau_mem * (node.v_leak - self.v + node.r * self.i)
        elif kind in ("LI", "LIF"):
            self.v = self.v + dt / node.tau * (node.v_leak - self.v + node.r * x)
        else:
            self.v = self.v + node.r * x
        if not kind.endswith("F"):
            return np.array(self.v)
        fired = self.v > node.v_threshold
        after = {"graph": node.v_reset, "zero": 0.0, "subtract": self.v - node.v_threshold}[
            self.reset
        ]
        self.v = np.where(fired, after, self.v)
        return fired.astype(float)


def simulate(graph: Any, x: Array, dt: float = 1e-3, reset: str = "graph") -> Array:
    """Outputs (T, classes) of a chain of nodes for one input (T, ...)."""
    parts = [
        Reference(node, dt, reset)
        for node in graph.nodes.values()
        if type(node).__name__ not in ("Input", "Output")
    ]
    found = []
    for frame in x.astype(float):
        value = frame
        for part in parts:
            value = part.step(value)
        found.append(value.ravel())
    return np.array(found)
