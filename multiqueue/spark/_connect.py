"""A Spark Connect session: tags are thread-local in the client, and a lane's pool is a session of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException

from ._backend import TAG_PREFIX
from ._errors import STOPPED_BEFORE, SparkEnvironmentError, SparkSessionStopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

LOGGER = logging.getLogger("multiqueue.spark")

CANCELLED = "OPERATION_CANCELED"
STOPPED = ("INVALID_HANDLE.SESSION_CLOSED", "NO_ACTIVE_SESSION")
# What gRPC says, in a ValueError, of a channel that `stop()` has closed and does not yet report as closed.
CLOSED_CHANNEL = "Cannot invoke RPC"


class ConnectBackend:
    """Backend for a remote `SparkSession`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._sessions: dict[str | None, Any] = {None: spark}

    def session_for(self, pool: str | None) -> SparkSession:
        if pool is not None and pool not in self._sessions:
            if not hasattr(self._spark, "newSession"):
                raise SparkEnvironmentError(
                    f"scheduler pool {pool!r}: on Spark Connect a pool needs a session of its own, which pyspark "
                    "can make from 4.3 on; leave the pool out or use a newer pyspark"
                )
            session = self._spark.newSession()
            session.conf.set("spark.scheduler.pool", pool)
            self._sessions.setdefault(pool, session)  # another thread may have been faster
        return self._sessions[pool]  # type: ignore[no-any-return]

    def inheriting(self, fn: Callable[..., T]) -> Callable[..., T]:
        if self._is_stopped():
            raise SparkSessionStopped(STOPPED_BEFORE)
        return inheritable_thread_target(self._spark)(fn)  # type: ignore[no-any-return]

    def enter(self, tag: str, description: str, pool: str | None) -> None:
        inherited = [one for one in self._spark.getTags() if not one.startswith(TAG_PREFIX)]
        session = self.session_for(pool)
        session.clearTags()
        for one in (*inherited, tag):
            session.addTag(one)

    def cancel(self, tag: str) -> None:
        for session in list(self._sessions.values()):
            session.interruptTag(tag)

    def close(self) -> None:
        # A session left open asks its server at exit, and if that is gone, again and again for minutes. Not `stop()`:
        # that would stop a local server, with the session we were given.
        for pool in [pool for pool in self._sessions if pool is not None]:
            client = self._sessions.pop(pool).client
            try:
                if not self._is_stopped():
                    client.release_session()
            except PySparkException:
                LOGGER.warning("the session for scheduler pool %r was not released", pool, exc_info=True)
            finally:
                client.close()

    def is_cancellation(self, error: BaseException) -> bool:
        return CANCELLED in _condition(error)

    def is_stop(self, error: BaseException) -> bool:
        # The server may be gone before it can say so; then the client's errors have no condition.
        if isinstance(error, PySparkException):
            return self._is_stopped() or any(words in _condition(error) for words in STOPPED)
        return isinstance(error, ValueError) and str(error).startswith(CLOSED_CHANNEL)

    def _is_stopped(self) -> bool:
        return bool(self._spark.is_stopped)  # type: ignore[attr-defined] # Spark Connect's sessions have it


def _condition(error: BaseException) -> str:
    if not isinstance(error, PySparkException):
        return ""
    return error.getCondition() or str(error)
