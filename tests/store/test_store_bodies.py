"""Large bodies in files beside the messages: when a file comes, is read, is written anew and goes."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_parts_support import _bodies, _salvage, _sqlite_reader, _sqlite_writer, _sync_beside
from store_support import ids, put, run, stored

from multiqueue.store import Delete, Put, SqliteStore, StoreDamaged, StoreFailed, StoreFull

LARGE = 10_000


def large(number: int) -> bytes:
    return b"%d." % number * (LARGE // len(b"%d." % number) + 1)


def files(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.glob("bodies-*"))


def open_in_files(directory: Path, **options: Any) -> SqliteStore:
    """A store in which each large body is worth a file."""
    return SqliteStore(directory, reserve_bytes=0, large_commit_bytes=LARGE, **options)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store whose files of bodies are of 64 KiB, some six bodies each."""
    with open_in_files(tmp_path, log_bytes=1 << 14) as opened:
        yield opened


def filled(store: SqliteStore, size: int = LARGE) -> list[int]:
    """Publish until there is no room; the ids of what was stored."""
    given: list[int] = []

    def fill() -> None:
        while True:
            given.extend(stored(store, put(1, large(len(given)) * (size // LARGE))))

    with pytest.raises(StoreFull):
        fill()
    return given


def emptied(store: SqliteStore, given: list[int]) -> None:
    for one in given:
        store.submit([Delete([one])]).wait()
    rested(store)


def rested(store: SqliteStore) -> None:
    """Have the store's thread do some of its work that can wait."""
    for _ in range(50):
        store.submit([Delete([1 << 40])]).wait()


def size_of(directory: Path) -> int:
    """What the files of messages and bodies take of the disk."""
    return sum(file.stat().st_size for file in [directory / "messages.sqlite", *directory.glob("bodies-*")])


def settled(store: SqliteStore, is_so: Callable[[], bool]) -> None:
    """Wait until the store's thread has done its work that can wait: it rests behind each commit."""
    for _ in range(1000):
        if is_so():
            return
        store.submit([Delete([1 << 40])]).wait()
    raise AssertionError("it never came to that")


def test_a_large_body_is_written_once(tmp_path: Path) -> None:
    """What the disk holds for large bodies is little more than the bodies; small ones stay with their headers."""
    with open_in_files(tmp_path) as store:
        given = stored(store, *(put(1, large(number)) for number in range(500)), put(1, b"small"))
        assert store.read(given) == {one: large(number) for number, one in enumerate(given[:-1])} | {
            given[-1]: b"small"
        }
        assert sum((tmp_path / name).stat().st_size for name in files(tmp_path)) < 1.01 * 500 * (LARGE + 20)
        assert (
            tmp_path / "messages.sqlite-wal"
        ).stat().st_size < 0.5 * 500 * LARGE  # zeros ahead of the log, most of it


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing leaves the page cache")
def test_bodies_that_nobody_reads_leave_the_page_cache(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies of a new file leave the page cache once they are on the disk, until bodies are read; with the next new
    file they do again. Those that are written over a spare stay, and all can be read."""
    left: list[str] = []
    advise = os.posix_fadvise

    def noted(descriptor: int, start: int, size: int, advice: int) -> None:
        assert size >= LARGE
        left.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        advise(descriptor, start, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    given: list[int] = []

    def fill(last: str) -> None:
        while last not in files(tmp_path):
            given.extend(stored(store, put(1, large(len(given)))))

    for _ in range(2):
        given.extend(stored(store, put(1, large(len(given)))))
    assert left == ["bodies-1"] * 2
    assert store.read(given) == {one: large(number) for number, one in enumerate(given)}
    fill("bodies-2")
    assert left == ["bodies-1"] * 2 + ["bodies-2"]
    assert store.read(given) == {one: large(number) for number, one in enumerate(given)}
    store.submit([Delete(given)]).wait()
    settled(store, lambda: list(tmp_path.glob("spare-*")) != [])
    fill("bodies-3")
    fill("bodies-4")
    assert "bodies-3" not in left
    assert "bodies-4" in left


def test_the_body_of_a_fanout_is_written_once(tmp_path: Path) -> None:
    """Messages that are put together with one body have it once on the disk, also a small one, until the last is gone;
    each has its own properties, and what is not of them is left alone."""
    body = large(0)[:1000]
    with open_in_files(tmp_path, log_bytes=1 << 14) as store:
        (alone,) = stored(store, put(1, large(1)))
        given = stored(store, *(Put(queue, b"%d" % queue, body) for queue in range(100)))
        assert os.stat(tmp_path / "bodies-1").st_size == LARGE + 2 * 20 + len(large(1)) - LARGE + 1000
        assert store.read(given) == dict.fromkeys(given, body)
        assert store.page(7, 0, 10)[0].properties == b"7"
        store.submit([Delete(given[:60])]).wait()
        while os.stat(tmp_path / files(tmp_path)[-1]).st_size < 1 << 16:
            stored(store, put(1, large(2)))
    with open_in_files(tmp_path, log_bytes=1 << 14) as store:
        store.submit([Delete([one for one in ids(store, 1) if one != given[1]])]).wait()
        assert store.read([alone, *given]) == dict.fromkeys(given[60:], body)
        for one in given[60:-1]:
            store.submit([Delete([one])]).wait()
        rested(store)
        assert store.read(given) == {given[-1]: body}
        assert run("check", tmp_path).exit_code == 0
        store.submit([Delete(given[-1:])]).wait()
        rested(store)
        assert store.statistics().messages == store.statistics().bytes == 0
    assert files(tmp_path) == []


def test_a_body_that_is_shared_is_moved_for_all(store: SqliteStore, tmp_path: Path) -> None:
    """Where a file is written anew, each message of a fanout goes with its body, though the first is gone."""
    body = large(0)
    given = stored(store, *(put(queue, body) for queue in range(5)))
    others = [stored(store, put(9, large(number)))[0] for number in range(1, 8)]
    store.submit([Delete([given[0], *others])]).wait()
    settled(store, lambda: "bodies-1" not in files(tmp_path))
    assert store.read(given) == dict.fromkeys(given[1:], body)
    assert size_of(tmp_path) - (tmp_path / "messages.sqlite").stat().st_size < 3 * LARGE
    store.close()
    with open_in_files(tmp_path) as again:
        assert again.read(given) == dict.fromkeys(given[1:], body)
        again.submit([Delete(given)]).wait()
    assert files(tmp_path) == []


def test_what_is_shared_fills_a_batch_once(tmp_path: Path) -> None:
    """A fanout of a large body is as much to wait for as the body."""
    body = bytes(1 << 20)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        store._commits.hold()
        store.submit([put(queue, body) for queue in range(20)], waits=False)
        assert store.statistics().pending_bytes // (1 << 20) == 1
        store._commits.release()
        store.submit([]).wait()
        assert store.read([header.id for header in store.page(7, 0, 1)]).popitem()[1] == body


def test_a_file_goes_with_its_last_body(store: SqliteStore, tmp_path: Path) -> None:
    """Files are removed as their messages are; what is left is read across a restart, until it is removed too."""
    given = [stored(store, put(1, large(number)))[0] for number in range(30)]
    assert len(files(tmp_path)) >= 4
    store.submit([Delete(given[:-1])]).wait()
    assert len(files(tmp_path)) == 1
    store.close()
    with open_in_files(tmp_path) as again:
        assert again.read(given) == {given[-1]: large(29)}
        again.submit([Delete(given)]).wait()
    assert files(tmp_path) == []


def test_files_go_while_their_messages_come_and_go(store: SqliteStore, tmp_path: Path) -> None:
    """Where consumers keep up, a file that is long enough is removed with its last message, and another one begins."""
    for number in range(50):
        emptied_at_once = stored(store, put(1, large(number)))
        store.submit([Delete(emptied_at_once)]).wait()
    assert len(files(tmp_path)) <= 1
    assert int(files(tmp_path)[0].removeprefix("bodies-")) > 5


def test_a_file_that_is_emptied_is_written_anew(store: SqliteStore, tmp_path: Path) -> None:
    """Where consumers keep up, the disk has the same two or three files again and again, under rising names: that
    costs a quarter of new ones. Closing removes those that wait for their turn, and so does opening after a crash."""
    seen = set()
    for number in range(100):
        given = stored(store, put(1, large(number)))
        assert store.read(given) == {given[0]: large(number)}
        store.submit([Delete(given)]).wait()
        seen |= {file.stat().st_ino for file in tmp_path.glob("bodies-*")}
        assert len(list(tmp_path.glob("spare-*"))) <= 3
    assert int(files(tmp_path)[0].removeprefix("bodies-")) > 10
    assert len(seen) <= 3
    given = [stored(store, put(1, large(number)))[0] for number in range(12)]
    store.submit([Delete(given)]).wait()
    assert list(tmp_path.glob("spare-*"))
    store.close()
    assert list(tmp_path.glob("spare-*")) == []
    for name in ("spare-7", "spare-x"):
        (tmp_path / name).write_bytes(b"x")
    with open_in_files(tmp_path):
        assert list(tmp_path.glob("spare-*")) == [tmp_path / "spare-x"]


def test_nothing_ends_with_a_spare_file_that_somebody_removes(store: SqliteStore, tmp_path: Path) -> None:
    """Whoever needs the disk may remove the spare files of an open store: it goes on, and counts them no longer."""
    given = [stored(store, put(1, large(number)))[0] for number in range(20)]
    store.submit([Delete(given)]).wait()
    spares = list(tmp_path.glob("spare-*"))
    assert len(spares) > 1
    for spare in spares:
        spare.unlink()
    given = [stored(store, put(1, large(number)))[0] for number in range(20)]
    assert store.read(given) == {one: large(number) for number, one in enumerate(given)}
    assert store.statistics().file_bytes == sum(
        file.stat().st_size
        for file in tmp_path.iterdir()
        if file.name.startswith(("bodies-", "messages.sqlite")) and not file.name.endswith("-shm")
    )


def test_spare_files_go_though_small_commits_do_not_end(store: SqliteStore, tmp_path: Path) -> None:
    """Half a minute after the last large body the spare files go, also while consumers go on: a server that is low on
    disk holds its publishers until there is more, so no body would ever come to be written over them."""
    given = [stored(store, put(1, large(number)))[0] for number in range(20)]
    store.submit([Delete(given)]).wait()
    kept = stored(store, *(put(2, b"small") for _ in range(10)))
    assert list(tmp_path.glob("spare-*"))
    store._bodies.last_append -= 31.0
    for one in kept:
        store.submit([Delete([one])]).wait()
    settled(store, lambda: list(tmp_path.glob("spare-*")) == [])


def test_a_file_that_is_written_anew_under_a_reader(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has a file open which is emptied and written anew finds its message gone, and no damage."""
    given = [stored(store, put(1, large(number)))[0] for number in range(12)]
    read = _bodies._read

    def meanwhile(*place: int) -> bytes:
        monkeypatch.setattr(_bodies, "_read", read)
        store.submit([Delete(given)]).wait()
        for number in range(12):
            stored(store, put(1, large(number)))
        assert "bodies-1" not in files(tmp_path)
        return read(*place)

    monkeypatch.setattr(_bodies, "_read", meanwhile)
    assert store.read([given[1]]) == {}


def test_a_body_that_is_longer_than_a_file_goes_with_its_message(store: SqliteStore, tmp_path: Path) -> None:
    """One large body does not hold the disk until the next one comes."""
    given = stored(store, put(1, large(1) * 100))
    store.submit([Delete(given)]).wait()
    assert files(tmp_path) == []


def test_a_file_that_is_nearly_empty_is_written_anew(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that nobody takes keeps its own bytes of the disk, not those of all that came with it: some of the
    emptied files wait for their turn, and go when nothing comes for a while."""
    given = [stored(store, put(1, large(number)))[0] for number in range(60)]
    kept = given[::12]
    store.submit([Delete([one for one in given if one not in kept])]).wait()
    settled(store, lambda: len(files(tmp_path)) <= 2)
    assert store.read(given) == {one: large(given.index(one)) for one in kept}
    spares = list(tmp_path.glob("spare-*"))
    assert 2 < len(spares) <= 8
    monkeypatch.setattr(_sqlite_writer, "_SPARES_SECONDS", 0.0)
    stored(store, put(1, b"small"))
    settled(store, lambda: list(tmp_path.glob("spare-*")) == [])
    assert store.statistics().file_bytes < 4 * len(kept) * LARGE + 2 * (1 << 17)  # the newest may have been a spare
    store.close()
    with open_in_files(tmp_path) as again:
        assert again.read(given) == {one: large(given.index(one)) for one in kept}


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_goes_under_a_reader(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """A body whose file is gone since its row was read is read where it is now, or is gone with its message."""
    given = [stored(store, put(1, large(number)))[0] for number in range(12)]
    read_bodies, place = _sqlite_reader.read_bodies, given[1]

    def meanwhile(directory: Path, places: dict[int, int]) -> tuple[dict[int, bytes], list[int]]:
        monkeypatch.setattr(_sqlite_reader, "read_bodies", read_bodies)
        store.submit([Delete([one for one in given if not moved or one != place])]).wait()
        settled(store, lambda: "bodies-1" not in files(tmp_path))
        return read_bodies(directory, places)

    monkeypatch.setattr(_sqlite_reader, "read_bodies", meanwhile)
    assert store.read([place]) == ({place: large(1)} if moved else {})


def test_files_that_go_beside_a_dump(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be open while it is checked and dumped: what is moved is read, what is removed is no damage."""
    given = [stored(store, put(1, large(number)))[0] for number in range(60)]
    kept = given[::12]
    read_bodies = _salvage.read_bodies

    def meanwhile(directory: Path, places: dict[int, int]) -> tuple[dict[int, bytes], list[int]]:
        monkeypatch.setattr(_salvage, "read_bodies", read_bodies)
        store.submit([Delete([one for one in given if one not in kept])]).wait()
        settled(store, lambda: len(files(tmp_path)) <= 2)
        return read_bodies(directory, places)

    monkeypatch.setattr(_salvage, "read_bodies", meanwhile)
    dumped = run("dump", tmp_path)
    assert (dumped.exit_code, dumped.stderr) == (0, "")
    messages = [json.loads(line) for line in dumped.stdout.splitlines()[1:]]
    assert {one["id"] for one in messages} >= set(kept)
    assert all(base64.b64decode(one["body"]) == large(given.index(one["id"])) for one in messages)


def test_relaxed_settles_what_a_file_goes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At relaxed no commit syncs a body. Before a file goes, the log is synced, and before it the moved bodies."""
    synced: list[str] = []

    def note(descriptor: int) -> None:
        names = {file.stat().st_ino: file.name for file in tmp_path.iterdir()}
        synced.append(names[os.fstat(descriptor).st_ino])

    with open_in_files(tmp_path, durability="relaxed", log_bytes=1 << 14) as store:
        monkeypatch.setattr(_bodies, "sync_data", note)
        monkeypatch.setattr(_sync_beside, "sync_data", note)
        given = stored(store, *(put(1, large(number)) for number in range(60)))
        assert files(tmp_path) == ["bodies-1"]
        settled(store, lambda: set(synced) == {"bodies-1"})  # when it was long enough
        del synced[:]
        store.submit([Delete(given[1:])]).wait()
        settled(store, lambda: files(tmp_path) == ["bodies-2"])
        assert store.read(given) == {given[0]: large(0)}
        assert synced == ["bodies-2", "messages.sqlite-wal"]


def test_an_undone_transaction_leaves_nothing(store: SqliteStore, tmp_path: Path) -> None:
    """Bodies of a refused submission are written over; those behind it in the batch are stored."""
    (first,) = stored(store, put(1, large(0)))
    store._commits.hold()
    twice = store.submit([put(1, large(1), id=first)])
    fine = put(1, large(2))
    commit = store.submit([fine])
    store._commits.release()
    with pytest.raises(Exception, match="a message is put once"):
        twice.wait(60)
    assert commit.wait(60)
    assert store.read([first, fine.id]) == {first: large(0), fine.id: large(2)}
    assert (tmp_path / "bodies-1").stat().st_size < 3 * (LARGE + 30)


def test_files_count_in_the_quota(tmp_path: Path) -> None:
    """At the quota a large body is refused alone, and what is removed makes room."""
    quota = 1 << 20
    with open_in_files(tmp_path, quota_bytes=quota, log_bytes=1 << 14) as store:
        given = filled(store)
        assert 0.7 * quota < len(given) * LARGE < quota
        assert sum(file.stat().st_size for file in tmp_path.glob("bodies-*")) <= quota
        assert not list(tmp_path.glob("spare-*"))
        for one in given[: len(given) // 2]:
            store.submit([Delete([one])]).wait()
        again = filled(store)
        assert len(again) > 0.8 * (len(given) // 2)
        assert ids(store, 1) == [*given[len(given) // 2 :], *again]


def test_at_the_quota_the_file_that_is_written_makes_room(tmp_path: Path) -> None:
    """In a quota that is smaller than a file of bodies, what is removed makes room for bodies, and for small ones."""
    with open_in_files(tmp_path, quota_bytes=1 << 20) as store:
        given = filled(store)
        assert len(given) > 80
        emptied(store, given)
        stored(store, put(1, b"small"))
        assert len(filled(store)) > 80


def test_a_quota_is_for_both_kinds_of_file(tmp_path: Path) -> None:
    """Free pages of SQLite's file count: large bodies go there while the quota has no room for a file."""
    quota = 1 << 20
    with open_in_files(tmp_path, quota_bytes=quota, log_bytes=1 << 14) as store:
        small = [one for _ in range(30) for one in stored(store, *(put(1, bytes(1000)) for _ in range(20)))]
        store.submit([Delete(small)]).wait()
        assert len(filled(store)) > 70
    assert size_of(tmp_path) <= quota


@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_a_body_that_the_disk_has_no_room_for_leaves_nothing(small_disk: Path) -> None:
    """Half of a body that was refused does not keep the disk full."""
    with SqliteStore(small_disk / "store") as store:
        for _ in range(2):
            with pytest.raises(StoreFull):
                stored(store, put(1, bytes(20 << 20)))
        rested(store)
        stored(store, put(1, b"small"))
        stored(store, put(1, bytes(300 << 10)))


@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_a_full_disk_of_large_bodies_is_emptied(small_disk: Path) -> None:
    """On a full disk all can be removed, and then as much fits again."""
    with SqliteStore(small_disk / "store") as store:
        given = filled(store, 300_000)
        assert len(given) > 20
        emptied(store, given)
        again = filled(store, 300_000)
        assert len(again) > 0.7 * len(given)
        emptied(store, again[:-1])
        assert store.read(again) == {again[-1]: large(len(again) - 1) * 30}


@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_a_full_disk_has_no_spares(small_disk: Path) -> None:
    """Files that wait for their turn are given up before a message is refused."""
    directory = small_disk / "store"
    with SqliteStore(directory, reserve_bytes=1 << 18, log_bytes=1 << 20) as store:
        given = [one for _ in range(30) for one in stored(store, put(1, bytes(300_000)))]
        store.submit([Delete(given)]).wait()
        assert len(list(directory.glob("spare-*"))) == 2
        assert filled(store, LARGE)
        assert store.statistics().bytes > 9 << 20
        assert not list(directory.glob("spare-*"))


@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_a_full_disk_of_half_empty_files(small_disk: Path) -> None:
    """On a full disk the reserve is what bodies are moved with, so that what was removed between others is room."""
    with SqliteStore(small_disk / "store") as store:
        given = filled(store, 300_000)
        kept = given[::3]
        emptied(store, [one for one in given if one not in kept])
        again: list[int] = []

        def has_room() -> bool:
            try:
                again.extend(stored(store, put(1, large(len(again)) * 30)))
            except StoreFull:
                return False
            return len(again) > 0.7 * (len(given) - len(kept))

        settled(store, has_room)
        assert ids(store, 1) == kept + again
        assert store.read(given) == {one: large(given.index(one)) * 30 for one in kept}


def test_no_descriptor_is_left(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the process has too many files open, bodies go to SQLite, and the store goes on."""
    stored(store, put(1, large(0)))
    with monkeypatch.context() as exhausted:
        exhausted.setattr(os, "open", _no_descriptor)
        given = [one for number in range(30) for one in stored(store, put(1, large(number)))]
        rested(store)
    assert store.read(given) == {one: large(number) for number, one in enumerate(given)}
    before = files(tmp_path)
    stored(store, put(1, large(0)))
    assert files(tmp_path) != before


@pytest.mark.parametrize("durability", ["sync", "relaxed"])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_few_descriptors_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, left: int) -> None:
    """While files come and go, one that needs more descriptors than the process may still open ends nothing."""
    opened, closed = os.open, os.close
    free = left

    def open_one(*arguments: Any, **options: Any) -> int:
        nonlocal free
        if not free:
            _no_descriptor(arguments[0])
        free -= 1
        return opened(*arguments, **options)

    def close_one(descriptor: int) -> None:
        nonlocal free
        free += 1
        closed(descriptor)

    with open_in_files(tmp_path, durability=durability, log_bytes=1 << 14) as store:
        given = [one for number in range(10) for one in stored(store, put(1, large(number)))]
        emptied(store, given)
        with monkeypatch.context() as exhausted:
            exhausted.setattr(os, "open", open_one)
            exhausted.setattr(os, "close", close_one)
            for _ in range(3):
                given = [one for number in range(10) for one in stored(store, put(1, large(number)))]
                emptied(store, given[:5])
        assert len(store.page(1, 0, 100)) == 15
        emptied(store, [header.id for header in store.page(1, 0, 100)])
        stored(store, put(1, large(1)))
        settled(store, lambda: store.statistics().free_bytes < 1 << 20)
        assert set(files(tmp_path)) <= {f"bodies-{number}" for number in store._bodies._sizes}


def test_files_go_at_relaxed_without_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log, which is synced before a file goes, needs no descriptor then."""
    with open_in_files(tmp_path, durability="relaxed", log_bytes=1 << 14) as store:
        given = [one for number in range(30) for one in stored(store, put(1, large(number)))]
        with monkeypatch.context() as exhausted:
            exhausted.setattr(os, "open", _no_descriptor)
            emptied(store, given)
        assert len(files(tmp_path)) <= 1


def test_a_reader_waits_for_a_descriptor(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files are no fault of the store: a read goes on once there is a descriptor, if that is soon."""
    given = stored(store, put(1, large(0)))
    read_bodies, tried = _sqlite_reader.read_bodies, []

    def exhausted(directory: Path, places: dict[int, int]) -> tuple[dict[int, bytes], list[int]]:
        tried.append(places)
        return _no_descriptor(directory) if len(tried) < 3 else read_bodies(directory, places)

    monkeypatch.setattr(_sqlite_reader, "read_bodies", exhausted)
    assert store.read(given) == {given[0]: large(0)}
    monkeypatch.setattr(_sqlite_reader, "_MOST_TRIES", 3)
    monkeypatch.setattr(_sqlite_reader, "read_bodies", lambda directory, _: _no_descriptor(directory))
    with pytest.raises(StoreFailed, match="cannot be read: Too many open files"):
        store.read(given)


def test_info_counts_files_of_bodies(store: SqliteStore, tmp_path: Path) -> None:
    """What large bodies take of the disk is in the answer of `info`."""
    stored(store, put(1, large(0)), put(1, large(1)))
    size = sum(file.stat().st_size for file in tmp_path.glob("bodies-*"))
    assert f"{size:,} bytes, of large bodies" in run("info", tmp_path).output


def _no_descriptor(path: object, *_: object, **__: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))


def test_the_directory_is_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that opened a store by a relative path may go to another directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with open_in_files(Path(), log_bytes=1 << 14) as store:
        monkeypatch.chdir(tmp_path / "there")
        given = [one for number in range(30) for one in stored(store, put(1, large(number)))]
        assert len(store.read(given)) == 30
    assert not list((tmp_path / "there").iterdir())


def test_at_relaxed_fewer_bytes_are_worth_a_file(tmp_path: Path) -> None:
    """Where a file costs a commit no second sync, 80 KiB go into one."""
    for durability in ("sync", "relaxed"):
        with SqliteStore(tmp_path / durability, durability=durability, reserve_bytes=0) as store:
            stored(store, *(put(1, large(number)) for number in range(9)))
            assert len(files(tmp_path / durability)) == (durability == "relaxed")


def test_a_commit_of_few_bytes_is_one_sync(tmp_path: Path) -> None:
    """Bodies that are not worth a second sync stay with their rows, however large each one is."""
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        stored(store, put(1, large(0)))
        assert files(tmp_path) == []
        before = store.statistics()
        stored(store, *(put(1, large(number)) for number in range(30)))
        after = store.statistics()
        assert (after.commits - before.commits, after.syncs - before.syncs) == (1, 2)
        assert files(tmp_path) == ["bodies-1"]


# Damage


def test_a_changed_byte_is_told(tmp_path: Path) -> None:
    """A body that is not the one that was stored is not given out; `check` and `dump` name it."""
    with open_in_files(tmp_path) as store:
        given = stored(store, *(put(1, large(number)) for number in range(3)))
    file = tmp_path / "bodies-1"
    content = bytearray(file.read_bytes())
    content[LARGE + LARGE // 2] ^= 1
    file.write_bytes(content)
    with open_in_files(tmp_path) as store:
        assert set(store.read([given[0], given[2]])) == {given[0], given[2]}
        with pytest.raises(StoreDamaged, match=rf"bodies-1 does not have the body of message {given[1]} "):
            store.read(given)
    checked = run("check", tmp_path)
    assert checked.exit_code == 1
    assert f"message {given[1]}: the body (bodies-1 does not have" in checked.output
    assert run("dump", tmp_path).stdout.count('"body": null') == 1


@pytest.mark.parametrize(("size", "told"), [(None, "bodies-1 is missing"), (15_000, "bodies-1 has 15000 bytes, and")])
def test_a_file_that_is_missing_or_cut_off_is_told_at_opening(tmp_path: Path, size: int | None, told: str) -> None:
    """A store that lacks a file of bodies is not opened, and the error names the file; `dump` reads the rest."""
    with open_in_files(tmp_path) as store:
        stored(store, put(1, large(0)), put(1, large(1)), put(1, b"small"))
    file = tmp_path / "bodies-1"
    content = file.read_bytes()
    file.unlink()
    if size is not None:
        file.write_bytes(content[:size])
    with pytest.raises(StoreDamaged, match=told):
        open_in_files(tmp_path)
    assert run("dump", tmp_path).stdout.count('"body": null') == (2 if size is None else 1)
    file.write_bytes(content)
    with open_in_files(tmp_path) as store:
        assert store.statistics().messages == 3


@pytest.mark.parametrize("size", [None, 15_000])
def test_transient_bodies_may_be_missing_after_a_power_loss(tmp_path: Path, size: int | None) -> None:
    """Nobody synced them: a file that lacks only such bodies is no damage. Its number is not another file's until no
    row names it, and what was persistent is there."""
    with open_in_files(tmp_path / "store") as store:
        (kept,) = stored(store, put(1, large(0)))
        lost = stored(store, *(put(1, large(number), transient=True) for number in range(1, 9)))
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    file = tmp_path / "crashed" / "bodies-1"
    if size is None:
        with sqlite3.connect(tmp_path / "crashed" / "messages.sqlite") as connection:
            connection.execute("UPDATE body SET data = data + ? WHERE id >= ?", (6 << 40, lost[0]))
        connection.close()
        (tmp_path / "crashed" / "confirmed").unlink()  # it speaks of the log that was just copied into the file
    else:
        os.truncate(file, size)
    assert run("check", tmp_path / "crashed").exit_code == 0
    with open_in_files(tmp_path / "crashed") as store:
        assert ids(store, 1) == [kept]
        new = [stored(store, put(1, large(number)))[0] for number in range(8)]
        rested(store)
        assert store.read([kept, *new]) == {kept: large(0)} | {one: large(number) for number, one in enumerate(new)}
        assert store.statistics().messages == 9
        assert store.statistics().free_bytes >= 0
    assert "bodies-7" not in files(tmp_path / "crashed")
    assert run("check", tmp_path / "crashed").exit_code == 0


def test_a_file_of_transient_bodies_ends_without_a_sync(store: SqliteStore, tmp_path: Path) -> None:
    """What is persistent goes on behind a file that was filled by transient bodies alone."""
    transient = [stored(store, put(2, large(number), transient=True))[0] for number in range(7)]
    assert os.stat(tmp_path / "bodies-1").st_size >= 1 << 16
    small = stored(store, put(1, b"small"))
    given = [stored(store, put(1, large(number)))[0] for number in range(7)]
    store.submit([Delete(transient)]).wait()
    assert ids(store, 1) == small + given
    assert store.read(given) == {one: large(number) for number, one in enumerate(given)}


def test_a_file_that_cannot_be_read_is_not_moved(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in which the disk has a fault is left as it is, and the store goes on."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_sqlite_writer, "read_bodies", fail)
    given = [stored(store, put(1, large(number)))[0] for number in range(20)]
    store.submit([Delete(given[1:])]).wait()
    rested(store)
    assert files(tmp_path)[0] == "bodies-1"
    assert store.read(given) == {given[0]: large(0)}


def test_a_body_without_a_header_is_told_at_opening(tmp_path: Path) -> None:
    """A row of a body that no header belongs to is damage, with its file."""
    with open_in_files(tmp_path) as store:
        stored(store, put(1, large(0)))
    with sqlite3.connect(tmp_path / "messages.sqlite") as connection:
        connection.execute("DELETE FROM header")
    connection.close()
    with pytest.raises(StoreDamaged, match="1 of the bodies in bodies-1 have no header"):
        open_in_files(tmp_path)


def test_numbers_begin_anew(tmp_path: Path) -> None:
    """Behind the highest number that a place can have, files take the lowest that are free."""
    highest = tmp_path / f"bodies-{(1 << 23) - 1}"
    with open_in_files(tmp_path) as store:
        first = stored(store, put(1, large(0)))
    (tmp_path / "bodies-1").rename(highest)
    with sqlite3.connect(tmp_path / "messages.sqlite") as connection:
        connection.execute("UPDATE body SET data = data + ?", (((1 << 23) - 2) << 40,))
    connection.close()
    with open_in_files(tmp_path) as store:
        given = stored(store, put(1, large(1)))
        assert store.read(first + given) == {first[0]: large(0), given[0]: large(1)}
    assert files(tmp_path) == ["bodies-1", highest.name]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A file that only looks like one of bodies is not the store's to remove."""
    for name in ("bodies-x", "bodies-01", "bodies-", "bodies-1.bak", "bodies-20261124"):
        (tmp_path / name).write_text("mine")
    with open_in_files(tmp_path) as store:
        stored(store, put(1, large(0)))
    with open_in_files(tmp_path) as store:
        store.submit([Delete(ids(store, 1))]).wait()
    assert files(tmp_path) == ["bodies-", "bodies-01", "bodies-1.bak", "bodies-20261124", "bodies-x"]
