"""Docstrings as reStructuredText, and which members the API pages show."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from agreestop.decide.confidence import Pooling
from agreestop.decide.risks import Reader, Risk, Score
from agreestop.decide.rule import Rule

FOR_AUTHORS = (Rule, Reader, Score, Risk, Pooling)
"""Base classes. Their methods are for those who add a rule, a score, a risk or a pooling."""
FOR_USERS = ("calibrate", "examples_needed")
"""Their methods that every user calls."""
INNER = {
    *("CalibratedRule.miss_level", "CalibratedRule.reach", "CalibratedRule.safe_threshold"),
    *("CalibratedRule.shown", "CalibratedRule.with_threshold"),
    *("Scores.cells", "Scores.loss", "Scores.sketched"),
}
"""What only other modules call."""
LONGEST = 60  # characters of a value
HEADING = re.compile(r"^-{3,}$")
COLUMNS = re.compile(r"(?P<name>\S.*?) {2,}(?P<text>\S.*)")
CODE = re.compile(r"(`[^`]*`)")
SPECIAL = re.compile(r"([*|]|_(?!\w))")
"""Characters that reStructuredText would take for markup."""


def _escaped(text: str) -> str:
    """A line of plain text: what stands between backticks is code, the rest has no markup."""
    parts = CODE.split(text)
    return "".join(
        f"`{part}`" if part.startswith("`") else SPECIAL.sub(r"\\\1", part) for part in parts
    )


def _whole_spans(lines: list[str]) -> Iterator[str]:
    """Join lines where a piece of code goes on in the next line."""
    open_line = ""
    for line in lines:
        whole = f"{open_line} {line.lstrip()}" if open_line else line
        open_line = whole if whole.count("`") % 2 else ""
        if not open_line:
            yield whole


def as_text(lines: list[str], quote: str = "`") -> Iterator[str]:
    """Plain text as reStructuredText: columns become definitions, and indented lines blocks of
    code.

    quote  what stands around the names in a first column
    """
    before = "text"
    for line in _whole_spans(lines):
        indented, columns = line.startswith(" "), COLUMNS.fullmatch(line)
        kind = (
            "blank"
            if not line
            else "columns"
            if columns or (indented and before == "columns")
            else "code"
            if indented
            else "text"
        )
        if kind == "blank":
            yield line
            before = "blank" if before != "code" else "code"
            continue
        if kind == "code" and before != "code":
            yield from ("", "::", "")
        elif kind != before and before not in (
            "blank",
            "columns" if kind == "columns" else "blank",
        ):
            yield ""
        if columns and not indented:
            yield from (
                "",
                f"{quote}{columns['name'].replace('`', '')}{quote}",
                f"    {_escaped(columns['text'])}",
            )
        elif kind == "columns":
            yield f"    {_escaped(line.strip())}"
        else:
            yield line if kind == "code" else _escaped(line)
        before = kind


def process_docstring(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Rewrite what stands above the sections of numpydoc; a constant shows its value."""
    if what in ("data", "attribute") and not hasattr(value, "__set__"):
        lines[:] = [f"`{_shortened(repr(value))}`", ""]
    end = next((number - 1 for number, line in enumerate(lines) if HEADING.match(line)), len(lines))
    lines[:end] = [*as_text(lines[:end], "" if what == "module" else "`"), ""]


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


class _Words:
    """A default value or an annotation that is shown as these words."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _definition(value: Any) -> Any:
    """The syntax tree of a function or a class."""
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _types(value: Any) -> dict[str, str]:
    """The annotations of a function or a class, as the source writes them."""
    if inspect.isclass(value):
        bases = [
            _definition(base)
            for base in reversed(value.__mro__)
            if base.__module__.startswith("agreestop")
        ]
        body = [node for base in bases for node in base.body]
        fields = {
            ast.unparse(node.target): ast.unparse(node.annotation)
            for node in body
            if isinstance(node, ast.AnnAssign)
        }
        made_by = (
            _written(node)
            for node in body
            if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        )
        return fields | {name: text for found in made_by for name, text in found.items()}
    return _written(_definition(value))


def _written(function: Any) -> dict[str, str]:
    given = [
        node for node in ast.walk(function.args) if isinstance(node, ast.arg) and node.annotation
    ]
    written = {one.arg: ast.unparse(one.annotation) for one in given}
    return written | ({"return": ast.unparse(function.returns)} if function.returns else {})


def _shown(parameter: inspect.Parameter, types: dict[str, str]) -> inspect.Parameter:
    """A parameter as the source writes it; long defaults are shortened."""
    default = parameter.default
    if repr(default) == "<factory>" or inspect.isfunction(default) or len(repr(default)) > LONGEST:
        default = _Words("…")
    annotation = (
        _Words(types[parameter.name].strip("'"))
        if parameter.name in types
        else inspect.Parameter.empty
    )
    return parameter.replace(default=default, annotation=annotation)


def process_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Types are shown where the docstring has no section with them."""
    if not signature:
        return None
    types = {} if "\nParameters\n" in (inspect.getdoc(value) or "") else _types(value)
    found = inspect.signature(value)
    parameters = [
        _shown(one, types) for one in found.parameters.values() if one.name not in ("self", "cls")
    ]
    shown = str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return shown, "" if what == "class" else types.get("return", "").strip("'")


def skip_member(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what belongs to other packages, and what only authors of rules and other modules
    call.
    """
    function = inspect.unwrap(
        value.fget if isinstance(value, property) else getattr(value, "func", value)
    )
    function = getattr(function, "__func__", function)
    if what != "class" or inspect.isclass(value):  # autosummary asks about classes of a module too
        return None
    if (
        not inspect.isfunction(function)
        or not function.__module__.startswith("agreestop")
        or not function.__doc__
    ):
        return True
    if function.__qualname__ in INNER or "<locals>" in function.__qualname__:
        return True
    owner = getattr(sys.modules[function.__module__], function.__qualname__.split(".")[0])
    hidden = {
        one
        for base in FOR_AUTHORS
        if inspect.isclass(owner) and issubclass(owner, base)
        for one in vars(base)
    } - set(FOR_USERS)
    return True if name in hidden else None
