"""Watch, then decide: a stream step by step against the definition from whole recordings, and what
is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need PyTorch")
import torch
from torch import nn

import agreestop as ag
from agreestop.decide.spotting import load_recordings
from tests.decide.strategies import calibrate_quietly

WINDOW, STEPS = 8, 25


def recordings(
    rng: np.random.Generator, n: int
) -> tuple[list[Any], list[list[tuple[int, int]]], list[int]]:
    """Noise on eight inputs; a word on the first two, and after it one of two more words."""
    streams, events, labels = [], [], []
    for _ in range(n):
        length, start, label = (
            int(rng.integers(100, 140)),
            int(rng.integers(10, 60)),
            int(rng.integers(1, 3)),
        )
        x = rng.random((length, 8)) < 0.05
        x[start : start + 8, :2] |= rng.random((8, 2)) < 0.8
        x[start + 10 : start + 40, 2 * label : 2 * label + 2] |= rng.random((30, 2)) < 0.7
        streams.append(x)
        events.append([(start, start + 8)])
        labels.append(label)
    return streams, events, labels


@pytest.fixture(scope="module")
def parts() -> Any:
    rng = np.random.default_rng(0)
    x, y = np.zeros((300, 30, 8), dtype=bool), rng.integers(3, size=300)
    x |= rng.random(x.shape) < 0.05
    for row, label in enumerate(y):
        x[row, 5:25, 2 * label : 2 * label + 2] |= rng.random((20, 2)) < 0.7
    network = ag.networks.FullyConnected((8,), classes=3, hidden=(16,))
    ensemble = ag.ensembles.DeepEnsemble(network, members=2, seed=0).fit(x, y, 12, progress=False)
    spotted, classed = recordings(rng, 40), recordings(rng, 120)
    heard = ensemble.listen(spotted[0], window=WINDOW, event=0)
    spotter = ag.Spotter(0.1, rest=STEPS + 5, within=10).calibrate(
        heard.scores, spotted[1], near=10
    )
    other = ensemble.listen(classed[0], window=WINDOW, event=0)
    first = [next(iter(spotter.alarms(one)), -1) for one in other.scores]
    rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1).calibrate(
        other.after(first, classed[2], steps=STEPS, spotter=spotter)
    )
    return ensemble, spotter, rule, heard, spotted


def test_a_stream_detects_and_decides_as_its_recording_does(parts: Any) -> None:
    """One stream of several recordings, pushed as frames and as indices, against alarms and windows
    of the whole.
    """
    ensemble, spotter, rule, _, _ = parts
    x = np.concatenate(recordings(np.random.default_rng(5), 6)[0])
    heard = ensemble.listen([x], window=WINDOW, event=0)
    alarms = spotter.alarms(heard.scores[0])
    assert len(alarms) > 2
    session = ensemble.watch(spotter, rule, window=WINDOW, event=0)
    found: list[Any] = []
    for step, frame in enumerate(x):
        result = session.push(frame=frame) if step % 2 else session.push(np.flatnonzero(frame))
        assert session.score == pytest.approx(heard.scores[0][step], abs=1e-9)
        if result is not None:
            found.append((step, result))
    detected = [step for step, one in found if isinstance(one, ag.Detection)]
    assert (
        detected
        == alarms.tolist()
        == [one.index for _, one in found if isinstance(one, ag.Detection)]
    )
    whole = [alarm for alarm in alarms if alarm + STEPS < len(x)]
    for alarm in whole:
        (scores,) = [heard.after([alarm], [0], steps=STEPS)]
        expected = rule.decide(replace(scores, labels=None, ids=None))[0]
        (decided,) = [
            (step, one)
            for step, one in found
            if isinstance(one, ag.Decision) and alarm < step <= alarm + STEPS
        ]
        assert decided[0] == alarm + expected.time
        assert (decided[1].time, decided[1].classes) == (expected.time, expected.classes)


def test_the_rest_of_the_event_may_be_skipped(parts: Any) -> None:
    """Decisions are those on the steps after the skipped ones, which never raise an alarm of their
    own.
    """
    ensemble, spotter, _, _, _ = parts
    streams, _, labels = recordings(np.random.default_rng(6), 120)
    other, skip = ensemble.listen(streams, window=WINDOW, event=0), 5
    first = [next(iter(spotter.alarms(one)), -1) for one in other.scores]
    rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1).calibrate(
        other.after(first, labels, steps=STEPS, skip=skip)
    )
    x = np.concatenate(recordings(np.random.default_rng(7), 4)[0])
    session = ensemble.watch(spotter, rule, window=WINDOW, event=0, skip=skip)
    found = [session.push(frame=frame) for frame in x]
    heard = ensemble.listen([x], window=WINDOW, event=0)
    alarms = spotter.alarms(heard.scores[0])
    assert [one.index for one in found if isinstance(one, ag.Detection)] == alarms.tolist() and len(
        alarms
    ) > 1
    for alarm in alarms[alarms + skip + STEPS < len(x)]:
        moved = replace(heard.after([alarm + skip], [0], steps=STEPS), heard="")
        expected = rule.decide(replace(moved, labels=None, ids=None))[0]
        decided = found[alarm + skip + expected.time]
        assert isinstance(decided, ag.Decision) and (decided.time, decided.classes) == (
            expected.time,
            expected.classes,
        )
    with pytest.raises(ag.InputError, match="rest of at least 31"):
        ensemble.watch(spotter, rule, window=WINDOW, event=0, skip=6)


def test_its_state_does_not_grow_and_a_stream_that_ends_early_says_so(parts: Any) -> None:
    ensemble, spotter, rule, _, spotted = parts
    session = ensemble.watch(spotter, rule, window=WINDOW, event=0)
    sizes = []
    for step, frame in enumerate(np.concatenate(spotted[0])[:2000]):
        session.push(frame=frame)
        if step in (500, 1999):
            sizes.append(
                sum(one.nbytes for one in vars(session).values() if isinstance(one, np.ndarray))
            )
    assert sizes[0] == sizes[1] and session.time == 2000
    while session.detection is None:
        session.push(frame=np.array([1, 1, 0, 0, 0, 0, 0, 0], dtype=bool))
    assert "has no decision" in session.close()
    with pytest.raises(ag.InputError, match="closed"):
        session.push([])


def test_a_rule_with_groups_decides_for_the_group_of_the_stream(parts: Any) -> None:
    ensemble, spotter, _, _, _ = parts
    rng = np.random.default_rng(7)
    streams, _, labels = recordings(rng, 120)
    other = ensemble.listen(streams, window=WINDOW, event=0)
    first = [next(iter(spotter.alarms(one)), -1) for one in other.scores]
    scores = other.after(first, labels, steps=STEPS)
    groups = np.where(rng.random(len(scores)) < 0.5, "left", "right")
    rule = calibrate_quietly(ag.AgreeStop(0.8, range(1, STEPS + 1), 1), scores, groups=groups)
    x = np.concatenate(recordings(rng, 6)[0])
    whole = ensemble.listen([x], window=WINDOW, event=0)
    for group in ("left", "right"):
        session = ensemble.watch(spotter, rule, window=WINDOW, event=0, group=group)
        found = [session.push(frame=frame) for frame in x]
        alarm = next(one.index for one in found if isinstance(one, ag.Detection))
        after = replace(whole.after([alarm], [0], steps=STEPS), labels=None, ids=None)
        expected = rule.decide(after, groups=[group])[0]
        decided = found[alarm + int(expected.time)]
        assert isinstance(decided, ag.Decision)
        assert (decided.time, decided.classes) == (expected.time, expected.classes)
    with pytest.raises(ag.InputError, match="rule has groups"):
        ensemble.watch(spotter, rule, window=WINDOW, event=0)


def test_recordings_are_recognised_by_what_was_heard_not_by_their_scores(
    parts: Any, tmp_path: Path
) -> None:
    """The same recordings with another window are the same; silent scores say nothing."""
    ensemble, spotter, _, _, spotted = parts
    again = ensemble.listen(spotted[0], window=WINDOW + 1, event=0)
    with pytest.raises(ag.InputError, match="40 of the 40 recordings set the threshold"):
        spotter.evaluate(replace(again.scores, heard=""))
    again.scores.save(tmp_path / "recordings.npz")
    assert load_recordings(tmp_path / "recordings.npz").ids == again.scores.ids
    assert again.scores[:3].ids == again.scores.ids[:3]
    silent = [np.zeros((90, 8), dtype=bool) for _ in range(3)]
    for row, one in enumerate(silent):
        one[row, 7] = True  # too little to raise any spike
    heard = ensemble.listen(silent, window=WINDOW, event=0)
    assert len({one.tobytes() for one in heard.scores}) == 1 and len(set(heard.scores.ids)) == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda one, _: one.listen([], window=3, event=0), "recordings is empty"),
        (lambda one, _: one.listen(np.zeros((9, 8)), window=3, event=0), "list of arrays"),
        (
            lambda one, _: one.listen([np.zeros((9, 8)), np.zeros((9, 7))], window=3, event=0),
            "of shapes",
        ),
        (lambda one, _: one.listen([np.zeros((9, 8))], window=3, event=1.5), "event is 1.5"),
        (lambda one, _: one.listen([np.zeros((9, 8))], window=3, event=None), "event is None"),
        (lambda _, heard: heard.after(np.full(40, 5.5), [0] * 40, steps=3), "alarms has dtype"),
        (lambda _, heard: heard.after([5] * 40, [0] * 40, steps=300), "longer recordings"),
    ],
)
def test_bad_recordings_get_a_sentence(parts: Any, call: Any, words: str) -> None:
    with pytest.raises(ag.InputError, match=words):
        call(parts[0], parts[3])


def test_a_spotter_and_a_rule_in_each_others_place_get_a_sentence(parts: Any) -> None:
    ensemble, spotter, rule, _, _ = parts
    with pytest.raises(ag.InputError, match="the spotter is a rule"):
        ensemble.watch(rule, spotter, window=WINDOW, event=0)
    with pytest.raises(ag.InputError, match="streams without an end"):
        ensemble.live(spotter)


def test_a_rule_for_windows_is_refused_where_inputs_run_from_their_first_step(parts: Any) -> None:
    """Its steps count from an alarm."""
    ensemble, _, rule, _, (streams, _, _) = parts
    x = np.stack([one[:STEPS] for one in streams[:3]])
    for run, given in ((ensemble.decide, (rule, x)), (ensemble.live, (rule,))):
        with pytest.raises(ag.InputError, match="its steps count from an alarm"):
            run(*given)


def test_what_would_break_a_promise_is_refused(parts: Any) -> None:
    ensemble, spotter, rule, heard, spotted = parts
    first = [next(iter(spotter.alarms(one)), -1) for one in heard.scores]
    same = ag.AgreeStop(0.8, range(1, STEPS + 1), 1).calibrate(
        heard.after(first, spotted[2], steps=STEPS)
    )
    with pytest.raises(ag.InputError, match="other recordings"):
        ensemble.watch(spotter, same, window=WINDOW, event=0)
    short = replace(spotter, spotter=replace(spotter.spotter, rest=3))
    with pytest.raises(ag.InputError, match="rest of at least 25"):
        ensemble.watch(short, rule, window=WINDOW, event=0)
    for event in (3, "seven", (0, 1, 2), ()):
        with pytest.raises(ag.InputError, match="event is"):
            ensemble.watch(spotter, rule, window=WINDOW, event=event)
    with pytest.raises(ag.InputError, match="step is 3"):
        ensemble.watch(spotter, rule, window=WINDOW, event=0).push([], step=3)
    with pytest.raises(ag.InputError, match="of type Spotter, which is not calibrated"):
        ensemble.watch(ag.Spotter(0.1), rule, window=WINDOW, event=0)
    joining = ag.AgreeStop(0.8, ag.Schedule([(5, 1), (STEPS, 2)]), 1)
    other = ensemble.listen(recordings(np.random.default_rng(7), 60)[0], window=WINDOW, event=0)
    scores = other.after([20] * 60, [0, 1, 2] * 20, steps=STEPS)
    with pytest.raises(ag.InputError, match="has a Schedule"):
        ensemble.watch(spotter, calibrate_quietly(joining, scores), window=WINDOW, event=0)


def test_the_event_is_by_default_the_one_of_the_spotters_scores(parts: Any) -> None:
    ensemble, _, rule, _, (streams, *_) = parts
    unheard = recordings(np.random.default_rng(9), 40)[0]
    for event in ((0, 2), (1,)):
        heard = ensemble.listen(unheard, window=WINDOW, event=event)
        spotter = ag.Spotter(0.1, rest=60).calibrate(heard.scores)
        scores = ensemble.listen(streams, window=WINDOW, event=event).scores[0]
        bare = replace(rule, heard="")
        session = ensemble.watch(spotter, bare, window=WINDOW)
        for frame, score in zip(streams[0], scores, strict=True):
            session.push(frame=frame)
            assert session.score == pytest.approx(score, abs=1e-9)
    unknown = ag.Spotter(0.1, rest=60).calibrate(np.random.default_rng(3).normal(size=(20, 100)))
    with pytest.raises(ag.InputError, match="event is missing"):
        ensemble.watch(unknown, rule, window=WINDOW)


def test_another_window_event_or_skip_than_calibrated_with_is_refused(
    parts: Any, tmp_path: Path
) -> None:
    """In memory and from files: recordings, scores, spotters and rules keep what made them."""
    ensemble, spotter, rule, heard, spotted = parts
    heard.scores.save(tmp_path / "recordings.npz", spotted[1])
    kept = spotter.spotter.calibrate(load_recordings(tmp_path / "recordings.npz"), near=10)
    assert kept.threshold == spotter.threshold and "window=8, event=0" in repr(kept)
    kept.save(tmp_path / "spotter")
    rule.save(tmp_path / "rule")
    other = ensemble.listen(recordings(np.random.default_rng(8), 60)[0], window=WINDOW, event=0)
    ag.save_scores(
        tmp_path / "scores.npz",
        other.after(np.full(60, 40), np.zeros(60, np.int64), steps=STEPS, skip=3),
    )
    skips = replace(rule, heard=ag.load_scores(tmp_path / "scores.npz").heard)
    for watcher, decider in (
        (spotter, rule),
        (ag.Spotter.load(tmp_path / "spotter"), ag.load_rule(tmp_path / "rule")),
    ):
        assert ensemble.watch(watcher, decider, window=WINDOW, event=0).note == ""
        for given, what in (
            ({"window": 9}, "window=9"),
            ({"event": 1}, "event=1"),
            ({"event": (0, 1)}, "event=0,1"),
            ({"skip": 3}, "skip=3"),
        ):
            with pytest.raises(ag.InputError, match=f"{what}.* is given"):
                ensemble.watch(watcher, decider, **{"window": WINDOW, "event": 0, **given})
    note = ensemble.watch(spotter, skips, window=WINDOW, event=0, skip=3).note
    assert note.startswith("The rule cannot tell which spotter")
    with pytest.raises(
        ag.InputError, match="the spotter was calibrated on scores with window=8, event=0: give"
    ):
        ensemble.watch(spotter, replace(rule, heard=""), window=9, event=0)
    with pytest.raises(
        ag.InputError, match="rule was calibrated on scores with window=8, event=0, skip=3"
    ):
        ensemble.watch(spotter, skips, window=WINDOW, event=0)


def test_a_rule_knows_which_spotter_raised_its_alarms(parts: Any, tmp_path: Path) -> None:
    """A stricter spotter has windows of another law, so the rule promises nothing behind it."""
    ensemble, spotter, rule, _, spotted = parts
    rule.save(tmp_path / "rule")
    strict = spotter.with_threshold(spotter.threshold + 0.5)
    longer = replace(spotter, spotter=replace(spotter.spotter, rest=STEPS + 6))
    for decider in (rule, ag.load_rule(tmp_path / "rule")):
        for other in (strict, longer):
            with pytest.raises(ag.InputError, match="alarms above"):
                ensemble.watch(other, decider, window=WINDOW, event=0)
    heard = ensemble.listen(spotted[0], window=WINDOW, event=0)
    alarms = [next(iter(spotter.alarms(one)), -1) for one in heard.scores]
    made = heard.after(alarms, spotted[2], steps=STEPS, spotter=spotter)
    rule.decide(made)
    with pytest.raises(ag.InputError, match="skip=1 is given"):
        rule.decide(heard.after([-1] * 39 + [40], [0] * 40, steps=STEPS, spotter=None, skip=1))
    late = [step + 1 if step >= 0 else step for step in alarms]
    with pytest.raises(ag.InputError, match="alarms: the spotter raises none at step"):
        heard.after(late, spotted[2], steps=STEPS, spotter=spotter)
    with pytest.raises(ag.InputError, match="not calibrated"):
        heard.after(alarms, spotted[2], steps=STEPS, spotter=spotter.spotter)


def test_a_spotter_of_another_ensemble_is_refused_and_one_of_unknown_scores_is_noted(
    parts: Any,
) -> None:
    ensemble, spotter, rule, heard, spotted = parts
    for name, allowed in (("engine", "any_engine"), ("ensemble_digest", "any_members")):
        foreign = replace(spotter, **{name: "another"})
        with pytest.raises(ag.InputError, match="the spotter was calibrated on scores of the"):
            ensemble.watch(foreign, rule, window=WINDOW, event=0)
        ensemble.watch(foreign, rule, window=WINDOW, event=0, **{allowed: True})
    own = spotter.spotter.calibrate(list(heard.scores), spotted[1], near=10)
    note = ensemble.watch(own, rule, window=WINDOW, event=0).note
    assert note.startswith("The spotter cannot tell") and "window, event and skip" in note
    assert heard.scores[:3].heard == heard.scores.heard and len(heard.scores[:3]) == 3


def test_adapted_networks_watch_too() -> None:
    """A module whose logits are the sums of a leaky trace of its inputs."""

    class Leaky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def step(
        module: nn.Module, x: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        trace = x if state is None else 0.8 * state + x
        return trace.reshape(len(x), 3, 2).sum(2), trace

    engine = ag.adapters.from_module([Leaky(), Leaky()], step=step)
    rng = np.random.default_rng(0)
    first, second = recordings(rng, 30), recordings(rng, 60)
    spotted, classed = (
        [one[:, :6].astype(np.float32) for one in part[0]] for part in (first, second)
    )
    heard, other = (engine.listen(one, window=1, event=0) for one in (spotted, classed))
    spotter = ag.Spotter(0.2, rest=STEPS).calibrate(heard.scores)
    rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1).calibrate(
        other.after([end for ((_, end),) in second[1]], second[2], steps=STEPS)
    )
    with pytest.raises(ag.InputError, match="event=1"):
        engine.watch(spotter, rule, window=1, event=1)
    session = engine.watch(spotter, rule, window=5, event=0)  # logits are of one step
    for frame in spotted[0]:
        session.push(frame=frame)
    assert session.score == pytest.approx(heard.scores[0][-1], abs=1e-6)


def nir_networks(engine: str) -> Any:
    pytest.importorskip("nir", reason="agreestop[nir] is not installed")
    from tests.adapters import nir_reference as graphs
    from tests.adapters.test_nir import linear

    rng = np.random.default_rng(0)
    members = [
        graphs.chain(
            linear(rng, 6, 12),
            graphs.neurons("CubaLIF", (12,), rng),
            linear(rng, 12, 3),
            graphs.neurons("LIF", (3,), rng),
        )
        for _ in range(2)
    ]
    return ag.adapters.from_nir(members, dt=1e-3, engine=engine)


def snntorch_networks() -> Any:
    from tests.adapters.test_spiking_libraries import snn_hidden

    torch.manual_seed(0)
    return ag.adapters.from_snntorch([snn_hidden().eval() for _ in range(2)])


@pytest.mark.parametrize(
    "build",
    [lambda: nir_networks("event-driven"), lambda: nir_networks("dense"), snntorch_networks],
    ids=["event-driven", "dense", "snntorch"],
)
def test_networks_of_other_libraries_watch_as_their_recordings_say(build: Any) -> None:
    """Untrained networks of six inputs: alarms, scores and answers of a stream are those of the
    whole recording.
    """
    engine, rng = build(), np.random.default_rng(0)
    first, second = ([one[:, :6] for one in recordings(rng, 40)[0]] for _ in range(2))
    heard, other = (engine.listen(one, window=WINDOW, event=0) for one in (first, second))
    spotter = ag.Spotter(0.6, rest=STEPS).calibrate(heard.scores)
    labels = rng.integers(3, size=len(second))
    rule = ag.AgreeStop(0.6, range(1, STEPS + 1), 1).calibrate(
        other.after(np.full(len(second), 60), labels, steps=STEPS)
    )
    x = np.concatenate([one[:, :6] for one in recordings(rng, 6)[0]])
    whole = engine.listen([x], window=WINDOW, event=0)
    session, found, sizes = engine.watch(spotter, rule, window=WINDOW, event=0), [], set()
    for frame in x:
        found.append(session.push(frame=frame))
        sizes.add(sum(one.nbytes for one in vars(session).values() if isinstance(one, np.ndarray)))
    alarms = spotter.alarms(whole.scores[0])
    assert [one.index for one in found if isinstance(one, ag.Detection)] == alarms.tolist() and len(
        alarms
    ) > 1 == len(sizes)
    assert session.score == pytest.approx(whole.scores[0][-1], abs=1e-6)
    for alarm in alarms[alarms + STEPS < len(x)]:
        expected = rule.decide(
            replace(whole.after([alarm], [0], steps=STEPS), labels=None, ids=None)
        )[0]
        decided = found[alarm + expected.time]
        assert isinstance(decided, ag.Decision) and (decided.time, decided.classes) == (
            expected.time,
            expected.classes,
        )


class Trace(nn.Module):
    """Logits of a leaky trace of six inputs; an input of 77 makes them NaN for one step."""

    def forward(
        self, x: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        trace = x if state is None else 0.8 * state + x
        logits = trace.reshape(len(x), 3, 2).sum(2)
        return torch.where(x[:, :1] == 77, torch.nan, logits), trace


@pytest.fixture(scope="module")
def traced() -> Any:
    """Modules with logits, a spotter, a rule on other recordings, and what those heard."""
    engine = ag.adapters.from_module([Trace(), Trace()], input_shape=(6,))
    rng = np.random.default_rng(0)
    first, second = (list(rng.normal(size=(n, 60, 6)).astype(np.float32)) for n in (30, 60))
    heard, other = (engine.listen(one, window=1, event=0) for one in (first, second))
    spotter = ag.Spotter(0.2, rest=10).calibrate(heard.scores)
    scores = other.after(np.full(60, 20), rng.integers(3, size=60), steps=8)
    rule = ag.AgreeStop(0.6, range(1, 9), 1).calibrate(scores)
    return engine, spotter, rule, other, scores


@pytest.mark.parametrize(
    ("first", "second"),
    [(np.zeros((5, 6), bool), 0.5), (np.zeros((5, 6), np.int8), 300.7)],
    ids=["booleans", "small integers"],
)
def test_recordings_of_different_types_keep_their_numbers(
    traced: Any, first: Any, second: float
) -> None:
    """Recordings are run together in the type of all of them, not in that of the first."""
    own = np.full((5, 6), second, np.float32)
    together = traced[0].listen([first, own], window=1, event=0).outputs[1]
    np.testing.assert_array_equal(together, traced[0].listen([own], window=1, event=0).outputs[0])


def test_a_recording_is_recognised_whatever_the_type_of_its_numbers(traced: Any) -> None:
    one = np.eye(6, dtype=bool)
    ids = [
        traced[0].listen([one.astype(dtype)], window=1, event=0).scores.ids[0]
        for dtype in (bool, np.uint8, np.int64, np.float32, np.float64)
    ]
    assert len(set(ids)) == 1


def test_an_output_that_is_not_finite_closes_the_stream(traced: Any) -> None:
    """The members have made the step, so a stream that went on would count its steps wrongly."""
    engine, spotter, rule, _, _ = traced
    spoiled = np.full(6, 77, np.float32)
    session = engine.watch(spotter.with_threshold(-1e9), rule, window=1, event=0)
    session.push(frame=np.zeros(6))
    with pytest.raises(ag.InputError, match="not finite at step 1, so this stream was closed"):
        session.push(frame=spoiled)
    with pytest.raises(ag.InputError, match="this stream was closed"):
        session.push(frame=np.zeros(6))
    assert session.time == 1 and "0 steps after the detection at step 0" in session.close()
    with pytest.raises(ag.InputError, match=r"members for recordings\[1\] holds nan"):
        engine.listen([np.zeros((4, 6)), spoiled[None]], window=1, event=0)
    with pytest.raises(ag.InputError, match=r"recordings\[1\] holds nan"):
        engine.listen([np.zeros((4, 6)), np.full((4, 6), np.nan)], window=1, event=0)


RISK = np.random.default_rng(0).random((40, 8))
OTHER_RULES: dict[str, Any] = {
    "risk": lambda: ag.StopRule(target=0.8).calibrate(RISK, RISK > 0.9),
    "numbers": lambda: ag.IntervalStop(0.8, range(1, 9), max_width=9).calibrate(
        ag.Numbers(RISK, np.ones((40, 8)), RISK[:, 0])
    ),
    "answers": lambda: ag.AgreeStop(0.8, range(1, 9), 1).calibrate(
        ag.Answers([["a", "b"] * 4] * 40), "final"
    ),
}


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("reads", OTHER_RULES)
def test_a_rule_that_reads_no_confidences_cannot_follow_a_detection(
    traced: Any, reads: str
) -> None:
    engine, spotter, _, _, _ = traced
    with pytest.raises(ag.InputError, match=f"the rule reads {reads}"):
        engine.watch(spotter, OTHER_RULES[reads](), window=1, event=0)


def test_modules_that_give_numbers_have_no_classes_to_watch_for(traced: Any) -> None:
    engine = ag.adapters.from_module([Trace(), Trace()], output="numbers", input_shape=(6,))
    with pytest.raises(ag.InputError, match="give numbers, not classes"):
        engine.listen([np.zeros((5, 6))], window=1, event=0)
    with pytest.raises(ag.InputError, match="give numbers, not classes"):
        engine.watch(traced[1], traced[2], window=1, event=0)


@pytest.mark.parametrize(("before", "after"), [(int, int), (int, str), (str, int), (str, str)])
def test_a_rule_of_people_who_set_the_threshold_is_refused(
    traced: Any, before: type, after: type
) -> None:
    """Their recordings differ, but those of one person depend on each other. Files of names make
    text of numbers.
    """
    engine, scores = traced[0], traced[4]
    rng = np.random.default_rng(1)
    heard = engine.listen(list(rng.normal(size=(30, 60, 6))), window=1, event=0)
    spotter = ag.Spotter(0.2, rest=10).calibrate(
        heard.scores, people=(np.arange(30) // 2).astype(before)
    )
    for people, refused in ((10 + np.arange(60) // 4, True), (15 + np.arange(60) // 4, False)):
        rule = ag.AgreeStop(0.6, range(1, 9), 1).calibrate(scores, people=people.astype(after))
        if refused:
            with pytest.raises(ag.InputError, match="5 of the people"):
                engine.watch(spotter, rule, window=1, event=0)
        else:
            engine.watch(spotter, rule, window=1, event=0)


WRONG_CALLS: dict[str, tuple[Any, str]] = {
    "no recordings": (lambda one, *_: one.listen(None, window=1, event=0), "recordings is None"),
    "an empty recording": (
        lambda one, *_: one.listen([np.zeros((5, 6)), np.zeros((0, 6))], window=1, event=0),
        r"recordings\[1\] has shape \(0, 6\)",
    ),
    "a class twice": (
        lambda one, *_: one.listen([np.zeros((5, 6))], window=1, event=(1, 1)),
        "each once",
    ),
    "labels of no class": (lambda *parts: parts[3].after([5] * 60, [3] * 60, steps=8), "from 0"),
    "labels with fractions": (
        lambda *parts: parts[3].after([5] * 60, np.full(60, 0.5), steps=8),
        "labels has dtype float64",
    ),
    "names of classes": (
        lambda *parts: parts[3].after([5] * 60, ["word"] * 60, steps=8),
        "labels has dtype",
    ),
    "a window without end": (
        lambda one, spotter, rule, *_: one.watch(spotter, rule, window=10**15, event=0),
        "do not fit in memory",
    ),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_wrong_calls_get_a_sentence(traced: Any, case: str) -> None:
    call, words = WRONG_CALLS[case]
    with pytest.raises(ag.InputError, match=words):
        call(*traced)


def test_a_window_after_an_alarm_holds_the_steps_behind_the_skipped_ones(traced: Any) -> None:
    """The first step and the last one that leaves room may be alarms; a later one is left out."""
    other, labels = traced[3], np.arange(60) % 3
    alarms = np.full(60, -1)
    alarms[[3, 5, 8]] = 0, 49, 50  # of 60 steps
    found = other.after(alarms, labels, steps=8, skip=2)
    assert found.labels is not None and found.labels.tolist() == [0, 2]
    for row, (recording, first) in enumerate(((3, 3), (5, 52))):
        logits = other.outputs[recording][first : first + 8].astype(np.float64)
        expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        np.testing.assert_allclose(found.log_confidence[row], expected, atol=1e-12)
    for wrong in ((alarms[:3], labels), (alarms, labels[:3]), (alarms[:3], labels[:3])):
        with pytest.raises(ag.InputError, match="give one of each"):
            other.after(*wrong, steps=8)


def test_alarms_are_those_of_the_spotter_that_is_named(traced: Any) -> None:
    _, spotter, _, other, _ = traced
    quiet, alarms = spotter.with_threshold(1e9), np.full(60, -1)
    alarms[4] = 0
    with pytest.raises(ag.InputError, match="raises none at step 0 of recording 4"):
        other.after(alarms, np.zeros(60, np.int64), steps=8, spotter=quiet)
    with pytest.raises(ag.InputError, match="event=0 is given, and the spotter"):
        other.after(
            alarms, np.zeros(60, np.int64), steps=8, spotter=replace(quiet, heard="event=1")
        )


def test_an_event_may_be_named_as_the_rule_names_its_classes(traced: Any) -> None:
    engine, spotter, rule, _, _ = traced
    named = replace(rule, class_names=("word", "other", "noise"))
    frame = np.arange(6.0)
    scores = []
    for decider, event in ((named, "word"), (rule, 0)):
        session = engine.watch(spotter, decider, window=1, event=event)
        session.push(frame=frame)
        scores.append(session.score)
    assert scores[0] == scores[1]
    with pytest.raises(ag.InputError, match="event is 'door'"):
        engine.watch(spotter, named, window=1, event="door")
    with pytest.raises(ag.InputError, match="calibrated without: leave them out"):
        engine.watch(spotter, rule, window=1, event=0, group="left")


def test_a_detection_that_was_decided_is_not_missed_at_the_end(traced: Any) -> None:
    engine, spotter, rule, _, _ = traced
    session = engine.watch(spotter.with_threshold(-1e9), rule, window=1, event=0)
    found = [session.push(frame=np.zeros(6)) for _ in range(10)]
    assert isinstance(found[0], ag.Detection)
    assert [one for one in found[1:] if one is not None] and session.close() == ""


def test_a_rule_that_cannot_name_its_recordings_gets_a_warning(traced: Any) -> None:
    engine, spotter, _, _, scores = traced
    unknown = ag.AgreeStop(0.6, range(1, 9), 1).calibrate(replace(scores, ids=None))
    with pytest.warns(ag.CalibrationWarning, match="without ids"):
        engine.watch(spotter, unknown, window=1, event=0)
