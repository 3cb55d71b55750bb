"""What a power loss leaves: every promise at sync; at relaxed a consistent store that may have lost the latest."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_fault_support import Promises, run_worker, worker
from store_power_support import Event, losses, read_recording

from multiqueue.store import SqliteStore, StoreError


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: thousands of states are written there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def _started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens a store after a power loss is on a machine that was started since."""
    monkeypatch.setattr("multiqueue.store._confirmed._start_of_machine", lambda: b"tomorrow")


def record(faulty_disk: Path, top: Path, durability: str, runs: int, messages: int) -> list[Event]:
    """What some runs of a worker on one store did, one after the other: killed, closed, killed, ..."""
    directory, recording = top / "store", top / "recording"
    directory.mkdir()
    for run in range(runs):
        command = worker(
            directory,
            run + 1,
            messages if run % 2 else 10**9,
            durability=durability,
            **recorded(faulty_disk, directory, recording),
        )
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                assert not line.startswith(b"end"), line
                if run % 2 == 0 and number == 4 * messages:
                    process.kill()
    return read_recording(recording, directory)


def recorded(faulty_disk: Path, directory: Path, recording: Path) -> dict[str, str]:
    """The environment of a process whose writes are recorded."""
    return {"LD_PRELOAD": str(faulty_disk), "RECORD_TO": str(recording), "RECORD_DIR": str(directory)}


def promises_until(events: list[Event]) -> Iterator[Promises]:
    """The promises that had been told after none, one, two, ... of the events."""
    promises = Promises()
    yield promises
    for event in events:
        if event.kind == "m":
            for line in event.data.decode().splitlines():
                promises.hear(line)
        yield promises


def outcome(state: dict[str, bytes], promises: Promises, directory: Path) -> str:
    """What a store opened on that state is: "kept", "broken: ..." a promise, or "damaged: ..."."""
    directory.mkdir()
    for name, content in state.items():
        (directory / name).write_bytes(content)
    try:
        with SqliteStore(directory, reserve_bytes=0) as store:
            headers = {header.id: int(header.properties) for header in store.page(1, 0, 10**6)}
            bodies = store.read(headers)
            if store.page(2, 0, 1):
                return "broken: transient"
    except StoreError as error:
        return f"damaged: {error}"
    with sqlite3.connect(directory / "messages.sqlite") as connection:
        (said,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    if said != "ok" or bodies.keys() != headers.keys():
        return f"damaged: {said}"
    if promises.there.items() - headers.items():
        return "broken: lost"
    if promises.gone & headers.keys():
        return "broken: back"
    if headers.items() - promises.there.items() - promises.maybe.items():
        return "broken: strange"
    return "kept"


def outcomes(events: list[Event], quick: Path, count: int) -> Counter[str]:
    """What becomes of the store in so many power losses."""
    found: Counter[str] = Counter()
    heard = enumerate(promises_until(events))
    at, promises = next(heard)
    for number, (moment, state) in enumerate(losses(events, seed=1, count=count)):
        while at < moment:
            at, promises = next(heard)
        directory = quick / str(number)
        result = outcome(state, promises, directory)
        found[result] += 1
        shutil.rmtree(directory)
    return found


def check_sync(faulty_disk: Path, top: Path, quick: Path, count: int) -> None:
    events = record(faulty_disk, top, "sync", runs=4, messages=60)
    assert {event.kind for event in events} >= set("cwsmn")
    assert outcomes(events, quick, count) == {"kept": count}


@pytest.mark.slow(selected=True)
def test_at_sync_nothing_is_lost(faulty_disk: Path, tmp_path: Path, quick: Path) -> None:
    """At sync, whatever of the unsynced sectors is there: nothing confirmed is lost, nothing removed comes back."""
    check_sync(faulty_disk, tmp_path, quick, 400)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_at_sync_nothing_is_lost_ten_thousand_times(faulty_disk: Path, tmp_path: Path, quick: Path) -> None:
    """The same for ten thousand states of the disk."""
    check_sync(faulty_disk, tmp_path, quick, 10_000)


@pytest.mark.slow(selected=True)
def test_at_relaxed_the_latest_may_be_lost(faulty_disk: Path, tmp_path: Path, quick: Path) -> None:
    """At relaxed the same losses leave a consistent store, and do lose what was confirmed: so this test can see it."""
    found = outcomes(record(faulty_disk, tmp_path, "relaxed", runs=4, messages=60), quick, 400)
    assert {result.partition(":")[0] for result in found} == {"kept", "broken"}
    assert found["broken: lost"] > 0


@pytest.mark.slow(selected=True)
def test_a_failed_sync_then_a_power_loss(faulty_disk: Path, tmp_path: Path, quick: Path) -> None:
    """What a failed sync left in the page cache alone is never built on: opened again, the store promises anew."""
    found: Counter[str] = Counter()
    for at in range(12, 32, 2):
        top = tmp_path / str(at)
        top.mkdir()
        directory, recording = top / "store", top / "recording"
        environment = recorded(faulty_disk, directory, recording)
        run_worker(Promises(), worker(directory, 1, 60, FAIL_AT=str(at), **environment))
        run_worker(Promises(), worker(directory, 2, 20, **environment))
        events = read_recording(recording, directory)
        assert "f" in {event.kind for event in events}
        found += outcomes(events, quick, 50)
    assert found == {"kept": 500}
