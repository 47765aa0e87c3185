"""The training loop on streams: it learns, members are independent, a killed run ends with the same
numbers, bad input is refused.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.engines import Dense
from agreestop.engines.early_stopping import run_counted
from agreestop.engines.protocol import PICOJOULE_ACCUMULATE, running_energy
from agreestop.ensembles import Epoch, save_members, training
from agreestop.ensembles import load as load_ensemble
from agreestop.ensembles.streams import StreamRecipe, StreamTraining, in_loops
from agreestop.ensembles.training import TrainableMembers, train
from agreestop.events import Events
from agreestop.networks import (
    Architecture,
    Convolutional,
    FullyConnected,
    Neuron,
    Posterior,
    SpikingNetwork,
    Surrogate,
)

CONFIG = FullyConnected((1, 3, 3), 3, members=2, hidden=(12,))
KINDS = ("deep", "variational")


def toy(n: int = 90, seed: int = 0) -> tuple[Any, Any]:
    """Three classes of 3 × 3 spike trains; the class is the row of pixels that fires often."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    rates = np.full((n, 3, 3), 0.05)
    rates[np.arange(n), labels] = 0.5
    return rng.random((n, 16, 1, 3, 3)) < rates[:, None, None], labels


def make(kind: str, config: Architecture = CONFIG) -> Any:
    generator = torch.Generator().manual_seed(0)
    return (
        TrainableMembers(SpikingNetwork(config, generator))
        if kind == "deep"
        else Posterior(config, generator)
    )


def same_state(first: Any, second: Any) -> bool:
    return all(
        torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns(kind: str) -> None:
    model = make(kind)
    history = train(
        model, *toy(), StreamTraining(epochs=12, batch_size=30, learning_rate=2e-2, kl_weight=0.1)
    )
    inputs, labels = toy(60, seed=1)
    run = run_counted(Dense(model.members(torch.Generator().manual_seed(1))), inputs)
    counts = run.spikes.sum(axis=1)
    assert history[-1].loss < history[0].loss
    assert (counts.argmax(axis=-1) == labels[:, None]).mean() > 0.8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_cuda_graph_are_the_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = StreamTraining(epochs=6, batch_size=30, learning_rate=1e-2, device="cuda")
    captured, plain = make(kind), make(kind)
    train(captured, *toy(), settings)
    monkeypatch.setattr("agreestop.ensembles.gradients.CALLS_BEFORE_CAPTURE", 10**9)
    train(plain, *toy(), settings)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_recipe_is_freed_when_nobody_holds_it() -> None:
    """On a GPU it holds the memory of whole steps, which nothing can use until it is freed."""
    recipe = StreamRecipe(make("deep"), StreamTraining(epochs=1, batch_size=30), 90)
    recipe.step(*toy(30), 0.5)
    held = weakref.ref(recipe)
    gc.collect()
    gc.disable()
    try:
        del recipe
        assert held() is None
    finally:
        gc.enable()


def test_a_member_that_diverged_ends_the_training(tmp_path: Path) -> None:
    """Such a member never spikes, so the loss of all is finite; nothing of it is kept."""
    model, checkpoint = make("deep"), tmp_path / "training"
    with torch.no_grad():
        model.network.layers[0].synapses.weight[1] = torch.nan
    with pytest.raises(ag.InputError, match=r"diverged in epoch 1 \(weights that are not finite"):
        train(model, *toy(), StreamTraining(epochs=2, batch_size=30), checkpoint)
    assert not checkpoint.exists()


def test_members_of_a_deep_ensemble_are_independent() -> None:
    """The first of two members that are trained together equals a member that is trained
    by itself.
    """
    together, single = (
        make("deep"),
        make("deep", FullyConnected((1, 3, 3), 3, members=1, hidden=(12,))),
    )
    for model in (together, single):
        train(model, *toy(), StreamTraining(epochs=2, batch_size=30))
    for name, value in single.network.named_parameters():
        torch.testing.assert_close(
            together.network.get_parameter(name)[:1], value, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_continues_to_the_same_numbers(kind: str, tmp_path: Path) -> None:
    settings = StreamTraining(epochs=4, batch_size=30)
    uninterrupted, stopped, resumed = make(kind), make(kind), make(kind)
    whole = train(uninterrupted, *toy(), settings)

    def stop(epoch: int, figures: Epoch) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, *toy(), settings, tmp_path / "run.safetensors", stop)
    epochs: list[int] = []
    history = train(
        resumed,
        *toy(),
        settings,
        tmp_path / "run.safetensors",
        lambda epoch, figures: epochs.append(epoch),
    )
    assert epochs == [2, 3]
    assert history == whole
    assert same_state(uninterrupted, resumed)


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.ensembles.test_training import StreamTraining, make, toy, train
training = StreamTraining(epochs=400, batch_size=30)
report = lambda epoch, figures: print(epoch, flush=True)
train(make("deep"), *toy(), training, Path({path!r}), report)
"""


def test_a_run_killed_at_any_moment_ends_with_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(tests=root, path=str(path))],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "2":
        assert process.poll() is None
    time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = 6
    settings = StreamTraining(epochs=400, batch_size=30)
    expected: list[Epoch] = []

    class Enough(Exception):
        pass

    def collect(epoch: int, figures: Epoch) -> None:
        expected.append(figures)
        if epoch >= done:
            raise Enough

    with pytest.raises(Enough):
        train(make("deep"), *toy(), settings, None, collect)
    after: dict[int, Epoch] = {}

    def gather(epoch: int, figures: Epoch) -> None:
        after[epoch] = figures
        if epoch >= done:
            raise Enough

    with pytest.raises(Enough):
        train(make("deep"), *toy(), settings, path, gather)
    assert min(after) >= 3
    assert all(
        expected[epoch] == figures for epoch, figures in after.items() if epoch < len(expected)
    )


def test_a_training_that_diverges_gets_a_sentence() -> None:
    model = make("deep")
    with torch.no_grad():
        model.network.layers[0].synapses.weight.fill_(float("nan"))
    model.penalty = lambda: torch.tensor(float("nan"))
    with pytest.raises(ag.InputError, match=r"training diverged in epoch 1 \(loss"):
        train(model, *toy(), StreamTraining(epochs=1))


def test_checkpoints_of_other_settings_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(make("deep"), *toy(), StreamTraining(epochs=1), path)
    with pytest.raises(ag.InputError, match="made with other network settings"):
        train(
            make("deep", FullyConnected((1, 3, 3), 3, members=2, hidden=(7,))),
            *toy(),
            StreamTraining(epochs=1),
            path,
        )
    for other, seed, match in (
        (StreamTraining(epochs=2), 0, "other training settings: "),
        (StreamTraining(epochs=1), 1, "other examples and other labels: "),
    ):
        with pytest.raises(ag.InputError, match=match):
            train(make("deep"), *toy(seed=seed), other, path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ag.InputError, match="is damaged"):
        train(make("deep"), *toy(), StreamTraining(epochs=1), path)


@pytest.mark.parametrize(
    "config", [CONFIG, Convolutional((1, 4, 4), 3, members=2, channels=(4,), hidden=(5,))]
)
def test_members_are_saved_in_a_file(config: Architecture, tmp_path: Path) -> None:
    network = make("deep", config).network.eval()
    save_members(tmp_path / "members.safetensors", network)
    loaded = cast(
        SpikingNetwork, load_ensemble(tmp_path / "members.safetensors", device="cpu").network
    )
    assert loaded.config == network.config
    assert same_state(network, loaded)
    with pytest.raises(ag.InputError, match="there is no file"):
        load_ensemble(tmp_path / "none")
    train_file = tmp_path / "run.safetensors"
    train(make("deep"), *toy(), StreamTraining(epochs=1), train_file)
    with pytest.raises(ag.InputError, match="holds 'checkpoint', but 'ensemble'"):
        load_ensemble(train_file)


def test_energy_is_the_sum_over_operations() -> None:
    inputs, _ = toy(5)
    run = run_counted(Dense(make("deep").network), inputs)
    assert run.spikes.shape == (5, 16, 2, 3)
    assert not run.operations.multiplies.any()
    spent = running_energy(run.operations)
    np.testing.assert_allclose(
        spent[:, -1], PICOJOULE_ACCUMULATE * run.operations.accumulates.sum(axis=1) / 1000
    )
    np.testing.assert_allclose(
        spent[3, 4], PICOJOULE_ACCUMULATE * run.operations.accumulates[3, :5].sum(axis=0) / 1000
    )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"warm_up": 2.0}, "a share of the epochs"),
        ({"device": "cuda"}, "PyTorch finds no GPU"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ag.InputError, match=match):
        StreamTraining(**settings)


def test_as_many_labels_as_inputs_are_needed() -> None:
    inputs, labels = toy()
    with pytest.raises(ag.InputError, match="labels has 89 entries for 90 inputs"):
        train(make("deep"), inputs, labels[:-1], StreamTraining(epochs=1))


def test_a_label_outside_the_classes_is_refused() -> None:
    inputs, labels = toy()
    with pytest.raises(ag.InputError, match="labels run from 0 to 2"):
        train(make("deep"), inputs, labels + 1, StreamTraining(epochs=1))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
def test_events_are_uploaded_in_parts(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (np.random.default_rng(0).random((11, 3, 2, 4)) < 0.3).astype(dtype)
    for size in (1, 3 * x[0].nbytes, 2**20):
        monkeypatch.setattr(training, "UPLOADED", size)
        whole = training.upload_in_parts(
            Events.from_dense(x).rows(slice(None, None, -1)), torch.device("cpu")
        )
        np.testing.assert_array_equal(whole.numpy(), x[::-1])


CONVOLUTIONS = {
    "fits": (Convolutional((2, 8, 8), 3, 2, (16, 32), (8,)), True),
    "channels": (Convolutional((2, 8, 8), 3, 2, (16, 24), (8,)), False),
    "first channels": (Convolutional((2, 8, 8), 3, 2, (8, 16), (8,)), False),
    "width of the second layer": (Convolutional((2, 8, 12), 3, 2, (16, 16), (8,)), False),
    "surrogate": (
        Convolutional((2, 8, 8), 3, 2, (16,), (8,), Neuron(surrogate=Surrogate("sigmoid"))),
        False,
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_network_is_trained_in_loops_if_all_its_kernels_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba", reason="the loops are compiled by numba")
    from agreestop.kernels.cpu import convolution as cpu_convolution
    from agreestop.kernels.cpu import deep_training as cpu_deep_training

    answers: list[bool] = []
    for module in (cpu_convolution, cpu_deep_training):
        asked: Any = module.can_run

        def can_run(*given: Any, asked: Any = asked) -> bool:
            answers.append(asked(*given))
            return answers[-1]

        monkeypatch.setattr(module, "can_run", can_run)
    config, expected = CONVOLUTIONS[name]
    model = make("deep", config)
    recipe = StreamTraining(1, 8).recipe(
        model.train(), np.zeros((8, 16, *config.input_shape), np.float32)
    )
    recipe.step(
        (np.random.default_rng(0).random((8, 16, *config.input_shape)) < 0.2).astype(np.float32),
        np.arange(8) % 3,
        0.0,
    )
    assert len(answers) >= 2 * config.members * len(config.channels)
    assert in_loops(config) == expected == all(answers)
