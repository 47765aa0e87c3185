"""Training on images that are held still: residual networks, whose depth and normalisation ask for more than `training` does.

    loss = mean over the steps of the log-loss of the spike counts so far  +  log-loss of the mean current into the read-out  +  KL/N

The second term reaches the features without passing the read-out's spikes. The first epochs train rates instead of spikes, for one step
and with the second term alone (`SRM.rates`), which is quick and lasts. Stochastic gradient descent with Nesterov's momentum; the
learning rate rises and falls once. Images are flipped and shifted at random. The horizon grows: most epochs watch few steps and the last
ones more, since a step costs the same whatever it teaches; of the last ones every other batch learns what comes after `burn_in` steps that
are computed without gradient. A network that will run longer than it was trained for needs statistics of those steps: `settle` estimates
them for every step that has some of its own.

The order and all noise of an epoch follow from (seed, epoch) alone, and a killed run goes on from its last whole epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.common.arrays import Integers
from agreestop.common.errors import InputError
from agreestop.networks._kernels.upload import upload
from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.layers import MemberBatchNorm2d
from agreestop.networks.neurons import SRM
from agreestop.networks.posteriors import Posterior

from .deep import DeepEnsemble
from .files import Checkpoint, load_checkpoint, save_checkpoint
from .gradients import Gradients
from .training import Epoch

SHIFT = 4  # pixels that an image is moved by at most
GAIN, OFFSET = 0.5, 0.4  # of batch normalisation at the start
RISE = 0.2  # share of the steps in which the learning rate rises


@dataclass(frozen=True)
class ImageTraining:
    """How to train: `rate_epochs` on rates, then `epochs` on spikes, each with a rise and fall of its learning rate.

    horizons: the steps watched, from the first epoch on spikes to the last, each for as many epochs as the others. burn_in: the steps
    without gradient before those, in every other batch of the last horizon. rate_learning_rate: of the epochs on rates.
    """

    rate_epochs: int = 15
    rate_learning_rate: float = 0.1
    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.1
    horizons: tuple[int, ...] = (2, 4, 4, 6)
    burn_in: int = 0
    kl_weight: float = 1.0
    seed: int = 0
    device: str = "cpu"
    bf16: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.rate_epochs < 0 or self.batch_size < 2 or not self.horizons or min(self.horizons) < 1:
            raise InputError(
                f"epochs is {self.epochs}, batch_size {self.batch_size} and horizons {self.horizons}: give at least one epoch, "
                "two images a batch and one step."
            )
        if self.burn_in < 0:
            raise InputError(f"burn_in is {self.burn_in}: give the steps without gradient, 0 for none.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate is {self.learning_rate!r}: give a positive number.")

    def horizon(self, epoch: int) -> int:
        """The steps watched in an epoch, 0 where rates are trained."""
        return 0 if epoch < self.rate_epochs else self.horizons[(epoch - self.rate_epochs) * len(self.horizons) // self.epochs]

    def skipped(self, epoch: int, batch: int) -> int:
        """The steps without gradient before those."""
        last = self.rate_epochs + self.epochs - 1
        return self.burn_in if batch % 2 and epoch >= self.rate_epochs and self.horizon(epoch) == self.horizon(last) else 0

    def rate(self, time: float) -> float:
        """The learning rate after so many epochs: straight up, then down along a cosine, for rates and for spikes."""
        first, count, top = (0, self.rate_epochs, self.rate_learning_rate)
        if time >= self.rate_epochs:
            first, count, top = self.rate_epochs, self.epochs, self.learning_rate
        progress = (time - first) / count
        if progress < RISE:
            return top * (0.1 + 0.9 * progress / RISE)
        return top * 0.5 * (1 + math.cos(math.pi * (progress - RISE) / (1 - RISE)))


Tell = Callable[[int, Epoch], None]
Model = DeepEnsemble | Posterior


def train_images(
    model: Model, images: NDArray[Any], labels: Integers, settings: ImageTraining, checkpoint: Path | None = None, tell: Tell | None = None
) -> list[Epoch]:
    """Train on images (n, 1, channels, H, W) with labels (n,), in place; with `checkpoint` a killed run goes on."""
    if images.ndim != 5 or images.shape[1] != 1 or len(images) != len(labels) or len(images) < 2:
        raise InputError(f"images has shape {images.shape} for {len(labels)} labels: (n, 1, channels, H, W) with n labels is needed.")
    device = torch.device(settings.device)
    model.to(device).train()
    network = _running(model)
    decayed = [value for name, value in model.named_parameters() if value.requires_grad and value.ndim > 2 and "deviation" not in name]
    others = [value for name, value in model.named_parameters() if value.requires_grad and not (value.ndim > 2 and "deviation" not in name)]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.SGD(groups, settings.learning_rate, settings.momentum, nesterov=settings.momentum > 0)
    history: list[Epoch] = []
    if checkpoint is not None and checkpoint.exists():
        history = [Epoch(**entry) for entry in load_checkpoint(checkpoint).restore(model, optimiser)]
    if not history:
        _centre(network)
    source, truth = upload(images[:, 0], device), upload(labels, device)
    count, batches = len(labels), max(1, len(labels) // settings.batch_size)
    noise = torch.Generator(device)
    with _currents_into_read_out(network) as currents:

        def losses(shown: Tensor, labels: Tensor, horizon: int, burn_in: int) -> Tensor:
            currents.clear()
            return _losses(model, shown, labels, horizon, burn_in, count, settings, noise, currents)

        gradients = Gradients(losses, model, noise)
        for epoch in range(len(history), settings.rate_epochs + settings.epochs):
            _set_rates(network, not settings.horizon(epoch))
            order = torch.as_tensor(np.random.default_rng([settings.seed, epoch]).permutation(count), device=device)
            noise.manual_seed(int(np.random.default_rng([settings.seed, epoch, 1]).integers(2**62)))
            totals = torch.zeros(3, device=device)
            for batch in range(batches):
                rows = order[batch * settings.batch_size : (batch + 1) * settings.batch_size]
                for group in optimiser.param_groups:
                    group["lr"] = settings.rate(epoch + batch / batches)
                steps = {"horizon": settings.horizon(epoch), "burn_in": settings.skipped(epoch, batch)}
                totals += gradients(source[rows], truth[rows], **steps)
                optimiser.step()
            loss, right, penalty = (totals / batches).tolist()
            if not math.isfinite(loss):
                raise InputError(f"training diverged in epoch {epoch + 1} (loss {loss}): lower learning_rate.")
            history.append(Epoch(loss, right, penalty))
            if checkpoint is not None:
                save_checkpoint(checkpoint, Checkpoint.of(model, optimiser, history))
            if tell is not None:
                tell(epoch, history[-1])
    return history


def _losses(
    model: Model,
    images: Tensor,
    truth: Tensor,
    horizon: int,
    burn_in: int,
    n: int,
    settings: ImageTraining,
    noise: torch.Generator,
    currents: list[Tensor],
) -> Tensor:
    """Compute gradients; loss, accuracy and penalty, left on the device."""
    shown = augmented(images, noise)[None].float()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=settings.bf16, cache_enabled=False):
        spikes = model.read_out(shown, noise, burn_in + (horizon or 1), burn_in)
    counts = spikes.float().cumsum(0)[burn_in:]
    steps, members = counts.shape[:2]
    means = currents[-1].float().mean(0).flatten(0, 1)
    loss = nn.functional.cross_entropy(means, truth.repeat(members), label_smoothing=settings.smoothing)
    if horizon:
        answers = counts.flatten(0, 2)
        loss = loss + nn.functional.cross_entropy(answers, truth.repeat(steps * members), label_smoothing=settings.smoothing)
    penalty = model.penalty()
    if penalty is not None:
        loss = loss + settings.kl_weight * penalty / n
    loss.backward()  # type: ignore[no-untyped-call]
    right = ((counts[-1] if horizon else means.view_as(counts[-1])).argmax(-1) == truth).float().mean()
    return torch.stack([loss.detach(), right, torch.zeros_like(right) if penalty is None else penalty.detach()])


@torch.no_grad()
def _centre(network: SpikingNetwork) -> None:
    """Begin with currents for which most neurons spike at some steps and rest at others."""
    for module in network.modules():
        if isinstance(module, MemberBatchNorm2d):
            module.weight.fill_(GAIN)
            module.bias.fill_(OFFSET)


def _set_rates(network: SpikingNetwork, rates: bool) -> None:
    for module in network.modules():
        if isinstance(module, SRM):
            module.rates = rates


def _running(model: Model) -> SpikingNetwork:
    """The network that runs in training."""
    return model.network if isinstance(model, DeepEnsemble) else model.frame


@contextmanager
def _currents_into_read_out(network: SpikingNetwork) -> Iterator[list[Tensor]]:
    """The currents (T, K, batch, C) of each call, as they come."""
    seen: list[Tensor] = []
    handle = network.layers[-1].synapses.register_forward_hook(lambda module, given, result: seen.append(result))  # type: ignore[union-attr]
    try:
        yield seen
    finally:
        handle.remove()


def augmented(images: Tensor, noise: torch.Generator) -> Tensor:
    """Images (n, channels, H, W), each flipped or not and shifted by up to four pixels, its border mirrored; channels lie innermost."""
    n, _, height, width = images.shape
    padded = nn.functional.pad(images.float(), (SHIFT,) * 4, mode="reflect").to(images.dtype)
    down, right, flip = (torch.randint(high, (n, 1), generator=noise, device=images.device) for high in (2 * SHIFT + 1, 2 * SHIFT + 1, 2))
    rows = down + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(n, -1)
    columns = right + torch.where(flip == 1, width - 1 - columns, columns)
    return padded[torch.arange(n, device=images.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def join(members: Sequence[SpikingNetwork]) -> SpikingNetwork:
    """Members that were trained one by one, as one network."""
    states = [member.state_dict() for member in members]
    count = sum(member.config.members for member in members)
    together = SpikingNetwork(replace(members[0].config, members=count), torch.Generator().manual_seed(0))
    together.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return together.eval()


@torch.no_grad()
def settle(
    model: Model, images: NDArray[Any], steps: int, seed: int = 0, batch_size: int = 256, batches: int = 20, bf16: bool = False
) -> None:
    """Estimate the statistics of every batch normalisation anew, from `batches` of images (n, 1, ...) held for `steps`, in place."""
    network = _running(model)
    device = next(network.parameters()).device
    noise = torch.Generator(device).manual_seed(seed)
    norms = [module for module in network.modules() if isinstance(module, MemberBatchNorm2d)]
    was = network.training
    model.train()
    order = np.random.default_rng(seed).permutation(len(images))
    for batch in range(batches):
        for norm in norms:
            norm.momentum = 1 / (batch + 1)
        rows = order[np.arange(batch * batch_size, (batch + 1) * batch_size) % len(images)]
        shown = upload(images[rows, 0], device)[None].float()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            model.read_out(shown, noise, steps)
    for norm in norms:
        norm.momentum = 0.1
    model.train(was)
