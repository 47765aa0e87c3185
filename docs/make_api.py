"""Write docs/api.md from the docstrings of all public names of `agreestop` and of its packages.

Docstrings in the layout of numpydoc become Markdown: parameters are lists, examples are blocks of
code. In other docstrings paragraphs stay paragraphs, and columns stay as they are.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import agreestop as ag
from agreestop.decide.confidence import Pooling
from agreestop.decide.risks import Reader, Risk, Score
from agreestop.decide.rule import Rule

RULES = ("SpikeCP", "AgreeStop", "StopRule", "IntervalStop", "DCSNN", "SEENN")
SECTIONS = {
    "Rules": (*RULES, "Schedule", "CalibratedRule", "Session", "load_rule"),
    "Pooling": ("MergeConfidence", "MergePValues", "MergeRanks", "MajorityVote"),
    "Scores": ("LogLoss", "Temperature", "TuningRanks", "Spread"),
    "Risks": ("TopMass", "FixedTime", "LearnedRisk", "ShapedRisk", "VoteRisk", "Gate", "GiveUp", "Tree"),
    "Open answers and numbers": ("Answers", "sample_until", "Numbers"),
    "Alarms": ("Spotter", "Detection"),
    "Tuning": ("tune", "Tuned", "front"),
    "Decisions": ("Decision", "Decisions", "evaluate", "Evaluation", "repeat_splits", "Splits"),
    "Drift": ("DriftMonitor", "AdaptiveRule"),
    "Confidence and p-variables": ("log_confidence", "generalized_mean", "p_values"),
    "Merging p-variables": ("merging_factor", "merge_p_values"),
    "Score files and simulated scores": ("Scores", "load_scores", "save_scores", "save_spikes", "simulate_scores"),
    "Errors and warnings": ("InputError", "CalibrationWarning"),
}
PACKAGES = {
    "plot": "Figures of evaluations and decisions, on axes of your own",
    "ensembles": "Ensembles of spiking networks: train, score, decide, save",
    "adapters": "Models of other libraries and of your own, really stopped",
    "networks": "Architectures, neurons and posteriors; modules of your own",
    "events": "Inputs, file formats, data sets and the simulated event camera",
    "engines": "What runs the members, and stops early",
    "cluster": "The same work on the machines of a Ray cluster",
    "serve": "A server for live inputs, and its clients",
    "export": "An ensemble and its rules as C sources for a device, or as a page to watch",
}
LONGEST_DEFAULT, LONGEST_CONSTANT = 45, 120  # characters
FOR_AUTHORS = (Rule, Reader, Score, Risk, Pooling)
"""Base classes. Their methods are for those who add a rule, a score, a risk or a pooling."""
FOR_USERS = ("calibrate", "examples_needed")
"""Their methods that every user calls."""
BEFORE_CALIBRATION = ("decide", "stream", "save")
"""Verbs of a calibrated rule, which a rule before calibration has only to say so."""
INNER = {
    "CalibratedRule": ("miss_level", "reach", "safe_threshold", "shown", "with_threshold"),
    "Scores": ("cells", "loss", "sketched"),
}
"""What only other modules call."""
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", flags=re.MULTILINE)
LISTS = ("Parameters", "Returns", "Attributes", "Raises", "Yields")
INTRODUCTION = """# API

Every public name of `agreestop`. Shapes: n inputs, M checkpoints, K members, C classes, T steps.
Written by `make docs`.

How rules work inside, and what one implements to add one: [design.md](design.md).

`import agreestop as ag` gives the decision layer, which needs only numpy. The packages
`ag.ensembles`, `ag.adapters`, `ag.networks`, `ag.events`, `ag.engines`, `ag.cluster`, `ag.export`
and `ag.serve` are loaded when they are first used. They need `agreestop[networks]`, and
`agreestop[engines]` for the fastest engine on CPUs and for `ag.export`; `ag.cluster` needs
`agreestop[cluster]`, and `ag.serve` needs `agreestop[serve]`.

Names of types in the signatures:

| name | is |
|---|---|
| `ArrayLike` | anything that numpy makes an array of |
| `Floats`, `Integers`, `Booleans` | a numpy array of float64, int64, bool |
| `ScoresLike` | a `Scores`, or log-confidences `(n, M, K, C)` |
| `Target` | a probability: 0.9, "0.9", "9/10", or a Fraction or Decimal |
| `Pooling` | `MergeConfidence`, `MergePValues`, `MergeRanks` or `MajorityVote` |
| `NetworkSource` | settings of an architecture, a builder `() -> module`, or a list of modules |
| `RowIndex` | an index, a slice, or a list or array of indices or booleans |
| `Range` | one number for all inputs, or the lowest and the highest |
| `Sizes` | the numbers of inputs for training, tuning and pool |
| `ProgressCallback` | a function that takes a few words and the share of the work that is done |
"""


def entry(value: Any, name: str, path: str, described: set[Any]) -> str:
    """A heading, the signature and the docstring; for a class also its methods and properties.

    described  functions that stand on the page already; what is described here is added
    """
    if not callable(value) or not hasattr(value, "__module__") or not hasattr(value, "__name__"):
        return f"### `{path}`\n\n```python\n{name} = {_constant(value)}\n```\n"
    lines = [f"### `{path}`", "", "```python", f"{name}{_signature(value)}", "```", ""]
    lines += [markdown(inspect.getdoc(value) or ""), ""]
    if inspect.isclass(value):
        short, long = [], []
        for member, signature, function in _members(value):
            text = inspect.cleandoc(function.__doc__)
            if SECTION.search(text) and function not in described:
                described.add(function)
                long += [f"#### `{path}.{member}`", "", "```python", f"{member}{signature}", "```"]
                long += ["", markdown(text), ""]
            else:
                summary = " ".join(text.split("\n\n")[0].split())
                short.append(f"- `{member}{signature}`: {summary}")
        lines += [*short, ""] if short else []
        lines += long
    return "\n".join(lines)


def _members(kind: type) -> Iterator[tuple[str, str, Any]]:
    """Name, signature and function of the public methods and properties that have a docstring."""
    seen = set(INNER.get(kind.__name__, ()))
    for base in FOR_AUTHORS:
        seen |= set(vars(base)) - set(FOR_USERS) if issubclass(kind, base) else set()
    seen |= set(BEFORE_CALIBRATION) if issubclass(kind, Rule) else set()
    for base in kind.__mro__:
        if not base.__module__.startswith("agreestop"):
            continue
        for name, member in vars(base).items():
            is_property = isinstance(member, property)
            function = member.fget if is_property else getattr(member, "__func__", member)
            if name.startswith("_") or name in seen or not inspect.isfunction(function):
                continue
            if function.__doc__:
                seen.add(name)
                yield name, "" if is_property else _signature(getattr(kind, name)), function


def markdown(docstring: str) -> str:
    """A docstring as Markdown."""
    parts = SECTION.split(docstring)
    shown = [_paragraphs(parts[0].strip())]
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        shown.append(f"**{title}**\n\n{_section(title, text.strip(chr(10)))}")
    return "\n\n".join(shown)


def _section(title: str, text: str) -> str:
    if title == "Examples":
        return f"```pycon\n{text}\n```"
    return _list(text) if title in LISTS else _paragraphs(text)


def _paragraphs(text: str) -> str:
    """Plain text as it is; text with columns or indented lines in a block."""
    in_columns = re.search(r"^( |\S.*?\S {2,}\S)", text, flags=re.MULTILINE)
    return f"```text\n{text}\n```" if in_columns else text


def _list(text: str) -> str:
    """Entries `name : type` with indented descriptions as a list."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            if lines[-1].startswith("- "):
                lines[-1] += ":"
            lines.append(f"  {line.strip()}")
        elif line:
            name, _, kind = line.partition(" : ")
            lines.append(f"- `{name}`{f', {kind}' if kind else ''}")
        else:
            lines.append("")
    return "\n".join(lines)


def _constant(value: object) -> str:
    """A constant in at most one line, with the quotes that ruff format wants."""
    text = f"{{{', '.join(map(repr, value))}}}" if isinstance(value, dict) else repr(value).replace("typing.", "")
    text = text.replace("'", '"')
    return text if len(text) <= LONGEST_CONSTANT else f"{text[: LONGEST_CONSTANT - 3]}..."


class _Words:
    """A default value or an annotation that is shown as these words."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _default(value: Any, parameter: inspect.Parameter) -> Any:
    """The default of a parameter: long ones are shortened, a default factory is named."""
    default = parameter.default
    if repr(default) == "<factory>":
        (factory,) = (field.default_factory for field in fields(value) if field.name == parameter.name)
        return _Words(f"{getattr(factory, '__name__', '…')}()".replace("<lambda>()", "…"))
    if inspect.isfunction(default) or len(repr(default)) > LONGEST_DEFAULT:
        return _Words("(…)" if isinstance(default, tuple) else f"{type(default).__name__}(…)".replace("function(…)", "…"))
    return default


def _annotations(value: Any) -> dict[str, str]:
    """The annotations of a function or a class, as the source writes them."""
    if not inspect.isclass(value):
        return _annotations_of(_definition(value))
    found: dict[str, str] = {}
    for base in reversed(value.__mro__):
        for node in _definition(base).body if base.__module__.startswith("agreestop") else ():
            if isinstance(node, ast.AnnAssign):
                found[ast.unparse(node.target)] = ast.unparse(node.annotation)
            elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
                found |= _annotations_of(node)
    return found


def _annotations_of(function: Any) -> dict[str, str]:
    named = [
        *function.args.posonlyargs,
        *function.args.args,
        *function.args.kwonlyargs,
        function.args.vararg,
        function.args.kwarg,
    ]
    written = {one.arg: one.annotation for one in named if one is not None} | {"return": function.returns}
    return {name: ast.unparse(annotation) for name, annotation in written.items() if annotation is not None}


def _definition(value: Any) -> Any:
    """The syntax tree of a function or a class."""
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _signature(value: Any) -> str:
    if getattr(value, "_is_protocol", False):
        return ""  # nobody makes one
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    written = {name: _Words(text.strip("'")) for name, text in _annotations(value).items()}
    parameters = signature.parameters.values()
    shown = [one.replace(default=_default(value, one), annotation=written.get(one.name, one.annotation)) for one in parameters]
    returned = signature.return_annotation if inspect.isclass(value) else written.get("return", signature.return_annotation)
    text = str(signature.replace(parameters=shown, return_annotation=returned))
    return text.replace("self, ", "").replace("(self)", "()").removesuffix(" -> None")


def page() -> str:
    """The whole page."""
    missing = set(ag.__all__) ^ {name for names in SECTIONS.values() for name in names}
    if missing:
        raise SystemExit(f"SECTIONS and agreestop.__all__ differ in {sorted(missing)}: list every public name once.")
    parts, described = [INTRODUCTION], set[Any]()
    for title, names in SECTIONS.items():
        parts += [
            f"## {title}\n",
            *(entry(getattr(ag, name), name, name, described) for name in names),
        ]
    parts += ["## A report\n", entry(ag.write_report, "write_report", "write_report", described)]
    for package, title in PACKAGES.items():
        module = getattr(ag, package)
        parts += [
            f"## `ag.{package}`: {title[0].lower()}{title[1:]}\n",
            f"{markdown(inspect.getdoc(module) or '')}\n",
        ]
        for name in module.__all__:
            parts.append(entry(getattr(module, name), name, f"ag.{package}.{name}", described))
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    path = Path(__file__).with_name("api.md")
    path.write_text(page(), encoding="utf-8")
    print(f"Wrote {path}")
