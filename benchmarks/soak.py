"""Whether the memory of the server stays flat: sessions come and go for minutes, and the memory of
its process is read meanwhile.

    python -m benchmarks soak        writes results/serve/soak.json; takes ten minutes

Again and again a client connects and opens 50 sessions. Of these 40 are decided and labelled, 5 are
closed, 3 push what is no input and are refused, and 2 are left open when the client goes away. So
the server counts 3 errors for every 50 sessions, and the study fails where it counts others. The
drift monitor keeps 8 bytes for each decision, in an array that is copied when it grows; that much
is taken off before the growth is judged.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import InputError, Integers
from agreestop.serve import AsyncClient

from .digits import DigitsStudy
from .results import describe_run, write_results
from .serve_worker import server_process, status

SESSIONS, LABELLED, CLOSED, REFUSED = 50, 40, 5, 3
SAMPLES = 20  # readings of the memory; the growth is counted after a fifth of them
MONITOR_BYTES = 8 * 4  # a decision in the monitor, and its share of copies of the array


def memory(process: int) -> int:
    """Bytes that a process holds in memory, as Linux says."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


async def come_and_go(url: str, steps: list[list[Integers]], seconds: float) -> int:
    """Sessions that are decided and labelled, given up, refused, or whose client goes away, for
    some seconds; how many messages the server had to refuse.
    """
    rng, end = np.random.default_rng(0), monotonic() + seconds
    no_input = int(max(step.max(initial=0) for one in steps for step in one)) + 10**6
    refused = 0
    while monotonic() < end:
        async with AsyncClient(url) as client:
            sessions = await asyncio.gather(*(client.open() for _ in range(SESSIONS)))
            await asyncio.gather(
                *(
                    one.push_steps(steps[int(rng.integers(len(steps)))])
                    for one in sessions[:LABELLED]
                )
            )
            await asyncio.gather(*(one.label(0) for one in sessions[:LABELLED]))
            await asyncio.gather(*(one.close() for one in sessions[LABELLED : LABELLED + CLOSED]))
            wrong = sessions[LABELLED + CLOSED : LABELLED + CLOSED + REFUSED]
            answers = await asyncio.gather(
                *(one.push([no_input]) for one in wrong), return_exceptions=True
            )
            refused += sum(isinstance(answer, InputError) for answer in answers)
    return refused


def soak(
    rule: ag.CalibratedRule, ensemble: Any, steps: list[list[Integers]], seconds: float
) -> dict[str, Any]:
    """Run a server for some seconds. `grown` is by how many bytes its memory grew after the
    warm-up, without what the monitor keeps.
    """
    readings, refused = [], 0
    with TemporaryDirectory() as folder:
        rule.save(Path(folder) / "rule")
        ensemble.save(Path(folder) / "members")
        with server_process(Path(folder) / "rule", Path(folder) / "members") as (url, process):
            began = monotonic()
            for _ in range(SAMPLES):
                refused += asyncio.run(come_and_go(url, steps, seconds / SAMPLES))
                found = status(url)
                readings.append(
                    {
                        "seconds": round(monotonic() - began, 1),
                        "bytes": memory(process),
                        "decisions": found["decisions"],
                    }
                )
            while (status(url)["sessions"], status(url)["clients"]) != (0, 0):
                sleep(0.1)
            found = status(url)
    before, after = readings[SAMPLES // 5 - 1], readings[-1]
    kept = MONITOR_BYTES * (after["decisions"] - before["decisions"])
    due = REFUSED * (found["opened"] // SESSIONS)
    if not refused == found["errors"] == due:
        raise AssertionError(
            f"{due} messages were wrong on purpose: {refused} of them were refused, and the server "
            f"counts {found['errors']} errors"
        )
    counts = {
        name: found[name]
        for name in ("decisions", "labels", "errors", "opened", "messages", "sessions")
    }
    return {
        **counts,
        "monitor_bytes": kept,
        "grown": after["bytes"] - before["bytes"] - kept,
        "readings": readings,
    }


def run_soak(seconds: float, output: Path) -> dict[str, Any]:
    """Soak a server of the digits, and write a JSON file."""
    study = DigitsStudy.make()
    inputs = study.inputs.to_dense() if isinstance(study.inputs, ag.events.Events) else study.inputs
    steps = [[np.flatnonzero(step) for step in one] for one in inputs[:100]]
    record = {
        **describe_run(),
        **soak(study.rule, study.ensemble, steps, seconds),
    }
    write_results(output, record)
    return record
