"""Processes that time one round of work whenever they are asked, so that several versions and
libraries take turns in one run.

A worker is a module that is run with a folder and the name of a system. For each line that it reads
it writes one line that begins with MARK and goes on in JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agreestop as ag
from agreestop.common import InputError

MARK = "round: "
"""What begins a line of results; libraries print too."""
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class System:
    """A process to time: what its records are called, its interpreter, where it finds agreestop,
    and whether it may take one thread only.
    """

    name: str
    version: str
    form: str
    python: str
    source: Path
    single_threaded: bool = True

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        found = {**os.environ, "PYTHONPATH": f"{self.source}{os.pathsep}{ROOT}"}
        return {**found, "OMP_NUM_THREADS": "1"} if self.single_threaded else found


def older_version(name: str, python: str, previous: Path, single_threaded: bool = True) -> System:
    """The system of a checkout of an older version."""
    source = previous.resolve() / "src"
    if not (source / "agreestop").is_dir():
        raise InputError(
            f"previous is {previous}, which holds no src/agreestop: give a checkout of an older "
            "version."
        )
    words = ["git", "-C", str(previous), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return System(name, found or "older", "before", python, source, single_threaded)


def stopping_rule(scores: ag.Scores) -> ag.CalibratedRule:
    """The rule at every step for 0.9, calibrated by the version of this process: older versions do
    not read today's rule files.
    """
    return ag.AgreeStop(0.9, range(1, scores.log_confidence.shape[1] + 1), 1).calibrate(scores)


@contextmanager
def worker(module: str, system: System, folder: Path) -> Iterator[Any]:
    """A function that has the process time one round: a line in, the parsed line of results out."""
    words = [system.python, "-m", module, str(folder), system.name]
    about: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
        "env": system.environment,
    }
    with subprocess.Popen(words, **about) as process:

        def ask(line: str) -> dict[str, Any]:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            for answer in process.stdout:
                if answer.startswith(MARK):
                    found: dict[str, Any] = json.loads(answer[len(MARK) :])
                    return found
            raise InputError(
                f"{system.name} ({system.form}) ended before its times were known: its message "
                "stands above."
            )

        try:
            yield ask
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def in_turn(
    module: str,
    found: Sequence[System],
    folder: Path,
    lines: Sequence[str],
    rounds: int,
) -> dict[str, list[list[dict[str, Any]]]]:
    """For each line the rounds of every system; in each round another system begins."""
    times: dict[str, list[list[dict[str, Any]]]] = {}
    with ExitStack() as stack:
        asks = [stack.enter_context(worker(module, system, folder)) for system in found]
        for line in lines:
            times[line] = [[] for _ in found]
            for repeat in range(rounds):
                for turn in range(len(found)):
                    at = (repeat + turn) % len(found)
                    times[line][at].append(asks[at](line))
    return times
