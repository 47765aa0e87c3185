"""Several workers share the cores: one thread each, since threads that wait for one another on a busy core take many times as long."""

from __future__ import annotations

import os
from importlib.util import find_spec

if "PYTEST_XDIST_WORKER" in os.environ and find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)
