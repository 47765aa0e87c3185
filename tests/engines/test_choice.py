"""Which engine is chosen, and what is refused."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.engines import Dense, FreshMembers, choose_engine, lightest_engine, run_to_end, score
from agreestop.engines.runner import DENSE_FROM
from agreestop.networks import (
    FullyConnected,
    ModuleMembers,
    Neuron,
    Posterior,
    ResNet18,
    SpikingNetwork,
)

SMALL = SpikingNetwork(FullyConnected((4,), 3, 2, (5,)), torch.Generator().manual_seed(0))
NUMBA = importlib.util.find_spec("numba") is not None
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the fused engine is chosen")


@ON_CPU
def test_sparse_inputs_run_event_driven_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine(SMALL, density=0.03).name == ("event-driven" if NUMBA else "dense")
    assert (
        choose_engine(SMALL, density=DENSE_FROM).name == "dense"
        and "30%" in choose_engine(SMALL, density=DENSE_FROM).reason
    )
    monkeypatch.setattr("agreestop.engines.runner.find_spec", lambda name: None)
    without = choose_engine(SMALL, density=0.03)
    assert without.name == "dense" and "numba" in without.reason


@ON_CPU
def test_a_residual_network_runs_dense() -> None:
    network = SpikingNetwork(ResNet18((3, 8, 8), 3, width=2), torch.Generator().manual_seed(0))
    assert choose_engine(network).name == "dense" and "ResNet18" in choose_engine(network).reason


def test_an_engine_can_be_named() -> None:
    engine = choose_engine(SMALL, "dense")
    assert (engine.name, engine.reason) == ("dense", "")


def test_own_modules_run_dense_and_the_reason_is_given() -> None:
    members = ModuleMembers([torch.nn.Identity()], input_shape=(3,))
    engine = choose_engine(members)
    assert (
        engine.name == "dense"
        and "own modules" in engine.reason
        and choose_engine(members, "dense").reason == ""
    )
    for name in ("event-driven", "fused"):
        with pytest.raises(ag.InputError, match="own modules run on the dense engine"):
            choose_engine(members, name)


def test_a_posterior_runs_on_fresh_members() -> None:
    posterior = Posterior(SMALL.config, torch.Generator().manual_seed(0))
    engine = choose_engine(posterior)
    assert engine.name == "dense-fresh" and "drawn for each input" in engine.reason
    inputs = np.ones((1, 20, *SMALL.input_shape), bool)
    first, again, other = (
        run_to_end(choose_engine(posterior, seed=seed), inputs) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    with pytest.raises(ag.InputError, match="a posterior runs on dense-fresh"):
        choose_engine(posterior, "dense")
    with pytest.raises(ag.InputError, match="give the posterior"):
        choose_engine(SMALL, "dense-fresh")


@ON_CPU
def test_unknown_and_missing_engines_are_refused() -> None:
    with pytest.raises(ag.InputError, match="choose one of auto, dense, event-driven"):
        choose_engine(SMALL, "quantum")
    with pytest.raises(ag.InputError, match="PyTorch finds no GPU"):
        choose_engine(SMALL, "fused")


@ON_CPU
@pytest.mark.parametrize("device", ["gpu", "banana", "cuda:x", "", None, 0])
def test_a_device_that_does_not_exist_is_refused(device: Any) -> None:
    with pytest.raises(ag.InputError, match="choose 'auto', 'cpu' or 'cuda'"):
        choose_engine(SMALL, device=device)
    with pytest.raises(ag.InputError, match="choose 'auto', 'cpu' or 'cuda'"):
        Dense(SMALL, device)
    with pytest.raises(ag.InputError, match="PyTorch finds no GPU"):
        Dense(SMALL, "cuda")


def test_what_is_not_a_network_is_refused() -> None:
    wrong: Any
    for wrong in (None, SMALL.config, torch.nn.Linear(2, 2)):
        for make in (choose_engine, Dense):
            with pytest.raises(ag.InputError, match="give a SpikingNetwork, or own modules"):
                make(wrong)
        with pytest.raises(ag.InputError, match="give a Posterior or a ModulePosterior"):
            FreshMembers(wrong, (0,))
    posterior = Posterior(SMALL.config, torch.Generator().manual_seed(0))
    with pytest.raises(ag.InputError, match="number is -1"):
        FreshMembers(posterior, (0,)).live(-1)


def test_an_engine_says_what_it_is() -> None:
    assert repr(choose_engine(SMALL, "dense")) == "Dense(name='dense', members=2, output='spikes')"
    posterior = Posterior(SMALL.config, torch.Generator().manual_seed(0))
    assert (
        repr(choose_engine(posterior))
        == "FreshMembers(name='dense-fresh', members=2, output='spikes')"
    )
    if NUMBA:
        assert (
            repr(choose_engine(SMALL, "event-driven-int8"))
            == "EventDriven(name='event-driven-int8', members=2, output='spikes')"
        )


def test_the_lightest_engine_decides_as_float32_does() -> None:
    """Weights that int8 holds exactly are kept in it, others are not."""
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    rng = np.random.default_rng(0)
    inputs, labels = rng.random((60, 12, 4)) < 0.3, rng.integers(3, size=60)
    exact = SpikingNetwork(
        FullyConnected((4,), 3, 2, (5,), Neuron(threshold=0.3)),
        torch.Generator().manual_seed(1),
        deviation=0.6,
    )
    weights = [value for name, value in exact.named_parameters() if name.endswith("weight")]
    with torch.no_grad():
        for weight in weights:
            weight.copy_((weight * 64).round().clamp(-127, 127) / 64)
            weight[:, 0] = 127 / 64  # the greatest of every output: then the unit of int8 is 1/64
    settings, scores = (
        ag.AgreeStop(0.5, range(1, 13), 2),
        score(choose_engine(exact, "event-driven"), inputs, labels),
    )
    calibrated, bare = settings.calibrate(scores), settings.calibrate(scores.log_confidence, labels)
    assert lightest_engine(exact, calibrated, inputs).name == "event-driven-int8"
    assert lightest_engine(exact, bare, inputs).name == "event-driven-int8"
    many = rng.random((5000, 12, 4)) < 0.3
    for rule in (calibrated, bare):
        with pytest.raises(ag.InputError, match="of the 60 rows that the rule"):
            lightest_engine(exact, rule, many)
    with pytest.raises(ag.InputError, match="calibrate it again, on rows"):
        lightest_engine(exact, replace(calibrated, rows=None), inputs)
    with torch.no_grad():
        weights[0].add_(
            torch.rand(weights[0].shape, generator=torch.Generator().manual_seed(2)) / 2
        )
    assert (
        lightest_engine(exact, calibrated, np.concatenate([inputs, many])).name
        != "event-driven-int8"
    )
