"""The front office: a client for AMQP 0-9-1 servers, with RabbitMQ's threading model, and for a broker in process.

Promises that the thread which reads runs no code of yours, that callbacks of a channel never overlap and those of
several run in parallel, that any thread may call anything, and that a lost connection comes back. Knows `core` and the
frames of `amqp`; the loading dock, the pipeline and the windows know it. Needs pamqp: `blocking-multiqueue[amqp]`.
"""

try:
    import pamqp as _pamqp  # noqa: F401
except ImportError as missing:
    raise ImportError("multiqueue.client needs pamqp: pip install 'blocking-multiqueue[amqp]'") from missing

from .._logs import one_line_each as _one_line_each
from ._address import Address as Address
from ._address import parse_address as parse_address
from ._channel import Channel as Channel
from ._channel_declaring import QueueDeclared as QueueDeclared
from ._confirms import Confirm as Confirm
from ._connect import async_connect as async_connect
from ._connect import connect as connect
from ._connection import Connection as Connection
from ._consumers import Inbox as Inbox
from ._errors import BadAddress as BadAddress
from ._errors import CallTimeout as CallTimeout
from ._errors import ChannelClosed as ChannelClosed
from ._errors import ClientError as ClientError
from ._errors import Closed as Closed
from ._errors import ConfirmTimeout as ConfirmTimeout
from ._errors import ConnectionClosed as ConnectionClosed
from ._errors import ConnectionFailed as ConnectionFailed
from ._errors import ConnectionInterrupted as ConnectionInterrupted
from ._errors import ConsumerCancelled as ConsumerCancelled
from ._errors import Nacked as Nacked
from ._errors import PublishTimeout as PublishTimeout
from ._errors import TooManyChannels as TooManyChannels
from ._errors import UnknownDelivery as UnknownDelivery
from ._failures import CallbackFailure as CallbackFailure
from ._failures import close_channel as close_channel
from ._failures import log_failure as log_failure
from ._failures import requeue_message as requeue_message
from ._message import Message as Message
from ._message import Returned as Returned
from ._settings import Settings as Settings
from ._statistics import ChannelStatistics as ChannelStatistics
from ._statistics import ConnectionStatistics as ConnectionStatistics

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
