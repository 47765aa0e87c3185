"""The public names are these and no others, and importing them loads numpy and nothing heavier."""

from __future__ import annotations

import subprocess
import sys

import agreestop as ag

NAMES = {
    # confidences and p-variables
    "log_confidence",
    "generalized_mean",
    "p_values",
    # merging
    "merging_factor",
    "merge_p_values",
    "merge_exchangeable",
    "merge_randomized",
    "majority_vote",
    # how members become one
    "MergeConfidence",
    "MergePValues",
    "MergeRanks",
    "MajorityVote",
    # scores and risks
    "LogLoss",
    "Temperature",
    "TuningRanks",
    "Spread",
    "Shaped",
    "TopMass",
    "LearnedRisk",
    "ShapedRisk",
    # rules
    "SpikeCP",
    "AgreeStop",
    "DCSNN",
    "SEENN",
    # choosing a score or a risk
    "tune",
    "Tuned",
    "Trial",
    # calibrated rules and decisions
    "CalibratedRule",
    "Session",
    "Decision",
    "Decisions",
    "evaluate",
    "Evaluation",
    "Estimate",
    "repeat_splits",
    "Splits",
    # files
    "load_rule",
    "Scores",
    "load_scores",
    "save_scores",
    "save_spikes",
    # simulated data
    "simulate_scores",
    "simulate_spikes",
    # what goes wrong
    "InputError",
    "CalibrationWarning",
}

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "typer", "rich", "pandas", "jax")


def test_public_names_are_exactly_these() -> None:
    assert set(ag.__all__) == NAMES
    assert len(ag.__all__) == len(NAMES)


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in NAMES:
        assert getattr(ag, name).__doc__, name


def test_a_star_import_brings_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from agreestop import *", found)
    assert set(found) - {"__builtins__"} == NAMES


def test_importing_loads_nothing_heavy() -> None:
    code = f"import sys, agreestop; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
