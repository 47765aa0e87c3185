"""Which engine is chosen, and what is refused."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag  # noqa: E402
from agreestop.engines.choice import DENSE_FROM, choose_engine  # noqa: E402
from agreestop.networks.architectures import FullyConnected, ResNet18, SpikingNetwork  # noqa: E402

SMALL = SpikingNetwork(FullyConnected((4,), 3, 2, (5,)), torch.Generator().manual_seed(0))
NUMBA = importlib.util.find_spec("numba") is not None
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the fused engine is chosen")


@ON_CPU
def test_sparse_inputs_run_event_driven_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine(SMALL, density=0.03).name == ("event-driven" if NUMBA else "dense")
    assert choose_engine(SMALL, density=DENSE_FROM).name == "dense"
    monkeypatch.setattr("agreestop.engines.choice.find_spec", lambda name: None)
    assert choose_engine(SMALL, density=0.03).name == "dense"


@ON_CPU
def test_a_residual_network_runs_dense() -> None:
    network = SpikingNetwork(ResNet18((3, 8, 8), 3, width=2), torch.Generator().manual_seed(0))
    assert choose_engine(network).name == "dense"


def test_an_engine_can_be_named() -> None:
    assert choose_engine(SMALL, "dense").name == "dense"


@ON_CPU
def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ag.InputError, match="choose one of auto, dense, event-driven, fused"):
        choose_engine(SMALL, "quantum")
    with pytest.raises(ag.InputError, match="PyTorch finds no GPU"):
        choose_engine(SMALL, "fused")
