"""The recipe for streams: inputs that change from step to step.

    loss = Σ_k mean over inputs and read-out times of -log softmax(r_t^k)_y
           +  kl_weight · penalty / N

r_t^k are the spike counts of member k after t steps, or its logits at step t.

Adam; the learning rate falls along a cosine. The weight of the penalty grows from 0
during the warm-up.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.common import InputError, Integers, as_count
from agreestop.engines.devices import to_input_dtype
from agreestop.events.container import Inputs
from agreestop.kernels.cpu.numba_runtime import (
    MemoryPool,
    numba_available,
    single_threaded,
    use_memory_pool,
)
from agreestop.networks.architectures import (
    Architecture,
    Convolutional,
    FullyConnected,
    SpikingNetwork,
)

from .gradients import Gradients
from .training import Trainable, TrainingSettings


def kl_note(kl_weight: float, warm_up: float) -> str:
    """A sentence for users of a variational ensemble, whose loss may rise on purpose; empty
    where it does not.
    """
    epochs = "all" if warm_up == 1 else f"the first {warm_up:.0%} of the"
    text = (
        f"The weight of the KL term grows from 0 over {epochs} epochs, so the loss may rise: this "
        "is intended."
    )
    return text if warm_up * kl_weight else ""


def in_loops(config: Architecture) -> bool:
    """Whether all layers of a network but the read-out are trained in compiled loops on a CPU."""
    if not isinstance(config, Convolutional):
        return isinstance(config, FullyConnected)
    # the import compiles the loops
    from agreestop.kernels.cpu import convolution as cpu_convolution
    from agreestop.kernels.cpu import deep_training as cpu_deep_training

    height, width = config.input_shape[1:]
    for layer, (inputs, outputs) in enumerate(pairwise((config.input_shape[0], *config.channels))):
        if not cpu_convolution.sizes_fit(inputs, outputs, width, gradient=layer > 0):
            return False
        if not cpu_deep_training.layer_fits(height, width, outputs, config.neuron.surrogate):
            return False
        height, width = height // 2, width // 2
    return not config.neuron.learned


@final
@dataclass(frozen=True)
class StreamTraining(TrainingSettings):
    """How to train on streams (n, T, ...).

    readouts  the log-loss is taken at this many steps, evenly spread up to the last
    warm_up   share of the epochs in which the weight of the divergence grows from 0
    steps     steps for which images (n, 1, ...) are held; None for streams
    """

    readouts: int = 8
    warm_up: float = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count(self.readouts, "readouts")
        if not 0 <= self.warm_up <= 1:
            raise InputError(
                f"warm_up is {self.warm_up!r}: it is a share of the epochs, so give a number from "
                "0 to 1."
            )

    @property
    def total_epochs(self) -> int:
        """Epochs in all."""
        return self.epochs

    def batches(self, n: int) -> int:
        """Batches in an epoch over n examples; the last may be smaller."""
        return math.ceil(n / self.batch_size)

    def recipe(self, model: Trainable, inputs: Inputs) -> "StreamRecipe":
        """The recipe for a model and inputs (n, T, ...)."""
        return StreamRecipe(model, self, len(inputs))


@final
class StreamRecipe:
    """A model, its optimiser, and the step that moves them. There are `n` training
    examples in all.
    """

    def __init__(self, model: Trainable, settings: StreamTraining, n: int) -> None:
        self._device = torch.device(settings.device)
        model.to(self._device)
        parameters = [value for value in model.parameters() if value.requires_grad]
        self.optimiser: torch.optim.Optimizer = torch.optim.Adam(
            parameters, lr=settings.learning_rate, fused=True
        )
        self.noise = torch.Generator(self._device)
        self._model, self._settings, self._n = model, settings, n
        ours = next(
            (module for module in model.modules() if isinstance(module, SpikingNetwork)), None
        )
        # Modules of the user may read values back to the host, which a CUDA graph cannot capture.
        self._gradients = Gradients(model, self.noise, capture=ours is not None)
        self._readouts: dict[int, Tensor] = {}
        # an image that is held, and bfloat16, run in PyTorch
        plain = settings.steps is None and not settings.bf16
        compiled = (
            plain
            and ours is not None
            and self._device.type == "cpu"
            and numba_available()
            and in_loops(ours.config)
        )
        self._memory = MemoryPool() if compiled else None

    def step(
        self, inputs: NDArray[Any] | Tensor, labels: Integers, time: float, batch: int = 0
    ) -> Tensor:
        """Take one step on inputs (b, T, ...), `time` epochs after the start: loss and accuracy
        of a member, and the penalty.
        """
        settings, progress = self._settings, time / self._settings.epochs
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
        grown = min(1.0, progress / settings.warm_up) if settings.warm_up else 1.0
        given = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
        with self._compiled_loops():
            weight = torch.tensor(self._model.member_count * settings.kl_weight * grown)
            figures = self._gradients(self._losses, given, torch.from_numpy(labels), weight)
            self.optimiser.step()
        return figures

    @contextmanager
    def _compiled_loops(self) -> Iterator[None]:
        """On a CPU most networks run compiled loops.

        They get all threads, and memory that is reused.
        """
        if self._memory is None:
            yield
            return
        with single_threaded(), use_memory_pool(self._memory):
            yield

    def _readout_indices(self, steps: int) -> Tensor:
        """The steps, counted from 0, at which the loss is taken, on the device."""
        if steps not in self._readouts:
            count = min(self._settings.readouts, steps)
            times = (
                np.linspace(steps / self._settings.readouts, steps, count).round().astype(np.int64)
            )
            self._readouts[steps] = torch.from_numpy(times.clip(min=1) - 1).to(self._device)
        return self._readouts[steps]

    def _losses(self, inputs: Tensor, truth: Tensor, weight: Tensor) -> Tensor:
        """Compute the gradients of the loss of all members plus `weight` times the penalty."""
        settings = self._settings
        x = to_input_dtype(inputs.transpose(0, 1).contiguous())
        with torch.autocast(
            self._device.type, dtype=torch.bfloat16, enabled=settings.bf16, cache_enabled=False
        ):
            outputs = self._model.read_out(x, self.noise, settings.steps)
        evidence = outputs.float().cumsum(0) if self._model.output == "spikes" else outputs.float()
        steps, members = evidence.shape[:2]
        readouts = self._readout_indices(steps)
        chosen = evidence.index_select(0, readouts)
        losses = nn.functional.cross_entropy(
            chosen.flatten(0, 2), truth.repeat(len(readouts) * members), reduction="sum"
        )
        loss = losses / (len(readouts) * len(truth))
        penalty = self._model.penalty()
        if penalty is not None:
            loss = loss + weight * penalty / self._n
        loss.backward()  # type: ignore[no-untyped-call]
        right = (evidence[-1].argmax(-1) == truth).float().mean()
        return torch.stack(
            [
                loss.detach() / members,
                right,
                torch.zeros_like(right) if penalty is None else penalty.detach(),
            ]
        )
