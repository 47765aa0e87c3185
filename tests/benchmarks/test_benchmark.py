"""The benchmark at tiny sizes: records are complete, ratios right and turns fair, and every form of
a peer does the same work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines need PyTorch")

from agreestop.cli.app import run_app
from agreestop.common import InputError
from agreestop.engines import Dense
from agreestop.events import EventData, EventSplits
from agreestop.networks import FullyConnected, SpikingNetwork
from benchmarks import kernel as benchmark_kernel
from benchmarks import preparation as benchmark_preparation
from benchmarks import run as benchmark
from benchmarks import scaling as benchmark_scaling
from benchmarks import timing as benchmark_timing
from benchmarks.cli import STUDIES, app
from benchmarks.peers import (
    PEERS,
    Form,
    Peer,
    PeerEnsemble,
    Weights,
    find_peers,
    forms_of,
    live_forms,
)
from benchmarks.preparation import BenchmarkPlan, plan_for
from benchmarks.records import (
    DECISIONS,
    OURS,
    SECONDS,
    STEP,
    BenchRecord,
    compared,
    load_benchmark,
    load_networks,
    save_benchmark,
)
from benchmarks.results import describe_run
from benchmarks.timing import (
    Conditions,
    FormTrial,
    TimedSystem,
    as_record,
    fastest_form,
    interleave,
)
from tests.decide.strategies import tune_quickly

ROOT = Path(__file__).parents[2]
TINY = BenchmarkPlan(
    shape=(2, 3, 3),
    classes=5,
    steps=8,
    hidden=12,
    members=2,
    batches=(4, 8),
    inputs=8,
    streams=1,
    repeats=2,
    scaling_batch=4,
    parts=(24, 100, 60),
    epochs=1,
    training_batch=8,
    lengths=(4, 8),
    sizes=(1, 2),
    densities=(0.1, 0.2),
)


class PlainNeurons(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A leaky neuron in four lines, so that everything runs even if no peer is installed."""

    time_axis = 0

    def rest(self) -> None:
        self.membrane: Any = 0.0

    def step(self, currents: Any) -> Any:
        self.membrane = 0.9 * self.membrane + currents
        spikes = (
            torch.sigmoid(8 * (self.membrane - 1))
            if torch.is_grad_enabled()
            else (self.membrane >= 1).float()
        )
        self.membrane = self.membrane - spikes
        return spikes

    def sequence(self, currents: Any) -> Any:
        self.rest()
        return torch.stack([self.step(current) for current in currents])


PLAIN = Peer("plain", PlainNeurons, stepwise=True)


def few(name: str, count: int, seed: int) -> EventData:
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=count)
    rates = np.full((count, 9), 0.05)
    rates[np.arange(count), labels] = 0.6
    return EventData(
        name,
        True,
        rng.random((count, 8, 2, 3, 3)) < rates.reshape(-1, 1, 1, 3, 3),
        labels,
        tuple("abcde"),
    )


DATA = EventSplits(few("training", 24, 0), few("tuning", 100, 1), few("pool", 60, 2))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: in tiny workloads several threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting, a short search, and an engine that needs no compiler."""
    monkeypatch.setattr(benchmark_timing, "PAUSE", 0.0)
    monkeypatch.setattr(benchmark_timing, "TURN", 0.0)
    monkeypatch.setattr("gc.collect", lambda: 0)
    tune_quickly(monkeypatch)
    monkeypatch.setattr(
        benchmark_preparation, "choose_engine", lambda network, name, density: Dense(network)
    )
    monkeypatch.setattr(
        benchmark_scaling, "choose_engine", lambda network, name, density: Dense(network)
    )
    monkeypatch.setattr(benchmark_scaling, "_peak_of_child", benchmark_scaling._probe)


def timed(name: str, run: Callable[[], object], amount: float = 1.0) -> TimedSystem:
    return TimedSystem("work", name, "1", "form", run, amount)


def test_every_system_has_a_turn_in_each_repeat_and_the_first_one_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn is filled with runs, and the result is the time of one run."""
    clock, ran = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(benchmark_timing, "PAUSE", 0.0)

    def runner(name: str, seconds: float) -> Callable[[], object]:
        def run() -> None:
            ran.append(name)
            clock[0] += seconds

        return run

    taken = interleave(
        [
            timed(name, runner(name, seconds))
            for name, seconds in (("a", 3.0), ("b", 0.04), ("c", 0.125))
        ],
        3,
    )
    assert "".join(ran) == "aabbcc" + "abbbc" + "bbbca" + "cabbb"
    assert taken == [pytest.approx([seconds] * 3) for seconds in (3.0, 0.04, 0.125)]


def test_systems_are_prepared_before_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_timing, "PAUSE", 0.0)
    order: list[str] = []
    one = TimedSystem(
        "work",
        "a",
        "1",
        "",
        lambda: order.append("run"),
        1.0,
        prepare=lambda: order.append("prepare"),
    )
    interleave([one], 1)
    assert order == ["prepare", "run"] * 2


def test_records_hold_the_median_and_the_spread_in_their_unit() -> None:
    seconds = [0.1 * count for count in range(1, 12)]
    rate = as_record(timed("a", bool, 60), seconds, Conditions("x", DECISIONS, 4))
    assert (
        rate.median == pytest.approx(100)
        and rate.low == pytest.approx(60)
        and rate.high == pytest.approx(300)
    )
    step = as_record(timed("a", bool, 60), seconds, Conditions("x", STEP))
    assert (step.low, step.median, step.high) == pytest.approx((0.2e6 / 60, 0.6e6 / 60, 1e6 / 60))
    assert as_record(timed("a", bool), seconds, Conditions("x", SECONDS)).median == pytest.approx(
        0.6
    )
    assert rate.batch == 4 and rate.repeats == 11


@pytest.mark.parametrize(
    ("unit", "mine", "theirs", "ratio"),
    [(DECISIONS, 60.0, (10.0, 20.0), 3.0), (STEP, 10.0, (30.0, 50.0), 3.0)],
)
def test_the_ratio_is_to_the_fastest_peer(
    unit: str, mine: float, theirs: tuple[float, float], ratio: float
) -> None:
    def record(system: str, median: float) -> BenchRecord:
        return BenchRecord("w", "x", system, "1", unit, median, median, median, 1)

    ours = compared(record(OURS, mine), [record("p", theirs[0]), record("q", theirs[1])])
    assert ours.times_fastest_peer == pytest.approx(ratio)
    assert ours.fastest_peer == ("q" if unit == DECISIONS else "p")
    assert compared(record(OURS, mine), []).times_fastest_peer is None


def test_the_fastest_form_is_taken_and_one_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    runs = {"slow": 0, "fast": 0, "hopeless": 0}

    def trial(name: str, seconds: float) -> FormTrial:
        def run() -> None:
            runs[name] += 1
            clock[0] += seconds

        return FormTrial(lambda: run)

    def broken() -> Callable[[], object]:
        raise RuntimeError("no such kernel")

    forms = {
        "slow": trial("slow", 2.0),
        "broken": FormTrial(broken),
        "fast": trial("fast", 1.0),
        "hopeless": trial("hopeless", 9.0),
    }
    choice = fastest_form(forms)
    assert choice.form == "fast" and choice.failures == {"broken": "RuntimeError: no such kernel"}
    assert runs == {"slow": 3, "fast": 3, "hopeless": 2}
    assert fastest_form({"broken": FormTrial(broken)}).form is None


def members(count: int = 3) -> SpikingNetwork:
    """Members whose weights are large enough for them to spike."""
    network = SpikingNetwork(
        FullyConnected((2, 3, 3), 5, count, (16,)), torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(5)
    return network


def test_a_quick_run_leaves_results_alone_and_a_plain_one_says_so() -> None:
    assert benchmark.default_output("cpu", quick=False) == Path("results/bench/cpu.json")
    assert "results" not in benchmark.default_output("cpu", quick=True).parts
    assert benchmark.PLAIN in benchmark.describe(BenchmarkPlan(plain=True), "")["protocol"]
    assert benchmark.PLAIN not in benchmark.describe(BenchmarkPlan(), "")["protocol"]


def test_a_missing_peer_is_named() -> None:
    def absent() -> Any:
        raise ImportError("No module named 'absent'")

    found = find_peers((PLAIN, Peer("absent", absent)))
    assert found.peers == (PLAIN,)
    assert (
        "absent (No module named 'absent')" in found.missing and "agreestop[bench]" in found.missing
    )
    assert not find_peers((PLAIN,)).missing


@pytest.mark.filterwarnings("ignore")  # warnings of other libraries
@pytest.mark.parametrize("peer", [PLAIN, *PEERS], ids=lambda peer: peer.name)
def test_every_form_of_a_peer_does_the_same_work(peer: Peer) -> None:
    if not find_peers((peer,)).peers:
        pytest.skip(f"{peer.name} is not installed")
    weights, inputs = Weights.of(members()), np.random.default_rng(0).random((4, 16, 2, 3, 3)) < 0.3
    labels = torch.tensor([0, 1, 2, 4])
    counts, losses = [], []
    for form in forms_of(peer, "cpu"):
        ensemble = PeerEnsemble(peer, form, weights)
        prepared = ensemble.prepare(inputs)
        counts.append(ensemble.decide(prepared))
        assert counts[-1].shape == (4, 3, 5)
        assert torch.equal(ensemble.decide(prepared), counts[-1]), "state of earlier inputs is left"
        trained = PeerEnsemble(peer, form, weights)
        before = [
            value.clone()
            for network in trained._networks
            for value in network.parameters()
            if value.requires_grad
        ]
        losses.append([float(trained.train_step(prepared, labels)) for _ in range(3)])
        after = [
            value
            for network in trained._networks
            for value in network.parameters()
            if value.requires_grad
        ]
        assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True)), (
            "every layer learns"
        )
    assert counts[0].sum() > 0
    for other, loss in zip(counts[1:], losses[1:], strict=True):
        assert torch.equal(other, counts[0])
        assert loss == pytest.approx(losses[0], rel=1e-3)
    for form in live_forms():
        ensemble = PeerEnsemble(peer, form, weights)
        for _ in range(2):
            ensemble.begin()
            spikes = [
                ensemble.step(torch.from_numpy(frame).flatten()[None].float())
                for frame in inputs[0]
            ]
            assert torch.equal(torch.stack(spikes).sum(0), counts[0][0])


def test_graphs_and_compiled_forms_are_for_gpus_and_can_be_left_out() -> None:
    peer = Peer("p", PlainNeurons, compiles=True)
    assert {form.runs for form in forms_of(peer, "cpu")} == {"eager"}
    assert {form.runs for form in forms_of(peer, "cuda")} == {"eager", "graph", "compiled"}
    assert {form.runs for form in forms_of(peer, "cuda", plain=True)} == {"eager", "graph"}
    assert str(Form(True, runs="graph")) == "one wide network, layer by layer, CUDA graph"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("labelled", [True, False])
def test_records_are_complete(
    labelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        benchmark, "PEERS", (PLAIN, Peer("absent", lambda: __import__("absent_library")))
    )
    monkeypatch.setattr(benchmark, "simulate_mnist", lambda folder, seed, sizes: DATA)
    notes: list[str] = []
    output = tmp_path / "new" / "tiny.json"
    mnist = tmp_path if labelled else None
    result = benchmark.run_benchmark(
        TINY, mnist, output, tmp_path / "work", "bench", lambda what, share: None, notes.append
    )
    header, records = load_benchmark(output)
    assert records == result.records and header["notes"] == notes
    assert (
        header["command"] == "bench"
        and header["machine"]["cores"] >= 1
        and header["versions"]["torch"] == torch.__version__
    )
    assert any("absent" in sentence for sentence in notes)
    raw = json.loads(output.read_text())["records"]
    assert all(
        {"work", "inputs", "system", "version", "unit", "median", "low", "high"} <= set(record)
        for record in raw
    )
    assert all(0 <= record.low <= record.median <= record.high for record in records)
    works = {record.work for record in records}
    always = {
        "decide-full",
        "stream-step",
        "train",
        "scaling-T",
        "scaling-K",
        "scaling-density",
        "memory-T",
    }
    assert works == (always | {"decide-early", "decide-joining"} if labelled else always)
    for record in (
        record
        for record in records
        if record.work in ("decide-full", "decide-early", "stream-step", "train")
    ):
        group = [
            one
            for one in records
            if one.unit == record.unit and (one.inputs, one.batch) == (record.inputs, record.batch)
        ]
        (peer,) = (one for one in group if one.system == "plain")
        if record.system == OURS:
            expected = (
                peer.median / record.median if record.unit == STEP else record.median / peer.median
            )
            assert (
                record.times_fastest_peer == pytest.approx(expected)
                and record.fastest_peer == "plain"
                and record.wanted
            )
        else:
            assert record.times_fastest_peer is None and record.form
    if labelled:
        early = [record for record in records if record.work == "decide-early"]
        assert {record.batch for record in early} == {4, 8} and {
            record.inputs for record in early
        } == {"mnist-dvs-sim"}
        assert all(
            record.coverage is not None and 0 < (record.latency or 0) <= 1 and record.computed
            for record in early
        )
        files = list((tmp_path / "work").iterdir())
        assert [path.suffix for path in files] == [".safetensors"]
        before = files[0].stat().st_mtime_ns
        reported: list[str] = []
        benchmark_preparation.trained_members(
            TINY, DATA, tmp_path / "work", lambda what, share: reported.append(what)
        )
        assert not reported and files[0].stat().st_mtime_ns == before, "members are trained once"


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match="tpu"):
        plan_for("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU"):
            plan_for("cuda")


def some_records() -> list[BenchRecord]:
    def record(
        work: str, system: str, unit: str, median: float, size: float | None = None
    ) -> BenchRecord:
        batch = 1 if unit == STEP else 64
        return BenchRecord(
            work,
            "mnist-dvs-sim",
            system,
            "1.0",
            unit,
            median,
            0.9 * median,
            1.1 * median,
            9,
            "a form",
            batch,
            size,
        )

    peers = [
        record("decide-full", name, DECISIONS, 100.0)
        for name in ("snntorch", "spikingjelly", "norse", "sinabs")
    ]
    ours = [
        compared(record(work, OURS, DECISIONS, 1500.0), peers)
        for work in ("decide-full", "decide-early")
    ]
    curve = [record("scaling-T", OURS, SECONDS, 0.1 * size, size) for size in (20, 40)]
    return [*ours, *peers, record("stream-step", OURS, STEP, 33.0), *curve]


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit code of `python -m benchmarks` with these words."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", *(str(word) for word in words)])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    return int(ended.value.code or 0)


HEADER = {
    "machine": {"device": "cpu", "cpu": "a processor", "cores": 2},
    "plan": {"shape": [2, 26, 26], "hidden": 1000, "classes": 10, "steps": 80, "members": 6},
}


def test_a_file_is_drawn_and_shown_in_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cpu.json"
    save_benchmark(path, HEADER, some_records())
    assert call(monkeypatch, "--draw", "-o", path) == 0
    printed = capsys.readouterr().out
    assert "15 snntorch" in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if not line.startswith("Wrote"))
    assert all((tmp_path / f"cpu.{kind}").stat().st_size > 5000 for kind in ("png", "svg"))


def test_no_study_runs_zero_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = 0
    for name, (study, _) in STUDIES.items():
        for word, parameter in signature(study).parameters.items():
            if isinstance(parameter.default, (int, float)) and parameter.default is not False:
                assert call(monkeypatch, name, f"--{word}", 0) == 2, (name, word)
                assert f"Invalid value for '--{word}'" in capsys.readouterr().err
                tried += 1
    assert tried > 20
    assert call(monkeypatch, "people", "--draws", 1) == 2  # a spread needs two
    assert "Invalid value for '--draws'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "no json", "{}", '{"records": [{"work": 1}]}'])
def test_a_damaged_file_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"cpu\.json"):
        load_benchmark(path)


def test_a_record_fits_a_line() -> None:
    assert benchmark.in_words(some_records()[0]).endswith("15.00 × snntorch")


def test_the_kernel_is_measured_beside_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="its segments are those of the GPU's kernel")
    monkeypatch.setattr(benchmark_kernel, "RUNS", 1)
    plan = BenchmarkPlan(steps=20, hidden=16, members=2, batches=(4,), repeats=1)
    forward, backward, copy = benchmark_kernel.bench_kernel(plan)
    assert (forward.unit, forward.fastest_peer, copy.system) == ("GB/s", "copy", "copy")
    assert (
        forward.times_fastest_peer == pytest.approx(forward.median / copy.median)
        and backward.median > 0
    )


def test_options_of_the_main_benchmark_are_not_mixed_with_a_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--quick", "shapes") == 2
    assert "there are options before shapes: give its own options, after it" in " ".join(
        capsys.readouterr().err.split()
    )
    assert call(monkeypatch, "shapes", "--help") == 0
    assert call(monkeypatch, "--draw") == 2
    assert "--draw needs the file to draw" in capsys.readouterr().err


@pytest.mark.slow
def test_the_study_of_the_decision_layer_writes_its_timings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decide = pytest.importorskip("benchmarks.decide", reason="the peer is crepes")
    # starting Python many times is slow
    monkeypatch.setattr(decide, "bench_import", lambda rounds: decide.bench_p_values(1))
    monkeypatch.setattr(decide, "bench_push", lambda rounds: [])
    assert (
        call(
            monkeypatch,
            "decide",
            "--inputs",
            60,
            "--rounds",
            1,
            "-o",
            tmp_path / "new" / "decide.json",
        )
        == 0
    )
    content = json.loads((tmp_path / "new" / "decide.json").read_text())
    assert (
        content["command"].startswith("python -m benchmarks decide")
        and len(content["timings"]) == 2 + 12 + 6
    )
    assert all(one["median"] > 0 and one["ratio"] > 0 for one in content["timings"])
    assert set(content["seconds_of_decide_as_a_size_grows"]) == {
        "examples",
        "checkpoints",
        "members",
        "calibration examples",
    }
    assert "Wrote" in capsys.readouterr().out


def test_the_study_of_shapes_writes_its_records_and_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = pytest.importorskip("benchmarks.shapes", reason="the members are scikit-learn's")
    stream = shapes.simulated_stream("simulated", 15.0, 2.6, 0)
    stream = shapes.TunedStream(
        "simulated", True, stream.tuning.rows(slice(120)), stream.pool.rows(slice(120))
    )
    for name in ("digits_stream", "simulated_stream"):
        monkeypatch.setattr(shapes, name, lambda *settings: stream)
    plain = shapes.ag.SpikeCP(0.9, shapes.FOUR, 3, shapes.ag.MergeConfidence(r=1))
    monkeypatch.setattr(
        shapes, "candidates", lambda stream, checkpoints: [("rule", "shape", plain)]
    )
    page = tmp_path / "page.md"
    page.write_text(f"before\n{shapes.BEGIN}\nold\n{shapes.END}\nafter\n")
    monkeypatch.setattr(shapes, "table", lambda records: f"{len(records)} records")
    assert call(monkeypatch, "shapes", "--repeats", 2, "-o", tmp_path / "new", "--page", page) == 0
    assert len(json.loads((tmp_path / "new" / "numbers.json").read_text())["records"]) == 6
    assert page.read_text() == f"before\n{shapes.BEGIN}\n6 records\n\n{shapes.END}\nafter\n"


def test_the_study_of_checkpoints_measures_each_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = pytest.importorskip(
        "benchmarks.checkpoints", reason="the digits' members are scikit-learn's"
    )
    made = study.ag.simulate_scores(240, steps=24, K=2, C=5)
    heat = 18 / np.array(made.times)[:, None, None]  # far too sure at first
    hot = study.ag.Scores(
        study.ag.log_confidence(heat * made.log_confidence), made.labels, made.times
    )
    stream = study.TunedStream(
        "overconfident", True, hot.rows(slice(100)), hot.rows(slice(100, None))
    )
    monkeypatch.setattr(study, "streams", lambda scores: [stream])
    assert call(monkeypatch, "checkpoints", "--repeats", 2, "-o", tmp_path / "found.json") == 0
    records = json.loads((tmp_path / "found.json").read_text())["records"]
    assert [(one["risk"], one["checkpoints"]) for one in records] == [
        (risk, n) for risk in ("raw", "temperatures") for n in (4, 8, 20, 24)
    ]
    assert records[3]["latency"] > records[7]["latency"] and records[7]["noted"] == 0


def test_deep_networks_are_drawn_from_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = ROOT / "results" / "bench" / "h200-deep.json"
    (tmp_path / "deep.json").write_bytes(stored.read_bytes())
    assert call(monkeypatch, "deep", "--draw", "-o", tmp_path / "deep.json") == 0
    assert capsys.readouterr().out.count("Wrote") == 2
    assert all((tmp_path / f"deep.{kind}").stat().st_size > 5000 for kind in ("png", "svg"))


def test_a_network_measured_by_itself_takes_the_place_of_older_records(tmp_path: Path) -> None:
    def record(inputs: str, median: float) -> BenchRecord:
        return BenchRecord("train", inputs, "agreestop", "1", "inputs/s", median, 1.0, 1.0, 3)

    save_benchmark(tmp_path / "h-deep.json", {}, [record("gestures", 1.0), record("ResNet", 2.0)])
    save_benchmark(tmp_path / "h-resnet.json", {}, [record("ResNet", 3.0)])
    _, found = load_networks(tmp_path / "h-deep.json")
    assert [(one.inputs, one.median) for one in found] == [("gestures", 1.0), ("ResNet", 3.0)]


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        ("run", ["--quick", "--mnist", "nowhere"], "there is no file train-images-idx3-ubyte"),
        ("deep", ["--device", "tpu"], "--device is 'tpu': give cpu or cuda."),
        (
            "deep",
            ["--only", "resnet"],
            "--only is 'resnet': on this device give gestures or digits.",
        ),
    ],
)
def test_it_runs_with_only_numpy_and_pytorch(
    module: str, words: list[str], sentence: str, tmp_path: Path
) -> None:
    """A GPU machine may have no typer, rich, scikit-learn, matplotlib or numba."""
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'sklearn', 'matplotlib', 'jinja2', 'numba'): "
        "sys.modules[name] = None\n"
        f"from benchmarks.{module} import main\n"
        f"sys.argv = {[module, *words]}\n"
        "main()\n"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert ended.returncode == 1 and f"agreestop: {sentence}" in ended.stderr.splitlines()[-1], (
        ended.stderr
    )


@pytest.mark.usefixtures("small")
def test_the_roof_counts_the_products_of_a_decision() -> None:
    pytest.importorskip("triton", reason="the kernel's tiles are those of its module")
    inputs = np.zeros((9, 8, 2, 3, 3), bool)
    inputs[:, 3, 0, 1, :2] = True  # two of 18 inputs
    plan = replace(TINY, steps=16, repeats=1)
    inputs = np.concatenate([inputs, inputs], axis=1)
    single, double, sparse = benchmark_kernel.bench_roof(plan, "x", inputs, 16)
    first, last = 18 * plan.hidden, plan.hidden * plan.classes
    assert sparse.median / double.median == pytest.approx((first + last) / (2 / 18 * first + last))
    assert (
        "11% of the inputs" in sparse.form
        and "float32" in single.form
        and {r.work for r in (single, double, sparse)} == {"roof"}
    )


def test_only_a_run_that_was_stopped_goes_on_and_only_with_the_same_plan(tmp_path: Path) -> None:
    path, record = (
        tmp_path / "bench.json",
        BenchRecord("train", "x", OURS, "1", DECISIONS, 1.0, 1.0, 1.0, 1),
    )
    header = {"plan": {"steps": 8}, "versions": {"torch": "2"}, "machine": {"device": "cpu"}}
    assert benchmark.unfinished_records(path, header) == []
    save_benchmark(path, {**header, "unfinished": True}, [record])
    assert benchmark.unfinished_records(path, header) == [record]
    for name, other in (
        ("plan", {"steps": 9}),
        ("versions", {"torch": "3"}),
        ("machine", {"device": "gpu"}),
    ):
        assert benchmark.unfinished_records(path, {**header, name: other}) == []
    save_benchmark(path, header, [record])
    assert benchmark.unfinished_records(path, header) == []


@pytest.mark.usefixtures("small")
def test_workloads_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    def run(done: Any = ()) -> list[BenchRecord]:
        parts = benchmark.benchmark(TINY, DATA, tmp_path, lambda *_: None, lambda _: None, done)
        return [record for part in parts for record in part]

    key = {(record.work, record.inputs, record.batch) for record in run()}
    left = {one for one in key if one[0] in ("train", "memory-T")}
    assert (
        left and {(record.work, record.inputs, record.batch) for record in run(key - left)} == left
    )


def test_the_command_of_a_run_does_not_name_its_file() -> None:
    assert describe_run(command="python -m benchmarks --device cpu -o some/file.json --quick")[
        "command"
    ].endswith("--device cpu --quick")
    assert describe_run(command="python -m benchmarks tree --data /some/folder")[
        "command"
    ].endswith("tree --data folder")


def test_early_decisions_of_members_that_learned_nothing_are_not_drawn() -> None:
    drawing = pytest.importorskip("benchmarks.drawing", reason="figures need matplotlib")
    early = BenchRecord("decide-early", "a", OURS, "1", DECISIONS, 1.0, 1.0, 1.0, 1, latency=1 / 80)
    peer, full = (
        replace(early, system="peer", latency=None),
        replace(early, work="decide-full", latency=None),
    )
    other = replace(early, inputs="b", latency=0.3)
    assert drawing.meaningful([early, peer, full, other]) == [full, other]
