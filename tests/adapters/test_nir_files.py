"""Bad graphs and bad files: one sentence each, and nothing is read that a file only pretends to
hold.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="adapters need PyTorch")
nir = pytest.importorskip("nir", reason="agreestop[nir] is not installed")
import h5py

from agreestop.adapters import compare, from_nir
from tests.adapters.nir_reference import chain, neurons, weights
from tests.networks.plain import refused

RNG = np.random.default_rng(0)


def small(kind: str = "LIF") -> Any:
    return chain(nir.Linear(weight=weights(RNG, 4, 3)), neurons(kind, (4,), RNG))


def graph_of(nodes: dict[str, Any], edges: list[tuple[str, str]]) -> Any:
    """A graph whose types NIR itself would refuse."""
    made = small()
    made.nodes, made.edges = (
        {"input": nir.Input(np.array([3])), **nodes, "output": nir.Output(np.array([4]))},
        edges,
    )
    return made


def changed(**parameters: Any) -> Any:
    """A graph with other parameters in its neurons."""
    made = small("CubaLIF")
    vars(made.nodes["cubalif"]).update(parameters)
    return made


def test_a_file_is_as_the_graph_that_was_written(tmp_path: Path) -> None:
    graph = small("CubaLIF")
    nir.write(tmp_path / "small.nir", graph)
    engines = [
        from_nir(source, dt=1e-3)
        for source in (graph, tmp_path / "small.nir", [str(tmp_path / "small.nir")])
    ]
    assert len({engine.digest for engine in engines}) == 1
    assert compare(engines[0], engines[1], RNG.random((4, 20, 3)) < 0.5).equal


def loop(source: str, target: str) -> Any:
    line = {
        "a": nir.Linear(weight=weights(RNG, 3, 3)),
        "b": nir.Linear(weight=weights(RNG, 3, 3)),
        "c": nir.Linear(weight=weights(RNG, 4, 3)),
    }
    edges = [
        ("input", "a"),
        ("a", "b"),
        ("b", "c"),
        ("c", "lif"),
        ("lif", "output"),
        (source, target),
    ]
    return graph_of({**line, "lif": neurons("LIF", (4,), RNG)}, edges)


def delay() -> Any:
    return graph_of({"wait": nir.Delay(delay=np.ones(3))}, [("input", "wait"), ("wait", "output")])


def small_image() -> Any:
    pool = nir.SumPool2d(np.full(2, 5), np.ones(2), np.zeros(2))
    return graph_of({"input": nir.Input(np.array([1, 2, 2])), "a": pool}, THROUGH_A)


def unequal_sum() -> Any:
    nodes = {"a": nir.Linear(weight=np.ones((4, 3))), "b": nir.IF(np.ones(4), np.ones(4))}
    return graph_of(nodes, [("input", "a"), ("a", "b"), ("input", "b"), ("b", "output")])


def same_names() -> Any:
    inner = graph_of({"n": nir.IF(np.ones(3), np.ones(3))}, [("input", "n"), ("n", "output")])
    return graph_of(
        {"s": inner, "s.n": nir.IF(np.ones(3), np.ones(3))},
        [("input", "s"), ("s", "s.n"), ("s.n", "output")],
    )


THROUGH_A = [("input", "a"), ("a", "output")]
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no dt": (lambda: from_nir(small()), "give dt"),
    "dt zero": (lambda: from_nir(small(), dt=0), "dt is 0"),
    "dt text": (lambda: from_nir(small(), dt="1e-3"), "dt is '1e-3'"),  # type: ignore[arg-type]
    "dt nan": (lambda: from_nir(small(), dt=float("nan")), "dt is nan"),
    "dt of another library": (lambda: from_nir(small(), dt=1e-1), "less than dt"),
    "reset": (
        lambda: from_nir(small(), dt=1e-3, reset="hard"),
        "choose one of graph, zero, subtract",
    ),
    "resets": (lambda: from_nir([small()], dt=1e-3, reset=["graph", "zero"]), "one for each graph"),
    "engine": (lambda: from_nir(small(), dt=1e-3, engine="fused"), "choose one of auto"),
    "no graphs": (lambda: from_nir([], dt=1e-3), "holds no graph"),
    "no graph": (lambda: from_nir([3], dt=1e-3), "a graph is a int"),
    "unknown node": (lambda: from_nir(delay()), "'wait' is of type 'Delay'"),
    "cycle without neurons": (lambda: from_nir(loop("b", "a"), dt=1e-3), "cycle without neurons"),
    "cycle at itself": (lambda: from_nir(loop("b", "b"), dt=1e-3), "cycle without neurons"),
    "no such node": (lambda: from_nir(loop("b", "z"), dt=1e-3), "'z', which is no node"),
    "not connected": (
        lambda: from_nir(graph_of({"a": nir.IF(np.ones(4), np.ones(4))}, [("a", "output")])),
        "gets nothing from the Input",
    ),
    "two inputs": (
        lambda: from_nir(graph_of({"other": nir.Input(np.array([3]))}, [("input", "output")])),
        "2 Input nodes",
    ),
    "no output": (lambda: from_nir(graph_of({}, [])), "gets nothing from the Input"),
    "weights": (
        lambda: from_nir(graph_of({"a": nir.Linear(weight=np.ones((4, 5)))}, THROUGH_A)),
        "an input of shape",
    ),
    "neurons": (
        lambda: from_nir(graph_of({"a": nir.IF(np.ones(5), np.ones(5))}, THROUGH_A)),
        "'a'",
    ),
    "tau zero": (lambda: from_nir(changed(tau_syn=np.zeros(4)), dt=1e-3), "less than dt"),
    "tau nan": (
        lambda: from_nir(changed(tau_mem=np.full(4, np.nan)), dt=1e-3),
        "no finite numbers",
    ),
    "tau text": (
        lambda: from_nir(changed(tau_mem=np.array(["a"] * 4)), dt=1e-3),
        "no finite numbers",
    ),
    "r missing": (lambda: from_nir(changed(r=None), dt=1e-3), "no valid 'r'"),
    "threshold": (
        lambda: from_nir(changed(v_threshold=np.full(4, 1e300)), dt=1e-3),
        "float32 cannot hold",
    ),
    "classes": (
        lambda: from_nir(
            [small("IF"), chain(nir.Linear(weight=np.ones((5, 3))), nir.IF(np.ones(5), np.ones(5)))]
        ),
        "classes 4, 5",
    ),
    "outputs": (lambda: from_nir([small("IF"), small("I")]), "spikes, logits"),
    "shape": (
        lambda: from_nir(
            graph_of({"input": nir.Input(np.array([2**20, 2**20]))}, [("input", "output")])
        ),
        "product",
    ),
    "pool": (lambda: from_nir(small_image()), "gives values of shape"),
    "same names": (lambda: from_nir(same_names()), "two nodes are called 's.n'"),
    "sums": (lambda: from_nir(unequal_sum()), "adds inputs of shapes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_graph_or_argument_is_refused(name: str) -> None:
    call, match = WRONG[name]
    refused(call, match)


def write(path: Path, change: Callable[[Any], None]) -> Path:
    """A valid file in which something is changed."""
    nir.write(path, small("IF"))
    with h5py.File(path, "r+") as file:
        change(file["node"])
    return path


def replace(name: str, value: Any, **options: Any) -> Callable[[Any], None]:
    def change(node: Any) -> None:
        if name in node:
            del node[name]
        if options:
            node.create_dataset(name, **options)
        elif value is not None:
            node[name] = value

    return change


def loop_of_groups(node: Any) -> None:
    node["type"][()] = "NIRGraph"
    node["nodes/again"] = node


def elsewhere(node: Any) -> None:
    """Weights that HDF5 reads from another file, as it would read any file of the machine."""
    folder = Path(node.file.filename).parent
    (folder / "secret.bin").write_bytes(np.full((4, 3), 7.0, "f8").tobytes())
    del node["nodes/linear/weight"]
    node["nodes/linear"].create_dataset(
        "weight", (4, 3), "f8", external=[(str(folder / "secret.bin"), 0, 96)]
    )


def virtual(node: Any, file: str = ".") -> None:
    node["nodes/linear"].file["copy"] = np.ones((4, 3))
    layout = h5py.VirtualLayout((4, 3), "f8")
    layout[:] = h5py.VirtualSource(file, "copy", (4, 3))
    del node["nodes/linear/weight"]
    node["nodes/linear"].create_virtual_dataset("weight", layout)


def virtual_elsewhere(node: Any) -> None:
    other = Path(node.file.filename).parent / "other.h5"
    with h5py.File(other, "w") as file:
        file["copy"] = np.ones((4, 3))
    virtual(node, str(other))


FILES: dict[str, tuple[Callable[[Any], None], str]] = {
    "no edges": (replace("edges", None), "'edges' is missing"),
    "no type": (replace("nodes/if/type", None), "'type' is missing"),
    "numbers as edges": (replace("edges", np.ones((2, 2))), "text is needed"),
    "edges of three": (replace("edges", np.array([[b"a", b"b", b"c"]])), "edges have shape"),
    "another type": (replace("nodes/if/type", b"Spiker\x1b[2J"), "Spiker"),
    "not a graph": (replace("type", b"LIF"), "a NIRGraph is needed"),
    "a soft link": (
        replace("nodes/if/r", h5py.SoftLink("/node/nodes/if/v_threshold")),
        "is a link",
    ),
    "another file": (replace("nodes/if", h5py.ExternalLink("/etc/passwd", "/")), "is a link"),
    "a soft link to nothing": (replace("nodes/if/r", h5py.SoftLink("/elsewhere/r")), "is a link"),
    "external storage": (elsewhere, "values of '/node/nodes/linear/weight' are in another file"),
    "a virtual data set": (virtual, "are a view of other data sets"),
    "a virtual data set of another file": (virtual_elsewhere, "are a view of other data sets"),
    "a group": (
        lambda node: (node["nodes/if"].pop("r"), node["nodes/if"].create_group("r"))[0],
        "is a group",
    ),
    "a loop of groups": (loop_of_groups, "levels deep"),
    "a weight that is not there": (
        replace("nodes/linear/weight", None, shape=(2**20, 2**20), dtype="f8", chunks=(64, 64)),
        "declares",
    ),
    "many zeros": (
        replace(
            "nodes/linear/weight",
            None,
            shape=(2**14, 2**12),
            dtype="f4",
            chunks=(64, 64),
            compression="gzip",
        ),
        "declares",
    ),
    "an empty weight": (replace("nodes/linear/weight", np.zeros((0, 3))), "no finite numbers"),
    "complex": (replace("nodes/if/r", np.ones(4, complex)), "no finite numbers"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_refused(name: str, tmp_path: Path) -> None:
    change, match = FILES[name]
    path = write(tmp_path / "a.nir", change)
    refused(lambda: from_nir(path), match)


def test_what_is_no_file_of_nir_is_refused(tmp_path: Path) -> None:
    refused(lambda: from_nir(tmp_path / "none.nir"), "there is no file")
    refused(lambda: from_nir(tmp_path), "folder")
    (tmp_path / "text.nir").write_text("hello")
    refused(lambda: from_nir(tmp_path / "text.nir"), "not a NIR file")
    nir.write(tmp_path / "cut.nir", small())
    (tmp_path / "cut.nir").write_bytes((tmp_path / "cut.nir").read_bytes()[:3000])
    refused(lambda: from_nir(tmp_path / "cut.nir"), "damaged")
