"""Files of a store that somebody removes or replaces while it is open, or before it is opened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store_parts_support import _presence
from store_support import ids, put, run, stored

from multiqueue.store import SqliteStore, StoreDamaged, StoreFailed

FILES = ("messages.sqlite", "messages.sqlite-wal", "messages.sqlite-shm", "bodies-1")


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a store look with every commit."""
    monkeypatch.setattr(_presence, "_SECONDS", 0.0)


def open_store(directory: Path, durability: str = "sync") -> SqliteStore:
    return SqliteStore(directory / "store", durability=durability, reserve_bytes=0, large_commit_bytes=1)


def remove(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)


def move_away(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")


def move_directory(file: Path) -> None:
    file.parent.rename(file.parent.parent / "elsewhere")


@pytest.mark.parametrize("durability", ["sync", "relaxed"])
@pytest.mark.parametrize("strike", [remove, replace, move_away, move_directory])
@pytest.mark.parametrize("name", FILES)
def test_nothing_is_confirmed_into_a_file_that_is_gone(
    tmp_path: Path, name: str, strike: object, durability: str
) -> None:
    """Once a file is removed, replaced or moved, the next commit fails and says which, and so does every later one."""
    store = open_store(tmp_path, durability)
    stored(store, put(1))
    strike(store.path / name)  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"removed or replaced|No such file"):
            stored(store, put(1))
    store.close()


@pytest.mark.parametrize("name", FILES)
def test_a_quiet_store_says_at_its_close_that_a_file_is_gone(tmp_path: Path, name: str) -> None:
    """A close that would lose what was confirmed raises."""
    store = open_store(tmp_path)
    stored(store, put(1))
    (store.path / name).unlink()
    with pytest.raises(StoreFailed, match=name):
        store.close()


@pytest.mark.parametrize("durability", ["sync", "relaxed"])
@pytest.mark.parametrize("name", ["messages.sqlite-wal", "messages.sqlite-shm"])
def test_nothing_is_lost_with_a_log_that_was_removed(
    tmp_path: Path, name: str, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log that somebody removed is copied into the file before the store ends: it opens with every message."""
    store = open_store(tmp_path, durability)
    there = stored(store, put(1), put(1))
    (store.path / name).unlink()
    with pytest.raises(StoreFailed, match="everything committed is safe"):
        stored(store, put(1))
    store.close()
    with open_store(tmp_path) as opened:
        assert ids(opened, 1)[:2] == there
    assert "is gone" not in caplog.text


@pytest.mark.parametrize("left", ["messages.sqlite-wal", "bodies-1"])
def test_no_store_is_begun_beside_what_another_one_left(tmp_path: Path, left: str) -> None:
    """Where the file of messages alone is gone, opening refuses, and removes none of the rest."""
    store = open_store(tmp_path)
    stored(store, put(1))
    for file in store.path.iterdir():
        if file.name not in (left, "lock"):
            file.unlink()
    with pytest.raises(StoreFailed):
        store.close()
    before = (store.path / left).read_bytes()
    assert SqliteStore.is_in(store.path)
    with pytest.raises(StoreDamaged, match=f"messages.sqlite' is gone or empty, and '{left}' of its store is there"):
        open_store(tmp_path)
    assert (store.path / left).read_bytes() == before


def test_an_empty_file_of_messages_costs_nothing_beside_it(tmp_path: Path) -> None:
    """Where the file of messages was cut to nothing, opening and every tool refuse, and all it had beside it stays."""
    with open_store(tmp_path) as store:
        stored(store, put(1))
        copy = shutil.copytree(store.path, tmp_path / "copy")  # as a crash would leave it
    whole = (copy / "messages.sqlite").read_bytes()
    (copy / "messages.sqlite").write_bytes(b"")
    for command in ("info", "check", "dump", "compact"):
        assert "messages.sqlite' is empty, and 'messages.sqlite-wal' of its store" in str(run(command, copy).exception)
    with pytest.raises(StoreDamaged, match=r"is gone or empty, and 'messages.sqlite-wal' of its store is there"):
        SqliteStore(copy, reserve_bytes=0)
    (copy / "messages.sqlite").write_bytes(whole)
    with SqliteStore(copy, reserve_bytes=0) as opened:
        assert len(ids(opened, 1)) == 1


def test_it_looks_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy store asks about its files once a second, by a clock that nobody sets."""
    monkeypatch.setattr(_presence, "_SECONDS", 1.0)
    file, now = tmp_path / "messages.sqlite", [0.0]
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"messages.sqlite{suffix}").touch()
    presence = _presence.Presence(file, lambda: now[0])
    file.unlink()
    found = []
    for now[0] in (0.5, 0.9, 1.0, 1.5, 2.1):
        found.append(presence.gone(None))
    assert found == ["", "", str(file), "", str(file)]
    assert presence.gone(None, at_once=True) == str(file)
