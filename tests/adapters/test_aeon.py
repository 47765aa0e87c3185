"""aeon's interface to early classifiers: growing series, -1 without a decision, state_info. It
needs aeon; `make peers` installs it.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

if not os.environ.get("AGREESTOP_PEERS"):  # where peers are promised, a missing one is an error
    pytest.importorskip("aeon", reason="aeon is not installed; make peers installs it")

from aeon.classification.early_classification import BaseEarlyClassifier
from aeon.datasets import load_classification
from sklearn.naive_bayes import GaussianNB

import agreestop as ag

X, Y = load_classification("ItalyPowerDemand")
KNOWN, NEW = slice(0, 400), slice(400, 700)


@pytest.fixture(scope="module")
def early() -> ag.adapters.AeonEarlyClassifier:
    return ag.adapters.AeonEarlyClassifier(GaussianNB(), 8, 0.9, folds=0).fit(X[KNOWN], Y[KNOWN])


def test_whole_series_are_decided_as_by_the_early_classifier(
    early: ag.adapters.AeonEarlyClassifier,
) -> None:
    labels, decided = early.predict(X[NEW])
    plain = ag.adapters.EarlyClassifier(GaussianNB(), 8, 0.9, folds=0).fit(X[KNOWN], Y[KNOWN])
    assert isinstance(early, BaseEarlyClassifier) and decided.all()
    assert np.array_equal(labels, plain.predict(X[NEW]))
    assert np.array_equal(early.state_info[:, 3], plain.decide(X[NEW]).stop_time)
    mean, accuracy, earliness = early.score(X[NEW], Y[NEW])
    assert accuracy == np.mean(labels == Y[NEW]) and earliness == pytest.approx(
        early.state_info[:, 3].mean() / 24
    )
    assert mean == pytest.approx(2 * accuracy * (1 - earliness) / (accuracy + 1 - earliness))


def test_series_that_grow_are_decided_as_whole_ones(early: ag.adapters.AeonEarlyClassifier) -> None:
    whole, _ = early.predict(X[NEW])
    labels, decided = early.predict(X[NEW][:, :, :7])
    assert (
        0 < decided.sum() < 300
        and set(labels[~decided]) == {"-1"}
        and len(early.get_state_info()) == 300
    )
    assert set(early.state_info[~decided, 3]) == {6}
    waiting = np.flatnonzero(~decided)
    for time in (12, 20, 24):
        found, now = early.update_predict(X[NEW][waiting][:, :, :time])
        assert len(early.state_info) == len(waiting)
        labels[waiting], waiting = found, waiting[~now]
    assert not len(waiting) and np.array_equal(labels, whole)


def test_an_update_goes_on_after_the_last_checkpoint_whichever_series_comes_first(
    early: ag.adapters.AeonEarlyClassifier,
) -> None:
    _, decided = early.predict(X[NEW][:, :, :12])
    first = np.argmin(early.state_info[:, 0])  # a series that was decided at an early checkpoint
    rows = np.r_[first, np.delete(np.arange(300), first)]
    _, decided = early.predict(X[NEW][rows][:, :, :12])
    assert early.state_info[0, 3] < 12 and not decided.all()
    with pytest.raises(ag.InputError, match="X has 12 times"):
        early.update_predict(X[NEW][rows][~decided][:, :, :12])


def test_wrong_updates_are_refused_in_a_sentence(early: ag.adapters.AeonEarlyClassifier) -> None:
    with pytest.raises(ag.InputError, match="the next checkpoint is 3"):
        early.predict(X[NEW][:, :, :2])
    _, decided = early.predict(X[NEW][:, :, :7])
    with pytest.raises(ag.InputError, match="had no decision after the last call"):
        early.update_predict(X[NEW][:, :, :12])
    with pytest.raises(ag.InputError, match="the next checkpoint is 9"):
        early.update_predict(X[NEW][~decided][:, :, :8])
    early.reset_state_info()
    assert early.update_predict(X[NEW])[1].all()
