"""Files are written completely or not at all, killed writers leave nothing for long, and folders
can be locked.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agreestop.common import (
    InputError,
    atomic_writer,
    check_writable,
    file_lock,
    folder_lock,
    make_folder,
    open_file,
    read_file,
)

HOLD = """
import sys, time
from pathlib import Path
from agreestop.common import atomic_writer, folder_lock
kind, path = sys.argv[1], Path(sys.argv[2])
with atomic_writer(path) if kind == "write" else folder_lock(path):
    print("ready", flush=True)
    time.sleep(60)
"""


def start(kind: str, path: Path) -> subprocess.Popen[str]:
    """Another process that writes a file, or holds a folder's lock, until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, kind, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def write(path: Path, content: bytes = b"content") -> None:
    with atomic_writer(path) as stream:
        stream.write(content)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_next_writer_removes_what_killed_writers_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "film.part").touch()
    (tmp_path / ".hidden.part").touch()
    killed, living = start("write", tmp_path / "a"), start("write", tmp_path / "b")
    try:
        end(killed)
        assert len(names(tmp_path)) == 4
        write(tmp_path / "c")
        assert [name for name in names(tmp_path) if name.startswith(".b.")]
        assert len(names(tmp_path)) == 4, "a's temporary file is gone, c is there"
    finally:
        end(living)
    write(tmp_path / "c")
    assert names(tmp_path) == [".hidden.part", "c", "film.part"]


def test_many_threads_write_with_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: write(tmp_path / f"file{i % 20}", bytes([i])), range(200)))
    assert len(names(tmp_path)) == 21
    assert {path.stat().st_mode for path in tmp_path.iterdir()} == {
        (tmp_path / "usual").stat().st_mode
    }


def test_the_umask_of_the_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
    write(tmp_path / "a")


def test_only_files_are_read_and_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="is a folder, a pipe or a device"):
            read_file(path)
        with pytest.raises(InputError, match="it is a folder, a pipe or a device"):
            write(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write(tmp_path / "a")
    assert read_file(tmp_path / "a") == b"content"
    with pytest.raises(InputError, match=r"there is no file .*/b: make one\.$"):
        read_file(tmp_path / "b", "make one")
    with pytest.raises(InputError, match="/a has more than 6 bytes"):
        read_file(tmp_path / "a", most=6)
    with (
        pytest.raises(InputError, match=r"/a cannot be read \(Input/output error\)"),
        open_file(tmp_path / "a"),
    ):
        raise OSError(5, "Input/output error")


def test_a_held_lock_is_refused_or_waited_for(tmp_path: Path) -> None:
    holder = start("lock", tmp_path)
    said: list[str] = []
    refusal = (
        rf"is in use by process {holder.pid}: wait until it is done, or choose another folder\.$"
    )
    with pytest.raises(InputError, match=refusal), folder_lock(tmp_path):
        pass
    killer = threading.Timer(0.3, end, (holder,))
    killer.start()
    with folder_lock(tmp_path, said.append):
        killer.join()
        assert holder.returncode == -signal.SIGKILL, "the lock of a killed process is free"
    assert said == [f"{tmp_path} is in use by process {holder.pid}: waiting until it is done."]
    assert names(tmp_path) == []


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    end(start("lock", tmp_path))
    assert names(tmp_path) == [".agreestop-lock"]
    with (tmp_path / ".agreestop-lock").open("ab") as stream:
        stream.write(b"0123456789")  # its number was longer than that of this process
    with folder_lock(tmp_path):
        assert (tmp_path / ".agreestop-lock").read_text() == str(os.getpid())
    assert names(tmp_path) == []


def test_a_thread_may_take_its_lock_twice_and_others_wait(tmp_path: Path) -> None:
    inside = 0

    def work(number: int) -> None:
        nonlocal inside
        with folder_lock(tmp_path, lambda sentence: None), folder_lock(tmp_path):
            inside += 1
            assert inside == 1
            time.sleep(0.001)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert names(tmp_path) == []


def test_a_lock_where_nothing_can_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = (
        r"cannot lock .*: No such file or directory; choose a folder that exists and may be "
        r"written to\.$"
    )
    with pytest.raises(InputError, match=refusal), folder_lock(tmp_path / "none"):
        pass
    with (
        pytest.raises(InputError, match=refusal),
        folder_lock(tmp_path / "none", lambda sentence: pytest.fail(sentence)),
    ):
        pass
    monkeypatch.setattr(
        os, "open", lambda *arguments: (_ for _ in ()).throw(OSError(30, "Read-only file system"))
    )
    with (
        pytest.raises(InputError, match=r"cannot lock .*: Read-only file system"),
        folder_lock(tmp_path),
    ):
        pass


def test_a_file_system_without_locks_still_works_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def fail(handle: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fail)
    (tmp_path / ".a.12345678.part").touch()
    write(tmp_path / "a")
    assert names(tmp_path) == [".a.12345678.part", "a"], "perhaps somebody still writes it"
    said: list[str] = []
    with folder_lock(tmp_path, said.append):
        pass
    assert len(said) == 1 and "cannot be locked" in said[0]
    with (
        pytest.raises(InputError, match=r"cannot lock .*: Function not implemented"),
        folder_lock(tmp_path),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(InputError, match="cannot make the folder"):
            make_folder(path)
    with pytest.raises(InputError, match="choose a path that may be written to"):
        make_folder(tmp_path / ("long" * 100))


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("elsewhere/real")
    (tmp_path / "second").symlink_to("link")
    (tmp_path / "new").symlink_to("elsewhere/not there yet")
    for name, content in (("link", b"first"), ("second", b"second")):
        check_writable(tmp_path / name)
        write(tmp_path / name, content)
        assert (tmp_path / name).is_symlink() and (folder / "real").read_bytes() == content
    write(tmp_path / "new", b"made")
    assert (tmp_path / "new").is_symlink() and (folder / "not there yet").read_bytes() == b"made"
    assert names(folder) == ["not there yet", "real"] and names(tmp_path) == [
        "elsewhere",
        "link",
        "new",
        "second",
    ]


def test_a_writer_that_fails_leaves_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(KeyboardInterrupt), atomic_writer(tmp_path / "link") as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert (tmp_path / "real").read_bytes() == b"old" and names(tmp_path) == ["link", "real"]


def test_links_to_which_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to a folder").symlink_to("folder")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "nowhere").symlink_to("no such folder/file")
    (tmp_path / "device").symlink_to("/dev/null")
    before = names(tmp_path)
    for name, words in (
        ("to a folder", "is a folder, a pipe or a device"),
        ("device", "is a folder, a pipe or a device"),
        ("loop", "a link that leads nowhere"),
        ("one", "a link that leads nowhere"),
        ("nowhere", "a link that leads nowhere"),
    ):
        for use in (write, check_writable):
            with pytest.raises(InputError, match=words):
                use(tmp_path / name)
    assert names(tmp_path) == before and not names(tmp_path / "folder")


def test_an_input_is_not_replaced_through_a_link(tmp_path: Path) -> None:
    write(tmp_path / "input")
    (tmp_path / "link").symlink_to("input")
    (tmp_path / "loop").symlink_to("loop")
    for output, source in (("link", "input"), ("input", "link"), ("link", "link")):
        with pytest.raises(InputError, match="is read and would be replaced"):
            check_writable(tmp_path / output, tmp_path / source)
    check_writable(
        tmp_path / "other", tmp_path / "input", tmp_path / "loop", tmp_path / "none", None
    )


def test_a_lock_is_the_same_by_either_name(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    with (
        file_lock(tmp_path / "real"),
        pytest.raises(InputError, match="is in use by"),
        file_lock(tmp_path / "link"),
    ):
        pass
