"""Errors of a connection, a channel or a message; the type says whether trying again can help.

An exception that a callback raised goes to a handler with a name, never into silence. Handlers run on the thread of
the callback, under no lock, and may do what a callback may: settle the message, close the channel. Give one to
`connect(on_callback_error=...)`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import MultiQueueError
from .message import Message

if TYPE_CHECKING:
    from .._channel.channel import Channel

_log = logging.getLogger("multiqueue.client")


class ClientError(MultiQueueError):
    """The root of the client's errors."""


class BadAddress(ClientError, ValueError):
    """An address that cannot be read. Nothing was tried."""

    exit_status = 2


class ConnectionFailed(ClientError):
    """No host of the address accepted the connection; the message has each one's reason. Trying again can help."""

    exit_status = 2


class Closed(ClientError):
    """The root of errors that end a connection or a channel, with the reply code and text of AMQP."""

    def __init__(self, message: str, *, reply_code: int = 0, reply_text: str = "") -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.reply_text = reply_text


class ConnectionClosed(Closed):
    """The connection is closed; the message says by which side. Open another one."""


class ConnectionInterrupted(ConnectionClosed):
    """The connection was lost and is being recovered. Whether the call had its effect is not known; try again."""


class ChannelClosed(Closed):
    """The channel is closed: the server refused something, a call timed out, or `close` was called."""


class CallTimeout(ClientError, TimeoutError):
    """The server did not answer in time. The channel was closed: a late answer would be taken for the next one."""


class PublishTimeout(ClientError, TimeoutError):
    """The server accepts no messages now: nothing was sent. Trying again can help."""


class ConfirmTimeout(ClientError, TimeoutError):
    """The server has not answered for all messages in time. It still may: wait again, or close the channel."""


class Nacked(ClientError):
    """The server could not take the message. Publishing it again can help."""


class UnknownDelivery(ClientError, ValueError):
    """This channel has no such unsettled message: it was settled before, or never delivered here. Nothing was sent."""


class ConsumerCancelled(ClientError):
    """The server ended the consumer, for example because its queue was deleted."""


class TooManyChannels(ClientError):
    """The server allows no further channel on this connection. Close one, or open another connection."""


@dataclass(frozen=True, slots=True)
class CallbackFailure:
    """A callback raised `error`. `argument` is its argument, usually a message."""

    error: Exception
    callback: Callable[..., Any]
    argument: object
    channel: Channel | None

    def __str__(self) -> str:
        where = "the connection" if self.channel is None else f"{self.channel!r}"
        return f"callback {getattr(self.callback, '__qualname__', self.callback)!r} of {where} failed: {self.error!r}"


def close_channel(failure: CallbackFailure) -> None:
    """The default: log, and close the channel, so that the server gives its unsettled messages to others."""
    _log_error("%s; closing the channel", failure)
    if failure.channel is not None:
        failure.channel.abort(541, f"a callback failed: {failure.error!r}")


def log_failure(failure: CallbackFailure) -> None:
    """Log and go on. The message stays unsettled."""
    _log_error("%s", failure)


def requeue_message(failure: CallbackFailure) -> None:
    """Log, give the message back to its queue, and go on. A message that always fails comes again and again."""
    _log_error("%s; giving the message back", failure)
    if isinstance(failure.argument, Message) and not failure.argument.is_settled:
        failure.argument.nack(requeue=True)


def _log_error(text: str, failure: CallbackFailure) -> None:
    channel = "" if failure.channel is None else repr(failure.channel)
    _log.error(text, failure, exc_info=failure.error, extra={"connection": channel})
