"""
A whole run from a configuration file
=====================================

For whoever trains, measures and reports with one file of settings. Own recordings enter as
files. Simulated data.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)
labels = rng.integers(3, size=900)
rates = 0.06 + 0.10 * (np.arange(12) % 3 == labels[:, None])
ag.events.Events.from_dense(
    rng.random((900, 20, 12)) < rates[:, None, :], labels, ("smooth", "rough", "edge")
).save("touch.npz")

Path("touch.toml").write_text("""
name = "touch"
[data]
name = "files"
file = "touch.npz"           # divided into training, tuning and pool; or three files
[network]
hidden = [32]
[[ensembles]]
kind = "deep"
members = 2
epochs = 3
[decide]
target = 0.9
max_set_size = 1             # one answer
n_calibration = 50
realisations = 10
checkpoints = [5, 10, 15, 20]
""")
agreestop = Path(sys.executable).with_name("agreestop")  # also where its environment is not active
subprocess.run([agreestop, "run", "touch.toml", "-o", "runs/touch"], check=True)
print(*sorted(path.name for path in Path("runs/touch").iterdir()))

# %%
# The run leaves scores. A rule calibrated on them, and the share of inputs answered by each step:
calibration, test = (
    ag.load_scores(f"runs/touch/deep/{part}.npz") for part in ("calibration", "test")
)
ag.plot.stopping(ag.AgreeStop(0.9, range(1, 21), 1).calibrate(calibration).decide(test))

# %%
# The data above are simulated. Measured on real data: images of CIFAR-10, watched for T = 80 steps,
# beside simulated digits (more in :doc:`/paper`):
#
# .. include:: /paper.md
#    :parser: myst_parser.sphinx_
#    :start-after: <!-- results: begin -->
#    :end-before: <!-- results: end -->
