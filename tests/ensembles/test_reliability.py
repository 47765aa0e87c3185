"""Files of ensembles and training: one changed bit is noticed, and nothing continues or is used
that does not belong together.
"""

from __future__ import annotations

import json
import resource
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import agreestop as ag
from agreestop.ensembles.files import UnusableFile, write_tensors
from agreestop.networks import Neuron
from agreestop.networks.digests import digest_of, network_settings
from tests.ensembles.test_ensembles import NETWORK, Recurrent, make
from tests.ensembles.test_training import toy


class Leaky(nn.Module):
    """A leaky read-out with dropout; `decay` is a plain attribute."""

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay, self.synapses, self.drop = decay, nn.Linear(9, 3), nn.Dropout(0.3)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        current = self.drop(self.synapses(x.flatten(1)))
        output = current if state is None else self.decay * state + current
        return output, output


class Rectified(Leaky):
    """The same parameters, and another forward pass."""

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        output, state = super().forward(x, state)
        return output.relu(), state


def deep(network: Any, **settings: Any) -> ag.ensembles.DeepEnsemble:
    return ag.ensembles.DeepEnsemble(network, members=2, device="cpu", **settings)


def variational(**settings: Any) -> ag.ensembles.VariationalEnsemble:
    return ag.ensembles.VariationalEnsemble(NETWORK, members=2, device="cpu", **settings)


def continued(first: Any, second: Any, path: Path, examples: Any = None) -> None:
    """Train one ensemble with a checkpoint, and then another one with the same file."""
    first.fit(*toy(30), epochs=2, checkpoint=path, progress=False)
    second.fit(*(examples or toy(30)), epochs=2, checkpoint=path, progress=False)


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (
            lambda: deep(NETWORK),
            lambda: deep(replace(NETWORK, neuron=Neuron(threshold=0.7))),
            "other network settings",
        ),
        (variational, lambda: variational(prior_variance=1.0), "other network settings"),
        (variational, lambda: variational(initial_deviation=0.1), "other network settings"),
        (lambda: deep(Leaky), lambda: deep(Rectified), "other network settings"),
        (lambda: deep(Leaky), lambda: deep(lambda: Leaky(0.5)), "other network settings"),
        (lambda: deep(Leaky), lambda: deep(Leaky, seed=1), "other training settings"),
    ],
)
def test_a_checkpoint_of_another_network_is_refused(
    first: Any, second: Any, match: str, tmp_path: Path
) -> None:
    with pytest.raises(ag.InputError, match=match):
        continued(first(), second(), tmp_path / "run.safetensors")


def test_a_checkpoint_of_other_examples_is_refused(tmp_path: Path) -> None:
    inputs, labels = toy(30)
    changed = inputs.copy()
    changed[3, 2, 0, 1, 1] ^= True
    with pytest.raises(ag.InputError, match="made with other examples"):
        continued(deep(NETWORK), deep(NETWORK), tmp_path / "run.safetensors", (changed, labels))


def test_dropout_follows_from_seed_and_epoch(tmp_path: Path) -> None:
    """A resumed training draws what an uninterrupted one draws, and torch's own random numbers stay
    as they were.
    """
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    whole = deep(Leaky).fit(*toy(30), epochs=3, progress=False)
    assert torch.equal(torch.rand(2), expected)

    def stop(what: str, share: float) -> None:
        if what.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deep(Leaky).fit(*toy(30), epochs=3, checkpoint=tmp_path / "run", progress=stop)
    torch.manual_seed(99)
    assert (
        deep(Leaky).fit(*toy(30), epochs=3, checkpoint=tmp_path / "run", progress=False).digest
        == whole.digest
    )


def test_modules_are_not_left_in_training_mode_by_an_interrupted_fit() -> None:
    modules = [Leaky(), Leaky()]
    ensemble = ag.ensembles.DeepEnsemble(modules, device="cpu")

    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensemble.fit(*toy(30), epochs=2, progress=stop)
    assert not any(part.training for module in modules for part in module.modules())


def test_the_digest_covers_what_modules_compute_and_does_not_change_with_use() -> None:
    inputs, _ = toy(4)
    made = {}
    for name, module in (
        ("plain", Leaky()),
        ("same", Leaky()),
        ("decay", Leaky(0.5)),
        ("forward", Rectified()),
    ):
        with torch.no_grad():
            for value in module.parameters():
                value.fill_(0.1)
        ensemble = ag.ensembles.DeepEnsemble([module], device="cpu")
        made[name] = ensemble.digest
        ensemble.score(inputs)
        assert ensemble.digest == made[name]
    assert made["plain"] == made["same"] and len(set(made.values())) == 3


def test_the_digest_of_tensors_covers_their_names_dtypes_and_shapes() -> None:
    zeros = torch.zeros(6)
    tensors = (
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.int()},
        {"a": zeros.view(2, 3)},
        {"a": zeros.view(3, 2)},
        {"a": zeros + 1},
    )
    assert (
        len({digest_of(each, settings) for each in tensors for settings in ({}, {"seed": 1})}) == 12
    )


def test_as_many_members_as_modules() -> None:
    with pytest.raises(ag.InputError, match="members is 5, but network is a list of 2"):
        ag.ensembles.DeepEnsemble([Recurrent(), Recurrent()], members=5)
    assert ag.ensembles.DeepEnsemble([Recurrent(), Recurrent()], members=2).members == 2
    assert ag.ensembles.DeepEnsemble(NETWORK).members == 6


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True])
def test_seeds_are_whole_numbers_below_2_to_63(seed: Any) -> None:
    with pytest.raises(ag.InputError, match="seed is"):
        ag.ensembles.DeepEnsemble(NETWORK, seed=seed)


@pytest.mark.parametrize("device", ["gpu", "banana", "cpu:x", "cuda:99", 3])
def test_a_device_that_is_not_there_gets_a_sentence(device: Any) -> None:
    with pytest.raises(ag.InputError, match="device is"):
        ag.ensembles.VariationalEnsemble(NETWORK, device=device)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each kind that one small training makes."""
    folder = tmp_path_factory.mktemp("files")
    for kind in ("deep", "variational"):
        checkpoint = folder / f"{kind}.checkpoint"
        make(kind).fit(*toy(20), epochs=1, checkpoint=checkpoint, progress=False).save(
            folder / f"{kind}.safetensors"
        )
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["deep.safetensors", "variational.safetensors", "deep.checkpoint"])
def test_one_flipped_bit_is_refused(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """In the header, in its length, and in the tensors."""
    whole, path = files[name].read_bytes(), tmp_path / name
    rng = np.random.default_rng(0)
    digest = whole.index(b"digest")
    indices = [(at, bit) for at in range(digest, digest + 6) for bit in range(8)]
    for at, bit in (
        *indices,
        *zip(
            (*range(12), *rng.integers(len(whole), size=80)),
            rng.integers(8, size=92).tolist(),
            strict=True,
        ),
    ):
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        with pytest.raises(ag.InputError) as caught:
            if name.endswith("checkpoint"):
                make("deep").fit(*toy(20), epochs=1, checkpoint=path, progress=False)
            else:
                ag.ensembles.load(path)
        assert len(str(caught.value)) < 300 + len(str(path)) and str(caught.value).isprintable()


def changed_header(path: Path, change: Any) -> None:
    """Rewrite the header of a file, with a digest that fits."""
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]["agreestop"])
    header.pop("digest")
    changed = change(header)
    if isinstance(changed, dict):
        write_tensors(path, load_file(path), changed)
    else:
        save_file(load_file(path), path, {"agreestop": json.dumps(changed)})


@pytest.mark.parametrize(
    "change",
    [
        lambda header: [header],
        lambda header: 3,
        lambda header: {**header, "kind": ["ensemble"]},
        lambda header: {**header, "kind": "x" * 9999},
        lambda header: {**header, "network": []},
        lambda header: {**header, "network": {"architecture": []}},
        lambda header: {**header, "network": {**header["network"], "settings": 3}},
        lambda header: {
            **header,
            "network": {
                **header["network"],
                "settings": {**header["network"]["settings"], "neuron": [1]},
            },
        },
        lambda header: {
            **header,
            "network": {
                **header["network"],
                "settings": {**header["network"]["settings"], "hidden": [10**7]},
            },
        },
        lambda header: {**header, "members": 10**9},
        lambda header: {**header, "members": "six"},
        lambda header: {**header, "history": [3]},
        lambda header: {**header, "history": 3},
        lambda header: {**header, "class_names": 3},
        lambda header: {**header, "seed": -4},
    ],
)
def test_a_header_of_other_types_or_sizes_is_refused_at_once(
    change: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "forged.safetensors"
    path.write_bytes(files["deep.safetensors"].read_bytes())
    changed_header(path, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ag.InputError) as caught:
        ag.ensembles.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert len(str(caught.value)) < 300 + len(str(path))


def test_scores_are_no_members(tmp_path: Path) -> None:
    ag.save_scores(tmp_path / "scores.npz", ag.simulate_scores(5, steps=2))
    with pytest.raises(ag.InputError, match="holds no members"):
        ag.ensembles.load(tmp_path / "scores.npz")


def test_a_rule_is_no_file_of_members(tmp_path: Path) -> None:
    rule = ag.AgreeStop(0.9, (1, 2), 1).calibrate(ag.simulate_scores(20, steps=2))
    rule.save(tmp_path / "rule")
    with pytest.raises(ag.InputError, match="rule is a rule file and holds no members"):
        ag.ensembles.load(tmp_path / "rule")


def test_a_header_of_great_depth_or_length_is_refused(tmp_path: Path) -> None:
    for header in ("[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000):
        text = json.dumps({"__metadata__": {"agreestop": header}}).encode()
        (tmp_path / "deep").write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(ag.InputError, match="is damaged or is no agreestop file"):
            ag.ensembles.load(tmp_path / "deep")
    (tmp_path / "long").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(ag.InputError, match="is damaged or is no agreestop file"):
        ag.ensembles.load(tmp_path / "long")


@pytest.mark.parametrize(
    "change", [{"history": None}, {"key": None}, {"history": [{"loss": "much"}]}, {"key": "old"}]
)
def test_a_checkpoint_without_its_history_is_refused(
    change: dict[str, Any], files: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(files["deep.checkpoint"].read_bytes())
    changed_header(
        path,
        lambda header: {
            name: value for name, value in (header | change).items() if value is not None
        },
    )
    with pytest.raises(UnusableFile, match="remove it, and training starts again"):
        make("deep").fit(*toy(20), epochs=1, checkpoint=path, progress=False)


def test_a_file_that_is_no_checkpoint_is_not_overwritten(
    files: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "mine"
    network = make("deep").fit(*toy(20), epochs=1, progress=False).network
    write_tensors(path, network.state_dict(), {"kind": "members", **network_settings(network)})
    whole = path.read_bytes()
    with pytest.raises(ag.InputError, match="holds 'members', but 'checkpoint'") as caught:
        make("deep").fit(*toy(20), epochs=1, checkpoint=path, progress=False)
    assert not isinstance(caught.value, UnusableFile) and path.read_bytes() == whole
