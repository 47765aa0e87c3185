"""--ray on train, score and decide: the same files as without it. A stand-in for Ray runs the
actors in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import agreestop as ag
from agreestop.cli.app import app
from agreestop.decide.scores import load_spikes
from agreestop.ensembles import load

from .conftest import Work
from .fake_ray import FakeRay

pytest.importorskip("pyarrow", reason="files of recordings need pyarrow (the extra cluster)")

CONFIG = """name = "small"
[data]
name = "files"
file = "{file}"
[network]
hidden = [8]
[[ensembles]]
kind = "deep"
members = 3
epochs = 2
device = "cpu"
[[ensembles]]
kind = "variational"
members = 2
epochs = 1
device = "cpu"
[decide]
n_calibration = 20
"""


def call(*words: object) -> str:
    """What a command prints, on wide lines: where they break must not depend on a folder's path."""
    result = CliRunner(env={"COLUMNS": "500"}).invoke(
        app, [str(word) for word in words], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_decide_writes_the_file_of_one_machine(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    fake = use(FakeRay())
    inputs = tmp_path / "a.npz"
    ag.events.Events.from_dense(work.events.to_dense(), classes=("x", "y", "z")).save(inputs)
    for suffix in (".csv", ".json"):
        one, many = tmp_path / f"one{suffix}", tmp_path / f"many{suffix}"
        call("decide", work.rule_file, inputs, "--members", work.members, "-o", one)
        call(
            "decide",
            work.rule_file,
            inputs,
            "--members",
            work.members,
            "--ray",
            "local",
            "-o",
            many,
        )
        assert (
            one.read_bytes() == many.read_bytes()
            and not (tmp_path / f"many{suffix}.parts").exists()
        )
    assert fake.started == 2
    call(
        "decide",
        work.rule_file,
        inputs,
        "--members",
        work.members,
        "--ray",
        "local",
        "-o",
        tmp_path / "many.parquet",
    )
    expected = work.ensemble.decide(work.rule, work.events).decisions
    assert np.array_equal(
        ag.cluster.load_decisions(tmp_path / "many.parquet", work.rule).sets, expected.sets
    )


def test_decide_watches_for_drift(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    work.events.save(tmp_path / "a.npz")
    words = ("decide", work.rule_file, tmp_path / "a.npz", "--members", work.members)
    call(*words, "--monitor", tmp_path / "one", "-o", tmp_path / "one.csv")
    call(*words, "--ray", "local", "--monitor", tmp_path / "many", "-o", tmp_path / "many.parquet")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "a.csv"), "writes a file: give --members too"),
        (("--members", "m"), "writes a file: give -o too"),
        (
            ("--members", "m", "--groups", "g", "-o", "a.csv"),
            "groups come from the column 'group' of Parquet files",
        ),
    ],
)
def test_decide_on_ray_needs_members_and_a_file(
    work: Work, words: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ag.InputError, match=sentence):
        call("decide", work.rule_file, "a.npz", "--ray", "local", *words)


def test_decisions_go_to_a_folder_and_a_second_call_says_that_they_are_there(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    work.events.rows(slice(0, 300)).save(tmp_path / "a.npz")
    words = (
        "decide",
        work.rule_file,
        tmp_path / "a.npz",
        "--members",
        work.members,
        "--ray",
        "local",
        "-o",
        tmp_path / "out",
    )
    first, again = call(*words), call(*words)
    assert "earlier call" not in first and "in an earlier call" in " ".join(again.split())
    assert (
        all("Wrote" in said for said in (first, again))
        and len(ag.cluster.load_decisions(tmp_path / "out", work.rule_file)) == 300
    )


def test_damaged_files_are_skipped_only_when_asked(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        work.events.rows(slice(300 * number, 300 * number + 300)).save(source / f"{number}.npz")
    (source / "1.npz").write_bytes((source / "1.npz").read_bytes()[:500])
    words = ("decide", work.rule_file, source, "--members", work.members, "--ray", "local")
    with pytest.raises(ag.InputError, match=r"1\.npz is not a whole file of events"):
        call(*words, "-o", tmp_path / "out.parquet")
    for wrong in (words, words[:-2]):
        with pytest.raises(ag.InputError, match="--skip-damaged is for --ray and -o"):
            call(*wrong, "-o", tmp_path / "out.csv", "--skip-damaged")
    said = call(*words, "-o", tmp_path / "out.parquet", "--skip-damaged")
    assert "Skipped in all: 1 files" in said and "1.npz is not a whole file" in said
    assert len(ag.cluster.load_decisions(tmp_path / "out.parquet", work.rule)) == 600


def test_folders_and_parquet_need_a_cluster(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    ag.cluster.save_recordings(tmp_path / "a.parquet", work.events.rows(slice(0, 300)))
    for verb in (("decide", work.rule_file), ("score",)):
        with pytest.raises(ag.InputError, match=r"a\.parquet is a folder or a Parquet file"):
            call(
                *verb,
                tmp_path / "a.parquet",
                "--members",
                work.members,
                "-o",
                tmp_path / f"{verb[0]}.npz",
            )
    call(
        "score",
        tmp_path / "a.parquet",
        "--members",
        work.members,
        "--ray",
        "local",
        "-o",
        tmp_path / "scores.npz",
    )
    expected = work.ensemble.score(work.events.rows(slice(0, 300)))
    assert np.array_equal(
        ag.load_scores(tmp_path / "scores.npz").log_confidence, expected.log_confidence
    )


def test_score_writes_the_scores_of_one_machine(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    use(FakeRay())
    inputs = tmp_path / "a.npz"
    ag.events.Events.from_dense(work.events.to_dense(), work.events.labels, ("x", "y", "z")).save(
        inputs
    )
    call("score", inputs, "--members", work.members, "-o", tmp_path / "one.npz")
    call("score", inputs, "--members", work.members, "--ray", "local", "-o", tmp_path / "many.npz")
    one, many = ag.load_scores(tmp_path / "one.npz"), ag.load_scores(tmp_path / "many.npz")
    assert all(
        np.array_equal(getattr(one, name), getattr(many, name))
        for name in ("log_confidence", "labels", "ids", "times")
    )
    assert (one.classes, one.engine, one.ensemble_digest) == (
        many.classes,
        many.engine,
        many.ensemble_digest,
    )


def test_members_that_train_apart_are_those_that_train_together(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    """Two actors die meanwhile. Scores of the configuration are the same too."""
    died: set[int] = set()

    def lose(actor: int, method: str, argument: object) -> bool:
        dies = method == "run" and len(died) < 2
        died.update({actor} if dies else ())
        return dies

    work.events.rows(slice(0, 400)).save(tmp_path / "data.npz")
    config = tmp_path / "small.toml"
    config.write_text(CONFIG.format(file=tmp_path / "data.npz"))
    call("train", config, "-o", tmp_path / "one")
    use(FakeRay(lose))
    call("train", config, "--ray", "local", "-o", tmp_path / "many")
    assert len(died) == 2
    for kind in ("deep", "variational"):
        one, many = (
            load(tmp_path / folder / kind / "members.safetensors") for folder in ("one", "many")
        )
        assert one.digest == many.digest and len(one.history) == len(many.history)
        assert np.allclose(
            [epoch.loss for epoch in one.history], [epoch.loss for epoch in many.history], rtol=1e-5
        )
    call("score", config, "-o", tmp_path / "one")
    call("score", config, "--ray", "local", "-o", tmp_path / "many")
    for name in ("deep/tuning.npz", "deep/pool.npz", "variational/test.npz"):
        assert np.array_equal(
            load_spikes(tmp_path / "one" / name).spikes,
            load_spikes(tmp_path / "many" / name).spikes,
        )
    stored = [np.load(tmp_path / folder / "deep" / "energy.npz") for folder in ("one", "many")]
    assert all(np.array_equal(stored[0][name], stored[1][name]) for name in stored[0])


def test_a_training_that_was_killed_continues(
    work: Work, tmp_path: Path, use: Callable[[FakeRay], FakeRay]
) -> None:
    """Members that had finished are not trained again: their checkpoints are whole."""

    def lose(actor: int, method: str, argument: object) -> bool:
        if method == "run" and argument == 2:
            raise KeyboardInterrupt
        return False

    work.events.rows(slice(0, 400)).save(tmp_path / "data.npz")
    config = tmp_path / "small.toml"
    config.write_text(CONFIG.format(file=tmp_path / "data.npz"))
    use(FakeRay(lose, cores=1))
    assert (
        CliRunner()
        .invoke(app, ["train", str(config), "--ray", "local", "-o", str(tmp_path / "many")])
        .exit_code
        == 130
    )
    finished = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "many" / "deep").glob("training-*.safetensors")
    }
    assert sorted(path.name for path in finished) == [
        "training-0.safetensors",
        "training-1.safetensors",
    ]
    use(FakeRay())
    call("train", config, "--ray", "local", "-o", tmp_path / "many")
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    call("train", config, "-o", tmp_path / "one")
    assert (
        load(tmp_path / "one/deep/members.safetensors").digest
        == load(tmp_path / "many/deep/members.safetensors").digest
    )
