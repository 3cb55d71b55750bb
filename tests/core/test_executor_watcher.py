"""An executor tells its watcher of each job, in the thread that brings it about."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from multiqueue import MultiQueueExecutor
from multiqueue.core import Job


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Hashable, str, str]] = []

    def submitted(self, lane: Hashable, job: Job[Any]) -> None:
        self.notes.append(("submitted", lane, job.name, threading.current_thread().name))

    def began(self, lane: Hashable, job: Job[Any]) -> None:
        assert not job.future.done()
        self.notes.append(("began", lane, job.name, threading.current_thread().name))


def paint(colour: str) -> str:
    return colour


def test_a_watcher_hears_of_each_job_that_is_submitted_and_begun() -> None:
    """The submitter's thread says submitted, the worker's says began; a cancelled job begins not. (executor 13)"""
    heard = Heard()
    with MultiQueueExecutor(1, thread_name_prefix="worker") as executor:
        executor.watch(heard)
        lane = executor.lane("blue")
        lane.pause()
        first, second = lane.submit(paint, "navy"), lane.submit(paint, "sky")
        assert second.cancel()
        lane.resume()
        assert first.result() == "navy"
    me = threading.current_thread().name
    assert heard.notes == [
        ("submitted", "blue", "paint", me),
        ("submitted", "blue", "paint", me),
        ("began", "blue", "paint", "worker_0"),
    ]


def test_several_watchers_are_told_and_one_may_go() -> None:
    """Each hears of every job until it is taken away. (executor 13)"""
    one, other = Heard(), Heard()
    with MultiQueueExecutor(1) as executor:
        executor.watch(one)
        executor.watch(other)
        executor.submit(paint, "red").result()
        executor.unwatch(one)
        executor.unwatch(one)
        executor.submit(paint, "green").result()
    assert [len(one.notes), len(other.notes)] == [2, 4]


def test_nobody_is_told_once_the_watcher_is_taken_away() -> None:
    """The executor goes on, and refers to the watcher no more. (executor 13)"""
    heard = Heard()
    with MultiQueueExecutor(2) as executor:
        executor.watch(heard)
        executor.submit(paint, "red").result()
        executor.unwatch(heard)
        executor.submit(paint, "green").result()
        assert executor.max_workers == 2
    assert [note for note, *_ in heard.notes].count("began") == 1
