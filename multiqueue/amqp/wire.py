"""The frames of AMQP 0-9-1, for those who speak them and serve none: the client's room.

Promises that any bytes are either frames or one `ConnectionFault`. This door loads no broker.
"""

from ._wire.errors import REPLY_NAMES, AmqpError, ChannelFault, ConnectionFault, shortened
from ._wire.fields import decode_short_string, encode_table
from ._wire.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_TYPES,
    HEARTBEAT,
    PROTOCOL_HEADER,
    Frame,
    FrameSplitter,
    HeartbeatMonitor,
)
from ._wire.hot import (
    DELIVER,
    Ack,
    Deliver,
    GetOk,
    Nack,
    Reject,
    Return,
    Settlement,
    decode_header,
    decode_hot,
    encode_publish,
    encode_publish_method,
    encode_settlement,
)
from ._wire.methods import decode_method, encode_method
from ._wire.properties import NO_PROPERTIES, Properties, decode_properties, encode_properties

__all__ = [
    "DELIVER",
    "FRAME_BODY",
    "FRAME_END",
    "FRAME_HEAD",
    "FRAME_HEADER",
    "FRAME_HEARTBEAT",
    "FRAME_METHOD",
    "FRAME_TYPES",
    "HEARTBEAT",
    "NO_PROPERTIES",
    "PROTOCOL_HEADER",
    "REPLY_NAMES",
    "Ack",
    "AmqpError",
    "ChannelFault",
    "ConnectionFault",
    "Deliver",
    "Frame",
    "FrameSplitter",
    "GetOk",
    "HeartbeatMonitor",
    "Nack",
    "Properties",
    "Reject",
    "Return",
    "Settlement",
    "decode_header",
    "decode_hot",
    "decode_method",
    "decode_properties",
    "decode_short_string",
    "encode_method",
    "encode_properties",
    "encode_publish",
    "encode_publish_method",
    "encode_settlement",
    "encode_table",
    "shortened",
]
