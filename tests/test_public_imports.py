"""Tests go through public names, so that what is private can change without them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the packages whose public names are counted need PyTorch")

import agreestop as ag
from tests.test_import_graph import SOURCE

TESTS = Path(__file__).parent
LEAST_PUBLIC = 0.8
ON_FIRST_USE = {
    "agreestop.plot",
    "agreestop.write_report",
    "agreestop.__version__",
    "agreestop.__file__",
    "agreestop.__all__",
}
"""Names of agreestop that load on first use, or that every package has."""


def packages() -> dict[str, set[str]]:
    """The public names of every package: those in its `__all__`."""
    found = [
        "agreestop" + "".join(f".{part}" for part in path.parent.relative_to(SOURCE).parts)
        for path in SOURCE.rglob("__init__.py")
    ]
    return {name: set(getattr(import_module(name), "__all__", ())) for name in found}


def attribute(node: ast.AST) -> list[str]:
    """The parts of a dotted name, or nothing for another expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    inner = attribute(node.value) if isinstance(node, ast.Attribute) else []
    return [*inner, node.attr] if inner and isinstance(node, ast.Attribute) else []


def reached(text: str, public: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Package or module, and name, of what a file reaches in agreestop: by an import, or as an
    attribute of a package that it imports.
    """
    tree, known = ast.parse(text), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "agreestop":
                    known[alias.asname or "agreestop"] = alias.name if alias.asname else "agreestop"
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] == "agreestop"
        ):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in public:
                    known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    yield str(node.module), alias.name
    for node in ast.walk(tree):
        first, *rest = attribute(node) or [""]
        module = known.get(first, "")
        while module and rest and f"{module}.{rest[0]}" in public:
            module += f".{rest.pop(0)}"
        if module and rest:
            yield module, rest[0]


def split(text: str, public: dict[str, set[str]]) -> tuple[set[str], set[str]]:
    """What a file reaches: public names, and others."""
    found = set(reached(text, public))
    good = {
        (module, name)
        for module, name in found
        if name in public.get(module, ()) or f"{module}.{name}" in ON_FIRST_USE
    }
    return {".".join(one) for one in good}, {".".join(one) for one in found - good}


def test_four_of_five_names_that_tests_reach_are_public() -> None:
    """Each name counts once in each file."""
    public = packages()
    parts = [split(path.read_text(encoding="utf-8"), public) for path in TESTS.rglob("*.py")]
    good, bad = (sum(len(part[index]) for part in parts) for index in (0, 1))
    assert good / (good + bad) >= LEAST_PUBLIC, (
        f"{good} of {good + bad}: {sorted(set().union(*(part[1] for part in parts)))}"
    )


def test_the_count_can_fail() -> None:
    public = {"agreestop": set(ag.__all__), "agreestop.networks": {"Neuron"}}
    text = (
        "import agreestop as ag\nfrom agreestop import networks as nets\nfrom agreestop.networks "
        "import Neuron, srm\n"
        "from agreestop.decide.rules import "
        "AgreeStop\nag.evaluate(ag.nothing)\nag.networks.Neuron\nnets.layers.MemberLinear\n"
    )
    good, bad = split(text, public)
    assert good == {"agreestop.evaluate", "agreestop.networks.Neuron"}
    assert bad == {
        "agreestop.nothing",
        "agreestop.networks.srm",
        "agreestop.networks.layers",
        "agreestop.decide.rules.AgreeStop",
    }
