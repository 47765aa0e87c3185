"""Variational inference: a Gaussian over every weight, from which members are drawn.

    q(θ) = N(μ, ζ²),  prior N(0, σ²),  σ² = 0.03
    ELBO loss = E_q[log-loss] + KL(q ‖ prior)/N,     KL = Σ ½ [ (ζ² + μ²)/σ² - 1 - log(ζ²/σ²) ]

Weights are drawn by reparameterisation, θ = μ + ζ·ε, **once for each pass over a whole sequence**.
Weights drawn at every step would be another model. Parameters that are not weights, such as those
of batch norm and learned time constants, are point estimates.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from agreestop.common import InputError, as_count, as_shape, is_number

from .architectures import Architecture, SpikingNetwork
from .modules import ModuleMembers, Output, check_output, count_classes, run_steps

PRIOR_VARIANCE = 0.03


def read_out(
    network: Callable[..., tuple[Tensor, Any]],
    x: Tensor,
    steps: int | None,
    burn_in: int,
    **options: Any,
) -> Tensor:
    """Outputs (T, K, batch, C) of a network.

    For an image held for `steps`, the first `burn_in` steps have no gradient.

    options: what a call receives that starts from rest and after which nothing follows.
    """
    if not burn_in or steps is None:
        return network(x, None, steps, **options)[0]
    with torch.no_grad():
        first, state = network(x, None, burn_in)
    return torch.cat([first, network(x, state, steps - burn_in)[0]])


Weights = Sequence[tuple[str, nn.Parameter]]
"""Names and means μ of the weights that are drawn."""


def _key(name: str) -> str:
    return name.replace(".", "/")  # a ParameterDict allows no dots


def _initial_log_deviations(
    weights: Weights, prior_variance: float, share: float
) -> nn.ParameterDict:
    """log ζ of every weight: a share of the standard deviation of its tensor, or of the prior's
    if its tensor is constant.
    """
    for name, value in (("prior_variance", prior_variance), ("initial_deviation", share)):
        if not is_number(value) or value <= 0:
            raise InputError(f"{name} is {value!r}: give a positive, finite number.")
    deviations = {
        name: float(mean.detach().std(correction=min(1, mean.numel() - 1)))
        for name, mean in weights
    }
    return nn.ParameterDict(
        {
            _key(name): nn.Parameter(
                torch.full_like(
                    mean, math.log(share * (deviations[name] or math.sqrt(prior_variance)))
                )
            )
            for name, mean in weights
        }
    )


def _draw(
    mean: Tensor, log_deviation: Tensor, shape: Sequence[int], generator: torch.Generator
) -> Tensor:
    noise = torch.randn(tuple(shape), generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + log_deviation.exp() * noise


def _divergence(
    weights: Weights, log_deviations: nn.ParameterDict, prior_variance: float
) -> Tensor:
    """KL(q ‖ prior) in nats."""
    total = torch.zeros((), device=weights[0][1].device)
    for name, mean in weights:
        log_deviation = log_deviations[_key(name)]
        ratio = ((2 * log_deviation).exp() + mean**2) / prior_variance
        total = total + 0.5 * (ratio - 1 - 2 * log_deviation + math.log(prior_variance)).sum()
    return total


@final
class Posterior(nn.Module):
    """μ and log ζ of every synaptic weight of a spiking network.

    `config.members` members are drawn together.

    initial_deviation is the initial ζ, as a share of the standard deviation of the initial weights
    of the same layer. Attributes: `member_count`, the number of members K that are drawn together;
    the number of `classes` C; `input_shape`, the shape of one input at one time step.
    """

    output: Output = "spikes"

    def __init__(
        self,
        config: Architecture,
        generator: torch.Generator,
        deviation: float | None = None,
        prior_variance: float = PRIOR_VARIANCE,
        initial_deviation: float = 0.3,
    ) -> None:
        super().__init__()
        self.config = config
        self.prior_variance = prior_variance
        self.initial_deviation = initial_deviation
        self.member_count, self.classes = config.members, config.classes
        self.input_shape, self.real_input = config.input_shape, config.real_input
        self.mean = SpikingNetwork(replace(config, members=1), generator, deviation)
        self.log_deviation = _initial_log_deviations(
            self._weights(), prior_variance, initial_deviation
        )
        # runs with drawn weights; its own are never used
        self.frame = SpikingNetwork(config, torch.Generator().manual_seed(0))
        for parameter in self.frame.parameters():
            parameter.requires_grad_(False)

    def _weights(self) -> Weights:
        return [
            (name, value)
            for name, value in self.mean.named_parameters()
            if name.endswith("synapses.weight") or ".shortcut.0." in name
        ]

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters of K members, with the member as first axis: weights θ = μ + ζ·ε, and
        copies of the point estimates.
        """
        members = self.config.members
        drawn = {
            name: value.expand(members, *value.shape[1:])
            for name, value in self.mean.named_parameters()
        }
        for name, mean in self._weights():
            drawn[name] = _draw(
                mean, self.log_deviation[_key(name)], (members, *mean.shape[1:]), generator
            )
        return drawn

    def read_out(
        self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0
    ) -> Tensor:
        """Read-out spikes (T, K, batch, C) of K newly drawn members.

        Each member is one draw for the whole sequence.

        steps: the number of steps for which an image is held. burn_in: the number of first steps
        without gradient.
        """
        weights = self.draw(generator)
        run = lambda *given, **options: functional_call(self.frame, weights, given, options)  # noqa: E731
        return read_out(run, x, steps, burn_in, keep_state=False)

    def penalty(self) -> Tensor:
        """KL(q ‖ prior) in nats.

        The ELBO adds it to the log-loss, divided by the number of training examples.
        """
        return _divergence(self._weights(), self.log_deviation, self.prior_variance)

    def with_members(self, members: int) -> "Posterior":
        """The same posterior, from which another number of members is drawn together."""
        other = Posterior(
            replace(self.config, members=members),
            torch.Generator().manual_seed(0),
            None,
            self.prior_variance,
        )
        other.mean.load_state_dict(self.mean.state_dict())
        other.log_deviation.load_state_dict(self.log_deviation.state_dict())
        buffers = dict(self.frame.named_buffers())
        for name, value in other.frame.named_buffers():
            value.copy_(buffers[name].mean(0, keepdim=True).expand_as(value))
        return other.train(self.training)

    def members(self, generator: torch.Generator) -> SpikingNetwork:
        """K members drawn once, as a network."""
        network = SpikingNetwork(self.config, torch.Generator().manual_seed(0))
        state: dict[str, Any] = {
            name: value.detach() for name, value in self.draw(generator).items()
        }
        for name, value in self.frame.named_buffers():
            state[name] = value.detach().mean(0, keepdim=True).expand_as(value)
        network.load_state_dict({name: value.clone() for name, value in state.items()})
        return network.train(self.training)


@final
class ModulePosterior(nn.Module):
    """μ and log ζ of the weights of a module of the user, `(x_t, state) -> (output, state)` as in
    `ModuleMembers`.

    Its methods are those of `Posterior`. Parameters with two axes or more are weights. All others
    are point estimates. The module holds μ; it is trained in place.
    member_count: the number of members K that are drawn together. output and input_shape: as in
    `ModuleMembers`.
    """

    real_input = True  # modules take any numbers

    def __init__(
        self,
        module: nn.Module,
        member_count: int,
        output: str = "logits",
        input_shape: Sequence[int] | int | None = None,
        prior_variance: float = PRIOR_VARIANCE,
        initial_deviation: float = 0.3,
    ) -> None:
        super().__init__()
        self.mean, self.member_count = module, as_count(member_count, "member_count")
        self.prior_variance, self.initial_deviation = prior_variance, initial_deviation
        self.output: Output = check_output(output)
        self.input_shape = None if input_shape is None else as_shape(input_shape, "input_shape")
        self._classes: int | None = None
        if not isinstance(module, nn.Module) or not self._weights():
            raise InputError(
                f"the module, a {type(module).__name__}, has no trainable parameter with two axes "
                "or more, so there are no weights to draw: use a deep ensemble for it."
            )
        self.log_deviation = _initial_log_deviations(
            self._weights(), prior_variance, initial_deviation
        )

    @property
    def classes(self) -> int:
        """The number of classes C, from a run on one input of zeros if no input has
        been seen yet.
        """
        if self._classes is None:
            self._classes = count_classes([self.mean], self.output, self.input_shape)
        return self._classes

    def _weights(self) -> Weights:
        return [
            (name, value)
            for name, value in self.mean.named_parameters()
            if value.ndim >= 2 and value.requires_grad
        ]

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = {
            name: value.expand(self.member_count, *value.shape)
            for name, value in self.mean.named_parameters()
        }
        for name, mean in self._weights():
            drawn[name] = _draw(mean, self.log_deviation[_key(name)], drawn[name].shape, generator)
        return drawn

    def read_out(
        self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0
    ) -> Tensor:
        drawn = self.draw(generator)
        members = [
            partial(self._step, {name: value[index] for name, value in drawn.items()})
            for index in range(self.member_count)
        ]
        outputs = read_out(
            lambda x, state, steps: run_steps(members, x, state, steps, self.output),
            x,
            steps,
            burn_in,
        )
        self.input_shape, self._classes = tuple(x.shape[2:]), outputs.shape[-1]
        return outputs

    def _step(self, parameters: dict[str, Tensor], x: Tensor, state: Any) -> Any:
        return functional_call(self.mean, parameters, (x, state))

    def penalty(self) -> Tensor:
        return _divergence(self._weights(), self.log_deviation, self.prior_variance)

    def with_members(self, members: int) -> "ModulePosterior":
        other = deepcopy(self)
        other.member_count = members
        return other

    def members(self, generator: torch.Generator) -> ModuleMembers:
        drawn = self.draw(generator)
        modules = [deepcopy(self.mean) for _ in range(self.member_count)]
        with torch.no_grad():
            for index, module in enumerate(modules):
                for name, parameter in module.named_parameters():
                    parameter.copy_(drawn[name][index])
        return ModuleMembers(modules, self.output, self.input_shape).train(self.training)
