"""The package on other machines: without the modules that only Unix has, and without kernels for
GPUs.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_UNIX = """
import sys
from pathlib import Path
for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
from importlib import import_module
import agreestop
for path in Path(agreestop.__file__).parent.rglob("*.py"):
    package = path.relative_to(Path(agreestop.__file__).parents[1]).with_suffix("").parts
    if "gpu" not in package and "cluster" not in package:
        try:
            import_module(".".join(package).removesuffix(".__init__"))
        except ModuleNotFoundError as error:
            unix_only = ("resource", "fcntl", "pwd", "grp", "termios")
            assert error.name not in unix_only, (package, error)
from agreestop.common import folder_lock
with folder_lock(Path(sys.argv[1]), print):
    pass
from agreestop.serve.server import _allow_files
print(_allow_files(7))
"""
NO_GPU = """
import sys
sys.modules["agreestop.kernels.gpu"] = None
import numpy as np
import agreestop as ag
from agreestop.kernels import TRITON_AVAILABLE
assert not TRITON_AVAILABLE
x = np.random.default_rng(0).random((60, 8, 2, 6, 6)) < 0.3
y = np.arange(60) % 2
full = ag.networks.FullyConnected((2, 6, 6), 2, hidden=(16,))
convolutional = ag.networks.Convolutional((2, 6, 6), 2, channels=(16,))
for network in (full, convolutional):
    ensemble = ag.ensembles.DeepEnsemble(network, members=2, device="cpu")
    ensemble.fit(x[:20], y[:20], epochs=1, progress=False)
    rule = ag.AgreeStop(0.6, range(1, 9), 1).calibrate(ensemble.score(x[20:40], y[20:40]))
    run = ensemble.decide(rule, x[40:])
    session = ensemble.live(rule)
    decisions = [session.push(frame=step) for step in x[40]]
    assert next(one for one in decisions if one is not None).time == run.decisions[0].time
print("decided")
"""


def printed(code: str, *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_nothing_needs_a_module_that_only_unix_has(tmp_path: object) -> None:
    pytest.importorskip("uvicorn", reason="the server needs uvicorn")
    said, allowed = printed(NOT_UNIX, str(tmp_path)).splitlines()
    assert "no file locks" in said and allowed == "7"


def test_a_cpu_needs_no_kernels_for_gpus() -> None:
    pytest.importorskip("torch", reason="networks need PyTorch")
    assert printed(NO_GPU) == "decided\n"
