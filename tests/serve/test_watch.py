"""The drift monitor of the server: sessions count in the order of opening, and nothing waits for
what will not come.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import agreestop as ag
from agreestop.engines import LiveBatch, Push, Steps
from agreestop.serve import Client, Limits, Server
from agreestop.serve.watch import Watch

from .served import Served, steps_of, until

SHORT = Limits(save_seconds=0.05, idle_seconds=0.3, session_seconds=0.6)


def risks_of(served: Served) -> Any:
    return served.rule.decide(served.ensemble.score(served.inputs)).first_risk


def test_sessions_count_in_the_order_of_opening(served: Served) -> None:
    """They end in the reverse order; the monitor is the one that sees them in order."""
    server = Server(served.rule, served.ensemble, port=0)
    with server.background() as url, Client(url) as client:
        sessions = [client.open() for _ in range(20)]
        for number in range(19, -1, -1):
            decision = sessions[number].push_steps(steps_of(served.inputs[number]))
            assert decision is not None and decision.number == sessions[number].number == number
            sessions[number].label(int(served.labels[number]))
        assert server.hub.watch is not None
        watched = server.hub.watch.monitor
        until(lambda: watched.observed == 20)
    expected = ag.DriftMonitor(replace(served.rule))
    for number, (decision, label) in enumerate(zip(served.expected, served.labels, strict=True)):
        expected.update(replace(decision, number=number), int(label))
    assert (watched.labels, watched.waiting) == (20, "")
    np.testing.assert_array_equal(watched.misses.capital, expected.misses.capital)
    np.testing.assert_array_equal(watched.inputs.capital, expected.inputs.capital)


def test_sessions_without_a_decision_are_inputs_without_a_miss(served: Served) -> None:
    """Closed before and after the first checkpoint, refused, idle, over the deadline, and lost with
    the connection.
    """
    server = Server(served.rule, served.ensemble, port=0, limits=SHORT)
    steps = steps_of(served.inputs[0])
    silence: list[Any] = [[]]
    with server.background() as url:
        assert server.hub.watch is not None
        monitor = server.hub.watch.monitor
        with Client(url) as client:
            client.open().close()
            closed = client.open()
            closed.push(steps[0])
            closed.close()
            wrong = client.open()
            wrong.push(steps[0])
            with pytest.raises(ag.InputError, match="numbered 0 to 31"):
                wrong.push([99])
            with suppress(ag.InputError):
                client.open(group="unknown")
            until(lambda: monitor.observed == 4)
            assert (monitor.inputs.count, monitor.misses.count) == (2, 4)
            idle = client.open()
            idle.push(steps[0])
            until(lambda: monitor.observed == 5)
            slow = client.open()
            with pytest.raises(ag.InputError, match=r"no decision after 0\.6 seconds"):
                while slow.push(log_confidence=np.full((3, 4), -np.log(4))) is None:
                    time.sleep(0.05)
            until(lambda: monitor.observed == 6)
        with Client(url) as client:
            client.open().push_steps(silence)
        until(lambda: monitor.observed == 7)
    assert (monitor.inputs.count, monitor.misses.count, monitor.labels, monitor.waiting) == (
        5,
        7,
        0,
        "",
    )


def test_a_slot_that_is_used_again_does_not_keep_a_first_risk(served: Served) -> None:
    batch, steps = LiveBatch(served.rule, served.ensemble.engine, 1), steps_of(served.inputs[0])
    row = batch.open(0)
    batch.push([Push(row, Steps.of(steps[:2]))])
    assert batch.close(row) == risks_of(served)[0]
    assert batch.close(batch.open(1)) is None
    row = batch.open(2)
    decision = batch.push([Push(row, Steps.of(steps))])[0]
    assert isinstance(decision, ag.Decision) and decision.number == 2


def test_a_label_that_was_lost_in_a_kill_is_given_up(served: Served, tmp_path: Path) -> None:
    """The file was written with a decision and without its label, and with a session that
    was open.
    """
    path = tmp_path / "monitor"
    limits = Limits(restart_seconds=0.05)
    watch = Watch(served.rule, path, limits)
    decisions = [
        replace(decision, number=number) for number, decision in enumerate(served.expected)
    ]
    # session 2 is open
    watch.observe([(f"key {number}", decisions[number]) for number in (0, 1, 3)])
    watch.label("key 1", 0)
    watch.close()
    assert "held back for number 2" in watch.monitor.waiting
    again = Watch(served.rule, path, limits)
    assert (again.next_number, again.monitor.observed, again.monitor.processed) == (4, 4, 0)
    assert (
        again.monitor.waiting
        == "1 label waits for the label of decision 0 ('key 0'): give it, or None"
    )
    again.observe([("key 4", decisions[4])])
    again.label("key 4", 0)
    until(lambda: (again.keep(), again.monitor.processed)[1] == 5)  # type: ignore[func-returns-value]
    assert (again.monitor.waiting, again.monitor.labels, again.monitor.misses.count) == ("", 2, 5)
    with pytest.raises(ag.InputError, match="no decision with the key 'key 0' waits"):
        again.label("key 0", 0)
    again.close()


def test_labels_of_decisions_before_a_restart_still_count_for_a_while(
    served: Served, tmp_path: Path
) -> None:
    path = tmp_path / "monitor"
    watch = Watch(served.rule, path, Limits())
    watch.observe([("key", replace(served.expected[0], number=0))])
    watch.close()
    again = Watch(served.rule, path, Limits())
    again.keep()
    again.label("key", 0)
    assert again.monitor.labels == 1
    again.close()


def test_a_session_that_very_many_overtook_costs_no_other_decision(served: Served) -> None:
    """Its number was given up, and is refused when it comes at last."""
    watch = Watch(served.rule, None, Limits())
    watch.observe([], [(number, None) for number in range(1, 10_001)])
    assert watch.monitor.observed == 10_001
    late, new = (replace(served.expected[0], number=number) for number in (0, 10_001))
    watch.observe([("late", late), ("new", new)])
    assert watch.monitor.observed == 10_002 and watch.label("new", 0)[0] is not None
    with pytest.raises(ag.InputError, match="waits for a label"):
        watch.label("late", 0)
