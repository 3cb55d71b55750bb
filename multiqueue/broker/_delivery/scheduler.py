"""The scheduler: threads that run callback subscriptions in turn.

A wake-up goes queue -> consumer -> target -> subscription -> scheduler -> thread. Each link remembers that there is
work and tells the next one; the thread walks back down the chain and pulls.

Promise     No subscription is ever run by two threads, so its callbacks never overlap. Those that have work take turns:
            round robin.
State       A multi-queue knows which subscriptions have work: a sub-queue for each with room for one token and one
            token in flight.
Waiting     Threads block on the multi-queue. A token leaves its sub-queue before the subscription runs, so a
            notification that comes meanwhile puts another one there, which waits until the running turn is over.
Source      "Consumer-Queue Interactions"; NetworkConnectionScheduler of Broker-J.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Protocol

from multiqueue.core import LinkedBlockingMultiQueue
from multiqueue.errors import ShutDown

_log = logging.getLogger("multiqueue.broker")


class Scheduled(Hashable, Protocol):
    """A task of a scheduler: see `CallbackSubscription`."""

    name: str

    def run_turn(self) -> bool:
        """Do some of the work; True when there may be more. One thread at a time."""


class Scheduler:
    """A few threads for the callbacks of many subscriptions.

        with Scheduler() as scheduler:
            host = VirtualHost(scheduler=scheduler)

    Raises:
        ValueError: fewer than one thread.
    """

    def __init__(self, threads: int = 2, *, name: str = "multiqueue-broker") -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; a scheduler needs at least 1")
        self._name = name
        self._work: LinkedBlockingMultiQueue[Scheduled] = LinkedBlockingMultiQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, scheduled: Scheduled) -> None:
        """Run this from now on, whenever it is `ready`.

        Raises:
            ShutDown: the scheduler is closed.
        """
        if self._work.is_shutdown:
            raise ShutDown(f"scheduler {self._name!r} is closed")
        self._work.add_subqueue(scheduled, capacity=1, max_in_flight=1)

    def ready(self, scheduled: Scheduled) -> None:
        """Give it a turn. A token that waits already is enough. Any thread, under no lock."""
        try:
            self._work.get_subqueue(scheduled).offer(scheduled)
        except (KeyError, ShutDown):
            pass  # removed or closed meanwhile

    def remove(self, scheduled: Scheduled) -> None:
        """Give it no more turns; harmless when it has none."""
        with suppress(KeyError):
            self._work.remove_subqueue(scheduled)

    def close(self, timeout: float | None = None) -> None:
        """End the threads and join them, up to `timeout` seconds each. Subscriptions are not closed by this."""
        self._work.shutdown(immediate=True)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            try:
                taken = self._work.take()
            except ShutDown:
                return
            scheduled, has_more = taken.item, True
            try:
                has_more = scheduled.run_turn()
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the thread
                extra = {"connection": scheduled.name}
                _log.error("a turn of subscription %r failed", scheduled.name, exc_info=error, extra=extra)
            finally:
                if has_more:
                    self.ready(scheduled)
                taken.subqueue.task_done()
