"""Write the tables of README.md, docs/engines.md and docs/reliability.md from results/, and the pages that show examples/."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
RULES = ("p-variable merging", "confidence merging", "stop-aware, every step", "AgreeStop, every step")
EXAMPLES = ("train_and_decide", "own_arrays", "own_network", "own_scores", "live", "drift", "own_configuration")
SPEED = (
    ("decide-early", "batch of 64, every input stops at its decision", {"batch": 64}),
    ("decide-full", "batch of 64, every input runs to T", {"batch": 64}),
    ("train", "batch of 64", {"batch": 64, "form": "weights"}),
)
WORDS = {"decide-early": "decisions, stopping early", "decide-full": "decisions at T", "train": "training six members"}


def read(path: str) -> list[dict[str, Any]]:
    """The records of a results file."""
    return json.loads((RESULTS / path).read_text())["records"]


def only(records: Sequence[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    """The one record that has these entries."""
    (found,) = (record for record in records if all(record.get(name) == value for name, value in wanted.items()))
    return found


def results_table() -> str:
    """Latency, coverage and set size of the paper's rules and of ours, on two data sets."""
    lines = [
        "| rule | simulated digits: stops at | coverage | set size | CIFAR-10: stops at | coverage | set size |",
        "|---|---|---|---|---|---|---|",
    ]
    digits, cifar = read("digits/metrics.json"), read("fig6/numbers.json")
    for label in RULES:
        ours = only(digits, ensemble="deep", label=label, K=6, target=0.9)
        short = {"p-variable merging": "p-variable merging (PM)", "confidence merging": "confidence merging (CM)"}.get(label, label)
        theirs = only(cifar, ensemble="deep", label=short, K=6, target=0.9, n=50, default=True)
        cells = [f"{record['latency']:.3f} T | {record['coverage']:.3f} | {record['set_size']:.2f}" for record in (ours, theirs)]
        name = f"{label}, the paper's" if "merging" in label else label
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def speed_table() -> str:
    """How many times as fast as the fastest peer our engines are."""
    lines = ["| work | two CPU cores | one H200 |", "|---|---|---|"]
    machines = [read("bench/cpu.json"), read("bench/h200.json")]
    for work, note, wanted in SPEED:
        found = [only(records, work=work, inputs="mnist-dvs-sim", system="agreestop", **wanted) for records in machines]
        cells = [f"{record['times_fastest_peer']:.1f} × {record['fastest_peer']}" for record in found]
        lines.append(f"| {WORDS[work]} ({note}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def engines_table() -> str:
    """What else was measured: live steps on both machines, the kernel of the neurons, and the time that stopping saves."""
    machines = {"event-driven": read("bench/cpu.json"), "fused": read("bench/h200.json")}
    lines = ["| measured | two CPU cores | one H200 |", "|---|---|---|"]
    for words, form in (("a live step", "alone"), ("a live step, with the rule", "and the rule, until it stops")):
        wanted = {"work": "stream-step", "inputs": "mnist-dvs-sim", "system": "agreestop"}
        found = (only(records, **wanted, form=f"{engine} engine {form}") for engine, records in machines.items())
        cells = [f"{record['median']:.0f} µs" for record in found]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    for form in ("forward", "backward"):
        kernel = only(machines["fused"], work="srm-kernel", system="agreestop", form=form)
        lines.append(f"| {form} pass of the neurons' kernel, in the speed of a plain copy | | {kernel['times_fastest_peer']:.2f} |")
    (early,) = (record for record in machines["fused"] if record["work"] == "decide-resnet" and "saved" in record)
    saved = f"{100 * early['saved']:.0f} %, at a latency of {early['latency']:.3f} of T"
    return "\n".join([*lines, f"| time saved by stopping, one ResNet-18 on CIFAR-10, one calibration draw | | {saved} |"])


def fuzz_table() -> str:
    """What became of damaged files in the last long run, by format."""
    path = RESULTS / "reliability.json"
    if not path.is_file():
        return "There is no long run yet."
    run = json.loads(path.read_text())
    outcomes = ("same", "refused", "other", "failed")
    lines = ["| format | same result | refused in a sentence | another valid file | anything else |", "|---|---|---|---|---|"]
    for name, counts in (*sorted(run["formats"].items()), ("all", run)):
        lines.append(f"| {name} | {' | '.join(f'{counts[outcome]:,}' for outcome in outcomes)} |")
    return "\n".join(lines)


def fill(text: str, name: str, table: Callable[[], str]) -> str:
    """The text with the table between its two comments."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"the page must hold {begin} and {end} once.")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table()}\n{end}", text, flags=re.DOTALL)


def readme(text: str) -> str:
    """README.md with its tables."""
    return fill(fill(text, "results", results_table), "speed", speed_table)


def examples() -> str:
    """docs/examples.md: every script with what it shows."""
    parts = ["# Examples\n\nEach is a script in `examples/` that the tests run. Written by `make docs`.\n"]
    for name in EXAMPLES:
        code = (ROOT / "examples" / f"{name}.py").read_text()
        sentence = ast.get_docstring(ast.parse(code)) or ""
        body = code.split('"""', 2)[2].lstrip("\n")
        parts.append(f"## {name}\n\n{sentence}\n\n```python\n{body}```\n")
    return "\n".join(parts)


def reliability(text: str) -> str:
    """docs/reliability.md with its table."""
    return fill(text, "fuzz", fuzz_table)


def engines(text: str) -> str:
    """docs/engines.md with its table."""
    return fill(text, "speed", engines_table)


def adapters(text: str) -> str:
    """docs/adapters.md with the scripts of examples/adapters."""
    for path in sorted((ROOT / "examples" / "adapters").glob("*.py")):
        code = path.read_text()
        text = fill(text, path.stem, lambda code=code: f"```python\n{code}```")
    return text


PAGES: dict[str, Callable[[str], str]] = {"README.md": readme, "docs/adapters.md": adapters, "docs/engines.md": engines}
PAGES["docs/reliability.md"] = reliability


def main() -> None:
    for page, write in PAGES.items():
        (ROOT / page).write_text(write((ROOT / page).read_text()))
    (ROOT / "docs" / "examples.md").write_text(examples())


if __name__ == "__main__":
    main()
