"""The log for audits: every decision, label and alarm on a line of its own, through rotation, a
kill and a full disk.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import agreestop as ag
from agreestop.serve import Client, Server
from agreestop.serve.journal import Journal

from .served import Served, steps_of, until
from .test_serve import status


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_decisions_labels_and_alarms_are_logged(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    server = Server(served.rule, served.ensemble, port=0, log=path)
    with server.background() as url, Client(url) as client:
        alarms: tuple[str, ...] = ()
        while not alarms:  # every answer misses
            session = client.open()
            decision = session.push_steps(steps_of(served.inputs[0]))
            assert decision is not None
            alarms = session.label((decision.classes[0] + 1) % 4)
        client.open().close()
        with pytest.raises(ag.InputError, match="is in use"):
            Server(served.rule, port=0, log=path)
        until(lambda: read(path)[-1]["event"] == "closed")
        opened = status(url)["opened"]
    records = read(path)
    events = [one["event"] for one in records]
    assert (
        events[0] == "start"
        and events[-2:] == ["closed", "end"]
        and records[0]["promise"] == served.rule.guarantee
    )
    decisions = [one for one in records if one["event"] == "decision"]
    labels = [one for one in records if one["event"] == "label"]
    assert [one["decision"] for one in decisions] == [one["decision"] for one in labels] and len(
        decisions
    ) == opened - 1
    assert (
        decisions[0]["classes"] == list(served.expected[0].classes) and decisions[0]["number"] == 0
    )
    assert {one["hit"] for one in labels} == {False} and all(
        one["at"].endswith("+00:00") for one in records
    )
    assert next(one["alarm"] for one in records if one["event"] == "alarm") in alarms
    assert "reason" in records[-2] and path.stat().st_mode & 0o777 == 0o600


def test_full_files_are_renamed_and_the_oldest_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    journal = Journal(path, size=1000, files=2)
    for number in range(60):
        assert journal.write([{"event": "decision", "number": number}])
    journal.close()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["log", "log.1", "log.2"] and all(
        (tmp_path / name).stat().st_size <= 1000 for name in names
    )
    numbers = [one["number"] for name in ("log.2", "log.1", "log") for one in read(tmp_path / name)]
    assert numbers == list(range(numbers[0], 60)) and len(numbers) > 20
    journal = Journal(path, size=1000, files=2)
    # more than a file holds: it is not divided
    journal.write([{"event": "decision", "number": 60}] * 40)
    journal.close()
    assert len(read(path)) == 40


def test_a_file_is_renamed_when_it_would_be_larger_and_never_empty(tmp_path: Path) -> None:
    line = [{"event": "decision"}]
    journal = Journal(tmp_path / "one")
    journal.write(line)
    journal.close()
    size = (tmp_path / "one").stat().st_size
    for bytes_, written, files in ((3, 1, 1), (3, 2, 2), (2 * size, 2, 1), (2 * size - 1, 2, 2)):
        folder = tmp_path / f"{bytes_} {written}"
        folder.mkdir()
        journal = Journal(folder / "log", size=bytes_, files=5)
        for _ in range(written):
            journal.write(line)
        journal.close()
        assert len(list(folder.iterdir())) == files


def test_a_line_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for content, left in ((b'{"a":1}\n{"b"', 1), (b"x" * 200_000, 0), (b"", 0), (b'{"a":1}\n', 1)):
        path.write_bytes(content)
        journal = Journal(path)
        journal.write([{"event": "start"}])
        journal.close()
        assert len(read(path)) == left + 1


def test_records_that_a_full_disk_lost_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:5])

    journal = Journal(tmp_path / "log")
    assert journal.write([{"event": "start"}])
    file, journal._file = journal._file, Full(tmp_path / "log", "a")
    assert not journal.write([{"event": "decision"}] * 3) and not journal.write(
        [{"event": "label"}]
    )
    journal._file.close()
    journal._file = file
    assert journal.write([{"event": "label"}]) and journal.lost == 0
    journal.close()
    assert [(one["event"], one.get("records")) for one in read(tmp_path / "log")] == [
        ("start", None),
        ("lost", 4),
        ("label", None),
    ]
    assert caplog.text.count("cannot be written") == 1


def test_a_log_survives_a_kill(served: Served, tmp_path: Path) -> None:
    served.rule.save(tmp_path / "rule")
    path = tmp_path / "decisions.jsonl"
    command = [
        sys.executable,
        "-c",
        "from agreestop.cli import main; main()",
        "serve",
        str(tmp_path / "rule"),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--log", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "500"},
    )
    assert process.stdout is not None
    scores = served.ensemble.score(served.inputs[:8]).log_confidence.astype(float)
    try:
        url = (
            next(line for line in process.stdout if "connect to" in line)
            .split("connect to ")[1]
            .split(". ")[0]
        )
        with Client(url) as client:
            for row in scores:
                assert client.open().push(log_confidence=row) is not None
            until(lambda: sum(one["event"] == "decision" for one in read(path)) == 8)
            process.send_signal(signal.SIGKILL)
            process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with Server(served.rule, port=0, log=path).background() as url, Client(url) as client:
        assert client.open().push(log_confidence=scores[0]) is not None
    assert [one["event"] for one in read(path)] == [
        "start",
        *["decision"] * 8,
        "start",
        "decision",
        "end",
    ]


def test_a_log_that_cannot_be_written_is_refused(served: Served, tmp_path: Path) -> None:
    for path, sentence in (
        (tmp_path / "no folder" / "log", "cannot write"),
        (tmp_path, "cannot write"),
    ):
        with pytest.raises(ag.InputError, match=sentence):
            Server(served.rule, port=0, log=path)
    with pytest.raises(ag.InputError, match="log_bytes"):
        Server(served.rule, port=0, log=tmp_path / "log", log_bytes=0)
    with Server(served.rule, port=0, log=tmp_path / "log").background():
        pass
