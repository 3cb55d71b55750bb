"""The gatehouse: AMQP 0-9-1 frames, and the server that lets clients from outside reach a broker.

Promises that any bytes are either a frame or a clean end of one connection. The frames are for both sides: the
client's room uses them too. Knows `multiqueue.core` and `multiqueue.broker`, through their doors. Needs pamqp
(`blocking-multiqueue[amqp]`), whose description of the methods the codec of the rare ones reads.
"""

from .._logs import one_line_each as _one_line_each
from ._delivery_splitter import DeliverySplitter as DeliverySplitter
from ._delivery_splitter import WholeDelivery as WholeDelivery
from ._ending import end_each as end_each
from ._errors import AmqpError as AmqpError
from ._errors import ChannelFault as ChannelFault
from ._errors import ConfigError as ConfigError
from ._errors import ConnectionFault as ConnectionFault
from ._errors import FixedUser as FixedUser
from ._errors import FrameError as FrameError
from ._errors import MalformedFrame as MalformedFrame
from ._errors import ServerError as ServerError
from ._fields import decode_table as decode_table
from ._fields import encode_short_string as encode_short_string
from ._fields import encode_table as encode_table
from ._fields import shortened as shortened
from ._figures import ChannelFigures as ChannelFigures
from ._figures import ConnectionFigures as ConnectionFigures
from ._figures import ConsumerFigures as ConsumerFigures
from ._frames import DEFAULT_FRAME_MAX as DEFAULT_FRAME_MAX
from ._frames import FRAME_BODY as FRAME_BODY
from ._frames import FRAME_HEADER as FRAME_HEADER
from ._frames import FRAME_HEARTBEAT as FRAME_HEARTBEAT
from ._frames import FRAME_METHOD as FRAME_METHOD
from ._frames import HEARTBEAT as HEARTBEAT
from ._frames import MIN_FRAME_MAX as MIN_FRAME_MAX
from ._frames import PROTOCOL_HEADER as PROTOCOL_HEADER
from ._frames import Frame as Frame
from ._frames import FrameSplitter as FrameSplitter
from ._hot import Ack as Ack
from ._hot import ContentHeader as ContentHeader
from ._hot import Deliver as Deliver
from ._hot import GetOk as GetOk
from ._hot import Nack as Nack
from ._hot import Publish as Publish
from ._hot import Reject as Reject
from ._hot import Return as Return
from ._hot import decode_header as decode_header
from ._hot import decode_hot as decode_hot
from ._hot import deliver_prefix as deliver_prefix
from ._hot import encode_ack as encode_ack
from ._hot import encode_deliver as encode_deliver
from ._hot import encode_get_ok as encode_get_ok
from ._hot import encode_nack as encode_nack
from ._hot import encode_publish as encode_publish
from ._hot import encode_reject as encode_reject
from ._hot import encode_return as encode_return
from ._logins import Logins as Logins
from ._message import Digests as Digests
from ._message import properties_of as properties_of
from ._message import wire_message as wire_message
from ._methods import decode_method as decode_method
from ._methods import encode_method as encode_method
from ._properties import NO_PROPERTIES as NO_PROPERTIES
from ._properties import Properties as Properties
from ._properties import decode_properties as decode_properties
from ._properties import encode_properties as encode_properties
from ._replies import REPLY_PREFIX as REPLY_PREFIX
from ._replies import REPLY_TO as REPLY_TO
from ._replies import reply_queues as reply_queues
from ._routing import routed as routed
from ._routing import with_reply_address as with_reply_address
from ._security import RABBITMQ_HASH as RABBITMQ_HASH
from ._security import Access as Access
from ._security import Permissions as Permissions
from ._security import Rights as Rights
from ._security import User as User
from ._security import check_hash as check_hash
from ._security import guest as guest
from ._security import hash_password as hash_password
from ._security import is_loopback as is_loopback
from ._server import Server as Server
from ._server import listening_socket as listening_socket
from ._server import memory_used_bytes as memory_used_bytes
from ._server import open_files_limit as open_files_limit
from ._server import serve as serve
from ._settings import ServerSettings as ServerSettings
from ._tls import server_tls as server_tls

_one_line_each("multiqueue.amqp")

__all__ = [
    "DEFAULT_FRAME_MAX",
    "FRAME_BODY",
    "FRAME_HEADER",
    "FRAME_HEARTBEAT",
    "FRAME_METHOD",
    "HEARTBEAT",
    "MIN_FRAME_MAX",
    "NO_PROPERTIES",
    "PROTOCOL_HEADER",
    "RABBITMQ_HASH",
    "REPLY_PREFIX",
    "REPLY_TO",
    "Access",
    "Ack",
    "AmqpError",
    "ChannelFault",
    "ChannelFigures",
    "ConfigError",
    "ConnectionFault",
    "ConnectionFigures",
    "ConsumerFigures",
    "ContentHeader",
    "Deliver",
    "DeliverySplitter",
    "Digests",
    "FixedUser",
    "Frame",
    "FrameError",
    "FrameSplitter",
    "GetOk",
    "Logins",
    "MalformedFrame",
    "Nack",
    "Permissions",
    "Properties",
    "Publish",
    "Reject",
    "Return",
    "Rights",
    "Server",
    "ServerError",
    "ServerSettings",
    "User",
    "WholeDelivery",
    "check_hash",
    "decode_header",
    "decode_hot",
    "decode_method",
    "decode_properties",
    "decode_table",
    "deliver_prefix",
    "encode_ack",
    "encode_deliver",
    "encode_get_ok",
    "encode_method",
    "encode_nack",
    "encode_properties",
    "encode_publish",
    "encode_reject",
    "encode_return",
    "encode_short_string",
    "encode_table",
    "end_each",
    "guest",
    "hash_password",
    "is_loopback",
    "listening_socket",
    "memory_used_bytes",
    "open_files_limit",
    "properties_of",
    "reply_queues",
    "routed",
    "serve",
    "server_tls",
    "shortened",
    "wire_message",
    "with_reply_address",
]
