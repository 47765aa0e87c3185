"""Copies equal their sources, with one thread and with two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agreestop.networks._kernels import gpu_runtime

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("shared", [False, True])
def test_rows_are_copied(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr(gpu_runtime, "WORTH_SHARING", 0 if shared else 1 << 21)
    monkeypatch.setattr(gpu_runtime, "cores", lambda: 8)
    source, rows = np.random.default_rng(0).random((20, 3)) < 0.5, np.random.default_rng(1).integers(20, size=7)
    out = np.zeros((7, 3), dtype=bool)
    gpu_runtime.copy_rows(source, rows, out)
    np.testing.assert_array_equal(out, source[rows])


@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (300, 80, 100)])
def test_arrays_are_uploaded(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gpu_runtime.upload(values, DEVICE).cpu(), values)
    assert torch.equal(gpu_runtime.AsyncUpload(torch.device(DEVICE)).send(values).wait().cpu(), values)
