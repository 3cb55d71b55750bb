"""What becomes of the promises when the process is killed, a sync fails, or the disk is full."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_fault_support import Promises, check_reopened, run_worker, worker
from store_support import ids, put, stored

from multiqueue.store import Delete, Put, SqliteStore, StoreFailed, StoreFull

# kill -9

KILL_AFTER = (0, 2000, 100, 500, 20, 1000, 3000)  # promises


def kill_at_random(promises: Promises, directory: Path, seed: int, durability: str) -> None:
    """Start a worker, kill it at a moment that the seed decides, hear what it was promised until then."""
    command = worker(directory, seed, 10**9, durability=durability)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines_left = KILL_AFTER[seed % len(KILL_AFTER)] + random.Random(seed).randrange(10)
        for line in process.stdout:
            if line.endswith("\n"):
                promises.hear(line)
            if lines_left == 0:
                process.kill()
            lines_left -= 1
        process.kill()


def hold_over_kills(directory: Path, kills: int, durability: str) -> None:
    promises = Promises()
    for seed in range(kills):
        kill_at_random(promises, directory, seed + 1, durability)
        if seed % 3 == 0:
            recover_and_kill(directory, seed)
        store = check_reopened(promises, directory)
        assert all(one < store.redeliver_floor for one in promises.there)
        store.close()
    assert len(promises.given) > kills * 10
    assert len(promises.gone) > kills


def recover_and_kill(directory: Path, seed: int) -> None:
    """Kill a process while, or just after, it opens the store that a killed one left."""
    code = "import sys; from multiqueue.store import SqliteStore; print(); SqliteStore(sys.argv[1]); print(); input()"
    process = subprocess.Popen(
        [worker(directory, 0, 0)[0], "-uc", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()  # about to open
        if seed % 2:
            process.stdout.readline()  # open
        process.kill()


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize(("durability", "kills"), [("sync", 14), ("relaxed", 6)])
def test_kill_9(tmp_path: Path, durability: str, kills: int) -> None:
    """Killed at any moment, also while it recovers: nothing confirmed is lost, nothing acknowledged comes back."""
    hold_over_kills(tmp_path, kills, durability)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_two_hundred_times(tmp_path: Path) -> None:
    """The same two hundred times on one store, drained to empty now and then."""
    hold_over_kills(tmp_path, 200, "sync")


# A sync that fails


def fail_sync(faulty_disk: Path, directory: Path, at: int) -> Promises:
    """Let the `at`-th sync of a worker fail; check the end, and what can be opened then."""
    promises = Promises()
    command = worker(directory, at, 60, LD_PRELOAD=str(faulty_disk), FAIL_AT=str(at))
    assert run_worker(promises, command) == 0
    check_reopened(promises, directory).close()
    return promises


def check_failed_sync(faulty_disk: Path, top: Path, numbers: Iterator[int]) -> None:
    failed = 0
    for at in numbers:
        promises = fail_sync(faulty_disk, top / str(at), at)
        assert len(promises.ends) <= 1
        if promises.ends:
            failed += 1
            assert "Failed" in promises.ends[0] or "StoreError" in promises.ends[0], promises.ends
            assert "open the store again" in promises.ends[0] or "name another directory" in promises.ends[0]
    assert failed >= 4


@pytest.mark.slow(selected=True)
def test_a_failing_sync_is_the_end(tmp_path: Path, faulty_disk: Path) -> None:
    """When a sync fails, at opening, committing or closing, the store ends; opened again it keeps every promise."""
    check_failed_sync(faulty_disk, tmp_path, iter((1, 2, 3, 5, 8, 13, 21, 34)))


@pytest.mark.slow
def test_each_of_forty_syncs_fails(tmp_path: Path, faulty_disk: Path) -> None:
    """The same for each of the first forty syncs."""
    check_failed_sync(faulty_disk, tmp_path, iter(range(1, 41)))


def test_nothing_is_tried_again_after_a_failed_sync(tmp_path: Path, faulty_disk: Path) -> None:
    """After a sync that failed nothing more is accepted, and the log is left to the next opening."""
    code = (
        "import sys; from multiqueue.store import *\n"
        "store = SqliteStore(sys.argv[1], reserve_bytes=0)\n"
        "errors = []\n"
        "for n in range(100):\n"
        "    try: store.submit([Put(1, b'', b'x')]).wait()\n"
        "    except StoreFailed as error: errors.append(error)\n"
        "store.close(); print(len(errors))\n"
    )
    command = ["env", f"LD_PRELOAD={faulty_disk}", "FAIL_AT=20", worker(tmp_path, 0, 0)[0], "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    failed = int(done.stdout)
    assert failed > 50
    assert (tmp_path / "messages.sqlite-wal").stat().st_size > 0
    with SqliteStore(tmp_path, reserve_bytes=0) as store:
        assert len(ids(store, 1)) >= 100 - failed


# A full disk


def fill(store: SqliteStore, size: int = 1000) -> list[int]:
    """Publish until the store is full for a hundred in a row; the ids that were committed."""
    given: list[int] = []
    refused = 0
    while refused < 100:
        message = put(1, b"x" * size)
        try:
            store.submit([message]).wait()
        except StoreFull:
            refused += 1
        else:
            refused = 0
            given.append(message.id)
    return given


def take_all(file: Path) -> None:
    """Fill the disk with another file."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while opened.write(bytes(4096)):
            pass


def small_store(directory: Path) -> SqliteStore:
    return SqliteStore(directory, log_bytes=1 << 18, reserve_bytes=3 << 18)


@pytest.mark.slow(selected=True)
def test_a_full_disk(small_disk: Path) -> None:
    """On a full disk messages are refused with a reason, all can be acknowledged, and then there is room again.

    (store 8)
    """
    with small_store(small_disk / "store") as store:
        given = fill(store)
        assert len(given) > 200
        with pytest.raises(StoreFull, match=r"the disk under .* is full; messages can still be consumed"):
            stored(store, put(1, b"x" * 1000))
        assert ids(store, 1) == given
        for one in given:
            store.submit([Delete([one])]).wait()
        assert ids(store, 1) == []
        again = fill(store)
        assert len(again) > 0.7 * len(given)
    with small_store(small_disk / "store") as store:
        assert store.redeliver_floor == 0
        assert ids(store, 1) == again
        commits = [store.submit([Delete(again[place : place + 50])]) for place in range(0, len(again), 50)]
        assert all(commit.wait(60) for commit in commits)
        assert len(fill(store)) > 0.7 * len(given)


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_a_small_disk_holds_messages_with_the_settings_of_any_other(small_disk: Path) -> None:
    """On a disk of 16 MiB log and reserve are small by themselves: half of it is messages, and all can be removed."""
    with SqliteStore(small_disk / "store") as store:
        given = fill(store, 10_000)
        assert len(given) * 10_000 > 8 << 20
        for one in given:
            store.submit([Delete([one])])
        store.submit([]).wait()
        assert ids(store, 1) == []
        assert len(fill(store, 10_000)) > 0.7 * len(given)


def test_a_disk_that_others_fill(small_disk: Path) -> None:
    """When other files take the disk, publishing stops and goes on with the space, without anybody's help."""
    with small_store(small_disk / "store") as store:
        given = stored(store, *(put(1, b"x" * 1000) for _ in range(100)))
        other = small_disk / "other"
        take_all(other)
        more = fill(store)
        store.submit([Delete(given)]).wait()
        other.unlink()
        again = fill(store)
        assert len(again) > 100
        assert ids(store, 1) == more + again


def test_a_user_over_his_quota(small_disk: Path, faulty_disk: Path, tmp_path: Path) -> None:
    """What a user's quota has no room for is refused as on a full disk, and what is there can be removed.

    (store 8)
    """
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; from multiqueue.store import *\n"
        "from test_store_faults import fill, small_store; from pathlib import Path\n"
        "with small_store(Path(sys.argv[1])) as store:\n"
        "    given = fill(store)\n"
        "    for one in given: store.submit([Delete([one])]).wait()\n"
        "    print(len(given), len(fill(store)))"
    )
    here = Path(__file__).parent
    command = ["env", f"LD_PRELOAD={faulty_disk}", "QUOTA=1", worker(tmp_path, 0, 0)[0], "-c", code]
    command += [str(small_disk / "store"), str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, again = map(int, done.stdout.split())
    assert again > 0.7 * first > 100


def test_a_full_disk_at_a_kill(small_disk: Path, tmp_path: Path) -> None:
    """A store that was killed on a full disk opens again: it gives up its reserve for that."""
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]; from multiqueue.store import *\n"
        "from test_store_faults import fill, small_store; from pathlib import Path\n"
        "store = small_store(Path(sys.argv[1])); fill(store); os.write(1, b'%d' % store.statistics().messages)\n"
        "os.kill(os.getpid(), 9)"
    )
    here = Path(__file__).parent
    command = [worker(tmp_path, 0, 0)[0], "-c", code, str(small_disk / "store"), str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    with small_store(small_disk / "store") as store:
        given = ids(store, 1)
        assert len(given) == int(done.stdout)
        store.submit([Delete(given[:50])]).wait()
        assert fill(store)


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("durability", ["sync", "relaxed"])
def test_a_quota(tmp_path: Path, durability: str) -> None:
    """At the quota messages are refused alone, acknowledgements go on, and as much fits again afterwards."""
    quota = 2 << 20
    with SqliteStore(tmp_path, durability=durability, quota_bytes=quota, reserve_bytes=0) as store:
        given = fill(store)
        assert 0.5 * quota < 1000 * len(given) < quota
        with pytest.raises(StoreFull, match="quota of 2097152 bytes; consume some, or raise quota_bytes"):
            stored(store, put(1, b"x" * 1000))
        store.submit([Delete(given)]).wait()
        assert len(fill(store)) > 0.9 * len(given)
    assert (tmp_path / "messages.sqlite").stat().st_size <= quota
    with SqliteStore(tmp_path, quota_bytes=2 * quota, reserve_bytes=0) as store:
        assert len(fill(store)) > 0.7 * len(given)


def test_at_the_quota_each_is_judged_alone(tmp_path: Path) -> None:
    """In one batch on a full store: the removal goes through, a message too large is refused, a small one is stored.

    (store 8)
    """
    with SqliteStore(tmp_path, quota_bytes=2 << 20, reserve_bytes=0) as store:
        given = fill(store)
        small = put(1, b"small")
        store._commits.hold()
        large = store.submit([put(1, b"x" * (1 << 20))])
        removal = store.submit([Delete(given[:10])])
        fits = store.submit([small])
        store._commits.release()
        assert removal.wait(60)
        assert fits.wait(60)
        with pytest.raises(StoreFull):
            large.wait(60)
        assert ids(store, 1) == [*given[10:], small.id]


def test_the_space_of_what_was_removed_is_found(tmp_path: Path) -> None:
    """Publishing and consuming for long in a small quota never meets it."""
    with SqliteStore(tmp_path, durability="relaxed", quota_bytes=2 << 20, reserve_bytes=0) as store:
        for _ in range(100):
            given = stored(store, *(put(1, b"x" * 1000) for _ in range(200)))
            store.submit([Delete(given)]).wait()
        assert store.statistics().commits == 200


def test_a_directory_that_is_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose directory was moved closes, or says that its disk failed; none of its threads raises."""
    strange: list[object] = []
    monkeypatch.setattr(threading, "excepthook", strange.append)
    store = SqliteStore(tmp_path / "store")
    store.submit([Put(1, b"", b"body")]).wait()
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "store").write_text("a file where the directory was")
    with contextlib.suppress(StoreFailed):
        store.close()
    assert strange == []
    with SqliteStore(tmp_path / "moved") as again:
        assert again.statistics().messages == 1
