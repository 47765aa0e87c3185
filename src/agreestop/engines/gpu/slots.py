"""Slots: inputs at fixed memory addresses, which members take through a segment of steps, captured
once as a CUDA graph and replayed.

Launching the short kernels of a segment from Python would take longer than running them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from agreestop.engines.devices import capture_cuda_graph
from agreestop.kernels.mixed_product import fixed_point
from agreestop.kernels.srm import SRMState
from agreestop.networks.architectures import SpikingNetwork

from .deep import DeepMember, DeepState

TABLE = 4  # entries of the table of `kernels.gpu.inputs`, which it describes
# neurons of the largest layer times steps that are computed together, for networks with
# convolutions
NEURON_STEPS = 1 << 28
# steps of a segment for these: few, since their early decisions come within a few steps
DEEP_STEPS = 2


class Load(NamedTuple):
    """How much is computed together.

    steps  the most steps of a segment where the caller names no chunk
    full   slots times steps that fill the GPU
    most   the most slots times steps that are computed together
    """

    steps: int
    full: int
    most: int


class SlotShape(NamedTuple):
    """Slots, steps of a segment, whether each input is an image that is held, and the dtype
    of the frames.
    """

    width: int
    steps: int
    held: bool
    dtype: torch.dtype


RunSegment = Callable[[Tensor, Tensor], Tensor]
"""Called with `begins` and `times` (width,).

Moves the slots on by a segment and gives its read-out spikes (steps, K, width, C).
"""


class SlotMembers(Protocol):
    """K members that can run in slots."""

    members: int
    classes: int
    input_shape: tuple[int, ...]
    real_input: bool
    repeats: str
    load: Load

    def in_slots(self, frames: Tensor, steps: int) -> RunSegment:
        """A segment of these steps on frames (steps, width, ...), or (1, width, ...) that are
        held, which stay where they are.
        """
        ...


@final
class FullyConnectedMembers:
    """All members in one network.

    Inputs of zeros and ones are computed as bits (`gpu.sparse`), others in the network itself.
    """

    load = Load(16, 16384, 20480)

    def __init__(self, network: SpikingNetwork) -> None:
        self._network = network
        self._layers = network.layers
        self.members, self.classes = network.members, network.classes
        self.input_shape = network.input_shape
        self.real_input = network.real_input
        self.repeats = network.repeats

    def in_slots(self, frames: Tensor, steps: int) -> RunSegment:
        memory = [torch.stack(layer) for layer in self._network(frames[:1].float())[1].layers]
        sparse = self._sparse_layers() if frames.dtype == torch.float16 else None

        def run(begins: Tensor, times: Tensor) -> Tensor:
            fresh, x = (begins >= 0)[:, None], frames.flatten(2)
            if sparse is not None:
                return sparse(x, memory, begins)
            for layer, state in zip(self._layers, memory, strict=True):
                state.masked_fill_(fresh, 0)
                x, after = layer(x, x, SRMState(*state), None)
                torch._foreach_copy_(list(state), list(after))
            return x

        return run

    def _sparse_layers(self) -> Callable[[Tensor, Sequence[Tensor], Tensor], Tensor] | None:
        """The layers, called with spikes, states and begins.

        None if some weights have no fixed point.
        """
        # imported here since importing Triton is slow
        from agreestop.kernels.gpu.sparse import SparseLayer, spiking_layers

        layers = []
        for layer in self._layers:
            weight = layer.synapses.weight.detach()
            fixed = fixed_point(weight)
            if fixed is None:
                return None
            layers.append(
                SparseLayer.of(fixed, layer.neurons.parameters_for(weight[None]).constants)
            )
        return lambda x, states, begins: spiking_layers(x, layers, states, begins)


@final
class DeepMembers:
    """Members of a network with convolutions, one after the other: each fills the GPU."""

    def __init__(self, network: SpikingNetwork, members: Sequence[DeepMember]) -> None:
        self._members = members
        self.members, self.classes = len(members), network.classes
        self.input_shape = network.input_shape
        self.real_input = network.real_input
        self.repeats = network.repeats
        most = max(1, NEURON_STEPS // max(member.largest_layer for member in members))
        self.load = Load(DEEP_STEPS, most, most)

    def in_slots(self, frames: Tensor, steps: int) -> RunSegment:
        width, held = frames.shape[1], steps if len(frames) < steps else None
        states = [
            member.run(frames, *member.start(width), held)[1].layers for member in self._members
        ]

        def run(begins: Tensor, times: Tensor) -> Tensor:
            pairs = zip(self._members, states, strict=True)
            return torch.cat(
                [
                    member.run(frames, DeepState(layers, times), begins, held)[0]
                    for member, layers in pairs
                ],
                1,
            )

        return run


@final
class Slots:
    """Slots of K members.

    The host writes `host_rows`, `host_times` and `host_begins` (width,), and the `host_table` of
    the inputs, while nothing runs. A slot continues where `begins` is -1 and starts from zero where
    it is another number. `load(slots, frames)` fills the frames (steps, width, ...), or
    (1, width, ...) for images that are held. `after(spikes, begins)` receives the read-out spikes
    (steps, K, width, C).
    """

    @torch.inference_mode()
    def __init__(
        self,
        members: SlotMembers,
        device: torch.device,
        shape: SlotShape,
        load: Callable[["Slots", Tensor], None],
        after: Callable[[Tensor, Tensor], None],
    ) -> None:
        on_gpu = device.type == "cuda"
        self._load, self._after = load, after
        self._host = torch.zeros(TABLE + 3 * shape.width, dtype=torch.int64, pin_memory=on_gpu)
        self._on_device = self._host.to(device)
        self.host_table, self.host_rows, self.host_times, self.host_begins = _parts(
            self._host.numpy(), shape.width
        )
        self.table, self.rows, self.times, self.begins = _parts(self._on_device, shape.width)
        self._frames = torch.zeros(
            (1 if shape.held else shape.steps, shape.width, *members.input_shape),
            dtype=shape.dtype,
            device=device,
        )
        self._run = members.in_slots(self._frames, shape.steps)
        self.stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._replay = self._captured() if on_gpu else self._segment

    @torch.inference_mode()
    def _segment(self) -> None:
        self._on_device.copy_(self._host, non_blocking=True)
        self._load(self, self._frames)
        self._after(self._run(self.begins, self.times), self.begins)

    def _captured(self) -> Callable[[], None]:
        """The segment as a CUDA graph.

        The capture changes the state, so every slot must begin in the first segment.
        """
        self.stream.wait_stream(torch.cuda.current_stream(self._frames.device))
        with torch.cuda.stream(self.stream):
            return capture_cuda_graph(self._segment)

    def start(self, behind: "Slots | None" = None) -> None:
        """Start a segment, after the work of `behind` if that is given."""
        if self.stream is None:
            self._replay()
            return
        if behind is not None:
            self.stream.wait_stream(behind.stream)
        before = torch.cuda.current_stream(self.stream.device)
        torch.cuda.set_stream(self.stream)  # `with torch.cuda.stream` takes several times as long
        try:
            self._replay()
        finally:
            torch.cuda.set_stream(before)

    def wait(self) -> None:
        """Wait until the segment is done."""
        if self.stream is not None:
            self.stream.synchronize()


def _parts(values: Any, width: int) -> tuple[Any, Any, Any, Any]:
    """Table, rows, times and begins."""
    slots = values[TABLE:]
    return values[:TABLE], slots[:width], slots[width : 2 * width], slots[2 * width :]
