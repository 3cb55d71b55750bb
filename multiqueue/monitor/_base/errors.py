"""Errors of the windows: one for programs, one for the answer to a request."""

from __future__ import annotations

from ...errors import MultiQueueError


class MonitorError(MultiQueueError):
    """The HTTP server cannot start, or a change made over HTTP cannot be saved in the data directory."""

    exit_status = 2


class Refused(Exception):
    """A request that is answered with an error: RabbitMQ's status, word and reason."""

    def __init__(self, status: int, error: str, reason: str | list[str]) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason


def not_found() -> Refused:
    """The request is for a thing that is not there."""
    return Refused(404, "Object Not Found", "Not Found")


def bad_request(reason: str) -> Refused:
    """A field of the request is missing or wrong."""
    return Refused(400, "bad_request", reason)


def not_authorised(reason: str) -> Refused:
    """The user is known and may not do this."""
    return Refused(401, "not_authorised", reason)
