"""Calls at a time: one thread, which ends when there is nothing to wait for."""

from __future__ import annotations

import logging
import threading
from queue import Queue

import pytest
from spark_parts_support import FEW, Alarms

from multiqueue.testing import PATIENCE, FakeClock, wait_until_blocked


def test_actions_are_called_in_the_order_of_their_times() -> None:
    """Whatever the order in which they are set, actions are called by time, and the threads end after the last."""
    clock, called = FakeClock(), Queue[str]()
    alarms = Alarms("alarms", clock)
    for name, moment in (("third", 3.0), ("first", 1.0), ("second", 2.0)):
        alarms.at(moment, lambda name=name: called.put(name))  # type: ignore[misc]
    for name, moment in (("first", 1.0), ("second", 2.0), ("third", 3.0)):
        clock.advance(1.0)
        alarms.at(moment, lambda: None)  # it looks at the clock
        assert called.get(timeout=PATIENCE) == name
    alarms.join()
    assert called.empty()
    alarms.check_invariants()


def test_an_action_that_blocks_holds_up_no_other() -> None:
    """It has a thread of its own, which is waited for at the end."""
    alarms, gate, called = Alarms("alarms"), threading.Event(), threading.Event()
    alarms.at(0.0, gate.wait)
    alarms.at(1.0, called.set)
    assert called.wait(PATIENCE)
    joining = threading.Thread(target=alarms.join)
    joining.start()
    wait_until_blocked(joining)
    gate.set()
    joining.join(PATIENCE)
    assert not joining.is_alive()
    assert not any(thread.name.startswith("alarms") for thread in threading.enumerate())


def test_an_action_is_called_though_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that waits for its time; it may join the alarms then too."""
    alarms, called = Alarms("alarms"), threading.Event()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "alarms-call":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    alarms.at(0.0, lambda: (alarms.join(), called.set()))
    assert called.wait(PATIENCE)
    alarms.join()


def test_an_alarm_that_is_off_is_not_called() -> None:
    """Turned off before its time, an action is never called, and the thread ends without waiting for it."""
    alarms = Alarms("alarms")
    alarm = alarms.after(3600.0, lambda: pytest.fail("called"))
    assert any(thread.name == "alarms" for thread in threading.enumerate())
    alarm.off()
    alarm.off()
    alarms.join()
    assert not any(thread.name == "alarms" for thread in threading.enumerate())


def test_nothing_is_called_before_its_time() -> None:
    """The time is that of the clock it was made with."""
    clock = FakeClock()
    alarms = Alarms("alarms", clock)
    called = threading.Event()
    later = alarms.after(10.0, called.set)
    clock.advance(9.9)
    now = threading.Event()
    alarms.at(9.9, now.set)
    assert now.wait(PATIENCE)
    assert not called.is_set()
    clock.advance(0.1)
    alarms.at(10.0, now.set)
    assert called.wait(PATIENCE)
    alarms.join()
    assert not later.is_on


def test_an_alarm_after_the_last_starts_again() -> None:
    """A thread that has ended for want of alarms is followed by another."""
    alarms = Alarms("alarms")
    for _ in range(3):
        called = threading.Event()
        alarms.after(0.0, called.set)
        assert called.wait(PATIENCE)
        alarms.join()


def test_an_action_that_fails_is_reported_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of one action is logged; the next alarm is kept."""
    alarms = Alarms("alarms")
    called = threading.Event()
    with caplog.at_level(logging.ERROR, "multiqueue.spark"):
        alarms.at(0.0, lambda: 1 / 0)
        alarms.at(1.0, called.set)
        assert called.wait(PATIENCE)
        alarms.join()
    assert "ZeroDivisionError" in caplog.text


def test_alarms_that_are_off_do_not_pile_up() -> None:
    """A hundred thousand short jobs with an hour's timeout leave as many entries as are under way, and a few."""
    alarms = Alarms("alarms")
    kept = alarms.after(3600.0, lambda: None)
    most = 0
    for _ in range(10 * FEW):
        alarms.after(3600.0, lambda: None).off()
        most = max(most, len(alarms._heap))
        alarms.check_invariants()
    assert most <= 3 + FEW
    kept.off()
    alarms.join()


def test_the_thread_that_waits_lets_itself_be_joined_by_an_action() -> None:
    """An action may join the alarms: it does not wait for itself."""
    alarms = Alarms("alarms")
    joined = threading.Event()

    def join_and_tell() -> None:
        alarms.join()
        joined.set()

    alarms.after(0.0, join_and_tell)
    wait_until_blocked(joined.is_set, PATIENCE)
    alarms.join()
