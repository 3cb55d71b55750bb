"""The work that other threads do for a connection: a commit, a long purge, the storing of publishes.

Offloaded work ends by itself all that must not be undone. Its follow-up on the I/O thread answers, and is left out when
the connection has ended meanwhile. A fault that comes while a commit is under way waits for it: the session of that
commit is another thread's until then. All fields belong to the connection's I/O thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ...broker import BrokerError, PutOff, Run
from .._session.effects import AfterCommit, Served, Work, fail
from .._wire.errors import AmqpError
from .ports import ConnectionPort, ServerPort
from .read_gate import ReadGate

_log = logging.getLogger("multiqueue.amqp")
_COMMIT = "commit"


@dataclass(eq=False, repr=False)
class Offloaded:
    """The work of other threads for one connection."""

    _server: ServerPort
    _connection: ConnectionPort
    _gate: ReadGate
    is_under_way: bool = False  # a commit
    session: Served | None = None  # whose commit it is; it is that thread's meanwhile
    fault: tuple[AmqpError | BrokerError, bytes] | None = None  # waits for the commit
    postponed: set[AfterCommit] = field(default_factory=set)  # steps of methods that wait for commits

    def offload(self, work: Work, session: Served) -> None:
        self._server.offload(partial(self._work, work, self._came_back))  # raises when no thread can be had
        self.is_under_way, self.session = True, session
        self._gate.pause(_COMMIT)

    def _work(self, work: Work, came_back: Callable[..., object]) -> None:
        """On another thread: do it, and have the I/O thread go on with what it has returned or raised."""
        try:
            answer, error = work(), None
        except BaseException as failure:  # noqa: BLE001  # belongs to the connection, or to the channel
            answer, error = partial(_raise, failure), failure
        self._connection.post(came_back, answer, error)

    def _came_back(self, answer: Callable[[], object], error: BaseException | None) -> None:
        session, self.session = self.session, None
        self.is_under_way = False
        connection = self._connection
        if connection.is_lost:
            if error is not None:
                extra = {"connection": connection.name}
                _log.warning("%r: what it asked for last failed after its end: %s", connection, error, extra=extra)
            connection.finish()
            return
        if self.fault is not None:
            connection.fault(*self.fault)
            connection.flush()
            return
        self._answer(answer, session, b"\0\0\0\0")
        self._gate.resume(_COMMIT)
        connection.flush()

    def _answer(self, answer: Callable[[], object], session: Served | None, method: bytes) -> None:
        try:
            answer()
        except BaseException as failure:  # noqa: BLE001  # every one ends a channel or a connection
            fail(self._connection, session, failure, method)

    def offload_long(self, work: Work, session: Served, method: bytes) -> None:
        def came_back(answer: Callable[[], object], error: BaseException | None) -> None:
            connection = self._connection
            if connection.machine.is_running and session.is_open and not connection.is_lost:
                self._answer(answer, session, method)
            self._gate.resume(came_back)
            connection.flush()

        self._gate.pause(came_back)
        self._server.offload_long(partial(self._work, work, came_back))

    def postpone(self, step: AfterCommit, session: Served, method: bytes, commit: Run | PutOff) -> None:
        self.postponed.add(step)
        self._gate.pause(step)
        commit.add_done_callback(lambda error: self._connection.post(self._committed, step, session, method, error))

    def _committed(self, step: AfterCommit, session: Served, method: bytes, error: BaseException | None) -> None:
        self.postponed.remove(step)
        connection = self._connection
        if connection.is_lost or not connection.machine.is_running:
            return
        self._answer(partial(step, error), session, method)
        self._gate.resume(step)
        connection.flush()


def _raise(error: BaseException) -> None:
    raise error
