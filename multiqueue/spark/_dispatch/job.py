"""One item: a function of a Spark session, called in a thread that has run nothing before, again if it may help.

Promise     Four outcomes that are not the user's own exception have four types: `CancelledError` (cancelled through its
            future), `SparkJobTimeout` (it ran too long), `SparkJobCancelled` (cancelled by somebody else),
            `SparkSessionStopped`. The user's own exception arrives unchanged, as the last attempt raised it.
            The future is resolved before the item's place among the running ones is free.
State       None shared: the future, `Running`, `Alarms` and `Tally` have theirs. After its submit an item is its
            worker's alone.
Membership  An item enters `Running` before it begins, or is not begun; it leaves when its future is resolved. Its
            timeout's alarm is on from its begin to its end.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ...core import Job
from .._backend.backend import TAG_PREFIX, Backend, Marks, label
from .._backend.causes import with_causes
from .._backend.errors import SparkDeadlineMissed, SparkJobCancelled, SparkJobTimeout, SparkSessionStopped
from .alarms import Alarms
from .costs import Costs, cost_of
from .future import Ask, SparkFuture
from .options import JobOptions
from .running import Group, Running
from .statistics import Tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .lane import SparkLane

T = TypeVar("T")

LOGGER = logging.getLogger("multiqueue.spark")


class DispatcherContext:
    """The state that the items of one dispatcher share."""

    def __init__(self, backend: Backend, name: str, costs: Costs | None = None) -> None:
        self.backend = backend
        self.costs: Costs | None = costs  # None: lanes are charged by turns
        self.has_no_figures: bool = False  # and the log says so
        self.running: Running = Running()
        self.alarms: Alarms = Alarms(f"{name}-alarms")


class LaneContext:
    """The state that the items of one lane share: their dispatcher's, and their own."""

    def __init__(self, dispatcher: DispatcherContext, session: SparkSession) -> None:
        self.dispatcher = dispatcher
        self.session = session
        self.group: Group = Group()
        self.tally: Tally = Tally()


class SparkJob(Job[T]):
    """One item on its way through a lane."""

    __slots__ = ("_begun_at", "_context", "_function", "_name", "_number", "_options", "_ran", "_tag")

    future: SparkFuture[T]

    def __init__(self, lane: SparkLane, fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._context = lane.context
        self._options: JobOptions = lane.options
        self._number = lane.context.dispatcher.running.number()
        self._tag = TAG_PREFIX + uuid.uuid4().hex
        function = self._function = getattr(fn, "__qualname__", None) or repr(fn)
        self._name = f"{lane.key}: {function}"
        self._begun_at: float | None = None
        self._ran: float | None = None  # seconds, once it has
        marks = Marks(self._tag, self._name, lane.pool, (label("lane", str(lane.key)), label("function", function)))
        backend = self._context.dispatcher.backend
        # Here, in the submitter's thread: what it has set now is what the item inherits.
        inheriting = backend.inheriting(_marked(fn, backend, lane.context.session, marks))
        super().__init__(inheriting, args, kwargs, SparkFuture(self._tag, backend.cancel, backend.progress))
        self.future.add_done_callback(self._context.tally.ended)

    @property
    def name(self) -> str:
        return self._function

    def deadline(self) -> float | None:
        """By when it must have begun."""
        within = self._options.start_within
        return None if within is None else self.future.submitted_at + within

    def missed(self) -> str:
        """The error when it has not."""
        return (
            f"job {self._name!r} had not begun {self._options.start_within:g} s after its submit; "
            "raise max_running or the lane's priority, or give it more time"
        )

    # In the worker's thread

    def run(self) -> None:
        future = self.future
        future.job = None
        running = self._context.dispatcher.running
        if not running.enter(future, self._number, self._context.group):
            future.cancel()
        if future.begin():
            deadline = self.deadline()
            if deadline is not None and monotonic() >= deadline:  # the alarm was not faster
                future.leave(cancelled=False)
                future.set_exception(SparkDeadlineMissed(self.missed()))
            else:
                self._call_in_time(future)
        running.leave(future)
        if self._context.dispatcher.costs is not None and self._ran is not None:
            self._charge(self._context.dispatcher.costs, self._ran)
        del self, future  # see `_call`: this is the frame behind the one that an error's traceback holds

    def _charge(self, costs: Costs, ran: float) -> None:
        """Charge its lane, before its place among the running ones is free."""
        dispatcher = self._context.dispatcher
        spent = dispatcher.backend.spent(self._tag)
        if spent is None and not dispatcher.has_no_figures:
            dispatcher.has_no_figures = True
            LOGGER.warning(
                "Spark does not tell what job %r has spent; lanes are charged the seconds that such jobs run",
                self._name,
                extra={"item": self._name},
            )
        cost = cost_of(ran, spent)
        costs.ended(self.subqueue, cost)
        self._context.tally.charged(cost)

    def refuse(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.leave(cancelled=False)
        self._context.dispatcher.running.leave(self.future)
        super().refuse(error)

    def _call_in_time(self, future: SparkFuture[T]) -> None:
        begun = self._begun_at = monotonic()
        self._context.tally.began(begun - future.submitted_at)
        timeout = self._options.timeout
        alarm = None if timeout is None else self._context.dispatcher.alarms.at(begun + timeout, future.time_out)
        try:
            self._call(future)
        finally:
            if alarm is not None:
                alarm.off()
            del self, future, alarm

    def _call(self, future: SparkFuture[T]) -> None:
        """Call the function until it returns, or fails for good, and end the future."""
        while True:
            future.attempt_times.append(monotonic())
            try:
                result = self.fn(*self.args, **self.kwargs)
            except BaseException as error:  # noqa: BLE001 - the item's, whatever it is: it belongs to its future
                pause = self._pause_after(error)
                if pause is not None and future.pause(pause):
                    self._context.tally.retried()
                    continue
                outcome = self._judge(error, asked_in_pause=pause is not None)
                self._leave(future, cancelled=outcome is None)
                if outcome is not None:
                    future.set_exception(outcome)
                del self, future, outcome  # the traceback holds this frame, and the error would hold itself
                return
            self._leave(future, cancelled=False, returned=True)
            future.set_result(result)
            return

    def _leave(self, future: SparkFuture[T], cancelled: bool, returned: bool = False) -> None:
        """The function has left for the last time."""
        if self._begun_at is not None:
            self._ran = monotonic() - self._begun_at
            self._context.tally.left(self._ran)
        future.leave(cancelled, self._context.dispatcher.backend.leave(self._tag), returned)

    def _pause_after(self, error: BaseException) -> float | None:
        """How long to wait before another attempt; None for no other one."""
        retry, future, backend = self._options.retry, self.future, self._context.dispatcher.backend
        if retry is None or future.ask is not Ask.NOT or backend.is_stop(error) or backend.is_cancellation(error):
            return None
        pause = retry.pause(future.attempts)
        if pause is None:
            return None
        try:
            return retry.shortened(pause) if retry.when(error) else None
        except Exception:
            LOGGER.exception(
                "whether job %r may be run again is unknown; it is not", self._name, extra={"item": self._name}
            )
            return None

    def _judge(self, error: BaseException, asked_in_pause: bool) -> BaseException | None:
        """The exception of the future when the function has raised `error`; None for cancelled."""
        backend, ask = self._context.dispatcher.backend, self.future.ask
        chain = list(with_causes(error))
        ended = asked_in_pause or any(map(backend.is_cancellation, chain))
        if ask is Ask.CANCEL and (ended or any(map(backend.is_stop, chain))):
            return None
        named: BaseException
        if ask is Ask.TIMEOUT and ended:
            named = SparkJobTimeout(
                f"job {self._name!r} ran longer than its timeout of {self._options.timeout:g} s and was cancelled in "
                "Spark; give it more time or less work"
            )
        elif backend.is_gone(error):
            named = SparkSessionStopped(
                f"the server of the Spark session could not be reached any more while job {self._name!r} ran; when it "
                "is back, make a new session and dispatcher"
            )
        elif backend.is_stop(error):
            named = SparkSessionStopped(
                f"the Spark session was stopped while job {self._name!r} ran; make a new session and dispatcher"
            )
        elif backend.is_cancellation(error):
            named = SparkJobCancelled(
                f"job {self._name!r} was cancelled in Spark, but not through its future: by a tag or group of yours, "
                "the Spark UI or Ctrl-C"
            )
        else:
            return error
        named.__cause__ = error
        return named


def _marked(fn: Callable[..., T], backend: Backend, session: SparkSession, marks: Marks) -> Callable[..., T]:
    """`fn` of the session, in a thread marked as the item's."""

    def call(*args: Any, **kwargs: Any) -> T:
        backend.enter(marks)
        return fn(session, *args, **kwargs)

    return call
