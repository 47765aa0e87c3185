"""The child process of the harness: reads mutations with little memory, and ends itself when one
takes too long.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

from .harness import MEMORY, SECONDS, Format, content_of, outcome


def misbehave(path: Path) -> str:
    """For the test of the harness itself: hang, crash or take memory with seed 0."""
    if json.loads((path.parent / "state.json").read_text() or "{}").get("seed") == 0:
        how = os.environ["AGREESTOP_FUZZ_TRY"]
        while how == "hang":
            time.sleep(1)
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        return str(len(bytearray(2 * MEMORY)))
    return "same"


def formats() -> dict[str, Format]:
    if "AGREESTOP_FUZZ_TRY" in os.environ:
        return {"try": Format("try", Path.touch, misbehave)}
    from .formats import FORMATS

    return FORMATS


def main() -> None:
    folder, state = Path(sys.argv[1]), Path(sys.argv[2])
    jobs: dict[str, list[int]] = json.load(sys.stdin)
    known = formats()
    warnings.simplefilter("error")
    state.write_text("")
    faulthandler.dump_traceback_later(10 * SECONDS, exit=True)
    prepared = {}
    for name in jobs:
        form, path = known[name], folder / name
        path.unlink(missing_ok=True)
        form.write(path)
        prepared[name] = path.read_bytes(), content_of(form.read(path))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with state.open("w") as current:
        for name, seeds in jobs.items():
            content, expected = prepared[name]
            for seed in seeds:
                current.seek(0)
                current.truncate()
                current.write(json.dumps({"format": name, "seed": seed}))
                current.flush()
                path = folder / name
                path.write_bytes(known[name].changed(content, seed))
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                result = outcome(known[name], path, expected)
                faulthandler.cancel_dump_traceback_later()
                print(json.dumps({"format": name, "seed": seed, "outcome": result}), flush=True)


if __name__ == "__main__":
    main()
