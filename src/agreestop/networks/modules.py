"""Members that are modules of the user: K torch modules with one contract.

    output, state = module(x_t, state)        x_t (batch, ...),  output (batch, classes)

The state is None before the first step.

The output at each step is logits, probabilities, or spikes (0 or 1). The module stores nothing
between calls. Its state is any nesting of tuples, lists, dictionaries and dataclasses. Every tensor
in it has a batch axis, the first by default, so an input that has stopped can be dropped.
"""

import reprlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast, final, get_args

import torch
from torch import Tensor, nn

from agreestop.common import InputError, as_shape, is_integer

Output = Literal["spikes", "logits", "probabilities", "numbers", "ends"]
Step = Callable[[Tensor, Any], Any]
"""(x_t, state) -> (output, state)."""
BatchAxis: TypeAlias = Any
"""The batch axis of every tensor of a state: an integer, or a tuple, list or dictionary of them
in the form of the state.
"""
SMALLEST = 1e-37  # probabilities below it count as this, since the logarithm of 0 is not finite
TRIED_STEPS, TRIED_ROWS = 16, 16  # steps and inputs of the trial at the first run
ROUNDED = 0.05  # the share of outputs that may differ in the trial, since rounding can move a spike


class ModuleState(NamedTuple):
    """State of K modules between time steps, and the number of inputs in the batch."""

    members: tuple[Any, ...]
    batch: int
    batch_axis: BatchAxis = 0

    def rows(self, index: Tensor) -> "ModuleState":
        """The state of some inputs of the batch; index holds their positions."""
        members = (
            _map_tensors(
                state, lambda value, axis: value.index_select(axis, index), self.batch_axis
            )
            for state in self.members
        )
        return ModuleState(tuple(members), len(index), self.batch_axis)

    def check(self, advice: str = "") -> None:
        """Refuse a state whose rows cannot be selected. advice: what to do about it, where
        batch_axis cannot be given.
        """

        def check(value: Tensor, axis: int) -> Tensor:
            if not -value.ndim <= axis < value.ndim or value.shape[axis] != self.batch:
                needed = (
                    f"make the batch its first axis, or give batch_axis (now {axis}); keep what "
                    "inputs share as a number or a buffer"
                )
                raise InputError(
                    f"a tensor in the state has shape {tuple(value.shape)} for {self.batch} "
                    f"inputs: {advice or needed}."
                )
            return value

        for state in self.members:
            _map_tensors(state, check, self.batch_axis)


def _map_tensors(value: Any, change: Callable[[Tensor, int], Tensor], axis: BatchAxis) -> Any:
    """The state with every tensor in it changed; `change` gets the tensor and its batch axis."""
    if isinstance(value, Tensor):
        return change(value, _axis(axis, None))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {key: _map_tensors(part, change, _axis(axis, key)) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_map_tensors(part, change, _axis(axis, index)) for index, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        names = [part.name for part in fields(value)]
        return replace(
            value,
            **{
                name: _map_tensors(getattr(value, name), change, _axis(axis, name))
                for name in names
            },
        )
    raise InputError(
        f"the state holds a {type(value).__name__}, whose rows cannot be selected: use tensors, "
        "numbers, None, tuples, lists, dictionaries and dataclasses."
    )


def _axis(axis: BatchAxis, key: Any) -> BatchAxis:
    """The batch axes of one part of a state; key None: those of a tensor, which is one integer."""
    if is_integer(axis):
        return axis
    try:
        if key is not None:
            return axis[key]
    except (IndexError, KeyError, TypeError):
        pass
    raise InputError(
        f"batch_axis is {reprlib.repr(axis)}: give one integer, or integers in the form of the "
        "state."
    )


def check_output(output: str) -> Output:
    """Refuse everything except the kinds of output."""
    if output not in get_args(Output):
        kinds = '"logits", "probabilities", "spikes", "numbers" or "ends"'
        raise InputError(f"output is {output!r}: choose {kinds}.")
    return cast(Output, output)


def check_held(x: Tensor, steps: int | None) -> None:
    """Refuse a number of steps below 1, and more than one time step in x if one image
    is to be held.
    """
    if steps is not None and (not is_integer(steps) or steps < 1 or len(x) != 1):
        raise InputError(
            f"steps is {steps!r} with {len(x)} time steps in x: give x one time step, and steps of "
            "at least 1."
        )


def run_steps(
    members: Sequence[Step],
    x: Tensor,
    state: ModuleState | None,
    steps: int | None,
    output: Output,
    batch_axis: BatchAxis = 0,
) -> tuple[Tensor, ModuleState]:
    """Run each member over x (T, batch, ...), or `steps` times over one held image: outputs
    (T, K, batch, C) and the state after them.

    Probabilities are returned as their logarithms, which are logits.
    """
    if x.ndim < 2 or not x.numel():
        raise InputError(
            f"x has shape {tuple(x.shape)}: (T, batch, ...) with at least one time step and one "
            "input is needed."
        )
    check_held(x, steps)
    batch = x.shape[1]
    if state is not None and (state.batch != batch or len(state.members) != len(members)):
        raise InputError(
            f"state is for {state.batch} inputs and {len(state.members)} members, and x has "
            f"{batch} inputs for {len(members)} members: give the state that the same call "
            "returned."
        )
    frames = x.unbind(0) if steps is None else (x[0],) * steps
    outputs, after = [], []
    for index, member in enumerate(members):
        current, found = None if state is None else state.members[index], []
        for frame in frames:
            value, current = _checked(_call(member, index, frame, current), index, batch)
            # a module may return its state, and change it in place in the next step
            found.append(value.clone())
        outputs.append(torch.stack(found))
        after.append(current)
    classes = [value.shape[-1] for value in outputs]
    if len(set(classes)) > 1:
        raise InputError(
            f"the members give {', '.join(map(str, classes))} classes: each module must give the "
            "same number."
        )
    together = torch.stack(outputs, 1)
    if output == "spikes" and not bool(((together == 0) | (together == 1)).all()):
        raise InputError(
            'output is "spikes", but the modules give values other than 0 and 1: give '
            'output="logits".'
        )
    together = together if together.dtype in (torch.float32, torch.float64) else together.float()
    if output in ("numbers", "ends") and together.shape[-1] != 2:
        pair = "a centre and a scale" if output == "numbers" else "a lower and an upper end"
        raise InputError(
            f'output is "{output}", but the modules give {together.shape[-1]} values: give {pair}.'
        )
    if output == "probabilities":
        if not bool(((together >= 0).all(-1) & ((together.sum(-1) - 1).abs() < 1e-3)).all()):
            raise InputError(
                'output is "probabilities", but the modules give values below 0 or sums other than '
                '1: give output="logits".'
            )
        together = together.clamp_min(SMALLEST).log()
    state_after = ModuleState(tuple(after), batch, batch_axis)
    state_after.check()
    return together, state_after


def _call(member: Step, index: int, frame: Tensor, state: Any) -> Any:
    """One step of a module.

    An error that its input explains is raised again as a sentence, with PyTorch's own behind it.
    """
    version = None if frame.is_inference() else frame._version  # PyTorch counts changes in place
    try:
        returned = member(frame, state)
    except (InputError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        said = " ".join(str(error).split())
        if "memory" in said:
            raise
        needed = (
            "it must take (x_t, state), one step of a batch and None at first, and return (output, "
            "state); for other modules give from_module(modules, step=) a function that does"
        )
        if "dtype" in said:
            needed = (
                f"x_t is {frame.dtype}; convert the module with module.float(), or x_t in the step "
                "function"
            )
        raise InputError(
            f"module {index} failed on x_t of shape {tuple(frame.shape)} ({said[:110]}): {needed}."
        ) from error
    if version is not None and frame._version != version:
        raise InputError(
            f"module {index} changes x_t in place, which other members see too: make a new tensor, "
            "as in x_t = 2 * x_t."
        )
    return returned


def _checked(returned: Any, member: int, batch: int) -> tuple[Tensor, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise InputError(
            f"module {member} returned a {type(returned).__name__}: it must return the pair "
            "(output, state)."
        )
    value, state = returned
    if (
        not isinstance(value, Tensor)
        or value.ndim != 2
        or value.shape[0] != batch
        or value.is_complex()
    ):
        what = (
            f"{value.dtype} of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else f"a {type(value).__name__}"
        )
        raise InputError(
            f"the output of module {member} is {what}: real numbers (batch, classes) are needed, "
            f"here ({batch}, classes)."
        )
    return value, state


def count_classes(
    modules: Sequence[nn.Module],
    output: Output,
    input_shape: Sequence[int] | None,
    batch_axis: BatchAxis = 0,
) -> int:
    """The number of classes in the outputs for one input of zeros.

    Neither the modules nor torch's random numbers change.
    """
    if input_shape is None:
        raise InputError(
            "the number of classes is not known yet: give input_shape, the shape of one step of an "
            "input, or call score or decide once, then live."
        )
    training = {part: part.training for module in modules for part in module.modules()}
    device = next(
        (value.device for module in modules for value in module.parameters()), torch.device("cpu")
    )
    try:
        with _same_random_numbers(device):
            steps = [module.eval() for module in modules]
            zeros = torch.zeros((1, 1, *input_shape), device=device)
            return run_steps(steps, zeros, None, None, output, batch_axis)[0].shape[-1]
    finally:
        for part, mode in training.items():
            part.training = mode


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """A trial of modules: without gradients, and with the random numbers that the next run
    will use again.
    """
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@final
class ModuleMembers(nn.Module):
    """K modules of the user as one network: input (T, batch, ...) to outputs
    (T, K, batch, classes).

    modules: one for each member, with `(x_t, state) -> (output, state)`. output: "logits",
    "probabilities" or "spikes". input_shape: the shape of one input at one time step; the first
    call sets it if it is None. batch_axis: that of the tensors of a state, an integer or integers
    in the form of the state. The attribute `members` is the number of members K.
    """

    real_input, repeats = True, "each"  # modules take any numbers

    def __init__(
        self,
        modules: Sequence[nn.Module],
        output: str = "logits",
        input_shape: Sequence[int] | int | None = None,
        batch_axis: BatchAxis = 0,
    ) -> None:
        super().__init__()
        given = list(modules) if isinstance(modules, (Sequence, nn.ModuleList)) else []
        if not given or not all(isinstance(module, nn.Module) for module in given):
            raise InputError(
                f"modules is not a list of torch modules (it is a {type(modules).__name__}): give "
                "one torch.nn.Module for each member, at least one, such as [module]."
            )
        if len({id(module) for module in modules}) < len(modules):
            raise InputError(
                "modules holds the same module more than once: give each member a module of its "
                "own."
            )
        self.output: Output = check_output(output)
        self.each, self.members = nn.ModuleList(modules), len(modules)
        self.input_shape = None if input_shape is None else as_shape(input_shape, "input_shape")
        self.batch_axis = batch_axis
        self._classes: int | None = None
        self._tried = False

    def select_members(self, members: slice) -> "ModuleMembers":
        """Some of the members: the same modules."""
        fewer = ModuleMembers(
            list(self.each)[members], self.output, self.input_shape, self.batch_axis
        )
        fewer._classes, fewer._tried = self._classes, self._tried
        return fewer

    @property
    def classes(self) -> int:
        """The number of classes C, from a run on one input of zeros if no input has
        been seen yet.
        """
        if self._classes is None:
            self._classes = count_classes(
                list(self.each), self.output, self.input_shape, self.batch_axis
            )
        return self._classes

    def forward(
        self, x: Tensor, state: ModuleState | None = None, steps: int | None = None
    ) -> tuple[Tensor, ModuleState]:
        """Input (T, batch, *input_shape) to outputs (T, K, batch, classes) and the
        state after them.

        A still image is given once, as (1, batch, ...), with the number of `steps` for
        which it is held.
        """
        if self.input_shape is not None and tuple(x.shape[2:]) != self.input_shape:
            sizes = "".join(f", {size}" for size in self.input_shape)
            raise InputError(f"x has shape {tuple(x.shape)}: (T, batch{sizes}) is needed.")
        first_run = (
            state is None and not self.training and not self._tried and x.ndim > 1 and x.numel() > 0
        )
        if first_run:
            self._try(x, steps)
        outputs, after = run_steps(list(self.each), x, state, steps, self.output, self.batch_axis)
        if first_run and steps is None and self.output != "probabilities":
            self._compare_with_run_at_once(
                x[:TRIED_STEPS, :TRIED_ROWS], outputs[:TRIED_STEPS, :, :TRIED_ROWS]
            )
        self.input_shape, self._classes = tuple(x.shape[2:]), outputs.shape[-1]
        return outputs, after

    def _try(self, x: Tensor, steps: int | None) -> None:
        """Refuse modules whose output for an input depends on other inputs, before it or beside it.

        The most active input is run after zeros and then after itself, in batches of two, so the
        arithmetic is the same.
        """
        frames = x[:TRIED_STEPS]
        activity = frames.float().abs().transpose(0, 1).flatten(1).sum(1)
        row = frames[:, activity.argmax()].unsqueeze(1)
        held = None if steps is None else min(steps, TRIED_STEPS)
        pairs = [torch.cat([other, row], 1) for other in (torch.zeros_like(row), row)]
        found = []
        for pair in pairs:
            try:
                with _same_random_numbers(x.device):
                    outputs, *_ = run_steps(
                        list(self.each), pair, None, held, self.output, self.batch_axis
                    )
                    found.append(outputs[:, :, 1])
            except InputError:
                # the run itself will fail in the same way, and name the batch of the user
                return
        for index in range(self.members):
            first, second = (outputs[:, index] for outputs in found)
            if not torch.allclose(first, second, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise InputError(
                    f"module {index} gives another output for an input once it has seen other "
                    "inputs: return as state what it keeps between steps, and compute each row of "
                    "a batch by itself."
                )
        self._tried = True

    def _compare_with_run_at_once(self, x: Tensor, outputs: Tensor) -> None:
        """Warn where a module that can run several steps at once (`run_at_once`) then gives
        something else than step by step.
        """
        for index, module in enumerate(self.each):
            run: Any = getattr(module, "run_at_once", None)
            whole: Tensor | None = None if run is None else run(x)
            if whole is None or not torch.equal(whole, run(x)):  # random outputs cannot be compared
                continue
            same = torch.isclose(
                whole.to(outputs.dtype), outputs[:, index], rtol=1e-3, atol=1e-3, equal_nan=True
            )
            if float(same.float().mean()) < 1 - ROUNDED:
                needed = "take resets, and layers that mix time steps, out of its forward"
                warnings.warn(
                    f"network {index} gives other outputs step by step than for several steps at "
                    f"once: {needed}.",
                    stacklevel=2,
                )
