"""Rule files: readable, whole or not there at all, and refused with a sentence when truncated,
altered, foreign or newer.
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from tests.decide.strategies import (
    LEARNED,
    Score,
    assert_one_sentence,
    assert_same_decisions,
    make_sample,
)

SAMPLE, TEST = make_sample(80, seed=1), make_sample(20, seed=2)


def small_rule() -> ag.CalibratedRule:
    """A rule whose file holds fitted arrays and the marks of tuned rows."""
    score = ag.Temperature.fit(*make_sample(30, seed=3), times=(1, 2, 3))
    return ag.SpikeCP(0.8, (1, 2, 3), 1, score=score).calibrate(*SAMPLE)


def merged_rule() -> ag.CalibratedRule:
    """A rule whose file holds infinities, fractions and nested settings."""
    return ag.SpikeCP(0.6, (1, 2.5, 3), 1, pooling=ag.MergePValues(r=-math.inf)).calibrate(*SAMPLE)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("rules") / "rule"
    small_rule().save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "rule"


def refusal(path: Path) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(ag.InputError) as caught:
        ag.load_rule(path)
    assert_one_sentence(str(caught.value).replace(str(path), "FILE"))
    return str(caught.value)


def rewritten(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The same file with another header and a checksum that fits it."""
    line, _, rest = content.partition(b"\n")
    size = int(line.split(b" ")[2])
    header = json.loads(rest[:size])
    change(header)
    text = json.dumps(header).encode() + b"\n"
    rest = text + rest[size:]
    return f"agreestop-rule 4 {len(text)} {hashlib.sha256(rest).hexdigest()}\n".encode() + rest


def test_header_is_json_that_a_person_can_read(content: bytes) -> None:
    line, _, rest = content.partition(b"\n")
    magic, number, size, checksum = line.decode("ascii").split(" ")
    assert (magic, number) == ("agreestop-rule", "4")
    assert checksum == hashlib.sha256(rest).hexdigest()
    text = rest[: int(size)].decode()
    header = json.loads(text)
    assert text.count("\n") > 20
    assert header["guarantee"] == small_rule().guarantee
    assert "the answer holds the true class with probability at least 0.8" in header["guarantee"]
    assert (header["calibration_examples"], header["members"], header["classes"]) == (80, 2, 4)
    assert header["versions"]["numpy"] == np.__version__
    assert header["data_fingerprint"] == small_rule().fingerprint
    assert header["rule"]["rule"]["type"] == "SpikeCP"
    assert header["rule"]["rule"]["target"] == {"fraction": "4/5"}


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    small_rule().save(first)
    small_rule().save(second)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("make", [small_rule, merged_rule])
def test_a_loaded_rule_is_the_same_rule(
    make: Callable[[], ag.CalibratedRule], tmp_path: Path
) -> None:
    rule = make()
    rule.save(str(tmp_path / "rule"))
    loaded = ag.load_rule(str(tmp_path / "rule"))
    assert_same_decisions(loaded.decide(TEST.log_confidence), rule.decide(TEST.log_confidence))
    assert loaded.rule.max_set_size == 1
    assert loaded.checkpoints == rule.checkpoints
    assert [type(time) for time in loaded.checkpoints] == [type(time) for time in rule.checkpoints]


def test_infinite_thresholds_survive(tmp_path: Path) -> None:
    with pytest.warns(ag.CalibrationWarning):
        vacuous = ag.AgreeStop(0.99, (1, 2, 3), 1).calibrate(*SAMPLE)
    vacuous.save(tmp_path / "rule")
    loaded = ag.load_rule(tmp_path / "rule")
    assert loaded.shortage == vacuous.shortage != ""
    assert loaded.decide(TEST.log_confidence).sets.all()


def test_a_file_truncated_at_any_length_is_refused(content: bytes, scratch: Path) -> None:
    first_line, header_end = (
        content.index(b"\n"),
        content.index(b"\n") + int(content.split(b" ")[2]),
    )
    lengths = {
        *range(0, first_line + 3),
        *range(first_line, len(content), 97),
        *range(header_end - 5, header_end + 20),
        len(content) - 1,
    }
    for length in sorted(lengths):
        scratch.write_bytes(content[:length])
        refusal(scratch)
    scratch.write_bytes(content)
    ag.load_rule(scratch)


@given(st.data())
def test_a_file_with_an_altered_byte_is_refused(
    content: bytes, scratch: Path, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.integers(1, 255))
    altered = bytearray(content)
    altered[position] ^= change
    if altered.startswith(b"agreestop-rule 0 "):
        return
    scratch.write_bytes(altered)
    refusal(scratch)


def test_a_format_that_never_was_is_refused(content: bytes, scratch: Path) -> None:
    scratch.write_bytes(content.replace(b"agreestop-rule 4 ", b"agreestop-rule 0 "))
    refusal(scratch)


def test_more_bytes_are_refused(content: bytes, scratch: Path) -> None:
    scratch.write_bytes(content + b"\0")
    assert "truncated or altered" in refusal(scratch)


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"\n",
        b"hello",
        b"PK\x03\x04",
        b"\x89PNG\r\n",
        pickle.dumps([1, 2]),
        b'{"rule": 1}',
        b"agreestop-rule",
        "règle\n".encode(),
        bytes(300),
    ],
)
def test_a_foreign_file_is_refused(foreign: bytes, scratch: Path) -> None:
    scratch.write_bytes(foreign)
    assert "not an agreestop rule file" in refusal(scratch) or foreign == b"agreestop-rule"


def test_a_score_file_is_not_a_rule_file(scratch: Path) -> None:
    ag.save_scores(scratch, ag.Scores(TEST.log_confidence, TEST.labels, (1, 2, 3)))
    assert "not an agreestop rule file" in refusal(scratch)


def test_the_format_of_0_1_is_refused(content: bytes, scratch: Path) -> None:
    scratch.write_bytes(content.replace(b"agreestop-rule 4 ", b"agreestop-rule 1 "))
    message = refusal(scratch)
    assert "format 1" in message and "calibrate" in message


def test_a_newer_format_says_so(content: bytes, scratch: Path) -> None:
    scratch.write_bytes(content.replace(b"agreestop-rule 4 ", b"agreestop-rule 7 "))
    assert "rule format 7 and this agreestop reads up to 4: install a newer agreestop" in refusal(
        scratch
    )


def change_type(header: dict[str, Any]) -> None:
    header["rule"]["rule"]["type"] = "Path"


def change_settings(header: dict[str, Any]) -> None:
    header["rule"]["rule"]["colour"] = "red"


def change_target(header: dict[str, Any]) -> None:
    header["rule"]["rule"]["target"] = {"fraction": "3/2"}


def change_entry(header: dict[str, Any]) -> None:
    header["rule"]["rule"]["target"] = {"eval": "1 + 1"}


def change_array(header: dict[str, Any]) -> None:
    header["arrays"][0]["shape"] = [10**9]


def change_dtype(header: dict[str, Any]) -> None:
    header["arrays"][0]["dtype"] = "|O8"


def change_number(header: dict[str, Any]) -> None:
    header["rule"][LEARNED]["thresholds"] = {"array": 99}


def change_all(header: dict[str, Any]) -> None:
    header["rule"] = header["rule"]["rule"]


def remove_rule(header: dict[str, Any]) -> None:
    del header["rule"]


def nest_deeply(header: dict[str, Any]) -> None:
    nested: list[Any] = []
    for _ in range(900):
        nested = [nested]
    header["rule"] = nested


@pytest.mark.parametrize(
    "change",
    [
        change_type,
        change_settings,
        change_target,
        change_entry,
        change_array,
        change_dtype,
        change_number,
        change_all,
        remove_rule,
        nest_deeply,
    ],
)
def test_a_file_that_holds_no_rule_is_refused(
    change: Callable[[dict[str, Any]], None], content: bytes, scratch: Path
) -> None:
    scratch.write_bytes(rewritten(content, change))
    refusal(scratch)


def zero_denominator(header: dict[str, Any]) -> None:
    header["rule"]["rule"]["target"] = {"fraction": "1/0"}


def endless_array(header: dict[str, Any]) -> None:
    header["arrays"][0]["shape"] = [10**30]


@pytest.mark.parametrize("change", [zero_denominator, endless_array])
def test_numbers_that_cannot_be_are_refused(
    change: Callable[[dict[str, Any]], None], content: bytes, scratch: Path
) -> None:
    scratch.write_bytes(rewritten(content, change))
    refusal(scratch)


def test_unchanged_rewriting_is_accepted(content: bytes, scratch: Path) -> None:
    """So the refusals above are of what was changed."""
    scratch.write_bytes(rewritten(content, lambda header: None))
    assert_same_decisions(
        ag.load_rule(scratch).decide(TEST.log_confidence), small_rule().decide(TEST.log_confidence)
    )


def test_nothing_is_unpickled_or_executed(
    content: bytes, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError

    scratch.write_bytes(content)
    for module, name in (
        (pickle, "loads"),
        (pickle, "load"),
        (pickle, "Unpickler"),
        (builtins, "eval"),
        (builtins, "exec"),
    ):
        monkeypatch.setattr(module, name, refuse)
    loaded = ag.load_rule(scratch)
    monkeypatch.undo()
    assert loaded.n == 80


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none")
    assert "is a folder, a pipe or a device: give a file" in refusal(tmp_path)


class HandMade(Score):
    """A score that agreestop does not know."""

    def losses(self, index: int, log_confidence: Any) -> Any:
        return -log_confidence[:, 0]


def test_a_rule_with_a_hand_made_score_decides_but_cannot_be_saved(tmp_path: Path) -> None:
    calibrated = ag.SpikeCP(0.8, (1, 2, 3), 1, score=HandMade()).calibrate(*SAMPLE)
    single = make_sample(80, seed=1).log_confidence[:, :, :1], SAMPLE.labels
    plain = ag.SpikeCP(0.8, (1, 2, 3), 1).calibrate(*single)
    assert_same_decisions(
        calibrated.decide(TEST.log_confidence), plain.decide(TEST.log_confidence[:, :, :1])
    )
    with pytest.raises(ag.InputError, match="HandMade cannot be kept in a rule file"):
        calibrated.save(tmp_path / "rule")
    assert list(tmp_path.iterdir()) == []


def fail_with(error: BaseException) -> Callable[..., None]:
    def fail(*arguments: object, **settings: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()],
    ids=["disk full", "interrupt"],
)
def test_a_failure_while_writing_leaves_the_old_file(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rule"
    small_rule().save(path)
    before = path.read_bytes()
    other = merged_rule()
    monkeypatch.setattr(os, step, fail_with(error))
    expected = ag.InputError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(
        expected, match="No space left on device" if isinstance(error, OSError) else None
    ):
        other.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["rule"]
    other.save(path)
    assert path.read_bytes() != before


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    usual, path = tmp_path / "usual", tmp_path / "rule"
    usual.write_bytes(b"")
    small_rule().save(path)
    assert path.stat().st_mode == usual.stat().st_mode


def test_saving_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "such" / "folder" / "rule", tmp_path):
        with pytest.raises(ag.InputError, match="cannot write") as caught:
            small_rule().save(path)
        assert_one_sentence(str(caught.value).replace(str(path), "FILE"))
