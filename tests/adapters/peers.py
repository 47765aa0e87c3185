"""The other libraries, where they are installed. `make peers` installs them and sets
AGREESTOP_PEERS, with which none may be missing.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

import pytest


def library(name: str) -> Any:
    """A module of another library; the test is skipped if it is not installed."""
    try:
        with warnings.catch_warnings():
            # some warn of their own dependencies while they are imported
            warnings.simplefilter("ignore")
            return import_module(name)
    except ImportError:
        if os.environ.get("AGREESTOP_PEERS"):
            raise
        pytest.skip(f"{name.partition('.')[0]} is not installed: `make peers` runs this test")
