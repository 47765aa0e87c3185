"""Every public name has numpydoc sections and an example, and all examples run; those of the core
need numpy alone.
"""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import agreestop as ag

NEEDED = {"LearnedRisk": "sklearn", "LearnedRisk.fit": "sklearn"}
"""Examples that need another package than numpy."""
HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "numba", "pandas", "jinja2")
RETURNED = re.findall(
    r"^   ~(agreestop\.[\w.]+)$",
    (Path(__file__).parents[1] / "docs" / "api" / "returned.rst").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)
"""Classes that functions return and that nobody makes by hand, which have pages too."""
FOR_AUTHORS = {
    *("AnyRisk", "Evidence", "Inputs", "Interval", "Judged", "Overlap", "PlainRule", "Policy"),
    *("Reader", "Risk", "RiskNumbers", "Rounding", "Rule", "Score", "Shaped", "State", "Tails"),
    *("Terms", "Transcript", "TunedRows", "Verdict", "CapturedRows", "Iterator", "Self"),
}
"""Classes that those meet who write rules, scores and risks (docs/design.md)."""


def sections(value: object) -> set[str]:
    """The headings of a numpydoc docstring."""
    return set(re.findall(r"^(\w+)\n-{3,}$", inspect.getdoc(value) or "", flags=re.MULTILINE))


def settings(value: Any) -> set[str]:
    """What a function or a class takes or holds; errors and warnings take a message as all do."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return set()
    if is_dataclass(value):
        return {field.name for field in fields(value) if field.init}
    return set(inspect.signature(value).parameters)


def lacks(value: Any) -> list[str]:
    """What the docstring of a public class or function lacks."""
    found = sections(value)
    missing = [] if "Examples" in found else ["Examples"]
    if settings(value) and not found & {"Parameters", "Attributes"}:
        missing.append("Parameters or Attributes")
    return missing


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that are defined in agreestop."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function = (
            member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        )
        function = getattr(function, "func", function)  # cached properties
        if (
            not name.startswith("_")
            and inspect.isfunction(function)
            and function.__module__.startswith("agreestop")
        ):
            yield name, function


def documented() -> dict[str, Any]:
    """All public names and their public methods; what several classes share stands here once."""
    found = {name: getattr(ag, name) for name in ag.__all__}
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found |= {
                f"{name}.{method}": function
                for method, function in methods(value)
                if function not in found.values()
            }
    return found


def failures(name: str, value: Any) -> list[str]:
    """What the examples of a docstring print in place of what they say; each begins without any
    names.
    """
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    scope = vars(sys.modules[value.__module__])
    for test in doctest.DocTestFinder(recurse=False).find(value, name, globs=dict(scope)):
        runner.run(test, out=printed.append)
    return printed


def decided(name: str) -> bool:
    """Whether a class belongs to the decision layer, which needs numpy alone."""
    return name.startswith(("agreestop.decide", "agreestop.common"))


@pytest.mark.parametrize("name", [name for name in RETURNED if decided(name)])
def test_what_functions_return_has_an_example_that_runs(name: str) -> None:
    module, _, kind = name.rpartition(".")
    value = getattr(import_module(module), kind)
    assert lacks(value) == [] and failures(kind, value) == []


def test_every_class_that_the_decision_layer_returns_has_a_page() -> None:
    known = {*ag.__all__, *(name.rpartition(".")[2] for name in RETURNED)}
    for name, value in documented().items():
        returned = str(getattr(value, "__annotations__", {}).get("return", ""))
        for word in re.findall(r"(?<![.\w])[A-Z]\w+", returned):
            kind = vars(sys.modules[value.__module__]).get(word)
            if inspect.isclass(kind) and kind.__module__.startswith("agreestop"):
                assert word in known | FOR_AUTHORS, f"{name} returns {word}"


@pytest.mark.parametrize("name", ag.__all__)
def test_a_public_name_has_its_sections(name: str) -> None:
    assert lacks(getattr(ag, name)) == []


@pytest.mark.parametrize(
    "name", [name for name in ag.__all__ if inspect.isclass(getattr(ag, name))]
)
def test_public_methods_say_what_they_do(name: str) -> None:
    """A method may say it in the class that it overrides."""
    kind = getattr(ag, name)
    silent = [
        one
        for one, _ in methods(kind)
        if not any(vars(base)[one].__doc__ for base in kind.__mro__ if one in vars(base))
    ]
    assert silent == []


@pytest.mark.parametrize(
    "name", [name for name, value in documented().items() if ">>>" in (value.__doc__ or "")]
)
def test_the_examples_run(name: str) -> None:
    if package := NEEDED.get(name):
        pytest.importorskip(package, reason=f"this example needs {package}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ag.CalibrationWarning)
        assert failures(name, documented()[name]) == []


def test_the_examples_of_the_core_need_numpy_alone() -> None:
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY!r}))\n"
        "import tests.test_docstrings as here\n"
        "for name, value in here.documented().items():\n"
        "    if name not in here.NEEDED and here.failures(name, value):\n"
        "        print(name)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_the_checks_can_fail() -> None:
    def without(x: int) -> None:
        """One line.

        Examples
        --------
        >>> 1 + 1
        3
        """

    @dataclass
    class Bare:
        """One line."""

        x: int

    assert lacks(without) == ["Parameters or Attributes"]
    assert lacks(Bare) == ["Examples", "Parameters or Attributes"]
    assert len(failures("without", without)) == 1
