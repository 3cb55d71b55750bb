"""What becomes of an exception that a callback raised: a handler with a name, never silence.

Handlers run on the callback's own thread, under no lock, and may do what a callback may: settle the message, close the
channel. Give one to `connect(on_callback_error=...)`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .ports import MessageChannel

_log = logging.getLogger("multiqueue.client")


@dataclass(frozen=True, slots=True)
class CallbackFailure:
    """A callback raised `error`. `argument` is what it was called with, a message most often."""

    error: Exception
    callback: Callable[..., Any]
    argument: object
    channel: MessageChannel | None

    def __str__(self) -> str:
        where = "the connection" if self.channel is None else f"{self.channel!r}"
        return f"callback {getattr(self.callback, '__qualname__', self.callback)!r} of {where} failed: {self.error!r}"


def _channel_of(failure: CallbackFailure) -> str:
    return "" if failure.channel is None else repr(failure.channel)


def close_channel(failure: CallbackFailure) -> None:
    """The default: log, and close the channel, so that the server gives its unsettled messages to others."""
    _log.error("%s; closing the channel", failure, exc_info=failure.error, extra={"connection": _channel_of(failure)})
    if failure.channel is not None:
        failure.channel.abort(541, f"a callback failed: {failure.error!r}")


def log_failure(failure: CallbackFailure) -> None:
    """Log and go on. The message stays unsettled."""
    _log.error("%s", failure, exc_info=failure.error, extra={"connection": _channel_of(failure)})


def requeue_message(failure: CallbackFailure) -> None:
    """Log, give the message back to its queue, and go on. A message that always fails comes again and again."""
    _log.error(
        "%s; giving the message back", failure, exc_info=failure.error, extra={"connection": _channel_of(failure)}
    )
    nack = getattr(failure.argument, "nack", None)
    if nack is not None and not getattr(failure.argument, "is_settled", True):
        nack(requeue=True)
