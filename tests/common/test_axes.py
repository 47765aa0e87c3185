"""Inputs have time as their second axis and series as their last; where one is taken for the other,
a sentence says so.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import InputError, check_series, time_last, warn_of_time_last

SERIES = np.random.default_rng(0).normal(size=(40, 3, 60))  # 3 channels, 60 times
Y = np.arange(40) % 2


def test_inputs_whose_last_axis_fits_as_time() -> None:
    assert "numpy.moveaxis(x, -1, 1)" in time_last((40, 3, 60), (3,))
    assert "numpy.moveaxis(x, -1, 1)" in time_last((40, 2, 20, 20, 80), (2, 20, 20))
    for shape, step in (
        ((40, 60, 4), (3,)),
        ((40, 3, 3), (3,)),
        ((40, 3), (3,)),
        ((40, 60, 3), (3,)),
    ):
        assert not time_last(shape, step)


def test_only_real_inputs_of_few_steps_are_asked_about() -> None:
    with pytest.warns(UserWarning, match="taken as 3 steps of 60 numbers"):
        warn_of_time_last((40, 3, 60), "f")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape, kind in (
            ((40, 60, 3), "f"),
            ((40, 3, 60), "b"),
            ((40, 3, 60), "u"),
            ((40, 1, 60), "f"),
            ((40, 10, 28, 28), "f"),
        ):
            warn_of_time_last(shape, kind)


def test_series_with_more_channels_than_times() -> None:
    with pytest.warns(UserWarning, match="taken as 60 channels at 3 times"):
        check_series((40, 60, 3), 3)
    with pytest.raises(InputError, match="60 channels at 3 times, and the last"):
        check_series((40, 60, 3), (10, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape, checkpoints in (
            ((40, 3, 60), 5),
            ((40, 60), 5),
            ((40, 3, 60), None),
            ((40, 3, 60), "no times"),
        ):
            check_series(shape, checkpoints)


def test_an_ensemble_names_the_axis_of_time() -> None:
    pytest.importorskip("torch", reason="ensembles need PyTorch")
    network = ag.networks.FullyConnected((3,), 2, 1, (4,), real_input=True)
    ensemble = ag.ensembles.DeepEnsemble(network, members=2, device="cpu", engine="dense")
    inputs = np.moveaxis(SERIES, -1, 1)
    for use in (lambda x: ensemble.fit(x, Y, epochs=1, progress=False), ensemble.score):
        with pytest.raises(InputError, match=r"the network takes \(n, T, 3\)"):
            use(SERIES)
        use(inputs)
    unknown = ag.ensembles.DeepEnsemble(
        ag.networks.FullyConnected((60,), 2, 1, (4,), real_input=True), members=1, device="cpu"
    )
    with pytest.warns(UserWarning, match="taken as 3 steps of 60 numbers"):
        unknown.fit(SERIES, Y, epochs=1, progress=False)


def test_an_adapter_names_the_axis_of_time() -> None:
    torch = pytest.importorskip("torch", reason="adapters need PyTorch")

    class Counting(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(inputs, 2)

        def forward(self, x: Any, state: Any) -> Any:
            state = self.layer(x.float()) + (0 if state is None else state)
            return state, state

    engine = ag.adapters.from_module([Counting(3)])
    rule = ag.AgreeStop(0.8, range(1, 61), 1).calibrate(engine.score(np.moveaxis(SERIES, -1, 1), Y))
    for use in (engine.score, lambda x: engine.decide(rule, x)):
        with pytest.raises(InputError, match=r"\(n, T, 3\).*numpy.moveaxis\(x, -1, 1\)"):
            use(SERIES)
    with pytest.warns(UserWarning, match="taken as 3 steps of 60 numbers"):
        ag.adapters.from_module([Counting(60)]).score(SERIES)


def test_an_early_classifier_names_the_axis_of_time() -> None:
    pytest.importorskip("sklearn", reason="EarlyClassifier needs scikit-learn")
    from sklearn.linear_model import LogisticRegression

    swapped = SERIES.transpose(0, 2, 1)
    early = ag.adapters.EarlyClassifier(LogisticRegression(), 3, 0.6, folds=0)
    with pytest.warns(UserWarning, match="60 channels at 3 times"):
        early.fit(swapped, Y)
    with pytest.raises(InputError, match="60 channels at 3 times, and the last"):
        ag.adapters.EarlyClassifier(LogisticRegression(), (20, 60), 0.6, folds=0).fit(swapped, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ag.adapters.EarlyClassifier(LogisticRegression(), 3, 0.6, folds=0).fit(SERIES, Y)
