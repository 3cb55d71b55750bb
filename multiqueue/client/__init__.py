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
from ._base.errors import BadAddress as BadAddress
from ._base.errors import CallbackFailure as CallbackFailure
from ._base.errors import CallTimeout as CallTimeout
from ._base.errors import ChannelClosed as ChannelClosed
from ._base.errors import ClientError as ClientError
from ._base.errors import Closed as Closed
from ._base.errors import ConfirmTimeout as ConfirmTimeout
from ._base.errors import ConnectionClosed as ConnectionClosed
from ._base.errors import ConnectionFailed as ConnectionFailed
from ._base.errors import ConnectionInterrupted as ConnectionInterrupted
from ._base.errors import ConsumerCancelled as ConsumerCancelled
from ._base.errors import Nacked as Nacked
from ._base.errors import PublishTimeout as PublishTimeout
from ._base.errors import TooManyChannels as TooManyChannels
from ._base.errors import UnknownDelivery as UnknownDelivery
from ._base.errors import close_channel as close_channel
from ._base.errors import log_failure as log_failure
from ._base.errors import requeue_message as requeue_message
from ._base.message import Message as Message
from ._base.message import Returned as Returned
from ._base.settings import Address as Address
from ._base.settings import Settings as Settings
from ._base.settings import parse_address as parse_address
from ._channel.channel import Channel as Channel
from ._channel.channel import QueueDeclared as QueueDeclared
from ._channel.consumers import Inbox as Inbox
from ._channel.lifecycle import ChannelStatistics as ChannelStatistics
from ._channel.lifecycle import ConnectionStatistics as ConnectionStatistics
from ._channel.publishing import Confirm as Confirm
from ._connection.connection import Connection as Connection
from ._connection.connection import async_connect as async_connect
from ._connection.connection import connect as connect
from ._connection.fair_inbox import FairInbox as FairInbox

_one_line_each("multiqueue.client")

__all__ = [name for name in dir() if name[0].isalpha()]
