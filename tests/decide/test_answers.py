"""Open answers of language models: votes, rules on them, streams, files, evaluation and
bad input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag

STEPS = 9


def simulate(n: int, seed: int, steps: int = STEPS, **known: Any) -> ag.Answers:
    """Questions of different difficulty; each has a right answer, "a", and wrong ones."""
    rng = np.random.default_rng(seed)
    ease = rng.beta(1.5, 0.5, size=n)
    right = rng.random((n, steps)) < ease[:, None]
    other = rng.integers(1, 4, size=(n, steps))
    samples = [
        ["a" if hit else "abcd"[one] for hit, one in zip(*row, strict=True)]
        for row in zip(right, other, strict=True)
    ]
    return ag.Answers(samples, ["a"] * n, ids=1000 * seed + np.arange(n), **known)


def rule(
    target: float = 0.9, checkpoints: Any = range(1, STEPS + 1), **options: Any
) -> ag.AgreeStop:
    return ag.AgreeStop(target, checkpoints, 1, **options)


def test_the_beta_criterion_equals_exact_fractions() -> None:
    pairs = [(a, b) for a in range(45) for b in range(a + 1)] + [(1000, 998), (1500, 0), (700, 10)]
    exact = []
    for a, b in pairs:
        whole = sum(math.comb(a + b + 1, k) for k in range(b + 1))
        exact.append(math.log(whole) - (a + b + 1) * math.log(2) if whole else -math.inf)
    first, second = np.array(pairs).T
    found = ag.VoteRisk.criterion(first, second)
    assert np.allclose(found, exact, rtol=1e-12, atol=1e-12)
    assert Fraction(1, 16) == Fraction(math.exp(found[pairs.index((3, 0))])).limit_denominator(1000)


@pytest.mark.parametrize(
    ("risk", "cost"), [("beta", False), ("share", True), ("weights", True), ("learned", True)]
)
def test_live_and_batch_agree_and_read_the_prefix_alone(risk: str, cost: bool) -> None:
    rng = np.random.default_rng(5)

    def given(n: int, seed: int) -> ag.Answers:
        known: dict[str, Any] = {"cost": rng.integers(1, 50, (n, STEPS)).tolist()} if cost else {}
        known |= {"weights": rng.random((n, STEPS)).tolist()} if risk == "weights" else {}
        return simulate(n, seed, **known)

    chosen = {"beta": ag.VoteRisk(), "share": ag.VoteRisk("share"), "weights": ag.VoteRisk("share")}
    made = ag.VoteRisk.fit(given(200, 3), "final") if risk == "learned" else chosen[risk]
    calibrated = rule(checkpoints=(2, 3, 5, 9), risk=made, break_ties=True, seed=4).calibrate(
        given(100, 1), "final"
    )
    test = given(60, 2)
    batch = calibrated.decide(test, first=10)
    assert 2 < batch.stop_time.mean() < STEPS
    costs, weights = test.cells[:, 0, 2], test.cells[:, 0, 1]
    for row, samples in enumerate(test.samples):
        session = calibrated.stream(number=10 + row)
        later = ["z"] * STEPS
        decision, step = None, 0
        while decision is None:
            price = float(costs[row, step]) if cost else None
            weight = float(weights[row, step]) if risk == "weights" else None
            decision = session.push(samples[step], cost=price, weight=weight)
            step += 1
        assert (decision.time, decision.names, decision.cost) == (
            batch[row].time,
            batch[row].names,
            batch[row].cost,
        )
        assert decision.first_risk == batch[row].first_risk
        assert step == decision.time
        if not cost and step < STEPS:
            changed = ag.Answers([[*samples[:step], *later[step:]]])
            assert calibrated.decide(changed, first=10 + row).names == [decision.names]


def test_ties_go_to_the_first_shown_and_names_are_strings() -> None:
    calibrated = rule(checkpoints=(4,)).calibrate(simulate(100, 1, 4), "final")
    found = calibrated.decide(ag.Answers([["x", "y", "y", "x"], ["18"] * 4]))
    assert found.names == [("x",), ("18",)]
    assert found[1].names == ("18",)
    assert calibrated.decide(ag.Answers([["x", "y", "y", "y"]])).names == [("y",)]


def agreement(given: ag.AgreeStop, draws: int, n: int = 60, mutant: bool = False) -> np.ndarray:
    """The share of new questions answered as after all samples, for each draw of everything."""
    found = []
    for draw in range(draws):
        data = simulate(n + 200, draw, 5)
        calibrated = ag.AgreeStop(**{**vars(given), "seed": draw}).calibrate(
            data.rows(slice(0, n)), "final"
        )
        if mutant:  # decides with λ itself, though calibration moved its examples
            object.__setattr__(calibrated.policy, "width", 0.0)
        decisions = calibrated.decide(data.rows(slice(n, None)))
        assert decisions.final_best is not None
        found.append(np.mean(decisions.sets[np.arange(200), decisions.final_best]))
    return np.array(found)


@pytest.mark.parametrize("draws", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_broken_ties_keep_the_promise_and_come_near_it(draws: int) -> None:
    target = 0.9
    plain = rule(target, range(1, 6))
    broken = rule(target, range(1, 6), break_ties=True)
    kept, loose, wrong = (
        agreement(broken, draws),
        agreement(plain, draws),
        agreement(broken, draws, mutant=True),
    )
    error = 4 * kept.std() / math.sqrt(draws)
    assert target - error <= kept.mean() <= target + 1 / 61 + error
    assert loose.mean() > kept.mean() + error
    assert wrong.mean() < target - error, (
        "without the random number of the new input the promise breaks"
    )


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, -1e6), (np.float16, -700.0)])
def test_the_width_of_broken_ties_depends_on_no_example(dtype: Any, least: float) -> None:
    """One of 20 examples has a far smaller risk at the end than the others. Were its size in the
    width, it would be missed whenever it is the new one, and the others would be missed too.
    """
    log_risk = np.full((20, 2), [-1.0, -3.0])
    log_risk[0] = -2.0, least
    right = np.log1p(-np.exp(log_risk))
    first_is_best = np.stack([right[:, 0], log_risk[:, 0]], axis=-1)
    second_is_best = np.stack([log_risk[:, 1], right[:, 1]], axis=-1)
    bag = np.stack([first_is_best, second_is_best], axis=1)[:, :, None].astype(dtype)
    misses, seeds, labels = 0, 20, np.ones(20, dtype=int)
    for new, seed in itertools.product(range(20), range(seeds)):
        others = np.arange(20) != new
        calibrated = ag.AgreeStop(0.95, (1, 2), 1, break_ties=True, seed=seed).calibrate(
            bag[others], labels[others]
        )
        misses += int(not calibrated.decide(bag[[new]], first=seed).sets[0, 1])
    assert misses <= seeds + 4 * math.sqrt(seeds / 2)


@pytest.mark.parametrize("at_end", ["answer", "abstain"])
def test_right_answers_are_promised(at_end: str) -> None:
    wrong, answered = [], []
    for seed in range(25):
        data = simulate(400, seed)
        calibrated = rule(0.8, break_ties=True, at_end=at_end, seed=seed).calibrate(
            data.rows(slice(0, 100))
        )
        found = ag.evaluate(
            calibrated.decide(data.rows(slice(100, None))), data.rows(slice(100, None))
        )
        assert found.wrong is not None and found.answered is not None
        wrong.append(float(found.wrong))
        answered.append(float(found.answered))
    assert np.mean(wrong) <= 0.2 + 4 * np.std(wrong) / 5
    assert np.mean(answered) == 1 if at_end == "answer" else 0.8 < np.mean(answered) < 1


def test_random_numbers_follow_from_number_and_seed() -> None:
    calibration, test = simulate(60, 1, 5), simulate(300, 2, 5)
    calibrated = rule(0.9, range(1, 6), break_ties=True, seed=3).calibrate(calibration, "final")
    stops = calibrated.decide(test, first=0).stop_time
    assert np.array_equal(stops, calibrated.decide(test, first=0).stop_time)
    assert np.array_equal(
        stops[100:], calibrated.decide(test.rows(slice(100, None)), first=100).stop_time
    )
    assert not np.array_equal(stops, calibrated.decide(test).stop_time)
    assert calibrated.randomized


def test_ties_of_class_lists_groups_and_costs_can_be_broken_too() -> None:
    scores = ag.simulate_scores(400, steps=8, K=2, C=3, seed=1)
    calibration, test = scores.split(0.5, 0.5)
    groups = np.arange(200) % 2
    options: list[dict[str, Any]] = [{}, {"groups": groups}]
    for conditions in options:
        calibrated = rule(0.8, range(1, 9), break_ties=True).calibrate(calibration, **conditions)
        batch = calibrated.decide(test, first=0, **conditions)
        session = calibrated.stream(number=7, group=groups[7] if conditions else None)
        decisions = [
            session.push(one) for one in test.log_confidence[7] if session.decision is None
        ]
        assert decisions[-1] == batch[7]
    costly = ag.AgreeStop(
        None, range(1, 9), 1, loss=1.0 - np.eye(3), max_loss=0.2, break_ties=True
    ).calibrate(calibration)
    assert ag.evaluate(costly.decide(test), test).cost < 0.3  # type: ignore[operator]
    with pytest.raises(ag.InputError, match="break_ties"):
        ag.AgreeStop(0.9, range(1, 9), 1, accumulated=True, delta=0.1, break_ties=True)


def test_a_learned_risk_reads_what_the_votes_do_not_say() -> None:
    """Wrong answers are long, so after one vote each the shorter answer is the right one."""

    def priced(n: int, seed: int) -> ag.Answers:
        rng = np.random.default_rng(seed)
        right = rng.random((n, STEPS)) < rng.uniform(0.7, 1, n)[:, None]
        samples = np.where(right, "a", "b").tolist()
        return ag.Answers(
            samples, cost=np.where(right, 100, 900).tolist(), ids=1000 * seed + np.arange(n)
        )

    calibration, test, tuning = priced(300, 1), priced(600, 2), priced(300, 3)
    risks = ag.VoteRisk(), ag.VoteRisk.fit(tuning, "final")
    plain, learned = (
        rule(0.95, risk=risk, break_ties=True).calibrate(calibration, "final").decide(test, first=0)
        for risk in risks
    )
    assert learned.stop_time.mean() < 0.9 * plain.stop_time.mean()
    assert ag.evaluate(learned, test).coverage > 0.93


def test_a_learned_risk_without_costs_counts_how_long_the_leader_has_come() -> None:
    """logit e = logit Beta + weight · log(1 + streak), also where all agree."""
    rng = np.random.default_rng(0)
    turns = ("abbb", "aabb", "abab", "baba")  # who comes last is right
    samples = [[*rng.choice(turns), "b"] for _ in range(99)]
    learned = ag.VoteRisk.fit(ag.Answers(samples, ["b"] * 99))
    assert learned.weight != 0
    streaks = {"aaaa": 4, "aaba": 1, "abaa": 2, "abbb": 3, "aaab": 0}
    cells = ag.Answers([list(one) for one in streaks]).cells[:, -1]
    found, plain = (risk.cut((4,)).evidence(0, cells, 1).risk for risk in (learned, ag.VoteRisk()))
    logits = [log_risk - np.log(-np.expm1(log_risk)) for log_risk in (found, plain)]
    signs = np.log1p(list(streaks.values()))
    np.testing.assert_allclose(logits[0] - logits[1], learned.weight * signs)


def test_files_keep_rules_and_reuse_is_found_by_ids_alone(tmp_path: Path) -> None:
    calibration, test, tuning = simulate(100, 1), simulate(50, 2), simulate(100, 3)
    risk = ag.VoteRisk.fit(tuning, "final")
    for chosen in (ag.VoteRisk(), risk):
        calibrated = rule(risk=chosen, break_ties=True).calibrate(calibration, "final")
        calibrated.save(tmp_path / "rule")
        loaded = ag.load_rule(tmp_path / "rule")
        assert loaded.decide(test, first=0).names == calibrated.decide(test, first=0).names
    assert "used for calibration" in loaded.decide(calibration.rows(slice(0, 3))).reuse
    assert "used for tuning" in loaded.decide(tuning.rows(slice(0, 3))).reuse
    with pytest.raises(ag.InputError, match="tuning"):
        rule(risk=risk).calibrate(tuning, "final")
    without_ids = ag.Answers(calibration.samples)
    again = loaded.decide(without_ids)
    assert not again.reuse and any("no ids" in note for note in again.notes)
    # the same answers, other questions
    others = ag.Answers(calibration.samples, ids=np.arange(100))
    assert not loaded.decide(others).reuse


def test_evaluation_speaks_of_agreement_right_answers_and_cost() -> None:
    costs = np.random.default_rng(0).integers(1, 9, (150, STEPS))
    calibration, test = simulate(100, 1), simulate(150, 2, cost=costs.tolist())
    decisions = rule(break_ties=True).calibrate(calibration, "final").decide(test, first=0)
    found = ag.evaluate(decisions, test)
    votes = [max(dict.fromkeys(row), key=row.count) for row in test.samples]
    answered = [names[0] for names in decisions.names]
    stops = decisions.stop_time.astype(int)
    assert found.agreement == pytest.approx(
        np.mean([one == vote for one, vote in zip(answered, votes, strict=True)])
    )
    assert found.accuracy == pytest.approx(np.mean([one == "a" for one in answered]))
    assert found.cost == pytest.approx(
        np.mean([row[:stop].sum() for row, stop in zip(costs, stops, strict=True)])
    )
    assert found.latency == pytest.approx(stops.mean()) and "samples" in str(found)
    assert ag.evaluate(decisions, ["a"] * 150).accuracy == found.accuracy
    unlabelled = ag.evaluate(decisions, ag.Answers(test.samples))
    assert unlabelled.agreement == found.agreement and unlabelled.accuracy is None
    splits = ag.repeat_splits(
        rule(break_ties=True), calibration, "final", n_calibration=50, repeats=10
    )
    assert 0.85 < splits.coverage < 1


def test_lines_of_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines = [
        {
            "id": i,
            "gold": "1.0",
            "answers": ["1", "1.0", "2"],
            "tokens": [5, 6, 7],
            "price": [1, 1, 1],
        }
        for i in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = ag.Answers.load(path, normalise=lambda text: f"{float(text):g}")
    assert found.samples[0] == ("1", "1", "2")
    assert found.labels.tolist() == [0, 0, 0]  # type: ignore[union-attr]
    assert found.cells[0, 0, 2].tolist() == [5, 6, 7]
    assert ag.Answers.load(path, cost="price").cells[0, 0, 2].tolist() == [1, 1, 1]
    for bad, words in [
        ("{", "line 4"),
        ('{"gold": "1"}', "answers"),
        ('{"answers": ["1"]}', "gold"),
    ]:
        path.write_text("\n".join([*map(json.dumps, lines), bad]))
        with pytest.raises(ag.InputError, match=words):
            ag.Answers.load(path)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_rule_refuses_answers_whose_weights_are_not_as_in_calibration(
    weighted: bool, tmp_path: Path
) -> None:
    plain = simulate(60, 1)
    heavy = ag.Answers(plain.samples, weights=np.ones((60, len(plain.samples[0]))).tolist())
    own, other = (heavy, plain) if weighted else (plain, heavy)
    rule(risk=ag.VoteRisk("share")).calibrate(own, "final").save(tmp_path / "rule")
    kept = ag.load_rule(tmp_path / "rule")
    kept.decide(own)
    with pytest.raises(ag.InputError, match="weight is"):
        kept.decide(other)
    with pytest.raises(ag.InputError, match="weight is"):
        kept.stream().push("18", weight=None if weighted else 1.0)
    replace(kept, weighted=None).decide(other)  # a file of an older version does not say


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no questions": (lambda: ag.Answers([]), "empty"),
    "no samples": (lambda: ag.Answers([["1"], []]), "row 1"),
    "an empty answer": (lambda: ag.Answers([["1", " "]]), "answer 1"),
    "numbers": (lambda: ag.Answers([["1", 2]]), "string"),  # type: ignore[list-item]
    "one string": (lambda: ag.Answers(["18"]), "row 0"),
    "labels of another number": (lambda: ag.Answers([["1"]], ["1", "2"]), "labels"),
    "cost of another shape": (lambda: ag.Answers([["1", "2"]], cost=[[1]]), "cost: row 0"),
    "nan weights": (lambda: ag.Answers([["1", "2"]], weights=[[1, math.nan]]), "weights"),
    "negative weights": (lambda: ag.Answers([["1"]], weights=[[-0.3]]), "weights"),
    "rows too short": (
        lambda: rule().calibrate(ag.Answers([["1"] * 9, ["1"] * 5]), "final"),
        "row 1 has 5",
    ),
    "fractions of samples": (
        lambda: rule(checkpoints=(0.5, 2)).calibrate(simulate(50, 1), "final"),
        "checkpoints",
    ),
    "two answers": (
        lambda: ag.AgreeStop(0.9, (1, 2), 2).calibrate(simulate(50, 1), "final"),
        "max_set_size",
    ),
    "another rule": (
        lambda: ag.SpikeCP(0.9, (1, 2), 1).calibrate(simulate(50, 1), "final"),
        "AgreeStop",
    ),
    "a risk of scores": (
        lambda: rule(risk=ag.FixedTime()).calibrate(simulate(50, 1), "final"),
        "FixedTime",
    ),
    "answers for scores": (
        lambda: (
            ag.AgreeStop(0.5, range(1, 7), 1)
            .calibrate(ag.simulate_scores(60, steps=6, C=7, K=1))
            .decide(ag.Answers([["1"] * 6]))
        ),
        "open answers",
    ),
    "scores": (lambda: rule(risk=ag.VoteRisk()).calibrate(ag.simulate_scores(50)), "Answers"),
    "weights of counts": (
        lambda: rule().calibrate(simulate(50, 1, weights=np.ones((50, 9)).tolist()), "final"),
        "weights",
    ),
    "no labels": (lambda: rule().calibrate(ag.Answers([["1"] * 9] * 50)), "labels"),
    "answers wrong too often": (
        lambda: rule().calibrate(ag.Answers([["1"] * 9] * 50, ["2"] * 50)),
        "at_end",
    ),
    "a form": (lambda: ag.VoteRisk("x"), "form"),
    "nothing to learn": (lambda: ag.VoteRisk.fit(ag.Answers([["1"] * 9] * 50), "final"), "learn"),
    "class_conditional": (
        lambda: rule(class_conditional=True).calibrate(simulate(50, 1), "final"),
        "class_conditional",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(case: str) -> None:
    call, words = BAD[case]
    with pytest.raises(ag.InputError, match=words):
        call()


def test_rows_of_different_lengths_serve_rules_that_need_no_more() -> None:
    ragged = ag.Answers(
        [[*row, *["a"] * (at % 3)] for at, row in enumerate(simulate(60, 1).samples)]
    )
    even = ag.Answers(simulate(60, 1).samples)
    assert (
        rule().calibrate(ragged, "final").thresholds == rule().calibrate(even, "final").thresholds
    )


@pytest.fixture(scope="module")
def calibrated() -> ag.CalibratedRule:
    return rule(0.95).calibrate(simulate(200, 1), "final")


def test_sampling_counts_what_was_asked_for(calibrated: ag.CalibratedRule) -> None:
    one = ag.sample_until(calibrated, lambda: "18")
    assert one.names == ("18",) and one.cost == one.time < STEPS
    many = ag.sample_until(calibrated, lambda: ["18"] * STEPS)
    assert many.time == one.time and many.cost == STEPS
    paid = ag.sample_until(calibrated, lambda: [("18", 10.0)] * STEPS)
    assert paid.cost == 10 * STEPS

    async def ask() -> str:
        return "18"

    assert asyncio.run(ag.sample_until(calibrated, ask)).time == one.time
    assert ag.sample_until(calibrated, lambda: "18", number=5).number == 5


def test_an_error_loses_nothing(calibrated: ag.CalibratedRule) -> None:
    replies = iter(["18", ConnectionError("gone"), "18", "18", "18", "18", "18", "18", "18"])

    def ask() -> Any:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    with pytest.raises(ConnectionError) as failed:
        ag.sample_until(calibrated, ask)
    session = failed.value.session  # type: ignore[attr-defined]
    assert session.history.answers == ["18"]
    decision = ag.sample_until(session, ask)
    assert decision.cost == decision.time == ag.sample_until(calibrated, lambda: "18").time

    async def slow() -> str:
        await asyncio.sleep(5)
        return "18"

    calls: list[Callable[[], object]] = [
        lambda: asyncio.run(ag.sample_until(calibrated, slow, timeout=0.05)),
        lambda: ag.sample_until(calibrated, lambda: time.sleep(5), timeout=0.05),
    ]
    for call in calls:
        with pytest.raises(TimeoutError, match="ask did not return before the timeout") as late:
            call()
        assert late.value.session.history.answers == []  # type: ignore[attr-defined]


def test_what_is_no_function_is_refused_before_anything_is_asked(
    calibrated: ag.CalibratedRule,
) -> None:
    with pytest.raises(ag.InputError, match=r"ask is '18': give a function that samples"):
        ag.sample_until(calibrated, "18")  # type: ignore[arg-type]


def test_a_timeout_of_ask_itself_is_not_ours(calibrated: ag.CalibratedRule) -> None:
    def refuse() -> str:
        raise TimeoutError("the server is busy")

    async def refuse_later() -> str:
        return refuse()

    async def refuse_when_ended() -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise TimeoutError("the server is busy") from None
        return "18"

    calls: list[Callable[[], object]] = [
        lambda: ag.sample_until(calibrated, refuse, timeout=5),
        lambda: asyncio.run(ag.sample_until(calibrated, refuse_later, timeout=5)),
        lambda: asyncio.run(ag.sample_until(calibrated, refuse_later)),
        lambda: asyncio.run(ag.sample_until(calibrated, refuse_when_ended, timeout=0.05)),
    ]
    for call in calls:
        with pytest.raises(TimeoutError, match="the server is busy") as own:
            call()
        assert own.value.session.history.answers == []  # type: ignore[attr-defined]


def test_a_reply_of_no_use_is_refused(calibrated: ag.CalibratedRule) -> None:
    replies_of_no_use: list[Any] = [[], 18, "", ("18", math.nan), ("1", 2, 3, 4)]
    for reply in replies_of_no_use:
        with pytest.raises(ag.InputError):
            ag.sample_until(calibrated, lambda reply=reply: reply)  # type: ignore[misc]


def test_tuning_chooses_a_risk_and_remembers_the_questions() -> None:
    tuning = simulate(240, 3)
    tuned = ag.tune(rule(break_ties=True), tuning, "final", repeats=4)
    assert {one.name for one in tuned.trials} == {
        "votes, Beta criterion",
        "votes, share",
        "votes, learned",
    }
    assert tuned.rule.calibrate(simulate(60, 1), "final").n == 60
    with pytest.raises(ag.InputError, match="tuning"):
        tuned.rule.calibrate(tuning, "final")
    with pytest.raises(ag.InputError, match="Answers"):
        ag.tune(rule(risk=ag.VoteRisk()), ag.simulate_scores(100, steps=9))


def test_a_monitor_takes_right_answers_and_finds_misses(tmp_path: Path) -> None:
    calibrated = rule(0.8, checkpoints=(3, 6, 9), delta=0.1, at_end="abstain").calibrate(
        simulate(300, 1)
    )
    monitor = ag.DriftMonitor(calibrated)
    batch = calibrated.decide(simulate(400, 2))
    assert monitor.update(batch, ["a"] * 400) is None and monitor.labels == 400
    decision = ag.sample_until(calibrated, lambda: "a")
    monitor.observe(decision)
    assert monitor.update(decision, "a") is None
    alarm = None
    for _ in range(100):
        decision = ag.sample_until(calibrated, lambda: "b")
        monitor.observe(decision)
        alarm = alarm or monitor.update(decision, "a")
    assert alarm is not None and alarm.kind == "misses"
    with pytest.raises(ag.InputError, match="label"):
        monitor.update(decision, 0)
