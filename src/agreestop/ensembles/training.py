"""The training loop, one for all ensembles. A recipe says what one step does; the loop does the rest.

    for each epoch: shuffle the examples, seed the noise, take a step for each batch, save a checkpoint

The order of the examples and all noise of an epoch follow from (seed, epoch) alone. A run that was killed therefore continues after
its last complete epoch and ends with the same numbers as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreestop.common.arrays import Integers
from agreestop.common.errors import InputError
from agreestop.events.container import Events, Inputs, dense_rows
from agreestop.networks._kernels.upload import upload

from .files import Checkpoint, load_checkpoint, save_checkpoint
from .trainable import Trainable

GPU_SHARE_FOR_INPUTS = 0.25
"""The share of a GPU's free memory that training inputs may take."""


@dataclass(frozen=True)
class Epoch:
    """What one epoch reached on its own training examples."""

    loss: float
    accuracy: float
    divergence: float


OnEpoch = Callable[[int, Epoch], None]
"""Called with the index and the results of each epoch as it ends."""


class Recipe(Protocol):
    """How a model is trained: its optimiser, and the step that moves it."""

    optimiser: torch.optim.Optimizer
    noise: torch.Generator

    def step(self, inputs: NDArray[Any] | Tensor, labels: Integers, time: float, batch: int) -> Tensor:
        """Take one step on a batch of inputs (b, T, ...), `time` epochs after the start; `batch` counts within the epoch.

        Returns loss, accuracy and penalty as a tensor on the device, so that the host need not wait for them.
        """
        ...


class TrainingSettings(Protocol):
    """Settings from which a recipe is made."""

    @property
    def seed(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def total_epochs(self) -> int: ...
    def batches(self, n: int) -> int:
        """Batches in an epoch over n examples."""
        ...

    def recipe(self, model: Any, inputs: Inputs) -> Recipe:
        """The recipe for a model, which is moved to the device, and for inputs (n, T, ...)."""
        ...


def train(
    model: Trainable,
    inputs: Inputs,
    labels: Integers,
    settings: TrainingSettings,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> list[Epoch]:
    """Train on inputs (n, T, ...) with labels (n,), in place. Returns the results of every epoch.

    With `checkpoint` every epoch is saved there, and a run that finds the file continues after the last saved epoch.
    """
    n, classes = len(inputs), model.classes
    if n != len(labels) or not n:
        raise InputError(f"there are {n} inputs and {len(labels)} labels: give as many, at least one.")
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels run from {labels.min()} to {labels.max()}: with {classes} classes, 0 to {classes - 1} are needed.")
    model.train()
    recipe = settings.recipe(model, inputs)
    key = _fingerprint(settings, inputs, labels)
    history: list[Epoch] = []
    if checkpoint is not None and checkpoint.exists():
        history = [Epoch(**entry) for entry in load_checkpoint(checkpoint).restore(model, recipe.optimiser, key)]
    device = recipe.noise.device
    source, batches = _on_gpu_if_it_fits(inputs, device), settings.batches(n)
    seen = min(n, batches * settings.batch_size)
    for epoch in range(len(history), settings.total_epochs):
        order = np.random.default_rng([settings.seed, epoch]).permutation(n)
        recipe.noise.manual_seed(int(np.random.default_rng([settings.seed, epoch, 1]).integers(2**62)))
        totals = torch.zeros(3, device=device)
        for batch in range(batches):
            rows = order[batch * settings.batch_size : (batch + 1) * settings.batch_size]
            examples = dense_rows(source, rows) if isinstance(source, Events) else source[rows]
            totals += recipe.step(examples, labels[rows], epoch + batch / batches, batch) * len(rows) / seen
        history.append(Epoch(*totals.tolist()))
        if not math.isfinite(history[-1].loss):
            raise InputError(
                f"training diverged in epoch {epoch + 1} (loss {history[-1].loss}): lower learning_rate, or start from smaller weights."
            )
        if checkpoint is not None:
            save_checkpoint(checkpoint, Checkpoint.of(model, recipe.optimiser, [asdict(entry) for entry in history], key))
        if on_epoch is not None:
            on_epoch(epoch, history[-1])
    return history


def check_training_settings(settings: Any, counts: tuple[str, ...]) -> None:
    """Refuse settings that every recipe refuses; `counts` names those that must be integers of at least 1."""
    for name in counts:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}: an integer of at least 1 is needed.")
    if not 0 < settings.learning_rate < math.inf:
        raise InputError(f"learning_rate is {settings.learning_rate!r}: give a positive number.")
    if not 0 <= settings.kl_weight < math.inf:
        raise InputError(f"kl_weight is {settings.kl_weight!r}: give a number of at least 0.")
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {settings.device!r}, but PyTorch finds no GPU: give device='cpu', or install PyTorch with CUDA.")


def _fingerprint(settings: Any, inputs: Inputs, labels: Integers) -> str:
    """A hash of all that decides the numbers of a run, but for its model and the values of its inputs. A run may change its device."""
    values = {name: value for name, value in asdict(settings).items() if name != "device"}
    text = repr((type(settings).__name__, sorted(values.items()), tuple(inputs.shape)))
    return hashlib.sha256(text.encode() + np.ascontiguousarray(labels, np.int64).tobytes()).hexdigest()


def _on_gpu_if_it_fits(inputs: Inputs, device: torch.device) -> Inputs | Tensor:
    """The inputs, on the GPU if an array of all of them fits there, so that batches need no upload."""
    if isinstance(inputs, Events) or device.type != "cuda" or inputs.nbytes > GPU_SHARE_FOR_INPUTS * torch.cuda.mem_get_info(device)[0]:
        return inputs
    return upload(inputs, device)
