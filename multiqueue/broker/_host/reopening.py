"""What a broker does when the store of one of its virtual hosts fails.

    stay      Nothing: every call to that virtual host raises StoreFailed until its owner closes and opens the broker.
    reopen    The virtual host is closed, and opened again from the disk as soon as that works.
    stop      The broker is closed, as its owner would do.

Promise     The other virtual hosts go on. Nothing that was committed is lost: it opens the same as a restart would. A
            virtual host that is deleted, or whose broker is closed meanwhile, is not opened again.
Threads     One, started with the first failure: who notices a failure may be the store's own thread, and holds locks.
Waiting     The thread waits for a failure, or for the next try: 0.1 s, then twice as long each time, 30 s at most.
            `close` ends both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from queue import SimpleQueue
from typing import Final, Never

from ..._locks import Lock
from ...errors import MultiQueueError
from .virtual_host import VirtualHost

_FIRST_PAUSE: Final = 0.1  # seconds
_LONGEST_PAUSE: Final = 30.0

_log = logging.getLogger("multiqueue.broker")


class OnStoreFailure(StrEnum):
    """What a broker does when a store fails."""

    STAY = "stay"
    REOPEN = "reopen"
    STOP = "stop"

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"on_store_failure is 'stay', 'reopen' or 'stop', not {value!r}")


class Reopening:
    """`close_down(host)` ends a virtual host, `reopen(host)` opens it, False where that is not wanted any more."""

    def __init__(
        self,
        policy: OnStoreFailure,
        close_down: Callable[[VirtualHost], object],
        reopen: Callable[[VirtualHost], bool],
        stop: Callable[[], object],
    ) -> None:
        self._policy = policy
        self._close_down = close_down
        self._reopen = reopen
        self._stop = stop
        self._failed: SimpleQueue[VirtualHost | None] = SimpleQueue()
        self._lock = Lock()  # guards that there is one thread
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def note(self, host: VirtualHost) -> None:
        """The store of a virtual host failed. Any thread, under any lock; does not wait."""
        if self._policy is OnStoreFailure.STAY:
            return
        self._failed.put(host)
        with self._lock:
            if self._thread is None and not self._ended.is_set():
                thread = threading.Thread(target=self._run, name="multiqueue-broker-reopening", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """End the thread; one that closes the broker itself goes on to its end."""
        with self._lock:
            self._ended.set()
            thread = self._thread
        self._failed.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (host := self._failed.get()) is not None and not self._ended.is_set():
            try:
                if self._policy is OnStoreFailure.STOP:
                    self._stop()
                else:
                    self._close_down(host)
                    self._try_until_open(host)
            except Exception:  # noqa: BLE001  # logged: the next virtual host must not stay down for it
                _log.exception("vhost '%s' cannot be opened again", host.name)

    def _try_until_open(self, host: VirtualHost) -> None:
        pause, told = _FIRST_PAUSE, ""
        while not self._ended.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                if self._reopen(host):
                    _log.warning("vhost '%s' is open again", host.name)
                return
            except (MultiQueueError, OSError) as error:
                if str(error) != told:
                    told = str(error)
                    _log.error("vhost '%s' stays down: %s; the next try is in %g s", host.name, error, pause)
