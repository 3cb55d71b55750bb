"""A Spark Connect session: tags are thread-local in the client, and a lane's pool is a separate session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException

from .backend import TAG_PREFIX, Marks, Spent
from .causes import is_cancellation, is_sparks_own
from .errors import STOPPED_BEFORE, SparkEnvironmentError, SparkSessionStopped
from .progress import Progress, total

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

LOGGER = logging.getLogger("multiqueue.spark")

# The last two: a server was started anew where the session's was.
STOPPED = (
    "INVALID_HANDLE.SESSION_CLOSED",
    "NO_ACTIVE_SESSION",
    "INVALID_HANDLE.SESSION_NOT_FOUND",
    "INVALID_HANDLE.SESSION_CHANGED",
)
UNAVAILABLE = "StatusCode.UNAVAILABLE"  # gRPC's word when no server answers, and the client has tried long enough
# What gRPC says of a channel that `stop()` has closed while the session does not yet report that: of a call that
# begins, in a ValueError, and of one that was under way.
CLOSED_CHANNEL = "Cannot invoke RPC"
CLOSED_BENEATH = "Channel closed!"


class ConnectBackend:
    """Backend for a remote `SparkSession`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._sessions: dict[str | None, Any] = {None: spark}
        self._item = threading.local()  # `.tag`: the item whose thread this is
        self._listening: dict[str | None, Any] = {}  # the sessions, by pool, whose progress is heard
        self._told: dict[str, dict[str, Progress]] = {}  # by tag and operation; an item's thread alone writes its own

    def session_for(self, pool: str | None) -> SparkSession:
        if pool is not None and pool not in self._sessions:
            if not hasattr(self._spark, "newSession"):
                raise SparkEnvironmentError(
                    f"scheduler pool {pool!r}: on Spark Connect a pool needs a separate session, which pyspark "
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

    def enter(self, marks: Marks) -> None:
        inherited = [one for one in self._spark.getTags() if not one.startswith(TAG_PREFIX)]
        session = self.session_for(marks.pool)
        if marks.pool not in self._listening:  # twice does no harm
            session.registerProgressHandler(cast(Any, self._hear))  # its type is an abstract class
            self._listening[marks.pool] = session
        session.clearTags()
        for one in (*inherited, marks.tag, *marks.labels):
            session.addTag(one)
        self._item.tag = marks.tag
        self._told.setdefault(marks.tag, {})

    def leave(self, tag: str) -> Progress | None:
        return total(self._told.pop(tag, {}).values())

    def progress(self, tag: str) -> Progress | None:
        told = self._told.get(tag)
        return None if told is None else total(list(told.values()))

    tells_spent = False

    def spent(self, tag: str) -> Spent | None:
        return None

    def job_ids(self, tag: str) -> list[int]:
        return []  # the server does not tell

    def ui_url(self) -> str | None:
        return None

    def _hear(self, *, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool, **_: Any) -> None:
        """A handler that the client calls on the item's thread, which runs the query, whenever the server tells."""
        told = self._told.get(getattr(self._item, "tag", ""))
        if told is None or not stages:  # not one of our items; nothing is known at a query's begin
            return
        told[str(operation_id)] = Progress(
            jobs=1,
            stages=len(stages),
            stages_done=sum(bool(stage.done) for stage in stages),
            tasks=sum(stage.num_tasks for stage in stages),
            tasks_active=inflight_tasks,
            tasks_done=sum(stage.num_completed_tasks for stage in stages),
        )

    def cancel(self, tag: str) -> None:
        for session in list(self._sessions.values()):
            session.interruptTag(tag)

    def close(self) -> None:
        while self._listening:
            self._listening.popitem()[1].removeProgressHandler(self._hear)
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
        return is_cancellation(error)

    def is_stop(self, error: BaseException) -> bool:
        if any(words in _condition(error) for words in STOPPED):
            return True
        if isinstance(error, ValueError) and str(error).startswith(CLOSED_CHANNEL):
            return True
        # The server may be gone before it can say so; then the client's errors have no condition.
        if is_sparks_own(error) and (CLOSED_BENEATH in str(error) or self._is_stopped()):
            return True
        return is_cancellation(error) and self._is_released()

    def is_gone(self, error: BaseException) -> bool:
        return is_sparks_own(error) and UNAVAILABLE in str(error)

    def _is_released(self) -> bool:
        """Ask the server whether it has let go of the session.

        `stop()` has it cancel the session's jobs first, and closes the client only when that has answered: between the
        two a job fails as if somebody had cancelled it.
        """
        try:
            self._spark.conf.get("spark.app.name", None)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is judged
            return not is_cancellation(error) and self.is_stop(error)
        return False

    def _is_stopped(self) -> bool:
        return bool(self._spark.is_stopped)  # type: ignore[attr-defined] # Spark Connect's sessions have it


def _condition(error: BaseException) -> str:
    if not isinstance(error, PySparkException):
        return ""
    return error.getCondition() or str(error)
