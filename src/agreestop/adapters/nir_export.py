"""Our networks in NIR: SRM neurons with τ_r = τ_m are CubaLIF neurons with a subtractive reset.

    i_t = b i_{t-1} + x_t,   u_t = a (u_{t-1} - θ z_{t-1}) + c i_t,   z_t = 1 where u_t ≥ θ

with r = a in `networks.neurons`, and

    τ_mem = dt / (1 - a),   τ_syn = dt / (1 - b),   w_in = 1 / (1 - b),   R = c / (1 - a)
    v_threshold = θ less the last bit of float32

NIR compares with >, so the threshold is the float32 below θ. NIR has no word for a subtractive
reset: read the graph with reset="subtract".
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from agreestop.common import InputError, is_number, needs
from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.layers import MemberBatchNorm2d, MemberConv2d, SpikingLayer

SAME = 1e-6  # relative difference of two decays that are equal


def to_nir(source: Any, *, dt: float = 1e-3) -> list[Any]:
    """One `nir.NIRGraph` for each member of an ensemble or of a `SpikingNetwork`.

    `nir.write(path, graph)` writes a file.

    dt: seconds of a time step. Read them again with `from_nir(graphs, dt=dt, reset="subtract")`.
    The neurons need refractory_time equal to membrane_time. NIR has no max-pool, so a
    `Convolutional` network cannot be written.
    """
    with needs("to_nir"):
        import nir
    network = getattr(source, "network", source)
    if not isinstance(network, SpikingNetwork):
        kind = type(network).__name__
        raise InputError(
            f"the network is a {kind}, whose computation NIR cannot be told: give a SpikingNetwork "
            "or an ensemble of one."
        )
    if not is_number(dt) or dt <= 0:
        raise InputError(
            f"dt is {dt!r}: give the length of a time step in seconds, for example 1e-3."
        )
    for layer in network.layers:
        _check(layer)
    with torch.no_grad():
        return [
            _GraphWriter(nir, network, member, dt).write(network.layers)
            for member in range(network.members)
        ]


def _check(layer: SpikingLayer) -> None:
    a, _, r, _, _ = layer.neurons.parameters_for(torch.empty(1, 1)).constants
    if bool(((a - r).abs() > SAME * a).any()):
        raise InputError(
            "NIR has no neuron with a refractory time of its own: train with "
            "Neuron(refractory_time=...) equal to membrane_time."
        )
    if layer.max_pool:
        raise InputError(
            "NIR has no max-pool, which a Convolutional network has between its layers: use "
            "FullyConnected or ResNet18."
        )
    norms = [part for part in layer.modules() if isinstance(part, MemberBatchNorm2d)]
    if any(part.running_mean.ndim > 2 for part in norms):
        raise InputError(
            "NIR has no batch norm with statistics of its own for each step: train the ResNet18 "
            "with timed=0."
        )


class _GraphWriter:
    """Writes one member: nodes and edges, in the order of the layers."""

    def __init__(self, nir: Any, network: SpikingNetwork, member: int, dt: float) -> None:
        self._nir, self._member, self._dt = nir, member, dt
        self._shape = tuple(int(size) for size in network.input_shape)
        self._nodes: dict[str, Any] = {"input": nir.Input(np.array(self._shape))}
        self._edges: list[tuple[str, str]] = []

    def write(self, layers: Sequence[SpikingLayer]) -> Any:
        last = earlier = "input"
        shapes = {"input": self._shape}
        for index, layer in enumerate(layers):
            synapses, shape = self._synapses(layer, index, last, shapes[last])
            neurons = self._add(f"neurons_{index}", self._neurons(layer, shape), synapses)
            if layer.shortcut is not None:
                self._shortcut(layer.shortcut, index, earlier, shapes[earlier], neurons)
            earlier, last = last, neurons
            shapes[neurons] = shape
        self._add("output", self._nir.Output(np.array(shapes[last])), last)
        return self._nir.NIRGraph(self._nodes, self._edges)

    def _add(self, name: str, node: Any, *sources: str) -> str:
        self._nodes[name] = node
        self._edges += [(source, name) for source in sources]
        return name

    def _synapses(
        self, layer: SpikingLayer, index: int, source: str, shape: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...]]:
        if isinstance(layer.synapses, MemberConv2d):
            return self._convolution(f"synapses_{index}", layer.synapses, layer.norm, source, shape)
        if layer.average:
            size = np.array(shape[1:])
            source = self._add(
                f"average_{index}",
                self._nir.AvgPool2d(kernel_size=size, stride=size, padding=np.zeros(2, int)),
                source,
            )
            shape = (shape[0], 1, 1)
        if len(shape) > 1:
            flat = self._nir.Flatten(input_type={"input": np.array(shape)}, start_dim=0, end_dim=-1)
            source = self._add(f"flatten_{index}", flat, source)
        weight = _array(layer.synapses.weight[self._member].T)
        return self._add(f"synapses_{index}", self._nir.Linear(weight=weight), source), (
            len(weight),
        )

    def _convolution(
        self,
        name: str,
        synapses: MemberConv2d,
        norm: MemberBatchNorm2d | None,
        source: str,
        shape: tuple[int, ...],
    ) -> tuple[str, tuple[int, ...]]:
        """A convolution with its batch norm folded into weights and bias."""
        weight = synapses.weight[self._member].double()
        bias = torch.zeros(len(weight), dtype=torch.float64)
        if norm is not None:
            mean, variance, gain, offset = (
                value.view(len(synapses.weight), -1)[self._member].double()
                for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            )
            factor = gain / torch.sqrt(variance + norm.epsilon)
            weight, bias = weight * factor[:, None, None, None], offset - mean * factor
        size, stride = weight.shape[2], int(synapses.stride)
        node = self._nir.Conv2d(
            shape[1:],
            _array(weight),
            (stride, stride),
            (size // 2, size // 2),
            (1, 1),
            1,
            _array(bias),
        )
        sides = tuple((side + 2 * (size // 2) - size) // stride + 1 for side in shape[1:])
        return self._add(name, node, source), (len(weight), *sides)

    def _shortcut(
        self, shortcut: nn.Module, index: int, source: str, shape: tuple[int, ...], neurons: str
    ) -> None:
        if isinstance(shortcut, nn.Sequential):
            parts = cast(MemberConv2d, shortcut[0]), cast(MemberBatchNorm2d, shortcut[1])
            source, _ = self._convolution(f"shortcut_{index}", *parts, source, shape)
        self._edges.append((source, neurons))

    def _neurons(self, layer: SpikingLayer, shape: tuple[int, ...]) -> Any:
        found = layer.neurons.parameters_for(torch.empty(1, 1)).constants
        values = [value.flatten()[min(self._member, value.numel() - 1)] for value in found]
        a, b, _, threshold, gain = (float(value.double()) for value in values)
        below = float(np.nextafter(np.float32(threshold), np.float32(0)))
        given = {
            "tau_mem": self._dt / (1 - a),
            "tau_syn": self._dt / (1 - b),
            "w_in": 1 / (1 - b),
            "r": gain / (1 - a),
        }
        given |= {"v_leak": 0.0, "v_threshold": below, "v_reset": 0.0}
        return self._nir.CubaLIF(**{name: np.full(shape, value) for name, value in given.items()})


def _array(values: Tensor) -> Any:
    return values.detach().float().cpu().contiguous().numpy()
