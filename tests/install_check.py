"""Use of the installed wheel in a clean environment: `make install-check` runs this file with the
Python of that environment.

The environment holds agreestop and its three dependencies only. The decision layer and the command
line must work there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import distribution, files
from importlib.util import find_spec
from pathlib import Path


def check_contents() -> None:
    """The wheel holds the package, its template and its style, and neither paper nor benchmarks."""
    import agreestop

    root = Path(agreestop.__file__).parent
    assert root.parent.name == "site-packages", f"{root} is not an installed package"
    names = [str(name) for name in files("agreestop") or ()]
    for name in (
        "agreestop/report/page.html.j2",
        "agreestop/report/page.css",
        "agreestop/py.typed",
    ):
        assert name in names, f"{name} is not in the wheel"
    assert not [name for name in names if name.startswith(("paper", "benchmarks", "tests"))]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in root.rglob("*.py"))
    for heavy in ("torch", "numba", "matplotlib", "sklearn", "safetensors", "jinja2"):
        assert find_spec(heavy) is None, f"{heavy} is installed: the environment is not clean"
    print(f"agreestop {distribution('agreestop').version}: {lines} lines of Python")


def check_decisions(folder: Path) -> None:
    """Calibrate, decide and evaluate on simulated scores, in Python."""
    import agreestop as ag

    scores = ag.simulate_scores(400)
    assert scores.labels is not None
    ag.save_scores(folder / "calibration.npz", scores.rows(slice(0, 100)))
    ag.save_scores(folder / "test.npz", scores.rows(slice(100, None)))
    calibrated = ag.AgreeStop(0.9, (20, 40, 60, 80), 2).calibrate(
        scores.log_confidence[:100], scores.labels[:100], scores.times
    )
    result = ag.evaluate(
        calibrated.decide(scores.log_confidence[100:], scores.times), scores.labels[100:]
    )
    assert result.n == 300 and 0.7 < result.coverage <= 1
    try:
        ag.ensembles  # noqa: B018
    except ImportError as error:
        assert "agreestop[" in str(error), error
    else:
        raise AssertionError(
            "agreestop.ensembles needs PyTorch, which is missing: a sentence should say what to "
            "install"
        )


def check_command_line(folder: Path) -> None:
    """The same on the command line; what needs more is refused in a sentence."""
    program = Path(sys.executable).with_name("agreestop")

    def call(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [program, *words], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return " ".join((done.stdout + done.stderr).split())

    assert "agreestop 0.3.0" in call("--version")
    assert "--simulated" in call("run", "--help")
    call("calibrate", "calibration.npz", "--checkpoints", "20,40,60,80", "-o", "rule")
    assert call("decide", "rule", "test.npz").startswith("input,stop_time,set_size,classes 0,")
    assert "By true class" in call("evaluate", "rule", "test.npz")
    assert "pip install 'agreestop[figures]'" in call("run", "--simulated", code=2)
    assert "pip install 'agreestop[engines,learn]'" in call("train", code=2)


if __name__ == "__main__":
    check_contents()
    with tempfile.TemporaryDirectory() as folder:
        check_decisions(Path(folder))
        check_command_line(Path(folder))
    print("The wheel works in a clean environment.")
