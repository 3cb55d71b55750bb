"""Large bodies in files beside the messages: when a file comes, is read, is written anew and goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_parts_support import _sqlite_reader
from store_support import ids, put, run, stored

from multiqueue.store import Delete, SqliteStore, StoreDamaged, StoreFull

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


def filled(store: SqliteStore) -> list[int]:
    """Publish until the quota is reached; the ids of what was stored."""
    given: list[int] = []

    def fill() -> None:
        while True:
            given.extend(stored(store, put(1, large(len(given)))))

    with pytest.raises(StoreFull, match="quota of 1048576 bytes"):
        fill()
    return given


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


def test_a_file_that_is_nearly_empty_is_written_anew(store: SqliteStore, tmp_path: Path) -> None:
    """A message that nobody takes keeps its own bytes of the disk, not those of all that came with it."""
    given = [stored(store, put(1, large(number)))[0] for number in range(60)]
    kept = given[::12]
    store.submit([Delete([one for one in given if one not in kept])]).wait()
    settled(store, lambda: len(files(tmp_path)) <= 2)
    assert store.read(given) == {one: large(given.index(one)) for one in kept}
    assert store.statistics().file_bytes < 4 * len(kept) * LARGE + (1 << 17)
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


def test_relaxed_keeps_bodies_with_their_rows(tmp_path: Path) -> None:
    """At relaxed no file is made; those of an earlier opening are read, and go with the opening after the last body."""
    with open_in_files(tmp_path) as store:
        given = stored(store, *(put(1, large(number)) for number in range(3)))
    with open_in_files(tmp_path, durability="relaxed") as store:
        more = stored(store, put(1, large(3)))
        assert store.read([*given, *more]) == {one: large(number) for number, one in enumerate([*given, *more])}
        store.submit([Delete(given)]).wait()
        assert files(tmp_path) == ["bodies-1"]
    with open_in_files(tmp_path, durability="relaxed") as store:
        assert files(tmp_path) == []
        assert store.read(more) == {more[0]: large(3)}


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
        for one in given[: len(given) // 2]:
            store.submit([Delete([one])]).wait()
        again = filled(store)
        assert len(again) > 0.8 * (len(given) // 2)
        assert ids(store, 1) == [*given[len(given) // 2 :], *again]


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


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A file that only looks like one of bodies is not the store's to remove."""
    for name in ("bodies-x", "bodies-01", "bodies-", "bodies-1.bak"):
        (tmp_path / name).write_text("mine")
    with open_in_files(tmp_path) as store:
        stored(store, put(1, large(0)))
    with open_in_files(tmp_path) as store:
        store.submit([Delete(ids(store, 1))]).wait()
    assert files(tmp_path) == ["bodies-", "bodies-01", "bodies-1.bak", "bodies-x"]
