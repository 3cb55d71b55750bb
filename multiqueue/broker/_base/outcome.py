"""Outcomes of a put, and reasons for which a message leaves its queue other than by being consumed."""

from __future__ import annotations

from enum import Enum


class PutOutcome(Enum):
    """The outcome of putting a message on a queue."""

    ENQUEUED = "enqueued"
    THROTTLED = "throttled"  # enqueued, but over the limit: wait for room before the next one
    REJECTED = "rejected"  # refused by the depth limit
    NO_CONSUMER = "no_consumer"  # immediate, and no consumer is willing to take it now
    DELETED = "deleted"  # the queue is gone

    @property
    def accepted(self) -> bool:
        """True when the message is on the queue, or was taken from it already."""
        return self is PutOutcome.ENQUEUED or self is PutOutcome.THROTTLED


class DeadLetterReason(Enum):
    """Why a message goes to the dead-letter callback. The values are RabbitMQ's, where it has one."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"
    QUEUE_DELETED = "queue_deleted"
