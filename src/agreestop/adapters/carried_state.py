"""Networks whose neurons keep their state themselves: the state is put in before each step and
taken out after it.

    put(state of these inputs)  →  the network computes one step  →  take(state)

`take` leaves the network as new.

So state goes in and comes out as for any other module, and nothing of one input can stay in the
network when the next one comes. A `Carrier` does this for one neuron module. There is one kind for
each way in which libraries keep state.
"""

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from agreestop.common import InputError
from agreestop.networks.modules import ModuleState


class Carrier(Protocol):
    """Moves the state of one module."""

    def put(self, state: Any) -> None:
        """Give the module a state that `take` returned, or with None the state before
        the first step.
        """

    def take(self) -> Any:
        """The state after a step. The module is left as before its first step."""


@final
class Buffers:
    """State in buffers of a module, which are empty before the first step (snnTorch, sinabs)."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._module, self._names = module, tuple(names)

    def put(self, state: Any) -> None:
        for name in self._names:
            setattr(
                self._module,
                name,
                getattr(self._module, name).new_zeros(0) if state is None else state[name],
            )

    def take(self) -> Any:
        state = {name: getattr(self._module, name) for name in self._names}
        self.put(None)
        # None: the module was not called
        return state if all(value.numel() for value in state.values()) else None


@final
class Memories:
    """State in the memories of a `MemoryModule` of SpikingJelly."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def put(self, state: Any) -> None:
        self._module._memories.update(
            deepcopy(self._module._memories_rv) if state is None else state
        )

    def take(self) -> Any:
        state = dict(self._module._memories)
        self.put(None)
        return state


@final
class Arguments:
    """State that the network hands to a module as arguments and gets back from it
    (snnTorch, Norse).

    A network that is run for one step begins each time with the state that it gives at first. Here
    the state of the step before takes its place. A module may be called several times in a step:
    each call has a state of its own.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._handles: list[Any] = []

    def put(self, state: Any) -> None:
        self._before, self._after = [] if state is None else state, []
        self._handles = [
            self._module.register_forward_pre_hook(self._replace, with_kwargs=True),
            self._module.register_forward_hook(self._record, with_kwargs=True),
        ]

    def take(self) -> Any:
        for handle in self._handles:
            handle.remove()
        return self._after

    def _replace(
        self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if len(given) + len(named) == 1 or len(self._after) >= len(self._before):
            return None
        return (given[0], *self._before[len(self._after)]), {}

    def _record(
        self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        states = len(given) + len(named) - 1
        if states:
            self._after.append(tuple(output[-states:]))


@final
class Feedback:
    """The spikes of a recurrent layer of sinabs, which reach the layer in the next step but are
    not part of its own state.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._spikes: Tensor | None = None
        self._handles: list[Any] = []

    def put(self, state: Any) -> None:
        self._spikes = state
        self._handles = [
            self._layer.register_forward_pre_hook(self._add),
            self._layer.register_forward_hook(self._record),
        ]

    def take(self) -> Any:
        for handle in self._handles:
            handle.remove()
        return self._spikes

    def _add(self, layer: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (
            None
            if self._spikes is None
            else (given[0] + layer.rec_connect(self._spikes).reshape(given[0].shape),)
        )

    def _record(self, layer: Any, given: tuple[Tensor, ...], output: Tensor) -> None:
        self._spikes = output[:, 0]


@final
class OneStep:
    """Attributes of a module that say how it divides its input into steps, changed while the
    network runs one step at a time.
    """

    def __init__(self, module: nn.Module, **attributes: Any) -> None:
        self._module, self._attributes = module, attributes
        self._own: dict[str, Any] = {}

    def put(self, state: Any) -> None:
        own = vars(self._module)
        self._own = {name: own[name] for name in self._attributes if name in own}
        own.update(self._attributes)

    def take(self) -> Any:
        for name in self._attributes:
            del vars(self._module)[name]
        vars(self._module).update(self._own)


def _clear(module: "CarriedState", *_: Any) -> None:
    module.clear()


@final
class CarriedState(nn.Module):
    """A network with the carriers of its state, in the form `(x_t, state) -> (output, state)`.

    time_axis: where the network takes a time axis, of which it gets one step; None if it takes
    none. choose: what to take of several outputs. empty_states: first states that the network asks
    for are empty tensors, else None. counted: the output is the sum of all outputs so far.
    """

    def __init__(
        self,
        network: nn.Module,
        carriers: Sequence[Carrier],
        time_axis: int | None,
        choose: Callable[[Sequence[Any]], Any],
        empty_states: bool = False,
        counted: bool = False,
    ) -> None:
        super().__init__()
        self.network, self._carriers, self._choose = network, tuple(carriers), choose
        self.time_axis, self.empty_states, self.counted = time_axis, empty_states, counted
        parameters = list(inspect.signature(network.forward).parameters.values())[1:]
        stateful = [
            part.name == "state"
            or (part.default is part.empty and part.kind is part.POSITIONAL_OR_KEYWORD)
            for part in parameters
        ]
        self._states_needed = max(
            (index + 1 for index, needed in enumerate(stateful) if needed), default=0
        )
        # the networks of some libraries count their state among their tensors
        self.register_state_dict_pre_hook(_clear)  # type: ignore[no-untyped-call]
        self.clear()

    def clear(self) -> None:
        """Leave the network as before its first step."""
        for carrier in self._carriers:
            carrier.put(None)
            carrier.take()

    def forward(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        states, total = (None, None) if state is None else state
        for index, carrier in enumerate(self._carriers):
            carrier.put(None if states is None else states[index])
        try:
            found = self.network(
                x_t if self.time_axis is None else x_t.unsqueeze(self.time_axis),
                *self._first_states(x_t),
            )
        finally:
            after = [carrier.take() for carrier in self._carriers]
        if state is None:
            advice = (
                "give time_axis=0 if the network takes (T, batch, ...), 1 if it takes (batch, T, "
                "...), None if it takes one step"
            )
            ModuleState((after,), len(x_t)).check(advice)
        output = self._one_step(self._choose(found) if isinstance(found, (tuple, list)) else found)
        if self.counted:
            output = total = output if total is None else total + output
        return output, (after, total)

    def run_at_once(self, x: Tensor) -> Tensor | None:
        """The outputs (T, batch, classes) of the network's own run over x (T, batch, ...).

        None where it has none.
        """
        if self.time_axis is None or any(
            isinstance(carrier, OneStep) for carrier in self._carriers
        ):
            return None
        self.clear()
        try:
            with torch.no_grad():
                given = x if self.time_axis == 0 else x.transpose(0, 1)
                found = self.network(given, *self._first_states(x))
        except (RuntimeError, ValueError, IndexError):
            # a network that takes a fixed number of steps
            return None
        finally:
            self.clear()
        output = self._choose(found) if isinstance(found, (tuple, list)) else found
        if not isinstance(output, Tensor) or output.shape[:-1] != given.shape[:2]:
            return None
        output = output if self.time_axis == 0 else output.transpose(0, 1)
        return output.cumsum(0) if self.counted else output

    def _first_states(self, x: Tensor) -> list[Tensor | None]:
        """What the network is given as its first states.

        Carriers replace them after the first step.
        """
        return [x.new_zeros(0) if self.empty_states else None] * self._states_needed

    def _one_step(self, output: Any) -> Any:
        """The output without its time axis."""
        if self.time_axis is None or not isinstance(output, Tensor):
            return output
        if output.ndim <= self.time_axis or output.shape[self.time_axis] != 1:
            raise InputError(
                f"the network returned shape {tuple(output.shape)} for one step, which has no time "
                f"axis {self.time_axis} of size 1: let its loop run over the steps of x, and "
                "return all of them."
            )
        return output.squeeze(self.time_axis)
