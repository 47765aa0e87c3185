"""Early classifiers side by side: the comparison at equal accuracy, the table of the page and the
figure, from made-up numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the figure needs matplotlib")

from benchmarks.early_classification import (
    FIXED,
    OURS,
    TARGETS,
    TEASER,
    THRESHOLD,
    EarlyRecord,
    Outcome,
    _summarise,
    at_equal_accuracy,
    draw,
    write_table,
)


def records(teaser: float) -> list[EarlyRecord]:
    """Ours reaches accuracies from 0.6 to 0.9 at an earliness from 0.2 to 0.8; one target is later
    and less accurate than another.
    """
    found = [Outcome(TEASER, None, teaser, 0.5), Outcome(THRESHOLD, None, 0.6, 0.3)]
    for target, accuracy, earliness in zip(
        TARGETS, (0.85, 0.6, 0.7, 0.75, 0.8, 0.9), (0.6, 0.2, 0.7, 0.5, 0.55, 0.8), strict=True
    ):
        found += [
            Outcome(OURS, target, accuracy, earliness, target, 1.0),
            Outcome(FIXED, target, accuracy, 1.0, target, 1.0),
        ]
    return list(_summarise("data", found + found))


def test_ours_is_compared_at_the_accuracy_of_the_peer() -> None:
    assert at_equal_accuracy(records(0.75), "data", TEASER) == pytest.approx(0.5)
    # not the 0.7 of a target that is later and worse
    assert at_equal_accuracy(records(0.7), "data", TEASER) == pytest.approx(0.5)
    assert at_equal_accuracy(records(0.65), "data", TEASER) == pytest.approx(0.35)
    assert at_equal_accuracy(records(0.95), "data", TEASER) is None


def test_means_and_errors_are_over_resamples() -> None:
    (record,) = _summarise(
        "data", [Outcome(OURS, 0.9, 0.8, 0.4, 0.9, 1.0), Outcome(OURS, 0.9, 0.9, 0.6, 1.0, 2.0)]
    )
    assert (record.accuracy, record.earliness, record.set_size, record.resamples) == pytest.approx(
        (0.85, 0.5, 1.5, 2)
    )
    assert record.coverage == pytest.approx(0.95) and record.coverage_se == pytest.approx(0.05)
    assert record.harmonic_mean == pytest.approx(2 * 0.85 * 0.5 / 1.35)


def test_the_table_stands_between_its_marks_and_the_figure_shows_every_method(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers: begin -->\nbefore this\n<!-- peers: end -->\nafter\n")
    for teaser, words in (
        (0.75, "no later than TEASER on 1 of 1"),
        (0.95, "not reached"),
        (0.85, "no later than TEASER on 0 of 1"),
    ):
        write_table(page, records(teaser))
        text = page.read_text()
        assert (
            words in text
            and "before this" not in text
            and text.startswith("before\n<!--")
            and text.endswith("end -->\nafter\n")
        )
    assert len(draw(records(0.75)).axes[0].lines) == 4
