"""Ensembles remember the rows that trained them: calibration and evaluation refuse them, in Python
and through files.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.ensembles.files import read_tensors, write_tensors
from tests.cli.test_cli import call
from tests.decide.strategies import assert_one_sentence

STEPS = 8
RULE = ag.AgreeStop(0.9, range(1, STEPS + 1), 1)
UNKNOWN = (
    "It is not known which rows the members were trained on, so these could not be compared "
    "with them."
)


def toy(n: int, seed: int) -> tuple[Any, Any]:
    """Noisy spike trains of three classes: a network can learn 80 of them by heart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    inputs = rng.random((n, STEPS, 30)) < 0.25
    inputs[np.arange(n), :, labels] |= rng.random((n, STEPS)) < 0.25
    return inputs, labels


X, Y = toy(80, 0)
NETWORK = ag.networks.FullyConnected((30,), 3, hidden=(128,))


def fitted(kind: str = "deep", x: Any = X, y: Any = Y, epochs: int = 1, **settings: Any) -> Any:
    classes = {"deep": ag.ensembles.DeepEnsemble, "variational": ag.ensembles.VariationalEnsemble}
    made = classes[kind](NETWORK, members=2, device="cpu")
    return made.fit(x, y, epochs=epochs, learning_rate=0.03, progress=False, **settings)


@pytest.fixture(scope="module")
def by_heart() -> Any:
    return fitted(epochs=40)


def test_rows_that_trained_the_members_are_refused(by_heart: Any) -> None:
    """Without the hashes they would be taken, and 400 new rows covered about 0.42 of the time at a
    target of 0.9, an error of 0.025.
    """
    with pytest.raises(ag.InputError, match="calibration: 80 of the 80 rows were used") as caught:
        RULE.calibrate(by_heart.score(X, Y))
    assert_one_sentence(str(caught.value))
    assert "(rows 0, 1, 2, 3, 4, …)" in str(caught.value) and "scores.rows(~scores.trained)" in str(
        caught.value
    )
    with pytest.raises(ag.InputError, match="repeat_splits: 80 of the 80 rows"):
        ag.repeat_splits(RULE, by_heart.score(X, Y))
    new, others = by_heart.score(*toy(400, 1)), by_heart.score(*toy(80, 2))
    assert ag.evaluate(RULE.calibrate(others).decide(new), new).coverage > 0.8
    forgotten = replace(by_heart.score(X, Y), trained=None)  # the control: what happened before
    assert ag.evaluate(RULE.calibrate(forgotten).decide(new), new).coverage < 0.6


@pytest.mark.parametrize("kind", ["deep", "variational"])
def test_the_rows_are_found_however_they_are_given(kind: str, tmp_path: Path) -> None:
    ensemble = fitted(kind)
    ensemble.save(tmp_path / "members")
    calibrated = RULE.calibrate(ensemble.score(*toy(80, 2)))
    loaded: Any = ag.ensembles.load(tmp_path / "members", device="cpu")
    for members in (ensemble, loaded):
        for given in (
            X,
            X.astype(np.uint8),
            X.astype(np.float32),
            X.astype(np.float64),
            ag.events.Events.from_dense(X),
        ):
            assert members.score(given).trained.all()
            assert members.decide(calibrated, given).decisions.reuse.startswith(
                "80 of the 80 rows were used for training"
            )
        assert not members.score(toy(80, 3)[0]).trained.any()
        decisions = members.decide(calibrated, toy(80, 3)[0]).decisions
        assert (decisions.reuse, decisions.notes) == ("", calibrated.notes)
        with pytest.raises(ag.InputError, match="evaluation: 80 of the 80 rows were used"):
            ag.evaluate(members.decide(calibrated, X), Y)


def test_real_numbers_are_found_in_float32_and_float64() -> None:
    values = np.random.default_rng(0).normal(size=X.shape) * X
    for one, other in ((values, values.astype(np.float32)), (values.astype(np.float32), values)):
        ensemble = ag.ensembles.DeepEnsemble(
            ag.networks.FullyConnected((30,), 3, hidden=(4,)), 2, device="cpu"
        )
        ensemble.fit(one, Y, epochs=1, progress=False)
        assert ensemble.score(one).trained.all() and ensemble.score(other).trained.all()  # type: ignore[union-attr]
        assert not ensemble.score(values + 1e-3 * X).trained.any()  # type: ignore[union-attr]


def test_images_that_are_held_are_found() -> None:
    images = np.random.default_rng(0).random((20, 1, 30)).astype(np.float32)
    ensemble = fitted(x=images, y=Y[:20], steps=STEPS)
    assert (
        ensemble.score(images, steps=STEPS).trained.all()
        and not ensemble.score(1 - images, steps=STEPS).trained.any()
    )


def test_the_mask_goes_where_the_scores_go(tmp_path: Path) -> None:
    others, labels = toy(80, 2)
    mixed = fitted().score(np.concatenate([X[:3], others]), np.r_[Y[:3], labels])
    assert mixed.trained.sum() == 3
    ag.save_scores(tmp_path / "scores.npz", mixed)
    given: list[Any] = [
        mixed,
        ag.load_scores(tmp_path / "scores.npz"),
        mixed.at((2, 4, 8)),
        replace(mixed, ids=np.arange(83)),
    ]
    for scores in given:
        rule = ag.AgreeStop(0.9, (2, 4, 8), 1)
        with pytest.raises(ag.InputError, match="3 of the 83 rows were used for training"):
            rule.calibrate(scores)
        assert rule.calibrate(scores.rows(~scores.trained)).n == 80  # what the sentence says
        assert scores.rows([0, 5]).trained.tolist() == [True, False]
    spikes = np.zeros((83, 2, 1, 2), bool)
    ag.save_spikes(tmp_path / "spikes.npz", spikes, trained=mixed.trained, trained_chance=0.25)
    loaded = ag.load_scores(tmp_path / "spikes.npz")
    assert (
        loaded.trained is not None and loaded.trained.sum() == 3 and loaded.trained_chance == 0.25
    )
    for wrong, words in (
        ({"trained": [1, 0]}, "83 booleans are needed"),
        ({"trained_chance": 2}, "trained_chance is 2"),
    ):
        with pytest.raises(ag.InputError, match=words):
            replace(mixed, **wrong)


def test_the_command_line_refuses_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = partial(call, monkeypatch, capsys)
    fitted().save(tmp_path / "members")
    ag.events.Events.from_dense(X, Y).save(tmp_path / "inputs.npz")
    done = run(
        "score",
        tmp_path / "inputs.npz",
        "--members",
        tmp_path / "members",
        "-o",
        tmp_path / "scores.npz",
    )
    assert done.code == 0 and "does not say" not in done.err + done.out
    refused = run("calibrate", tmp_path / "scores.npz", "-o", tmp_path / "rule")
    assert refused.code == 2 and "80 of the 80 rows were used for training" in refused.err


def test_equal_rows_by_chance_are_not_refused() -> None:
    """Empty recordings say nothing, and a recording that training holds often may come again; more
    than that is refused.
    """
    x, (others, labels) = X.copy(), toy(80, 2)
    x[:1] = False
    others[:20] = False
    assert RULE.calibrate(fitted(x=x).score(others, labels)).n == 80
    x[1:21] = x[1]
    others[20:35] = x[1]
    scores = fitted(x=x).score(others, labels)
    assert (
        scores.trained.sum() == 15
        and scores.trained_chance > 0.25
        and RULE.calibrate(scores).n == 80
    )
    with pytest.raises(ag.InputError, match="79 of the 80 rows were used for training"):
        RULE.calibrate(fitted(x=x).score(x, Y))


def test_rows_need_not_be_remembered_and_files_without_them_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = partial(call, monkeypatch, capsys)
    silent = fitted(remember_rows=False)
    silent.save(tmp_path / "silent")
    tensors, header = read_tensors(tmp_path / "silent", "ensemble")
    assert "training_rows" not in tensors
    fitted().save(tmp_path / "members")
    tensors, header = read_tensors(tmp_path / "members", "ensemble")
    del tensors["training_rows"], header["training_chance"]
    write_tensors(tmp_path / "members", tensors, header)  # as 0.2 wrote it
    for members in (
        silent,
        *(ag.ensembles.load(tmp_path / name, device="cpu") for name in ("silent", "members")),
    ):
        rule = RULE.calibrate(members.score(X, Y))
        new = members.score(*toy(40, 3))
        assert members.decide(rule, toy(40, 3)[0]).decisions.notes == (UNKNOWN,)
        assert ag.evaluate(rule.decide(new), new).notes == (UNKNOWN,)
    ag.events.Events.from_dense(X, Y).save(tmp_path / "inputs.npz")
    done = run(
        "score",
        tmp_path / "inputs.npz",
        "--members",
        tmp_path / "members",
        "-o",
        tmp_path / "scores.npz",
    )
    assert done.code == 0 and "does not say which rows trained its members" in done.err


def test_members_that_train_apart_or_further_remember_all_rows() -> None:
    whole = ag.ensembles.DeepEnsemble(NETWORK, members=2, device="cpu")
    parts = [whole.member(index).fit(X, Y, epochs=1, progress=False) for index in range(2)]
    assert whole.join(parts).score(X).trained.all()  # type: ignore[union-attr]
    more = toy(40, 5)

    class Leaky(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.synapses = torch.nn.Linear(30, 3)

        def forward(self, x: Any, state: Any) -> Any:
            total = self.synapses(x) + (0 if state is None else state)
            return total, total

    further = ag.ensembles.DeepEnsemble([Leaky(), Leaky()], device="cpu")
    assert further.score(X).trained is None
    further.fit(X, Y, epochs=1, progress=False).fit(*more, epochs=1, progress=False)
    assert further.score(X).trained.all() and further.score(more[0]).trained.all()  # type: ignore[union-attr]
    again = fitted().fit(*more, epochs=1, progress=False)  # a second call trains new members
    assert not again.score(X).trained.any() and again.score(more[0]).trained.all()
