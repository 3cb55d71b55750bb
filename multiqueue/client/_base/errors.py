"""What can go wrong with a connection, a channel or a message; the type says whether trying again can help."""

from __future__ import annotations

from ...errors import MultiQueueError


class ClientError(MultiQueueError):
    """The root of the client's errors."""


class BadAddress(ClientError, ValueError):
    """An address that cannot be read. Nothing was tried."""

    exit_status = 2


class ConnectionFailed(ClientError):
    """No host of the address accepted the connection; the message has each one's reason. Trying again can help."""

    exit_status = 2


class Closed(ClientError):
    """The root of what ends a connection or a channel, with the reply code and text of AMQP."""

    def __init__(self, message: str, *, reply_code: int = 0, reply_text: str = "") -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.reply_text = reply_text


class ConnectionClosed(Closed):
    """The connection is closed, by whom the message says. Open another one."""


class ConnectionInterrupted(ConnectionClosed):
    """The connection was lost and is being recovered. Whether the call had its effect is not known; try again."""


class ChannelClosed(Closed):
    """The channel is closed: the server refused something, a call timed out, or `close` was called."""


class CallTimeout(ClientError, TimeoutError):
    """The server did not answer in time. The channel was closed, for a late answer would be taken for the next one."""


class PublishTimeout(ClientError, TimeoutError):
    """The server does not take what we publish: nothing was sent. Trying again can help."""


class ConfirmTimeout(ClientError, TimeoutError):
    """The server has not answered for all messages in time. It still may: wait again, or close the channel."""


class Nacked(ClientError):
    """The server could not take charge of the message. Publishing it again can help."""


class UnknownDelivery(ClientError, ValueError):
    """This channel has no such unsettled message: it was settled before, or never delivered here. Nothing was sent."""


class ConsumerCancelled(ClientError):
    """The server ended the consumer, for example because its queue was deleted."""


class TooManyChannels(ClientError):
    """The server allows no further channel on this connection. Close one, or open another connection."""
