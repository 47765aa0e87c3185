"""`python -m tests.fuzz --minutes N -o FILE`: read damaged files of every format for N minutes, and
write the counts as JSON.

`--format NAME --seed N` repeats one mutation in this process, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from .formats import FORMATS
from .harness import run_for


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--first", type=int, default=1_000, help="the first seed")
    parser.add_argument(
        "--format",
        choices=sorted(FORMATS),
        action="append",
        help="only this format; may be given several times",
    )
    parser.add_argument("--seed", type=int, help="repeat one mutation of --format")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    names = given.format or [name for name, form in FORMATS.items() if not form.missing]
    if given.seed is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / names[0]
            FORMATS[names[0]].write(path)
            path.write_bytes(FORMATS[names[0]].changed(path.read_bytes(), given.seed))
            print(repr(FORMATS[names[0]].read(path))[:2000])
        return 0
    counts = run_for(60 * given.minutes, names, given.first)
    write_counts(counts, given.output)
    return 1 if any(entry["failed"] for entry in counts.values()) else 0


def write_counts(counts: dict[str, dict[str, object]], path: Path | None) -> None:
    """The counts of a run, by format and in all."""
    total = {
        name: sum(int(str(entry[name])) for entry in counts.values())
        for name in ("same", "refused", "other", "failed")
    }
    text = (
        json.dumps({"mutations": sum(total.values()), **total, "formats": counts}, indent=1) + "\n"
    )
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
