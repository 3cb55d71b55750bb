"""Who hashes passwords: one thread, in fair turns by address and user, with a bound to what waits.

Promise     Every user at every address has its turn, so a crowd that guesses the password of one delays the login of
            another by one hash. Of one user at one address 16 wait, of all 256; more are refused. A login whose peer
            has left is dropped.
State       `_lanes` counts what waits or runs by address and user, under `_lock`, which is held while the executor's
            locks are taken, never the other way around.
Waiting     No call waits here: `told` is called on the thread that hashes, and passes the word on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from ...core import Lane, MultiQueueExecutor
from .access import Access

_log = logging.getLogger("multiqueue.amqp")
_OF_ONE: Final = 16  # at 50 ms each, all of them have an answer within a second
_OF_ALL: Final = 256

Key = tuple[str, str]  # network and user


class Logins:
    """The logins of a server whose passwords have to be hashed. Any thread may call."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._executor = MultiQueueExecutor(1, thread_name_prefix="multiqueue-amqp-logins")
        self._lock = threading.Lock()
        self._lanes: dict[Key, tuple[Lane, list[object]]] = {}  # and one item for each login that is not done
        self._count = 0
        self._made = 0
        self._is_closed = False

    def verify(self, network: str, user: str, password: bytes, told: Callable[[bool], object]) -> Future[None] | None:
        """Have `told(is_right)` called when the password is hashed; None when too many wait. `cancel` drops it."""
        key = network, user
        with self._lock:
            if self._is_closed or self._count >= _OF_ALL:
                return None
            lane, mine = self._lanes.get(key) or self._new_lane_locked(key)
            if len(mine) > _OF_ONE:  # one runs
                return None
            mine.append(future := lane.submit(self._verify, user, password, told))
            self._count += 1
        future.add_done_callback(lambda done: self._done(key, lane, mine, done))
        return future

    def close(self) -> None:
        """Drop what waits, and end the thread: it hashes one password at the most."""
        with self._lock:
            self._is_closed = True
        self._executor.shutdown(cancel_futures=True)

    def _verify(self, user: str, password: bytes, told: Callable[[bool], object]) -> None:
        is_right = False
        try:
            known = self._access.look(user, password)  # another login may have shown it by now
            is_right = self._access.verify(user, password) if known is None else known
        except Exception:  # noqa: BLE001  # no memory for the hash, most likely: this login is refused
            _log.exception("a password cannot be verified")
        told(is_right)

    def _new_lane_locked(self, key: Key) -> tuple[Lane, list[object]]:
        self._made += 1
        made: tuple[Lane, list[object]] = self._executor.lane((key, self._made), max_in_flight=1), []
        self._lanes[key] = made
        return made

    def _done(self, key: Key, lane: Lane, mine: list[object], future: Future[None]) -> None:
        with self._lock:
            mine.remove(future)
            self._count -= 1
            if mine:
                return
            del self._lanes[key]
        lane.shutdown(wait=False)
