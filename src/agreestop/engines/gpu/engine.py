"""The fused engine: members on a GPU, with the neurons of a chunk of steps in one kernel (`networks._kernels.gpu_srm`).

Members of a convolutional network run one after the other: each fills the GPU, and grouped convolutions are slower.
Fully connected networks decide with continuous batching where the rule has a prefilter for GPUs, and have a slot for each live input.
"""

from copy import copy, deepcopy
from typing import Any, final

import torch
from numpy.typing import NDArray

from agreestop.events.container import Inputs
from agreestop.networks._kernels.gpu_runtime import check_device
from agreestop.networks.architectures import FullyConnected, SpikingNetwork
from agreestop.networks.neurons import SRM

from ..dense import DenseLive, DensePass, check_network
from ..inputs import check_inputs
from ..prefilter import Prefilter
from ..protocol import Live, Outcomes, describe
from .continuous_batching import FULL_LOAD, MAX_LOAD, ContinuousBatching

CONVOLUTIONAL_LOAD = 1024  # for networks with convolutions, the inputs times steps that fill the GPU and that are computed together
LEAST_STEPS = {True: 16, False: 4}  # the least steps of a chunk, for fully connected networks and for others


@final
class Fused:
    """The `Engine` of K members on a GPU, copied: later training does not change the engine.

    bf16: weights and currents of convolutions are in bfloat16, which is several times as fast. A rule sees it as another engine.

    Under a `Schedule`, members of networks with convolutions join as they are asked for. Fully connected members run in one kernel, so all
    of them run from the first step; decisions are the same.
    """

    output, reason, copies_weights = "spikes", "", True

    def __init__(self, network: SpikingNetwork, device: str = "cuda", bf16: bool = False) -> None:
        check_network(network)
        self.name = "fused-bfloat16" if bf16 else "fused"
        self._network = deepcopy(network).to(check_device(device)).eval()  # CUDA graphs hold on to the memory of these weights
        self._device, self._bf16 = torch.device(device), bf16
        self.members, self.classes = network.config.members, network.config.classes
        self._fully_connected = isinstance(network.config, FullyConnected)
        for module in self._network.modules():
            if isinstance(module, SRM):
                module.float16_spikes = self._fully_connected
        self._batching = ContinuousBatching(self._network, self._device) if self._fully_connected and not bf16 else None
        self._networks = [self._network]
        if not self._fully_connected:
            self._networks = [self._network.select_members(slice(member, member + 1)) for member in range(self.members)]

    __repr__ = describe

    def chunk_steps(self, rows: int) -> int:
        # more as inputs stop, since few inputs take hardly longer for many steps
        load = FULL_LOAD if self._fully_connected else CONVOLUTIONAL_LOAD
        return max(LEAST_STEPS[self._fully_connected], load // max(rows, 1))

    def begin(self, inputs: Inputs, first: int = 0) -> DensePass:
        load = MAX_LOAD if self._fully_connected else CONVOLUTIONAL_LOAD
        return DensePass(self._networks, self._device, self._check(inputs), load, self._bf16)

    def decide(self, inputs: NDArray[Any], prefilter: Prefilter, slots: int, chunk: int | None) -> Outcomes | None:
        if self._batching is None or inputs.shape[1] == 1 or not len(inputs):
            return None
        return self._batching.decide(self._check(inputs), prefilter, slots, chunk)

    def members_slice(self, first: int, last: int) -> "Fused | None":
        if self._fully_connected:
            return None
        part = copy(self)
        part._network, part._networks = self._network.select_members(slice(first, last)).eval(), self._networks[first:last]
        part.members = last - first
        return part

    def _check(self, inputs: Inputs) -> NDArray[Any]:
        return check_inputs(inputs, self._network.input_shape, self._network.real_input)

    def live(self, number: int = 0) -> Live:
        return DenseLive(self._network, str(self._device)) if self._batching is None else self._batching.live()
