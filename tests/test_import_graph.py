"""The import graph, lazy imports included: packages stand in one order, and no two modules import
each other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "agreestop"
ORDER = (
    {"common"},
    {"decide"},
    {"events"},
    {"kernels"},
    {"networks"},
    {"engines"},
    {"ensembles", "adapters"},
    {"report"},
    {"export", "serve", "cluster"},
    {"pipeline"},
    {"cli"},
)
"""A package imports only from packages in earlier rows, and from itself."""
RANK = {package: rank for rank, row in enumerate(ORDER) for package in row}


def modules(root: Path = SOURCE) -> dict[str, Path]:
    """Dotted names of all modules of the package, `agreestop` included."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a module imports, anywhere in its source."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                if f"{module}.{alias.name}" in known:
                    yield f"{module}.{alias.name}"
                elif module in known:
                    yield module


def graph(root: Path = SOURCE) -> dict[str, set[str]]:
    """For each module, the modules that it imports."""
    known = modules(root)
    return {name: set(imported(name, path, known)) - {name} for name, path in known.items()}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def wrong_edges(edges: dict[str, set[str]]) -> list[str]:
    """Imports against the order of the packages. The top level may import from every package, and
    no package imports it.
    """
    wrong = []
    for name, targets in edges.items():
        for target in targets:
            importer, package = package_of(name), package_of(target)
            allowed = (
                not importer or importer == package or (package and RANK[package] < RANK[importer])
            )
            if not allowed:
                wrong.append(f"{name} imports {target}")
    return wrong


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring; none if there is no ring. The top level re-exports
    names lazily and is left out.
    """
    inner = {
        name: targets - {"agreestop"} for name, targets in edges.items() if name != "agreestop"
    }
    try:
        tuple(TopologicalSorter(inner).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_package_is_in_the_order() -> None:
    packages = {package_of(name) for name in modules()} - {""}
    assert packages <= set(RANK)


def test_packages_import_only_what_stands_before_them() -> None:
    assert wrong_edges(graph()) == []


def test_no_modules_import_each_other() -> None:
    assert find_cycle(graph()) == []


@pytest.mark.parametrize("path", ["paper", "benchmarks"])
def test_the_package_imports_nothing_outside_the_wheel(path: str) -> None:
    for name, source in modules().items():
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            assert path not in {one.split(".")[0] for one in names}, name


def test_wrong_edges_and_cycles_are_found(tmp_path: Path) -> None:
    """The checks themselves can fail: a lazy import against the order, and a ring of
    three modules.
    """
    root = tmp_path / "agreestop"
    for name, text in {
        "__init__": "",
        "decide/__init__": "",
        "decide/a": "def use():\n    from agreestop.engines.b import run\n",
        "engines/__init__": "",
        "engines/b": "from .c import x",
        "engines/c": "def use():\n    from . import d\n",
        "engines/d": "import agreestop.engines.b",
    }.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    edges = graph(root)
    assert wrong_edges(edges) == ["agreestop.decide.a imports agreestop.engines.b"]
    assert set(find_cycle(edges)) == {
        "agreestop.engines.b",
        "agreestop.engines.c",
        "agreestop.engines.d",
    }
