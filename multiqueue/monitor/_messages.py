"""Messages over HTTP: publish one, get some, look at some without taking them, move them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from ..amqp import decode_properties
from ..broker import BrokerError, Message, Received, VirtualHost
from ._errors import Refused, bad_request
from ._views import View, plain

LARGEST_COUNT: Final = 10_000  # messages of one get: all of them stand in one answer
_TEXTS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
)
_KNOWN: Final = frozenset({*_TEXTS, "headers", "delivery_mode", "priority", "expiration", "timestamp", "cluster_id"})
ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
ENCODINGS: Final = ("auto", "base64")


def message_of(exchange: str, asked: Mapping[str, Any]) -> Message:
    """The message that a publish asks for.

    Raises:
        Refused: a property that no message has, or a payload that does not decode.
    """
    properties = asked["properties"] or {}
    if not isinstance(properties, dict):
        raise bad_request("properties is no object")
    unknown = sorted(set(properties) - _KNOWN)
    if unknown:
        raise bad_request(f"unknown property {unknown[0]!r}; one of {', '.join(sorted(_KNOWN))}")
    fields: dict[str, Any] = {}
    for name in _TEXTS:
        value = properties.get(name)
        if value is not None:
            fields[name] = _of_type(name, value, str)
    if properties.get("headers"):
        fields["headers"] = _of_type("headers", properties["headers"], dict)
    if properties.get("priority") is not None:
        fields["priority"] = _of_type("priority", properties["priority"], int)
    if properties.get("timestamp") is not None:
        fields["timestamp"] = _of_type("timestamp", properties["timestamp"], int)
    if properties.get("expiration") is not None:
        fields["expiration"] = _milliseconds(properties["expiration"])
    fields["persistent"] = properties.get("delivery_mode") == 2
    routing_key = _of_type("routing_key", asked["routing_key"], str)
    return Message(_payload(asked), routing_key=routing_key, exchange=exchange, **fields)


def _payload(asked: Mapping[str, Any]) -> bytes:
    payload = _of_type("payload", asked["payload"], str)
    encoding = asked["payload_encoding"]
    if encoding == "string":
        return str(payload).encode()
    if encoding != "base64":
        raise bad_request(f"payload_encoding is {encoding!r}; it is string or base64")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("the payload is no Base64") from None


def _of_type(name: str, value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise bad_request(f"{name} is {value!r}; it is {wanted.__name__}")
    return value


def _milliseconds(value: Any) -> float:
    text = str(value)
    if not text.isdecimal():
        raise bad_request(f"expiration is {value!r}; it is a whole number of milliseconds")
    return int(text) / 1000


def get_messages(host: VirtualHost, queue: str, asked: Mapping[str, Any]) -> list[View]:
    """Take up to `count` messages and settle them as `ackmode` says; in the order of the queue.

    Raises:
        Refused: a value that does not fit, or no such queue.
    """
    count, mode, encoding = asked["count"], asked["ackmode"], asked["encoding"]
    if isinstance(count, str) and count.isdecimal():
        count = int(count)
    if not isinstance(count, int) or not 0 <= count <= LARGEST_COUNT:
        raise bad_request(f"count is {count!r}; it is from 0 to {LARGEST_COUNT}")
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode is {mode!r}; it is one of {', '.join(ACK_MODES)}")
    if encoding not in ENCODINGS:
        raise bad_request(f"encoding is {encoding!r}; it is auto or base64")
    truncate = _truncation(asked.get("truncate"))
    taken: list[Received] = []
    try:
        while len(taken) < count and (received := host.get(queue)) is not None:
            taken.append(received)
        left = len(host.queue(queue))
        views = [
            _view(each.message, each.redelivered, left - 1 - place, encoding, truncate)
            for place, each in enumerate(taken)
        ]
    except BrokerError as error:
        _settle(taken, "ack_requeue_true")
        if error.reply_code == 404:
            raise Refused(404, "not_found", error.reply_text) from None
        raise bad_request(error.reply_text) from None
    except BaseException:
        _settle(taken, "ack_requeue_true")
        raise
    _settle(taken, mode)
    return views


def _truncation(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise bad_request(f"truncate is {value!r}; it is a number of bytes")
    return value


def _settle(taken: list[Received], mode: str) -> None:
    """Settle each message, the last first where they go back: then none overtakes another."""
    for each in reversed(taken) if mode.endswith("requeue_true") else taken:
        if mode.endswith("requeue_true"):
            each.release()
        elif mode.startswith("ack"):
            each.accept()
        else:
            each.reject()


def peek_messages(host: VirtualHost, queue: str, count: int, encoding: str, truncate: int | None) -> list[View]:
    """The first ready messages of a queue; they stay where they are, unflagged."""
    found = host.queue(queue).browse(limit=count)
    left = len(host.queue(queue))
    return [_view(each, False, max(0, left - 1 - place), encoding, truncate) for place, each in enumerate(found)]


def _view(message: Message, redelivered: bool, left: int, encoding: str, truncate: int | None) -> View:
    body = message.body
    raw = body.encode() if isinstance(body, str) else body
    if not isinstance(raw, bytes | bytearray | memoryview):
        raw = repr(body).encode()  # an object of this process: what can be shown of it
    raw = bytes(raw)
    payload, how = _encoded(raw if truncate is None else raw[:truncate], encoding)
    return {
        "payload_bytes": len(raw),
        "redelivered": redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": max(0, left),
        "properties": _properties(message) or [],
        "payload": payload,
        "payload_encoding": how,
    }


def _encoded(raw: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return raw.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(raw).decode(), "base64"


def _properties(message: Message) -> View:
    on_the_wire = getattr(message, "properties", None)
    if isinstance(on_the_wire, bytes):
        found: Mapping[str, Any] = decode_properties(on_the_wire)
        view = {name: plain(value) for name, value in found.items()}
    else:
        view = {name: getattr(message, name) for name in _TEXTS if getattr(message, name) is not None}
        if message.persistent:
            view["delivery_mode"] = 2
        if message.priority is not None:
            view["priority"] = message.priority
        if message.expiration is not None:
            view["expiration"] = str(round(message.expiration * 1000))
        if message.timestamp is not None:
            view["timestamp"] = int(message.timestamp)
    if message.headers:
        view["headers"] = plain(message.headers)
    return view
