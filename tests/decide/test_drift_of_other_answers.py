"""Monitors and adaptive rules for answers beyond classes: open answers and intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from tests.cli.test_cli import call

STEPS = 6


def answers(n: int, seed: int, ease: float = 0.8) -> ag.Answers:
    """The right answer is a, which a sample shows with a probability around `ease`."""
    rng = np.random.default_rng(seed)
    shares = np.clip(rng.normal(ease, 0.1, size=(n, 1)), 0.05, 0.99)
    samples = np.where(rng.random((n, STEPS)) < shares, "a", rng.choice(list("bcd"), (n, STEPS)))
    return ag.Answers(samples.tolist(), ["a"] * n, ids=1000 * seed + np.arange(n))


def numbers(n: int, seed: int, off: float = 1.0) -> ag.Numbers:
    """off: how many of its scales the centre is off."""
    rng, scale = np.random.default_rng(seed), 2.0 ** -np.arange(STEPS)
    truth = rng.normal(size=(n, 1))
    centre = truth + off * scale * rng.normal(size=(n, STEPS))
    return ag.Numbers(
        centre, np.broadcast_to(scale, centre.shape), truth[:, 0], ids=1000 * seed + np.arange(n)
    )


INTERVALS = ag.IntervalStop(0.9, max_width=0.5).calibrate(numbers(300, 1))
VOTES = ag.AgreeStop(0.8, range(1, STEPS + 1), 1, break_ties=True).calibrate(answers(300, 1))


@pytest.mark.parametrize("off", [1.0, 4.0])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_monitor_of_intervals_alarms_where_they_miss(off: float, one_by_one: bool) -> None:
    monitor, new = ag.DriftMonitor(INTERVALS), numbers(200, 2, off)
    decisions = INTERVALS.decide(new)
    truth = np.asarray(new.labels)
    if one_by_one:
        for row, decision in enumerate(decisions):
            monitor.update(decision, float(truth[row]))
    else:
        monitor.update(decisions, truth)
    missed = int(monitor.labels)
    assert missed == 200 and any(one.kind == "misses" for one in monitor.alarms) == (off > 1)


def test_streams_of_numbers_are_watched() -> None:
    rule = ag.IntervalStop(0.9, max_width=0.5).calibrate(numbers(300, 1))
    monitor, new = ag.DriftMonitor(rule), numbers(40, 3, off=6.0)
    for row in range(40):
        session = rule.stream()
        pairs = zip(new.centre[row], new.scale[row], strict=True)
        decision = next(one for one in map(session.push, pairs) if one is not None)
        monitor.update(decision, float(new.labels[row]))
    assert [one.kind for one in monitor.alarms if one.kind == "misses"]


def test_what_has_no_meaning_is_refused() -> None:
    new = numbers(5, 2)
    decisions = INTERVALS.decide(new)
    monitor = ag.DriftMonitor(INTERVALS)
    monitor.observe(decisions)
    for given, label, match in (
        (0, 1.0, "the decision itself"),
        (decisions[0], "a", "true number"),
        (decisions, [1.0], "true numbers"),
    ):
        with pytest.raises(ag.InputError, match=match):
            monitor.update(given, label)
    final = ag.IntervalStop(0.9, max_width=0.5).calibrate(numbers(300, 1), "final")
    with pytest.raises(ag.InputError, match="last number of the model"):
        ag.DriftMonitor(final).update(final.decide(new)[0], 1.0)
    for rule in (INTERVALS, VOTES):
        with pytest.raises(ag.InputError, match="adaptive rule"):
            ag.AdaptiveRule(rule)


@pytest.mark.parametrize("final", [False, True])
def test_an_adaptive_rule_follows_open_answers(final: bool, tmp_path: Path) -> None:
    """Harder questions make the rule miss; labels move its threshold until it misses as often as
    asked, and the bound holds.
    """
    rule = ag.AgreeStop(
        0.8, range(1, STEPS + 1), 1, at_end="answer" if final else "abstain", break_ties=True
    )
    calibrated = rule.calibrate(answers(300, 1, ease=0.9), "final" if final else None)
    adaptive = ag.AdaptiveRule(calibrated, rate=0.3)
    missed: list[float] = []
    plain: list[float] = []
    for block in range(40):
        new = answers(20, 10 + block, ease=0.4)
        for decide, found in ((adaptive.decide, missed), (calibrated.decide, plain)):
            decisions = decide(new)
            assert not decisions.reuse and max(map(len, decisions.names)) <= 1
            found.append(1 - float(ag.evaluate(decisions, new).kept or 0))
            if found is missed:
                labels = decisions.final_best if final else new.gold
                assert adaptive.update(decisions, labels) == ""
    assert adaptive.threshold < float(calibrated.thresholds[0])
    assert (
        np.mean(missed) <= adaptive.bound(800, delay=20) and np.mean(missed) < np.mean(plain) - 0.05
    )
    session = adaptive.stream()
    decision = next(one for one in (session.push("a") for _ in range(STEPS)) if one is not None)
    assert adaptive.update(decision, "b") == ""
    adaptive.save(tmp_path / "adaptive")
    assert ag.AdaptiveRule.load(tmp_path / "adaptive").threshold == adaptive.threshold


@pytest.mark.parametrize("kind", ["answers", "numbers"])
def test_the_command_line_watches_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = VOTES if kind == "answers" else INTERVALS
    rule.save(tmp_path / "rule")
    if kind == "answers":
        import json

        new, path = answers(80, 4), tmp_path / "new.jsonl"
        lines = zip(new.samples, new.gold or (), new.ids.tolist(), strict=True)  # type: ignore[union-attr]
        path.write_text(
            "\n".join(
                json.dumps({"answers": some, "gold": gold, "id": one}) for some, gold, one in lines
            )
        )
    else:
        wrong, path = numbers(80, 4, off=6.0), tmp_path / "new.npz"
        np.savez(path, centre=wrong.centre, scale=wrong.scale, labels=wrong.labels)
    done = call(
        monkeypatch,
        capsys,
        "decide",
        tmp_path / "rule",
        path,
        "--monitor",
        tmp_path / "monitor",
        "-o",
        tmp_path / "found.csv",
    )
    assert done.code == 0, done.err
    monitor = ag.DriftMonitor.load(tmp_path / "monitor")
    assert monitor.labels == 80
    assert any(one.kind == "misses" for one in monitor.alarms) == (kind == "numbers")
