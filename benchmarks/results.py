"""What every results file says of the run behind it: the command, the machine and the versions."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agreestop.common import atomic_writer, cores, make_folder

PACKAGES = ("agreestop", "numpy", "torch", "numba")


def describe_run(
    packages: Sequence[str] = PACKAGES, device: str = "cpu", command: str | None = None
) -> dict[str, Any]:
    """The command (that of this process unless given), the machine with the cores that other work
    keeps busy, and versions of packages.

    The file that it writes is left out of the command, and of absolute paths only the names stay:
    results are often moved from the machine that made them.
    """
    words = shlex.split(command) if command else ["python", "-m", "benchmarks", *sys.argv[1:]]
    kept = [
        word
        for word, before in zip(words, ["", *words], strict=False)
        if not {word, before} & {"-o", "--output"}
    ]
    return {
        "command": shlex.join(
            Path(word).name if Path(word).is_absolute() else word for word in kept
        ),
        "machine": {"device": device, "cpu": cpu_model(), "cores": cores(), "load": busy_cores()},
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in packages},
        },
    }


def busy_cores(seconds: float = 0.5) -> float:
    """The cores that are busy with other work just now; the load average of the system would still
    count what ended a minute ago.
    """

    def times() -> tuple[float, float]:
        numbers = [
            float(word)
            for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        ]
        return sum(numbers), numbers[3] + numbers[4]

    try:
        before = times()
        time.sleep(seconds)
        total, idle = (after - first for after, first in zip(times(), before, strict=True))
    except (OSError, ValueError, IndexError):
        return 0.0
    return (os.cpu_count() or 1) * (1 - idle / max(total, 1.0))


def cpu_model() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


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
