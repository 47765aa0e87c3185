"""Variational inference: a Gaussian over every synaptic weight, from which members are drawn.

    q(θ) = N(μ, ζ²),  prior N(0, σ²),  σ² = 0.03
    ELBO loss = E_q[log-loss] + KL(q ‖ prior)/N,     KL = Σ ½ [ (ζ² + μ²)/σ² - 1 - log(ζ²/σ²) ]

Weights are drawn by reparameterisation, θ = μ + ζ·ε, **once for each pass over a whole sequence**: weights redrawn at every step would be
another model. Batch normalisation and learned time constants, where an architecture has them, are point estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from agreestop.common.errors import InputError

from .architectures import Architecture, SpikingNetwork, State

PRIOR_VARIANCE = 0.03


def read_out(network: Callable[..., tuple[Tensor, State]], x: Tensor, steps: int | None, burn_in: int) -> Tensor:
    """Read-out spikes of a network; those of the first `burn_in` steps of an image, which is held for `steps`, have no gradient."""
    if not burn_in or steps is None:
        return network(x, None, steps)[0]
    with torch.no_grad():
        first, state = network(x, None, burn_in)
    return torch.cat([first, network(x, state, steps - burn_in)[0]])


@final
class Posterior(nn.Module):
    """μ and log ζ of every synaptic weight of one network; `config.members` is how many members are drawn together.

    initial_deviation is ζ at the start, as a share of the deviation of the initial weights of the same layer.
    """

    def __init__(
        self,
        config: Architecture,
        generator: torch.Generator,
        deviation: float | None = None,
        prior_variance: float = PRIOR_VARIANCE,
        initial_deviation: float = 0.3,
    ) -> None:
        super().__init__()
        for name, value in (("prior_variance", prior_variance), ("initial_deviation", initial_deviation)):
            if not 0 < value < math.inf:
                raise InputError(f"{name} is {value!r}: give a positive, finite number.")
        self.config, self.prior_variance = config, prior_variance
        self.mean = SpikingNetwork(replace(config, members=1), generator, deviation)
        self.log_deviation = nn.ParameterDict(
            {
                _key(name): nn.Parameter(torch.full_like(value, math.log(initial_deviation * float(value.detach().std()))))
                for name, value in self._weights()
            }
        )
        self.frame = SpikingNetwork(config, torch.Generator().manual_seed(0))  # lends its shape; its weights are never used
        for parameter in self.frame.parameters():
            parameter.requires_grad_(False)

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, value) for name, value in self.mean.named_parameters() if name.endswith("synapses.weight") or ".shortcut.0." in name]

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters of K members, the member axis first: weights θ = μ + ζ·ε, point estimates repeated."""
        members = self.config.members
        drawn = {name: value.expand(members, *value.shape[1:]) for name, value in self.mean.named_parameters()}
        for name, mean in self._weights():
            noise = torch.randn((members, *mean.shape[1:]), generator=generator, device=mean.device, dtype=mean.dtype)
            drawn[name] = mean + self.log_deviation[_key(name)].exp() * noise
        return drawn

    def read_out(self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0) -> Tensor:
        """Read-out spikes (T, K, batch, C) of K fresh members, each one draw for the whole sequence.

        steps: for how many an image is held. burn_in: of these, how many come first, without gradient.
        """
        weights = self.draw(generator)
        return read_out(lambda *given: functional_call(self.frame, weights, given), x, steps, burn_in)

    def divergence(self) -> Tensor:
        """KL(q ‖ prior) in nats."""
        total = torch.zeros((), device=next(self.mean.parameters()).device)
        for name, mean in self._weights():
            log_deviation = self.log_deviation[_key(name)]
            ratio = ((2 * log_deviation).exp() + mean**2) / self.prior_variance
            total = total + 0.5 * (ratio - 1 - 2 * log_deviation + math.log(self.prior_variance)).sum()
        return total

    def penalty(self) -> Tensor | None:
        """What the ELBO adds to the log-loss, before it is divided by the number of training examples."""
        return self.divergence()

    def with_members(self, members: int) -> Posterior:
        """The same posterior, from which another number of members is drawn together."""
        other = Posterior(replace(self.config, members=members), torch.Generator().manual_seed(0), None, self.prior_variance)
        other.mean.load_state_dict(self.mean.state_dict())
        other.log_deviation.load_state_dict(self.log_deviation.state_dict())
        buffers = dict(self.frame.named_buffers())
        for name, value in other.frame.named_buffers():
            value.copy_(buffers[name].mean(0, keepdim=True).expand_as(value))
        return other.train(self.training)

    def members(self, generator: torch.Generator) -> SpikingNetwork:
        """K members drawn once, as a network of their own."""
        network = SpikingNetwork(self.config, torch.Generator().manual_seed(0))
        state: dict[str, Any] = {name: value.detach() for name, value in self.draw(generator).items()}
        for name, value in self.frame.named_buffers():
            state[name] = value.detach().mean(0, keepdim=True).expand_as(value)
        network.load_state_dict({name: value.clone() for name, value in state.items()})
        return network.train(self.training)


def _key(name: str) -> str:
    return name.replace(".", "/")
