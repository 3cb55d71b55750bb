"""Errors that the streaming source and sink raise in their own name.

They arise in Spark's Python processes, not in the user's: there Spark shows their type and message in a
`StreamingQueryException` or `PySparkException`.
"""

from __future__ import annotations

from ...errors import MultiQueueError


class StreamingError(MultiQueueError):
    """The root of the errors of the source and the sink."""


class BadOption(StreamingError, ValueError):
    """An option or a schema that cannot be used; the message has its name, its value and what would be right."""


class SpoolInUse(StreamingError):
    """Another process reads into this spool. A spool belongs to one `readStream` of one query."""


class SpoolNotShared(StreamingError):
    """An executor does not see what the driver's side has written. The spool must be on a file system of all."""


class LeaseInUse(StreamingError):
    """Another connection has this lease. A lease, by its `sourceId`, belongs to one `readStream` of one query."""


class DataLoss(StreamingError):
    """The checkpoint asks for messages that spool or lease do not have. Nothing was skipped."""


class SourceUnavailable(StreamingError):
    """The broker was away for longer than `reconnectSeconds`, or a queue is gone. Starting the query again can help."""


class MalformedBody(StreamingError):
    """A body that is not what the schema says; the message has its number and its queue."""


class PublishFailed(StreamingError):
    """The broker did not take all rows of a task. Its retry publishes them again under the same ids."""
