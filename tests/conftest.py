"""What holds for all tests.

Several workers share the cores: one thread each, and for the processes that tests start, since
threads that wait for one another on a busy core take many times as long. Without a GPU, kernels
written in Triton run in its interpreter, which it asks for as it is imported and again later.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
if find_spec("torch") is not None:
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
