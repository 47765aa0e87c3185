"""The recipe for images that are held still: residual networks, whose depth and normalisation need
more than the recipe for streams.

    loss = mean over the steps of the log-loss of the spike counts so far
           +  log-loss of the mean current into the read-out  +  KL/N

The second term reaches the features without passing through the read-out's spikes. The first
epochs train firing rates instead of spikes, on one step and with the second term alone
(`SRM.rates`). This is fast, and what is learned remains useful for spikes. The optimiser is
stochastic gradient descent with Nesterov's momentum; the learning rate rises and falls once.
Images are flipped and shifted at random.

Every step costs the same, so the horizon grows: most epochs compute few steps, and the last epochs
compute more. In the last horizon every other batch is trained on the steps after a burn-in of
`burn_in` steps, which are computed without gradient. A network that runs longer than it was trained
for needs the statistics of those later steps: `reestimate_batchnorm` estimates them.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.common import InputError, Integers, as_count
from agreestop.engines.devices import upload
from agreestop.events.container import Inputs
from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.layers import MemberBatchNorm2d
from agreestop.networks.neurons import SRM
from agreestop.networks.posteriors import Posterior

from .gradients import Gradients
from .training import TrainableMembers, TrainingSettings

SHIFT = 4  # an image is shifted by at most this many pixels
GAIN, OFFSET = 0.5, 0.4  # weight and bias of batch normalisation at the start
RISE = 0.2  # share of the steps in which the learning rate rises

Model: TypeAlias = TrainableMembers[SpikingNetwork] | Posterior


@final
@dataclass(frozen=True)
class ImageTraining(TrainingSettings):
    """How to train on held images (n, 1, channels, H, W).

    rate_epochs         epochs on firing rates, before the `epochs` on spikes; the learning rate
                        rises and falls in each of the two phases
    rate_learning_rate  highest learning rate of the epochs on firing rates
    horizons            steps computed in the epochs on spikes; each entry holds for an equal share
                        of these epochs
    burn_in             steps without gradient before the trained ones, in every other batch of
                        the last horizon
    """

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 0.05
    rate_epochs: int = 15
    rate_learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.1
    horizons: tuple[int, ...] = (2, 4, 4, 6)
    burn_in: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("rate_epochs", 0), ("batch_size", 2), ("burn_in", 0)):
            as_count(getattr(self, name), name, least)
        if not self.horizons or min(self.horizons) < 1:
            raise InputError(
                f"horizons is {self.horizons}: give at least one number of steps, each of at least "
                "1."
            )

    @classmethod
    def for_steps(cls, total_epochs: int, steps: int, **settings: Any) -> Self:
        """Settings for images held for `steps` steps.

        Three fifths of the epochs train firing rates.
        """
        rate_epochs = 3 * total_epochs // 5
        horizons = tuple(min(steps, horizon) for horizon in cls.horizons)
        return cls(
            rate_epochs=rate_epochs,
            epochs=total_epochs - rate_epochs,
            horizons=horizons,
            **settings,
        )

    @property
    def total_epochs(self) -> int:
        """Epochs in all, on firing rates and on spikes."""
        return self.rate_epochs + self.epochs

    def batches(self, n: int) -> int:
        """Batches in an epoch over n images; a smaller last batch is left out, since it would
        disturb batch normalisation.
        """
        return max(1, n // self.batch_size)

    def recipe(self, model: Model, inputs: Inputs) -> "ImageRecipe":
        """The recipe for a model and images (n, 1, channels, H, W)."""
        if len(inputs.shape) != 5 or inputs.shape[1] != 1 or len(inputs) < 2:
            raise InputError(
                f"images has shape {inputs.shape}: (n, 1, channels, H, W) with at least two images "
                "is needed."
            )
        return ImageRecipe(model, self, len(inputs))

    def horizon(self, epoch: int) -> int:
        """The steps computed in an epoch, 0 where firing rates are trained."""
        return (
            0
            if epoch < self.rate_epochs
            else self.horizons[(epoch - self.rate_epochs) * len(self.horizons) // self.epochs]
        )

    def skipped(self, epoch: int, batch: int) -> int:
        """The steps without gradient before those."""
        last = self.total_epochs - 1
        return (
            self.burn_in
            if batch % 2 and epoch >= self.rate_epochs and self.horizon(epoch) == self.horizon(last)
            else 0
        )

    def rate(self, time: float) -> float:
        """The learning rate, `time` epochs after the start: in each phase linearly up, then down
        along a cosine.
        """
        first, count, top = (0, self.rate_epochs, self.rate_learning_rate)
        if time >= self.rate_epochs:
            first, count, top = self.rate_epochs, self.epochs, self.learning_rate
        progress = (time - first) / count
        if progress < RISE:
            return top * (0.1 + 0.9 * progress / RISE)
        return top * 0.5 * (1 + math.cos(math.pi * (progress - RISE) / (1 - RISE)))


@final
class ImageRecipe:
    """A model, its optimiser, and the step that moves them. There are `n` training
    images in all.
    """

    def __init__(self, model: Model, settings: ImageTraining, n: int) -> None:
        device = torch.device(settings.device)
        model.to(device)
        trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        decayed = [value for name, value in trained if value.ndim > 2 and "deviation" not in name]
        others = [
            value for name, value in trained if not (value.ndim > 2 and "deviation" not in name)
        ]
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimiser: torch.optim.Optimizer = torch.optim.SGD(
            groups, settings.learning_rate, settings.momentum, nesterov=settings.momentum > 0
        )
        self.noise = torch.Generator(device)
        self._model, self._settings, self._n = model, settings, n
        self._network = _running_network(model)
        self._gradients = Gradients(model, self.noise)
        _centre(self._network)

    def step(
        self, inputs: NDArray[Any] | Tensor, labels: Integers, time: float, batch: int
    ) -> Tensor:
        """Take one step on images (b, 1, channels, H, W), `time` epochs after the start: loss,
        accuracy and penalty.
        """
        settings, epoch = self._settings, int(time)
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate(time)
        horizon = settings.horizon(epoch)
        _set_rates(self._network, not horizon)
        given = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
        with _own_convolutions(not settings.bf16):
            figures = self._gradients(
                self._losses,
                given,
                torch.from_numpy(labels),
                horizon=horizon,
                burn_in=settings.skipped(epoch, batch),
            )
        self.optimiser.step()
        return figures

    def _losses(self, images: Tensor, truth: Tensor, horizon: int, burn_in: int) -> Tensor:
        """Compute the gradients; horizon 0 trains firing rates."""
        settings = self._settings
        shown = augmented(images[:, 0], self.noise)[None].float()
        with (
            _currents_into_read_out(self._network) as currents,
            torch.autocast(
                images.device.type, torch.bfloat16, enabled=settings.bf16, cache_enabled=False
            ),
        ):
            spikes = self._model.read_out(shown, self.noise, burn_in + (horizon or 1), burn_in)
        counts = spikes.float().cumsum(0)[burn_in:]
        steps, members = counts.shape[:2]
        means = currents[-1].float().mean(0).flatten(0, 1)
        loss = nn.functional.cross_entropy(
            means, truth.repeat(members), label_smoothing=settings.smoothing
        )
        if horizon:
            answers = counts.flatten(0, 2)
            loss = loss + nn.functional.cross_entropy(
                answers, truth.repeat(steps * members), label_smoothing=settings.smoothing
            )
        penalty = self._model.penalty()
        if penalty is not None:
            loss = loss + settings.kl_weight * penalty / self._n
        loss.backward()  # type: ignore[no-untyped-call]
        right = (
            ((counts[-1] if horizon else means.view_as(counts[-1])).argmax(-1) == truth)
            .float()
            .mean()
        )
        return torch.stack(
            [loss.detach(), right, torch.zeros_like(right) if penalty is None else penalty.detach()]
        )


@contextmanager
def _own_convolutions(chosen: bool) -> Iterator[None]:
    """Let PyTorch compute convolutions on a CPU by itself, where chosen.

    On some processors oneDNN's float32 convolutions write outside their memory while these
    networks train: runs differ, and may abort.
    """
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    backend.enabled = before and not chosen
    try:
        yield
    finally:
        backend.enabled = before


@torch.no_grad()
def _centre(network: SpikingNetwork) -> None:
    """Start with currents for which most neurons spike at some steps and rest at others."""
    for module in network.modules():
        if isinstance(module, MemberBatchNorm2d):
            module.weight.fill_(GAIN)
            module.bias.fill_(OFFSET)


def _set_rates(network: SpikingNetwork, rates: bool) -> None:
    for module in network.modules():
        if isinstance(module, SRM):
            module.rates = rates


def _running_network(model: Model) -> SpikingNetwork:
    """The network that computes while the model is trained."""
    return model.network if isinstance(model, TrainableMembers) else model.frame


@contextmanager
def _currents_into_read_out(network: SpikingNetwork) -> Iterator[list[Tensor]]:
    """A list that collects the currents (T, K, batch, C) of each call."""
    seen: list[Tensor] = []
    last = network.layers[-1]
    last.observe = seen.append
    try:
        yield seen
    finally:
        last.observe = None


def augmented(images: Tensor, noise: torch.Generator) -> Tensor:
    """Images (n, channels, H, W), each flipped or not and shifted by up to four pixels with
    mirrored borders; channels are innermost.
    """
    n, _, height, width = images.shape
    padded = nn.functional.pad(images.float(), (SHIFT,) * 4, mode="reflect").to(images.dtype)
    down, right, flip = (
        torch.randint(high, (n, 1), generator=noise, device=images.device)
        for high in (2 * SHIFT + 1, 2 * SHIFT + 1, 2)
    )
    rows = down + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(n, -1)
    columns = right + torch.where(flip == 1, width - 1 - columns, columns)
    return padded[
        torch.arange(n, device=images.device)[:, None, None],
        :,
        rows[:, :, None],
        columns[:, None, :],
    ].movedim(-1, 1)


@torch.no_grad()
def reestimate_batchnorm(
    model: Model,
    images: NDArray[Any],
    steps: int,
    seed: int = 0,
    batch_size: int = 256,
    batches: int = 20,
    bf16: bool = False,
) -> None:
    """Estimate the statistics of every batch normalisation again, in place.

    They are means over `batches` batches of images (n, 1, ...), each held for `steps` steps.
    """
    network = _running_network(model)
    device = next(network.parameters()).device
    noise = torch.Generator(device).manual_seed(seed)
    norms = [module for module in network.modules() if isinstance(module, MemberBatchNorm2d)]
    was_training = network.training
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
    model.train(was_training)
