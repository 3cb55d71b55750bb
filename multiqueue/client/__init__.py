"""The front office: a client for AMQP 0-9-1 servers, with RabbitMQ's threading model, and for a broker in process.

Promises that the thread which reads runs no code of yours, that callbacks of a channel never overlap and those of
several run in parallel, that any thread may call anything, and that a lost connection comes back. Knows `core` and the
frames of `amqp`; the loading dock, the pipeline and the windows know it. Needs pamqp: `blocking-multiqueue[amqp]`.
"""

try:
    import pamqp as _pamqp  # noqa: F401
except ImportError as _missing:
    raise ImportError("multiqueue.client needs pamqp: pip install 'blocking-multiqueue[amqp]'") from _missing

from .._logs import one_line_each as _one_line_each
from ._base.errors import (
    BadAddress,
    CallbackFailure,
    CallTimeout,
    ChannelClosed,
    ClientError,
    Closed,
    ConfirmTimeout,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionInterrupted,
    ConsumerCancelled,
    Nacked,
    PublishTimeout,
    TooManyChannels,
    UnknownDelivery,
    close_channel,
    log_failure,
    requeue_message,
)
from ._base.message import Message, Returned
from ._base.settings import Address, Settings, parse_address
from ._channel.channel import Channel, QueueDeclared
from ._channel.consumers import Inbox
from ._channel.lifecycle import ChannelStatistics, ConnectionStatistics
from ._channel.publishing import Confirm
from ._connection.connection import Connection, async_connect, connect
from ._connection.fair_inbox import FairInbox

_one_line_each("multiqueue.client")

__all__ = [
    "Address",
    "BadAddress",
    "CallTimeout",
    "CallbackFailure",
    "Channel",
    "ChannelClosed",
    "ChannelStatistics",
    "ClientError",
    "Closed",
    "Confirm",
    "ConfirmTimeout",
    "Connection",
    "ConnectionClosed",
    "ConnectionFailed",
    "ConnectionInterrupted",
    "ConnectionStatistics",
    "ConsumerCancelled",
    "FairInbox",
    "Inbox",
    "Message",
    "Nacked",
    "PublishTimeout",
    "QueueDeclared",
    "Returned",
    "Settings",
    "TooManyChannels",
    "UnknownDelivery",
    "async_connect",
    "close_channel",
    "connect",
    "log_failure",
    "parse_address",
    "requeue_message",
]
