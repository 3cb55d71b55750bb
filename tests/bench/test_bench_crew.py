"""Threads that race against a clock."""

from __future__ import annotations

import threading

import pytest
from bench_parts_support import Crew, Elapsed, Stuck


def test_all_bodies_run_and_the_clock_runs_with_them() -> None:
    """A race returns when the last body has returned, with the time it took."""
    done: list[int] = []
    elapsed = Crew([lambda: done.append(1), lambda: done.append(2)]).race()
    assert sorted(done) == [1, 2]
    assert elapsed.wall > 0


def test_nothing_starts_before_the_race() -> None:
    """Bodies wait at the gate; a crew that is abandoned never runs them and its threads end."""
    done: list[int] = []
    crew = Crew([lambda: done.append(1)], name="held")
    crew.abandon()
    for thread in threading.enumerate():
        if thread.name == "held-0":
            thread.join()
    assert done == []


def test_a_body_that_raises_ends_the_race_with_its_error() -> None:
    """The caller sees the rival's own exception, not a hang."""

    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        Crew([fail]).race()


def test_bodies_that_never_return_end_the_race_as_stuck() -> None:
    """A lost wake-up is reported with the names of the threads that hang, after the time limit."""
    release = threading.Event()
    crew = Crew([release.wait, lambda: None], name="crew")
    try:
        with pytest.raises(Stuck, match=r"1 of 2 threads did not finish within 0 s: crew-0"):
            crew.race(time_limit=0.05)
    finally:
        release.set()
        for thread in threading.enumerate():
            if thread.name == "crew-0":
                thread.join()


def test_rates_are_items_per_second_of_each_clock() -> None:
    """A hundred items in two seconds, four of CPU, are 50 and 25; a clock that stood still is no error."""
    assert dict(Elapsed(2.0, 4.0).rates(100)) == {"rate": 50.0, "cpu_rate": 25.0}
    assert Elapsed(0.0, 0.0).rates(1)["rate"] > 0
