"""Write docs/api.md from the docstrings of the public names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import agreestop as ag

RULES = ("SpikeCP", "AgreeStop", "DCSNN", "SEENN")
SECTIONS = {
    "Rules": (*RULES, "CalibratedRule", "Session", "load_rule"),
    "Pooling": ("MergeConfidence", "MergePValues", "MergeRanks", "MajorityVote"),
    "Scores": ("LogLoss", "Temperature", "TuningRanks", "Spread", "Shaped"),
    "Risks": ("TopMass", "LearnedRisk", "ShapedRisk"),
    "Tuning": ("tune", "Tuned", "Trial"),
    "Decisions": ("Decision", "Decisions", "evaluate", "Evaluation", "Estimate", "repeat_splits", "Splits"),
    "Confidence and p-variables": ("log_confidence", "generalized_mean", "p_values"),
    "Merging p-variables": ("merging_factor", "merge_p_values", "merge_exchangeable", "merge_randomized", "majority_vote"),
    "Score files and simulated scores": ("Scores", "load_scores", "save_scores", "save_spikes", "simulate_scores", "simulate_spikes"),
    "Errors and warnings": ("InputError", "CalibrationWarning"),
}
VERBS = ("calibrate", "examples_needed", "fit", "per_time", "decide", "stream", "save", "push", "step", "start", "pool", "rows")


def entry(name: str) -> str:
    """A heading, the signature and the docstring, then the public methods of a class."""
    value = getattr(ag, name)
    lines = [f"### `{name}`", "", "```python", f"{name}{_signature(value)}", "```", "", "```text", inspect.getdoc(value) or "", "```", ""]
    if inspect.isclass(value):
        for verb in VERBS:
            method = getattr(value, verb, None)
            refused = name in RULES and verb in ("decide", "stream", "save", "fit")
            if callable(method) and not refused:
                lines += [f"- `{verb}{_signature(method)}`: {(inspect.getdoc(method) or '').splitlines()[0]}"]
        lines.append("")
    return "\n".join(lines)


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"\((?:[\d.]+, ){5,}[\d.]+\)", "(…)", text)  # a long default
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace("<factory>", "TopMass()")
    return text.replace("agreestop.decide.", "").replace("self, ", "").replace("(self)", "()").removesuffix(" -> None")


def main() -> None:
    missing = set(ag.__all__) ^ {name for names in SECTIONS.values() for name in names}
    if missing:
        raise SystemExit(f"SECTIONS and the public names differ in {sorted(missing)}: list every public name once.")
    parts = ["# API\n\nEvery public name of `agreestop`. Shapes: n inputs, M checkpoints, K members, C classes. Written by `make docs`.\n"]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(entry(name) for name in names)]
    Path(__file__).with_name("api.md").write_text("\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()
