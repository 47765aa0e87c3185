"""Files of recordings: what is written is read, what is damaged is counted or refused, and real
files show what they should.
"""

from __future__ import annotations

import io
import lzma
import os
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agreestop.common import InputError
from agreestop.events import (
    Recording,
    bin_events,
    checked_recording,
    read_aedat2,
    read_aedat3,
    read_n_mnist,
)
from agreestop.events.datasets.dvs_gesture import GestureLabel, read_gesture_labels
from agreestop.events.formats.recording import Skipped
from tests.decide.strategies import assert_one_sentence
from tests.events.writers import HEADER_2, HEADER_3, write_aedat2, write_aedat3, write_n_mnist

DATA = Path(
    os.environ.get("AGREESTOP_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data")
)


class Format(NamedTuple):
    """A file format: its functions, its sensor, the times it can hold, its header and the bytes of
    an event.
    """

    read: Callable[[Any], Recording]
    write: Callable[[Any, Recording], None]
    size: tuple[int, int]
    first: tuple[int, int]
    gap: int
    header: bytes
    event: int


FORMATS = {
    "aedat2": Format(
        read_aedat2, write_aedat2, (128, 128), (-(2**31), 2**31 - 1), 2**31 - 1, HEADER_2, 8
    ),
    "aedat3": Format(read_aedat3, write_aedat3, (128, 128), (0, 2**61), 2**40, HEADER_3, 8),
    "n-mnist": Format(read_n_mnist, write_n_mnist, (34, 34), (0, 2**20), 2**17, b"", 5),
}
every_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())


def make(
    x: list[int], y: list[int], on: list[bool], time: list[int], size: tuple[int, int] = (128, 128)
) -> Recording:
    return checked_recording(
        np.array(x, int), np.array(y, int), np.array(on, bool), np.array(time, np.int64), size
    )


def some_events(form: Format, n: int, seed: int = 0) -> Recording:
    rng = np.random.default_rng(seed)
    height, width = form.size
    time = rng.integers(0, 2**23 - 1, n)
    time.sort()
    return checked_recording(
        rng.integers(0, width, n), rng.integers(0, height, n), rng.random(n) < 0.5, time, form.size
    )


@st.composite
def recordings(draw: st.DrawFn, form: Format, least: int = 0) -> Recording:
    """Up to 40 events with the times that the format can hold, from its first to long gaps."""
    height, width = form.size
    gaps = st.one_of(st.integers(0, 3), st.integers(0, form.gap))
    event = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1), st.booleans(), gaps)
    events = draw(st.lists(event, min_size=least, max_size=40))
    time = np.cumsum(
        [draw(st.integers(*form.first)), *(event[3] for event in events)], dtype=np.int64
    )[:-1]
    return make(
        [e[0] for e in events],
        [e[1] for e in events],
        [e[2] for e in events],
        time.tolist(),
        form.size,
    )


def assert_same(one: Recording, other: Recording) -> None:
    for name in ("x", "y", "polarity", "time"):
        assert getattr(one, name).dtype == getattr(other, name).dtype
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.size == other.size


def assert_sound(recording: Recording) -> None:
    assert recording.x.dtype == recording.y.dtype == np.uint16
    assert recording.polarity.dtype == np.bool_
    assert recording.time.dtype == np.int64
    assert len(recording.x) == len(recording.y) == len(recording.polarity) == len(recording.time)
    assert (np.diff(recording.time) >= 0).all()
    assert recording.x.max(initial=0) < recording.size[1]
    assert recording.y.max(initial=0) < recording.size[0]


def read_anything(form: Format, folder: Path, content: bytes) -> Recording | None:
    """A sound recording, or None where the reader refused in a sentence; anything else fails."""
    path = folder / "any.bin"
    path.write_bytes(content)
    try:
        recording = form.read(path)
    except InputError as error:
        assert_one_sentence(str(error))
        return None
    assert_sound(recording)
    return recording


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


# what is written is read


@every_format
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_what_is_written_is_read(form: Format, folder: Path, data: st.DataObject) -> None:
    recording = data.draw(recordings(form, least=1 if form.event == 5 else 0))
    path = folder / "round.bin"
    form.write(path, recording)
    read = form.read(path)
    assert_same(read, recording)
    assert (read.skipped, read.reordered) == (Skipped(), 0)
    before = path.read_bytes()
    form.write(path, read)
    assert path.read_bytes() == before


@every_format
def test_blocks_make_no_difference(
    form: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, whole, parts = (
        some_events(form, 5000),
        tmp_path / "whole.bin",
        tmp_path / "parts.bin",
    )
    form.write(whole, recording)
    for module in (
        "agreestop.events.formats.recording",
        "agreestop.events.formats.aedat",
        "tests.events.writers",
    ):
        monkeypatch.setattr(f"{module}.BLOCK", 7)
    form.write(parts, recording)
    assert parts.read_bytes() == whole.read_bytes()
    assert_same(form.read(whole), recording)


def test_the_bytes_are_those_of_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(
        b"#!AER-DAT2.0\r\n# any\r\n"
        + struct.pack(">Ii", 9 << 8 | 5 << 1, 1000)
        + struct.pack(">Ii", 127 << 8 | 1, 1001)
    )
    assert_same(read_aedat2(path), make([5, 0], [9, 127], [True, False], [1000, 1001]))

    head = (
        b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#Start-Time: "
        b"2016-08-30\r\n#!END-HEADER\r\n"
    )
    events = struct.pack("<Ii", 5 << 17 | 9 << 2 | 3, 1000) + struct.pack("<Ii", 127 << 2 | 1, 1001)
    path.write_bytes(head + struct.pack("<hhiiiiii", 1, 1, 8, 4, 3, 2, 2, 2) + events)
    assert_same(
        read_aedat3(path),
        make([5, 0], [9, 127], [True, False], [(3 << 31) + 1000, (3 << 31) + 1001]),
    )

    content = bytes((5, 9, 0x80, 3, 232)) + bytes((33, 0, 0x7F, 255, 255))
    path.write_bytes(content)
    expected = make([5, 33], [9, 0], [True, False], [1000, 2**23 - 1], (34, 34))
    assert_same(read_n_mnist(path), expected)
    assert_same(read_n_mnist(content), expected)


def test_a_header_may_end_its_lines_either_way(tmp_path: Path) -> None:
    for form, header in ((FORMATS["aedat2"], HEADER_2), (FORMATS["aedat3"], HEADER_3)):
        recording = some_events(form, 10)
        form.write(tmp_path / "a", recording)
        content = (tmp_path / "a").read_bytes().replace(header, header.replace(b"\r\n", b"\n"))
        (tmp_path / "b").write_bytes(content)
        assert_same(form.read(tmp_path / "b"), recording)


def test_an_event_that_begins_like_a_header_is_an_event(tmp_path: Path) -> None:
    foreign = struct.pack(">Ii", 0x23 << 24 | 0x0A, 7)
    (tmp_path / "a").write_bytes(HEADER_2 + foreign + struct.pack(">Ii", 2, 8))
    read = read_aedat2(tmp_path / "a")
    assert_same(read, make([1], [0], [True], [8]))
    assert read.skipped == Skipped(special=1)


def test_small_packets_with_unused_capacity(tmp_path: Path) -> None:
    recording = some_events(FORMATS["aedat3"], 50)
    content, start = HEADER_3, 0
    for number in (0, 1, 3, 0, 20, 26):
        part = slice(start, start + number)
        data = (
            recording.x[part].astype(int) << 17
            | recording.y[part].astype(int) << 2
            | recording.polarity[part].astype(int) << 1
            | 1
        )
        words = np.stack((data, recording.time[part]), axis=1).astype("<u4").tobytes()
        start += number
        content += (
            struct.pack("<hhiiiiii", 1, 0, 8, 4, 0, number + 2, number, number)
            + words
            + b"spare room......"
        )
        content += struct.pack("<hhiiiiii", 2, 0, 36, 4, 0, 1, 1, 1) + bytes(36)
    (tmp_path / "a").write_bytes(content)
    read = read_aedat3(tmp_path / "a")
    assert_same(read, recording)
    assert read.skipped == Skipped(packets=6)


@every_format
def test_a_reader_needs_few_bytes_for_each_event(form: Format, tmp_path: Path) -> None:
    n = 400_000
    form.write(tmp_path / "a", some_events(form, n))
    tracemalloc.start()
    read = form.read(tmp_path / "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read) == n
    assert peak < 13 * n + 6_000_000


# absurd content


@pytest.mark.parametrize("block", [1, 2, 2**16])
def test_the_counter_wraps_around(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agreestop.events.formats.recording.BLOCK", block)
    stamps = [2**31 - 5, -(2**31) + 5, -1, 3, 2**31 - 1, -(2**31)]
    (tmp_path / "a").write_bytes(
        HEADER_2 + b"".join(struct.pack(">Ii", 0, stamp) for stamp in stamps)
    )
    read = read_aedat2(tmp_path / "a")
    turn = 2**32
    assert read.time.tolist() == [
        2**31 - 5,
        2**31 + 5,
        turn - 1,
        turn + 3,
        turn + 2**31 - 1,
        turn + 2**31,
    ]
    assert read.reordered == 0


@every_format
def test_times_that_run_backwards_are_ordered_and_counted(form: Format, tmp_path: Path) -> None:
    form.write(
        tmp_path / "a",
        make(list(range(6)), [0] * 6, [True] * 6, [10, 20, 20, 30, 40, 50], form.size),
    )
    content = (tmp_path / "a").read_bytes()
    head, body = content[: -6 * form.event], content[-6 * form.event :]
    events = [body[i : i + form.event] for i in range(0, len(body), form.event)]
    (tmp_path / "b").write_bytes(head + b"".join(events[i] for i in (3, 0, 5, 2, 1, 4)))
    read = form.read(tmp_path / "b")
    assert read.time.tolist() == [10, 20, 20, 30, 40, 50]
    assert read.x.tolist() == [0, 2, 1, 3, 4, 5]  # those of one time in the order of the file
    assert read.reordered == 2
    assert read.skipped == Skipped()


def test_events_outside_the_sensor_are_counted(tmp_path: Path) -> None:
    read = read_n_mnist(
        bytes((34, 0, 0, 0, 1)) + bytes((0, 240, 0, 0, 2)) + bytes((33, 33, 0, 0, 3))
    )
    assert_same(read, make([33], [33], [False], [3], (34, 34)))
    assert read.skipped == Skipped(outside=2)
    write_aedat3(tmp_path / "a", make([200, 3], [100, 150], [True, True], [1, 2], (260, 346)))
    assert len(read_aedat3(tmp_path / "a", size=(260, 346))) == 2
    cut = read_aedat3(tmp_path / "a", size=(128, 346))
    assert cut.x.tolist() == [200]
    assert cut.skipped == Skipped(outside=1)


def test_events_without_polarity_are_counted(tmp_path: Path) -> None:
    words = [(0, 1), (1 << 15, 2), (1 << 31, 3), (2, 4)]
    (tmp_path / "a").write_bytes(HEADER_2 + b"".join(struct.pack(">II", *word) for word in words))
    assert read_aedat2(tmp_path / "a").skipped == Skipped(special=2)
    assert read_aedat2(tmp_path / "a").time.tolist() == [1, 4]
    write_aedat3(tmp_path / "a", make([1, 2], [1, 2], [True, True], [1, 2]))
    content = bytearray((tmp_path / "a").read_bytes())
    content[-16] &= 0xFE
    (tmp_path / "a").write_bytes(bytes(content))
    assert read_aedat3(tmp_path / "a").skipped == Skipped(special=1)
    assert read_aedat3(tmp_path / "a").x.tolist() == [2]


@every_format
def test_a_file_cut_anywhere_gives_its_whole_part(form: Format, folder: Path) -> None:
    recording = some_events(form, 6)
    form.write(folder / "whole.bin", recording)
    content = (folder / "whole.bin").read_bytes()
    start = len(content) - 6 * form.event
    for length in range(len(content)):
        read = read_anything(form, folder, content[:length])
        whole, rest = divmod(max(length - start, 0), form.event)
        if (
            not whole and read is not None
        ):  # the header, or of AEDAT 2.0, whose header has no end mark, whole lines of it
            assert form.header.startswith(content[:length]) and content[:length].endswith(b"\n")
            assert (len(read), read.skipped) == (0, Skipped())
        elif not whole:
            assert read is None, length
        else:
            assert read is not None, length
            assert_same(read, recording.between(-1, int(recording.time[whole - 1]) + 1))
            assert read.skipped == Skipped(
                cut_bytes=rest, missing=6 - whole if form is FORMATS["aedat3"] else 0
            )


@every_format
@given(content=st.binary(max_size=200), with_header=st.booleans())
@settings(deadline=None, max_examples=80)
def test_any_bytes_are_read_or_refused(
    form: Format, folder: Path, content: bytes, with_header: bool
) -> None:
    read = read_anything(form, folder, (form.header if with_header else b"") + content)
    if read is not None and form is not FORMATS["aedat3"] and not content.startswith(b"#"):
        assert len(read) + read.skipped.outside + read.skipped.special == len(content) // form.event
        assert read.skipped.cut_bytes == len(content) % form.event


@every_format
@given(index=st.integers(0, 10_000), value=st.integers(0, 255))
@settings(deadline=None, max_examples=80)
def test_a_changed_byte_is_read_or_refused(
    form: Format, folder: Path, index: int, value: int
) -> None:
    if not (folder / f"{form.event}{form.size}").exists():
        form.write(folder / f"{form.event}{form.size}", some_events(form, 12))
    content = bytearray((folder / f"{form.event}{form.size}").read_bytes())
    content[index % len(content)] = value
    read = read_anything(form, folder, bytes(content))
    if read is not None and index % len(content) >= len(content) - 12 * form.event:
        assert len(read) + read.skipped.outside + read.skipped.special == 12


numbers = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 40))
some_packet = st.tuples(
    st.integers(-2, 4),
    st.sampled_from((8, 8, 8, 0, -1, 36)),
    numbers,
    numbers,
    st.binary(max_size=60),
)


@given(packets=st.lists(some_packet, max_size=4))
@settings(deadline=None, max_examples=80)
def test_any_packets_are_read_or_refused(
    folder: Path, packets: list[tuple[int, int, int, int, bytes]]
) -> None:
    content = HEADER_3
    for kind, size, capacity, number, body in packets:
        content += struct.pack("<hhiiiiii", kind, 1, size, 4, 0, capacity, number, number) + body
    read_anything(FORMATS["aedat3"], folder, content)


PACKETS = {
    "4 GB": (1, 8, 0, 2**29, 2**29),
    "most": (1, 8, 0, 2**31 - 1, 2**31 - 1),
    "4 GB of frames": (2, 2**31 - 1, 0, 2, 2),
    "negative size": (1, -8, 0, 1, 1),
    "no size": (2, 0, 0, 1, 1),
    "negative capacity": (1, 8, 0, -1, 0),
    "negative number": (1, 8, 0, 1, -1),
    "more than its capacity": (1, 8, 0, 1, 2),
    "negative overflow": (1, 8, -1, 1, 1),
    "negative type": (-1, 8, 0, 1, 1),
    "long events": (1, 16, 0, 1, 1),
}


@pytest.mark.parametrize(
    ("kind", "size", "overflow", "capacity", "number"), PACKETS.values(), ids=PACKETS.keys()
)
def test_an_impossible_packet_is_refused(
    tmp_path: Path, kind: int, size: int, overflow: int, capacity: int, number: int
) -> None:
    write_aedat3(tmp_path / "a", some_events(FORMATS["aedat3"], 5))
    content = (
        (tmp_path / "a").read_bytes()
        + struct.pack("<hhiiiiii", kind, 1, size, 4, overflow, capacity, number, number)
        + bytes(80)
    )
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match="has a damaged packet") as caught:
        read_aedat3(tmp_path / "a")
    assert_one_sentence(str(caught.value))


def test_another_packet_may_be_cut(tmp_path: Path) -> None:
    write_aedat3(tmp_path / "a", some_events(FORMATS["aedat3"], 5))
    cut = struct.pack("<hhiiiiii", 2, 1, 36, 4, 0, 10, 10, 10) + bytes(50)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes() + cut)
    read = read_aedat3(tmp_path / "a")
    assert (len(read), read.skipped) == (5, Skipped(packets=1, cut_bytes=50))


HEADERS: dict[str, tuple[Callable[[Any], object], bytes, str]] = {
    "no header": (
        read_aedat2,
        bytes(80),
        r"is not AEDAT 2.0: it must begin with a line #!AER-DAT2.0",
    ),
    "aedat 3 as 2": (read_aedat2, HEADER_3, "is not AEDAT 2.0, but AEDAT 3.1: use read_aedat3"),
    "version cut": (read_aedat2, b"#!AER-DAT2.0", "is not AEDAT 2.0"),
    "only strangers": (
        read_aedat2,
        HEADER_2 + b"\xff" * 16,
        "holds no event of the sensor .left out: special 2.: check",
    ),
    "aedat 2 as 3": (
        read_aedat3,
        HEADER_2 + bytes(80),
        "is not AEDAT 3.1, but AEDAT 2.0: use read_aedat2",
    ),
    "no header of 3": (
        read_aedat3,
        bytes(80),
        "is not AEDAT 3.1: it must begin with a line #!AER-DAT3.1",
    ),
    "header without end": (
        read_aedat3,
        b"#!AER-DAT3.1\r\n#Format: RAW\r\n",
        "has a header without an end",
    ),
    "header into data": (
        read_aedat3,
        b"#!AER-DAT3.1\r\n" + bytes(60),
        "has a header without an end",
    ),
    "long header": (
        read_aedat3,
        b"#!AER-DAT3.1\r\n" + b"#\r\n" * 400_000,
        "has a header without an end",
    ),
    "compressed": (
        read_aedat3,
        HEADER_3.replace(b"RAW", b"PNGFrames"),
        "holds packets of the format 'PNGFrames': only RAW",
    ),
    "empty": (read_n_mnist, b"", "is empty: N-MNIST's files hold at least one event of 5 bytes"),
    "text": (
        read_n_mnist,
        b"hello, hello, hello.",
        "holds no event of the sensor .left out: outside 4.: check that it is a whole N-MNIST",
    ),
    "four bytes": (read_n_mnist, bytes(4), "left out: cut_bytes 4"),
}


@pytest.mark.parametrize(("read", "content", "match"), HEADERS.values(), ids=HEADERS.keys())
def test_other_files_are_refused(
    tmp_path: Path, read: Callable[[Any], object], content: bytes, match: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=match) as caught:
        read(tmp_path / "a")
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize("read", [read_aedat2, read_aedat3, read_n_mnist, read_gesture_labels])
def test_a_missing_file_is_reported(read: Callable[[Any], object], tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, str(tmp_path) + "\0"):
        with pytest.raises(InputError, match=r"there is no file|is a folder"):
            read(path)


# recordings in memory


def test_a_recording_is_checked_and_sorted() -> None:
    recording = make([3, -1, 0, 5, 2], [0, 0, -7, 0, 4], [True] * 5, [5, 4, 3, 2, 1], (5, 5))
    assert recording.time.tolist() == [1, 5]
    assert recording.x.tolist() == [2, 3]
    assert (recording.skipped, recording.reordered) == (Skipped(outside=3), 1)
    assert make([], [], [], []).span == (0, 0)
    assert recording.span == (1, 6)


def test_events_of_one_time_keep_their_order() -> None:
    time = np.random.default_rng(0).integers(0, 5, 1000)
    recording = checked_recording(
        np.arange(1000), np.zeros(1000, int), np.ones(1000, bool), time, (1, 1000)
    )
    for moment in range(5):
        assert (
            recording.between(moment, moment + 1).x.tolist()
            == np.flatnonzero(time == moment).tolist()
        )


def test_a_window_is_cut_at_its_ends() -> None:
    recording = make(list(range(5)), [0] * 5, [True] * 5, [10, 20, 20, 30, 40])
    assert recording.between(20, 30).x.tolist() == [1, 2]
    assert recording.between(20, 31).x.tolist() == [1, 2, 3]
    assert recording.between(-5, 10).x.tolist() == []
    assert len(recording.between(10, 41)) == 5
    assert recording.between(20, 30).size == (128, 128)


ARRAYS = np.arange(3)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "float coordinates": (
        lambda: checked_recording([0.5], [0], [True], [0], (4, 4)),
        "x has dtype float64: give integers",
    ),
    "float times": (
        lambda: checked_recording([0], [0], [True], [0.5], (4, 4)),
        "time has dtype float64: give integers",
    ),
    "polarity of 0 and 1": (
        lambda: checked_recording([0], [0], [1], [0], (4, 4)),
        "polarity has dtype int64: give booleans",
    ),
    "lengths": (
        lambda: checked_recording(ARRAYS, ARRAYS, ARRAYS > 0, ARRAYS[:2], (4, 4)),
        r"have shapes \(3,\), \(3,\), \(3,\) and \(2,\)",
    ),
    "axes": (
        lambda: checked_recording([[0]], [[0]], [[True]], [[0]], (4, 4)),
        "give one axis and as many entries in each",
    ),
    "late": (
        lambda: checked_recording([0], [0], [True], [2**63], (4, 4)),
        "time reaches from 9223372036854775808",
    ),
    "size": (lambda: checked_recording([0], [0], [True], [0], (0, 4)), r"size is \(0, 4\)"),
    "vast": (
        lambda: checked_recording([0], [0], [True], [0], (4, 10**6)),
        "at most 32768 pixels a side",
    ),
    "window": (
        lambda: make([], [], [], []).between(5, 5),
        "the window is 5 to 5: give two whole numbers of microseconds",
    ),
    "half window": (lambda: make([], [], [], []).between(0, 0.5), "the window is 0 to 0.5"),  # type: ignore[arg-type]
    "aedat2 size": (
        lambda: write_aedat2("a", make([], [], [], [], (34, 34))),
        r"size is \(34, 34\): AEDAT 2.0 is written for",
    ),
    "aedat2 late": (
        lambda: write_aedat2("a", make([0], [0], [True], [2**31])),
        "the first event is at 2147483648 µs",
    ),
    "aedat2 gap": (
        lambda: write_aedat2("a", make([0, 0], [0, 0], [True, True], [0, 2**31])),
        r"two events are 2\^31 µs or more apart",
    ),
    "aedat3 early": (
        lambda: write_aedat3("a", make([0], [0], [True], [-1])),
        "reaches from -1 to 0 µs: AEDAT 3.1 holds 0 to",
    ),
    "n-mnist size": (
        lambda: write_n_mnist("a", make([0], [0], [True], [0])),
        r"size is \(128, 128\): N-MNIST's files hold",
    ),
    "n-mnist late": (
        lambda: write_n_mnist("a", make([0], [0], [True], [2**23], (34, 34))),
        "reaches from 8388608 to 8388608 µs",
    ),
    "n-mnist none": (
        lambda: write_n_mnist("a", make([], [], [], [], (34, 34))),
        "the recording has no events",
    ),
}


@pytest.mark.parametrize(("call", "match"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_in_one_sentence(
    call: Callable[[], object], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))
    assert not list(tmp_path.iterdir())


# labels


def test_gestures_are_read(tmp_path: Path) -> None:
    path = tmp_path / "user01_fluorescent_labels.csv"
    path.write_bytes(
        b"class,startTime_usec,endTime_usec\r\n1,80048239,85092709\r\n11,89431170,95231007\r\n\r\n"
    )
    assert read_gesture_labels(path) == (
        GestureLabel(1, 80048239, 85092709),
        GestureLabel(11, 89431170, 95231007),
    )


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is no table of gestures: its first line must be class,startTime_usec,endTime_usec"),
        (b"1,2,3\n", "is no table of gestures"),
        (
            b"class,startTime_usec,endTime_usec\n1,2\n",
            "has '1,2' in line 2: give three whole numbers",
        ),
        (b"class,startTime_usec,endTime_usec\n1,2,3\n1,2,x\n", "in line 3"),
        (b"class,startTime_usec,endTime_usec\n1,-2,3\n", "in line 2: give three whole numbers"),
        (
            b"class,startTime_usec,endTime_usec\n1,2," + b"9" * 5000,
            "in line 2: give three whole numbers",
        ),
        (b"class,startTime_usec,endTime_usec\n12,2,3\n", "give a class from 1 to 11"),
        (b"class,startTime_usec,endTime_usec\n0,2,3\n", "give a class from 1 to 11"),
        (b"class,startTime_usec,endTime_usec\n1,3,3\n", "a start before its end"),
        (b"class,startTime_usec,endTime_usec\n\xff\xfe\n", "in line 2"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=match) as caught:
        read_gesture_labels(tmp_path / "a")
    assert_one_sentence(str(caught.value))


@given(
    content=st.one_of(
        st.binary(max_size=60), st.text("0123456789,\n\r -x", max_size=60).map(str.encode)
    )
)
@settings(deadline=None, max_examples=40)
def test_any_table_is_read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "labels.csv"
    path.write_bytes(b"class,startTime_usec,endTime_usec\n" + content)
    try:
        labels = read_gesture_labels(path)
    except InputError:
        return
    assert all(1 <= label.gesture <= 11 and 0 <= label.start < label.stop for label in labels)


# real files

MNIST_DVS = {
    "mnist_0_scale04_0001.aedat": (15744, 2210588, 0.25),
    "mnist_0_scale04_0001_qt1.aedat": (1782, 196581, 0.25),
    "mnist_0_scale08_0001_qt1.aedat": (5078, 196557, 0.5),
    "mnist_0_scale16_0001_qt1.aedat": (11209, 196604, 1.0),
}


@pytest.mark.parametrize("name", MNIST_DVS)
def test_real_recordings_of_mnist_dvs(name: str, tmp_path: Path) -> None:
    path = DATA / "mnist-dvs-sample" / name
    if not path.is_file():
        pytest.skip(f"there is no {path}: set AGREESTOP_DATA to the folder of the real data.")
    number, last, scale = MNIST_DVS[name]
    recording = read_aedat2(path)
    assert_sound(recording)
    assert (len(recording), recording.span, recording.skipped, recording.reordered) == (
        number,
        (0, last + 1),
        Skipped(),
        0,
    )
    assert abs(recording.polarity.mean() - 0.5) < 0.05
    write_aedat2(tmp_path / "a", recording)
    assert (tmp_path / "a").read_bytes()[-8 * number :] == path.read_bytes()[-8 * number :]

    early = recording.between(0, 60_000)
    picture = bin_events(early, 1, binary=False, window=(0, 60_000))[0].sum(axis=0)
    middle = picture[
        64 - int(48 * scale) : 64 + int(48 * scale), 66 - int(52 * scale) : 66 + int(52 * scale)
    ]
    assert middle.sum() > 0.9 * picture.sum()
    low, high = np.percentile(early.y, (15, 85))
    # a zero leans to the right; mirrored, it would not
    assert early.x[early.y <= low].mean() > early.x[early.y >= high].mean() + 0.2
    ahead = early.x[early.polarity].mean() - early.x[~early.polarity].mean()
    # the bright digit moves to the right at first, ON before it and OFF behind
    assert ahead > 4 * scale


def test_single_events_far_from_the_digit_are_on() -> None:
    path = DATA / "mnist-dvs-sample" / "mnist_0_scale04_0001.aedat"
    if not path.is_file():
        pytest.skip(f"there is no {path}: set AGREESTOP_DATA to the folder of the real data.")
    recording = read_aedat2(path)
    counts = bin_events(recording, 1, binary=False)[0]
    counts[:, 38:89, 42:93] = 0
    single = counts.sum(axis=0) == 1
    assert single.sum() > 200
    assert counts[0][single].mean() > 0.9


def test_real_recordings_of_n_mnist(tmp_path: Path) -> None:
    path = DATA / "n-mnist-1100.tar.xz"
    if not path.is_file():
        pytest.skip(f"there is no {path}: set AGREESTOP_DATA to the folder of the real data.")
    contents = {}
    with (
        lzma.open(path) as stream,
        tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as archive,
    ):
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and member.name.endswith(".bin"):
                contents[member.name] = file.read()
            if len(contents) == 40:
                break
    border_on = []
    for name, content in contents.items():
        recording = read_n_mnist(content)
        assert_sound(recording)
        assert (recording.skipped, recording.reordered) == (Skipped(), 0), name
        assert 1069 <= len(recording) == len(content) // 5 <= 7152
        assert 250_000 < recording.span[1] < 350_000
        write_n_mnist(tmp_path / "a", recording)
        assert (tmp_path / "a").read_bytes() == content
        counts = bin_events(recording, 1, binary=False)[0]
        counts[:, 3:31, 3:31] = 0
        single = counts.sum(axis=0) == 1
        border_on.extend(counts[0][single].tolist())
    assert np.mean(border_on) > 0.95
