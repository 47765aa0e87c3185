"""Write docs/configuration.md: every key of a run's configuration, from the classes and docstrings
of `agreestop.pipeline.config`.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from agreestop.pipeline import config

PAGE = Path(__file__).with_name("configuration.md")
TABLES = {
    "": config.RunConfig,
    "[data]": config.DataSettings,
    "[network]": config.NetworkSettings,
    "[[ensembles]]": config.EnsembleSettings,
    "[decide]": config.DecideSettings,
}


def page() -> str:
    """The whole page: the example of the module's docstring, then the keys of each table."""
    _, *paragraphs, last = (inspect.getdoc(config) or "").split("\n\n")
    example = textwrap.dedent("\n\n".join(paragraphs))
    refused = "An unknown key is refused, and so is a value of the wrong type."
    parts = [
        "# Configuration of a run\n\nFor whoever trains, scores and measures with one file of "
        "settings.\n"
        f"`agreestop run`, `train` and `score` take a TOML file. {refused} Written by `make docs`."
    ]
    parts += [f"```toml\n{example}\n```", last]
    for table, kind in TABLES.items():
        first, lines, *notes = (inspect.getdoc(kind) or "").split("\n\n")
        lines = re.sub(r"\n +", " ", lines)  # a meaning may go on in the next line
        meanings = dict(re.findall(r"^(\w+)  +(.+)$", lines, flags=re.MULTILINE))
        parts += [
            f"## `{table}`" if table else "## The top of the file",
            first,
            _keys(kind, meanings),
            *notes,
        ]
    return "\n\n".join(parts) + "\n"


def _keys(kind: Any, meanings: dict[str, str]) -> str:
    """The keys of a table, each with its values, its default and its meaning."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, key in get_type_hints(kind, include_extras=True).items():
        if values := _values(key):
            (default,) = (_default(entry) for entry in fields(kind) if entry.name == name)
            lines.append(f"| `{name}` | {values} | {default} | {meanings.pop(name)} |")
    if meanings:
        raise SystemExit(
            f"the docstring of {kind.__name__} describes {', '.join(meanings)}, which are no keys."
        )
    return "\n".join(lines)


def _values(key: Any) -> str:
    """The values of a key in words; empty for a table."""
    (kind,) = (
        (option for option in get_args(key) if option is not type(None))
        if type(None) in get_args(key)
        else (key,)
    )
    several = get_origin(kind) is tuple
    entry = get_args(kind)[0] if several else kind
    if is_dataclass(entry):
        return ""
    allowed = entry.__metadata__[0] if get_origin(entry) is Annotated else config.VALUES[entry]
    if not hasattr(allowed, "include"):
        return ", ".join(f"`{json.dumps(choice)}`" for choice in allowed)
    return f"a list of {allowed.several}" if several else str(allowed.one)


def _default(entry: Field[Any]) -> str:
    """The default of a key as TOML; empty where leaving it out has a meaning of its own."""
    if entry.default is MISSING:
        return "must be given"
    return "" if entry.default is None else f"`{json.dumps(entry.default)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Wrote {PAGE}")
