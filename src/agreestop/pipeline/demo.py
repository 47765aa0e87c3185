"""The page of a run in which one watches the members decide, draws, breaks and heals.

The page shows test inputs that the run used for nothing but measuring. Some of them calibrate the
rules of the page on the engine with int8 weights, whose spikes the browser computes bit by bit.
"""

from pathlib import Path

from agreestop.decide import AgreeStop, FixedTime, MergeConfidence, Scores, SpikeCP
from agreestop.decide.calibrated import CalibratedRule
from agreestop.events.files import load as load_inputs
from agreestop.export import to_page
from agreestop.export.small_page import int8_page

from .config import RunConfig

TARGETS = tuple(f"0.{percent}" for percent in sorted({*range(70, 99, 2), 95, 99}))
SIZES = (1, 2, 3)
LOOKS = 16
"""Steps before T / LOOKS are no checkpoints: the alarm from inputs ranks the risk at the first
checkpoint, and at step 1 all inputs are alike.
"""


def write_demo(config: RunConfig, folder: Path, members: Path) -> Path | None:
    """Write `demo.html` for the fully connected members in this file.

    None where no page can run them, or there are too few inputs to calibrate.
    """
    inputs = load_inputs(folder / "test-inputs.npz")
    if inputs.values is not None or inputs.labels is None:
        return None
    ensemble, scores, shown = int8_page(members, inputs)
    times = [time for time in scores.times if LOOKS * time >= scores.times[-1]]
    classes = len(inputs.classes or ())
    wanted = [
        AgreeStop(target, times, size)
        for size in SIZES[: max(classes - 1, 1)]
        for target in TARGETS
    ]
    rules = [rule.calibrate(scores) for rule in wanted if rule.examples_needed() <= len(scores)]
    if not rules:
        return None
    target = config.decide.target
    first = min(range(len(rules)), key=lambda at: _distance(rules[at], target))
    beside = _peers(target, times, scores)
    path = folder / "demo.html"
    to_page(rules, ensemble, path, shown, first=first, calibration=scores, beside=beside)
    return path


def _distance(rule: CalibratedRule, target: float) -> tuple[float, int]:
    """How far a rule is from single answers at a target."""
    own = rule.rule.terms.target
    return abs(float(own or 0) - target), rule.rule.max_set_size


def _peers(target: float, times: list[float], scores: Scores) -> dict[str, CalibratedRule]:
    """Rules with the same guarantee that race with ours, single answers each."""
    quarters = [times[-1] * quarter // 4 for quarter in (1, 2, 3, 4)]
    peers = {
        "one fixed time for all inputs": AgreeStop(target, times, 1, True, FixedTime()),
        "the paper's rule, confidence merging": SpikeCP(target, quarters, 1, MergeConfidence(1)),
    }
    return {
        name: rule.calibrate(scores)
        for name, rule in peers.items()
        if rule.examples_needed(scores.log_confidence.shape[2]) <= len(scores)
    }
