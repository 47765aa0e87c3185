"""The training loop on held images: it learns, it resumes, and batch normalisation gets statistics
of later steps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need PyTorch")

import agreestop as ag
from agreestop.ensembles.images import ImageTraining, augmented, reestimate_batchnorm
from agreestop.ensembles.training import TrainableMembers, train
from agreestop.networks import SRM, Posterior, ResNet18, SpikingNetwork
from agreestop.networks.architectures import QUICK
from agreestop.networks.layers import MemberBatchNorm2d, SpikingLayer
from agreestop.networks.neurons import steady_rates

CONFIG = ResNet18((3, 8, 8), 3, 1, width=3, timed=4)
SETTINGS = ImageTraining(rate_epochs=2, epochs=2, batch_size=16, horizons=(1, 2))


def pictures(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Noise with one bright colour channel, which is the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    images = rng.integers(0, 90, size=(n, 1, 3, 8, 8))
    for row, label in enumerate(labels):
        images[row, :, label] += 150
    return images.astype(np.uint8), labels


def members(config: ResNet18, seed: int) -> TrainableMembers[SpikingNetwork]:
    return TrainableMembers(SpikingNetwork(config, torch.Generator().manual_seed(seed)))


def deep(seed: int = 0) -> TrainableMembers[SpikingNetwork]:
    return members(CONFIG, seed)


def test_it_learns_and_the_network_runs_longer_than_it_was_trained() -> None:
    images, labels = pictures(192)
    model = members(replace(CONFIG, width=12), 2)
    epochs: list[int] = []
    settings = ImageTraining(
        rate_epochs=10,
        rate_learning_rate=0.03,
        epochs=5,
        learning_rate=0.02,
        batch_size=24,
        horizons=(2,),
    )
    history = train(
        model, images, labels, settings, on_epoch=lambda epoch, figures: epochs.append(epoch)
    )
    assert epochs == list(range(15)) and history[9].accuracy > 0.8 and history[-1].accuracy > 0.8
    reestimate_batchnorm(model, images, 4, batches=3, batch_size=48)
    new, truth = pictures(90, 1)
    with torch.no_grad():
        spikes, _ = model.network.eval()(torch.from_numpy(new).transpose(0, 1).float(), steps=12)
    assert (spikes[:, 0].sum(0).argmax(-1).numpy() == truth).mean() > 0.7
    assert not any(module.rates for module in model.network.modules() if isinstance(module, SRM))


def test_a_killed_run_continues_to_the_same_numbers(tmp_path: Path) -> None:
    images, labels = pictures(40)
    whole, stopped = deep(), deep()
    expected = train(whole, images, labels, SETTINGS)

    def kill(epoch: int, figures: object) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, images, labels, SETTINGS, tmp_path / "run", kill)
    resumed = deep(seed=5)
    assert train(resumed, images, labels, SETTINGS, tmp_path / "run") == expected
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)


def test_a_posterior_learns_too() -> None:
    images, labels = pictures(48)
    posterior = Posterior(CONFIG, torch.Generator().manual_seed(0), initial_deviation=0.1)
    history = train(
        posterior, images, labels, replace(SETTINGS, kl_weight=1e-4, learning_rate=1e-3)
    )
    assert history[-1].divergence > 0 and np.isfinite(history[-1].loss)
    reestimate_batchnorm(posterior, images, 4, batches=2, batch_size=24)
    drawn = posterior.eval().with_members(3).members(torch.Generator().manual_seed(1))
    assert drawn.members == 3


def test_images_are_flipped_and_shifted() -> None:
    images = torch.arange(2 * 3 * 6 * 6).view(2, 3, 6, 6).float()
    seen = set()
    for seed in range(40):
        changed = augmented(images, torch.Generator().manual_seed(seed))
        assert changed.shape == images.shape and set(changed[0, 0].flatten().tolist()) <= set(
            images[0, 0].flatten().tolist()
        )
        rows = changed[1, 2].diff(dim=0)
        columns = changed[1, 2].diff(dim=1)
        assert set(rows.abs().flatten().tolist()) <= {6.0} and set(
            columns.abs().flatten().tolist()
        ) <= {1.0}
        seen.add(tuple(changed[0, 0].flatten().tolist()))
    assert len(seen) > 20


@pytest.mark.parametrize("timed", (0, 3))
def test_batch_normalisation_gets_the_statistics_of_the_images(timed: int) -> None:
    """The statistics of the first normalisation can be computed by hand: one batch holds all
    images, and all steps see the same.
    """
    images, _ = pictures(20)
    model = members(replace(CONFIG, timed=timed), 0)
    stem = model.network.layers[0]
    assert isinstance(stem, SpikingLayer) and stem.norm is not None
    reestimate_batchnorm(model, images, 3, batch_size=20, batches=1)
    with torch.no_grad():
        currents = stem.synapses(torch.from_numpy(images).transpose(0, 1).float())
    mean = stem.norm.running_mean[:, 0] if timed else stem.norm.running_mean
    torch.testing.assert_close(mean[0], currents.mean((0, 1, 2, 4, 5)), rtol=1e-4, atol=1e-3)
    deeper = model.network.layers[2]
    assert isinstance(deeper, SpikingLayer) and isinstance(deeper.norm, MemberBatchNorm2d)
    if timed:
        assert not torch.allclose(deeper.norm.running_mean[:, 0], deeper.norm.running_mean[:, 2])


def test_firing_rates_are_those_that_spikes_converge_to() -> None:
    layer = SRM(1, QUICK)
    currents = torch.linspace(0, 1.2, 61).view(1, 1, 61)
    rates = steady_rates(currents, layer.parameters_for(currents))
    spikes, _ = layer(currents.expand(4000, -1, -1))
    late = spikes[1000:].mean(0)
    assert float((late - rates[0]).abs().max()) < 0.2  # spikes lock to whole fractions of a step
    assert float((late - rates[0]).abs().mean()) < 0.06
    assert rates.min() == 0 and rates.max() == 1


def test_bad_input_is_refused() -> None:
    images, labels = pictures(20)
    with pytest.raises(ag.InputError, match=r"\(n, 1, channels, H, W\) with at least"):
        train(deep(), images[:, 0], labels, SETTINGS)
    with pytest.raises(ag.InputError, match="give a positive number"):
        ImageTraining(learning_rate=0)
    with pytest.raises(ag.InputError, match=r"horizons is \(\)"):
        ImageTraining(horizons=())
    assert isinstance(deep().network, SpikingNetwork)


def test_every_other_batch_of_the_last_horizon_trains_on_the_steps_after_a_burn_in() -> None:
    settings = replace(SETTINGS, burn_in=3)
    assert [[settings.skipped(epoch, batch) for batch in range(3)] for epoch in range(4)] == [
        [0] * 3
    ] * 3 + [[0, 3, 0]]
    images, labels = pictures(40)
    without, with_burn_in = deep(), deep()
    train(without, images, labels, SETTINGS)
    train(with_burn_in, images, labels, settings)
    before, after = (next(model.parameters()) for model in (without, with_burn_in))
    assert bool(torch.isfinite(after).all()) and not torch.equal(before, after)


@pytest.mark.parametrize("kind", ["deep", "variational"])
def test_a_burn_in_changes_no_spike_and_has_no_gradient(kind: str) -> None:
    model: Any = (
        deep() if kind == "deep" else Posterior(CONFIG, torch.Generator().manual_seed(0))
    ).eval()
    for name, value in model.named_parameters():
        if "norm.bias" in name:
            value.data.fill_(1.0)
    read_out = next(
        value
        for name, value in model.named_parameters()
        if name.endswith("layers.17.synapses.weight")
    )
    read_out.data.fill_(1.0)
    image = torch.rand(1, 5, 3, 8, 8) * 3
    whole = model.read_out(image, torch.Generator().manual_seed(1), 6)
    parted = model.read_out(image, torch.Generator().manual_seed(1), 6, 4)
    assert torch.equal(whole, parted) and bool(whole.any())
    trained = [value for value in model.parameters() if value.requires_grad]
    first = torch.autograd.grad(parted[:4].sum(), trained, allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in first)


def test_a_negative_burn_in_gets_a_sentence() -> None:
    with pytest.raises(ag.InputError, match="burn_in"):
        replace(SETTINGS, burn_in=-1)
