"""See into a program that uses the house: whose log record it is, OpenTelemetry's traces, how far futures are.

    handler.addFilter(LogContext())  # then "%(lane)s %(item)s %(queue)s %(connection)s" in its format
    log_lanes(executor)  # records of its jobs say lane and item, those of your own loggers too

    show_progress(futures)  # a bar in a notebook, a line elsewhere, until all have ended

    tracing = Tracing()  # needs blocking-multiqueue[otel]; uses the program's tracer provider and propagator
    tracing.client(connection)  # of multiqueue.client: publishes and deliveries are spans, linked by headers
    tracing.executor(dispatcher)  # each of its items is a span, with the ids of its Spark jobs

Promise     A connection or an executor that is not named here is not wrapped, and pays nothing. An item whose span
            cannot be made or ended goes on, and the failure is logged.
State       A traced connection has its own `channel`, a traced channel its own `publish` and so on: functions that
            stand on the object, in front of the method of its class. An executor has its watchers.
Source      opentelemetry-instrumentation-pika, for names of spans and attributes, and for the headers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, Final, Protocol, runtime_checkable

from ._extras import needs
from ._kinds import check_kind
from ._locks import Lock
from ._logs import LogContext as LogContext
from ._logs import in_item
from ._logs import one_line_each as _one_line_each
from ._progress import show_progress as show_progress
from .core import Job, MultiQueueExecutor
from .errors import MultiQueueError

__all__ = ["LogContext", "Tracing", "log_lanes", "show_progress"]

_log = logging.getLogger("multiqueue.observe")
_one_line_each("multiqueue.observe")
_EXECUTOR: Final = "a MultiQueueExecutor or a SparkDispatcher"
_MOST_WAITING: Final = 10_000  # items whose submitter's context is kept until they begin


@runtime_checkable
class _Connection(Protocol):
    def channel(self) -> Any: ...


@runtime_checkable
class _Message(Protocol):
    properties: Any
    channel: Any


def log_lanes(executor: MultiQueueExecutor) -> None:
    """Have the records that are logged in this executor's jobs say their `lane` and `item`; see `LogContext`."""
    check_kind("executor", executor, MultiQueueExecutor, _EXECUTOR)
    executor.watch(_LogLanes())


class _LogLanes:
    def submitted(self, lane: Hashable, job: Job[Any]) -> None:
        """Nothing to be told yet."""

    def began(self, lane: Hashable, job: Job[Any]) -> None:
        """This thread runs the job now."""
        in_item(str(lane), job.name)


class Tracing:
    """OpenTelemetry's traces of connections and executors that are named to it. Any thread may call.

    Without `provider` it is the program's global one, which does nothing until the program has set it up.

    Raises:
        MultiQueueError: opentelemetry-api is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        if find_spec("opentelemetry") is None:
            raise MultiQueueError(needs("Tracing", "opentelemetry"))
        from opentelemetry import context, propagate, trace

        self._context, self._propagate, self._trace = context, propagate, trace
        self._tracer = trace.get_tracer("multiqueue", tracer_provider=provider)

    # -- clients

    def client(self, connection: Any) -> None:
        """Trace the channels that a connection of `multiqueue.client` opens from now on. Twice is once."""
        check_kind("connection", connection, _Connection, "a connection of multiqueue.client")
        if "channel" in vars(connection):
            return
        open_channel = connection.channel

        def channel(*args: Any, **options: Any) -> Any:
            opened = open_channel(*args, **options)
            self._channel(opened)
            return opened

        connection.channel = channel

    def _channel(self, channel: Any) -> None:
        for name in ("publish", "publish_confirmed"):
            setattr(channel, name, self._publishing(channel, getattr(channel, name)))
        channel.basic_consume = self._consuming(channel, channel.basic_consume)
        get = channel.basic_get

        def basic_get(queue: str, **options: Any) -> Any:
            message = get(queue, **options)
            if message is not None:
                with self.received(message, queue, "receive"):
                    pass
            return message

        channel.basic_get = basic_get

    def _publishing(self, channel: Any, publish: Callable[..., Any]) -> Callable[..., Any]:
        def traced(body: bytes, **options: Any) -> Any:
            exchange, key = options.get("exchange", ""), options.get("routing_key", "")
            attributes = _attributes(channel, "publish", exchange, key)
            with self._tracer.start_as_current_span(
                f"{exchange or key} publish", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
            ):
                headers = dict(options.get("headers") or {})
                self._propagate.inject(headers)
                return publish(body, **{**options, "headers": headers} if headers else options)

        return traced

    def _consuming(self, channel: Any, consume: Callable[..., str]) -> Callable[..., str]:
        def traced(queue: str, callback: Callable[[Any], object], **options: Any) -> str:
            def received(message: Any) -> object:
                with self.received(message, queue, "process"):
                    return callback(message)

            return consume(queue, received if callable(callback) else callback, **options)

        return traced

    def received(self, message: Any, queue: str, operation: str = "process") -> AbstractContextManager[Any]:
        """A span of a message's delivery whose parent is its publish, for `with`. For messages of `channel.consume`."""
        check_kind("message", message, _Message, "a message of multiqueue.client")
        headers = message.properties.get("headers") or {}
        carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
        attributes = _attributes(message.channel, operation, message.exchange, message.routing_key)
        return self._tracer.start_as_current_span(
            f"{queue} {operation}",
            context=self._propagate.extract(carrier),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={**attributes, "messaging.destination.name": queue},
        )

    # -- executors

    def executor(self, executor: MultiQueueExecutor) -> None:
        """Trace the jobs of an executor or a Spark dispatcher that begin from now on.

        A job's span begins with it and ends with its future. It is the current one in the job's thread, and a child of
        the span in which it was submitted, or is linked to that if it began before its submitter came back.
        """
        check_kind("executor", executor, MultiQueueExecutor, _EXECUTOR)
        executor.watch(_TracedJobs(self, executor))

    def current(self) -> Any:
        """The context of this thread, None where no span is the current one."""
        is_in_span = self._trace.get_current_span().get_span_context().is_valid
        return self._context.get_current() if is_in_span else None

    def begin(self, lane: str, job: Job[Any], parent: Any) -> tuple[Any, Callable[[], object]]:
        """A span of a job that is the current one in this thread, and what makes it so no more."""
        attributes = {"multiqueue.lane": lane, "multiqueue.item": job.name}
        span = self._tracer.start_span(f"{lane} {job.name}", context=parent, attributes=attributes)
        token, thread = self._context.attach(self._trace.set_span_in_context(span, parent)), threading.get_ident()

        def leave() -> None:
            if threading.get_ident() == thread:  # another one may end the future, and has no business there
                self._context.detach(token)

        return span, leave

    def end(self, span: Any, job: Job[Any], executor: Any) -> None:
        """The job's future has ended."""
        future: Any = job.future
        if future.cancelled():
            span.set_attribute("multiqueue.cancelled", True)
        elif (error := future.exception()) is not None:
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        if hasattr(executor, "job_ids"):
            span.set_attribute("spark.job_ids", executor.job_ids(future.tag))
            span.set_attribute("multiqueue.attempts", future.attempts)
        span.end()

    def link(self, span: Any, context: Any) -> None:
        """Link a span to that of a context."""
        span.add_link(self._trace.get_current_span(context).get_span_context())


def _attributes(channel: Any, operation: str, exchange: str, key: str) -> dict[str, str]:
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation": operation,
        "messaging.destination.name": exchange or key,
        "messaging.rabbitmq.destination.routing_key": key,
        "messaging.multiqueue.channel": repr(channel),
    }


class _TracedJobs:
    """The spans of one executor's jobs.

    State       `_lock` guards both tables: contexts of the submitters of jobs that wait, and spans of jobs that run.
                It is a leaf.
    """

    def __init__(self, tracing: Tracing, executor: MultiQueueExecutor) -> None:
        self._tracing = tracing
        self._executor = weakref.ref(executor)
        self._lock = Lock()
        self._parents: dict[Job[Any], Any] = {}
        self._spans: dict[Job[Any], Any] = {}

    def submitted(self, lane: Hashable, job: Job[Any]) -> None:
        """Keep the submitter's context until the job begins."""
        context = self._tracing.current()
        if context is None:
            return
        with self._lock:
            span = self._spans.get(job)
            is_waiting = span is None and not job.future.done() and len(self._parents) < _MOST_WAITING
            if is_waiting:
                self._parents[job] = context
        if is_waiting:
            job.future.add_done_callback(lambda _: self._forget(job))
        elif span is not None:
            self._tracing.link(span, context)

    def _forget(self, job: Job[Any]) -> Any:
        with self._lock:
            return self._parents.pop(job, None)

    def began(self, lane: Hashable, job: Job[Any]) -> None:
        """Begin the span; the job's future ends it."""
        try:
            span, leave = self._tracing.begin(str(lane), job, self._forget(job))
        except Exception:  # noqa: BLE001  # a provider's, or of a lane's name: the item goes on
            _log.exception("an item cannot be traced")
            return
        with self._lock:
            self._spans[job] = span
            late = self._parents.pop(job, None)  # its submitter came back before the span was here
        if late is not None:
            self._tracing.link(span, late)
        job.future.add_done_callback(lambda _: self._end(job, leave))

    def _end(self, job: Job[Any], leave: Callable[[], object]) -> None:
        with self._lock:
            span = self._spans.pop(job)
        try:
            leave()
            self._tracing.end(span, job, self._executor())
        except Exception:  # noqa: BLE001  # a provider's, or Spark's, which may be gone
            span.end()
            _log.exception("how an item ended cannot be traced")
