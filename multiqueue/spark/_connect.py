"""A Spark Connect session: tags are thread-local in the client, and a lane's pool is a session of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException

from ._backend import TAG_PREFIX
from ._errors import SparkEnvironmentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

CANCELLED = "OPERATION_CANCELED"
STOPPED = ("INVALID_HANDLE.SESSION_CLOSED", "NO_ACTIVE_SESSION")


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
        return inheritable_thread_target(self._spark)(fn)  # type: ignore[no-any-return]

    def enter(self, tag: str, description: str, pool: str | None) -> None:
        session = self.session_for(pool)
        for inherited in session.getTags():
            if inherited.startswith(TAG_PREFIX):
                session.removeTag(inherited)
        session.addTag(tag)

    def cancel(self, tag: str) -> None:
        for session in list(self._sessions.values()):
            session.interruptTag(tag)

    def is_cancellation(self, error: BaseException) -> bool:
        return CANCELLED in _condition(error)

    def is_stop(self, error: BaseException) -> bool:
        return any(words in _condition(error) for words in STOPPED)


def _condition(error: BaseException) -> str:
    if not isinstance(error, PySparkException):
        return ""
    return error.getCondition() or str(error)
