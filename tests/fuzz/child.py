"""The child process of the harness: reads mutations with little memory, and ends itself when one takes too long."""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import warnings
from pathlib import Path

from .formats import FORMATS
from .harness import MEMORY, SECONDS, content_of, outcome


def main() -> None:
    folder, state = Path(sys.argv[1]), Path(sys.argv[2])
    jobs: dict[str, list[int]] = json.load(sys.stdin)
    warnings.simplefilter("error")
    prepared = {}
    for name in jobs:
        form, path = FORMATS[name], folder / name
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
                path.write_bytes(FORMATS[name].changed(content, seed))
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                result = outcome(FORMATS[name], path, expected)
                faulthandler.cancel_dump_traceback_later()
                print(json.dumps({"format": name, "seed": seed, "outcome": result}), flush=True)


if __name__ == "__main__":
    main()
