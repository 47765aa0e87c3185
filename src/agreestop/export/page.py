"""An ensemble and its rules as one HTML file in which members watch, agree and stop.

It loads nothing and sends nothing.

    web/index.html, style.css    what one sees
    web/*.js                     readable code without a framework: engine, rule, drift, camera,
                                 view, draw and app, joined in this order
    DATA                         written here: weights, rules, inputs; arrays as base64

The browser computes what the event-driven engine does, with the same roundings: read-out spikes and
decisions are equal to Python's.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import InputError, as_labels, atomic_writer, check_writable
from agreestop.common.levels import coverage_draws
from agreestop.decide.calibrated import CalibratedRule, check_calibrated
from agreestop.decide.calibration import reduce_examples
from agreestop.decide.decisions import Decisions
from agreestop.decide.drift.adaptive import AdaptiveRule
from agreestop.decide.drift.monitor import DriftMonitor
from agreestop.decide.drift.risk_grid import RiskGrid
from agreestop.decide.scores import Scores
from agreestop.engines.early_stopping import check_rule, checkpoint_steps
from agreestop.ensembles.ensemble import Ensemble
from agreestop.events.container import Events
from agreestop.events.datasets.moving_digits import DIGITS, MNIST, SENSOR

from .checks import as_events, check_decisions, score_in_batches
from .members import ExportedLayer, check_exportable, exported_members
from .rules import ExportedRule, exported_rule

SCRIPTS = ("engine.js", "rule.js", "drift.js", "camera.js", "view.js", "draw.js", "app.js")
MOST_INPUTS = 300
DELTA, RATE = 0.05, 1.0  # of the drift monitor and of the adaptive rule
IMAGES = {tuple(DIGITS.size): (DIGITS, 8, 1.0), tuple(MNIST.size): (MNIST, 28, 20 / 28)}
"""By the size of the sensor: the scene, the points of an image along each axis, and the share of
them that a digit fills.
"""


@dataclass(frozen=True)
class PageExport:
    """What `to_page` wrote.

    size     bytes of the file
    inputs   the number of inputs in it: the first ones
    nearest  over these inputs and all rules: the smallest distance of a risk or score to its
             threshold, ties left out
    ties     how often both were equal, up to rounding
    rounded  how many of the ties differ in their last bits: the page takes both numbers as equal,
             and Python does not
    """

    path: Path
    size: int
    inputs: int
    nearest: float
    ties: int
    rounded: int = 0


def to_page(
    rules: CalibratedRule | Sequence[CalibratedRule],
    ensemble: Ensemble,
    path: str | PathLike[str],
    inputs: ArrayLike | Events,
    *,
    first: int = 0,
    calibration: Scores | None = None,
    beside: Mapping[str, CalibratedRule] | None = None,
    any_engine: bool = False,
    any_members: bool = False,
) -> PageExport:
    """Write a page that replays inputs (n, T, ...) of zeros and ones under one of several rules,
    one for each target and size of answers.

    Inputs should be `Events` with labels; without labels there is no coverage. first: the index of
    the rule that the page begins with. calibration: the scores that the rules were calibrated on,
    which the page then shows beside the threshold. beside: rules by name that race with the first
    one on the same inputs. Members must be fully connected. A rule of another engine or of other
    members is refused, unless any_engine or any_members allows it.
    """
    given: list[Any] = list(rules) if isinstance(rules, (list, tuple)) else [rules]
    others = {} if beside is None else dict(beside)
    if not 0 <= first < len(given):
        raise InputError(
            f"{len(given)} rules are given, and first is {first}: give at least one rule, and the "
            "index of one of them."
        )
    for one in [*given, *others.values()]:
        check_calibrated(one)
    check_exportable(ensemble)
    check_writable(path)
    calibrated = sorted(given, key=_target_of)
    engine = ensemble.current_engine()
    everyone = [*calibrated, *others.values()]
    for rule in everyone:
        check_rule(rule, engine, ensemble.options(any_engine=any_engine, any_members=any_members))
        if rule.final:
            raise InputError(
                "the rule promises the ensemble's own last answer, which the page does not wait "
                "for: calibrate with labels."
            )
        if calibration is not None and not rule.saw(calibration):
            raise InputError(
                "calibration holds other rows than a rule was calibrated on: give the scores of "
                "its own calibration."
            )
    known = [exported_rule(rule) for rule in everyone]
    members = exported_members(ensemble, engine, max(int(rule.members[-1]) for rule in known))
    if any(
        layer.convolves or layer.geometry["neuron"] or layer.geometry["recurrent"]
        for layers in members
        for layer in layers
    ):
        raise InputError(
            "the page runs fully connected members of SRM neurons, and these are others: export "
            "them with --to c."
        )
    steps = [int(checkpoint_steps(rule, engine, None)[-1]) for rule in everyone]
    shape = ensemble.input_shape
    assert shape is not None, "the event-driven engine knows it"
    events = as_events(inputs, shape, max(steps))
    if events.shape[1] == 1:
        raise InputError(
            "the inputs are images, and the page shows events over time: give inputs of shape (n, "
            "T, ...)."
        )
    events = events.rows(slice(0, MOST_INPUTS)).compact()
    for rule in everyone:
        rule.check_classes(events.classes)
    labels = (
        None
        if events.labels is None
        else as_labels(events.labels, len(events), calibrated[0].classes)
    )
    batches = score_in_batches(ensemble, events, max(steps))
    decided = [
        check_decisions(rule, numbers, batches)
        for rule, numbers in zip(everyone, known, strict=True)
    ]
    begun, checks = calibrated.index(given[first]), [check for _, check in decided]
    names = (
        events.classes or calibrated[0].class_names or tuple(map(str, range(calibrated[0].classes)))
    )
    nearest = min(float(check.nearest or np.inf) for check in checks)
    ties, rounded = sum(check.ties for check in checks), sum(check.rounded for check in checks)
    said = f"{ties or 'none'} {'is a tie' if ties < 2 else 'are ties'}"
    data = {
        "shape": shape,
        "steps": max(steps),
        "classes": names,
        "first": begun,
        "members": [[_layer(layer) for layer in layers] for layers in members],
        "rules": [
            _rule(rule, numbers, len(events), calibration)
            for rule, numbers in zip(calibrated, known, strict=False)
        ],
        "beside": [
            _rule(rule, numbers, len(events)) | {"name": name}
            for (name, rule), numbers in zip(others.items(), known[len(calibrated) :], strict=True)
        ],
        "inputs": _inputs(events, max(steps), labels)
        | {"start": _beginning(decided[begun][0], labels)},
        "camera": _camera(shape),
        "about": (
            f"The inputs are {len(events)} recordings. "
            "Spikes and decisions are computed in the browser, and are equal to Python's. "
            f"On these inputs the smallest distance of a risk to its threshold is {nearest:.3g}; "
            f"{said}."
        ),
    }
    text = _join(data).encode()
    with atomic_writer(path) as stream:
        stream.write(text)
    return PageExport(Path(path), len(text), len(events), nearest, ties, rounded)


def _target_of(rule: CalibratedRule) -> float:
    target = rule.rule.terms.target
    return -1.0 if target is None else float(target)


def _weights(values: NDArray[Any]) -> dict[str, str]:
    """Weights as they are stored; 16 bits are bfloat16."""
    return _array(values) | ({"type": "bfloat16"} if values.dtype == np.uint16 else {})


def _array(values: NDArray[Any]) -> dict[str, str]:
    """A base64 text, and the type of its numbers."""
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"))
    return {"type": values.dtype.name, "data": base64.b64encode(little.tobytes()).decode()}


def _layer(layer: ExportedLayer) -> dict[str, Any]:
    return {
        "weights": _weights(layer.weights),
        "scale": _array(layer.scale),
        "bias": _array(layer.bias),
        "constants": layer.constants.tolist(),
        "outputs": layer.geometry["outputs"],
    }


def _examples(calibrated: CalibratedRule, scores: Scores | None) -> list[float | None] | None:
    """W of every calibration example in increasing order, None for ∞, where one threshold decides.

    An example is missed by thresholds above its W.
    """
    if scores is None or calibrated.threshold_rank is None:
        return None
    values = reduce_examples(calibrated.rule, scores).reduced.get("W")
    if values is None:
        return None
    return [value if value < np.inf else None for value in np.sort(values).tolist()]


def _range(calibrated: CalibratedRule, n: int) -> list[float] | None:
    """Where the coverage on n inputs lies for 95 % of calibration draws."""
    if calibrated.draw is None:
        return None
    draws = coverage_draws(*calibrated.draw, n)
    return [float(one) / n for one in np.searchsorted(draws, (0.025, 0.975))]


def _rule(
    calibrated: CalibratedRule, rule: ExportedRule, n: int, calibration: Scores | None = None
) -> dict[str, Any]:
    """The numbers of a rule, for rule.js and drift.js; n: the number of inputs."""
    target = _target_of(calibrated)
    kind = type(calibrated.rule).__name__
    monitor = DriftMonitor(calibrated, DELTA)
    grid = RiskGrid.of(calibrated.first_risks, calibrated.eta)
    risks = [] if calibrated.first_risks is None else calibrated.first_risks.tolist()
    adaptive, reason = None, ""
    try:
        healing = AdaptiveRule(calibrated, RATE)
        reach = calibrated.reach
        assert reach is not None
        adaptive = {
            "threshold": float(calibrated.thresholds[0]),
            "reach": [calibrated.shown(end) for end in reach],
            "sign": calibrated.shown(1.0),
        }
        adaptive |= {"alpha": healing.miss_target, "rate": RATE, "guarantee": healing.guarantee}
    except InputError as error:
        reason = str(error)
    return {
        "name": kind if target < 0 else f"{100 * target:.4g} %, {kind}",
        "target": None if target < 0 else target,
        "guarantee": calibrated.guarantee,
        "policy": rule.policy,
        "times": rule.times.tolist(),
        "members": rule.members.tolist(),
        "maxSetSize": rule.max_set_size,
        "exponent": rule.exponent,
        "temperatures": None if rule.temperatures is None else rule.temperatures.tolist(),
        "offsets": rule.offsets.tolist(),
        "thresholds": rule.thresholds.tolist(),
        "fixedTime": rule.fixed_time,
        "fill": rule.fill,
        "logTrim": rule.log_trim,
        "final": rule.final,
        "blocks": None if rule.blocks is None else rule.blocks.tolist(),
        "slack": rule.slack,
        "examples": _examples(calibrated, calibration),
        "range": _range(calibrated, n),
        "monitor": {
            "level": monitor.level,
            "delta": DELTA,
            "risks": [grid.middle(risk) for risk in risks],
            "width": grid.width,
            "offset": grid.offset,
        },
        "adaptive": adaptive,
        "notAdaptive": reason,
    }


def _inputs(events: Events, steps: int, labels: NDArray[Any] | None) -> dict[str, Any]:
    pointers = events.pointers[:, : steps + 1]
    indices = [events.indices[row[0] : row[-1]] for row in pointers]
    return {
        "n": len(events),
        "counts": _array(np.diff(pointers, axis=1).astype(np.uint16)),
        "indices": _array(np.concatenate(indices).astype(np.uint16)),
        "labels": None if labels is None else labels.tolist(),
    }


def _beginning(decisions: Decisions, labels: NDArray[Any] | None) -> int:
    """The input that the page begins with: of those that are answered rightly before the end, in
    the order of their stopping times, the one at three quarters. It lasts long enough to be
    watched. The first input if there is none.
    """
    if labels is None:
        return 0
    right = decisions.sets[np.arange(len(labels)), labels]
    early = np.flatnonzero(right & (decisions.stop_time < decisions.checkpoints[-1]))
    order = early[np.argsort(decisions.stop_time[early], kind="stable")]
    return int(order[3 * len(order) // 4]) if len(order) else 0


def _camera(shape: tuple[int, ...]) -> dict[str, Any] | None:
    """The simulated camera for drawings, where the inputs have the size of one that digits
    move in front of.
    """
    if len(shape) != 3 or shape[0] != 2 or shape[1:] not in IMAGES:
        return None
    scene, points, filled = IMAGES[shape[1:]]
    return {"scene": scene._asdict(), "sensor": vars(SENSOR), "points": points, "filled": filled}


def _join(data: dict[str, Any]) -> str:
    """The page.

    DATA is a JavaScript literal, which may hold Infinity; no text in it can end the script.
    """
    folder = files(__package__) / "web"
    texts = {
        name: (folder / name).read_text("utf-8") for name in ("index.html", "style.css", *SCRIPTS)
    }
    literal = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    code = "\n".join([f"const DATA = {literal};", *(texts[name] for name in SCRIPTS)])
    page = texts["index.html"].replace("<!-- style -->", f"<style>\n{texts['style.css']}</style>")
    return page.replace(
        "<!-- script -->", f'<script>\n"use strict";\n(() => {{\n{code}}})();\n</script>'
    )
