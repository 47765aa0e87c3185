"""Which axis is time: the second for inputs of ensembles, the last for series of scikit-learn and
aeon. One taken for the other is said.

inputs    (n, T, ...)           `Events`, ensembles, adapters of torch modules
series    (n, channels, T)      `EarlyClassifier` and aeon
"""

import warnings
from collections.abc import Sequence
from typing import Any

from .errors import InputError

# at most FEW_STEPS steps of MANY_TIMES as many numbers each look like channels and times
FEW_STEPS, MANY_TIMES = 16, 8


def time_last(shape: Sequence[int], step_shape: Sequence[int]) -> str:
    """What to say of inputs that fit the shape of a step if their last axis is time;
    empty for others.
    """
    inner = tuple(shape[1:-1])
    if len(shape) < 3 or inner != tuple(step_shape) or tuple(shape[2:]) == inner:
        return ""
    return (
        "; time is the second axis here, and seems to be the last of yours: give numpy.moveaxis(x, "
        "-1, 1)"
    )


def warn_of_time_last(shape: Sequence[int], kind: str) -> None:
    """Warn of real inputs (n, T, channels) that look like (n, channels, T), where no shape of a
    step is known to compare with.

    kind: that of their dtype; events and counts have many cells and few steps as a rule, and
    nothing is said of them
    """
    if (
        len(shape) == 3
        and kind == "f"
        and 1 < shape[1] <= FEW_STEPS
        and shape[2] >= MANY_TIMES * shape[1]
    ):
        taken = (
            f"x has shape {tuple(shape)}, which is taken as {shape[1]} steps of {shape[2]} numbers"
        )
        warnings.warn(
            f"{taken}: if these are {shape[1]} channels, give numpy.moveaxis(x, -1, 1).",
            stacklevel=3,
        )


def check_series(shape: Sequence[int], checkpoints: Any) -> None:
    """Refuse series (n, T, channels) where (n, channels, T) is needed, if the checkpoints tell.

    Warn of more channels than times.
    """
    if len(shape) != 3:
        return
    inner, length = shape[1:]
    advice = "give X.transpose(0, 2, 1) if its second axis is time"
    taken = f"X has shape {tuple(shape)}, which is taken as {inner} channels at {length} times"
    try:
        last = max(checkpoints)
    except (TypeError, ValueError):
        last = 0
    if isinstance(last, (int, float)) and length < last <= inner:
        raise InputError(f"{taken}, and the last checkpoint is {last}: {advice}.")
    if inner > length:
        warnings.warn(f"{taken}: {advice}.", stacklevel=3)
