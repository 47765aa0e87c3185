"""The training loop, one for all ensembles.

A recipe says what one step does; the loop does the rest.

    for each epoch: shuffle the examples, seed the noise, take a step for each batch,
                    save a checkpoint

The order of the examples and all noise of an epoch depend only on (seed, epoch). A run that was
killed therefore continues after its last complete epoch and ends with the same numbers as an
uninterrupted run.
"""

import hashlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.common import (
    InputError,
    Integers,
    ProgressCallback,
    as_count,
    as_labels,
    no_progress,
)
from agreestop.common.errors import visible
from agreestop.engines.devices import torch_dtype, upload
from agreestop.engines.inputs import check_device
from agreestop.events.container import Events, Inputs, dense_rows, input_ids
from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.digests import describe_modules, network_settings
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior, read_out

from .files import Epoch, Key, load_checkpoint, save_checkpoint

GPU_SHARE_FOR_INPUTS = 0.25
"""The share of a GPU's free memory that training inputs may take."""

SECONDS_BETWEEN_LINES = 2.0
"""Between two lines about epochs, where there is no terminal."""

UPLOADED = 2**26
"""Bytes of the dense form that are uploaded together."""

Network = TypeVar("Network", SpikingNetwork, ModuleMembers)


@final
class TrainableMembers(nn.Module, Generic[Network]):
    """K members that are trained as they are.

    They share the order of the examples; no gradient passes from one to another.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network: Network = network
        self.output: str = network.output

    @property
    def member_count(self) -> int:
        """The number of members K."""
        return self.network.members

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.network.classes

    def read_out(
        self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0
    ) -> Tensor:
        """Outputs (T, K, batch, C) for x (T, batch, ...).

        An image is held for `steps` steps; the first `burn_in` have no gradient.
        """
        options: dict[str, Any] = (
            {"keep_state": False} if isinstance(self.network, SpikingNetwork) else {}
        )
        return read_out(self.network, x, steps, burn_in, **options)

    def penalty(self) -> None:
        """A deep ensemble has no regularisation beside the data."""

    def members(self, generator: torch.Generator) -> Network:
        """The members themselves; nothing is drawn."""
        return self.network


Trainable: TypeAlias = TrainableMembers[Any] | Posterior | ModulePosterior


class Recipe(Protocol):
    """A model, its optimiser, and the step that moves them."""

    optimiser: torch.optim.Optimizer
    noise: torch.Generator

    def step(
        self, inputs: NDArray[Any] | Tensor, labels: Integers, time: float, batch: int
    ) -> Tensor:
        """Take one step on a batch of inputs (b, T, ...), `time` epochs after the start; `batch`
        counts within the epoch.

        Returns loss, accuracy and penalty as a tensor on the device, so that the host need not
        wait for them.
        """
        ...


@dataclass(frozen=True)
class TrainingSettings(ABC):
    """Settings that all recipes share. kl_weight: weight of the divergence of a posterior; 1 is
    the true ELBO.
    """

    epochs: int = 15
    batch_size: int = 64
    learning_rate: float = 2e-3
    seed: int = 0
    kl_weight: float = 1.0
    device: str = "cpu"
    bf16: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            as_count(getattr(self, name), name)
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate is {self.learning_rate!r}: give a positive number.")
        if not 0 <= self.kl_weight < math.inf:
            raise InputError(f"kl_weight is {self.kl_weight!r}: give a number of at least 0.")
        check_device(self.device)

    @property
    @abstractmethod
    def total_epochs(self) -> int:
        """Epochs in all."""

    @abstractmethod
    def batches(self, n: int) -> int:
        """Batches in an epoch over n examples."""

    @abstractmethod
    def recipe(self, model: Any, inputs: Inputs) -> Recipe:
        """The recipe for a model, which is moved to the device, and for inputs (n, T, ...)."""


def train(
    model: Trainable,
    inputs: Inputs,
    labels: Integers,
    settings: TrainingSettings,
    checkpoint: str | PathLike[str] | None = None,
    on_epoch: Callable[[int, Epoch], None] | None = None,
) -> list[Epoch]:
    """Train on inputs (n, T, ...) with labels (n,), in place. Returns the results of every epoch.

    With `checkpoint` every epoch is saved there, and a run that finds the file continues after the
    last saved epoch. `on_epoch` is called with the index and the results of each epoch.
    """
    n = len(inputs)
    labels = as_labels(labels, n, model.classes)
    recipe = settings.recipe(model.train(), inputs)
    key = {} if checkpoint is None else _key(model, settings, inputs, labels)
    history: list[Epoch] = []
    if checkpoint is not None and Path(checkpoint).exists():
        history = load_checkpoint(checkpoint, model, recipe.optimiser, key)
    device = recipe.noise.device
    source, batches = _on_gpu_if_it_fits(inputs, device), settings.batches(n)
    seen = min(n, batches * settings.batch_size)
    for epoch in range(len(history), settings.total_epochs):
        order = np.random.default_rng([settings.seed, epoch]).permutation(n)
        recipe.noise.manual_seed(
            int(np.random.default_rng([settings.seed, epoch, 1]).integers(2**62))
        )
        totals = torch.zeros(3, device=device)
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            # modules of the user may draw from torch, for example for dropout
            torch.manual_seed(recipe.noise.initial_seed())
            for batch in range(batches):
                rows = order[batch * settings.batch_size : (batch + 1) * settings.batch_size]
                examples = dense_rows(source, rows) if isinstance(source, Events) else source[rows]
                totals += (
                    recipe.step(examples, labels[rows], epoch + batch / batches, batch)
                    * len(rows)
                    / seen
                )
        history.append(Epoch(*totals.tolist()))
        # a member whose weights are nan never spikes, so its loss is finite
        loss = history[-1].loss
        if not (math.isfinite(loss) and _has_finite_weights(model)):
            found = "weights that are not finite" if math.isfinite(loss) else f"loss {loss}"
            raise InputError(
                f"training diverged in epoch {epoch + 1} ({found}): lower learning_rate, or start "
                "from smaller weights."
            )
        if checkpoint is not None:
            save_checkpoint(checkpoint, model, recipe.optimiser, history, key)
        if on_epoch is not None:
            on_epoch(epoch, history[-1])
    return history


def _has_finite_weights(model: Trainable) -> bool:
    """Whether all parameters and statistics are finite."""
    return all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


@contextmanager
def show_progress(progress: bool | ProgressCallback, note: str = "") -> Iterator[ProgressCallback]:
    """Gives a function that reports progress: the user's own, or one that draws a bar if this
    is a terminal, and prints lines elsewhere.

    The note is one sentence that is shown first.
    """
    if callable(progress) or not (progress and sys.stderr.isatty()):
        report = progress if callable(progress) else _in_lines() if progress else no_progress
        if note:
            report(note, 0.0)
        yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        if note:
            bar.console.print(note, markup=False)
        task = bar.add_task("training", total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=what)


def _in_lines() -> ProgressCallback:
    """Prints an epoch on a line of standard error: the first, the last, and those between that
    come a while after the line before.
    """
    due = 0.0

    def report(what: str, share: float) -> None:
        nonlocal due
        if (now := monotonic()) >= due or share >= 1:
            due = now + SECONDS_BETWEEN_LINES
            print(visible(what), file=sys.stderr, flush=True)

    return report


def _key(model: Trainable, settings: TrainingSettings, inputs: Inputs, labels: Integers) -> Key:
    """Hashes of what decides the numbers of a run, except its initial weights.

    A run may change its device.
    """
    network = model.network if isinstance(model, TrainableMembers) else model
    values = {name: value for name, value in asdict(settings).items() if name != "device"}
    about = (
        network_settings(network),
        describe_modules(network),
        getattr(network, "initial_deviation", None),
    )
    parts = {
        "network settings": repr(about).encode(),
        "training settings": repr((type(settings).__name__, sorted(values.items()))).encode(),
        "examples": repr(tuple(inputs.shape)).encode() + input_ids(inputs).tobytes(),
        "labels": labels.tobytes(),
    }
    return {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}


def _on_gpu_if_it_fits(inputs: Inputs, device: torch.device) -> Inputs | Tensor:
    """The inputs, on the GPU if an array of all of them fits there, so that batches
    need no upload.
    """
    size = math.prod(inputs.shape) * inputs.dtype.itemsize
    if device.type != "cuda" or size > GPU_SHARE_FOR_INPUTS * torch.cuda.mem_get_info(device)[0]:
        return inputs
    return upload_in_parts(inputs, device) if isinstance(inputs, Events) else upload(inputs, device)


def upload_in_parts(inputs: Events, device: torch.device) -> Tensor:
    """The dense form (n, T, ...) on a device.

    Some rows are made dense at a time, so the host never holds the whole array.
    """
    together = max(1, UPLOADED // (math.prod(inputs.shape[1:]) * inputs.dtype.itemsize))
    parts = (
        upload(inputs.rows(slice(start, start + together)).to_dense(), device)
        for start in range(0, len(inputs), together)
    )
    whole = torch.empty(inputs.shape, dtype=torch_dtype(inputs.dtype), device=device)
    for number, part in enumerate(parts):
        whole[number * together : number * together + len(part)] = part
    return whole
