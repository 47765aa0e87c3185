"""Any torch module that goes one step at a time.

    output, state = step(module, x_t, state)        x_t (batch, ...),  output (batch, classes)

The state is None before the first step.

A state is any nesting of tuples, lists, dictionaries and dataclasses of tensors with a batch axis.
Nothing else passes from one step to the next, so no input meets the state of another, and an input
that has stopped is dropped from the state.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from agreestop.common import InputError
from agreestop.engines.dense import Dense
from agreestop.networks.digests import source_of
from agreestop.networks.modules import BatchAxis, ModuleMembers

from .engine import AdaptedEngine

Init = Callable[[Any, int], Any]
"""(module, batch) -> the state before the first step."""
ModuleStep = Callable[[Any, Tensor, Any], tuple[Tensor, Any]]
"""(module, x_t, state) -> (output, state)."""


def from_module(
    modules: Sequence[nn.Module],
    *,
    init: Init | None = None,
    step: ModuleStep | None = None,
    output: str = "logits",
    batch_axis: BatchAxis = 0,
    input_shape: Sequence[int] | int | None = None,
    device: str | None = None,
) -> AdaptedEngine:
    """An engine of K torch modules, one for each member.

    init         `init(module, batch)` returns the state of `batch` inputs before the first step;
                 without it the first state is None
    step         `step(module, x_t, state)` returns (output, state); without it the module itself
                 takes (x_t, state)
    output       what a step gives: "logits", of which the last count; "probabilities", the same; or
                 "spikes" (0 or 1), which are counted; or for `IntervalStop` "numbers", a centre and
                 a scale, or "ends", a lower and an upper end
    batch_axis   the batch axis of the tensors in a state: one integer, or integers in the form of
                 the state; 1 for the (layers, batch, hidden) of torch.nn.GRU
    input_shape  the shape of one step of an input; the first inputs tell it if it is None
    device       "cpu", "cuda", or "auto" for a GPU if there is one; without it the modules stay
                 where they are

    The modules run in evaluation mode and without gradients, and are used as they are:
    no copy is made.
    """
    if init is None and step is None:
        return engine_of(modules, output, batch_axis, input_shape, device)
    for name, given, takes in (("init", init, "batch"), ("step", step, "x_t, state")):
        if given is not None and not callable(given):
            raise InputError(
                f"{name} is a {type(given).__name__}: give a function of (module, {takes})."
            )
    return engine_of(
        [Stepped(module, init, step) for module in as_modules(modules)],
        output,
        batch_axis,
        input_shape,
        device,
    )


def as_modules(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The modules as a list; what is not a list of torch modules is refused."""
    return list(ModuleMembers(modules).each)


def engine_of(
    modules: Sequence[nn.Module],
    output: str,
    batch_axis: BatchAxis,
    input_shape: Sequence[int] | int | None,
    device: str | None,
) -> AdaptedEngine:
    """The engine of modules `(x_t, state) -> (output, state)`."""
    members = ModuleMembers(modules, output, input_shape, batch_axis)
    if device is None:
        found = {str(value.device) for value in members.parameters()} | {
            str(value.device) for value in members.buffers()
        }
        if len(found) > 1:
            raise InputError(
                f"the modules are on {', '.join(sorted(found))}: move them to one device, or give "
                "device=."
            )
        device = found.pop() if found else "cpu"
    return AdaptedEngine(partial(Dense, members, device), members)


@final
class Stepped(nn.Module):
    """A module with the functions that start and step it, in the form
    `(x_t, state) -> (output, state)`.
    """

    def __init__(self, module: nn.Module, init: Init | None, step: ModuleStep | None) -> None:
        super().__init__()
        self.module, self._init, self._step = module, init, step
        # the digest of the members covers it
        self.functions = "\n".join(
            source_of(function) for function in (init, step) if function is not None
        )

    def forward(self, x_t: Tensor, state: Any) -> Any:
        if state is None and self._init is not None:
            state = self._init(self.module, len(x_t))
        return (
            self.module(x_t, state) if self._step is None else self._step(self.module, x_t, state)
        )
