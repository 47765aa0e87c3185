"""Loops over plain arrays, which know neither networks nor rules.

`cpu` holds loops that numba compiles, and `gpu` kernels of Triton. Both are optional: whoever calls
them has PyTorch's operators for the same work, and nothing on a CPU needs `gpu`.
"""

from importlib.util import find_spec

from .srm import SLOPES, Chunk, Constants, Norm, SRMParameters, SRMState, Surrogate

__all__ = ["SLOPES", "TRITON_AVAILABLE", "Chunk", "Constants", "Norm", "SRMParameters", "SRMState"]
__all__ += ["Surrogate"]

TRITON_AVAILABLE = find_spec("triton") is not None and find_spec(f"{__name__}.gpu") is not None
"""Whether the kernels for GPUs can be imported, which is slow, so it is not tried."""
