"""Networks of snnTorch, SpikingJelly, Norse and sinabs, as their users write them.

A network may keep its state in its neurons or pass it by hand, and take one step (batch, ...) or
several with a time axis. It is run one step at a time, with the state carried in and out (see
`carried_state`), so that it can stop after any step. Networks are used as they are: no copy is
made, and they hold no state after a run.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from inspect import signature
from typing import Any, Literal

from torch import nn

from agreestop.common import InputError, needs

from .carried_state import Arguments, Buffers, CarriedState, Carrier, Feedback, Memories, OneStep
from .engine import AdaptedEngine
from .modules import as_modules, engine_of

TimeAxis = int | None | Literal["auto"]
Shape = Sequence[int] | int | None


def from_snntorch(
    networks: Sequence[nn.Module],
    *,
    output: str = "spikes",
    time_axis: int | None = None,
    input_shape: Shape = None,
    device: str | None = None,
) -> AdaptedEngine:
    """An engine of K networks of snnTorch, one for each member.

    Neurons may keep their state (`init_hidden=True`) or have it passed by hand; a network may also
    make its states itself and loop over time.

    output       "spikes", which are counted: the first of several outputs; or "logits", such as
                 membrane potentials: the last of them
    time_axis    None for networks that take one step (batch, ...); 0 for (T, batch, ...), 1 for
                 (batch, T, ...). The network must return all steps, on the same axis
    input_shape  the shape of one step of an input; the first inputs tell it if it is None
    device       "cpu", "cuda", or "auto" for a GPU if there is one; without it the networks stay
                 where they are
    """
    base = _library("snntorch").SpikingNeuron

    def carriers(network: nn.Module) -> Iterable[Carrier]:
        for neuron in network.modules():
            if isinstance(neuron, base) and neuron._non_persistent_buffers_set:
                yield Buffers(neuron, sorted(neuron._non_persistent_buffers_set))
                if not neuron.init_hidden:
                    yield Arguments(neuron)

    return _engine(networks, "snnTorch", carriers, output, time_axis, None, input_shape, device)


def from_spikingjelly(
    networks: Sequence[nn.Module],
    *,
    output: str = "spikes",
    time_axis: TimeAxis = "auto",
    input_shape: Shape = None,
    device: str | None = None,
) -> AdaptedEngine:
    """An engine of K networks of SpikingJelly, one for each member.

    time_axis: None for single-step networks, 0 for multi-step ones (T, batch, ...); "auto" reads it
    from the step mode of the neurons. The other options are those of `from_snntorch`.
    """
    base = _library("spikingjelly.activation_based.base")

    def carriers(network: nn.Module) -> Iterable[Carrier]:
        return (
            Memories(module)
            for module in network.modules()
            if isinstance(module, base.MemoryModule)
        )

    def axis(network: nn.Module) -> int | None:
        multi_step = any(
            isinstance(module, base.MemoryModule) and module.step_mode == "m"
            for module in network.modules()
        )
        return 0 if multi_step else None

    return _engine(networks, "SpikingJelly", carriers, output, time_axis, axis, input_shape, device)


def from_norse(
    networks: Sequence[nn.Module],
    *,
    output: str = "spikes",
    time_axis: TimeAxis = "auto",
    input_shape: Shape = None,
    device: str | None = None,
) -> AdaptedEngine:
    """An engine of K networks of Norse, one for each member.

    A network may be a `SequentialState`, take and return a state in its own way, or make its states
    itself and loop over time. time_axis: None for networks that take one step (batch, ...), 0 for
    (T, batch, ...); "auto" is 0 where the network holds a `Lift` or neurons that take a time axis,
    such as `LIF`. The other options are those of `from_snntorch`.
    """
    lift, snn = _library("norse.torch").Lift, _library("norse.torch.module.snn")
    bases = snn.SNNCell, snn.SNNRecurrentCell, snn.SNN, snn.SNNRecurrent

    def carriers(network: nn.Module) -> Iterable[Carrier]:
        outer: set[str] = set()
        # the outermost modules that take a state, as they hold that of those inside
        for name, module in network.named_modules():
            inside = any(name == one or name.startswith(f"{one}.") or not one for one in outer)
            known = isinstance(module, bases) or type(module).__module__.startswith("norse.")
            if known and not inside and "state" in signature(module.forward).parameters:
                outer.add(name)
                yield Arguments(module)

    def axis(network: nn.Module) -> int | None:
        kinds = snn.SNN, snn.SNNRecurrent, lift
        return 0 if any(isinstance(module, kinds) for module in network.modules()) else None

    return _engine(networks, "Norse", carriers, output, time_axis, axis, input_shape, device)


def from_sinabs(
    networks: Sequence[nn.Module],
    *,
    output: str = "spikes",
    time_axis: TimeAxis = "auto",
    input_shape: Shape = None,
    device: str | None = None,
) -> AdaptedEngine:
    """An engine of K networks of sinabs, one for each member; `sinabs.network.Network` too.

    A neuron of sinabs may spike several times in a step: output "spikes" adds up all of them.
    time_axis: 1 for networks that take (batch, T, ...), None for those with "squeeze" layers, which
    take (batch * T, ...); "auto" tells them apart. The other options are those of `from_snntorch`.
    """
    layers = _library("sinabs.layers")
    squeezed, unflatten = _library("sinabs.layers.reshape").SqueezeMixin, layers.UnflattenTime

    def carriers(network: nn.Module) -> Iterable[Carrier]:
        for layer in network.modules():
            if isinstance(layer, layers.StatefulLayer):
                yield Buffers(
                    layer, [name for name, value in layer._buffers.items() if value is not None]
                )
                if hasattr(layer, "rec_connect"):
                    yield Feedback(layer)
            if isinstance(layer, squeezed):
                yield OneStep(layer, batch_size=-1, num_timesteps=1)
            if isinstance(layer, unflatten):
                yield OneStep(layer, forward=lambda x: x.unsqueeze(1))

    def axis(network: nn.Module) -> int | None:
        kinds = squeezed, unflatten
        return None if any(isinstance(layer, kinds) for layer in network.modules()) else 1

    return _engine(
        networks,
        "sinabs",
        carriers,
        output,
        time_axis,
        axis,
        input_shape,
        device,
        counted=output == "spikes",
    )


def _engine(
    networks: Sequence[nn.Module],
    library: str,
    carriers: Callable[[nn.Module], Iterable[Carrier]],
    output: str,
    time_axis: TimeAxis,
    axis_of: Callable[[nn.Module], int | None] | None,
    input_shape: Shape,
    device: str | None,
    counted: bool = False,
) -> AdaptedEngine:
    """The engine of networks of one library. axis_of tells the axis of a network where time_axis is
    "auto". counted: spikes are added up along the way and reach the engine as logits.
    """

    def choose(outputs: Sequence[Any]) -> Any:
        return outputs[-1] if library == "snnTorch" and output != "spikes" else outputs[0]

    carried = []
    for index, network in enumerate(as_modules(networks)):
        found, axis = list(carriers(network)), time_axis
        if axis == "auto" and axis_of is not None:
            axis = axis_of(network)
        if not found:
            raise InputError(
                f"network {index}, a {type(network).__name__}, holds no neurons of {library}: give "
                "networks of that library."
            )
        if axis not in (None, 0, 1) or isinstance(axis, bool):
            raise InputError(
                f"time_axis is {axis!r}: choose 0 for (T, batch, ...), 1 for (batch, T, ...), or "
                "None for one step."
            )
        carried.append(CarriedState(network, found, axis, choose, library == "snnTorch", counted))
    return engine_of(carried, "logits" if counted else output, 0, input_shape, device)


def _library(name: str) -> Any:
    with needs("this adapter", name.partition(".")[0]):
        return import_module(name)
