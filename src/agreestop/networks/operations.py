"""The operations of networks that have a faster implementation than PyTorch's own operators.

    operation            on a CPU (numba)              on a GPU (Triton)
    linear               kernels.cpu.sparse_product
    convolution          kernels.cpu.convolution
    batch_norm                                         kernels.gpu.batchnorm
    srm                  kernels.cpu.srm               kernels.gpu.srm
    normalised_spikes    kernels.cpu.deep_training     kernels.gpu.deep_training

Each gives the result of the implementation that fits its inputs. None: there is none, and PyTorch
computes it. Kernels are imported on first use, since that compiles loops or loads Triton.
"""

import warnings
from functools import cache

import torch
from torch import Tensor

from agreestop.common import InputError
from agreestop.common.errors import install_extra
from agreestop.kernels import TRITON_AVAILABLE
from agreestop.kernels.cpu.numba_runtime import numba_available
from agreestop.kernels.srm import Constants, Norm, SRMState, Surrogate


def _on_cpu(x: Tensor) -> bool:
    """Whether there are compiled loops for values like these."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    if not numba_available():
        _warn_of_slow_steps()
    return numba_available()


@cache
def _warn_of_slow_steps() -> None:
    """Say once that nothing is compiled."""
    warnings.warn(
        "numba is not installed, or cannot compile here, so spiking layers run step by step in "
        f"PyTorch: {install_extra('engines')} to compile them.",
        stacklevel=4,
    )


def linear(x: Tensor, weight: Tensor) -> Tensor | None:
    """x (T, batch, in) or (T, K, batch, in) times weights (K, in, out), where x is sparse."""
    if not _on_cpu(x):
        return None
    from agreestop.kernels.cpu import sparse_product

    return sparse_product.sparse_product(x, weight) if sparse_product.can_run(x, weight) else None


def convolution(images: Tensor, weight: Tensor, stride: int) -> Tensor | None:
    """Images (n, in, H, W), where they are sparse, and the weights (out, in, size, size) of one
    member in training.
    """
    if not torch.is_grad_enabled() or not _on_cpu(images):
        return None
    from agreestop.kernels.cpu import convolution as loops

    fits = loops.can_run(images, weight, stride)
    return loops.sparse_convolution(images, weight) if fits else None


def batch_norm(images: Tensor, norm: Norm) -> Tensor | None:
    """Images (n, channels, H, W), normalised by their own statistics."""
    if not images.is_cuda or not TRITON_AVAILABLE:
        return None
    from agreestop.kernels.gpu import batchnorm

    return batchnorm.batch_norm(images, norm) if batchnorm.can_run(images, norm.weight) else None


def srm(
    currents: Tensor,
    state: SRMState | None,
    constants: Constants,
    surrogate: Surrogate,
    fused: bool | None,
    float16_spikes: bool,
) -> tuple[Tensor, SRMState] | None:
    """What `neurons.srm` says, whose argument `fused` chooses the implementation."""
    dtype = torch.promote_types(currents.dtype, constants[0].dtype)
    if fused or (fused is None and currents.is_cuda and not torch.compiler.is_compiling()):
        reason = _why_not_triton(currents, dtype, constants)
        if reason is None:
            from agreestop.kernels.gpu.srm import srm_fused

            return srm_fused(currents, state, constants, surrogate, float16_spikes)
        if fused:
            raise InputError(f"fused is True, but {reason}: change that, or give fused=None.")
    if fused is not None or dtype != torch.float32 or not _on_cpu(currents):
        return None
    from agreestop.kernels.cpu import srm as loops

    fits = loops.can_run(currents, state, constants)
    return loops.fused_srm(currents, state, constants, surrogate) if fits else None


def _why_not_triton(currents: Tensor, dtype: torch.dtype, constants: Constants) -> str | None:
    """The reason why the Triton kernel cannot run, or None."""
    if TRITON_AVAILABLE:
        from agreestop.kernels.gpu.srm import objection

        return objection(currents, dtype, constants)
    if currents.is_cuda:
        warnings.warn(
            "Triton is not installed, so spiking layers run step by step on the GPU: install "
            "triton to fuse them.",
            stacklevel=4,
        )
    return "Triton is not installed"


def normalised_spikes(
    currents: Tensor,
    shortcut: Tensor | None,
    steps: int | None,
    table: Tensor,
    norm: Norm,
    surrogate: Surrogate,
    pool: bool,
    fused: bool | None,
) -> Tensor | None:
    """Spikes (T, 1, batch, C, H, W) of one member in training, from rest: batch normalisation,
    shortcut, SRM neurons with the constants `table` (5,), and a 2×2 max-pool if `pool`.

    currents and shortcut are (T, 1, batch, C, H, W). With `steps`, one image is held.
    """
    if currents.is_cuda and TRITON_AVAILABLE if fused is None else fused:
        from agreestop.kernels.gpu import deep_training as kernels

        images, count = _channels_last(currents), steps or len(currents)
        added = None if shortcut is None else _channels_last(shortcut)
        if not kernels.can_run(images, added, count):
            return None
        spikes = kernels.normalised_spikes(images, added, count, table, norm, surrogate, 1 + pool)
    else:
        alone = pool and shortcut is None and steps is None and fused is None
        if not alone or not _on_cpu(currents):
            return None
        from agreestop.kernels.cpu import deep_training as loops

        images = _channels_last(currents)
        if not loops.can_run(images, surrogate):
            return None
        spikes = loops.normalised_spikes(images, table, norm, surrogate)
    return spikes.permute(0, 1, 4, 2, 3).unsqueeze(1)


def _channels_last(x: Tensor) -> Tensor:
    """(T, 1, batch, C, H, W) as (T, batch, H, W, C), dense; on a GPU it is already."""
    return x.squeeze(1).permute(0, 1, 3, 4, 2).contiguous()
