"""Text files of the command line, messages of the server, and recorded inputs for the exported C
program.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

import agreestop as ag
from agreestop.cli.texts import read_lines, read_matrix, read_numbers
from agreestop.common import InputError
from agreestop.events.datasets import cifar10, dvs_gesture
from agreestop.networks import FullyConnected
from agreestop.serve.client import read_answer
from agreestop.serve.protocol import read_message, write, write_decision, write_push

from .harness import Format

LINES = 40


def read_groups(path: Path) -> object:
    """Groups that were read must be groups for calibration, or be refused in a sentence."""
    confidence = np.log(np.random.default_rng(1).dirichlet(np.ones(3), (LINES, 2, 1)))
    rule = ag.AgreeStop(0.3, (1, 2), 1).calibrate(
        confidence, np.arange(LINES) % 3, groups=read_lines(path, LINES)
    )
    return rule.group_names, rule.thresholds


def read_weights(path: Path) -> object:
    confidence = np.log(np.random.default_rng(1).dirichlet(np.ones(3), (LINES, 2, 1)))
    rule = ag.AgreeStop(0.3, (1, 2), 1).calibrate(
        confidence, np.arange(LINES) % 3, weights=read_numbers(path, LINES), max_weight=9.0
    )
    return rule.thresholds, rule.effective_size


def read_loss(path: Path) -> object:
    return ag.AgreeStop(None, (1, 2), 1, loss=read_matrix(path), max_loss=0.5).loss


def read_trials(path: Path) -> object:
    """A list of recordings, in a folder that holds one of them."""
    folder = path.with_name("gestures")
    folder.mkdir(exist_ok=True)
    for name in ("user01_led.aedat", "user01_led_labels.csv", "trials_to_test.txt"):
        (folder / name).touch()
    (folder / "trials_to_train.txt").write_bytes(path.read_bytes())
    return dvs_gesture.find_recordings(folder, "trials_to_train.txt")


def read_class_names(path: Path) -> object:
    folder = path.with_name("cifar")
    folder.mkdir(exist_ok=True)
    (folder / cifar10.TEST_FILE).touch()
    (folder / cifar10.NAMES_FILE).write_bytes(path.read_bytes())
    return cifar10.find_files(folder)


def write_inputs(path: Path) -> None:
    """Inputs as the export writes them, beside the program that reads them."""
    rng = np.random.default_rng(0)
    x = rng.random((24, 6, 2, 4, 3)) < 0.3
    network = FullyConnected((2, 4, 3), classes=3, hidden=(5,))
    ensemble = ag.ensembles.DeepEnsemble(
        network, members=2, seed=0, device="cpu", engine="event-driven"
    )
    ensemble.fit(~x, np.arange(24) % 3, epochs=1, progress=False)
    rule = ag.AgreeStop(0.6, tuple(range(1, 7)), 1).calibrate(ensemble.score(x, np.arange(24) % 3))
    folder = path.with_name("exported")
    ag.export.to_c(rule, ensemble, folder, inputs=x[:4])
    sources = ["agreestop.c", "network.c", "rule.c", "model.c", "replay.c"]
    subprocess.run(
        ["gcc", "-O1", *sources, "-o", "replay", "-lm"], cwd=folder, check=True, capture_output=True
    )
    path.write_bytes((folder / "inputs.bin").read_bytes())


def read_inputs(path: Path) -> object:
    done = subprocess.run(
        [str(path.with_name("exported") / "replay"), str(path)], capture_output=True, check=False
    )
    if done.returncode == 1 and done.stderr.startswith(b"replay: "):
        raise InputError(done.stderr.decode().strip() + ".")
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}")
    return done.stdout


FORMATS = (
    Format(
        "groups",
        lambda path: path.write_text("".join(f"group {row % 2}\n" for row in range(LINES))),
        read_groups,
    ),
    Format(
        "weights",
        lambda path: path.write_text("".join(f"{1 + row % 3}.5\n" for row in range(LINES))),
        read_weights,
    ),
    Format("loss", lambda path: path.write_text("0, 1, 2.5\n1, 0, 1\n0.5 1 0\n"), read_loss),
    Format("trials", lambda path: path.write_text("user01_led.aedat\n\n"), read_trials),
    Format(
        "class names",
        lambda path: path.write_text("\n".join(cifar10.CLASSES) + "\n"),
        read_class_names,
    ),
    Format(
        "message",
        lambda path: path.write_text(
            write(type="push", session=3, step=2, log_confidence=[[-1.5, -0.25], [-0.5, -1.0]])
        ),
        lambda path: read_message(path.read_bytes().decode("utf-8", "replace")),
    ),
    Format(
        "binary message",
        lambda path: path.write_bytes(write_push(3, 2, [[1, 5, 9], [], [2]])),
        lambda path: read_message(path.read_bytes()),
    ),
    Format(
        "answer",
        lambda path: path.write_text(
            write_decision(
                3, "key", ag.Decision(4, 1, (0, 2), ("a", "c"), -0.5, 2, None), "a promise"
            )
        ),
        lambda path: read_answer(path.read_bytes().decode("utf-8", "replace")),
    ),
    Format("replayed inputs", write_inputs, read_inputs, needs=("numba", "gcc")),
)
