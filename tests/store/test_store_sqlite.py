"""What the store on disk promises beside the contract: one opener, its files, work in small steps, other formats."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest
from store_parts_support import IDS_RESERVED, SqliteWriter, _schema
from store_support import ids, put, stored

from multiqueue.store import Delete, DropQueue, Put, SqliteStore, StoreDamaged, StoreError, StoreLocked
from multiqueue.testing import PATIENCE, wait_until_blocked


def crashed_copy(directory: Path, copy: Path) -> Path:
    """What a kill at this moment would leave of an idle store."""
    return Path(shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*-shm")))


def rows(directory: Path, table: str) -> int:
    """How many rows a table really has, whatever readers are shown."""
    with sqlite3.connect(f"file:{directory}/messages.sqlite?mode=ro", uri=True) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(count)


# One opener


@pytest.mark.parametrize("file", ["kept", "removed"])
def test_the_second_opener_is_told_who_has_it(tmp_path: Path, file: str) -> None:
    """A store that is open cannot be opened again, here or in another process; the error names the process.

    (store 6) Nor can it when somebody removed the file that names the process.
    """
    with SqliteStore(tmp_path, reserve_bytes=0):
        if file == "removed":
            (tmp_path / "lock").unlink()
            with pytest.raises(StoreLocked, match="open in another process"):
                SqliteStore(tmp_path)
            return
        with pytest.raises(StoreLocked, match="open in this process"):
            SqliteStore(tmp_path)
        code = (
            "import sys; from multiqueue.store import SqliteStore, StoreLocked\n"
            "try: SqliteStore(sys.argv[1])\n"
            "except StoreLocked as error: print(error)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert f"open in process {os.getpid()}" in done.stdout
    SqliteStore(tmp_path, reserve_bytes=0).close()


def test_a_lock_of_the_dead_is_free(tmp_path: Path) -> None:
    """A store whose process was killed can be opened at once, and says that all it has may have been delivered.

    (store 6)
    """
    code = (
        "import os, sys; from multiqueue.store import Put, SqliteStore\n"
        "store = SqliteStore(sys.argv[1], reserve_bytes=0); store.submit([Put(1, b'', b'x')]).wait()\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        (message,) = ids(store, 1)
        assert message < store.redeliver_floor
        assert stored(store, put(1))[0] >= store.redeliver_floor


def test_doubt_stays(tmp_path: Path) -> None:
    """What a crash put in doubt stays in doubt over clean restarts, and what came later never was."""
    first = SqliteStore(tmp_path / "a", reserve_bytes=0)
    stored(first, put(1))
    crashed_copy(tmp_path / "a", tmp_path / "b")
    first.close()
    with SqliteStore(tmp_path / "b", reserve_bytes=0) as second:
        floor = second.redeliver_floor
        (new,) = stored(second, put(1))
    with SqliteStore(tmp_path / "b", reserve_bytes=0) as third:
        assert third.redeliver_floor == floor <= new


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    """A child of a fork is told to open its own; it neither disturbs its parent's store nor keeps its lock."""
    code = (
        "import os, sys, warnings; from multiqueue.store import *\n"
        "warnings.simplefilter('ignore')\n"
        "store = SqliteStore(sys.argv[1], reserve_bytes=0); store.submit([Put(1, b'', b'x')]).wait()\n"
        "ready, told = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for ask in (lambda: store.submit([]), store.allocate, store.levels):\n"
        "        try: ask()\n"
        "        except StoreClosed as error: print(error)\n"
        "    store.close()\n"
        "    os.close(told); sys.stdout.flush(); os.read(ready, 1); os._exit(0)\n"
        "os.close(ready); store.submit([Put(1, b'', b'y')]).wait(); store.close()\n"
        "store = SqliteStore(sys.argv[1], reserve_bytes=0); print(len(store.page(1, 0, 9))); store.close()\n"
        "sys.stdout.flush(); os.write(told, b'.'); os.waitpid(child, 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.count("open a store after the fork") == 3
    assert "2\n" in done.stdout
    assert done.stderr == ""


def test_a_child_that_was_forked_just_now_keeps_no_lock(tmp_path: Path) -> None:
    """A store that is closed is free, although a child of a fork has not run an instruction yet (store 6)."""
    code = (
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "ready, told = os.pipe()\n"
        "os.register_at_fork(after_in_child=lambda: (os.close(told), os.read(ready, 1), os._exit(0)))\n"
        "from multiqueue.store import *\n"
        "store = SqliteStore(sys.argv[1], reserve_bytes=0)\n"
        "child = os.fork()\n"
        "os.close(ready); store.close()\n"
        "SqliteStore(sys.argv[1], reserve_bytes=0).close()\n"
        "os.close(told); os.waitpid(child, 0); print('opened again')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("opened again\n", "")


def test_a_program_that_forgets_to_close_ends_cleanly(tmp_path: Path) -> None:
    """At the end of the interpreter an open store is closed: what was submitted is there, and nothing in doubt."""
    code = (
        "import sys; from multiqueue.store import Put, SqliteStore\n"
        "store = SqliteStore(sys.argv[1], reserve_bytes=0)\n"
        "for _ in range(1000): store.submit([Put(1, b'', b'x')])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        assert len(ids(store, 1)) == 1000
        assert store.redeliver_floor == 0


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """A path that is no directory, and a durability that is none, are refused in a sentence."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match=r"cannot use .*file.* for a store"):
        SqliteStore(file)
    with pytest.raises(ValueError, match="durable"):
        SqliteStore(tmp_path, durability="durable")
    with pytest.raises(ValueError, match="scratch"):
        SqliteStore(tmp_path, durability="memory")
    (tmp_path / "reserve").mkdir()
    with pytest.raises(StoreError, match=r"reserve' cannot be used: Is a directory"):
        SqliteStore(tmp_path)
    with pytest.raises(StoreError, match=r"cannot make a directory in .*missing"):
        SqliteStore.scratch(tmp_path / "missing")


@pytest.mark.parametrize("setting", ["quota_bytes", "max_pending_bytes", "log_bytes", "reserve_bytes"])
@pytest.mark.parametrize("size", [-1, 1.5, "1 MiB"])
def test_a_size_that_is_none(tmp_path: Path, setting: str, size: object) -> None:
    """A setting out of range is named, with its value, and nothing is made."""
    with pytest.raises(ValueError, match=f"{setting} is {size!r}; it is a whole number of bytes, at least"):
        SqliteStore(tmp_path / "store", **{setting: size})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


# Files


def test_what_is_left_after_a_close(tmp_path: Path) -> None:
    """A closed store is one file with everything, and the lock. No log, no reserve, no thread."""
    threads = set(threading.enumerate())
    with SqliteStore(tmp_path, reserve_bytes=1 << 20) as store:
        stored(store, put(1))
        assert (tmp_path / "reserve").stat().st_size == 1 << 20
    left = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert sorted(left) == ["lock", "messages.sqlite"]
    # Without the GIL a statement ends in the thread that made it, which is later than the close: the log is empty then.
    assert left.get("messages.sqlite-wal", 0) == 0
    assert "reserve" not in left
    assert set(threading.enumerate()) <= threads


def test_scratch_leaves_nothing(tmp_path: Path) -> None:
    """A scratch store is removed when it closes, and what a killed process left is removed by the next one."""
    code = (
        "import os, sys; from multiqueue.store import Put, SqliteStore\n"
        "store = SqliteStore.scratch(sys.argv[1]); store.submit([Put(1, b'', b'x')]).wait(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    with SqliteStore.scratch(tmp_path) as one, SqliteStore.scratch(tmp_path) as other:
        assert not left.exists()
        assert sorted(tmp_path.iterdir()) == sorted([one.path, other.path])
        stored(one, put(1))
        assert ids(other, 1) == []
    assert list(tmp_path.iterdir()) == []


def test_what_comes_and_goes_in_one_batch_is_not_written(tmp_path: Path) -> None:
    """A message that is put and deleted in one batch never reaches the disk."""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        before = store.statistics().file_bytes
        message = put(1, b"x" * (5 << 20), id=store.allocate())
        store.submit([message, Delete([message.id])]).wait()
        assert store.statistics().file_bytes < before + (1 << 20)


def test_the_log_is_bounded(tmp_path: Path) -> None:
    """Under unbroken publishing, with readers, the log stays near its limit and the commits go on."""
    limit = 1 << 20
    with SqliteStore(tmp_path, durability="relaxed", reserve_bytes=0, log_bytes=limit) as store:
        stop, has_read = threading.Event(), threading.Event()

        def read() -> None:
            while not stop.is_set():
                store.read([header.id for header in store.page(1, 0, 50)])
                has_read.set()

        reader = threading.Thread(target=read)
        reader.start()
        largest = 0
        for number in range(200):
            stored(store, *(put(1, b"x" * 1000) for _ in range(100)))
            if number % 10 == 0:  # readers are brief: none stands still while many commits go by
                has_read.clear()
                assert has_read.wait(60)
            largest = max(largest, (tmp_path / "messages.sqlite-wal").stat().st_size)
        stop.set()
        reader.join()
        assert store.statistics().messages == 20_000
    assert largest < 8 * limit


def test_a_commit_writes_where_the_log_has_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At sync the writer lengthens the log's file before commits come there: hardly any sync is of a file that grew."""
    log = tmp_path / "messages.sqlite-wal"
    grown: list[int] = []
    commit = SqliteWriter.commit

    def measured(self: SqliteWriter, *arguments: Any) -> None:
        before = log.stat().st_size
        commit(self, *arguments)
        grown.append(log.stat().st_size - before)

    monkeypatch.setattr(SqliteWriter, "commit", measured)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        for _ in range(100):
            stored(store, put(1))
        assert log.stat().st_size > 1 << 20
    assert sum(size > 0 for size in grown) < 10


def test_zeros_do_not_fall_on_what_another_program_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that a program deletes from an open store just when the log grows is gone, or the program is refused."""
    outcomes: list[str] = []
    write = os.pwrite

    def delete(patience: float) -> str:
        with contextlib.closing(sqlite3.connect(tmp_path / "messages.sqlite", timeout=patience)) as connection:
            try:
                gone = connection.execute("DELETE FROM header WHERE id IN (SELECT min(id) FROM header)").rowcount
                connection.commit()
            except sqlite3.OperationalError as error:
                return str(error)
            return "deleted" if gone else "nothing there yet"

    def interrupted(descriptor: int, data: bytes, place: int) -> int:
        if is_open and not outcomes and (outcome := delete(0)) != "nothing there yet":
            outcomes.append(outcome)
        return write(descriptor, data, place)

    is_open = False
    monkeypatch.setattr("multiqueue.store._room.os.pwrite", interrupted)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        is_open = True
        _, *others = stored(store, *(put(1, b"x" * 1000) for _ in range(1000)))
        wait_until_blocked(lambda: outcomes)
        assert outcomes == ["deleted"] or (outcomes == ["database is locked"] and delete(PATIENCE) == "deleted")
        assert ids(store, 1) == others
        assert len(store.read(others)) == 999


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_for_zeros_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Where the log's file cannot be lengthened it keeps its length, commits go on, and the disk is asked no more."""
    log = tmp_path / "messages.sqlite-wal"
    asked: list[int] = []
    write = os.pwrite

    def full(descriptor: int, data: bytes, place: int) -> int:
        if place == 0:  # the lock file
            return write(descriptor, data, place)
        asked.append(place)
        if len(asked) == 1:
            return write(descriptor, data, place)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("multiqueue.store._room.os.pwrite", full)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        wait_until_blocked(lambda: len(asked) == 2 and log.stat().st_size == asked[0])
        for _ in range(20):
            stored(store, put(1))
        assert len(ids(store, 1)) == 20
    assert len(asked) == 2


def test_an_idle_store_copies_its_log(tmp_path: Path) -> None:
    """A while after the last commit the file has everything; opening a copy without the log and its mark shows it."""
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as store:
        stored(store, put(1))
        syncs = store.statistics().syncs
        wait_until_blocked(lambda: store.statistics().syncs > syncs)
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("*-wal", "*-shm", "confirmed"))
        with SqliteStore(tmp_path / "b", reserve_bytes=0) as copy:
            assert ids(copy, 1) == ids(store, 1)


def test_a_dropped_queue_is_removed_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a dropped queue go while the store is idle, also after a crash in between."""
    steps: list[int] = []
    third, go_on = threading.Event(), threading.Event()
    remove = SqliteWriter._remove

    def stopping(self: SqliteWriter, ids: list[int]) -> None:
        if len(steps) == 3:
            third.set()
            assert go_on.wait(60)
        steps.append(len(ids))
        remove(self, ids)

    monkeypatch.setattr(SqliteWriter, "_remove", stopping)
    with SqliteStore(tmp_path / "a", durability="relaxed", reserve_bytes=0) as store:
        stored(store, *(put(1) for _ in range(20_000)), put(2))
        store.submit([DropQueue(1)]).wait()
        assert third.wait(60)
        assert max(steps) <= 100  # a commit may have to wait for one
        left = 20_001 - sum(steps)
        assert 1 < left == rows(tmp_path / "a", "header")
        crashed_copy(tmp_path / "a", tmp_path / "b")
        go_on.set()
        wait_until_blocked(lambda: store.statistics().messages == 1)
        assert rows(tmp_path / "a", "body") == 1
    assert rows(tmp_path / "b", "header") == left
    with SqliteStore(tmp_path / "b", durability="relaxed", reserve_bytes=0) as store:
        assert [(level.queue, level.messages) for level in store.levels()] == [(2, 1)]
        wait_until_blocked(lambda: store.statistics().messages == 1)
        wait_until_blocked(lambda: rows(tmp_path / "b", "dropped") == 0)


def test_old_transient_messages_are_removed_in_steps(tmp_path: Path) -> None:
    """Transient messages of an earlier opening go while the store is idle; those of this one stay."""
    with SqliteStore(tmp_path, durability="relaxed", reserve_bytes=0) as store:
        stored(store, *(put(1, transient=True) for _ in range(5000)), put(1))
    with SqliteStore(tmp_path, durability="relaxed", reserve_bytes=0) as store:
        new = stored(store, *(put(1, transient=True) for _ in range(5)))
        wait_until_blocked(lambda: store.statistics().messages == 6)
        assert rows(tmp_path, "body") == 6
        assert ids(store, 1)[-5:] == new


def test_free_space_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When most of a large file is free, idle time gives it back to the disk; a small rest is kept for reuse."""
    monkeypatch.setattr("multiqueue.store._room._VACUUM_BYTES", 1 << 20)
    with SqliteStore(tmp_path, durability="relaxed", reserve_bytes=0, large_commit_bytes=1 << 30) as store:
        given = stored(store, *(put(1, b"x" * 10_000) for _ in range(1000)))
        wait_until_blocked(lambda: (tmp_path / "messages.sqlite").stat().st_size > 8 << 20)
        store.submit([Delete(given)]).wait()
        wait_until_blocked(lambda: (tmp_path / "messages.sqlite").stat().st_size < 2 << 20)
        assert store.statistics().free_bytes <= 1 << 20
        stored(store, put(1))


# Ids


def test_no_id_comes_back_after_a_crash(tmp_path: Path) -> None:
    """After a crash with an empty store, and after more ids than are reserved at once, ids go on (store 3)."""
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as store:
        given = stored(store, put(1), put(1))
        store.submit([Delete(given)]).wait()
        last = max(store.allocate() for _ in range(IDS_RESERVED + 10))
        store.submit([]).wait()
        crashed_copy(tmp_path / "a", tmp_path / "b")
    with SqliteStore(tmp_path / "b", reserve_bytes=0) as store:
        assert store.allocate() > last


# After a crash


def test_a_crashed_store_needs_nothing_but_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statements that open one are the same for 3 messages and for 3,000; none reads bodies (store 7)."""
    connect, opener, statements = sqlite3.connect, threading.current_thread(), list[str]()

    def note(statement: str) -> None:
        if threading.current_thread() is opener:  # the store's own thread begins its work beside
            statements.append(re.sub(r"\d+", "N", statement))

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(note)
        return connection

    opened = []
    for number in (3, 3000):
        with SqliteStore(tmp_path / f"{number}", reserve_bytes=0) as store:
            there = stored(store, *(put(1) for _ in range(number)))
            crashed_copy(tmp_path / f"{number}", tmp_path / f"{number} again")
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", traced)
            statements.clear()
            again = SqliteStore(tmp_path / f"{number} again", reserve_bytes=0)
        opened.append(list(statements))
        with again:
            assert ids(again, 1, page=number + 1) == there
    assert opened[0] == opened[1]
    about_bodies = [one for one in opened[1] if re.search(r"\bbody\b", one) and not one.startswith("CREATE")]
    assert len(about_bodies) == 1  # which bodies are in files of their own; an index has these alone
    assert "typeof(data) = 'integer'" in about_bodies[0]


# What cannot be stored


def test_what_cannot_be_stored_is_refused_alone(tmp_path: Path) -> None:
    """A submission that is no message for a table is refused; the store goes on with the others (store 8)."""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        before, after = put(1), put(1)
        store.submit([before])
        refused = [
            store.submit([put(1), Put(1, "text", b"")]),  # type: ignore[arg-type]
            store.submit([put(1), put(1, level=1 << 70)]),
            store.submit([put(1), "operation"]),  # type: ignore[list-item]
            # SQLite would keep these, where no reader finds them.
            store.submit([put("1")]),  # type: ignore[arg-type]
            store.submit([put(1), put(1, level=0.5)]),
            store.submit([put(1), put(1, expires_at="soon")]),
            store.submit([put(1, id=-1)]),
        ]
        store.submit([after]).wait()
        for commit in refused:
            with pytest.raises(StoreError, match="cannot be stored"):
                commit.wait()
        assert ids(store, 1) == [before.id, after.id]


# Other formats


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    """A file of a later format is left as it is; the error says which formats are known."""
    SqliteStore(tmp_path, reserve_bytes=0).close()
    file = tmp_path / "messages.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(StoreDamaged, match=r"has format 99, and this multiqueue knows up to \d+"):
        SqliteStore(tmp_path)
    assert file.read_bytes() == before


def test_an_earlier_format_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of an earlier format becomes one of today's by the upgrades in between; one that fails changes nothing."""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        (message,) = stored(store, put(1))
    today = _schema.FORMAT

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (x)")
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(_schema, "FORMAT", today + 2)
    monkeypatch.setattr(_schema, "UPGRADES", {today: fail})
    with pytest.raises(StoreError, match="disk I/O error"):
        SqliteStore(tmp_path)
    steps: list[int] = []

    def succeed(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (x)")
        steps.append(1)

    monkeypatch.setattr(_schema, "UPGRADES", {today: lambda connection: steps.append(0), today + 1: succeed})
    for _ in range(2):
        with SqliteStore(tmp_path, reserve_bytes=0) as store:
            assert ids(store, 1) == [message]
    assert steps == [0, 1]
    assert rows(tmp_path, "later") == 0


@pytest.mark.parametrize("content", [b"no database, but text that is long enough to be one " * 50, None])
def test_what_is_no_store_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A file that is something else, or a database of somebody else's, is named and left as it is."""
    file = tmp_path / "messages.sqlite"
    if content is None:
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        connection.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    with pytest.raises(StoreDamaged, match=r"messages\.sqlite"):
        SqliteStore(tmp_path)
    assert file.read_bytes() == before
    assert not (tmp_path / "reserve").exists()


# Groups


def test_what_gathers_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is submitted while a commit is under way is committed together, by the next one."""
    gate, entered = threading.Event(), threading.Event()
    original = SqliteWriter.commit

    def slow(self: SqliteWriter, *arguments: object) -> None:
        entered.set()
        gate.wait(60)
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteWriter, "commit", slow)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        store.submit([put(1)])
        assert entered.wait(60)
        commits = [store.submit([put(1)]) for _ in range(500)]
        gate.set()
        assert all(commit.wait(60) for commit in commits)
        assert store.statistics().commits == 2
