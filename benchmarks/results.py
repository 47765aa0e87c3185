"""What every results file says of the run behind it: the command, the machine and the versions."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agreestop.common import atomic_writer, cores, make_folder

PACKAGES = ("agreestop", "numpy", "torch", "numba")


def describe_run(packages: Sequence[str] = PACKAGES, device: str = "cpu", command: str | None = None) -> dict[str, Any]:
    """The command (that of this process unless given), the machine with its load by all programs, and versions of packages.

    The file that it writes is left out of the command: results are often moved from the machine that made them.
    """
    words = shlex.split(command) if command else ["python", "-m", "benchmarks", *sys.argv[1:]]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "command": shlex.join(word for word, before in zip(words, ["", *words], strict=False) if not {word, before} & {"-o", "--output"}),
        "machine": {"device": device, "cpu": cpu_model(), "cores": cores(), "load": load},
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in packages}},
    }


def cpu_model() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def version_of(name: str) -> str:
    """The installed version, or "unknown" if the package was not installed by pip."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    make_folder(path.parent)
    with atomic_writer(path) as stream:
        stream.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
