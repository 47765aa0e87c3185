"""The posterior: its divergence equals PyTorch's, and drawn members compute the same as a pass of
the posterior.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

from torch.distributions import Normal, kl_divergence

import agreestop as ag
from agreestop.networks import Convolutional, FullyConnected, Posterior
from agreestop.networks.posteriors import PRIOR_VARIANCE

CONFIG = FullyConnected((1, 4, 4), 3, members=5, hidden=(8,))


def posterior(config: FullyConnected | Convolutional = CONFIG) -> Posterior:
    return Posterior(config, torch.Generator().manual_seed(0))


def test_the_divergence_equals_that_of_torch() -> None:
    model = posterior()
    expected = sum(
        kl_divergence(
            Normal(mean, model.log_deviation[name.replace(".", "/")].exp()),
            Normal(0.0, math.sqrt(PRIOR_VARIANCE)),
        ).sum()
        for name, mean in model.mean.named_parameters()
    )
    torch.testing.assert_close(model.penalty(), expected)


def test_draws_have_the_mean_and_deviation_of_the_posterior() -> None:
    model = posterior(FullyConnected((1, 4, 4), 3, members=4000, hidden=(8,)))
    name = "layers.0.synapses.weight"
    drawn = model.draw(torch.Generator().manual_seed(1))[name]
    deviation = model.log_deviation[name.replace(".", "/")].exp()
    assert drawn.shape == (4000, 16, 8)
    assert (
        (drawn.mean(0) - model.mean.get_parameter(name)[0]).abs()
        < 6 * deviation[0] / math.sqrt(4000)
    ).all()
    torch.testing.assert_close(drawn.std(0), deviation[0], rtol=0.1, atol=0)


@pytest.mark.parametrize(
    "config", [CONFIG, Convolutional((1, 4, 4), 3, members=2, channels=(4,), hidden=(5,))]
)
def test_members_compute_the_same_as_a_pass_with_the_same_noise(
    config: FullyConnected | Convolutional,
) -> None:
    model = posterior(config).eval()
    x = torch.rand((6, 7, 1, 4, 4), generator=torch.Generator().manual_seed(2)).round()
    passed = model.read_out(x, torch.Generator().manual_seed(3))
    network = model.members(torch.Generator().manual_seed(3))
    assert torch.equal(passed, network(x)[0])
    assert not any(value.requires_grad and value.grad_fn for value in network.parameters())


def test_one_draw_serves_the_whole_sequence() -> None:
    """A drawn member gives the same spikes for two halves of a sequence as for the whole, so
    nothing is drawn in between.
    """
    network = posterior().members(torch.Generator().manual_seed(4))
    x = torch.rand((10, 3, 1, 4, 4), generator=torch.Generator().manual_seed(5)).round()
    whole, _ = network(x)
    first, state = network(x[:4])
    second, _ = network(x[4:], state)
    assert torch.equal(whole, torch.cat([first, second]))


def test_gradients_reach_means_and_deviations() -> None:
    model = posterior()
    x = torch.ones((8, 4, 1, 4, 4))
    total: Any = model.read_out(x, torch.Generator().manual_seed(0)).sum() + model.penalty()
    total.backward()
    trained = [value for value in model.parameters() if value.requires_grad]
    assert len(trained) == 4
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in trained)


@pytest.mark.parametrize("settings", [{"prior_variance": 0.0}, {"initial_deviation": math.inf}])
def test_wrong_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ag.InputError, match="give a positive, finite number"):
        Posterior(CONFIG, torch.Generator(), **settings)
