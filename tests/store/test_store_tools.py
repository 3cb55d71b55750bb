"""The tools that look into a store, check it, take it out and put it back; on damaged files too."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from store_parts_support import _dump, first_behind
from store_support import ids, put, run, stored

from multiqueue.store import Define, Delete, DropQueue, MessageStore, SqliteStore, StoreDamaged, StoreError


def filled(directory: Path, messages: int = 300) -> dict[int, bytes]:
    """A closed store with messages on two queues, definitions, deliveries; the bodies by id."""
    random_ = random.Random(1)
    with SqliteStore(directory, reserve_bytes=0) as store:
        given = [
            put(
                number % 2,
                random_.randbytes(random_.choice((0, 10, 1000, 20_000))),
                level=number % 3,
                deliveries=number,
            )
            for number in range(messages)
        ]
        given[0].expires_at = 12.5
        stored(store, *given)
        store.submit([Define("queue", "ä", '{"a": 1}'), Define("exchange", "b", "{}")]).wait()
    return {message.id: message.body for message in given}


def everything(store: MessageStore) -> object:
    """All that a store says of itself."""
    places = [(level.queue, level.level) for level in store.levels()]
    return (
        store.levels(),
        store.definitions(),
        {place: store.page(place[0], 0, 10_000, level=place[1]) for place in places},
        store.expired(1e9, 1000),
        store.redeliver_floor,
    )


def sql(directory: Path, statement: str) -> None:
    """Change a closed store behind its back."""
    with sqlite3.connect(directory / "messages.sqlite") as connection:
        connection.execute(statement)
    connection.close()


# Sound stores


def test_info(tmp_path: Path) -> None:
    """`info` shows what a store has, by queue and level, for people and as JSON."""
    bodies = filled(tmp_path)
    shown = run("info", tmp_path)
    assert shown.exit_code == 0
    assert "300 with" in shown.output
    assert "closed cleanly" in shown.output
    assert "1 of exchange, 1 of queue" in shown.output
    found = json.loads(run("info", tmp_path, "--json").output)
    assert found["bytes"] == sum(map(len, bodies.values()))
    assert sum(level["messages"] for level in found["levels"]) == 300


def test_looking_at_an_open_store(tmp_path: Path) -> None:
    """A store can be looked at, checked and dumped while it is open; the answer is of one moment."""
    filled(tmp_path)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        stored(store, put(1))
        assert "301 with" in run("info", tmp_path).output
        assert "open, or crashed" in run("info", tmp_path).output
        assert run("check", tmp_path).output == f"{tmp_path}: sound\n"
        assert len(run("dump", tmp_path).output.splitlines()) == 1 + 2 + 301
        stored(store, put(1))


def test_a_crashed_store_is_sound(tmp_path: Path) -> None:
    """What a kill leaves, log included, is sound as it is, and looking does not change it."""
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as store:
        stored(store, *(put(1, b"x" * 1000, transient=number % 2 == 0) for number in range(500)))
        store.submit([DropQueue(7)]).wait()
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("*-shm"))
    names = ("messages.sqlite", "messages.sqlite-wal")
    before = [(tmp_path / "b" / name).read_bytes() for name in names]
    assert run("check", tmp_path / "b").exit_code == 0
    assert len(run("dump", tmp_path / "b").output.splitlines()) == 1 + 250
    assert [(tmp_path / "b" / name).read_bytes() for name in names] == before


def test_dump_and_load(tmp_path: Path) -> None:
    """A store made of a dump is the store that was dumped, and gives no id again."""
    bodies = filled(tmp_path / "a")
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as store:
        last = max(store.allocate() for _ in range(1000))  # given, and never stored
    dumped = run("dump", tmp_path / "a")
    assert dumped.exit_code == 0
    loaded = run("load", tmp_path / "b", text=dumped.output)
    assert (loaded.exit_code, loaded.output) == (0, f"300 messages loaded into {tmp_path / 'b'}\n")
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as one, SqliteStore(tmp_path / "b", reserve_bytes=0) as other:
        assert everything(other) == everything(one)
        assert other.read(bodies) == bodies
        assert other.allocate() > last
    assert run("check", tmp_path / "b").exit_code == 0


def test_dump_and_load_by_files(tmp_path: Path) -> None:
    """The lines may go into a file and come from one."""
    filled(tmp_path / "a", 10)
    file = tmp_path / "lines"
    assert run("dump", tmp_path / "a", "--output", file).exit_code == 0
    assert run("load", tmp_path / "b", "--input", file).exit_code == 0
    with SqliteStore(tmp_path / "b", reserve_bytes=0) as store:
        assert store.statistics().messages == 10


def test_load_refuses(tmp_path: Path) -> None:
    """What is no dump, and a store that is not empty, are refused, with the line."""
    filled(tmp_path / "a", 1)
    good = run("dump", tmp_path / "a").output
    assert "is not empty" in str(run("load", tmp_path / "a", text=good).exception)
    for text, says in (
        ("", "line 1 is not JSON"),
        ("{}\n", "line 1 does not begin a dump"),
        (good + "{}\n", "line 5 is not a line of a dump"),
        (good + "[]\n", "line 5 is not a JSON object"),
        (good.replace('"body": "', '"body": "%'), "line 4 is not a line of a dump"),
        (good.replace('"level": 0', '"level": "low"'), "line 4 is not a line of a dump: 'low' is not a whole number"),
        (good.replace('"deliveries": 0', '"deliveries": null'), "line 4 is not a line of a dump: None is not a whole"),
        (good.replace('"expires_at": 12.5', '"expires_at": "soon"'), "line 4 is not a line of a dump"),
        (good.replace('["queue", ', "[null, "), "line 2 is not a line of a dump"),
        (good.replace('"next_id": ', '"next_id": 9e99, "": '), "line 1 does not begin a dump"),
    ):
        error = run("load", tmp_path / "b", text=text).exception
        assert says in str(error)
        assert error.exit_status == 2  # type: ignore[union-attr]
        shutil.rmtree(tmp_path / "b", ignore_errors=True)


def test_load_refuses_what_is_no_text(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused in a sentence."""
    file = tmp_path / "lines"
    file.write_bytes(b"\xff\xfe\n")
    error = run("load", tmp_path / "a", "--input", file).exception
    assert "are not UTF-8" in str(error)
    assert error.exit_status == 2  # type: ignore[union-attr]


def test_a_part_that_is_refused_ends_the_load(tmp_path: Path) -> None:
    """No message of a dump is left out in silence: an id that comes twice, early in a long dump, is told."""
    filled(tmp_path / "a", 1200)
    head, *lines = run("dump", tmp_path / "a").output.splitlines(keepends=True)
    error = run("load", tmp_path / "b", text="".join([head, lines[-1], *lines, lines[5]])).exception
    assert "a message is put once" in str(error)
    assert error.exit_status == 2  # type: ignore[union-attr]
    lines.insert(7, lines[6])
    with pytest.raises(StoreError, match="a message is put once"):
        _dump.load(tmp_path / "c", [head, *lines])


def test_a_dump_that_cannot_be_written(tmp_path: Path) -> None:
    """A file that cannot be opened for the dump is a mistake of the command, before anything is done."""
    filled(tmp_path / "a", 1)
    result = run("dump", tmp_path / "a", "--output", tmp_path / "none" / "lines")
    assert (result.exit_code, "No such file or directory" in result.stderr) == (2, True)


def test_compact(tmp_path: Path) -> None:
    """`compact` makes the file small, and leaves what is in it."""
    bodies = filled(tmp_path)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        given = stored(store, *(put(1, b"x" * 5_000) for _ in range(600)))
        store.submit([Delete(given)]).wait()
        before = everything(store)
        assert "open in this process" in str(run("compact", tmp_path).exception)
    large = (tmp_path / "messages.sqlite").stat().st_size
    assert run("compact", tmp_path).exit_code == 0
    assert (tmp_path / "messages.sqlite").stat().st_size < 0.8 * large
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        assert everything(store) == before
        assert store.read(bodies) == bodies


@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_a_store_on_a_file_system_that_is_read_only(small_disk: Path, tmp_path: Path) -> None:
    """A store that was closed is looked at as elsewhere; one with a log can not be, and is not called damaged."""
    filled(small_disk / "closed", 3)
    with SqliteStore(tmp_path / "open", reserve_bytes=0) as store:
        stored(store, put(1, b"in the log"))
        (small_disk / "crashed").mkdir()
        for name in ("messages.sqlite", "messages.sqlite-wal"):
            shutil.copy(tmp_path / "open" / name, small_disk / "crashed" / name)
    dumped = run("dump", small_disk / "closed")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for tool in ("info", "check", "dump"):
        result = run(tool, small_disk / "closed")
        assert (tool, result.exit_code, result.stderr) == (tool, 0, "")
        error = run(tool, small_disk / "crashed").exception
        assert "it has a log, and SQLite must write beside that; copy" in str(error)
        assert error.exit_status == 2  # type: ignore[union-attr]
    assert result.stdout == dumped.stdout


def test_no_store_there(tmp_path: Path) -> None:
    """Where there is no store every tool says so, with status 2, and makes none."""
    for tool in ("info", "check", "dump", "compact"):
        error = run(tool, tmp_path).exception
        assert "there is no store in" in str(error)
        assert error.exit_status == 2  # type: ignore[union-attr]
    assert run("info", tmp_path / "none").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_stores_is_no_store(tmp_path: Path) -> None:
    """Who names a broker's data directory is told where in it the stores are."""
    for name in ("%2f", "staging"):
        SqliteStore(tmp_path / name, reserve_bytes=0).close()
    for tool in ("check", "compact"):
        message = str(run(tool, tmp_path).exception)
        assert f"; there is one in '{tmp_path / '%2f'}', '{tmp_path / 'staging'}'" in message


def test_a_store_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not read the file, or not write the directory, is told which and why, with status 2."""
    filled(tmp_path, 1)

    def refuse(*arguments: object, **options: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("multiqueue.store._dump.DirectoryLock", refuse)
    error = run("compact", tmp_path).exception
    assert (str(error), error.exit_status) == (f"cannot write into {str(tmp_path)!r}: Permission denied", 2)  # type: ignore[union-attr]
    monkeypatch.setattr(Path, "open", refuse)
    for tool in ("info", "check", "dump", "compact"):
        error = run(tool, tmp_path).exception
        assert "cannot read" in str(error)
        assert error.exit_status == 2  # type: ignore[union-attr]


def test_another_program_s_file(tmp_path: Path) -> None:
    """A database of something else, and one without tables, are no store: status 2, and no byte is changed."""
    file = tmp_path / "messages.sqlite"
    for content in ("CREATE TABLE other (column)", ""):
        file.unlink(missing_ok=True)
        file.touch()
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.executescript(content)
        before = file.read_bytes()
        for tool in ("info", "check", "dump", "compact"):
            error = run(tool, tmp_path).exception
            assert ("no store in" if not content else "is not a store") in str(error)
            assert error.exit_status == 2  # type: ignore[union-attr]
        assert file.read_bytes() == before


# Damaged stores


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM body WHERE id = 5", "message 5 of queue 0 has no body"),
        ("DELETE FROM header WHERE id = 5", "message 5 has no header"),
        ("UPDATE header SET size = 7 WHERE id = 5", "message 5: the header says 7 bytes"),
        ("UPDATE header SET properties = x'00' WHERE id = 5", "message 5: the properties are not those"),
        ("UPDATE body SET data = x'00' WHERE id = 5", "message 5: the body is not the one"),
        ("UPDATE body SET id = 999 WHERE id = 5", "message 999"),
        ("UPDATE meta SET value = 5 WHERE key = 'next_id'", "message 5 has an id that was not given yet"),
        ("DELETE FROM meta WHERE key = 'clean'", "meta does not say clean"),
    ],
)
def test_check_finds(tmp_path: Path, statement: str, says: str) -> None:
    """Each promise that is broken in the file is named, with the message, and the status is 1."""
    filled(tmp_path, 20)
    sql(tmp_path, statement)
    checked = run("check", tmp_path)
    assert checked.exit_code == 1
    assert says in checked.output


def test_a_body_that_changed_is_never_delivered(tmp_path: Path) -> None:
    """Reading a message whose bytes are not those that were stored raises, and names the file and the message.

    (store 5)
    """
    filled(tmp_path, 20)
    sql(tmp_path, "UPDATE body SET data = x'00' WHERE id = 5")
    sql(tmp_path, "UPDATE header SET properties = x'00' WHERE id = 6")
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        with pytest.raises(StoreDamaged, match=r"messages\.sqlite' is damaged: the body of message 5"):
            store.read([4, 5])
        with pytest.raises(StoreDamaged, match=r"messages\.sqlite' is damaged: the properties of message 6"):
            store.page(1, 0, 10, level=2)
        assert set(store.read([4])) == {4}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE header SET level = x'00' WHERE id = 5",
        "UPDATE header SET size = 'many' WHERE id = 5",
        "UPDATE header SET size = CAST(x'ff' AS TEXT) WHERE id = 5",
        "DELETE FROM meta WHERE key = 'clean'",
        "UPDATE meta SET value = 'some' WHERE key = 'next_id'",
        "DROP TABLE header",
    ],
)
def test_what_is_no_number_is_damage(tmp_path: Path, statement: str) -> None:
    """SQLite keeps anything in any column, and damage writes it there: opening says so, and so does `info`."""
    filled(tmp_path, 20)
    sql(tmp_path, statement)
    with pytest.raises(StoreDamaged, match=r"messages\.sqlite' is damaged"):
        SqliteStore(tmp_path, reserve_bytes=0)
    looked = run("info", tmp_path)
    assert isinstance(looked.exception, StoreDamaged)
    assert "messages.sqlite' is damaged" in str(looked.exception)


def test_a_header_that_changed_is_not_paged(tmp_path: Path) -> None:
    """What is no number, or no bytes, is found out when it is read."""
    filled(tmp_path, 20)
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        sql(tmp_path, "UPDATE header SET deliveries = x'00' WHERE id = 5")
        sql(tmp_path, "UPDATE header SET properties = 'text' WHERE id = 6")
        sql(tmp_path, "UPDATE body SET data = 'text' WHERE id = 7")
        with pytest.raises(StoreDamaged, match="a header of queue 0, level 1, has something else for a number"):
            store.page(0, 0, 10, level=1)
        with pytest.raises(StoreDamaged, match="the properties of message 6"):
            store.page(1, 0, 10, level=2)
        with pytest.raises(StoreDamaged, match="the body of message 7"):
            store.read([7])


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_a_file_that_was_cut_off(tmp_path: Path, share: float) -> None:
    """A file that is too short is not opened: the error has its length and what it should be. `dump` reads the rest."""
    bodies = filled(tmp_path, 3000)
    file = tmp_path / "messages.sqlite"
    size = file.stat().st_size
    os.truncate(file, int(size * share))
    with pytest.raises(StoreDamaged, match=rf"messages\.sqlite.* has {int(size * share)} bytes, .* says {size}"):
        SqliteStore(tmp_path)
    assert run("check", tmp_path).exit_code == 1
    dumped = run("dump", tmp_path)
    if share > 0.1:
        assert dumped.exit_code == 1
        found = read_back(tmp_path / "b", dumped)
        assert found.items() <= bodies.items()
        assert len(found) > (share - 0.25) * len(bodies)  # headers stand in front of the bodies
        assert "the file is cut off" in dumped.stderr


def test_a_page_that_is_gone(tmp_path: Path) -> None:
    """Where one page of bodies is unreadable, `dump` has every message that was not on it."""
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as store:
        given = stored(store, *(put(1, b"%1000d" % number) for number in range(300)))
    file = tmp_path / "a" / "messages.sqlite"
    content = bytearray(file.read_bytes())
    leaves = [start for start in range(8192, len(content), 8192) if content[start] == 0x0D and content[start + 4] > 3]
    start = leaves[len(leaves) // 2]
    on_it = content[start + 4]
    content[start : start + 8192] = bytes(8192)
    file.write_bytes(content)
    dumped = run("dump", tmp_path / "a")
    lines = [json.loads(line) for line in dumped.stdout.splitlines()[1:]]
    assert sorted(line["id"] for line in lines) == given
    assert sum(line["body"] is None for line in lines) == on_it
    assert dumped.exit_code == 1


def read_back(directory: Path, dumped: Result) -> dict[int, bytes]:
    """The bodies that a dump brings into a new store."""
    assert run("load", directory, text=dumped.stdout).exit_code in (0, 1)
    with SqliteStore(directory, reserve_bytes=0) as store:
        known = [one for queue in (0, 1) for level in (0, 1, 2) for one in ids(store, queue, level=level)]
        return store.read(known)


@pytest.mark.slow(selected=True)
def test_flipped_bytes(tmp_path: Path) -> None:
    """Wherever a byte is changed: no wrong message is ever read, errors name the store, and the rest is dumped.

    (store 5)
    """
    bodies = filled(tmp_path / "a", 100)
    (large,) = (tmp_path / "a").glob("bodies-*")
    random_ = random.Random(2)
    told = rest = 0
    for number in range(48):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "a", directory)
        file = directory / (large.name if number % 4 == 3 else "messages.sqlite")
        flipped = bytearray(file.read_bytes())
        place = random_.randrange(len(flipped)) if number % 2 else random_.randrange(12) * 8192 + random_.randrange(100)
        flipped[place] ^= 1 << random_.randrange(8)
        file.write_bytes(flipped)
        told += run("check", directory).exit_code
        found, errors = read_carefully(directory)
        assert found.items() <= bodies.items(), place
        assert all(str(directory) in error for error in errors)
        dumped = run("dump", directory)
        if isinstance(dumped.exception, StoreDamaged):
            assert str(directory) in str(dumped.exception)
            continue
        back = read_back(tmp_path / f"{number} back", dumped)
        assert back.items() <= bodies.items(), place
        rest += len(back) >= 90
    assert told > 16
    assert rest > 36  # what hits the root of a table takes the table


def read_carefully(directory: Path) -> tuple[dict[int, bytes], list[str]]:
    """What a store gives out of a damaged file, message by message, and what it says where it does not."""
    found: dict[int, bytes] = {}
    errors: list[str] = []
    try:
        with SqliteStore(directory, reserve_bytes=0) as store:
            for one in range(1, 101):
                try:
                    found.update(store.read([one]))
                except StoreDamaged as error:
                    errors.append(str(error))
    except StoreError as error:
        errors.append(str(error))
    return found, errors


@pytest.mark.parametrize(("gap", "last"), [((5, 9), 100), ((5, 5), 100), ((1, 100), 100), ((7, 5000), 9000)])
def test_leaping_over_a_gap(gap: tuple[int, int], last: int) -> None:
    """Behind rows that cannot be read the next one is found exactly, or the end."""

    def readable(place: int) -> int | None:
        if gap[0] <= place <= gap[1]:
            return None
        return place if place <= last else (1 << 63) - 1

    assert first_behind(readable, gap[0]) == (gap[1] + 1 if gap[1] < last else None)


def test_a_gap_without_an_end() -> None:
    """Where nothing behind the damage can be read, the search ends."""
    nothing: Callable[[int], int | None] = lambda place: None  # noqa: E731
    assert first_behind(nothing, 5) is None


def test_a_body_that_is_gone_is_missing_in_a_dump_with_a_word(tmp_path: Path) -> None:
    """A dump of a store that has lost a body names the message, and does not end as if it were whole."""
    filled(tmp_path, 20)
    sql(tmp_path, "DELETE FROM body WHERE id = 5")
    dumped = run("dump", tmp_path)
    assert dumped.exit_code == 1
    assert "message 5 of queue 0 has no body" in dumped.output + str(dumped.exception)
