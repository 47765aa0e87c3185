"""NIR graphs, from files or in memory, as one flat list of nodes and edges.

A file is HDF5: each node is a group with its `type` and its parameters; a graph has the groups
`nodes` and `edges`. Files are read here rather than by `nir.read`: links and loops are refused, a
data set that declares more than the file can hold is never allocated, and every version of the
format that holds the same nodes can be read. Nodes of subgraphs get the name "subgraph.node".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, needs
from agreestop.common.files import open_file

MOST_NODES, DEEPEST = 10_000, 20
MOST_BYTES = 2**30  # the most memory that the parameters of a graph may take
COMPRESSION = 1100  # the most that HDF5's gzip filter can gain
SMALL = 2**12  # bytes that a data set may have without storage


@dataclass(frozen=True, eq=False)
class RawNode:
    """The type of a node, as NIR names it, and its parameters: arrays, or bytes for text."""

    kind: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RawGraph:
    """Nodes by name, edges between names, and where they come from, for messages."""

    nodes: dict[str, RawNode]
    edges: list[tuple[str, str]]
    origin: str


def read_source(source: Any) -> RawGraph:
    """A graph from the path of a file, or from a `nir.NIRGraph`."""
    nodes: dict[str, Any]
    if isinstance(source, (str, PathLike)):
        origin = fspath(source)
        nodes, edges = _read_file(origin)
    elif (
        type(source).__name__ == "NIRGraph"
        and hasattr(source, "nodes")
        and hasattr(source, "edges")
    ):
        origin = "the graph"
        nodes, edges = _from_memory(source, 0)
    else:
        raise InputError(
            f"a graph is a {type(source).__name__}: give the path of a .nir file or a "
            "nir.NIRGraph, or a list of them."
        )
    flat: dict[str, RawNode] = {}
    joined: list[tuple[str, str]] = []
    _flatten(nodes, edges, "", flat, joined, origin)
    return RawGraph(flat, joined, origin)


# ---- graphs in memory

Nested = tuple[dict[str, Any], list[tuple[str, str]]]
"""Nodes, each a RawNode or again nodes and edges, and edges."""


def _from_memory(graph: Any, depth: int) -> Nested:
    nodes: dict[str, Any] = {}
    if depth > DEEPEST:
        raise InputError(
            f"the graph has subgraphs more than {DEEPEST} levels deep: remove the loop between "
            "them."
        )
    for name, node in graph.nodes.items():
        kind = type(node).__name__
        if kind == "NIRGraph":
            nodes[str(name)] = _from_memory(node, depth + 1)
            continue
        parameters = {
            key: value
            for key, value in vars(node).items()
            if value is not None and not isinstance(value, dict)
        }
        if kind in ("Input", "Output"):
            parameters["shape"] = next(
                iter((node.input_type if kind == "Input" else node.output_type).values())
            )
        nodes[str(name)] = RawNode(kind, parameters)
    return nodes, [(str(source), str(target)) for source, target in graph.edges]


# ---- files


def _read_file(path: str) -> Nested:
    with needs(f"reading {path}"):
        import h5py
    with open_file(path) as stream:
        try:
            with h5py.File(stream, "r") as file:
                return _FileReader(h5py).graph(_child(h5py, file, "node"), 0)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except Exception as error:  # h5py raises many kinds of errors on damaged files
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:90]
            raise InputError(
                f"{path} is damaged or not a NIR file ({said}): write it again with nir.write."
            ) from None


def _child(h5py: Any, group: Any, name: str) -> Any:
    """An entry of a group. Links to other entries or other files are refused."""
    if name not in group:
        raise InputError(f"an entry {name!r} is missing: write the graph again with nir.write.")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise InputError(
            f"the entry {name[:60]!r} is a link: write the graph again with nir.write, which "
            "stores no links."
        )
    return group[name]


class _FileReader:
    """Reads groups, and counts what it has read."""

    def __init__(self, h5py: Any) -> None:
        self._h5py, self._nodes, self._bytes = h5py, 0, 0

    def graph(self, group: Any, depth: int) -> Nested:
        if depth > DEEPEST:
            raise InputError(
                f"it has subgraphs more than {DEEPEST} levels deep: write the graph again with "
                "nir.write."
            )
        if self.text(group, "type") != "NIRGraph":
            raise InputError(
                f"it holds a single {self.text(group, 'type')[:40]!r} node: a NIRGraph is needed."
            )
        edges = self.array(_child(self._h5py, group, "edges"))
        if edges.size and (edges.ndim != 2 or edges.shape[1] != 2):
            raise InputError(f"its edges have shape {edges.shape}: pairs of names are needed.")
        listed = _child(self._h5py, group, "nodes")
        nodes = {name: self.node(_child(self._h5py, listed, name), depth) for name in listed}
        return nodes, [(_text(source), _text(target)) for source, target in edges.reshape(-1, 2)]

    def node(self, group: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise InputError(f"it has more than {MOST_NODES:,} nodes: split the graph.")
        kind = self.text(group, "type")
        if kind == "NIRGraph":
            return self.graph(group, depth + 1)
        entries = [name for name in group if name not in ("type", "metadata")]
        return RawNode(
            kind, {name: self.array(_child(self._h5py, group, name)) for name in entries}
        )

    def text(self, group: Any, name: str) -> str:
        return _text(self.array(_child(self._h5py, group, name)).item())

    def array(self, data: Any) -> NDArray[Any]:
        """The content of a data set, unless it declares more than its storage can hold."""
        if not isinstance(data, self._h5py.Dataset):
            raise InputError(
                f"the entry {str(data.name)[:60]!r} is a group: parameters of nodes are arrays."
            )
        self._check_storage(data)
        size, stored = data.size * data.dtype.itemsize, data.id.get_storage_size()
        self._bytes += size
        if self._bytes > MOST_BYTES or size > SMALL + stored * (
            1 if data.compression is None else COMPRESSION
        ):
            raise InputError(
                f"{str(data.name)[:60]!r} declares {size:,} bytes, and {stored:,} are stored: at "
                f"most {MOST_BYTES:,} are read."
            )
        return np.asarray(data[()])

    def _check_storage(self, data: Any) -> None:
        """Refuse values that are in another file, or that are put together from other data sets."""
        external = not data.is_virtual and data.external is not None
        if external or data.is_virtual:
            where = "in another file" if external else "a view of other data sets"
            raise InputError(
                f"the values of {str(data.name)[:60]!r} are {where}: write the graph again with "
                "nir.write, which stores all values in the file."
            )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if not isinstance(value, str):
        raise InputError(f"a name or type is a {type(value).__name__}: text is needed.")
    return value


# ---- subgraphs


def _flatten(
    nodes: dict[str, Any],
    edges: list[tuple[str, str]],
    prefix: str,
    flat: dict[str, RawNode],
    joined: list[tuple[str, str]],
    origin: str,
) -> None:
    """Add nodes and edges of a graph and of its subgraphs.

    An edge to a subgraph leads to its Input, one from it comes from its Output.
    """
    ends: dict[str, tuple[str, str]] = {}
    for name, node in nodes.items():
        full = prefix + name
        if isinstance(node, RawNode):
            if full in flat:
                raise InputError(
                    f"{origin}: two nodes are called {full[:60]!r}, one of them in a subgraph: "
                    "rename one of them."
                )
            flat[full] = node
            ends[name] = full, full
        else:
            _flatten(node[0], node[1], f"{full}.", flat, joined, origin)
            ends[name] = (
                _only(node[0], "Input", full, origin),
                _only(node[0], "Output", full, origin),
            )
    for source, target in edges:
        for name in (source, target):
            if name not in ends:
                raise InputError(
                    f"{origin}: an edge names {(prefix + name)[:60]!r}, which is no node of the "
                    "graph: remove the edge or add the node."
                )
        joined.append((ends[source][1], ends[target][0]))


def _only(nodes: dict[str, Any], kind: str, name: str, origin: str) -> str:
    found = [
        inner for inner, node in nodes.items() if isinstance(node, RawNode) and node.kind == kind
    ]
    if len(found) != 1:
        raise InputError(
            f"{origin}: the subgraph {name[:60]!r} has {len(found)} {kind} nodes: one is needed."
        )
    return f"{name}.{found[0]}"


def sources_of(edges: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The sources of each node that has any, each once, in the order of their names."""
    found: dict[str, set[str]] = {}
    for source, target in edges:
        found.setdefault(target, set()).add(source)
    return {target: sorted(names) for target, names in found.items()}


def reachable(start: str, neighbours: Mapping[str, list[str]]) -> Iterator[str]:
    """All names that can be reached from `start`, itself only through a cycle."""
    seen, waiting = set(), [start]
    while waiting:
        for name in neighbours.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
                yield name
