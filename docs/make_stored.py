"""Write what the scripts of examples/adapters print and draw into docs/_static/stored, for pages
that are built without their libraries.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "_static" / "stored"
NAMES = ("snntorch", "spikingjelly", "norse", "sinabs")


def main() -> None:
    """Run each script in a folder of its own."""
    STORED.mkdir(exist_ok=True)
    for name in NAMES:
        printed = io.StringIO()
        pyplot.close("all")
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(printed),
        ):
            runpy.run_path(str(ROOT / "examples" / "adapters" / f"{name}.py"))
        (STORED / f"{name}.txt").write_text(printed.getvalue(), encoding="utf-8")
        pyplot.gcf().savefig(STORED / f"{name}.png", dpi=80, bbox_inches="tight")
        print(f"Wrote {os.path.relpath(STORED / name)}.txt and .png")


if __name__ == "__main__":
    main()
