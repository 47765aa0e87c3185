"""Damaged files of every format: the same result, a sentence, or another valid file, and nothing
else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from agreestop.common import InputError

from .__main__ import write_counts
from .formats import FORMATS
from .harness import SEEDS, Format, content_of, count, mutate, outcome, run_child, run_for

EACH = 10  # mutations of each format in the short run
LONG = 300.0  # seconds of the long run
HERE = [name for name, form in FORMATS.items() if not form.missing]
RESULTS = Path(__file__).parents[2] / "results" / "reliability.json"


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    jobs = [(name, (*range(EACH), *SEEDS.get(name, []))) for name in HERE]
    return count(run_child(jobs, tmp_path_factory.mktemp("fuzz")))


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_refused_or_read(counts: dict[str, dict[str, Any]], name: str) -> None:
    if FORMATS[name].missing:
        pytest.skip(FORMATS[name].missing)
    assert not counts[name]["failures"]
    assert counts[name]["refused"] + counts[name]["same"] + counts[name]["other"] == EACH + len(
        SEEDS.get(name, [])
    )
    assert not (FORMATS[name].digest and counts[name]["other"])


def test_seeds_are_of_formats_that_exist() -> None:
    assert SEEDS.keys() <= FORMATS.keys()


def test_a_mutation_follows_from_its_seed() -> None:
    content = bytes(range(256)) * 4
    changed = [mutate(content, "some", seed) for seed in range(50)]
    assert changed == [mutate(content, "some", seed) for seed in range(50)]
    assert len(set(changed)) > 45 and changed != [
        mutate(content, "other", seed) for seed in range(50)
    ]


def fail_with(error: Exception) -> Format:
    def read(path: Path) -> object:
        raise error

    return Format("some", Path.touch, read)


def test_the_harness_tells_outcomes_apart(tmp_path: Path) -> None:
    expected = content_of(b"tea")
    same, other = (
        Format("some", Path.touch, lambda path: b"tea"),
        Format("some", Path.touch, lambda path: b"milk"),
    )
    assert outcome(same, tmp_path, expected) == "same"
    assert outcome(other, tmp_path, expected) == "other"
    assert outcome(
        Format("some", Path.touch, other.read, digest=True), tmp_path, expected
    ).startswith("failed: another valid file")
    assert outcome(fail_with(InputError("a is 1: give 2.")), tmp_path, expected) == "refused"
    assert outcome(fail_with(InputError("no sentence")), tmp_path, expected).startswith(
        "failed: no plain sentence"
    )
    assert outcome(fail_with(KeyError("a")), tmp_path, expected).startswith("failed: KeyError")


@pytest.mark.parametrize(
    ("how", "match"),
    [("hang", "took too long"), ("memory", "MemoryError"), ("crash", "exit status")],
)
def test_a_child_that_hangs_crashes_or_takes_memory_is_a_failure(
    how: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGREESTOP_FUZZ_TRY", how)
    monkeypatch.setenv("AGREESTOP_FUZZ_SECONDS", "1")
    found = count(run_child([("try", [0, 1])], tmp_path))
    assert found["try"]["failed"] == 1 and match in found["try"]["failures"][0]
    assert found["try"]["same"] == 1, "the child goes on with the next one"


@pytest.mark.slow
def test_many_damaged_files_are_refused_or_read() -> None:
    """Writes its counts to results/reliability.json."""
    found = run_for(float(os.environ.get("AGREESTOP_FUZZ_LONG", LONG)), HERE, first=1_000)
    write_counts(found, RESULTS)
    assert not [failure for entry in found.values() for failure in entry["failures"]]
