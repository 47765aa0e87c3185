"""The figures from tiny simulated scores: their numbers are those of the decision layer, and a run
that was stopped continues.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import InputError, no_progress
from agreestop.decide.scores import load_spikes
from paper.figures import (
    BASELINES,
    EXPONENTS,
    FIGURES,
    RULES,
    Figure,
    Setting,
    checkpoints,
    find_figures,
    points_of,
)
from paper.outcomes import MeasureSettings, MeasureTask, RuleMeasurer, RuleOutcome, SpikeCounts
from paper.records import FigureNumbers, FigureRecord, load_numbers
from paper.reproduce import run_figure
from paper.sources import check_present
from tests.decide.strategies import assert_one_sentence, simulate_spikes, tune_quickly

STEPS, MEMBERS, CLASSES = 16, 3, 5
SETTINGS = MeasureSettings(realisations=4)
FEW = (4, 8, 12, 16)
AGAINST_K = Figure("fig3", "against K", ("mnist-dvs-sim",), "K", (1, 3, 9), RULES + BASELINES)
AGAINST_N = Figure("fig8", "against n", ("braille",), "n", (20, 50, 1000), ensembles=("deep",))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    tune_quickly(monkeypatch, learned=False, FINALISTS=1)


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    for seed, (data, ensemble) in enumerate(
        (("mnist-dvs-sim", "deep"), ("mnist-dvs-sim", "variational"), ("braille", "deep"))
    ):
        target = folder / data / ensemble
        target.mkdir(parents=True)
        spikes, labels = simulate_spikes(104 + 120, STEPS, MEMBERS, CLASSES, seed=seed, pace=3.0)
        ag.save_spikes(target / "tuning.npz", spikes[:104], labels[:104])
        ag.save_spikes(target / "pool.npz", spikes[104:], labels[104:])
    about = {"description": "drawn from a generator", "device": "a GPU", "command": "the full run"}
    (folder / "mnist-dvs-sim" / "deep" / "about.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def measured(
    scores: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, FigureNumbers]]:
    output = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        tune_quickly(patch, learned=False, FINALISTS=1)
        yield (
            output,
            run_figure(
                AGAINST_K, scores, output, "python -m paper fig3", no_progress, settings=SETTINGS
            ),
        )


def at(
    numbers: FigureNumbers, rule: str, K: int, checkpoints: str = "few", ensemble: str = "deep"
) -> FigureRecord:
    (found,) = (
        one
        for one in numbers.records
        if (one.rule, one.K, one.checkpoints, one.ensemble) == (rule, K, checkpoints, ensemble)
    )
    return found


def test_numbers_are_written_with_their_sources(measured: tuple[Path, FigureNumbers]) -> None:
    output, numbers = measured
    content = json.loads((output / "fig3" / "numbers.json").read_text())
    assert content["command"] == "python -m paper fig3" and content["protocol"]["realisations"] == 4
    assert (
        content["protocol"]["target"] == 0.9
        and content["protocol"]["n"] == 50
        and content["protocol"]["tuning_rows"] == 1000
    )
    first, second = content["sources"]
    assert (first["description"], first["device"], first["about"]["command"]) == (
        "drawn from a generator",
        "a GPU",
        "the full run",
    )
    assert second["device"] is None and (
        second["members"],
        second["n_tuning"],
        second["n_pool"],
    ) == (3, 104, 120)
    assert "numpy" in content["versions"]
    assert len(content["notes"]) == 2 and all(
        "SEENN-II is left out" in note for note in content["notes"]
    )
    names = (
        "data simulated ensemble label rule r checkpoints K target n x coverage coverage_se "
        "latency latency_se set_size vacuous shape"
    )
    for record in content["records"]:
        assert set(names.split()) <= set(record)
        assert record["simulated"] and 0 <= record["coverage"] <= 1 and 0 < record["latency"] <= 1
    assert len(content["records"]) == 2 * (1 + 2 * (len(RULES) - 1 + 2))
    assert load_numbers(output / "fig3" / "numbers.json").records == numbers.records
    assert at(numbers, "spikecp", 1).x is None and at(numbers, "stop-aware", 3).x == 3
    assert (
        at(numbers, "agreestop", 3, "every").shape
        and at(numbers, "confidence-merging", 3).shape is None
    )
    assert [one.K for one in numbers.records if one.default and one.rule == "dcsnn"] == [3, 3]


def test_numbers_are_those_of_repeat_splits(
    measured: tuple[Path, FigureNumbers], scores: Path
) -> None:
    _, numbers = measured
    folder = scores / "mnist-dvs-sim" / "deep"
    tuning, pool = (ag.load_scores(folder / f"{name}.npz") for name in ("tuning", "pool"))
    every = range(1, STEPS + 1)
    tuned = ag.tune(ag.AgreeStop(0.9, every, 3), tuning, only_if_better=False).rule
    expected: list[tuple[Any, FigureRecord]] = [
        (ag.SpikeCP(0.9, FEW, 3, ag.MergeConfidence(1)), at(numbers, "confidence-merging", 3)),
        (ag.SpikeCP(0.9, FEW, 3, ag.MergePValues(45)), at(numbers, "p-variable-merging", 3)),
        (ag.SpikeCP(0.9, FEW, 3, ag.MergeRanks(1)), at(numbers, "rank-pooling", 3)),
        (ag.DCSNN(0.9, every, 3), at(numbers, "dcsnn", 3, "every")),
        (ag.SEENN(0.9, every, 3), at(numbers, "seenn1", 3, "every")),
        (tuned, at(numbers, "agreestop", 3, "every")),
    ]
    assert pool.labels is not None
    for rule, record in expected:
        splits = ag.repeat_splits(rule, pool.log_confidence, pool.labels, 50, 4, 0, pool.times)
        assert (record.coverage, record.latency) == (
            float(splits.coverage),
            float(splits.normalized_latency),
        ), record.label
        assert (record.latency_se, record.set_size) == (
            splits.normalized_latency.se,
            float(splits.set_size),
        )
        pools = splits.pool_figures(5)
        assert (record.coverage_pool_se, record.latency_pool_se) == (
            pools.coverage.se,
            pools.normalized_latency.se,
        ), record.label
        assert (record.coverage_error, record.latency_error) == (
            pools.coverage.se,
            pools.normalized_latency.se,
        )
        old = replace(record, coverage_pool_se=None, latency_pool_se=None)
        assert (old.coverage_error, old.latency_error) == (
            record.coverage_se,
            record.latency_se,
        ) and "realisations" in old.interval_of
    single = at(numbers, "spikecp", 1)
    assert (
        single.latency
        == at(numbers, "confidence-merging", 1).latency
        == at(numbers, "p-variable-merging", 1).latency
    )


def test_a_run_that_was_stopped_continues(
    scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = replace(
        AGAINST_K,
        values=(1, 2),
        rules=tuple(one for one in RULES if not one.tuned),
        ensembles=("deep",),
    )
    reported: list[float] = []

    def stop(what: str, share: float) -> None:
        reported.append(share)
        if share > 0 and len(reported) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_figure(figure, scores, tmp_path, "", stop, settings=SETTINGS)
    assert not (tmp_path / "fig3" / "numbers.json").exists()
    assert len(list((tmp_path / ".parts").iterdir())) == 3
    measure, asked = RuleMeasurer.measure, list[MeasureTask]()

    def noted(measurer: RuleMeasurer, task: MeasureTask) -> Sequence[RuleOutcome]:
        asked.append(task)
        return measure(measurer, task)

    monkeypatch.setattr(RuleMeasurer, "measure", noted)
    first = run_figure(figure, scores, tmp_path, "", no_progress, settings=SETTINGS)
    assert len(asked) == 9 - 3
    asked.clear()
    assert (
        run_figure(figure, scores, tmp_path, "", no_progress, settings=SETTINGS).records
        == first.records
    )
    assert not asked
    damaged = next((tmp_path / ".parts").iterdir())
    damaged.write_text("{}")
    assert (
        run_figure(figure, scores, tmp_path, "", no_progress, settings=SETTINGS).records
        == first.records
    )
    assert len(asked) == 1
    asked.clear()
    run_figure(figure, scores, tmp_path, "", no_progress, settings=MeasureSettings(5))
    assert len(asked) == 9


def test_other_scores_are_measured_again(scores: Path, tmp_path: Path) -> None:
    figure = replace(AGAINST_K, values=(2,), rules=RULES[1:2], ensembles=("deep",))
    folder = tmp_path / "scores" / "mnist-dvs-sim" / "deep"
    folder.mkdir(parents=True)
    latencies = []
    for other in ("deep", "variational"):
        for name in ("tuning.npz", "pool.npz"):
            (folder / name).write_bytes((scores / "mnist-dvs-sim" / other / name).read_bytes())
        latencies.append(
            run_figure(figure, tmp_path / "scores", tmp_path, "", no_progress, settings=SETTINGS)
            .records[0]
            .latency
        )
    assert latencies[0] != latencies[1]


def test_processes_share_the_work_and_change_nothing(scores: Path, tmp_path: Path) -> None:
    figure = replace(AGAINST_K, values=(1, 2), rules=RULES[:4], ensembles=("deep",))
    single = run_figure(figure, scores, tmp_path / "single", "", no_progress, settings=SETTINGS)
    shared = run_figure(
        figure, scores, tmp_path / "shared", "", no_progress, workers=2, settings=SETTINGS
    )
    assert single.records == shared.records


def test_few_examples_are_called_vacuous(scores: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = run_figure(AGAINST_N, scores, tmp_path, "", no_progress, settings=SETTINGS)
    assert {record.n for record in numbers.records} == {
        20,
        50,
    }  # 1000 are more than half of the pool
    for record in numbers.records:
        assert record.vacuous == (
            record.n == 20 and (record.family == "paper" or record.rule == "rank-pooling")
        ), record.label
        if record.vacuous:
            assert (record.coverage, record.latency, record.set_size) == (1, 1, CLASSES)
    assert not numbers.records[0].simulated


def test_exponents_may_be_infinite(scores: Path, tmp_path: Path) -> None:
    (figure,) = find_figures("fig4")
    figure = replace(
        figure, values=(-math.inf, 0, 45, math.inf), rules=RULES[:4], ensembles=("deep",)
    )
    numbers = run_figure(figure, scores, tmp_path, "", no_progress, settings=SETTINGS)
    pm = [one for one in numbers.records if one.rule == "p-variable-merging"]
    assert [one.x for one in pm] == [-math.inf, 0, 45, math.inf] and [
        one.vacuous for one in pm
    ] == [True, True, False, False]
    assert [one.default for one in pm] == [False, False, True, False]
    assert pm[-1].latency == pm[2].latency  # at n = 50 a mean of exponent 45 is the maximum
    content = json.loads((tmp_path / "fig4" / "numbers.json").read_text())
    assert {"-inf", "inf"} <= {entry["x"] for entry in content["records"]}
    assert load_numbers(tmp_path / "fig4" / "numbers.json").records == numbers.records


def test_seenn2_comes_from_its_file(scores: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scores" / "mnist-dvs-sim" / "deep"
    folder.mkdir(parents=True)
    for name in ("tuning.npz", "pool.npz"):
        (folder / name).write_bytes((scores / "mnist-dvs-sim" / "deep" / name).read_bytes())
    entry = {
        "K": 3,
        "target": 0.9,
        "n": 50,
        "coverage": 0.8,
        "coverage_se": 0.01,
        "latency": 0.4,
        "latency_se": 0.02,
        "set_size": 3,
    }
    (folder / "seenn2.json").write_text(json.dumps([entry, {**entry, "K": 2}]))
    figure = replace(AGAINST_K, rules=BASELINES[2:], ensembles=("deep",))
    numbers = run_figure(figure, tmp_path / "scores", tmp_path, "", no_progress, settings=SETTINGS)
    (record,) = numbers.records
    assert (record.rule, record.K, record.latency, record.family) == (
        "seenn2",
        3,
        0.4,
        "baseline",
    ) and not numbers.header["notes"]
    (folder / "seenn2.json").write_text('[{"K": 3}]')
    with pytest.raises(InputError, match="is no list of SEENN-II's records"):
        run_figure(figure, tmp_path / "scores", tmp_path, "", no_progress, settings=SETTINGS)


def test_missing_files_are_named(scores: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        check_present(find_figures("fig7")[0], scores)
    assert_one_sentence(str(caught.value))
    assert (
        f"{scores / 'n-mnist' / 'deep' / 'tuning.npz'}, which does not exist (nor 5 others)"
        in str(caught.value)
    )
    assert "make them with --scale full" in str(caught.value)
    with pytest.raises(InputError, match="there is no figure 'fig1'"):
        find_figures("fig1")
    folder = tmp_path / "mnist-dvs-sim" / "deep"
    folder.mkdir(parents=True)
    spikes, labels = simulate_spikes(120, STEPS, 2, CLASSES)
    figure = replace(AGAINST_K, ensembles=("deep",))
    ag.save_spikes(folder / "tuning.npz", spikes, labels)
    ag.save_spikes(folder / "pool.npz", spikes)
    with pytest.raises(InputError, match="holds no labels"):
        run_figure(figure, tmp_path, tmp_path, "", no_progress, settings=SETTINGS)
    ag.save_spikes(folder / "pool.npz", spikes[:, :, :1], labels)
    with pytest.raises(InputError, match="score both with the same ensemble"):
        run_figure(figure, tmp_path, tmp_path, "", no_progress, settings=SETTINGS)
    ag.save_spikes(folder / "pool.npz", spikes, labels)
    with pytest.raises(InputError, match="pool: 120 of the 120 rows were used"):
        run_figure(
            replace(figure, rules=RULES[4:5]),
            tmp_path,
            tmp_path,
            "",
            no_progress,
            settings=SETTINGS,
        )


def test_the_figures_are_those_of_the_paper() -> None:
    assert [figure.name for figure in find_figures("all")] == [
        "fig2",
        "fig3",
        "fig4",
        "fig5",
        "fig6",
        "fig7",
        "fig8",
    ]
    for figure in FIGURES:
        points = points_of(figure, 10, 2000)
        assert len(set(points)) == len(points)
        usual = [point for point in points if point.default]
        assert {point.rule.label for point in usual} == {rule.label for rule in figure.rules}
        assert all(
            point.setting == Setting(K=1 if point.rule.single_member else 6) for point in usual
        )
        assert max(point.setting.n for point in points) <= 1000
    assert {point.setting.K for point in points_of(FIGURES[1], 4, 2000)} == {1, 2, 3, 4}
    assert len({point.x for point in points_of(FIGURES[2], 10, 2000)}) == len(EXPONENTS) + 1
    with pytest.raises(InputError, match="the pool has 60 inputs"):
        points_of(FIGURES[0], 6, 60)


def test_checkpoints_are_the_quarters() -> None:
    assert checkpoints("few", 80) == (20, 40, 60, 80) and checkpoints("few", 128) == (
        32,
        64,
        96,
        128,
    )
    assert checkpoints("every", 3) == (1, 2, 3)
    with pytest.raises(InputError, match="have 81 steps: a multiple of 4"):
        checkpoints("few", 81)


def test_counts_are_read_as_score_files_are(scores: Path) -> None:
    path = scores / "braille" / "deep" / "pool.npz"
    counts = SpikeCounts.of(load_spikes(path), 50)
    whole = ag.load_scores(path)
    np.testing.assert_array_equal(counts.at(7, 2), whole.log_confidence[:50, 6, :2])
