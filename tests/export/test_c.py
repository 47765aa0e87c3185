"""C sources that are exported decide as the Python engine does, spike by spike, and do nothing that
a sanitizer objects to.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="an export needs trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.cli import main
from agreestop.cli.export import _nearest
from agreestop.common import Booleans, Integers, atomic_writer
from agreestop.engines import EventDriven
from agreestop.engines.event_driven.layout import load_kernels, plan_network
from agreestop.ensembles import save_members
from agreestop.export.c_files import _inputs_file
from agreestop.export.members import OWN_MODULES
from agreestop.networks import Architecture, Convolutional, FullyConnected, Neuron, SpikingNetwork
from tests.decide.strategies import Shaped, at_kth_values, at_threshold, reading_of

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
pytestmark = pytest.mark.skipif(
    not COMPILERS or sys.platform != "linux", reason="neither gcc nor clang is installed"
)

EXACT = ("-std=c99", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
SANITIZED = ("-O0", *EXACT, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
STEPS, CLASSES, SHAPE = 16, 4, (2, 6, 6)
LOW = Neuron(threshold=0.3)
NETWORKS: dict[str, Architecture] = {
    "small": FullyConnected(SHAPE, CLASSES, 3, (12,), LOW),
    "deep": FullyConnected(
        SHAPE, CLASSES, 3, (150, 20), LOW
    ),  # one tile of the engine is wide, one narrow
    "convolutional": Convolutional(SHAPE, CLASSES, 3, (5, 6), (8,), real_input=False),
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of untrained members, with weights that are large enough for the read-out to spike."""
    folder = tmp_path_factory.mktemp("members")
    for name, config in NETWORKS.items():
        save_members(
            folder / name,
            SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.5).eval(),
        )
    return folder


def some_inputs(n: int, seed: int = 0) -> tuple[Booleans, Integers]:
    """Events whose rates depend on the class; the first input has all events at once in a step, and
    a pause.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    rates = np.full((n, 6, 6), 0.08)
    rates[np.arange(n), labels] = 0.4
    x = rng.random((n, STEPS, *SHAPE)) < rates[:, None, None]
    x[0, 3], x[0, 4] = True, False
    return x, labels


def load(members: Path, name: str, weights: str = "float32") -> Any:
    return ag.ensembles.load(
        members / name, engine="event-driven" + ("" if weights == "float32" else f"-{weights}")
    )


def build(
    folder: Path, options: Sequence[str] = SANITIZED, compiler: str = "", to: str = "replay"
) -> Path:
    sources = [
        "agreestop.c",
        "network.c",
        "rule.c",
        "model.c",
        *(["replay.c"] if to == "replay" else []),
    ]
    command = [compiler or COMPILERS[0], *options, *sources, "-o", to, "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / to


def replay(program: Path, inputs: str = "inputs.bin") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(program), inputs], cwd=program.parent, capture_output=True)


EVERY, FEW = tuple(range(1, STEPS + 1)), (4, 8, 12, 16)
SCHEDULE = ag.Schedule([(2, 1), (3, 1), (3, 2), (6, 2), (9, 3), (16, 3)])
AVERAGE = ag.MergeConfidence(r=1)


def shaped() -> ag.ShapedRisk:
    offsets = np.linspace(-1, 0, STEPS)
    offsets[2] = -np.inf
    return ag.ShapedRisk(
        ag.TopMass(ag.MergeConfidence(r=0), np.linspace(0.5, 2, STEPS), EVERY), offsets, EVERY
    )


def tempered() -> Shaped:
    return Shaped(
        ag.Temperature(ag.MergeConfidence(r=-2), np.linspace(0.5, 2, STEPS), EVERY),
        np.linspace(0, 1, STEPS),
        EVERY,
    )


CASES: dict[str, tuple[str, str, Any]] = {
    "every step": ("small", "float32", ag.AgreeStop(0.8, EVERY, 2)),
    "members that join": ("deep", "int8", ag.AgreeStop(0.8, SCHEDULE, 2)),
    "convolution": ("convolutional", "bfloat16", ag.SpikeCP(0.8, EVERY, 2, AVERAGE, "stop-aware")),
    "fixed time": ("small", "int8", ag.AgreeStop(0.6, EVERY, 2, fill=True, risk=ag.FixedTime())),
    "accumulated": ("small", "float32", ag.AgreeStop(0.4, EVERY, 1, accumulated=True, delta=0.8)),
    "bonferroni": ("small", "bfloat16", ag.SpikeCP(0.6, FEW, 2, ag.MergeConfidence(r=np.inf))),
    "confidence": ("small", "int8", ag.SEENN(0.6, SCHEDULE, 2)),
}


def calibrate(rule: Any, ensemble: Any, **how: Any) -> ag.CalibratedRule:
    x, y = some_inputs(80, 1)
    calibrated: ag.CalibratedRule = rule.calibrate(
        ensemble.score(x, None if how.get("labels") == "final" else y), **how
    )
    return calibrated


def check(
    rule: ag.CalibratedRule, ensemble: Any, folder: Path, x: Any, several: bool = True
) -> ag.export.CExport:
    """Export, compile and replay, and compare with what the engine decides."""
    made = ag.export.to_c(rule, ensemble, folder, x)
    decisions = ensemble.decide(rule, x).decisions
    assert not several or (
        len(np.unique(decisions.stop_index)) > 1 and len(np.unique(decisions.sets, axis=0)) > 2
    )
    lines = (folder / "expected.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[1]) for line in lines] == decisions.stop_time.tolist()
    assert [line.split(",")[3] for line in lines] == [
        ";".join(map(str, np.flatnonzero(kept))) for kept in decisions.sets
    ]
    for compiler in COMPILERS:
        done = replay(build(folder, compiler=compiler))
        assert done.returncode == 0, done.stderr
        assert done.stdout == (folder / "expected.csv").read_bytes()
        assert b"smallest distance to a threshold" in done.stderr
    return made


@pytest.mark.parametrize("label", CASES)
def test_decisions_are_those_of_python(label: str, members: Path, tmp_path: Path) -> None:
    name, weights, rule = CASES[label]
    ensemble = load(members, name, weights)
    x, _ = some_inputs(120)
    made = check(
        calibrate(rule, ensemble), ensemble, tmp_path, x, several=label not in ("fixed time",)
    )
    assert (
        made.weights == weights
        and made.inputs == 120
        and made.nearest is not None
        and made.nearest > 1e-9
    )


def test_a_gate_and_final_answers(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    x, y = some_inputs(200, 2)
    gate = ag.Gate.fit(ensemble.score(x, y), target=0.7, max_set_size=2, blocks=2)
    inputs, _ = some_inputs(120)
    gated = calibrate(ag.AgreeStop(0.7, EVERY, 2, gate=gate), ensemble)
    check(gated, ensemble, tmp_path / "gate", inputs)
    final = calibrate(ag.AgreeStop(0.9, FEW, 1), ensemble, labels="final")
    check(final, ensemble, tmp_path / "risk", inputs)
    final = calibrate(ag.SpikeCP(0.9, EVERY, 1, AVERAGE, "stop-aware"), ensemble, labels="final")
    check(final, ensemble, tmp_path / "score", inputs)


def never_stops(calibrated: ag.CalibratedRule) -> ag.CalibratedRule:
    return at_threshold(calibrated, -np.inf)


class Distance(ctypes.Structure):
    _fields_ = (("nearest", ctypes.c_double), ("ties", ctypes.c_ulong))


class Library:
    """The sources of a folder, compiled as a device would have them and called step by step."""

    def __init__(
        self, folder: Path, members: int, classes: int = CLASSES, options: Sequence[str] = ()
    ) -> None:
        compiled = build(
            folder, ("-O2", "-march=native", "-fPIC", "-shared", *EXACT, *options), to="library.so"
        )
        self._library = ctypes.CDLL(str(compiled))
        self._library.ag_margin.restype = Distance
        self._library.ag_counts.restype = ctypes.POINTER(ctypes.c_uint16)
        self._library.ag_decision.restype = ctypes.POINTER(ctypes.c_uint16)
        self._shape, self.init = (members, classes), self._library.ag_init

    def push(self, events: Sequence[int]) -> int:
        return int(
            self._library.ag_push(
                (ctypes.c_uint16 * len(events))(*events), ctypes.c_size_t(len(events))
            )
        )

    @property
    def counts(self) -> Any:
        return np.ctypeslib.as_array(self._library.ag_counts(), self._shape)

    @property
    def time(self) -> int:
        found = self._library.ag_decision()
        return int(found[0]) if found else 0

    @property
    def ties(self) -> int:
        return int(self._library.ag_margin().ties)

    def judge(self, counts: Integers, checkpoints: Sequence[float]) -> tuple[int, tuple[int, ...]]:
        """The look at which the rule stops on counts (T, K, C), and its answer."""
        answer = (ctypes.c_uint16 * (3 + self._shape[1]))()
        self._library.ag_start_rule()
        for look, time in enumerate(checkpoints):
            given = np.ascontiguousarray(counts[int(time) - 1], np.uint16)
            if self._library.ag_judge(
                ctypes.c_uint16(look), given.ctypes.data_as(ctypes.POINTER(ctypes.c_uint16)), answer
            ):
                break
        return look, tuple(answer[3 : 3 + answer[2]])


def compare_spikes(
    ensemble: Any, rule: ag.CalibratedRule, folder: Path, x: Booleans, counting: bool = False
) -> None:
    """Push the same events, in another order, and compare the spike counts after every step."""
    ag.export.to_c(never_stops(rule), ensemble, folder)
    library, rng, spikes = (
        Library(folder, ensemble.members, ensemble.classes),
        np.random.default_rng(0),
        0,
    )
    for row in x:
        live = ensemble.engine.live()
        library.init()
        for step, frame in enumerate(row):
            events = rng.permutation(np.flatnonzero(frame)).tolist()
            if counting and events:  # these members read counts, and the C code does not
                assert library.push(events + events[:1]) == -1
            assert library.push(events if counting else events + events[:2]) == (
                step == len(row) - 1
            )
            np.testing.assert_array_equal(library.counts, live.push(events))
        spikes += int(library.counts.sum())
    assert spikes > 100


@pytest.mark.parametrize(
    ("name", "weights"),
    [("deep", "float32"), ("deep", "bfloat16"), ("deep", "int8"), ("convolutional", "int8")],
)
def test_every_read_out_spike_is_that_of_the_engine(
    name: str, weights: str, members: Path, tmp_path: Path
) -> None:
    ensemble = load(members, name, weights)
    compare_spikes(
        ensemble, calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble), tmp_path, some_inputs(25)[0]
    )


def test_more_events_than_fit_into_a_list(tmp_path: Path) -> None:
    config = FullyConnected((330,), CLASSES, 2, (24,), LOW)
    save_members(
        tmp_path / "members",
        SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.2).eval(),
    )
    x = np.random.default_rng(0).random((6, STEPS, 330)) < np.linspace(0.1, 1, 6)[:, None, None]
    for weights in ("float32", "int8"):
        ensemble = ag.ensembles.load(
            tmp_path / "members",
            engine="event-driven" + ("" if weights == "float32" else f"-{weights}"),
        )
        rule = ag.AgreeStop(0.8, (STEPS,), 2).calibrate(ensemble.score(x, np.arange(6) % CLASSES))
        ag.export.to_c(rule, ensemble, tmp_path / weights)
        library = Library(tmp_path / weights, 2)
        for row in x:
            live = ensemble.engine.live()
            library.init()
            for frame in row:
                library.push(np.flatnonzero(frame).tolist())
                counts = live.push(frame=frame)
            np.testing.assert_array_equal(library.counts, counts)
            assert counts.sum() > 0


@pytest.mark.parametrize("kind", ["SRM", "RESETS", "SUBTRACTS"])
def test_potentials_are_those_of_the_engine_to_the_last_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, kernels = FullyConnected((40,), 2, 60, (), LOW), load_kernels()
    network = SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.2).eval()
    save_members(tmp_path / "members", network)
    x = np.random.default_rng(0).random((12, STEPS, 40)) < 0.3
    (plan,) = plan_network(network)
    rows = {name: plan.constants[:, index] for index, name in enumerate(kernels.CONSTANTS)}
    rows["r"][:] = 0.1
    rows["threshold"][:] = np.finfo(np.float32).max
    planned = replace(plan, neuron=getattr(kernels, kind))
    for reader in ("engines.event_driven.engine", "export.members"):
        monkeypatch.setattr(f"agreestop.{reader}.plan_network", lambda network: [planned])
    live = EventDriven(network).live()
    potentials = []
    for frame in x[0]:
        live.push(frame=frame)
        membrane = live._state.reshape(60, 3, -1)[:, 1, 0].copy()
        potentials.append(membrane * rows["gain"][:, 0] if kind == "SRM" else membrane)
    # half of the neurons just reach their threshold once, and the others just do not
    highest = np.max(potentials, axis=0)
    rows["threshold"][:] = np.where(
        np.arange(60) % 2, highest, np.nextafter(highest, np.float32(np.inf))
    )[:, None]
    ensemble = ag.ensembles.load(tmp_path / "members", engine="event-driven")
    rule = ag.AgreeStop(0.8, (STEPS,), 1).calibrate(ensemble.score(x, np.arange(12) % 2))
    live = EventDriven(network).live()
    for frame in x[0]:
        counts = live.push(frame=frame)
    assert (counts[1::2, 0] > 0).all() and (counts[::2, 0] == 0).all()
    compare_spikes(ensemble, rule, tmp_path, x)


def random_counts(n: int, seed: int) -> Integers:
    """Spike counts (n, T, 3, C) so small that classes often tie."""
    rng = np.random.default_rng(seed)
    rates = rng.choice([0.02, 0.1, 0.4], (n, 1, 1, CLASSES))
    return np.cumsum(rng.random((n, STEPS, 3, CLASSES)) < rates, axis=1)


@pytest.mark.parametrize(
    "rule",
    [
        ag.AgreeStop(0.97, FEW, 2, trim=0.9),
        ag.AgreeStop(0.96, FEW, 2, fill=True, risk=ag.TopMass(ag.MergeConfidence(r=np.inf))),
        ag.AgreeStop(0.8, EVERY, 1, risk=shaped()),
        ag.SpikeCP(0.7, EVERY, 2, None, "stop-aware", tempered()),
        ag.SpikeCP(
            0.7, FEW, 1, ag.MergeConfidence(r=-np.inf), "simultaneous", class_conditional=True
        ),
    ],
    ids=["trim", "fill", "shaped", "tempered", "each class"],
)
def test_judgements_on_counts_that_often_tie(rule: Any, members: Path, tmp_path: Path) -> None:
    labels = random_counts(300, 0)[:, -1].sum(axis=1).argmax(axis=1)
    calibrated = rule.calibrate(ag.log_confidence(random_counts(300, 0)), labels, EVERY)
    ag.export.to_c(calibrated, load(members, "small"), tmp_path)
    library, counts = Library(tmp_path, 3), random_counts(300, 1)
    decisions = calibrated.decide(ag.log_confidence(counts), EVERY)
    assert len(np.unique(decisions.stop_index)) > 2 and len(np.unique(decisions.sets, axis=0)) > 3
    for row, decision in enumerate(decisions):
        found = library.judge(counts[row], calibrated.checkpoints)
        assert found == (decision.index, decision.classes), row


def test_another_mathematical_library_decides_ties_alike(members: Path, tmp_path: Path) -> None:
    counts = random_counts(300, 0)
    scores = ag.log_confidence(counts)
    labels = counts[:, -1].sum(axis=1).argmax(axis=1)
    calibrated = at_kth_values(ag.AgreeStop(0.8, EVERY, 2).calibrate(scores, labels, EVERY))
    # of the calibration examples themselves: the threshold is the risk of one of them
    decisions = calibrated.decide(scores, EVERY)
    for shift in ("+", "-"):
        ag.export.to_c(calibrated, load(members, "small"), tmp_path / shift)
        code = f"static inline double shifted(double x) {{ return log1p(x) * (1 {shift} 1e-15); }}"
        (tmp_path / shift / "shift.h").write_text(
            f"#include <math.h>\n{code}\n#define log1p shifted\n"
        )
        library = Library(tmp_path / shift, 3, options=("-include", "shift.h"))
        found = [library.judge(row, EVERY) for row in counts]
        assert found == [(one.index, one.classes) for one in decisions] and library.ties > 0


def test_what_push_returns(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    made = ag.export.to_c(
        never_stops(calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble)), ensemble, tmp_path
    )
    assert made.nearest is None and not (tmp_path / "inputs.bin").exists()
    library = Library(tmp_path, 3)
    library.init()
    cells = int(np.prod(SHAPE))
    assert library.push([0, cells]) == -1 and library.push([cells - 1]) == 0 and library.time == 0
    for _ in range(STEPS - 2):
        assert library.push(range(cells)) == 0
    assert library.push([]) == 1 and library.time == STEPS
    counts = library.counts.copy()
    assert counts.any() and library.push(range(cells)) == 1 and (library.counts == counts).all()
    library.init()
    assert library.time == 0 and not library.counts.any()


OLD_LOOP = """
    uint16_t events[2];
    size_t count = 0;
    ag_init();
    while (!ag_push(events, count)) {
        count = wait_for_the_next_step(events);
    }
    const ag_answer *answer = ag_decision();
    use(answer->time, answer->size, answer->classes);
"""
DEVICE = """
#include <stdio.h>
#include "agreestop.h"
static int step;
static size_t wait_for_the_next_step(uint16_t *to)
{
    to[0] = 0;
    to[1] = ++step == BAD ? AG_INPUTS : AG_INPUTS - 1;
    return 2;
}
static void use(int time, int size, const uint16_t *classes) {
    printf("%d %d %d\\n", time, size, size ? classes[0] : -1);
}
static void report(const char *words) { printf("%s\\n", words); }
int main(void)
{
    LOOP
    (void)report;
    return ag_decision() == NULL;
}
"""


def documented_loop() -> str:
    """The loop of docs/microcontroller.md."""
    page = (Path(__file__).parents[2] / "docs" / "microcontroller.md").read_text()
    return page.partition("```c\n")[2].partition("```")[0]


@pytest.mark.parametrize("loop", ["documented", "of version 0.2"])
def test_a_wrong_event_ends_the_documented_loop_with_an_error(
    loop: str, members: Path, tmp_path: Path
) -> None:
    """A null pointer was followed here before, in the loop of version 0.2 too."""
    ensemble = load(members, "small")
    ag.export.to_c(
        never_stops(calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble)), ensemble, tmp_path
    )
    code = documented_loop() if loop == "documented" else OLD_LOOP
    (tmp_path / "device.c").write_text(DEVICE.replace("LOOP", code))
    for bad, expected in (
        (3, "an event is not below AG_INPUTS" if loop == "documented" else "0 0 -1"),
        (99, f"{STEPS} "),
    ):
        command = [
            COMPILERS[0],
            *SANITIZED,
            f"-DBAD={bad}",
            "agreestop.c",
            "network.c",
            "rule.c",
            "model.c",
            "device.c",
            "-o",
            "device",
            "-lm",
        ]
        built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        done = subprocess.run([str(tmp_path / "device")], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith(expected), (done.stdout, done.stderr)


def test_the_session_goes_on_after_a_wrong_event(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    ag.export.to_c(
        never_stops(calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble)), ensemble, tmp_path
    )
    library, steps = (
        Library(tmp_path, 3),
        [np.flatnonzero(step).tolist() for step in some_inputs(1)[0][0]],
    )
    for step in steps:  # without ag_init: the first push begins an input, and its members run
        library.push(step)
    expected = library.counts.copy()
    assert expected.any() and library.time == STEPS
    library.init()
    for step in steps:
        before = library.counts.copy()
        assert (
            library.push([*step, 65535]) == -1
            and (library.counts == before).all()
            and library.time == 0
        )
        library.push(step)
    assert (library.counts == expected).all() and library.time == STEPS


class Own(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module that takes (x_t, state), as a user writes one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(int(np.prod(SHAPE)), CLASSES)

    def forward(self, x: Any, state: Any) -> Any:
        state = self.layer(x.flatten(1).float()) + (0 if state is None else state)
        return state, state


@pytest.mark.parametrize(
    "kind", ["ensemble", "ensemble that names an engine", "variational", "fresh", "from_module"]
)
def test_own_modules_are_refused_in_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = some_inputs(60)
    how: dict[str, Any] = {"members": 2, "device": "cpu"}
    ensemble: Any
    if kind == "from_module":
        ensemble = ag.adapters.from_module([Own(), Own()])
    elif kind in ("variational", "fresh"):
        ensemble = ag.ensembles.VariationalEnsemble(Own, **how, fresh=kind == "fresh").fit(
            x, y, epochs=1, progress=False
        )
    else:
        ensemble = ag.ensembles.DeepEnsemble(Own, **how).fit(x, y, epochs=1, progress=False)
    rule = ag.AgreeStop(0.8, EVERY, 2).calibrate(ensemble.score(*some_inputs(60, 1)))
    if kind == "ensemble that names an engine":
        ensemble.save(tmp_path / "own.safetensors")
        ensemble = ag.ensembles.load(tmp_path / "own.safetensors", Own, engine="event-driven")
    monkeypatch.setattr(
        type(ensemble), "score", lambda *_, **__: pytest.fail("refused before any work")
    )
    for export in (ag.export.to_c, ag.export.to_page):
        said = []
        for allowed in (False, True):  # the engine of another rule is not what is wrong
            with pytest.raises(ag.InputError) as caught:
                export(rule, ensemble, tmp_path / "no", x, any_engine=allowed, any_members=allowed)
            said.append(str(caught.value))
        assert set(said) == {OWN_MODULES} and not (tmp_path / "no").exists()


def test_the_command_line_refuses_own_modules_in_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = some_inputs(60)
    ensemble = ag.ensembles.DeepEnsemble(Own, members=2, device="cpu").fit(
        x, y, epochs=1, progress=False
    )
    ensemble.save(tmp_path / "own.safetensors")
    ag.AgreeStop(0.8, EVERY, 2).calibrate(ensemble.score(*some_inputs(60, 1))).save(
        tmp_path / "a.rule"
    )
    ag.events.Events.from_dense(x, y).save(tmp_path / "inputs.npz")
    for to in ("c", "page"):
        files = ["--members", tmp_path / "own.safetensors", "--inputs", tmp_path / "inputs.npz"]
        monkeypatch.setattr(
            sys,
            "argv",
            [
                "agreestop",
                *map(
                    str, ["export", tmp_path / "a.rule", *files, "--to", to, "-o", tmp_path / "no"]
                ),
            ],
        )
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and OWN_MODULES in " ".join(capsys.readouterr().err.split())


def test_sizes_are_those_of_the_compiled_objects(members: Path, tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    for name, weights, rule in (
        CASES["every step"],
        CASES["members that join"],
        CASES["confidence"],
    ):
        ensemble, folder = load(members, name, weights), tmp_path / weights / name
        made = ag.export.to_c(calibrate(rule, ensemble), ensemble, folder)
        subprocess.run(
            [
                COMPILERS[0],
                "-O0",
                "-fno-pie",
                *EXACT,
                "-c",
                "agreestop.c",
                "network.c",
                "rule.c",
                "model.c",
            ],
            cwd=folder,
            check=True,
        )
        names = ["agreestop.o", "network.o", "rule.o", "model.o"]
        lines = subprocess.run(
            ["nm", "-S", *names], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        symbols = [line.split() for line in lines if len(line.split()) == 4]
        ram = sum(int(size, 16) for _, size, kind, _ in symbols if kind in "bd")
        flash = sum(int(size, 16) for _, size, kind, _ in symbols if kind in "rR")
        assert abs(ram - made.ram) < 100 and abs(flash - made.flash) < 200


def test_ties_are_counted_and_decided_as_in_python(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    x, _ = some_inputs(120)
    rule = calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble)
    first = reading_of(rule.rule, ensemble.score(x).log_confidence).risk[:, 1]
    for share in (0.1, 0.3):  # thresholds that are risks of these inputs themselves
        tied = at_threshold(rule, float(np.sort(first)[int(share * len(first))]))
        made = check(tied, ensemble, tmp_path / str(share), x)
        assert made.ties > 0 and made.nearest is not None and made.nearest > 1e-9


def test_numbers_that_differ_in_their_last_bits_are_counted(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    x, _ = some_inputs(20)
    rule = calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble)
    first = reading_of(rule.rule, ensemble.score(x).log_confidence).risk[:, 1]
    # in Python this risk lies below the threshold, in C both are equal
    above = np.nextafter(np.sort(first)[5], 0)
    made = ag.export.to_c(at_threshold(rule, float(above)), ensemble, tmp_path, x)
    assert made.ties >= made.rounded > 0
    done = replay(build(tmp_path))
    assert done.stdout != (tmp_path / "expected.csv").read_bytes()
    assert "2 are ties, which C decides as Python does, but for 1 whose" in _nearest(0.1, 2, 1, "C")
    assert "one is a tie, which C decides as Python does" in _nearest(0.1, 1, 0, "C")


def test_names_of_classes_and_images_that_are_held(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    rule = calibrate(ag.AgreeStop(0.6, EVERY, 3, fill=True), ensemble)
    x, y = some_inputs(40)
    names = ("a,b", 'say "no"', "é??/", "\x1b[31m")
    images = ag.events.Events.from_dense(x[:, :1], y, names)
    made = ag.export.to_c(rule, ensemble, tmp_path, images)
    done = replay(build(tmp_path))
    assert done.stdout == (tmp_path / "expected.csv").read_bytes() and made.inputs == 40
    text = done.stdout.decode()
    assert '"a,b;say ""no' in text and "é??/" in text and "\x1b" not in text


def test_damaged_inputs_are_refused_in_a_sentence(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    x, _ = some_inputs(4)
    ag.export.to_c(calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble), ensemble, tmp_path, x)
    program, good = build(tmp_path), (tmp_path / "inputs.bin").read_bytes()
    cases = {
        "no file of inputs": [b"", good[:23], b"X" + good[1:], good[:8] + b"\2" + good[9:]],
        "another size": [good[:16] + b"\5" + good[17:], good[:20] + b"\5" + good[21:]],
        "ends before": [good[:-1], good[:40]],
        "goes on": [good + b"\0"],
        "more events than inputs": [good[:24] + b"\xff" + good[25:]],
        "not an input": [good[: 24 + 4 * STEPS] + b"\xff\xff" + good[26 + 4 * STEPS :]],
    }
    for words, contents in cases.items():
        for content in contents:
            (tmp_path / "damaged.bin").write_bytes(content)
            done = replay(program, "damaged.bin")
            assert (
                done.returncode == 1
                and done.stderr.startswith(b"replay: ")
                and words.encode() in done.stderr
            ), (words, done.stderr)
    rng = np.random.default_rng(0)
    for _ in range(60):
        mutated = np.frombuffer(good, np.uint8).copy()
        mutated[rng.integers(len(mutated), size=3)] = rng.integers(256, size=3)
        (tmp_path / "damaged.bin").write_bytes(mutated.tobytes())
        assert replay(program, "damaged.bin").returncode in (0, 1)
    assert replay(program, "nothing.bin").returncode == 1


def test_what_cannot_be_exported_is_refused_with_the_reason(members: Path, tmp_path: Path) -> None:
    ensemble = load(members, "small")
    x, y = some_inputs(80, 1)
    scores = ensemble.score(x, y)
    ranks = ag.TuningRanks.fit(scores)
    gate = ag.Gate.fit(scores, target=0.7, max_set_size=2, blocks=2)
    other = ensemble.score(some_inputs(80, 5)[0], some_inputs(80, 5)[1])
    reasons = {
        "MergePValues pools members after each was calibrated": ag.SpikeCP(
            0.2, FEW, 3, ag.MergePValues(r=1)
        ).calibrate(scores),
        "score is a TuningRanks": ag.SpikeCP(0.7, EVERY, 2, None, "stop-aware", ranks).calibrate(
            other
        ),
        "a gate only with AgreeStop": ag.SpikeCP(
            0.7, EVERY, 2, AVERAGE, "stop-aware", gate=gate
        ).calibrate(other),
        "the rule has groups": ag.AgreeStop(0.7, EVERY, 2).calibrate(
            scores, groups=np.arange(80) % 2
        ),
    }
    for reason, rule in reasons.items():
        with pytest.raises(ag.InputError, match=reason):
            ag.export.to_c(rule, ensemble, tmp_path / "no")
    rule = ag.AgreeStop(0.7, EVERY, 2).calibrate(scores)
    with pytest.raises(ag.InputError, match="calibrated on scores of the event-driven"):
        ag.export.to_c(rule, load(members, "small", "int8"), tmp_path / "no")
    with pytest.raises(ag.InputError, match="scores of the ensemble 000000000000"):
        ag.export.to_c(replace(rule, ensemble_digest="0" * 64), ensemble, tmp_path / "no")
    with pytest.raises(ag.InputError, match="computes what the event-driven one does"):
        ag.export.to_c(
            rule,
            ag.ensembles.load(members / "small", engine="dense"),
            tmp_path / "no",
            any_engine=True,
        )
    with pytest.raises(ag.InputError, match="values other than 0 and 1"):
        ag.export.to_c(rule, ensemble, tmp_path / "no", x * 2)
    with pytest.raises(ag.InputError, match="inputs have shape"):
        ag.export.to_c(rule, ensemble, tmp_path / "no", x[:, :5])
    assert not (tmp_path / "no").exists()


def test_an_export_replaces_another_as_a_whole_and_nothing_else(
    members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = load(members, "small")
    rule, (x, _) = calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble), some_inputs(4)
    monkeypatch.setattr(
        type(ensemble),
        "score",
        lambda *_, **__: pytest.fail("the folder is checked before the work"),
    )
    for name in ("Makefile", "inputs.bin"):  # an export without inputs would remove the second
        mine = tmp_path / f"with {name}"
        mine.mkdir()
        (mine / name).write_text("mine")
        for inputs in (None, x):
            with pytest.raises(ag.InputError, match=f"holds a {name} that is not of an export"):
                ag.export.to_c(rule, ensemble, mine, inputs)
        assert [path.name for path in mine.iterdir()] == [name] and (
            mine / name
        ).read_text() == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(ag.InputError, match="a file is in its way"):
        ag.export.to_c(rule, ensemble, tmp_path / "file", x)
    monkeypatch.undo()
    folder = tmp_path / "c"
    made = ag.export.to_c(rule, ensemble, folder, x)
    assert set(made.files) == {path.name for path in folder.iterdir()}
    made = ag.export.to_c(rule, ensemble, folder)  # the inputs of the export before are gone
    assert (
        set(made.files) == {path.name for path in folder.iterdir()}
        and "inputs.bin" not in made.files
    )
    for fails_at in ("rule_data.h", "sizes.h"):

        def interrupted(path: Path, fails_at: str = fails_at) -> Any:
            if path.name == fails_at:
                raise KeyboardInterrupt
            return atomic_writer(path)

        monkeypatch.setattr("agreestop.export.c_files.atomic_writer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ag.export.to_c(rule, ensemble, folder, x)
        assert (
            subprocess.run(
                [COMPILERS[0], "-c", "agreestop.c"], cwd=folder, capture_output=True
            ).returncode
            != 0
        )
    monkeypatch.undo()
    ag.export.to_c(rule, ensemble, folder)
    build(folder)
    (folder / "expected.csv").mkdir()
    with pytest.raises(ag.InputError, match=r"cannot replace .*expected.csv"):
        ag.export.to_c(rule, ensemble, folder)


def test_the_command_line(
    members: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ensemble = load(members, "small", "int8")
    rule = calibrate(ag.AgreeStop(0.8, EVERY, 2), ensemble)
    rule.save(tmp_path / "a.rule")
    x, y = some_inputs(50)
    ag.events.Events.from_dense(x, y).save(tmp_path / "inputs.npz")

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["agreestop", *map(str, words)])
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        return code, " ".join(told.out.split()), " ".join(told.err.split())

    files = ("--members", members / "small", "--inputs", tmp_path / "inputs.npz")
    code, out, err = call("export", tmp_path / "a.rule", *files, "--to", "c", "-o", tmp_path / "c")
    assert code == 0, err
    assert (
        "(int8 weights)" in out
        and "RAM" in out
        and "smallest distance of a risk or score to its threshold is" in out
    )
    call(
        "decide",
        tmp_path / "a.rule",
        tmp_path / "inputs.npz",
        *files[:2],
        "-o",
        tmp_path / "decisions.csv",
    )
    done = subprocess.run(
        ["make", "-s", "-C", str(tmp_path / "c"), "check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "decisions.csv").read_bytes() == (
        tmp_path / "decisions.csv"
    ).read_bytes()
    assert (
        "choose c, page."
        in call("export", tmp_path / "a.rule", *files, "--to", "rust", "-o", tmp_path / "c")[2]
    )
    code, _, err = call(
        "export",
        tmp_path / "a.rule",
        tmp_path / "a.rule",
        *files,
        "--to",
        "c",
        "-o",
        tmp_path / "c",
    )
    assert code == 2 and "2 rules are given" in err


def test_the_file_of_inputs(tmp_path: Path) -> None:
    x = np.zeros((2, 3, 5), bool)
    x[0, 0, [1, 4]] = x[1, 1, 2] = True
    content = _inputs_file(ag.events.Events.from_dense(x), 2)
    numbers = np.frombuffer(content[8:], "<u4", 4).tolist()
    assert content[:8] == b"AGINPUTS" and numbers == [1, 2, 2, 5]
    assert content[24:] == b"\2\0\0\0\0\0\0\0" + b"\1\0\4\0" + b"\0\0\0\0\1\0\0\0" + b"\2\0"


@pytest.mark.parametrize(
    ("form", "weights"),
    [
        ("members that differ", "float32"),
        ("members that differ", "int8"),
        ("convolution", "float32"),
    ],
)
def test_neurons_that_integrate_and_fire(form: str, weights: str, tmp_path: Path) -> None:
    pytest.importorskip("nir", reason="agreestop[nir] is not installed")
    from tests.adapters import test_nir as graphs

    rng = np.random.default_rng(1)
    shape: tuple[int, ...] = (9,)
    if form == "convolution":
        shape = (2, 11, 10)
        engine = ag.adapters.from_nir(
            [graphs.convolutional(rng, kind) for kind in ("IF", "CubaLIF")],
            dt=1e-3,
            engine="event-driven",
        )
    else:
        plain = [graphs.GRAPHS["fully connected"](rng, kind) for kind in ("IF", "LIF", "CubaLIF")]
        resets = ("subtract", "graph", "subtract", "zero")
        name = "event-driven" if weights == "float32" else "event-driven-int8"
        engine = ag.adapters.from_nir(
            [graphs.recurrent(rng), *plain], dt=1e-3, reset=resets, engine=name
        )
    x = rng.random((60, 20, *shape)) < 0.2
    rule = ag.AgreeStop(0.8, range(1, 21), 1).calibrate(engine.score(x), labels="final")
    assert check(rule, engine, tmp_path, x, several=form != "convolution").weights == weights
    compare_spikes(engine, rule, tmp_path, x[:10], counting=True)


@pytest.mark.parametrize("inputs", [1, 3])
def test_few_inputs(inputs: int, tmp_path: Path) -> None:
    """The head of inputs.bin is longer than all events of a step."""
    config = FullyConnected((inputs,), CLASSES, 2, (4,), LOW)
    save_members(
        tmp_path / "few",
        SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.9).eval(),
    )
    ensemble = load(tmp_path, "few")
    rng = np.random.default_rng(0)
    x = rng.random((60, STEPS, inputs)) < 0.4
    rule = ag.AgreeStop(0.6, EVERY, 2).calibrate(
        ensemble.score(x[:40], rng.integers(CLASSES, size=40))
    )
    check(rule, ensemble, tmp_path / "c", x[40:], several=False)
