"""A log that lost confirmed commits is reported at opening, by `check` and by `dump`; a sound log never is."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from store_support import ids, put, run, stored

from multiqueue.store import SqliteStore, StoreDamaged
from multiqueue.testing import wait_until_blocked

COMMITS = 40
_LOG_HEAD, _FRAME_HEAD = 32, 24  # bytes
_CHILD = f"""
import os, sys
from multiqueue.store import Put, SqliteStore
store = SqliteStore(sys.argv[1], durability=sys.argv[2], reserve_bytes=0)
for number in range({COMMITS}):
    store.submit([Put(1, b"", b"x" * 500)]).wait()
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module", params=["sync", "relaxed"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a store whose process was killed behind its fortieth commit."""
    directory = tmp_path_factory.mktemp("killed") / "store"
    subprocess.run([sys.executable, "-c", _CHILD, str(directory), request.param], check=False, timeout=60)
    return directory


def log_of(directory: Path) -> Path:
    return directory / "messages.sqlite-wal"


def flipped(directory: Path, copy: Path, place: int) -> Path:
    """A copy of the store in whose log one bit is another."""
    shutil.copytree(directory, copy)
    content = bytearray(log_of(copy).read_bytes())
    content[place] ^= 4
    log_of(copy).write_bytes(content)
    return copy


def test_wherever_a_byte_of_the_log_changes_nothing_is_lost_in_silence(killed: Path, tmp_path: Path) -> None:
    """A store whose log has a changed byte is refused with a sentence, or has every confirmed message. (store 5)"""
    used = log_of(killed).read_bytes().rstrip(b"\0")
    random_ = random.Random(1)
    places = [*range(0, 32, 5), *(random_.randrange(32, len(used)) for _ in range(30))]
    told = 0
    for number, place in enumerate(places):
        copy = flipped(killed, tmp_path / str(number), place)
        try:
            with SqliteStore(copy, reserve_bytes=0) as store:
                assert len(ids(store, 1)) == COMMITS, place
        except StoreDamaged as error:
            told += f"the log {str(log_of(copy))!r} is damaged" in str(error)
    assert told == len(places)


def test_a_damaged_log_is_told_by_every_way_in(killed: Path, tmp_path: Path) -> None:
    """Opening, `check`, `dump` and `compact` tell of it; what is left can be dumped, and opened by who says so."""
    copy = flipped(killed, tmp_path / "copy", len(log_of(killed).read_bytes().rstrip(b"\0")) // 2)
    with pytest.raises(StoreDamaged, match=r"about \d+ commits that were confirmed are lost .* remove .*'confirmed'"):
        SqliteStore(copy)
    checked = run("check", copy)
    assert checked.exit_code == 1
    assert "commits that were confirmed are lost" in checked.stdout
    assert isinstance(run("compact", copy).exception, StoreDamaged)
    dumped = run("dump", copy)
    assert dumped.exit_code == 1
    assert "commits that were confirmed are lost" in dumped.stderr
    assert 0 < len(dumped.stdout.splitlines()) - 1 < COMMITS
    (copy / "confirmed").unlink()
    with SqliteStore(copy, reserve_bytes=0) as store:
        assert 0 < len(ids(store, 1)) < COMMITS


def test_a_log_that_is_gone_is_missed(killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store whose log was removed, or cut to nothing, is opened with a warning, and `check` says so."""
    for number, remove in enumerate((Path.unlink, lambda log: os.truncate(log, 0))):
        copy = shutil.copytree(killed, tmp_path / str(number))
        remove(log_of(copy))
        checked = run("check", copy)
        assert checked.exit_code == 1
        assert "-wal' is gone" in str(checked.exception) + checked.stdout
        caplog.clear()
        SqliteStore(copy, reserve_bytes=0).close()
        assert "-wal' is gone: another program has copied its" in caplog.text
        assert run("check", copy).exit_code == 0


def test_a_log_that_another_program_copied_is_not_missed_twice(killed: Path, tmp_path: Path) -> None:
    """SQLite's shell copies a log when it leaves; the store is opened with everything."""
    copy = shutil.copytree(killed, tmp_path / "copy")
    connection = sqlite3.connect(copy / "messages.sqlite")
    connection.execute("SELECT count(*) FROM header").fetchone()
    connection.close()
    assert not log_of(copy).exists()
    with SqliteStore(copy, reserve_bytes=0) as store:
        assert len(ids(store, 1)) == COMMITS


def test_a_sound_log_is_not_accused(killed: Path, tmp_path: Path) -> None:
    """Killed, opened and killed again; with a mark that is damaged itself, or without one: everything is there."""
    copy = shutil.copytree(killed, tmp_path / "copy")
    for number, change in enumerate(
        (lambda mark: None, lambda mark: mark.write_bytes(b"x" * 24), Path.unlink), start=2
    ):
        subprocess.run([sys.executable, "-c", _CHILD, str(copy), "sync"], check=False, timeout=60)
        change(copy / "confirmed")
        assert run("check", copy).exit_code == 0
        with SqliteStore(shutil.copytree(copy, tmp_path / str(number)), reserve_bytes=0) as store:
            assert len(ids(store, 1, page=1000)) == COMMITS * number


def test_a_log_without_what_was_not_synced_is_not_accused(tmp_path: Path) -> None:
    """A power loss may take commits of transient messages from the log, and those before it stay confirmed."""
    with SqliteStore(tmp_path / "store", reserve_bytes=0) as store:
        kept = stored(store, put(1, b"x" * 500))
        before = len(log_of(tmp_path / "store").read_bytes().rstrip(b"\0"))
        for _ in range(5):
            stored(store, put(1, b"x" * 5000, transient=True))
        assert len(log_of(tmp_path / "store").read_bytes().rstrip(b"\0")) > before
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
        stored(store, put(1, b"x" * 500))
        shutil.copytree(tmp_path / "store", tmp_path / "damaged")
    for name in ("crashed", "damaged"):
        os.truncate(log_of(tmp_path / name), before)
    with SqliteStore(tmp_path / "crashed", reserve_bytes=0) as store:
        assert ids(store, 1) == kept
    with pytest.raises(StoreDamaged, match="commits that were confirmed are lost"):
        SqliteStore(tmp_path / "damaged", reserve_bytes=0)


def test_a_log_that_began_anew_is_another_one(tmp_path: Path) -> None:
    """A mark that speaks of an earlier log, of one commit before a kill, accuses nobody."""
    with SqliteStore(tmp_path / "a", reserve_bytes=0) as store:
        stored(store, put(1), put(1))
        syncs = store.statistics().syncs
        wait_until_blocked(lambda: store.statistics().syncs > syncs)  # the log is in the file: the next begins it anew
        mark = (tmp_path / "a" / "confirmed").read_bytes()
        stored(store, put(1))
        copy = shutil.copytree(tmp_path / "a", tmp_path / "b")
    (copy / "confirmed").write_bytes(mark)
    with SqliteStore(copy, reserve_bytes=0) as store:
        assert len(ids(store, 1)) == 3


def test_another_start_of_the_machine(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power loss `sync` has lost nothing and says so; `relaxed` may have lost the latest and accuses nobody."""
    copy = flipped(killed, tmp_path / "copy", len(log_of(killed).read_bytes().rstrip(b"\0")) // 2)
    since = (copy / "confirmed").read_bytes()[12:20]
    monkeypatch.setattr("multiqueue.store._confirmed._start_of_machine", lambda: b"tomorrow")
    if since == bytes(8):
        with pytest.raises(StoreDamaged):
            SqliteStore(copy)
    else:
        SqliteStore(copy, reserve_bytes=0).close()


def test_a_crash_in_a_checkpoint_cuts_nothing_off(killed: Path, tmp_path: Path) -> None:
    """Where a process was killed when only the first page of its log was in the file, `check` finds the store sound."""
    copy = shutil.copytree(killed, tmp_path / "copy")
    log = log_of(copy).read_bytes()
    page = int.from_bytes(log[8:12], "big")
    frame = _FRAME_HEAD + page
    firsts = [at for at in range(_LOG_HEAD, len(log), frame) if log[at : at + 4] == bytes((0, 0, 0, 1))]
    file = copy / "messages.sqlite"
    content = bytearray(file.read_bytes())
    content[:page] = log[firsts[-1] + _FRAME_HEAD : firsts[-1] + frame]
    assert int.from_bytes(content[28:32], "big") * page > len(content)
    file.write_bytes(content)
    assert run("check", copy).exit_code == 0
    assert run("dump", copy).exit_code == 0
    with SqliteStore(copy, reserve_bytes=0) as store:
        assert len(ids(store, 1)) == COMMITS


def test_looking_without_writing_leaves_the_log(killed: Path, tmp_path: Path) -> None:
    """A read-only connection to a crashed store, as `sqlite3 -readonly` makes one, accuses nobody afterwards."""
    copy = shutil.copytree(killed, tmp_path / "copy")
    with contextlib.closing(sqlite3.connect(f"{(copy / 'messages.sqlite').as_uri()}?mode=ro", uri=True)) as shell:
        assert shell.execute("SELECT count(*) FROM body").fetchone() == (COMMITS,)
    with SqliteStore(copy, reserve_bytes=0) as store:
        assert len(ids(store, 1)) == COMMITS
