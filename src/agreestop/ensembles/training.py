"""Training, for deep ensembles and posteriors alike: one short loop, which a killed run takes up again.

    loss = Σ_k mean over inputs and read-out times of the log-loss of the spike counts  +  kl_weight · penalty / N

Adam with a cosine schedule. The order of the examples and all noise of an epoch follow from (seed, epoch) alone, so a run that was
killed goes on from its last whole epoch and ends with the same numbers as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.common.arrays import Integers
from agreestop.common.errors import InputError
from agreestop.networks._kernels.numba_runtime import MemoryPool, numba_available, single_threaded, use_memory_pool
from agreestop.networks._kernels.upload import as_floats, upload
from agreestop.networks.architectures import Architecture, FullyConnected, SpikingNetwork

from .files import Checkpoint, load_checkpoint, save_checkpoint
from .gradients import Gradients

SHARE_FOR_INPUTS = 0.25
"""Of a GPU's free memory that training inputs may take."""


class Trainable(Protocol):
    """A deep ensemble or a posterior."""

    config: Architecture

    def read_out(self, x: Tensor, generator: torch.Generator) -> Tensor: ...
    def penalty(self) -> Tensor | None: ...
    def members(self, generator: torch.Generator) -> SpikingNetwork: ...
    def parameters(self) -> Any: ...
    def buffers(self) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...
    def to(self, device: Any) -> Any: ...


@dataclass(frozen=True)
class Training:
    """How to train. kl_weight 1 is the true ELBO; warm_up is the share of epochs in which it grows from 0 to that.

    readouts: at how many times, evenly spread up to the last, the counts are compared with the label.
    """

    epochs: int = 15
    batch_size: int = 64
    learning_rate: float = 2e-3
    seed: int = 0
    readouts: int = 8
    kl_weight: float = 1.0
    warm_up: float = 1.0
    device: str = "cpu"
    bf16: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "readouts"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)!r}: an integer of at least 1 is needed.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate is {self.learning_rate!r}: give a positive number.")
        if not 0 <= self.kl_weight < math.inf or not 0 <= self.warm_up <= 1:
            raise InputError("kl_weight must be at least 0 and warm_up a share from 0 to 1.")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"device is {self.device!r}, but PyTorch finds no GPU: give device='cpu', or install PyTorch with CUDA.")


@dataclass(frozen=True)
class Epoch:
    """What one epoch reached on its own training examples."""

    loss: float
    accuracy: float
    divergence: float


Tell = Callable[[int, Epoch], None]


def train(
    model: Trainable, inputs: NDArray[Any], labels: Integers, settings: Training, checkpoint: Path | None = None, tell: Tell | None = None
) -> list[Epoch]:
    """Train on inputs (n, T, ...) with labels (n,), in place; with `checkpoint` every epoch is kept there and a killed run goes on.

    `tell` hears of each epoch as it ends.
    """
    if len(inputs) != len(labels) or not len(inputs):
        raise InputError(f"there are {len(inputs)} inputs and {len(labels)} labels: give as many, at least one.")
    classes = model.config.classes
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels run from {labels.min()} to {labels.max()}: with {classes} classes, 0 to {classes - 1} are needed.")
    trainer = Trainer(model, settings, len(inputs))
    history: list[Epoch] = []
    if checkpoint is not None and checkpoint.exists():
        history = [Epoch(**entry) for entry in load_checkpoint(checkpoint).restore(model, trainer.optimiser)]
    batches, source = math.ceil(len(inputs) / settings.batch_size), _held(inputs, trainer.device)
    for epoch in range(len(history), settings.epochs):
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(inputs))
        trainer.noise.manual_seed(int(np.random.default_rng([settings.seed, epoch, 1]).integers(2**62)))
        totals = torch.zeros(3, device=trainer.device)
        for batch in range(batches):
            rows = order[batch * settings.batch_size : (batch + 1) * settings.batch_size]
            totals += trainer.step(source[rows], labels[rows], (epoch + batch / batches) / settings.epochs) * len(rows) / len(inputs)
        figures = Epoch(*totals.tolist())
        if not math.isfinite(figures.loss):
            raise InputError(
                f"training diverged in epoch {epoch + 1} (loss {figures.loss}): lower learning_rate, or start from smaller weights."
            )
        history.append(figures)
        if checkpoint is not None:
            save_checkpoint(checkpoint, Checkpoint.of(model, trainer.optimiser, history))
        if tell is not None:
            tell(epoch, history[-1])
    return history


@final
class Trainer:
    """A model, its optimiser, and the step that moves them; `n` examples are trained on in all."""

    def __init__(self, model: Trainable, settings: Training, n: int) -> None:
        self.device = torch.device(settings.device)
        model.to(self.device)
        parameters = [value for value in model.parameters() if value.requires_grad]
        self.optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)
        self.noise = torch.Generator(self.device)
        self._model, self._settings, self._n = model, settings, n
        self._gradients = Gradients(self._losses, model, self.noise)
        self._readouts: dict[int, Tensor] = {}
        loops = self.device.type == "cpu" and isinstance(model.config, FullyConnected) and numba_available()
        self._memory = MemoryPool() if loops else None

    def step(self, inputs: NDArray[Any] | Tensor, labels: Integers, progress: float) -> Tensor:
        """One step on inputs (batch, T, ...); the loss and accuracy of a member on them, and the penalty, left on the device."""
        settings = self._settings
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
        grown = min(1.0, progress / settings.warm_up) if settings.warm_up else 1.0
        given = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
        with self._in_loops():
            weight = torch.tensor(self._model.config.members * settings.kl_weight * grown)
            figures = self._gradients(given, torch.from_numpy(labels), weight)
            self.optimiser.step()
        return figures

    @contextmanager
    def _in_loops(self) -> Iterator[None]:
        """A fully connected network on the CPU is compiled loops for the most: they get the threads, and memory that stays."""
        if self._memory is None:
            yield
            return
        with single_threaded(), use_memory_pool(self._memory):
            yield

    def _readouts_of(self, steps: int) -> Tensor:
        """The steps, counted from 0, after which the loss is read, on the device."""
        if steps not in self._readouts:
            count = min(self._settings.readouts, steps)
            times = np.linspace(steps / self._settings.readouts, steps, count).round().astype(np.int64)
            self._readouts[steps] = torch.from_numpy(times.clip(min=1) - 1).to(self.device)
        return self._readouts[steps]

    def _losses(self, inputs: Tensor, truth: Tensor, weight: Tensor) -> Tensor:
        """Compute gradients of the loss of all members, with `weight` times the penalty."""
        settings = self._settings
        x = as_floats(inputs.transpose(0, 1).contiguous())
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=settings.bf16, cache_enabled=False):
            spikes = self._model.read_out(x, self.noise)
        counts = spikes.float().cumsum(0)
        steps, members = counts.shape[:2]
        places = self._readouts_of(steps)
        chosen = counts.index_select(0, places)
        losses = nn.functional.cross_entropy(chosen.flatten(0, 2), truth.repeat(len(places) * members), reduction="sum")
        loss = losses / (len(places) * len(truth))
        penalty = self._model.penalty()
        if penalty is not None:
            loss = loss + weight * penalty / self._n
        loss.backward()  # type: ignore[no-untyped-call]
        right = (counts[-1].argmax(-1) == truth).float().mean()
        return torch.stack([loss.detach() / members, right, torch.zeros_like(right) if penalty is None else penalty.detach()])


def _held(inputs: NDArray[Any], device: torch.device) -> NDArray[Any] | Tensor:
    """All inputs on a GPU that has room for them, so that each batch is found there; else as they are."""
    if device.type != "cuda" or inputs.nbytes > SHARE_FOR_INPUTS * torch.cuda.mem_get_info(device)[0]:
        return inputs
    return upload(inputs, device)
