"""The frames of AMQP 0-9-1, for those who speak them and serve none: the client's room.

Promises that any bytes are either frames or one `ConnectionFault`. `multiqueue.amqp` shows these names too; this door
loads no broker.
"""

from ._wire.delivery_splitter import DeliverySplitter, WholeDelivery
from ._wire.errors import AmqpError, ChannelFault, ConnectionFault, FrameError, MalformedFrame
from ._wire.fields import decode_table, encode_short_string, encode_table, shortened
from ._wire.frames import (
    DEFAULT_FRAME_MAX,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT,
    MIN_FRAME_MAX,
    PROTOCOL_HEADER,
    Frame,
    FrameSplitter,
)
from ._wire.hot import (
    Ack,
    ContentHeader,
    Deliver,
    GetOk,
    Nack,
    Publish,
    Reject,
    Return,
    decode_header,
    decode_hot,
    deliver_prefix,
    encode_ack,
    encode_deliver,
    encode_get_ok,
    encode_nack,
    encode_publish,
    encode_reject,
    encode_return,
)
from ._wire.methods import decode_method, encode_method
from ._wire.properties import NO_PROPERTIES, Properties, decode_properties, encode_properties

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
    "Ack",
    "AmqpError",
    "ChannelFault",
    "ConnectionFault",
    "ContentHeader",
    "Deliver",
    "DeliverySplitter",
    "Frame",
    "FrameError",
    "FrameSplitter",
    "GetOk",
    "MalformedFrame",
    "Nack",
    "Properties",
    "Publish",
    "Reject",
    "Return",
    "WholeDelivery",
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
    "shortened",
]
