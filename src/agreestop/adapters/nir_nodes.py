"""NIR nodes as parts of a `GraphNetwork`, with time in steps of dt.

    I, IF      v += R x
    LI, LIF    v += dt/τ (v_leak - v + R x)
    CubaLIF    i += dt/τ_syn (w_in x - i),  v += dt/τ_mem (v_leak - v + R i)       CubaLI alike
    spike      where v > v_threshold; then v = v_reset, or v -= v_threshold where the user
               says "subtract"

In I and IF a step adds R times the weights of its events, whatever dt is. CubaLIF takes the
current i of the same step.

A cycle must pass through neurons with a state, and what they give arrives one step later. Where a
cycle has several layers of neurons, the one nearest to the Input runs first.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from torch import nn

from agreestop.common import Floats, InputError, is_number
from agreestop.networks.graphs import (
    INPUT,
    Constants,
    Convolution,
    GraphNetwork,
    Integrator,
    Linear,
    Node,
    Reshape,
    Scale,
    SumPool,
)

from .nir_sources import RawGraph, reachable, sources_of

RESETS = ("graph", "zero", "subtract")
MOST_VALUES = 2**28  # elements that a node may give in one step
Shape = tuple[int, ...]


def build_network(graph: RawGraph, dt: float | None, reset: str) -> GraphNetwork:
    """The network of a graph."""
    if reset not in RESETS:
        raise InputError(
            f"reset is {reset!r}: choose one of {', '.join(RESETS)}, or give a list with one of "
            "them for each graph."
        )
    if dt is not None and (not is_number(dt) or dt <= 0):
        raise InputError(
            f"dt is {dt!r}: give the length of a time step in seconds, for example 1e-3."
        )
    readers = {name: _NodeReader(graph, name, dt, reset) for name in graph.nodes}
    start, end = (_only(graph, kind) for kind in ("Input", "Output"))
    sources, order = sources_of(graph.edges), _order(graph, start, end)
    index_of = {name: index for index, name in enumerate(order)} | {start: INPUT}
    shapes = {
        name: readers[name].state_shape for name in order if graph.nodes[name].kind in STATEFUL
    }
    shapes[start] = readers[start].declared_shape
    nodes: list[Node] = []
    for index, name in enumerate(order):
        given = {shapes[source] for source in sources[name]}
        if len(given) > 1:
            raise readers[name].error(
                f"adds inputs of shapes {' and '.join(map(str, sorted(given)))}",
                "they must be equal",
            )
        part, shape = readers[name].build(given.pop())
        if shapes.setdefault(name, shape) != shape:
            raise readers[name].error(
                f"has parameters of shape {shapes[name]} and an input of shape {shape}",
                "they must be equal",
            )
        places = [index_of[source] for source in sources[name]]
        nodes.append(
            Node(
                name,
                part,
                shape,
                tuple(at for at in places if at < index),
                tuple(at for at in places if at >= index),
            )
        )
    return GraphNetwork(nodes, shapes[start])


def _only(graph: RawGraph, kind: str) -> str:
    """The Input or Output of the whole graph. Those of subgraphs pass on what they get."""
    inner = (
        set(sources_of(graph.edges)) if kind == "Input" else {source for source, _ in graph.edges}
    )
    found = [name for name, node in graph.nodes.items() if node.kind == kind and name not in inner]
    if len(found) != 1:
        raise InputError(f"{graph.origin} has {len(found)} {kind} nodes: one is needed.")
    return found[0]


def _order(graph: RawGraph, start: str, end: str) -> list[str]:
    """The nodes between Input and Output, so that each runs after its sources, except those that
    close a cycle.
    """
    sources = sources_of(graph.edges)
    targets = sources_of([(target, source) for source, target in graph.edges])
    needed = {end, *reachable(end, sources)} - {start}
    distance = {start: 0}
    waiting = [start]
    for name in waiting:
        for target in targets.get(name, ()):
            if target not in distance:
                distance[target] = distance[name] + 1
                waiting.append(target)
    for name in sorted(needed):
        if name not in distance or name not in sources:
            raise InputError(
                f"{graph.origin}: the node {name[:60]!r} gets nothing from the Input: connect or "
                "remove it."
            )
    left = {
        name: {source for source in sources[name] if source != start} for name in sorted(needed)
    }
    order: list[str] = []
    while left:
        ready = [name for name, missing in left.items() if not missing & left.keys()]
        if ready:
            order += ready
            for name in ready:
                del left[name]
            continue
        first = _first_of_cycle(
            graph, {name: sorted(missing & left.keys()) for name, missing in left.items()}, distance
        )
        for name in left:  # what neurons give round the cycle to `first` is delayed
            if name == first or first in _before_neurons(graph, name, targets):
                left[name] = {
                    source
                    for source in left[name]
                    if graph.nodes[source].kind not in STATEFUL or source not in left
                }
    return order


def _first_of_cycle(
    graph: RawGraph, waits: Mapping[str, list[str]], distance: Mapping[str, int]
) -> str:
    """The layer of neurons that runs first among nodes that wait for each other."""
    before = {name: set(reachable(name, waits)) for name in waits}
    cycles = [name for name in waits if name in before[name]]
    outermost = [
        name
        for name in cycles
        if all(name in before[other] for other in before[name] if other in cycles)
    ]
    neurons = [name for name in outermost if graph.nodes[name].kind in STATEFUL]
    if not neurons or _cycle_without(graph, waits):
        found = _cycle_without(graph, waits) or outermost[0]
        raise InputError(
            f"{graph.origin}: the node {found[:60]!r} is on a cycle without neurons: a cycle needs "
            "neurons that keep a state."
        )
    return min(neurons, key=lambda name: (distance[name], name))


def _cycle_without(graph: RawGraph, waits: Mapping[str, list[str]]) -> str:
    """A node on a cycle that has no neurons with a state; empty if there is none."""
    plain = {
        name: [source for source in found if graph.nodes[source].kind not in STATEFUL]
        for name, found in waits.items()
    }
    return next(
        (
            name
            for name in plain
            if graph.nodes[name].kind not in STATEFUL and name in reachable(name, plain)
        ),
        "",
    )


def _before_neurons(graph: RawGraph, name: str, targets: Mapping[str, list[str]]) -> set[str]:
    """The neurons that a node without a state reaches through nodes without a state."""
    if graph.nodes[name].kind in STATEFUL:
        return set()
    passing = {
        one: found if graph.nodes[one].kind not in STATEFUL else []
        for one, found in targets.items()
    }
    return {target for target in reachable(name, passing) if graph.nodes[target].kind in STATEFUL}


class _NodeReader:
    """Reads the parameters of one node, checks them, and makes its part of the network."""

    def __init__(self, graph: RawGraph, name: str, dt: float | None, reset: str) -> None:
        self._origin = graph.origin
        self._name = name
        self._node = graph.nodes[name]
        self._dt = dt
        self._reset = reset
        if self._node.kind not in BUILDERS:
            raise self.error(
                f"is of type {self._node.kind[:30]!r}", f"known types are {', '.join(BUILDERS)}"
            )

    def error(self, what: str, needed: str) -> InputError:
        return InputError(f"{self._origin[-60:]}: the node {self._name[:40]!r} {what}: {needed}.")

    def build(self, shape: Shape) -> tuple[nn.Module, Shape]:
        """The part for an input of this shape, and the shape of its output."""
        part, found = BUILDERS[self._node.kind](self, shape)
        if math.prod(found) > MOST_VALUES or min(found, default=1) < 1:
            raise self.error(
                f"gives values of shape {found}", f"1 to {MOST_VALUES:,} values are possible"
            )
        return part, found

    # ---- parameters

    def numbers(self, key: str, shape: Shape | None = None, default: float | None = None) -> Floats:
        """Finite numbers as float64, repeated up to `shape`."""
        value = self._node.parameters.get(key, default)
        array = np.asarray(np.nan if value is None else value)
        if (
            value is None
            or array.dtype.kind not in "biuf"
            or not array.size
            or not np.isfinite(array).all()
        ):
            raise self.error(
                f"has no valid {key!r}"
                if value is None
                else f"has values in {key!r} that are no finite numbers",
                "write it again",
            )
        if (np.abs(array) > np.finfo(np.float32).max).any():
            raise self.error(
                f"has values in {key!r} that float32 cannot hold", "rescale the network"
            )
        if shape is None:
            return array.astype(np.float64)
        try:
            return np.array(np.broadcast_to(array.astype(np.float64), shape))
        except ValueError:
            raise self.error(
                f"has {key!r} of shape {array.shape} and an input of shape {shape}", "they must fit"
            ) from None

    def integers(
        self, key: str, count: int, least: int, default: int | None = None
    ) -> tuple[int, ...]:
        """`count` integers of at least `least`; one integer stands for all."""
        values = self.numbers(key, default=default).reshape(-1)
        if (
            len(values) not in (1, count)
            or (values != np.rint(values)).any()
            or values.min() < least
            or values.max() > MOST_VALUES
        ):
            raise self.error(
                f"has {key} {values.tolist()[:4]}", f"{count} integers from {least} on are needed"
            )
        return tuple(int(value) for value in np.broadcast_to(values, count))

    @property
    def declared_shape(self) -> Shape:
        """The shape of an Input."""
        values = self.numbers("shape").reshape(-1)
        if (
            (values != np.rint(values)).any()
            or values.min() < 1
            or values.max() > MOST_VALUES
            or math.prod(values.tolist()) > MOST_VALUES
        ):
            raise self.error(
                f"has shape {values.tolist()[:6]}",
                f"integers with a product of 1 to {MOST_VALUES:,} are needed",
            )
        return tuple(int(value) for value in values)

    @property
    def state_shape(self) -> Shape:
        """The shape of a layer of neurons, from its parameters."""
        names = [
            name
            for name in ("r", "tau", "tau_mem", "v_threshold", "threshold")
            if name in self._node.parameters
        ]
        return np.broadcast_shapes(*(self.numbers(name).shape for name in names)) if names else ()

    def step_share(self, key: str, shape: Shape) -> Floats:
        """dt / τ, at most 1."""
        times = self.numbers(key, shape)
        if self._dt is None:
            raise self.error(
                f"has the time constant {key}",
                (
                    "give dt, the seconds of a time step with which the network was trained (often "
                    "1e-4 or 1e-3)"
                ),
            )
        if times.min() < self._dt:
            raise self.error(
                f"has {key} {times.min():.3g} s, less than dt = {self._dt:.3g} s",
                "give the dt with which the network was trained",
            )
        return self._dt / times

    # ---- neurons

    def neurons(self, shape: Shape) -> tuple[nn.Module, Shape]:
        kind, ones, zeros = self._node.kind, np.ones(shape), np.zeros(shape)
        share = (
            zeros
            if kind in ("I", "IF")
            else self.step_share("tau_mem" if kind.startswith("Cuba") else "tau", shape)
        )
        leak = share * self.numbers("v_leak", shape) if "v_leak" in self._node.parameters else zeros
        gain = self.numbers("r", shape) * (share if share.any() else 1)
        synapse, weight = zeros, ones
        if kind.startswith("Cuba"):
            filtered = self.step_share("tau_syn", shape)
            synapse, weight = 1 - filtered, filtered * self.numbers("w_in", shape, 1.0)
        threshold = reset = None
        if kind.endswith("F"):
            threshold = self.numbers("v_threshold", shape)
            reset = {
                "graph": self.numbers("v_reset", shape, 0.0),
                "zero": zeros,
                "subtract": threshold,
            }[self._reset]
        after = zeros if reset is None else reset
        return Integrator(
            Constants(
                1 - share, synapse, weight, gain, leak, threshold, after, self._reset == "subtract"
            )
        ), shape

    def threshold(self, shape: Shape) -> tuple[nn.Module, Shape]:
        zeros, ones = np.zeros(shape), np.ones(shape)
        return Integrator(
            Constants(zeros, zeros, ones, ones, zeros, self.numbers("threshold", shape), zeros)
        ), shape

    # ---- linear maps

    def linear(self, shape: Shape) -> tuple[nn.Module, Shape]:
        weight, size = self.numbers("weight"), math.prod(shape)
        if weight.ndim != 2 or weight.shape[1] not in (size, shape[-1] if shape else 1):
            raise self.error(
                f"has a weight of shape {weight.shape} and an input of shape {shape}",
                "(outputs, inputs) is needed",
            )
        bias = self.numbers("bias", weight.shape[:1]) if self._node.kind == "Affine" else None
        # exporters disagree on whether Flatten counts the batch, so the input may have more
        # than one axis
        if weight.shape[1] == size:
            return Linear(weight, bias), (weight.shape[0],)
        return Linear(weight, bias, each=True), (*shape[:-1], weight.shape[0])

    def scale(self, shape: Shape) -> tuple[nn.Module, Shape]:
        return Scale(self.numbers("scale", shape)), shape

    def convolution(self, shape: Shape) -> tuple[nn.Module, Shape]:
        axes = int(self._node.kind[4])
        weight = self.numbers("weight")
        if weight.ndim != axes + 2 or len(shape) != axes + 1:
            raise self.error(
                f"has a weight of shape {weight.shape} and an input of shape {shape}",
                "channels and positions are needed in both",
            )
        stride, dilation = (self.integers(key, axes, 1, 1) for key in ("stride", "dilation"))
        groups = self.integers("groups", 1, 1, 1)[0]
        if shape[0] != groups * weight.shape[1] or weight.shape[0] % groups:
            raise self.error(
                f"has a weight of shape {weight.shape} in {groups} groups and an input of shape "
                f"{shape}",
                "channels must fit",
            )
        reach = [dilation[axis] * (weight.shape[2 + axis] - 1) for axis in range(axes)]
        around = self._padding(axes, reach, stride)
        sizes = [
            (shape[1 + axis] + sum(around[axis]) - reach[axis] - 1) // stride[axis] + 1
            for axis in range(axes)
        ]
        bias = self.numbers("bias", weight.shape[:1], 0.0)
        if axes == 1:
            weight, stride, dilation, around = (
                weight[:, :, None],
                (1, *stride),
                (1, *dilation),
                [(0, 0), *around],
            )
        padding = (*around[0], *around[1])
        steps = (stride[0], stride[1])
        apart = (dilation[0], dilation[1])
        return Convolution(weight, bias if bias.any() else None, steps, padding, apart, groups), (
            weight.shape[0],
            *sizes,
        )

    def _padding(
        self, axes: int, reach: list[int], stride: tuple[int, ...]
    ) -> list[tuple[int, int]]:
        """Zeros before and after each axis."""
        given = np.asarray(self._node.parameters.get("padding", 0))
        word = given.item() if given.dtype.kind in "OSU" and given.size == 1 else None
        word = word.decode("utf-8", "replace") if isinstance(word, bytes) else word
        if word == "same" and max(stride) == 1:
            return [(size // 2, size - size // 2) for size in reach]
        if word not in (None, "valid"):
            raise self.error(
                f"has padding {str(word)[:20]!r} and stride {stride}",
                "numbers, 'valid', or 'same' with stride 1 are needed",
            )
        sizes = (0,) * axes if word == "valid" else self.integers("padding", axes, 0, 0)
        return [(size, size) for size in sizes]

    def pool(self, shape: Shape) -> tuple[nn.Module, Shape]:
        if len(shape) != 3:
            raise self.error(
                f"gets an input of shape {shape}", "(channels, height, width) is needed"
            )
        (size, stride), padding = (
            (self.integers(key, 2, 1) for key in ("kernel_size", "stride")),
            self.integers("padding", 2, 0, 0),
        )
        sides = [
            (shape[1 + axis] + 2 * padding[axis] - size[axis]) // stride[axis] + 1
            for axis in range(2)
        ]
        pair = size[0], size[1]
        return SumPool(
            pair, (stride[0], stride[1]), (padding[0], padding[1]), self._node.kind == "AvgPool2d"
        ), (shape[0], *sides)

    def flatten(self, shape: Shape) -> tuple[nn.Module, Shape]:
        first = self.integers("start_dim", 1, -len(shape), 1)[0]
        last = self.integers("end_dim", 1, -len(shape), -1)[0]
        first, last = (axis + len(shape) if axis < 0 else axis for axis in (first, last))
        first, last = min(first, len(shape) - 1), min(last, len(shape) - 1)
        if first > last:
            raise self.error(
                f"flattens axes {first} to {last}", "the first must not come after the last"
            )
        found = (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
        return Reshape(found), found

    def same(self, shape: Shape) -> tuple[nn.Module, Shape]:
        return Reshape(shape), shape


BUILDERS: dict[str, Callable[[_NodeReader, Shape], tuple[nn.Module, Shape]]] = {
    **dict.fromkeys(("Input", "Output"), _NodeReader.same),
    **dict.fromkeys(("Affine", "Linear"), _NodeReader.linear),
    "Scale": _NodeReader.scale,
    **dict.fromkeys(("Conv1d", "Conv2d"), _NodeReader.convolution),
    **dict.fromkeys(("SumPool2d", "AvgPool2d"), _NodeReader.pool),
    "Flatten": _NodeReader.flatten,
    **dict.fromkeys(("IF", "LIF", "LI", "I", "CubaLIF", "CubaLI"), _NodeReader.neurons),
    "Threshold": _NodeReader.threshold,
}
STATEFUL = ("I", "IF", "LI", "LIF", "CubaLI", "CubaLIF")
