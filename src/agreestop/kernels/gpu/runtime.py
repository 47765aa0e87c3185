"""The device of a Triton kernel."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def on_device_of(values: Tensor) -> AbstractContextManager[Any]:
    """Make the device of the values the current one, because Triton starts kernels there.

    On a CPU, kernels run in the interpreter.
    """
    return torch.cuda.device(values.device) if values.is_cuda else nullcontext()
