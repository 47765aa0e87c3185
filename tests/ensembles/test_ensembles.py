"""The public ensembles: fit, score, decide, live, save and load, for our networks and for modules
of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

from torch import Tensor, nn

import agreestop as ag
from agreestop.ensembles import save_members
from agreestop.ensembles.files import write_tensors
from agreestop.networks.digests import network_settings
from tests.ensembles.test_images import pictures
from tests.ensembles.test_training import toy

STEPS = 16
NETWORK = ag.networks.FullyConnected((1, 3, 3), classes=3, hidden=(12,))


class Recurrent(nn.Module):
    """A recurrent network with logits."""

    def __init__(self, inputs: int = 9, classes: int = 3) -> None:
        super().__init__()
        self.cell, self.read_out = nn.GRUCell(inputs, 8), nn.Linear(8, classes)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = self.cell(x.flatten(1), state)
        return self.read_out(hidden), hidden


class Accumulator(nn.Module):
    """Neurons that spike when the sum of their inputs passes 1; the gradient is that of a
    sigmoid.
    """

    def __init__(self) -> None:
        super().__init__()
        self.synapses = nn.Linear(9, 3)

    def forward(
        self, x: Tensor, state: dict[str, Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        current = self.synapses(x.flatten(1))
        potential = current if state is None else state["potential"] + current
        soft = torch.sigmoid(4 * (potential - 1))
        spikes = (potential > 1).float() + soft - soft.detach()
        return (spikes.round() if not self.training else _hard(spikes)), {
            "potential": potential - spikes.detach()
        }


def _hard(spikes: Tensor) -> Tensor:
    """Exactly 0 or 1 in the forward pass, whatever the gradient."""
    return spikes + (spikes.detach().round() - spikes.detach())


def make(kind: str, **settings: Any) -> Any:
    """An untrained ensemble of three members."""
    classes = {"deep": ag.ensembles.DeepEnsemble, "variational": ag.ensembles.VariationalEnsemble}
    name, _, network = kind.partition("-")
    source: Any = {"": NETWORK, "recurrent": Recurrent, "spiking": Accumulator}[network]
    return classes[name](
        source,
        members=3,
        seed=0,
        device="cpu",
        output="spikes" if network == "spiking" else "logits",
        **settings,
    )


KINDS = ("deep", "variational", "deep-recurrent", "variational-recurrent", "deep-spiking")


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """One trained ensemble of each kind; tests leave them as they are."""
    return {
        kind: make(kind).fit(*toy(), epochs=8, learning_rate=2e-2, kl_weight=0.1, progress=False)
        for kind in KINDS
    }


def rule_for(ensemble: Any, inputs: Any = None, labels: Any = None) -> ag.CalibratedRule:
    if inputs is None:
        inputs, labels = toy(80, seed=2)
    return ag.AgreeStop(target=0.8, checkpoints=range(1, STEPS + 1), max_set_size=1).calibrate(
        ensemble.score(inputs, labels)
    )


def same_decisions(first: ag.Decisions, second: ag.Decisions) -> bool:
    return np.array_equal(first.stop_index, second.stop_index) and np.array_equal(
        first.sets, second.sets
    )


@pytest.mark.parametrize("kind", KINDS)
def test_train_calibrate_decide(kind: str, trained: dict[str, Any]) -> None:
    ensemble = trained[kind]
    new, truth = toy(60, seed=3)
    rule = rule_for(ensemble)
    run = ensemble.decide(rule, new)
    scores = ensemble.score(new)
    assert (
        scores.log_confidence.shape == (60, STEPS, 3, 3)
        and scores.times == tuple(range(1, STEPS + 1))
        and scores.labels is None
    )
    assert same_decisions(run.decisions, rule.decide(scores))
    assert (
        run.computed.shape == (60,) and run.computed.max() <= STEPS and run.computed.mean() < STEPS
    )
    assert ag.evaluate(run.decisions, truth).coverage > 0.6


@pytest.mark.parametrize("kind", KINDS)
def test_live_is_the_batch(kind: str, trained: dict[str, Any]) -> None:
    ensemble = trained[kind]
    new, _ = toy(6, seed=3)
    rule = rule_for(ensemble)
    decisions = ensemble.decide(rule, new).decisions
    for row, stream in enumerate(new):
        by_index, by_frame = ensemble.live(rule, number=row), ensemble.live(rule, number=row)
        for frame in stream:
            decision = by_index.push(np.flatnonzero(frame))
            assert (by_frame.push(frame=frame) is None) == (decision is None)
            if decision is not None:
                break
        assert decision is not None and decision.index == decisions.stop_index[row]
        assert (
            by_frame.decision is not None
            and by_frame.decision.classes == decision.classes == decisions[row].classes
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_ensemble_is_the_same(kind: str, trained: dict[str, Any], tmp_path: Path) -> None:
    ensemble = trained[kind]
    path = tmp_path / "ensemble.safetensors"
    ensemble.save(path)
    builder: Any = {"recurrent": Recurrent, "spiking": Accumulator}.get(kind.partition("-")[2])
    if builder is not None:
        with pytest.raises(ag.InputError, match="modules of your own"):
            ag.ensembles.load(path)
    loaded = ag.ensembles.load(path, network=builder, device="cpu")
    assert (
        type(loaded) is type(ensemble)
        and loaded.members == 3
        and loaded.digest == ensemble.digest
        and loaded.history == ensemble.history
    )
    new, _ = toy(20, seed=3)
    np.testing.assert_array_equal(
        loaded.score(new).log_confidence, ensemble.score(new).log_confidence
    )
    assert same_decisions(
        loaded.decide(rule_for(ensemble), new).decisions,
        ensemble.decide(rule_for(ensemble), new).decisions,
    )


def test_fresh_members_are_drawn_for_every_input(tmp_path: Path) -> None:
    ensemble = make("variational", fresh=True).fit(*toy(), epochs=2, progress=False)
    new, _ = toy(8, seed=3)
    rule = rule_for(ensemble, *toy(30, seed=2))
    same_twice = np.stack([new[0], new[0]])
    first, second = ensemble.score(same_twice).log_confidence
    assert not np.array_equal(first, second)
    assert same_decisions(ensemble.decide(rule, new).decisions, rule.decide(ensemble.score(new)))
    ensemble.save(tmp_path / "fresh.safetensors")
    loaded = ag.ensembles.load(tmp_path / "fresh.safetensors")
    assert (
        isinstance(loaded, ag.ensembles.VariationalEnsemble)
        and loaded.fresh
        and loaded.digest == ensemble.digest
    )
    np.testing.assert_array_equal(
        loaded.score(new).log_confidence, ensemble.score(new).log_confidence
    )
    with pytest.raises(ag.InputError, match="number is -1"):
        ensemble.live(rule, number=-1)
    loaded.seed += 1  # other members are drawn from the same posterior
    with pytest.raises(ag.InputError, match="calibrated on scores of the ensemble"):
        loaded.decide(rule, new)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_with_the_same_numbers(kind: str, tmp_path: Path) -> None:
    path, settings = tmp_path / "run.safetensors", {"epochs": 3, "batch_size": 30}
    whole = make(kind).fit(*toy(), **settings, progress=False)

    def stop(what: str, share: float) -> None:
        if what.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(kind).fit(*toy(), **settings, checkpoint=path, progress=stop)
    epochs: list[str] = []
    again = make(kind).fit(
        *toy(), **settings, checkpoint=path, progress=lambda what, share: epochs.append(what)
    )
    assert next(what for what in epochs if what.startswith("epoch")).startswith(
        "epoch 3 of 3: loss "
    )
    assert again.digest == whole.digest and again.history == whole.history


def test_the_user_is_told_where_the_loss_rises_on_purpose() -> None:
    said: list[str] = []
    make("variational").fit(*toy(), epochs=1, progress=lambda what, share: said.append(what))
    assert "so the loss may rise: this is intended" in said[0]
    said.clear()
    make("deep").fit(*toy(), epochs=1, progress=lambda what, share: said.append(what))
    assert said[0].startswith("epoch 1 of 1")


def test_events_are_the_array() -> None:
    inputs, labels = toy()
    events = ag.events.Events.from_dense(inputs, labels, ("top", "middle", "bottom"))
    dense = make("deep").fit(inputs, labels, epochs=2, progress=False)
    sparse = make("deep").fit(events, epochs=2, progress=False)
    assert sparse.digest == dense.digest and sparse.class_names == ("top", "middle", "bottom")
    first, second = sparse.score(events), dense.score(inputs, labels)
    np.testing.assert_array_equal(first.log_confidence, second.log_confidence)
    np.testing.assert_array_equal(first.labels, labels)
    np.testing.assert_array_equal(first.ids, second.ids)
    assert (
        first.classes == ("top", "middle", "bottom")
        and first.engine == second.engine != ""
        and first.ensemble_digest == dense.digest
    )
    rule = rule_for(
        sparse, ag.events.Events.from_dense(*toy(80, seed=2), ("top", "middle", "bottom")), None
    )
    assert same_decisions(
        sparse.decide(rule, events).decisions, dense.decide(rule, inputs).decisions
    )
    assert rule.class_names == ("top", "middle", "bottom")


@pytest.mark.parametrize("kind", ["deep", "deep-recurrent"])
def test_a_sensor_with_one_axis_and_real_values(kind: str) -> None:
    inputs, labels = toy()
    sensor = inputs.reshape(len(inputs), STEPS, 9) * np.float32(0.5)
    source: Any = (
        ag.networks.FullyConnected((9,), classes=3, hidden=(8,)) if kind == "deep" else Recurrent
    )
    ensemble = ag.ensembles.DeepEnsemble(source, members=2, device="cpu").fit(
        sensor, labels, epochs=2, progress=False
    )
    others, known = toy(80, seed=2)
    rule = rule_for(ensemble, others.reshape(len(others), STEPS, 9) * np.float32(0.5), known)
    run = ensemble.decide(rule, sensor)
    assert same_decisions(run.decisions, rule.decide(ensemble.score(sensor)))
    session, step = ensemble.live(rule), 0
    while session.push(frame=sensor[0, step]) is None:
        step += 1
    assert session.decision is not None and session.decision.index == run.decisions.stop_index[0]


@pytest.mark.parametrize("kind", ["fully-connected", "resnet18", "recurrent", "variational"])
def test_images_are_held_for_a_number_of_steps(kind: str) -> None:
    images, labels = pictures(40)
    if kind != "resnet18":
        images = images / np.float32(255)
    sources: dict[str, Any] = {
        "fully-connected": ag.networks.FullyConnected((3, 8, 8), 3, hidden=(8,)),
        "resnet18": ag.networks.ResNet18((3, 8, 8), 3, width=3, timed=4),
        "variational": ag.networks.ResNet18((3, 8, 8), 3, width=3),
        "recurrent": lambda: Recurrent(192),
    }
    make = ag.ensembles.VariationalEnsemble if kind == "variational" else ag.ensembles.DeepEnsemble
    ensemble = make(sources[kind], members=2, device="cpu")
    ensemble.fit(images[..., ::-1], labels, epochs=2, steps=6, batch_size=20, progress=False)
    assert len(ensemble.history) == 2
    scores = ensemble.score(images, labels, steps=6)
    assert scores.log_confidence.shape == (40, 6, 2, 3)
    rule = ag.AgreeStop(target=0.7, checkpoints=(2, 4, 6), max_set_size=2).calibrate(scores)
    assert same_decisions(ensemble.decide(rule, images, steps=6).decisions, rule.decide(scores))
    with pytest.raises(ag.InputError, match="leave steps out, or give images"):
        ensemble.score(np.repeat(images, 2, axis=1), steps=6)


def test_modules_that_are_trained_already_score_at_once() -> None:
    modules = [Recurrent().eval() for _ in range(2)]
    ensemble = ag.ensembles.DeepEnsemble(modules, device="cpu")
    inputs, labels = toy(20)
    scores = ensemble.score(inputs, labels)
    with torch.no_grad():
        state = None
        for frame in torch.from_numpy(inputs).float().unbind(1):
            output, state = modules[1](frame, state)
    np.testing.assert_allclose(
        scores.log_confidence[:, -1, 1], output.log_softmax(-1).numpy(), atol=1e-5
    )
    before = ensemble.digest
    with torch.no_grad():
        modules[0].read_out.bias.add_(1)
    assert ensemble.members == 2 and ensemble.digest != before


def test_live_needs_the_shape_of_the_inputs() -> None:
    ensemble, (inputs, labels) = ag.ensembles.DeepEnsemble([Recurrent(), Recurrent()]), toy(60)
    rule = rule_for(ag.ensembles.DeepEnsemble([Recurrent(), Recurrent()]), inputs, labels)
    with pytest.raises(ag.InputError, match="call score or decide once, then live"):
        ensemble.live(rule, any_members=True)
    ensemble.score(inputs)
    assert ensemble.live(rule, any_members=True).push(frame=inputs[0, 0]) is None


def test_modules_refuse_inputs_with_the_shape_that_was_given_and_not_that_of_a_batch() -> None:
    ensemble, (inputs, labels) = ag.ensembles.DeepEnsemble([Recurrent()]), toy(300)
    ensemble.score(inputs[:2])
    with pytest.raises(ag.InputError, match=r"inputs has shape \(300, "):
        ensemble.score(inputs[..., :2], labels)


@dataclass(frozen=True)
class OwnArchitecture:
    """An architecture of the user: two hidden layers of eight neurons."""

    input_shape: tuple[int, ...] = (1, 3, 3)
    classes: int = 3
    members: int = 1
    real_input: bool = False

    def layers(self) -> list[Any]:
        return ag.networks.FullyConnected(
            self.input_shape, self.classes, self.members, (8, 8)
        ).layers()


def test_an_architecture_of_the_user_trains_runs_and_is_saved(tmp_path: Path) -> None:
    inputs, labels = toy(40)
    ensemble = ag.ensembles.DeepEnsemble(OwnArchitecture(), members=2, device="cpu").fit(
        inputs, labels, epochs=1, progress=False
    )
    assert ensemble.engine.name == "dense" and "does not know OwnArchitecture" in repr(ensemble)
    ensemble.save(tmp_path / "own.safetensors")
    with pytest.raises(ag.InputError, match="the architecture OwnArchitecture"):
        ag.ensembles.load(tmp_path / "own.safetensors")
    loaded = ag.ensembles.load(tmp_path / "own.safetensors", network=OwnArchitecture())
    assert loaded.digest == ensemble.digest
    np.testing.assert_array_equal(
        loaded.score(inputs).log_confidence, ensemble.score(inputs).log_confidence
    )


def test_members_of_a_builder_differ_and_leave_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ensembles = [make("deep-recurrent").fit(*toy(), epochs=1, progress=False) for _ in range(2)]
    assert torch.equal(torch.rand(3), expected)
    assert ensembles[0].digest == ensembles[1].digest
    weights = [module.cell.weight_ih for module in ensembles[0].network.each]
    assert not torch.equal(weights[0], weights[1])


def test_a_rule_refuses_other_members_and_other_engines(trained: dict[str, Any]) -> None:
    ensemble, inputs = trained["deep"], toy(5, seed=3)[0]
    rule = rule_for(ensemble)
    other = make("deep").fit(*toy(), epochs=1, progress=False)
    with pytest.raises(ag.InputError, match="any_members"):
        other.decide(rule, inputs)
    with pytest.raises(ag.InputError, match="any_members"):
        other.live(rule)
    assert len(other.decide(rule, inputs, any_members=True).decisions) == 5
    assert other.live(rule, any_members=True).decision is None
    dense = make("deep", engine="dense" if ensemble.engine.name != "dense" else "event-driven").fit(
        *toy(), epochs=8, learning_rate=2e-2, kl_weight=0.1, progress=False
    )
    assert dense.digest == ensemble.digest
    with pytest.raises(ag.InputError, match="any_engine"):
        dense.decide(rule, inputs)
    dense.decide(rule, inputs, any_engine=True)


def test_members_that_change_after_calibration_are_refused() -> None:
    ensemble = make("deep", engine="dense").fit(*toy(), epochs=1, progress=False)
    rule, inputs = rule_for(ensemble), toy(5, seed=3)[0]
    ensemble.decide(rule, inputs)
    weights = next(cast(Any, ensemble.network).parameters())
    weights.data.mul_(-1)
    with pytest.raises(ag.InputError, match="any_members"):
        ensemble.decide(rule, inputs)


@pytest.mark.parametrize("engine", ["dense", "event-driven"])
def test_the_digest_is_that_of_the_weights_that_run(engine: str, tmp_path: Path) -> None:
    if engine != "dense":
        pytest.importorskip("numba", reason="the event-driven engine needs numba")
    ensemble, inputs = (
        make("deep", engine=engine).fit(*toy(), epochs=1, progress=False),
        toy(5, seed=3)[0],
    )
    rule, before = rule_for(ensemble), ensemble.score(inputs)
    first, kept = ensemble.decide(rule, inputs[:1]).decisions, ensemble.live(rule)
    next(cast(Any, ensemble.network).parameters()).data.mul_(-1)
    after = ensemble.score(inputs)
    assert ensemble.engine.copies_weights == (engine != "dense")
    assert ensemble.digest == after.ensemble_digest != before.ensemble_digest
    ensemble.save(tmp_path / "members")
    saved = ag.ensembles.load(tmp_path / "members", engine=engine)
    assert saved.digest == ensemble.digest and not np.array_equal(
        after.log_confidence, before.log_confidence
    )
    np.testing.assert_array_equal(saved.score(inputs).log_confidence, after.log_confidence)
    with pytest.raises(ag.InputError, match="any_members"):
        ensemble.decide(rule, inputs)
    with pytest.raises(ag.InputError, match="any_members"):
        ensemble.live(rule)
    if engine != "dense":  # an open session keeps what it began with
        decision = next(
            found for frame in inputs[0] if (found := kept.push(frame=frame)) is not None
        )
        assert (decision.time, list(decision.classes)) == (
            first.stop_index[0] + 1,
            np.flatnonzero(first.sets[0]).tolist(),
        )


def test_a_second_fit_starts_again(trained: dict[str, Any]) -> None:
    ensemble = make("deep").fit(*toy(), epochs=1, progress=False)
    assert (
        ensemble.fit(*toy(), epochs=8, learning_rate=2e-2, kl_weight=0.1, progress=False).digest
        == trained["deep"].digest
    )


def test_files_of_01_and_of_the_pipeline(trained: dict[str, Any], tmp_path: Path) -> None:
    deep, variational = trained["deep"], trained["variational"]
    new, _ = toy(10, seed=3)
    save_members(tmp_path / "members.safetensors", deep.network)
    loaded = ag.ensembles.load(tmp_path / "members.safetensors")
    assert isinstance(loaded, ag.ensembles.DeepEnsemble) and loaded.digest == deep.digest
    np.testing.assert_array_equal(loaded.score(new).log_confidence, deep.score(new).log_confidence)
    model = variational._posterior
    write_tensors(
        tmp_path / "posterior.safetensors",
        model.state_dict(),
        {"kind": "posterior", **network_settings(model)},
    )
    posterior = ag.ensembles.load(tmp_path / "posterior.safetensors")
    assert (
        isinstance(posterior, ag.ensembles.VariationalEnsemble)
        and posterior.fresh
        and posterior.members == 3
    )
    assert posterior.score(new).log_confidence.shape == (10, STEPS, 3, 3)
    with pytest.raises(ag.InputError, match="names its own network"):
        ag.ensembles.load(tmp_path / "members.safetensors", network=Recurrent)


def test_a_file_of_01_has_no_digest_and_a_changed_file_is_refused(
    trained: dict[str, Any], tmp_path: Path
) -> None:
    import json

    from safetensors.torch import load_file, save_file

    path = tmp_path / "members.safetensors"
    save_members(path, trained["deep"].network)
    tensors = load_file(path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]["agreestop"])
    digest = header.pop("digest")
    save_file(tensors, path, {"agreestop": json.dumps(header)})
    assert ag.ensembles.load(path).digest == trained["deep"].digest
    changed = {name: value + 1 for name, value in tensors.items()}
    save_file(changed, path, {"agreestop": json.dumps({**header, "digest": digest})})
    with pytest.raises(ag.InputError, match="its digest does not match"):
        ag.ensembles.load(path)
    write_tensors(path, {}, {"kind": "checkpoint"})
    with pytest.raises(ag.InputError, match="holds 'checkpoint'"):
        ag.ensembles.load(path)


def test_what_is_not_trained_says_so() -> None:
    ensemble, (inputs, _) = make("deep"), toy(4)
    rule = ag.AgreeStop(target=0.5, checkpoints=(1,), max_set_size=1).calibrate(
        np.zeros((9, 1, 3, 3)) - 1, np.zeros(9, int)
    )
    uses: list[Callable[[], object]] = [
        lambda: ensemble.score(inputs),
        lambda: ensemble.decide(rule, inputs),
        lambda: ensemble.live(rule),
        lambda: ensemble.save("nowhere"),
        lambda: make("variational").score(inputs),
    ]
    for use in uses:
        with pytest.raises(ag.InputError, match="call fit first"):
            use()
    assert "call fit first" in repr(ensemble)


def test_the_representation_names_kind_members_and_engine(trained: dict[str, Any]) -> None:
    text = repr(trained["deep"])
    assert text.startswith(
        f"<DeepEnsemble of 3 members, FullyConnected. The {trained['deep'].engine.name} engine was "
        "chosen since "
    )
    assert "Recurrent. The dense engine was chosen since " in repr(trained["deep-recurrent"])
    assert "The dense engine was named" in repr(
        ag.ensembles.DeepEnsemble([Recurrent()], engine="dense")
    )


def test_bad_input_gets_a_sentence(trained: dict[str, Any]) -> None:
    inputs, labels = toy(10)
    cases: list[tuple[Any, str]] = [
        (
            lambda: ag.ensembles.DeepEnsemble(Recurrent()),
            "network is one Recurrent: give settings .* a function that builds one",
        ),
        (
            lambda: ag.ensembles.DeepEnsemble(cast(Any, "resnet18")),
            "network is 'resnet18': give settings",
        ),
        (lambda: ag.ensembles.DeepEnsemble([]), r"network is \[\]: give settings"),
        (lambda: ag.ensembles.DeepEnsemble(NETWORK, members=0), "members is 0"),
        (lambda: ag.ensembles.DeepEnsemble(NETWORK, seed=-1), "seed is -1"),
        (lambda: ag.ensembles.DeepEnsemble(NETWORK, device="tpu"), "device is 'tpu'"),
        (
            lambda: ag.ensembles.VariationalEnsemble([Recurrent(), Recurrent()]),
            "drawn from one posterior",
        ),
        (
            lambda: ag.ensembles.DeepEnsemble(lambda: 3).fit(inputs, labels),  # type: ignore[arg-type, return-value]
            "the builder returned a int",
        ),
        (lambda: make("deep").fit(inputs), "there are no labels"),
        (lambda: make("deep").fit(inputs, labels[:-1]), "9"),
        (lambda: make("deep").fit(inputs, labels + 1), "labels"),
        (lambda: make("deep").fit(inputs[:, :, 0], labels), r"the network takes \(n, T, 1, 3, 3\)"),
        (lambda: make("deep").fit(inputs[:0], labels[:0]), "x holds no inputs"),
        (lambda: make("deep").fit(np.full(inputs.shape, np.nan), labels), "x holds"),
        (lambda: make("deep").fit(inputs, labels, epochs=0), "epochs is 0"),
        (lambda: make("deep").fit(inputs, labels, steps=4), "leave steps out"),
        (
            lambda: make("deep").fit(ag.events.Events.from_dense(inputs, labels, tuple("abcd"))),
            "x names 4 classes",
        ),
        (lambda: trained["deep"].decide(ag.AgreeStop(0.9, (1, 2), 1), inputs), "is not calibrated"),
        (lambda: trained["deep"].score(inputs, labels + 5), "labels"),
    ]
    for use, match in cases:
        with pytest.raises(ag.InputError, match=match):
            use()
