"""The benchmark of open answers, on simulated questions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import agreestop as ag

pytest.importorskip("scipy", reason="the replay of mSPRT needs scipy")
pytest.importorskip("matplotlib", reason="the benchmark draws a figure")

from agreestop.pipeline.answers_report import Replay
from benchmarks import answers as bench


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of different difficulty, 12 samples each, as JSON Lines."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("answers") / "simulated.jsonl"
    lines = []
    for number, ease in enumerate(rng.beta(2.0, 0.4, size=1300)):
        samples = np.where(
            rng.random(12) < ease, "7", rng.integers(5, size=12).astype(str)
        ).tolist()
        lines.append(
            json.dumps(
                {
                    "id": number,
                    "gold": "7",
                    "answers": samples,
                    "tokens": rng.integers(50, 150, size=12).tolist(),
                }
            )
        )
    path.write_text("\n".join(lines))
    return path


def test_published_rules_stop_where_they_should(file: Path) -> None:
    answers = ag.Answers([list("aaaaaaaaaa"), list("aabaaaaaaa"), list("ababababab")])
    stops = bench.peers(Replay.of(answers))
    assert stops["adaptive consistency"].tolist() == [3, 6, 9]  # 0.031 at 4 to 0, 0.035 at 6 to 1
    assert stops["windows of 5"].tolist() == [4, 9, 9]
    assert (
        stops["lead of 3"].tolist()
        == stops["SPRT"].tolist()
        == stops["mSPRT"].tolist()
        == [2, 4, 9]
    )
    ratios = bench.log_ratio_msprt(np.array([3, 0]), np.array([0, 0]))
    assert ratios[1] == pytest.approx(0.0, abs=1e-7)
    # the mean of (2p)^3 under the prior, p - 1/2 half normal with variance 1/(8 · 10^6)
    assert ratios[0] == pytest.approx(math.log1p(6 * math.sqrt(2 / math.pi / 8e6)), rel=0.01)


def test_agreement_is_near_every_target(file: Path) -> None:
    found = bench.measure(Replay.of(ag.Answers.load(file)), 3)
    for target in bench.TARGETS:
        for rule in ("ours, Beta criterion", "ours, learned"):
            assert abs(found[rule, target]["agreement"].mean() - target) < 0.025


@pytest.mark.slow
def test_the_promise_is_kept_and_few_samples_more_than_the_best_threshold_are_taken(
    file: Path, tmp_path: Path
) -> None:
    record = bench.run_answers(file, 4, tmp_path / "answers.json", lambda what, share: None)
    assert json.loads((tmp_path / "answers.json").read_text())["records"] == record["records"]
    assert (tmp_path / "answers.png").stat().st_size > 10_000
    found = {(one["rule"], one.get("target")): one for one in record["records"]}
    for target in bench.TARGETS:
        ours, best = (
            found["ours, Beta criterion", target],
            found["clairvoyant, Beta criterion", target],
        )
        assert abs(ours["agreement"]["mean"] - target) < 0.02
        assert best["agreement"]["mean"] >= target
        assert ours["samples"]["mean"] < 1.4 * best["samples"]["mean"]
        assert ours["samples"]["low"] < ours["samples"]["mean"] < ours["samples"]["high"]
    refused = found["ours, right or no answer", 0.95]
    assert refused["wrong"]["mean"] < 0.08 and refused["answered"]["mean"] <= 1
