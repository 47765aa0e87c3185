"""Copies equal their sources, with one thread and with two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agreestop.engines import devices

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("shared", [False, True])
def test_arrays_are_locked_in_memory(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr(devices, "WORTH_SHARING", 0 if shared else 1 << 21)
    monkeypatch.setattr(devices, "cores", lambda: 8)
    source = np.random.default_rng(0).integers(2**16, size=(21, 3)).astype(np.uint16)
    source.flags.writeable = False  # as in a file that is memory-mapped
    np.testing.assert_array_equal(devices.lock_in_memory(source).numpy(), source)


@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (300, 80, 100)])
def test_arrays_are_uploaded(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(devices.upload(values, DEVICE).cpu(), values)
    assert torch.equal(devices.AsyncUpload(torch.device(DEVICE)).send(values).wait().cpu(), values)
