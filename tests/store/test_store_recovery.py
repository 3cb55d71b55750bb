"""What an opening makes of a log and bodies that a power loss left: whole commits, and none too few."""

from __future__ import annotations

import errno
import logging
import shutil
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from store_parts_support import _group_commit, _recovery, _schema, _sqlite, _sync_beside
from store_support import put, stored

from multiqueue.store import DropQueue, Durability, SqliteStore, StoreDamaged, StoreFailed
from multiqueue.store.cli import store as store_command
from multiqueue.testing import wait_until_blocked

SIZE = 10_000


def bodies_after(directory: Path) -> list[str]:
    """The first bytes of each body that an opened store has; a `?` where it is damaged."""
    found = []
    with SqliteStore(directory, reserve_bytes=0) as store:
        for header in store.page(1, 0, 100):
            try:
                found.append(store.read([header.id])[header.id][:1].decode())
            except StoreDamaged:
                found.append("?")
    return found


def checkpoint(store: SqliteStore, mode: str) -> None:
    """Have the log in the file, on the writer's thread: its connection is in use by one at a time."""
    store.submit([], lambda: store._writer._room.checkpoint(mode)).wait()  # type: ignore[attr-defined]


def lost(
    top: Path,
    bodies: str,
    gone: str,
    *,
    durability: Durability,
    confirmed: bool,
    small: int = 0,
    copied: bool = False,
    file_bytes: int = 1 << 25,
) -> Path:
    """A store into which these bodies were put, a commit each, then lost power: some bodies, and perhaps the mark.

    `small`: so many commits followed. `copied`: the log was in the file already.
    """
    with SqliteStore(top / "lives", durability=durability, reserve_bytes=0, large_commit_bytes=SIZE) as store:
        store._bodies._file_bytes = file_bytes
        for body in bodies:
            if copied:
                checkpoint(store, "TRUNCATE")
                store.submit([put(2, b"")]).wait()
            others = [put(3, bytes(300)) for _ in range(400 if copied else 0)]
            store.submit([put(1, body.encode() * SIZE), put(1, body.encode()), *others]).wait()
        for _ in range(small):
            store.submit([put(1, b"small")]).wait()
        if copied:
            checkpoint(store, "PASSIVE")
        shutil.copytree(top / "lives", top / "left", ignore=shutil.ignore_patterns("*-shm"))
    file = top / "left" / "bodies-1"
    content = file.read_bytes()
    for body in gone:
        content = content.replace(body.encode() * SIZE, bytes(SIZE))
    file.write_bytes(content)
    if not confirmed:
        older = SqliteStore(top / "older", durability=durability, reserve_bytes=0)
        shutil.copy(top / "older" / "confirmed", top / "left" / "confirmed")
        older.close()
    return top / "left"


def test_a_last_commit_without_its_bodies_is_undone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that reached the disk before their body go with all of their commit; the opening says so."""
    left = lost(tmp_path, "abc", "c", durability=Durability.SYNC, confirmed=False)
    with caplog.at_level(logging.WARNING):
        assert bodies_after(left) == list("aabb")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "a power loss took the bodies of the latest commits, and 1 commits are undone"
    ]
    assert bodies_after(left) == list("aabb")


@pytest.mark.parametrize(("bodies", "expected"), [("a", ""), ("ab", "aa")])
def test_a_last_commit_whose_file_has_no_name_is_undone(tmp_path: Path, bodies: str, expected: str) -> None:
    """A new file's name is synced with its first bytes: a power loss may take it, the store's first one too."""
    left = lost(tmp_path, bodies, "", durability=Durability.SYNC, confirmed=False, file_bytes=1)
    (left / f"bodies-{len(bodies)}").unlink()
    assert bodies_after(left) == list(expected)


@pytest.mark.parametrize("beside", ["the next file", "the end of a dropped queue", "its removal"])
def test_what_is_done_beside_a_sync_commits_nothing_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    """While a commit is synced the writer begins the next file of bodies, or looks after dropped queues. If power is
    lost then, that commit alone lacks its bodies, and is undone."""
    monkeypatch.setattr(_group_commit, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(_group_commit, "_BATCHES_BEFORE_REST", 1)
    monkeypatch.setattr(_sqlite, "_LOGS_OF_BODIES", 2 * SIZE / (1 << 20))
    may_sync = threading.Event()
    sync = _sync_beside.sync_data
    with ExitStack() as closing:
        store = SqliteStore(tmp_path / "lives", reserve_bytes=0, large_commit_bytes=SIZE, log_bytes=1 << 20)
        closing.callback(store.close)
        closing.callback(may_sync.set)
        stored(store, put(1, b"a" * SIZE), *[put(2)] * (beside == "its removal"))
        store._commits.hold()
        monkeypatch.setattr(_sync_beside, "sync_data", lambda descriptor: may_sync.wait(60) and sync(descriptor))
        store.submit([put(1, b"b" * SIZE), *[DropQueue(2)] * (beside != "the next file")])
        store.submit([put(1, b"c" * SIZE)])
        store._commits.release()
        wait_until_blocked(lambda: store.page(1, 0, 10)[1:])
        wait_until_blocked(store._commits._writer)
        shutil.copytree(tmp_path / "lives", tmp_path / "left", ignore=shutil.ignore_patterns("*-shm"))
    assert (tmp_path / "left" / "bodies-2").exists() is (beside == "the next file")
    bodies = tmp_path / "left" / "bodies-1"
    bodies.write_bytes(bodies.read_bytes().replace(b"b" * SIZE, bytes(SIZE)))
    renewed: list[str] = []
    monkeypatch.setattr(_recovery, "renew", lambda file: renewed.append(file.name))
    assert bodies_after(tmp_path / "left") == ["a"]
    assert "bodies-1" in renewed  # as the sync may have failed


def test_at_relaxed_a_file_is_synced_while_the_next_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If power is lost then, either file may lack bodies: the latest commits are undone in order. The next file's end,
    and a checkpoint, wait for that sync, so there are never three."""
    monkeypatch.setattr(_sqlite, "_LOGS_OF_BODIES", 2 * SIZE / (1 << 20))
    may_sync, sync, ended = threading.Event(), _sync_beside.sync_data, []
    with ExitStack() as closing:
        store = SqliteStore(
            tmp_path / "lives", durability="relaxed", reserve_bytes=0, large_commit_bytes=SIZE, log_bytes=1 << 20
        )
        closing.callback(store.close)
        closing.callback(may_sync.set)
        monkeypatch.setattr(_sync_beside, "sync_data", lambda descriptor: may_sync.wait(60) and sync(descriptor))
        for body in "abc":
            stored(store, put(1, body.encode() * SIZE))
        shutil.copytree(tmp_path / "lives", tmp_path / "left", ignore=shutil.ignore_patterns("*-shm"))
        store.submit([put(1, b"d" * SIZE)], lambda: ended.append("d"))
        wait_until_blocked(store._commits._writer)
        assert not ended
        assert not (tmp_path / "lives" / "bodies-3").exists()
    assert bodies_after(tmp_path / "lives") == list("abcd")
    bodies = tmp_path / "left" / "bodies-1"
    assert (tmp_path / "left" / "bodies-2").exists()
    bodies.write_bytes(bodies.read_bytes().replace(b"b" * SIZE, bytes(SIZE)))
    monkeypatch.setattr("multiqueue.store._confirmed._start_of_machine", lambda: b"tomorrow")
    assert bodies_after(tmp_path / "left") == ["a"]


@pytest.mark.parametrize(("gone", "confirmed", "expected"), [("c", True, "aabb?c"), ("b", False, "aa?bcc")])
def test_what_was_confirmed_is_not_undone(tmp_path: Path, gone: str, confirmed: bool, expected: str) -> None:
    """A body that is missing from a commit which was told, as the mark or a later commit shows, is damage."""
    left = lost(tmp_path, "abc", gone, durability=Durability.SYNC, confirmed=confirmed)
    assert bodies_after(left) == list(expected)


def test_at_relaxed_the_latest_commits_are_undone_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At relaxed each commit from the first on that lacks a body is undone, whatever came after it."""
    left = lost(tmp_path, "abcd", "b", durability=Durability.RELAXED, confirmed=True)
    monkeypatch.setattr("multiqueue.store._confirmed._start_of_machine", lambda: b"tomorrow")
    assert bodies_after(left) == list("aa")


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_check_says_what_the_opening_will_undo(
    tmp_path: Path, confirmed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first opening after a power loss `store check` says of a body that is missing from a commit which was
    perhaps not told that the opening undoes it; of one that was told it does not."""
    left = lost(tmp_path, "ab", "b", durability=Durability.SYNC, confirmed=confirmed)
    with pytest.raises(SystemExit):
        store_command(["check", str(left)])
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "the body" in line]
    assert ("the next opening undoes" in said) is not confirmed


def test_compacting_undoes_it_too(tmp_path: Path) -> None:
    """`store compact` writes a store that it finds after a power loss, and builds on whole commits."""
    left = lost(tmp_path, "ab", "b", durability=Durability.SYNC, confirmed=False)
    store_command(["compact", str(left)], standalone_mode=False)
    assert bodies_after(left) == list("aa")


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.RELAXED])
def test_what_is_in_the_file_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    """A commit that was copied into the file stays: half of its pages would, and its bodies were there."""
    left = lost(tmp_path, "abc", "c", durability=durability, confirmed=False, copied=True)
    monkeypatch.setattr("multiqueue.store._confirmed._start_of_machine", lambda: b"tomorrow")
    assert bodies_after(left) == list("aabb?c")
    with closing(sqlite3.connect(left / "messages.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_many_commits_are_undone_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit to end with is searched for, not reached by undoing one after the other."""
    left = lost(tmp_path, "abc", "b", durability=Durability.RELAXED, confirmed=True, small=200)
    monkeypatch.setattr("multiqueue.store._confirmed._start_of_machine", lambda: b"tomorrow")
    opened: list[Path] = []
    monkeypatch.setattr(
        _recovery, "connect", lambda file, **options: opened.append(file) or _schema.connect(file, **options)
    )
    assert bodies_after(left) == list("aa")
    assert len(opened) <= 10  # the logarithm of 200 to base 2, and the first and the last one


def test_an_opening_that_fails_leaves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried of the log is put back when the disk fails meanwhile; the next opening undoes what it must."""
    left = lost(tmp_path, "abc", "c", durability=Durability.SYNC, confirmed=False)
    before = (left / "messages.sqlite-wal").read_bytes()
    opened: list[Path] = []

    def failing(file: Path, **options: Any) -> sqlite3.Connection:
        opened.append(file)
        if len(opened) == 2:
            raise OSError(errno.EIO, "it failed", str(file))
        return _schema.connect(file, **options)

    with monkeypatch.context() as bad:
        bad.setattr(_recovery, "connect", failing)
        with pytest.raises(StoreFailed, match="it failed"):
            SqliteStore(left, reserve_bytes=0)
    assert (left / "messages.sqlite-wal").read_bytes() == before
    assert bodies_after(left) == list("aabb")
