"""How long small lanes wait behind a lane of very many files, by a fake clock and the dispatcher's own order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Attempt, Follow, StopRequested
from pipeline_support import HandDispatcher, HandLane, Pipeline, lane_of

from multiqueue.core import LinkedBlockingMultiQueue, SubQueue
from multiqueue.pipeline import Item

FILES = 20_000
TARGET_S = 10.0
SMALL = [f"small{number}" for number in range(9)]
SLOTS = 8  # `max_running` by default


class _TimedLane(HandLane):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert isinstance(self.dispatcher, TimedDispatcher)
        future: Future[Any] = Future()
        self.dispatcher.children[self.key].put((future, fn))
        return future


class TimedDispatcher(HandDispatcher):
    """Runs `SLOTS` items at a time; lanes take turns as in the real one, and a job takes time by its files."""

    def __init__(self, clock: Any) -> None:
        super().__init__()
        self.clock = clock
        self.waiting: LinkedBlockingMultiQueue[tuple[Future[Any], Attempt]] = LinkedBlockingMultiQueue()
        self.children: dict[str, SubQueue[tuple[Future[Any], Attempt]]] = {}
        self.running: list[tuple[float, int, Future[Any], Any]] = []

    def lane(self, key: str, priority: int = 0, capacity: int | None = None, **settings: Any) -> HandLane:
        if key not in self.lanes:
            self.children[key] = self.waiting.add_subqueue(key, priority)
            self.lanes[key] = _TimedLane(self, key, capacity)
        return self.lanes[key]

    def run_next(self) -> bool:
        """Begin what there is a slot for; else let the time pass until the next job ends."""
        has_begun = False
        while len(self.running) < SLOTS and not self.waiting.empty():
            future, attempt = self.waiting.get_nowait()
            future.set_running_or_notify_cancel()
            end_s = self.clock() + 1.0 + 0.03 * len(attempt.item.files)
            heapq.heappush(self.running, (end_s, attempt.item.seq, future, attempt(None)))
            has_begun = True
        if not has_begun and self.running:
            end_s, _, future, result = heapq.heappop(self.running)
            self.clock.advance(max(end_s - self.clock(), 0.0))
            future.set_result(result)
        return has_begun or bool(self.running)


class TimedPipeline(Pipeline):
    dispatcher: TimedDispatcher

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.dispatcher = TimedDispatcher(self.time)

    def _idle(self, timeout: float) -> None:
        if self.on_idle is not None:
            self.on_idle(self)
        self.runner.check_invariants()
        if not self.dispatcher.run_next():
            self.time.advance(timeout)


def touch(directory: Path, files: int) -> None:
    directory.mkdir()
    for number in range(files):
        (directory / f"{number:05}.txt").touch()


def nothing(spark: Any, item: Item, staged: Path) -> bool:
    return False


@pytest.mark.parametrize(
    "is_late",
    [
        pytest.param(False, id="from the start", marks=pytest.mark.slow(selected=True)),
        pytest.param(True, id="late", marks=pytest.mark.slow),
    ],
)
def test_small_lanes_behind_a_lane_of_very_many_files(tmp_path: Path, is_late: bool) -> None:
    """A lane of one file beside a lane of 20,000 starts within two job lengths of that lane, whether it is there from
    the start or its file comes when the large lane has every slot. (pipeline 23)"""
    touch(tmp_path / "large", FILES)
    lanes = [lane_of(tmp_path, name, target_s=TARGET_S, batch=64) for name in ("large", *SMALL)]

    def bring_small_files() -> None:
        for name in SMALL:
            touch(tmp_path / name, 1)

    def drive(run: Pipeline) -> None:
        has_come = (tmp_path / SMALL[-1]).exists()
        if not has_come and len(run.dispatcher.running) == SLOTS:
            bring_small_files()
        elif has_come and run.runner._tally.lanes["large"].waiting == 0 and not run.dispatcher.running:
            run.mailbox.post(StopRequested())

    if is_late:
        run = TimedPipeline(
            tmp_path, lanes, work=nothing, on_idle=drive, follow=lambda run: Follow(5.0, 0.0, lambda: lanes, run.time)
        )
    else:
        bring_small_files()
        run = TimedPipeline(tmp_path, lanes, work=nothing)
    run.runner.run()
    with closing(run.ledger):
        rows = run.ledger._connection.execute("SELECT lane, started_s - known_s, ended_s - started_s FROM items")
        items = list(rows)
    waits = [wait_s for lane, wait_s, _ in items if lane != "large"]
    longest_s = max(took_s for lane, _, took_s in items if lane == "large")
    assert len(waits) == len(SMALL)
    assert max(waits) <= 2 * longest_s
    assert longest_s <= 4 * TARGET_S  # the first ones are guessed
    assert max(wait_s for lane, wait_s, _ in items if lane == "large") > 2 * longest_s, "in one queue they had waited"
