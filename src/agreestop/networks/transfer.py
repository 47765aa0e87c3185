"""Inputs on their way from numpy to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: Tensor | NDArray[Any], device: torch.device | str) -> Tensor:
    """The array on the device, of the same type; to a GPU through page-locked memory, so that the copy goes on while Python does."""
    source = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type != "cuda":
        return source.to(device)
    locked = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    return locked.copy_(source).to(device, non_blocking=True)


def as_numbers(inputs: Tensor) -> Tensor:
    """Booleans as bf16 on a GPU, which holds them exactly and multiplies fastest; all else as float32."""
    return inputs.to(torch.bfloat16 if inputs.is_cuda and inputs.dtype == torch.bool else torch.float32)
