"""The studies of numbers and of trees, on small simulated data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import agreestop as ag
from benchmarks import numbers, tree


def test_intervals_of_lengths_on_simulated_clips() -> None:
    rng = np.random.default_rng(0)
    lengths, speakers = rng.integers(27, 70, 500), np.arange(500) % 10
    clips = [
        np.linspace(0, 60 / length, length)[:, None] + 0.1 * rng.random((length, 3))
        for length in lengths
    ]
    data = numbers.recordings_of(clips, speakers)
    predicted = numbers.predict(data, speakers < 4)
    records = {one.method: one for one in numbers.compare(predicted, speakers < 4, 15.0, 150, 5)}
    assert records["ours"].coverage > 0.85 and records["Bonferroni"].coverage > 0.85
    assert records["ours"].time < np.mean(lengths) and set(records) == {
        "ours",
        "Bonferroni",
        "first narrow",
        "fixed time",
    }
    assert numbers.draw(list(records.values())).axes


def test_depths_of_a_tree_on_simulated_scores() -> None:
    known = ag.Tree({"one": ("a", "b"), "two": ("c", "d")})
    scores = replace(ag.simulate_scores(400, steps=12, K=2, C=4), classes=known.classes)
    records = tree.compare("simulated", scores, known, ag.TopMass(), 100, 5)
    asked = {(one.target, one.asked): one for one in records}
    for target in tree.TARGETS:
        assert asked[target, "group"].latency <= asked[target, "class"].latency + 0.02
        assert asked[target, "class"].coverage_interval[1] > target - 0.03
    assert tree.draw(records).axes
