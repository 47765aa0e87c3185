"""A batch normalisation in training, as the kernels take it."""

from typing import NamedTuple

from torch import Tensor


class Norm(NamedTuple):
    """Weight, bias and running statistics (channels,), which move on in place, and the constants
    of a batch normalisation in training.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    epsilon: float
