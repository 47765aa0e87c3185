"""A watched ensemble, and a spotter alone, in C: step by step what Python finds, over random
streams.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="an export needs trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.cli import main
from agreestop.common import Booleans, atomic_writer
from agreestop.ensembles import save_members
from agreestop.networks import FullyConnected, Neuron, SpikingNetwork
from tests.export.test_c import EXACT, SANITIZED

pytestmark = pytest.mark.skipif(
    not shutil.which("gcc") or sys.platform != "linux", reason="gcc is not installed"
)

WINDOW, STEPS, SKIP, REST, CLASSES, INPUTS = 7, 12, 3, 15, 4, 40
EVENT = (1, 3)
HOW: dict[str, Any] = {"window": WINDOW, "event": EVENT, "skip": SKIP}
FAST = ("-O2", *EXACT)


def streams(n: int, seed: int) -> list[Booleans]:
    """Noise whose rate goes up and down, with pauses and a step of all events."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        rates = np.repeat(rng.choice([0.0, 0.05, 0.2, 0.5], size=20), 10)[
            : int(rng.integers(120, 200))
        ]
        found.append(rng.random((len(rates), INPUTS)) < rates[:, None])
        found[-1][30] = True
    return found


def test_a_spotter_that_is_not_calibrated_is_refused(tmp_path: Path) -> None:
    wrong: Any = ag.Spotter(0.1)
    with pytest.raises(ag.InputError, match="spotter is of type Spotter, which is not calibrated"):
        ag.export.spotter_to_c(wrong, tmp_path)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained members with weights that are large enough for the read-out to spike."""
    path = tmp_path_factory.mktemp("members") / "members"
    config = FullyConnected((INPUTS,), CLASSES, 3, (20,), Neuron(threshold=0.3))
    save_members(
        path, SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.4).eval()
    )
    return path


def calibrate(path: Path, weights: str = "", rule: Any = None) -> tuple[Any, Any, Any]:
    """An ensemble, a spotter, and a rule on alarms of other recordings."""
    ensemble = ag.ensembles.load(path, engine=f"event-driven{weights}")
    heard, other = (
        ensemble.listen(streams(60, seed), window=WINDOW, event=EVENT) for seed in (0, 1)
    )
    spotter = ag.Spotter(0.7, rest=REST).calibrate(heard.scores)
    first = [next(iter(spotter.alarms(one)), 20) for one in other.scores]
    chosen = rule or ag.AgreeStop(0.6, range(1, STEPS + 1), 2)
    labels = np.random.default_rng(0).integers(CLASSES, size=len(first))
    return ensemble, spotter, chosen.calibrate(other.after(first, labels, steps=STEPS, skip=SKIP))


def compiled(folder: Path, sources: Sequence[str], options: Sequence[str], to: str) -> Path:
    done = subprocess.run(
        ["gcc", *options, *sources, "-o", to, "-lm"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / to


WATCHED = ("watch.c", "spotter.c", "network.c", "rule.c", "model.c")


class Detected(ctypes.Structure):
    _fields_ = (("step", ctypes.c_uint64), ("number", ctypes.c_uint32), ("score", ctypes.c_double))


class Watch:
    """The sources of a folder as a library, with what the header declares."""

    def __init__(self, folder: Path) -> None:
        self.lib = ctypes.CDLL(
            str(compiled(folder, WATCHED, (*FAST, "-fPIC", "-shared"), "library.so"))
        )
        self.lib.ag_watch_score.restype = ctypes.c_double
        self.lib.ag_watch_detection.restype = ctypes.POINTER(Detected)
        self.lib.ag_watch_decision.restype = ctypes.POINTER(ctypes.c_uint16)

    def push(self, events: Sequence[int]) -> int:
        return int(
            self.lib.ag_watch_push(
                (ctypes.c_uint16 * len(events))(*events), ctypes.c_size_t(len(events))
            )
        )

    def found(self, state: int) -> Any:
        """What a push found, as Python says it."""
        if state == 2:
            one = self.lib.ag_watch_detection().contents
            return one.step, one.number
        answer = self.lib.ag_watch_decision()
        return (*answer[:2], tuple(answer[3 : 3 + answer[2]])) if state == 1 else None


def as_found(one: Any) -> Any:
    if isinstance(one, ag.Detection):
        return one.index, one.number
    return None if one is None else (one.time, one.members, one.classes)


RULES = {
    "risk": ag.AgreeStop(0.6, range(1, STEPS + 1), 2),
    "few checkpoints": ag.AgreeStop(0.6, (3, 8, 12), 1),
    "largest so far": ag.SpikeCP(
        0.6, range(1, STEPS + 1), 2, ag.MergeConfidence(r=1), "simultaneous"
    ),
    "sets": ag.SpikeCP(0.6, range(2, STEPS + 1, 2), 2, ag.MergeConfidence(r=1), "stop-aware"),
}


@pytest.mark.parametrize(
    ("weights", "label"),
    [
        ("", "risk"),
        ("", "largest so far"),
        ("-int8", "few checkpoints"),
        ("-bfloat16", "sets"),
    ],
)
def test_every_step_is_that_of_python(
    weights: str, label: str, members: Path, tmp_path: Path
) -> None:
    ensemble, spotter, rule = calibrate(members, weights, RULES[label])
    ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, **HOW)
    watch, counts = Watch(tmp_path), {1: 0, 2: 0, 0: 0}
    for number, part in enumerate((np.concatenate(streams(12, 5)), streams(1, 6)[0])):
        session = ensemble.watch(spotter, rule, **HOW)
        if number > 0:  # the first stream begins by itself
            watch.lib.ag_watch_init()
        for frame in part:
            events = np.flatnonzero(frame).tolist()
            state, expected = watch.push(events[::-1]), session.push(events)
            assert watch.found(state) == as_found(expected)
            assert watch.lib.ag_watch_score() == pytest.approx(session.score, abs=1e-9)
            counts[state] += 1
            if isinstance(expected, ag.Detection):
                detected = watch.lib.ag_watch_detection().contents
                assert detected.score == pytest.approx(expected.score, abs=1e-9)
                answer = watch.lib.ag_watch_decision()
                assert (answer[0], answer[2]) == (0, 0)  # there is no decision yet
    assert counts[2] > 10 and counts[1] > 8 and counts[0] > 1000


def test_a_wrong_event_changes_nothing(members: Path, tmp_path: Path) -> None:
    ensemble, spotter, rule = calibrate(members)
    ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, **HOW)
    watch, (stream,) = Watch(tmp_path), streams(1, 7)
    clean = [
        watch.push(np.flatnonzero(frame).tolist()) for frame in stream
    ]  # the first push begins a stream
    watch.lib.ag_watch_init()
    for frame, state in zip(stream, clean, strict=True):
        events = np.flatnonzero(frame).tolist()
        assert watch.push([*events, INPUTS]) == -1 and watch.push(events) == state
    assert 2 in clean


def test_recordings_are_checked_by_make(members: Path, tmp_path: Path) -> None:
    """The CSV of `replay` is Python's, for recordings of unequal length, of which two end in an
    open window.
    """
    ensemble, spotter, rule = calibrate(members)
    recordings = streams(8, 8)
    (alarm, *_) = spotter.alarms(
        ensemble.listen(recordings[:1], window=WINDOW, event=EVENT).scores[0]
    )
    recordings.append(recordings[0][: alarm + 1])
    made = ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, recordings, **HOW)
    assert made.inputs == 9 and made.nearest is not None and made.nearest > 1e-9
    replay = compiled(tmp_path, (*WATCHED, "watch_replay.c"), FAST, "replay")
    done = subprocess.run([str(replay), "inputs.bin"], cwd=tmp_path, capture_output=True)
    assert (
        done.stdout == (tmp_path / "expected.csv").read_bytes()
        and done.stdout.count(b"decision") > 5
    )
    assert b"2 detections have no decision" in done.stderr
    good = (tmp_path / "inputs.bin").read_bytes()
    for words, bad in {
        "no file of streams": b"X",
        "ends before": good[:-1],
        "goes on": good + b"\0",
        "size": good[:16] + b"\5" + good[17:],
    }.items():
        (tmp_path / "bad.bin").write_bytes(bad)
        done = subprocess.run([str(replay), "bad.bin"], cwd=tmp_path, capture_output=True)
        assert done.returncode == 1 and words.encode() in done.stderr


@pytest.mark.slow
def test_sanitizers_object_to_nothing(members: Path, tmp_path: Path) -> None:
    for weights in ("", "-int8", "-bfloat16"):
        ensemble, spotter, rule = calibrate(members, weights)
        folder = tmp_path / f"c{weights}"
        ag.export.watch_to_c(spotter, rule, ensemble, folder, streams(60, 9), **HOW)
        replay = compiled(folder, (*WATCHED, "watch_replay.c"), SANITIZED, "replay")
        done = subprocess.run([str(replay), "inputs.bin"], cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (folder / "expected.csv").read_bytes()


CPP = """
#include "watch.h"
#include "spotter.h"
#include <cstdio>
int main()
{
    ag_spotter spotter;
    ag_spotter_init(&spotter);
    ag_watch_init();
    const uint16_t events[] = {0};
    int state = ag_watch_push(events, 1);
    std::printf("%d %d %s\\n", state, ag_spotter_push(&spotter, 0.0), ag_class_names[0]);
    return state < 0;
}
"""


def test_the_event_is_that_of_the_scores_by_default(members: Path, tmp_path: Path) -> None:
    ensemble, spotter, rule = calibrate(members)
    how = HOW | {"event": None}
    named = ag.export.watch_to_c(spotter, rule, ensemble, tmp_path / "named", **HOW)
    ag.export.watch_to_c(spotter, rule, ensemble, tmp_path / "default", **how)
    for name in named.files:
        same = [(tmp_path / folder / name).read_bytes() for folder in ("named", "default")]
        assert same[0] == same[1], name
    unnamed = replace(spotter, heard="")
    with pytest.raises(ag.InputError, match="event is missing"):
        ag.export.watch_to_c(unnamed, rule, ensemble, tmp_path / "no", **how)


def test_the_headers_and_the_spotter_are_c_plus_plus_too(members: Path, tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    ensemble, spotter, rule = calibrate(members)
    ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, **HOW)
    subprocess.run(["gcc", *FAST, "-c", *WATCHED], cwd=tmp_path, check=True)
    (tmp_path / "main.cpp").write_text(CPP)
    objects = [name.replace(".c", ".o") for name in WATCHED]
    strict = ("-Wall", "-Wextra", "-Werror")
    for words in (
        ["main.cpp", *objects, "-o", "main", "-lm"],
        ["-x", "c++", "-c", "spotter.c", "-o", "spotter_cpp.o"],
    ):
        done = subprocess.run(
            ["g++", *strict, *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert subprocess.run([str(tmp_path / "main")]).returncode == 0


def test_sizes_are_those_of_the_compiled_objects(members: Path, tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    ensemble, spotter, rule = calibrate(members, "-int8")
    made = ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, **HOW)
    subprocess.run(["gcc", "-O0", "-fno-pie", *EXACT, "-c", *WATCHED], cwd=tmp_path, check=True)
    objects = [name.replace(".c", ".o") for name in WATCHED]
    lines = subprocess.run(
        ["nm", "-S", *objects], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    symbols = [line.split() for line in lines if len(line.split()) == 4]
    ram = sum(int(size, 16) for _, size, kind, _ in symbols if kind in "bBdD")
    assert abs(ram - made.ram) < 100


class Alone(ctypes.Structure):
    _fields_ = (("steps", ctypes.c_uint64), ("alarms", ctypes.c_uint32), ("rest", ctypes.c_uint32))


@pytest.mark.parametrize("rest", [0, 1, 20])
def test_a_spotter_alone_raises_the_alarms_of_python(rest: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(rest)
    recordings = [np.round(rng.normal(size=200), 1) for _ in range(40)]  # scores that often tie
    spotter = ag.Spotter(3, cap=40, rest=rest).calibrate(recordings)
    for threshold in (spotter.threshold, float(recordings[0][3]), np.inf, -np.inf):
        folder = tmp_path / f"c{threshold}"
        chosen = spotter.with_threshold(threshold)
        made = ag.export.spotter_to_c(chosen, folder)
        assert set(made.files) == {one.name for one in folder.iterdir()}
        lib = ctypes.CDLL(
            str(compiled(folder, ("spotter.c",), (*FAST, "-fPIC", "-shared"), "library.so"))
        )
        one, scores = Alone(99, 99, 99), np.concatenate(recordings)  # as memory may be
        lib.ag_spotter_init(ctypes.byref(one))
        states = [
            lib.ag_spotter_push(ctypes.byref(one), ctypes.c_double(score)) for score in scores
        ]
        np.testing.assert_array_equal(np.flatnonzero(states), chosen.alarms(scores))
        before = one.steps, one.alarms, one.rest
        assert {
            lib.ag_spotter_push(ctypes.byref(one), ctypes.c_double(bad))
            for bad in (np.nan, np.inf, -np.inf)
        } == {-1}
        assert (
            before == (one.steps, one.alarms, one.rest)
            and (one.steps, one.alarms) == (len(scores), len(chosen.alarms(scores)))
            and ctypes.sizeof(one) == 16
        )
    assert chosen.guarantee in (folder / "spotter_data.h").read_text()


def test_what_cannot_be_exported_gets_a_sentence(members: Path, tmp_path: Path) -> None:
    ensemble, spotter, rule = calibrate(members)
    stream = streams(1, 0)[0]
    cases: dict[str, Any] = {
        r"recordings\[0\]": [stream[:, :5]],
        r"recordings\[1\]": [stream, stream * 2.0],
        "recordings is empty": [],
    }
    for words, recordings in cases.items():
        with pytest.raises(ag.InputError, match=words):
            ag.export.watch_to_c(spotter, rule, ensemble, tmp_path / "no", recordings, **HOW)
    short = replace(spotter, spotter=replace(spotter.spotter, rest=3))
    with pytest.raises(ag.InputError, match="rest"):
        ag.export.watch_to_c(short, rule, ensemble, tmp_path / "no", **HOW)
    with pytest.raises(ag.InputError, match="window"):
        ag.export.watch_to_c(
            replace(spotter, heard=""),
            replace(rule, heard=""),
            ensemble,
            tmp_path / "no",
            window=70_000,
            event=EVENT,
        )
    with pytest.raises(ag.InputError, match="skip=0 is given"):
        ag.export.watch_to_c(spotter, rule, ensemble, tmp_path / "no", window=WINDOW, event=EVENT)
    long = replace(spotter, spotter=replace(spotter.spotter, rest=2**32))
    with pytest.raises(ag.InputError, match="rest"):
        ag.export.spotter_to_c(long, tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_an_export_of_another_kind_leaves_no_file_of_the_last(
    members: Path, tmp_path: Path
) -> None:
    ensemble, spotter, rule = calibrate(members)
    exports: list[Callable[[], ag.export.CExport]] = [
        lambda: ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, **HOW),
        lambda: ag.export.to_c(rule, ensemble, tmp_path),
        lambda: ag.export.spotter_to_c(spotter, tmp_path),
    ]
    for export in exports:
        made = export()
        assert set(made.files) == {one.name for one in tmp_path.iterdir()}


@pytest.mark.parametrize("written", range(3))
@pytest.mark.parametrize("before", ["nothing", "watch"])
def test_an_interrupted_export_can_be_done_again(
    members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, written: int
) -> None:
    """Whatever was in the folder, and however many files were written."""
    ensemble, spotter, rule = calibrate(members)
    if before == "watch":
        ag.export.watch_to_c(spotter, rule, ensemble, tmp_path, **HOW)
    done: list[Path] = []

    def interrupted(path: Path) -> Any:
        if len(done) == written:
            raise KeyboardInterrupt
        done.append(path)
        return atomic_writer(path)

    monkeypatch.setattr("agreestop.export.c_files.atomic_writer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ag.export.spotter_to_c(spotter, tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "sizes.h").exists()
    made = ag.export.spotter_to_c(spotter, tmp_path)
    assert set(made.files) == {one.name for one in tmp_path.iterdir()}


def run(monkeypatch: pytest.MonkeyPatch, *words: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["agreestop", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_line(
    members: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, spotter, rule = calibrate(members)
    spotter.save(tmp_path / "spotter.rule")
    rule.save(tmp_path / "class.rule")
    ag.events.Events.from_dense(np.stack([one[:120] for one in streams(4, 3)])).save(
        tmp_path / "inputs.npz"
    )
    export = (
        "export",
        tmp_path / "class.rule",
        "--members",
        members,
        "--to",
        "c",
        "-o",
        tmp_path / "c",
    )
    watch = ("--spotter", tmp_path / "spotter.rule")
    inputs = ("--inputs", tmp_path / "inputs.npz")
    assert (
        run(
            monkeypatch,
            *export,
            *watch,
            "--window",
            WINDOW,
            "--event",
            "1,3",
            "--skip",
            SKIP,
            *inputs,
        )
        == 0
    )
    assert "4 streams" in " ".join(capsys.readouterr().out.split())
    replay = compiled(tmp_path / "c", (*WATCHED, "watch_replay.c"), FAST, "replay")
    done = subprocess.run([str(replay), "inputs.bin"], cwd=tmp_path / "c", capture_output=True)
    assert (
        done.stdout == (tmp_path / "c" / "expected.csv").read_bytes()
        and b"detection" in done.stdout
    )
    assert (
        run(monkeypatch, "export", tmp_path / "spotter.rule", "--to", "c", "-o", tmp_path / "alone")
        == 0
    )
    assert "spotter.h" in capsys.readouterr().out and (tmp_path / "alone" / "spotter.c").exists()
    wrong: dict[str, Any] = {
        "--window": (*export, *watch, "--event", 1),
        "--spotter": (*export, "--window", WINDOW),
        "--members": ("export", tmp_path / "class.rule", "--to", "c", "-o", tmp_path / "no"),
        "--to c": ("export", tmp_path / "spotter.rule", "--to", "page", "-o", tmp_path / "no"),
    }
    others = (
        ("--window", WINDOW + 1, "--event", "1,3", "--skip", SKIP),
        ("--window", WINDOW, "--event", 1, "--skip", SKIP),
    )
    wrong |= {
        " ".join(map(str, given[:4])).replace(" --event", ", --event"): (*export, *watch, *given)
        for given in others
    }
    for option, words in wrong.items():
        assert run(monkeypatch, *words) == 2
        assert option in " ".join(capsys.readouterr().err.split())
