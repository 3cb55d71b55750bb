"""What the operating system is asked for: a sync for each batch at sync, none for a commit below that."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from store_fault_support import do_without
from store_parts_support import _bodies, _sync_beside
from store_support import put

from multiqueue.store import Durability, SqliteStore, StoreError, StoreFailed

PROGRAM = """
import sys; from multiqueue.store import Delete, Put, SqliteStore
directory, durability, pace = sys.argv[1:]
store = SqliteStore.scratch(directory) if durability == "scratch" else SqliteStore(
    directory, durability=durability, large_commit_bytes=10_000
)
print("BEGIN", file=sys.stderr, flush=True)
is_transient = pace == "transient"
for number in range(5_000 if pace == "pipelined" else 100):
    message = Put(1, b"", b"x" * (10_000 if is_transient else 100), transient=is_transient)
    commit = store.submit([message])
    if pace != "pipelined":
        commit.wait()
    if is_transient:
        store.submit([Delete([message.id])]).wait()
store.submit([]).wait()
print("END", file=sys.stderr, flush=True)
print(store.statistics().commits)
store.close()
"""


def syncs(directory: Path, durability: str, pace: str) -> tuple[int, int]:
    """How often a program that publishes synced something while it did, and how many commits it counted."""
    if shutil.which("strace") is None:
        do_without("there is no strace to count what the operating system is asked for")
    trace = directory / "trace"
    command = ["strace", "-f", "-e", "trace=fsync,fdatasync,write", "-o", str(trace), sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        [*command, str(directory / "store"), durability, pace], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and "ptrace" in done.stderr:
        do_without("strace may not trace here")
    assert done.returncode == 0, done.stderr
    between = trace.read_text().partition('"BEGIN')[2].partition('"END')[0]
    return between.count("fdatasync(") + between.count("fsync("), int(done.stdout)


def test_at_sync_each_batch_is_one_sync(tmp_path: Path) -> None:
    """Who waits for each commit has a sync for each; pipelined there is one for each batch, not for each message."""
    (tmp_path / "waiting").mkdir()
    found, commits = syncs(tmp_path / "waiting", "sync", "waiting")
    assert 100 <= commits <= 102
    assert 100 <= found <= commits + 4  # the last commit is a barrier and writes nothing
    (tmp_path / "pipelined").mkdir()
    found, commits = syncs(tmp_path / "pipelined", "sync", "pipelined")
    assert commits < 500
    assert commits <= found <= 2 * commits + 10  # and what copies the log into the file


def test_what_a_power_loss_may_undo_is_not_synced(tmp_path: Path) -> None:
    """Transient messages that come and go, in files of bodies too, wait for no sync, as nobody was promised them."""
    found, commits = syncs(tmp_path, "sync", "transient")
    assert 200 <= commits <= 202
    assert found <= 12  # of the directory, for a new file of bodies; of the header of a log that is begun


@pytest.mark.parametrize("durability", ["relaxed", "scratch"])
def test_below_sync_no_commit_waits_for_the_disk(tmp_path: Path, durability: str) -> None:
    """At relaxed nothing is synced for a commit, and a scratch store never syncs."""
    (tmp_path / "store").mkdir()
    found, commits = syncs(tmp_path, durability, "waiting")
    assert 100 <= commits <= 102
    assert found <= 3


def test_without_a_thread_the_writer_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, as at the end of the interpreter, both files of a commit are synced all the
    same."""

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    synced: list[int] = []
    with SqliteStore(tmp_path, reserve_bytes=0, large_commit_bytes=1000) as store:
        with monkeypatch.context() as at_the_end:
            at_the_end.setattr(_sync_beside.threading, "Thread", Refused)
            at_the_end.setattr(_sync_beside, "sync_data", synced.append)
            store.submit([put(1, b"x" * 1000)]).wait()
            store.submit([put(1, b"y" * 1000)]).wait()
        assert len(synced) == 4
        assert len(set(synced)) == 2
        store.submit([put(1, b"z" * 1000)]).wait()
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        assert len(store.page(1, 0, 10)) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_batch_is_written_while_the_one_before_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Its bodies are written, but neither is told, nor is the second one committed, until the first one is on the
    disk; where the disk fails then, it is the end for both."""
    told: list[int] = []
    both_written, may_sync = threading.Event(), threading.Event()
    sync, append = _sync_beside.sync_data, _bodies.Bodies.append

    def slow(descriptor: int) -> None:
        assert may_sync.wait(60)
        if fails:
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    def noted(bodies: _bodies.Bodies, ids: list[int], given: list[bytes]) -> list[int]:
        places = append(bodies, ids, given)
        if given[0] == b"y" * 300_000:
            both_written.set()
        return places

    monkeypatch.setattr(_bodies.Bodies, "append", noted)
    with ExitStack() as closing:
        store = SqliteStore(tmp_path, reserve_bytes=0)
        closing.callback(store.close)
        closing.callback(may_sync.set)
        store._commits.hold()
        monkeypatch.setattr(_sync_beside, "sync_data", slow)
        commits = [
            store.submit([put(1, each * 300_000)], committed=lambda each=each: told.append(each))  # type: ignore[misc]
            for each in (b"x", b"y")
        ]
        store._commits.release()
        assert both_written.wait(60)
        assert told == []
        assert [header.size for header in store.page(1, 0, 10)] == [300_000]
        may_sync.set()
        for commit in commits:
            with pytest.raises(StoreFailed) if fails else nullcontext():
                commit.wait(60)
        assert told == ([] if fails else [b"x", b"y"])


def test_a_batch_that_is_refused_waits_for_the_sync_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is told when its own sync has ended, also while a third one waits."""
    safe: list[int] = []
    told: list[tuple[int, bool]] = []
    sync = _sync_beside.sync_data

    def slow(descriptor: int) -> None:
        time.sleep(0.2)
        sync(descriptor)
        safe.append(descriptor)

    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        store.submit([put(1, b"x", id=store.allocate())]).wait()
        (taken,) = [header.id for header in store.page(1, 0, 10)]
        monkeypatch.setattr(_sync_beside, "sync_data", slow)
        for _ in range(2):
            safe.clear()
            store._commits.hold()
            submitted = [
                store.submit(
                    [put(1, b"y" * 300_000, id=one)],
                    committed=lambda number=number: told.append((number, len(safe) >= number)),  # type: ignore[misc]
                )
                for number, one in ((2, 0), (0, taken), (4, 0))
            ]
            store._commits.release()
            submitted[0].wait(60)
            with pytest.raises(StoreError, match="is stored already"):
                submitted[1].wait(60)
            submitted[2].wait(60)
    assert told == 2 * [(2, True), (4, True)]


def test_a_new_files_name_is_synced_before_its_first_commit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is synced behind the first bytes, once; where that fails, nobody is told."""
    began, may_go_on = threading.Event(), threading.Event()

    def slow(directory: int) -> None:
        began.set()
        assert may_go_on.wait(60)
        if is_broken:
            raise OSError(errno.EIO, "Input/output error")

    is_broken = False
    with ExitStack() as closing:
        store = SqliteStore(tmp_path, reserve_bytes=0, large_commit_bytes=1000)
        monkeypatch.setattr(_sync_beside.os, "fsync", slow)
        closing.callback(store.close)
        closing.callback(may_go_on.set)
        commit = store.submit([put(1, b"x" * 1000)])
        assert began.wait(60)
        assert not commit.is_done
        may_go_on.set()
        assert commit.wait(60)
        began.clear()
        store.submit([put(1, b"x" * 1000)]).wait()
        assert not began.is_set()
        store._bodies._is_named, is_broken = False, True
        with pytest.raises(StoreFailed):
            store.submit([put(1, b"x" * 1000)]).wait()


def test_a_file_is_ended_only_after_its_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where room is short, a commit is being synced, and of what it appended nothing is left."""
    is_open: list[int] = []

    def slow(descriptor: int) -> None:
        time.sleep(0.1)
        is_open.append(os.fstat(descriptor).st_size)

    with SqliteStore(tmp_path):
        monkeypatch.setattr(_sync_beside, "sync_data", slow)
        bodies = _bodies.Bodies(tmp_path, file_bytes=1 << 20, durability=Durability.SYNC, large_commit_bytes=1)
        bodies.begin([])
        assert bodies.takes(1000, 1000)
        (place,) = bodies.append([1], [bytes(1000)])
        bodies.begin_sync()
        bodies.release([(place, 1000)])
        bodies.committed()
        assert bodies.sparse(is_hurried=True) is None
        bodies.close(was_clean=True)
    assert is_open == [1000 + _bodies._RECORD.size]


def test_what_waits_at_the_end_of_the_interpreter_is_stored(tmp_path: Path) -> None:
    """A program that ends without closing its store loses nothing, though its first large commit is only then."""
    program = (
        "import sys; from multiqueue.store import Put, SqliteStore; store = SqliteStore(sys.argv[1], reserve_bytes=0);"
        " store._commits.hold(); store.submit([Put(1, b'', b'x' * 400_000)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        assert [header.size for header in store.page(1, 0, 10)] == [400_000]
