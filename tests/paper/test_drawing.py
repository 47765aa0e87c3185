"""Every figure is drawn from made-up numbers: files are written, titles name simulated data, and
legends name rules without a guarantee.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

from agreestop.common import InputError
from agreestop.report.figures import style_of
from paper.drawing import _curves, _dots, draw_numbers
from paper.figures import FIGURES, Figure, points_of
from paper.records import FigureNumbers, FigureRecord, load_numbers


def made_up(figure: Figure) -> FigureNumbers:
    rng = np.random.default_rng(0)
    records = [
        FigureRecord(
            data=data,
            simulated=data.endswith("-sim"),
            ensemble=ensemble,
            label=point.rule.label,
            family=point.rule.family,
            rule=point.rule.rule,
            r=point.rule.r,
            checkpoints=point.rule.checkpoints,
            K=point.setting.K,
            target=point.setting.target,
            n=point.setting.n,
            x=point.x,
            default=point.default,
            coverage=rng.uniform(0.88, 1.0),
            coverage_se=0.005,
            latency=rng.uniform(0.2, 1.0),
            latency_se=0.01,
            set_size=2.0,
            realisations=50,
            vacuous=point.rule.family == "paper" and point.setting.n < 39,
        )
        for data in figure.data
        for ensemble in figure.ensembles
        for point in points_of(figure, 6, 400)
    ]
    return FigureNumbers(figure.name, figure.title, figure.swept, {"notes": []}, tuple(records))


@pytest.mark.parametrize("figure", FIGURES, ids=[figure.name for figure in FIGURES])
def test_a_column_for_each_ensemble(figure: Figure) -> None:
    numbers = made_up(figure)
    drawn = (_curves if figure.swept else _dots)(numbers)
    assert len(drawn.axes) == 2 * len(figure.data) * len(figure.ensembles)
    title = drawn.get_suptitle()
    assert title.startswith(figure.name) and title.count("(simulated)") == sum(
        data.endswith("-sim") for data in figure.data
    )
    assert "50 realisations" in title
    if figure.swept:
        words = [text.get_text() for text in drawn.legends[0].get_texts()]
        assert {rule.label for rule in figure.rules} <= set(words)
        assert ("no promise" in words) == any(rule.family == "baseline" for rule in figure.rules)


def test_the_title_names_rules_with_other_intervals() -> None:
    numbers = made_up(FIGURES[0])
    assert (
        "95 % intervals over realisations" in _curves(numbers).get_suptitle()
        and "SEENN-II" not in _curves(numbers).get_suptitle()
    )
    known = tuple(
        one if one.rule == "seenn2" else replace(one, coverage_pool_se=0.01, latency_pool_se=0.01)
        for one in numbers.records
    )
    title = _curves(replace(numbers, records=known)).get_suptitle()
    assert "95 % intervals for the draw of the pool (SEENN-II: over realisations)" in title


def test_files_are_written(tmp_path: Path) -> None:
    for path in draw_numbers(made_up(FIGURES[5]), tmp_path):
        assert path.name in ("figure.png", "figure.svg") and path.stat().st_size > 20_000


def test_every_rule_has_its_own_style() -> None:
    rules = {rule.rule for figure in FIGURES for rule in figure.rules}
    styles = {rule: style_of(rule) for rule in (*rules, "a rule without a style")}
    assert (
        len({style.colour for style in styles.values()})
        == len({style.marker for style in styles.values()})
        == len(rules) + 1
    )


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    with pytest.raises(InputError, match="run `python -m paper` first"):
        load_numbers(path)
    path.write_text('{"figure": "fig3", "title": "", "swept": "K", "records": [{"data": "x"}]}')
    with pytest.raises(InputError, match="is not a complete file"):
        load_numbers(path)
