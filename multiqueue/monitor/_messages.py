"""Messages over HTTP: publish one, get some, look at some without taking them, move them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from .._carried import check_value
from ..amqp import ChannelFault, Properties, decode_properties, properties_of, publish_alone
from ..broker import BrokerError, Message, Published, Received, VirtualHost
from ._bodies import shown
from ._errors import Refused, bad_request
from ._views import View, plain

_SHOWN: Final = tuple(name for name in Properties.__annotations__ if name != "cluster_id")


def publish(
    host: VirtualHost,
    user: str,
    exchange: str,
    most: int | None,
    *,
    properties: Mapping[str, Any],
    routing_key: str,
    payload: str,
    payload_encoding: str,
) -> Published:
    """One message, published as over a channel: what AMQP cannot carry is refused. `most` bytes may be its body.

    Raises:
        Refused: a property that no message has, or a payload that does not decode; what the broker refuses.
    """
    body = _payload(payload, payload_encoding)
    if most is not None and len(body) > most:
        raise bad_request(f"payload has {len(body)} bytes; this broker takes {most} at most")
    expiration = properties.get("expiration")
    if isinstance(expiration, int) and not isinstance(expiration, bool):
        properties = {**properties, "expiration": str(expiration)}
    try:
        published = publish_alone(host, user, exchange, routing_key, properties, body)
        published.wait()
    except (ValueError, TypeError) as error:
        raise bad_request(f"properties: {error}") from None
    except ChannelFault as error:
        raise bad_request(f"{error.reply_code} {error.reply_text}") from None
    except BrokerError as error:
        raise bad_request(f"{error.reply_code} {error.reply_text}") from None
    return published


def _payload(payload: str, encoding: str) -> bytes:
    if encoding == "string":
        return payload.encode()
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("the payload is no Base64") from None


def get_messages(
    host: VirtualHost, queue: str, *, count: int, ackmode: str, encoding: str, truncate: int | None
) -> list[View]:
    """Take up to `count` messages and settle them as `ackmode` says; in the order of the queue.

    Raises:
        Refused: no such queue, or it is another's.
    """
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
    _settle(taken, ackmode)
    return views


def _settle(taken: list[Received], mode: str) -> None:
    """Settle each message, the last first where they go back: then none overtakes another."""
    for each in reversed(taken) if mode.endswith("requeue_true") else taken:
        if mode.endswith("requeue_true"):
            each.release()
        elif mode.startswith("ack"):
            each.accept()
        else:
            each.reject()


def peek_messages(host: VirtualHost, queue: str, *, count: int, encoding: str, truncate: int | None) -> list[View]:
    """The first ready messages of a queue; they stay where they are, unflagged."""
    found = host.queue(queue).browse(limit=count)
    left = len(host.queue(queue))
    return [_view(each, False, max(0, left - 1 - place), encoding, truncate) for place, each in enumerate(found)]


def _view(message: Message, redelivered: bool, left: int, encoding: str, truncate: int | None) -> View:
    body = message.body
    raw = body.encode(errors="backslashreplace") if isinstance(body, str) else body
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
    """The properties as a consumer would get them; of a message that none can get, what can be shown of it."""
    try:
        found = dict(decode_properties(properties_of(message)))
    except (ValueError, TypeError):
        found = {name: _shown(value) for name in _SHOWN if (value := getattr(message, name))}
    if not found.get("headers"):
        found.pop("headers", None)
    return {name: plain(value) for name, value in found.items()}


def _shown(value: object) -> object:
    try:
        check_value(value)
    except (ValueError, TypeError):
        return shown(value)
    return value
