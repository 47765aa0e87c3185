"""Runs that are killed, run twice at once, or find damaged files end with the same bytes, and leave
nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.common import folder_lock, no_progress
from agreestop.pipeline import RunConfig, load_config, products, run
from tests.decide.strategies import measure_quickly
from tests.pipeline.test_data import sensor

ROOT = str(Path(__file__).parents[2])

CONFIG = """
name = "own"
[data]
name = "files"
training = "training.npz"
tuning = "tuning.npz"
pool = "pool.npz"
[network]
hidden = [8]
[[ensembles]]
kind = "deep"
members = 2
epochs = 3
seed = {seed}
[[ensembles]]
kind = "variational"
members = 2
epochs = 2
[decide]
max_set_size = 1
n_calibration = 20
realisations = 2
targets = []
"""

WORKER = """
import json, os, shutil, signal, sys
folder, jobs = sys.argv[1], json.loads(sys.argv[2])
sys.path[:0] = json.loads(sys.argv[3])
os.chdir(folder)
import pytest
from pathlib import Path
from agreestop.pipeline import run
from agreestop.pipeline.config import load_config
from tests.decide.strategies import measure_quickly
measure_quickly(pytest.MonkeyPatch(), learned=False)

def counted(operation):
    def call(*given, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*given, **options)
    return call

def work(where, config, verb):
    config, where = load_config(config), Path(where)
    def progress(what, share):
        if "in use" in what:
            where.with_suffix(".waits").write_text(what)
    if verb == "run":
        run.run_config(config, where, "agreestop run", progress, pages=False)
    else:
        (run.train_ensembles if verb == "train" else run.score_ensembles)(config, where, progress)

processes = []
for where, config, verb, left, together in jobs:
    process = os.fork()
    if not process:
        for name in ("replace", "unlink", "fsync", "open", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        work(where, config, verb)
        os._exit(0)
    processes.append(process)
    if not together:
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        print(*codes)
        if left and codes == [0]:
            shutil.rmtree(where)  # it came to its end, so the next job begins again
        processes = []
"""
"""Runs jobs, each in a fork of its own: (folder, configuration, verb, file operations until it is
killed or 0, with the next job).
"""

Job = tuple[str, str, str, int, bool]


def prepare(folder: Path, seed: int = 0, name: str = "c.toml") -> RunConfig:
    folder.mkdir(exist_ok=True)
    for number, (part, n) in enumerate((("training", 60), ("tuning", 50), ("pool", 60))):
        ag.events.Events.from_dense(*sensor(n, number), ("left", "right", "up")).save(
            folder / f"{part}.npz"
        )
    (folder / name).write_text(CONFIG.format(seed=seed))
    return load_config(folder / name)


def start(folder: Path, jobs: list[Job]) -> subprocess.Popen[bytes]:
    paths = json.dumps([str(Path(ag.__file__).parents[1]), ROOT])
    words = [sys.executable, "-W", "ignore", "-c", WORKER, str(folder), json.dumps(jobs), paths]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=one_thread, stdout=subprocess.PIPE, start_new_session=True)


def outcomes(folder: Path, jobs: list[Job]) -> list[int]:
    """The exit codes of jobs in the folder, one after the other."""
    return [int(code) for code in start(folder, jobs).communicate(timeout=500)[0].split()]


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file in a folder, hidden files included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def kill_often(folder: Path, verb: str, kills: int, seed: int) -> None:
    """The first and the last run end by themselves; between them are as many runs that are killed
    at a random file operation.
    """
    prepare(folder)
    rng = random.Random(seed)
    killed: list[Job] = [
        ("killed", "c.toml", verb, rng.randint(1, 30), False) for _ in range(kills)
    ]
    codes = outcomes(
        folder, [("whole", "c.toml", verb, 0, False), *killed, ("killed", "c.toml", verb, 0, False)]
    )
    assert (
        codes[0] == codes[-1] == 0
        and set(codes[1:-1]) <= {0, -signal.SIGKILL}
        and codes.count(-signal.SIGKILL) > kills / 2
    )
    assert contents(folder / "killed") == contents(folder / "whole")


def test_a_job_killed_at_file_operations_ends_with_the_same_bytes(tmp_path: Path) -> None:
    kill_often(tmp_path, "score", 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "score", "run"])
def test_a_job_killed_twenty_times_ends_with_the_same_bytes(verb: str, tmp_path: Path) -> None:
    kill_often(tmp_path, verb, 20, 1)


@pytest.mark.slow
def test_two_configurations_in_one_folder_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end well, and all that lies in the folder belongs to the one that came last."""
    configs = [prepare(tmp_path), prepare(tmp_path, 1, "other.toml")]
    jobs: list[Job] = [
        (where, config, "train", 0, together)
        for where in ("a", "b")
        for config, together in ORDERS[where]
    ]
    assert outcomes(tmp_path, jobs) == [0, 0, 0, 0]
    monkeypatch.chdir(tmp_path)
    current = [
        products.members_are_current(one, one.ensembles[0], products.EnsembleFiles(Path("a/deep")))
        for one in configs
    ]
    assert sorted(current) == [False, True]
    if current[1]:  # the same order, one after the other
        assert contents(tmp_path / "a") == contents(tmp_path / "b")
    else:
        run.train_ensembles(configs[0], Path("b"), no_progress)
        assert contents(tmp_path / "a") == contents(tmp_path / "b")


ORDERS = {
    "a": (("c.toml", True), ("other.toml", False)),
    "b": (("c.toml", False), ("other.toml", False)),
}


@pytest.mark.parametrize("verb", ["train", "score", "run"])
def test_a_folder_in_use_is_waited_for(verb: str, tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "a").mkdir()
    said = tmp_path / "a.waits"
    with folder_lock(tmp_path / "a"):
        process = start(tmp_path, [("a", "c.toml", verb, 0, False)])
        while process.poll() is None and not said.exists():
            time.sleep(0.05)
        assert process.poll() is None and not list((tmp_path / "a").glob("*"))[1:]
        if verb != "score":  # all that follows is what a job does in a folder of its own
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return
    assert process.communicate(timeout=500)[0].split() == [b"0"]
    assert f"in use by process {os.getpid()}: waiting until it is done" in said.read_text()
    assert (tmp_path / "a" / "deep" / "members.safetensors").is_file() and not list(
        (tmp_path / "a").glob(".*")
    )


@pytest.fixture
def scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunConfig, products.EnsembleFiles, dict[str, str]]:
    config = prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    files = run.score_ensembles(config, Path("run"), no_progress)[0]
    return config, files, contents(Path("run"))


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 16
    path.write_bytes(content)


def test_damaged_products_are_made_again(
    scored: tuple[RunConfig, products.EnsembleFiles, dict[str, str]],
) -> None:
    config, files, whole = scored
    for path in (files.pool, files.energy, files.tuning, files.members):
        flip(path)
    key = Path(f"{files.energy}.key")
    key.write_bytes(b"\xff\xfe no text")
    files.checkpoint.write_bytes(files.checkpoint.read_bytes()[:100])
    run.score_ensembles(config, Path("run"), no_progress)
    assert contents(Path("run")) == whole
    flip(files.members)  # while all scores are current
    run.score_ensembles(config, Path("run"), no_progress)
    assert contents(Path("run")) == whole


def test_keys_of_version_01_hold_no_digest(
    scored: tuple[RunConfig, products.EnsembleFiles, dict[str, str]],
) -> None:
    config, files, _ = scored
    key = Path(f"{files.members}.key")
    _, settings = key.read_bytes().split()
    key.write_bytes(settings)
    assert products.members_are_current(config, config.ensembles[0], files)
    with pytest.raises(KeyboardInterrupt), products._recorded(files.members, ["other settings"]):
        raise KeyboardInterrupt  # perhaps after the product was replaced
    assert not products.members_are_current(config, config.ensembles[0], files)
    key.write_bytes(b"0" * 64)
    assert not products.members_are_current(config, config.ensembles[0], files)


def test_a_key_that_is_cut_counts_as_damaged(
    scored: tuple[RunConfig, products.EnsembleFiles, dict[str, str]],
) -> None:
    config, files, whole = scored
    for path in (files.members, files.pool):
        key = Path(f"{path}.key")
        content = key.read_bytes()
        for end in (0, 1, 63, 64, 65, 66, 100, len(content) - 2):
            key.write_bytes(content[:end])
            assert not (
                products.members_are_current
                if path is files.members
                else products.scores_are_current
            )(config, config.ensembles[0], files)
    run.score_ensembles(config, Path("run"), no_progress)
    assert contents(Path("run")) == whole


def test_a_shortage_of_calibration_examples_is_said_before_training(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert not any(
        "calibration" in note for note in run.training_notes(RunConfig(), tmp_path / "run")
    )
    (tmp_path / "c.toml").write_text(
        CONFIG.format(seed=0).replace("[decide]", "[decide]\ntarget = 0.99")
    )
    (sentence, *others) = run.training_notes(load_config(tmp_path / "c.toml"), tmp_path / "run")
    assert sentence.startswith(
        "With 20 calibration examples these rules can never stop early at target 0.99: "
    )
    assert (
        "AgreeStop needs 99" in sentence
        and "confidence merging needs 399" in sentence
        and len(sentence) < 300
    )
    assert len(others) == 1 and "KL" in others[0]


def test_checkpoints_that_are_left_out_are_quarters_of_the_steps(tmp_path: Path) -> None:
    config = prepare(tmp_path)
    for steps, quarters in ((80, (20, 40, 60, 80)), (10, (3, 5, 8, 10)), (2, (1, 2))):
        assert run.measurement_settings(config, config.ensembles[0], steps).checkpoints == quarters


def test_only_the_targets_that_are_given_are_measured(tmp_path: Path) -> None:
    config = prepare(tmp_path)
    assert run.measurement_settings(config, config.ensembles[0], 10).targets == (0.9,)
    assert run.measurement_settings(RunConfig(), config.ensembles[0], 80).targets == (
        0.9,
        0.8,
        0.85,
        0.92,
    )


def test_operations_are_read_with_a_sentence_for_damage(
    scored: tuple[RunConfig, products.EnsembleFiles, dict[str, str]],
) -> None:
    _, files, _ = scored
    np.savez(files.energy, emitted=np.zeros(3))
    with pytest.raises(ag.InputError, match="no 'accumulates'"):
        products.load_operations(files)


def test_a_run_trains_members_again_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    (deep, _) = run.score_ensembles(config, Path("run"), no_progress)
    members = deep.members.read_bytes()
    deep.members.unlink()
    measure_quickly(monkeypatch, learned=False)
    run.run_config(config, Path("run"), "", no_progress, pages=False)
    assert deep.members.read_bytes() == members
    assert len(json.loads(Path("run/metrics.json").read_text())["records"]) == 42
