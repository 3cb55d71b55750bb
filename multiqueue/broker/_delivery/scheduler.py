"""The scheduler: threads that carry deliveries from consumer targets to callbacks.

A wake-up goes queue -> consumer -> target -> session -> connection -> scheduler -> thread. Each link remembers that
there is work and tells the next one; the thread walks back down the chain and pulls.

Promise     No connection is ever run by two threads, so callbacks of one connection never overlap. Per turn a
            connection delivers at most 32 messages, one per session, and a session one per target: round robin.
State       A `Ring` guards its order by a small lock, a leaf. Which connections have work is in a multi-queue: a
            sub-queue per connection with room for one token and one token in flight.
Waiting     Threads block on the multi-queue. A flag is cleared before the work it stands for: a target leaves the
            ring before it is pulled, a token leaves its sub-queue before the connection runs. So what comes
            meanwhile sets the flag again and is not lost; the token then waits until the running turn is over.
Source      "Consumer-Queue Interactions"; NetworkConnectionScheduler of Broker-J.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from multiqueue.core import LinkedBlockingMultiQueue
from multiqueue.errors import ShutDown

from .._base.credit import Credit
from .received import Delivery
from .target import ConsumerTarget

Link = TypeVar("Link")
DeliveryCallback = Callable[[Delivery], object]
CallbackErrorHandler = Callable[[Delivery, Exception], object]

_TURN = 32  # deliveries before the next connection has its turn; the hand-over costs about two of them


class _Turn(threading.local):
    """Whether the present thread is running a connection's turn."""

    is_running = False


_turn = _Turn()
_log = logging.getLogger("multiqueue.broker")


def _log_error(delivery: Delivery, error: Exception) -> None:
    _log.error("callback failed for %r", delivery, exc_info=error, extra={"queue": delivery.entry.queue.name})


class Ring(Generic[Link]):
    """Links that have work, each once, in the order in which they reported it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: OrderedDict[Link, None] = OrderedDict()

    def add(self, link: Link) -> None:
        """Put a link at the end, unless it is in the ring."""
        with self._lock:
            self._links.setdefault(link, None)

    def pop(self) -> Link | None:
        """Take out the first link: its flag is cleared before its work is done."""
        with self._lock:
            return self._links.popitem(last=False)[0] if self._links else None

    def discard(self, link: Link) -> None:
        """Take out a link that is to have no more turns."""
        with self._lock:
            self._links.pop(link, None)

    def __bool__(self) -> bool:
        with self._lock:
            return bool(self._links)


class Session:
    """Consumer targets of a connection that share their turns; made by `Connection.session`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self._ring: Ring[ConsumerTarget] = Ring()
        self._lock = threading.Lock()
        self._callbacks: dict[ConsumerTarget, DeliveryCallback] = {}
        self._closed = False

    def target(self, callback: DeliveryCallback, *, name: str = "", credit: Credit | None = None) -> ConsumerTarget:
        """A new consumer target whose deliveries go to `callback`, on the connection's thread of the moment.

        Raises:
            ShutDown: the session is closed.
        """
        target = ConsumerTarget(name, credit=credit, on_ready=self._target_ready)
        with self._lock:
            if self._closed:
                raise ShutDown(f"session {self.name!r} is closed")
            self._callbacks[target] = callback
        return target

    def close_target(self, target: ConsumerTarget) -> None:
        """Close a target and forget it; what it has not settled goes back."""
        target.close()
        self._ring.discard(target)
        with self._lock:
            self._callbacks.pop(target, None)

    def close(self) -> None:
        """Close all targets, for good. Twice is harmless."""
        with self._lock:
            self._closed = True
            targets = list(self._callbacks)
        for target in targets:
            self.close_target(target)
        self.connection.forget(self)

    def deliver_one(self) -> bool:
        """Deliver one message of the next target that has one; True when there may be more. The connection's thread.

        A consumer that goes on, or is notified from now on, puts its target into the ring. Where a target has several
        consumers, others of them may have been notified before.
        """
        while (target := self._ring.pop()) is not None:
            delivery = target.pull()
            if delivery is not None:
                if target.has_several:
                    self._ring.add(target)
                self._call(target, delivery)
                return bool(self._ring)
        return False

    def _call(self, target: ConsumerTarget, delivery: Delivery) -> None:
        with self._lock:
            callback = self._callbacks.get(target)
        if callback is None:
            return  # closed since; closing gave the delivery back
        try:
            callback(delivery)
        except Exception as error:  # noqa: BLE001  # goes to the handler
            self.connection.on_error(delivery, error)

    def _target_ready(self, target: ConsumerTarget) -> None:
        self._ring.add(target)
        self.connection.session_ready(self)


class Connection:
    """What one thread at a time runs: sessions in turn. Made by `Scheduler.connection`."""

    def __init__(self, scheduler: Scheduler, name: str, on_error: CallbackErrorHandler) -> None:
        self.name = name
        self.on_error = on_error
        self._scheduler = scheduler
        self._ring: Ring[Session] = Ring()
        self._lock = threading.Lock()
        self._sessions: dict[Session, None] = {}
        self._idle = threading.Event()  # set while no thread runs this connection
        self._idle.set()
        self._closed = False

    def session(self, name: str = "") -> Session:
        """A new session.

        Raises:
            ShutDown: the connection is closed.
        """
        session = Session(self, name)
        with self._lock:
            if self._closed:
                raise ShutDown(f"connection {self.name!r} is closed")
            self._sessions[session] = None
        return session

    def session_ready(self, session: Session) -> None:
        """A session has work. Any thread, under no lock."""
        self._ring.add(session)
        self._scheduler.connection_ready(self)

    def forget(self, session: Session) -> None:
        """A session has been closed."""
        self._ring.discard(session)
        with self._lock:
            self._sessions.pop(session, None)

    def run_turn(self) -> bool:
        """Deliver up to 32 messages; True when there may be more. One scheduler thread at a time."""
        _turn.is_running = True
        self._idle.clear()
        try:
            for _ in range(_TURN):
                session = self._ring.pop()
                if session is None or self._closed:
                    return False
                if session.deliver_one():
                    self._ring.add(session)
            return bool(self._ring)
        finally:
            _turn.is_running = False
            self._idle.set()

    def close(self, timeout: float | None = None) -> None:
        """Close the sessions and wait, up to `timeout` seconds, until no callback runs. Twice is harmless.

        Called by a callback, it does not wait: two callbacks that close each other's connections would wait for ever.
        """
        with self._lock:
            self._closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        self._scheduler.forget(self)
        if not _turn.is_running:
            self._idle.wait(timeout)


class Scheduler:
    """A few threads for many connections.

        with Scheduler() as scheduler:
            session = scheduler.connection("orders").session()
            target = session.target(print)
            target.consume(queue, auto_accept=True)

    Raises:
        ValueError: fewer than one thread.
    """

    def __init__(self, threads: int = 2, *, name: str = "multiqueue-broker") -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; a scheduler needs at least 1")
        self._name = name
        self._work: LinkedBlockingMultiQueue[Connection] = LinkedBlockingMultiQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def connection(self, name: str = "", on_error: CallbackErrorHandler = _log_error) -> Connection:
        """A new connection, run by the threads of this scheduler.

        Raises:
            ShutDown: the scheduler is closed.
        """
        if self._work.is_shutdown:
            raise ShutDown(f"scheduler {self._name!r} is closed")
        connection = Connection(self, name, on_error)
        self._work.add_subqueue(connection, capacity=1, max_in_flight=1)
        return connection

    def connection_ready(self, connection: Connection) -> None:
        """Give the connection a turn. A token that waits already is enough."""
        try:
            self._work.get_subqueue(connection).offer(connection)
        except (KeyError, ShutDown):
            pass  # closed meanwhile

    def forget(self, connection: Connection) -> None:
        """The connection gets no more turns."""
        try:
            self._work.remove_subqueue(connection)
        except KeyError:
            pass  # closed before

    def close(self, timeout: float | None = None) -> None:
        """End the threads and join them, up to `timeout` seconds each. Connections are not closed by this."""
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
            connection = taken.item
            has_more = True
            try:
                has_more = connection.run_turn()
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the thread
                _log.error(
                    "connection %r failed", connection.name, exc_info=error, extra={"connection": connection.name}
                )
            finally:
                if has_more:
                    self.connection_ready(connection)
                taken.subqueue.task_done()
