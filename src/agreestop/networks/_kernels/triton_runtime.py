"""The runtime of the Triton kernels. Importing Triton is slow, so this module does not import it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

TRITON_AVAILABLE = find_spec("triton") is not None


def on_device_of(values: Tensor) -> AbstractContextManager[Any]:
    """Make the device of the values the current one, because Triton starts kernels there. On a CPU, kernels run in the interpreter."""
    return torch.cuda.device(values.device) if values.is_cuda else nullcontext()
