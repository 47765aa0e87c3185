"""The search for a schedule: its figures are those of the rule, its schedules are valid, and a
price of work buys less work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import Trial, at_kth_values, tune_quickly

TUNING = ag.simulate_scores(300, steps=10, K=4, C=5, seed=2, pace=3)
FRESH = ag.simulate_scores(300, steps=10, K=4, C=5, seed=3, pace=3)
RULE = ag.AgreeStop("0.8", range(1, 11), 2)


def test_figures_of_the_front_are_those_of_its_rules() -> None:
    """The fast measure against calibrate and decide, realisation by realisation; and every schedule
    is a valid one.
    """
    tuning = ag.simulate_scores(300, steps=10, K=4, C=5, seed=2, pace=3, dependence=0.7)
    plain = ag.AgreeStop("0.9", range(1, 11), 1)
    points, seen = ag.front(plain, tuning, n_calibration=60, prices=(0.3, 1.0), repeats=5), set()
    for point in points:
        schedule, found = point.rule.checkpoints, point.rule.risk
        assert (
            isinstance(schedule, ag.Schedule)
            and isinstance(found, ag.ShapedRisk)
            and isinstance(found.base, ag.TopMass)
        )
        assert schedule.times == tuple(range(1, 11)) and schedule.members[-1] <= 4
        seen.add(schedule)
        if found.base.temperatures is not None:
            continue  # fitted on rows of each realisation alone
        rule = replace(
            plain, checkpoints=schedule, risk=ag.ShapedRisk(ag.TopMass(), found.offsets, schedule)
        )
        rng, figures = np.random.default_rng(0), []
        for _ in range(5):
            order = rng.permutation(300)
            decisions = at_kth_values(rule.calibrate(tuning.rows(order[:60]))).decide(
                tuning.rows(order[60:])
            )
            figures.append((decisions.stop_time.mean() / 10, decisions.work.mean()))
        np.testing.assert_allclose(
            (point.latency, point.work), np.mean(figures, axis=0), rtol=1e-12
        )
    assert len(seen) > 2


def test_a_higher_price_buys_less_work() -> None:
    points = ag.front(RULE, TUNING, n_calibration=60, prices=(0.1, 1.0, 30.0), repeats=5)
    assert [point.price for point in points] == [None, 0.1, 1.0, 30.0, None]
    assert points[0].rule.checkpoints == ag.Schedule([(time, 4) for time in range(1, 11)])
    assert points[-1].rule.checkpoints == ag.Schedule([(time, 1) for time in range(1, 11)])
    for price, point in zip((0.1, 1.0, 30.0), points[1:4], strict=True):
        others = [other.latency + price * other.work / 40 for other in points]
        assert point.latency + price * point.work / 40 == pytest.approx(min(others))
    works = [point.work for point in points[1:4]]
    assert (
        works == sorted(works, reverse=True) and works[2] < works[0] and works[2] < points[0].work
    )
    for point in points:
        with pytest.raises(ag.InputError, match="used for tuning"):
            point.rule.calibrate(TUNING)
        decisions = point.rule.calibrate(FRESH.rows(slice(100))).decide(FRESH.rows(slice(100, 300)))
        assert decisions.work.mean() <= 40
    again = ag.front(RULE, TUNING, n_calibration=60, prices=(0.1, 1.0, 30.0), repeats=5)
    assert [point.rule.checkpoints for point in again] == [
        point.rule.checkpoints for point in points
    ]


@pytest.mark.parametrize(
    "rule", [RULE, ag.SpikeCP("0.8", range(1, 11), 2, ag.MergeConfidence(1), "stop-aware")]
)
def test_tune_chooses_a_schedule_where_work_has_a_price(
    rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_quickly(monkeypatch, steps=10)
    options: dict[str, Any] = {
        "n_calibration": 60,
        "exponents": (1.0,),
        "repeats": 3,
        "only_if_better": False,
    }
    free, priced = (ag.tune(rule, TUNING, price_of_work=price, **options) for price in (0.0, 5.0))
    assert not isinstance(free.rule.checkpoints, ag.Schedule) and isinstance(
        priced.rule.checkpoints, ag.Schedule
    )
    costs = [trial.cost(0.0, 5.0) for trial in priced.trials]
    assert costs == sorted(costs) and all(trial.work == trial.latency for trial in free.trials)
    with pytest.raises(ag.InputError, match="used for tuning"):
        priced.rule.calibrate(TUNING)
    plain, joined = (
        one.rule.calibrate(FRESH.rows(slice(100))).decide(FRESH.rows(slice(100, 300)))
        for one in (free, priced)
    )
    assert joined.work.mean() < plain.work.mean()
    # A rule that has a schedule is tuned at its looks; with a price, another schedule is chosen at
    # its times.
    looks = ag.Schedule([(1, 1), (1, 2), (4, 4), (10, 4)])
    given = ag.tune(replace(rule, checkpoints=looks), TUNING, **options)
    assert given.rule.checkpoints == looks and given.rule.calibrate(FRESH).n == 300
    chosen = ag.tune(replace(rule, checkpoints=looks), TUNING, price_of_work=1.0, **options)
    assert isinstance(chosen.rule.checkpoints, ag.Schedule) and chosen.rule.checkpoints.times == (
        1,
        4,
        10,
    )


def test_the_cost_of_a_trial_has_a_price_for_size_and_for_work() -> None:
    assert Trial("rule", 0.25, 2.0, 0.5, 0.125).cost(2.0, 4.0) == 0.25 + 2.0 * 0.5 + 4.0 * 0.125


def test_with_few_rows_a_schedule_must_be_better_than_the_rule_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune_quickly(monkeypatch, steps=5)
    looks = ag.Schedule([(1, 1), (1, 2), (4, 4), (10, 4)])
    for checkpoints in (range(1, 11), looks):
        tuned = ag.tune(
            ag.AgreeStop("0.8", checkpoints, 2),
            TUNING,
            n_calibration=60,
            exponents=(1.0,),
            repeats=3,
            price_of_work=1.0,
        )
        kept = (
            not isinstance(tuned.rule.checkpoints, ag.Schedule) or tuned.rule.checkpoints == looks
        )
        assert kept or not tuned.note
        tuned.rule.calibrate(FRESH)


def test_bad_prices_and_rules_are_refused() -> None:
    for price in (-1.0, float("nan"), float("inf"), "1", True):
        with pytest.raises(ag.InputError, match="price_of_work is"):
            ag.tune(RULE, TUNING, price_of_work=price)  # type: ignore[arg-type]
        with pytest.raises(ag.InputError, match="price_of_work is"):
            ag.front(RULE, TUNING, prices=(price,))  # type: ignore[arg-type]
    with pytest.raises(ag.InputError, match="at least twice as many rows"):
        ag.front(RULE, TUNING, n_calibration=200)
    with pytest.raises(ag.InputError, match="give the schedule yourself"):
        ag.front(ag.AgreeStop(None, range(1, 11), 2, loss=1.0 - np.eye(5), max_loss=0.2), TUNING)
    with pytest.raises(ag.InputError, match="only AgreeStop has a front"):
        ag.front(ag.SpikeCP("0.8", range(1, 11), 2, ag.MergeConfidence(1)), TUNING)
    gate = ag.Gate.fit(TUNING, target="0.8", max_set_size=2, blocks=2)
    with pytest.raises(ag.InputError, match="has a gate"):
        ag.front(ag.AgreeStop("0.8", range(1, 11), 2, gate=gate), TUNING)
