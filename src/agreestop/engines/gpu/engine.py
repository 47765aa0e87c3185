"""The fused engine: members on a GPU, with the neurons of a chunk of steps in one kernel.

Fully connected members run together, in the kernel of `kernels.gpu.srm`. Members with
convolutions run one after the other (`deep`): each fills the GPU, and grouped convolutions are
slower. Both decide with continuous batching where the rule has a GPU prefilter.
"""

from copy import copy, deepcopy
from typing import Any, final

import torch

from agreestop.events.container import Events, Inputs
from agreestop.kernels.mixed_product import fixed_point
from agreestop.networks.architectures import FullyConnected, SpikingNetwork
from agreestop.networks.digests import check_network
from agreestop.networks.neurons import SRM

from ..dense import DenseLive, DensePass
from ..early_stopping import Outcomes
from ..inputs import check_device, check_event_inputs, check_inputs
from ..prefilter import Prefilter
from ..protocol import Live, describe
from .continuous_batching import ContinuousBatching
from .deep import DeepMember
from .slots import DeepMembers, FullyConnectedMembers, SlotMembers

# the least steps of a chunk, for fully connected networks and for others
LEAST_STEPS = {True: 16, False: 4}
ROW_STEPS = 2048  # rows times steps of a chunk that fill the GPU, for fully connected networks


@final
class Fused:
    """The `Engine` of K members on a GPU, copied: later training does not change the engine.

    bf16: weights and currents of convolutions are in bfloat16, which is several times as fast. A
    rule sees it as another engine.

    Under a `Schedule`, members join as they are asked for, and the first of them run with
    continuous batching. Fully connected members whose sums are not exact (see `mixed_product`) all
    run from the first step, since sums may depend on how many members run together.
    """

    output, reason, copies_weights = "spikes", "", True

    def __init__(self, network: SpikingNetwork, device: str = "cuda", bf16: bool = False) -> None:
        check_network(network)
        self.name = "fused-bfloat16" if bf16 else "fused"
        # CUDA graphs hold on to the memory of these weights
        self._network = deepcopy(network).to(check_device(device)).eval()
        self._device, self._bf16 = torch.device(device), bf16
        self.members, self.classes = network.config.members, network.config.classes
        self._fully_connected = isinstance(network.config, FullyConnected)
        self._networks: list[Any] = [self._network]
        if self._fully_connected:
            for module in self._network.modules():
                if isinstance(module, SRM):
                    module.float16_spikes = True
            weights = [layer.synapses.weight.detach() for layer in self._network.layers]
            self._exact = (
                not network.real_input
                and not bf16
                and all(fixed_point(weight) is not None for weight in weights)
            )
        else:
            self._networks = [
                DeepMember(self._network.select_members(slice(member, member + 1)), bf16)
                for member in range(self.members)
            ]
        self._parts: dict[tuple[int, int], Fused] = {}
        members = self._in_slots()
        self._load = members.load
        self._batching = (
            ContinuousBatching(members, self._device)
            if not (self._fully_connected and bf16)
            else None
        )

    def _in_slots(self) -> SlotMembers:
        return (
            FullyConnectedMembers(self._network)
            if self._fully_connected
            else DeepMembers(self._network, self._networks)
        )

    __repr__ = describe

    def chunk_steps(self, rows: int) -> int:
        # more as inputs stop, since few inputs take hardly longer for many steps
        full = ROW_STEPS if self._fully_connected else self._load.full
        return max(LEAST_STEPS[self._fully_connected], full // max(rows, 1))

    def begin(self, inputs: Inputs, first: int = 0) -> DensePass:
        checked = check_inputs(inputs, self._network.input_shape, self._network.real_input)
        return DensePass(self._networks, self._device, checked, self._load.most, self._bf16)

    def decide(
        self, inputs: Inputs, prefilter: Prefilter, slots: int, chunk: int | None
    ) -> Outcomes | None:
        if prefilter.first_members < self.members:
            first = self.members_slice(0, prefilter.first_members)
            return None if first is None else first.decide(inputs, prefilter, slots, chunk)
        if (
            self._batching is None
            or not len(inputs)
            or (self._fully_connected and inputs.shape[1] == 1)
        ):
            return None
        shape, real_input = self._network.input_shape, self._network.real_input
        checked = (
            check_event_inputs(inputs, shape, real_input)
            if isinstance(inputs, Events)
            else check_inputs(inputs, shape, real_input)
        )
        return self._batching.decide(checked, prefilter, slots, chunk)

    def members_slice(self, first: int, last: int) -> "Fused | None":
        if self._fully_connected and not self._exact:
            return None
        # kept, since their CUDA graphs take a while to capture
        if (first, last) not in self._parts:
            network = self._network.select_members(slice(first, last)).eval()
            network.like(self._network)
            part = copy(self)
            part._network = network
            part._networks = [network] if self._fully_connected else self._networks[first:last]
            part.members, part._parts = last - first, {}
            part._batching = ContinuousBatching(part._in_slots(), self._device)
            self._parts[first, last] = part
        return self._parts[first, last]

    def live(self, number: int = 0) -> Live:
        return (
            DenseLive(self._network, str(self._device))
            if self._batching is None
            else self._batching.live()
        )
