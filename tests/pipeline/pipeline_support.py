"""A pipeline without Spark: a dispatcher that a test drives by hand, a clock that it moves, and work on plain files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pipeline_cluster_support import common_session
from pipeline_parts_support import (
    Attempt,
    Clocks,
    Follow,
    Lane,
    Ledger,
    Mailbox,
    Message,
    Numbered,
    Output,
    Publisher,
    Step,
    assemble,
)

from multiqueue.pipeline import AttemptEnded, Item, PipelineConfig, Silent, Snapshot, Unprepared, parse_config
from multiqueue.testing import FakeClock


def do_without(missing: str) -> NoReturn:
    """As in tests/conftest.py, which cannot be imported beside others of its name; also for a whole module."""
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {missing}", pytrace=False)
    pytest.skip(missing, allow_module_level=True)


def no_spark() -> NoReturn:
    """The session of a run that is not to start one."""
    raise Unprepared("there is work to do")


class HandLane:
    """A lane whose items wait until the test lets one run."""

    def __init__(self, dispatcher: HandDispatcher, key: str, capacity: int | None) -> None:
        self.dispatcher = dispatcher
        self.key = key
        self.capacity = capacity
        self.queued: list[tuple[Future[Any], Attempt]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert isinstance(fn, Attempt)
        assert not args
        assert not kwargs
        assert self.capacity is None or len(self.queued) < self.capacity, "the real lane would block the runner here"
        future: Future[Any] = Future()
        self.queued.append((future, fn))
        self.dispatcher.submitted.append(fn.item)
        return future

    def clear(self) -> int:
        cleared, self.queued = self.queued, []
        for future, _ in cleared:
            future.cancel()
            future.set_running_or_notify_cancel()
        return len(cleared)


class HandDispatcher:
    """Runs one item at a time, lanes in turn, in the thread that calls `run_next`."""

    def __init__(self) -> None:
        self.lanes: dict[str, HandLane] = {}
        self.submitted: list[Item] = []
        self.cancels = 0
        self._turn = 0

    def lane(self, key: str, priority: int = 0, capacity: int | None = None, **settings: Any) -> HandLane:
        return self.lanes.setdefault(key, HandLane(self, key, capacity))

    def cancel_running(self) -> int:
        self.cancels += 1
        return 0

    def run_next(self) -> bool:
        """Whether there was an item to run; it is over now."""
        busy = [lane for lane in self.lanes.values() if lane.queued]
        if not busy:
            return False
        self._turn += 1
        future, fn = busy[self._turn % len(busy)].queued.pop(0)
        future.set_running_or_notify_cancel()
        try:
            result = fn(None)
        except Exception as error:  # noqa: BLE001 - the item's own: it belongs to its future
            future.set_exception(error)
        else:
            future.set_result(result)
        return True


class PoolDispatcher:
    """Runs what is submitted, four at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(4)

    def lane(self, key: str, priority: int = 0, capacity: int | None = None, **settings: Any) -> PoolDispatcher:
        return self

    def submit(self, fn: Any) -> Future[Any]:
        return self._pool.submit(fn, None)

    def clear(self) -> int:
        return 0

    def cancel_running(self) -> int:
        return 0


class DrivenMailbox(Mailbox):
    """A mailbox that, instead of waiting, lets an item run or the time pass."""

    def __init__(self, idle: Callable[[float], None]) -> None:
        super().__init__()
        self._idle = idle

    def take_all(self, timeout: float) -> list[Message]:
        messages = super().take_all(0)
        if not messages and timeout > 0:
            self._idle(timeout)
            messages = super().take_all(0)
        return messages


class Recorder(Silent):
    """Keeps what the runner reports."""

    def __init__(self) -> None:
        self.attempts: list[AttemptEnded] = []
        self.notes: list[str] = []
        self.snapshots: list[Snapshot] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def update(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def attempt_ended(self, ended: AttemptEnded) -> None:
        self.attempts.append(ended)


def write_names(spark: Any, item: Item, staged: Path) -> bool:
    """Work that writes the contents of the item's files, so that a test can count what is in the output."""
    staged.mkdir()
    if item.part is not None:
        rows = [f"{item.lane} {item.part}".strip()]
    else:
        rows = [path.read_text() for path in item.paths] + [message.body.decode() for message in item.messages]
    (staged / "part-0.json").write_text(json.dumps(rows))
    return True


def rows_in(output: Path, below: str = "data") -> list[str]:
    """Everything a reader finds in the output of the lanes, or below `steps`, sorted."""
    parts = (output / below).rglob("item=*/part-0.json")
    return sorted(row for part in parts for row in json.loads(part.read_text()))


def make_tree(base: Path, lanes: dict[str, int]) -> None:
    """`lanes[name]` files in a directory per lane, each with a content of its own."""
    for name, count in lanes.items():
        (base / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (base / name / f"{i:04}.txt").write_text(f"{name}-{i}")


def contents(lanes: dict[str, int]) -> list[str]:
    """What the output of `make_tree` comes to."""
    return sorted(f"{name}-{i}" for name, count in lanes.items() for i in range(count))


def lane_of(base: Path, name: str, **settings: Any) -> Lane:
    return Lane(**{"name": name, "root": base, "globs": (f"{name}/*.txt",), **settings})


class Pipeline:
    """One run over a directory, without Spark. Make another one on the same directory to resume."""

    def __init__(
        self,
        base: Path,
        lanes: Sequence[Lane],
        *,
        work: Callable[[Any, Item, Path], bool] = write_names,
        attempts: int = 3,
        publisher: Callable[[Path], Output] = Publisher,
        ledger: Callable[[Path, Path], Ledger] = Ledger,
        on_idle: Callable[[Pipeline], None] | None = None,
        steps: Sequence[Step] = (),
        follow: Callable[[Pipeline], Follow] | None = None,
        connect: Callable[[str], Any] | None = None,
        wall: Callable[[], float] | None = None,
        sync: Callable[[], None] = lambda: None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.output = base / "out"
        self.time = FakeClock()
        self.dispatcher = HandDispatcher()
        self.reporter = Recorder()
        self.on_idle = on_idle
        self.ledger = ledger(self.output / "_multiqueue" / "state.sqlite", base)
        if wall is not None:
            self.ledger._wall = wall
        self.publisher = publisher(self.output)
        try:
            self.publisher.prepare(self.ledger)
            self.recovered = self.ledger.recover(self.publisher.is_published)
        except BaseException:
            self.ledger.close()
            raise
        self.mailbox = DrivenMailbox(self._idle)
        self.connect = connect
        self.runner, self.committer = assemble(
            self._config(base, attempts, settings or {}),
            self.ledger,
            lambda: self.dispatcher,
            lanes=lanes,
            steps=steps,
            output=self.publisher,
            work=work,
            mailbox=self.mailbox,
            reporter=self.reporter,
            tell=self._tell,
            follow=follow(self) if follow else None,
            clocks=Clocks(self.time, wall or time.time, sync),
        )
        self.scanner, self.queues = self.runner.intake.scanner, self.runner.intake.queues
        self.events = self.runner.intake.events
        self.disposal = self.runner.disposal

    def _config(self, base: Path, attempts: int, settings: Mapping[str, Any]) -> PipelineConfig:
        """What a run takes from its configuration besides lanes and steps."""
        return parse_config(
            {
                "lanes": {"any": {"files": "any/*", "format": "text"}},
                "job": {"sql": "SELECT * FROM input"},
                "output": {"path": str(self.output), "dead_letters": "dead"},
                "retry": {"attempts": attempts, "backoff": 1.0, "backoff_factor": 2.0, "backoff_max": 60.0},
                **settings,
            },
            base,
        )

    def _tell(self, message: Message) -> None:
        """As the mailbox takes it; but the runner, in whose thread commits are made, records a number at once."""
        if not isinstance(message, Numbered):
            self.mailbox.post(message)
            return
        with self.ledger.transaction():
            number = self.ledger.number_commit(message.seqs)
        message.recorded.set_result(number)

    def run(self) -> Snapshot:
        """Run to the end and close."""
        try:
            with self.runner.intake.open(self.connect):
                snapshot = self.runner.run()
            self.held_back = self.runner.intake.steps.held_back()
            return snapshot
        finally:
            self.ledger.close()

    def _idle(self, timeout: float) -> None:
        if self.on_idle is not None:
            self.on_idle(self)
        self.runner.check_invariants()
        if self.dispatcher.run_next():
            self.time.advance(0.1)
        elif not self.committer.commit() and not self.disposal.work():
            self.time.advance(timeout)


def spark_for_tests() -> Iterator[Any]:
    """The session of all tests, for a fixture of a module. A shuffle has one partition meanwhile."""
    try:
        from multiqueue.spark import check_environment
    except ImportError as error:
        do_without(str(error))
    if missing := [finding.message for finding in check_environment() if finding.level == "error"]:
        do_without(missing[0])
    session = common_session()
    before = session.conf.get("spark.sql.shuffle.partitions")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    yield session
    session.conf.set("spark.sql.shuffle.partitions", before)
