"""One small ensemble for all tests of the server."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def served() -> Any:
    from .served import Served  # it needs PyTorch, without which these tests are skipped

    return Served()
