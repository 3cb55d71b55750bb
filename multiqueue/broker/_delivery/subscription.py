"""Subscriptions: consuming from one or several queues, by blocking, or by callback on the threads of a scheduler.

A wake-up goes queue -> consumer -> target -> subscription -> scheduler -> thread. Each link remembers that there is
work and tells the next one; the thread walks back down the chain and pulls.

Promise     No subscription is ever run by two threads, so its callbacks never overlap; they run under no lock. Those
            that have work take turns: round robin. What a subscription has not settled when it is closed goes back to
            its place, flagged as redelivered.
State       A multi-queue knows which subscriptions have work: a sub-queue for each with room for one token and one
            token in flight. `CallbackSubscription._lock`, a leaf, guards `_closing`, and that `_idle` is clear while a
            callback runs.
Waiting     Threads block on the multi-queue. A token leaves its sub-queue before the subscription runs, so a
            notification that comes meanwhile puts another one there, which waits until the running turn is over.
            `close` first suspends, so that nothing further is delivered, then waits for the callback that runs: it can
            settle its messages. A delivery that is on its way meets `_closing` and goes back instead. A callback waits
            for no callback: two that close each other's subscriptions would wait for ever.
Source      "Consumer-Queue Interactions"; NetworkConnectionScheduler of Broker-J.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, ParamSpec, Self

from multiqueue.core import LinkedBlockingMultiQueue
from multiqueue.errors import ShutDown

from ..._kinds import check_function, check_kind
from ..._locks import Lock
from .._base.credit import Credit
from .._queue.consumer import QueueConsumer
from .received import Received
from .target import ConsumerTarget

_TURN: Final = 32  # deliveries before the next subscription has its turn; the hand-over costs about two of them
_log = logging.getLogger("multiqueue.broker")

P = ParamSpec("P")
MessageCallback = Callable[[Received], object]
FailureHandler = Callable[[Received, Exception], object]

_calling = threading.local()


def runs_callback() -> bool:
    """True on a thread that is running a callback of the user's: it must not wait for other callbacks."""
    return getattr(_calling, "depth", 0) > 0


def call_back(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a callback of the user's, under no lock, on a thread that then knows it."""
    _calling.depth = getattr(_calling, "depth", 0) + 1
    try:
        callback(*args, **kwargs)
    finally:
        _calling.depth -= 1


def _log_error(received: Received, error: Exception) -> None:
    _log.error("callback failed for %r", received.entry, exc_info=error, extra={"queue": received.queue})


class Subscription:
    """A consumer of queues, until you close it or its queues are deleted. Any thread may call any method."""

    def __init__(self, target: ConsumerTarget, on_closed: Callable[[Subscription], None]) -> None:
        self.target: ConsumerTarget = target
        self._on_closed = on_closed
        self._has_all = False  # until then it stays, though all queues that it has may go

    @property
    def queues(self) -> list[str]:
        """The names of the queues it consumes from."""
        return [consumer.queue.name for consumer in self.target.consumers()]

    @property
    def is_closed(self) -> bool:
        """True once `close` was called, or the last of its queues is gone, or cannot be read."""
        return self.target.is_closed

    def suspend(self) -> None:
        """Receive nothing until `resume`; other consumers get the messages."""
        self.target.suspend()

    def resume(self) -> None:
        """End a suspension."""
        self.target.resume()

    def unsettled(self) -> list[Received]:
        """The messages that were received and not settled, in order."""
        return self.target.unsettled()

    def close(self, timeout: float | None = None) -> None:
        """Receive nothing further, and give back unsettled messages. Closing twice does nothing.

        A callback that runs is waited for, `timeout` seconds at most. Later settlements are refused: somebody
        else may have it by then.
        """
        self._end()

    def has_all_queues(self) -> None:
        """It consumes from all that it was asked to; it ends here if they have gone meanwhile."""
        self._has_all = True
        self.queue_deleted()

    def queue_deleted(self, consumer: QueueConsumer | None = None) -> None:
        """One of its queues may be deleted, or unreadable. Called on any thread, under no lock; does not block."""
        if self._has_all and not self.target.consumers():
            self._end()

    def _end(self) -> None:
        self.target.close()
        self._on_closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class PullSubscription(Subscription):
    """A subscription that a thread blocks on, all its queues at once."""

    def __init__(self, *, credit: Credit, name: str, on_closed: Callable[[Subscription], None]) -> None:
        super().__init__(ConsumerTarget(name, credit=credit), on_closed)

    def get(self, timeout: float | None = None) -> Received:
        """The next message of any of its queues, in turn; blocks until there is one.

        Raises:
            Empty: `timeout` seconds passed first.
            ShutDown: it was closed, or its last queue deleted, or cannot be read: the log has why.
        """
        return self.target.get(timeout)

    def get_many(self, most: int, timeout: float | None = None) -> list[Received]:
        """The next messages of one of its queues: those that are ready, up to `most`; blocks until there is one.

        `prefetch` bounds them, and so do 512 messages and 1 MiB of bodies. With a selector there is one.

        Raises:
            ValueError: `most` is less than 1.
            Empty, ShutDown: as `get`.
        """
        return self.target.get_many(most, timeout)

    def accept(self, *received: Received) -> None:
        """Done with these messages of this subscription: those of one queue leave it in one step.

        When all of their queues were deleted, this is no error, and nothing is left to do.

        Raises:
            ValueError: one of them was settled before, or is not of this subscription; then none was settled.
        """
        try:
            self.target.accept(*received)
        except ValueError:
            if not all(each.entry.queue.is_deleted for each in received):
                raise

    def __iter__(self) -> Iterator[Received]:
        """The messages as they come; ends when the subscription does."""
        while True:
            try:
                received = self.get()
            except ShutDown:
                return
            yield received


class CallbackSubscription(Subscription):
    """A subscription whose messages go to a callback, on a thread of the scheduler. Raises as `Scheduler.add`."""

    def __init__(
        self,
        scheduler: Scheduler,
        callback: MessageCallback,
        *,
        credit: Credit,
        name: str,
        on_error: FailureHandler | None,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        self._callback, self._on_error = callback, _log_error if on_error is None else on_error
        check_function("callback", self._callback)
        check_function("on_error", self._on_error)
        self.name = name
        self._scheduler = scheduler
        self._lock = Lock()
        self._closing = False
        self._idle = threading.Event()
        self._idle.set()
        scheduler.add(self)
        super().__init__(ConsumerTarget(name, credit=credit, on_ready=lambda _: scheduler.ready(self)), on_closed)

    def close(self, timeout: float | None = None) -> None:
        self.target.suspend()
        with self._lock:
            self._closing = True
        if not runs_callback():
            self._idle.wait(timeout)
        super().close()

    def run_turn(self) -> bool:
        """Deliver up to 32 messages; True when there may be more. One thread at a time."""
        for _ in range(_TURN):
            received = self.target.pull()
            if received is None:
                return False
            self._deliver(received)
        return True

    def _end(self) -> None:
        super()._end()
        self._scheduler.remove(self)

    def _deliver(self, received: Received) -> None:
        with self._lock:
            if self._closing or self.is_closed:
                return  # unsettled, it goes back with the rest
            self._idle.clear()
        try:
            call_back(self._callback, received)
        except Exception as error:  # noqa: BLE001  # goes to the handler
            call_back(self._on_error, received, error)
        finally:
            self._idle.set()


class Scheduler:
    """A few threads for the callbacks of many subscriptions.

        with Scheduler() as scheduler:
            host = VirtualHost(scheduler=scheduler)

    Raises:
        ValueError: fewer than one thread.
    """

    def __init__(self, threads: int = 2, *, name: str = "multiqueue-broker") -> None:
        check_kind("threads", threads, int, "a whole number")
        if threads < 1:
            raise ValueError(f"threads is {threads}; a scheduler needs at least 1")
        self._name = name
        self._work: LinkedBlockingMultiQueue[CallbackSubscription] = LinkedBlockingMultiQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, subscription: CallbackSubscription) -> None:
        """Run this from now on, whenever it is `ready`. Raises ShutDown: the scheduler is closed."""
        if self._work.is_shutdown:
            raise ShutDown(f"scheduler {self._name!r} is closed")
        self._work.add_subqueue(subscription, capacity=1, max_in_flight=1)

    def ready(self, subscription: CallbackSubscription) -> None:
        """Give it a turn. A token that waits already is enough. Any thread, under no lock."""
        try:
            self._work.get_subqueue(subscription).offer(subscription)
        except (KeyError, ShutDown):
            pass  # removed or closed meanwhile

    def remove(self, subscription: CallbackSubscription) -> None:
        """Give it no more turns; does nothing if it has none."""
        with suppress(KeyError):
            self._work.remove_subqueue(subscription)

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
            subscription, has_more = taken.item, True
            try:
                has_more = subscription.run_turn()
            except BaseException as error:  # noqa: BLE001  # nor may `sys.exit` in a callback end the thread
                extra = {"connection": subscription.name}
                _log.error("a turn of subscription %r failed", subscription.name, exc_info=error, extra=extra)
            finally:
                if has_more:
                    self.ready(subscription)
                taken.subqueue.task_done()
