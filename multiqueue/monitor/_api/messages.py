"""Messages over HTTP: publish one, get some, look at some without taking them, move them."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Mapping
from typing import Any, Final

from ..._carried import check_value
from ...amqp import ChannelFault, Properties, counts_of, decode_properties, properties_of, publish_alone
from ...broker import BrokerError, Message, Published, Received, VirtualHost
from .._base.errors import Refused, bad_request
from .._base.held import Hold
from .._base.pieces import Parted, Payload
from .asking import Answer
from .bodies import shown
from .views import View, plain

LARGEST_ANSWER: Final = 4 * 2**20  # bytes of their bodies, as far as they are shown
_NAMED_BY_KIND: Final = "a queue or exchange that is missing at a get or publish is named by its kind"
_LARGEST_LOOK: Final = 32 * 2**20  # bytes of bodies that are read for it
_OF_ONE: Final = 256  # bytes that a message costs beside its body
CUT: Final = "x-multiqueue-cut"  # the header of an answer that has not all that was asked for
_turn: Final = threading.Semaphore(1)  # one answer at a time has read bodies that it does not show
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
        if error.reply_code == 404 and host.compat.says(_NAMED_BY_KIND):
            raise Refused(404, "not_found", "exchange_not_found") from None
        raise bad_request(f"{error.reply_code} {error.reply_text}") from None
    return published


def _payload(payload: str, encoding: str) -> bytes:
    if encoding == "string":
        return payload.encode()
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("the payload is not Base64") from None


def get_messages(
    host: VirtualHost, queue: str, hold: Hold, *, count: int, ackmode: str, encoding: str, truncate: int | None
) -> Answer:
    """Take up to `count` messages and settle them as `ackmode` says; in the order of the queue. An answer that is full
    has fewer: its header says so, and the others stay.

    Raises:
        Refused: no such queue, or it is another's; a message that would be gone and does not fit into an answer. It
            stays.
    """
    shown = _Shown(encoding, truncate)
    is_kept = ackmode.endswith("requeue_true")
    hold(LARGEST_ANSWER)
    taken: list[Received] = []
    with _turn:
        try:
            settings = host.queue(queue).settings
            host.compat.check_get(host.queue(queue).label, settings.type, is_single=settings.single_active_consumer)
            while True:
                more = len(taken) < count and not shown.is_full
                received = host.get(queue) if more else None
                if received is None:
                    break
                taken.append(received)
                if shown.add(received.message, received.redelivered, counts_of(received.entry)) or is_kept:
                    continue
                size = shown.views.pop()["payload_bytes"]
                if not shown.views:
                    why = f"the first message has {size} bytes, an answer {LARGEST_ANSWER}; give truncate"
                    raise bad_request(f"{why}, or an ackmode that puts it back")
                taken.pop().release()
            left = host.queue(queue).statistics().available + len(taken)
        except BrokerError as error:
            _settle(taken, "ack_requeue_true")
            if error.reply_code == 404:
                said = "queue_not_found" if host.compat.says(_NAMED_BY_KIND) else error.reply_text
                raise Refused(404, "not_found", said) from None
            raise bad_request(f"{error.reply_code} {error.reply_text}") from None
        except BaseException:
            _settle(taken, "ack_requeue_true")
            raise
        _settle(taken, ackmode)
        return shown.answer(left, is_all=len(taken) == count or left == len(taken))


def _settle(taken: list[Received], mode: str) -> None:
    """Settle each message, the last first where they go back: then none overtakes another."""
    for each in reversed(taken) if mode.endswith("requeue_true") else taken:
        if mode.endswith("requeue_true"):
            each.release(failed=mode.startswith("reject"))
        elif mode.startswith("ack"):
            each.accept()
        else:
            each.reject()


def peek_messages(
    host: VirtualHost, queue: str, hold: Hold, *, count: int, encoding: str, truncate: int | None
) -> Answer:
    """The first ready messages of a queue; they stay where they are, unflagged. An answer that is full has fewer."""
    shown = _Shown(encoding, truncate)
    hold(LARGEST_ANSWER)
    with _turn:
        found = host.queue(queue).browse(limit=count, limit_bytes=_LARGEST_LOOK)
        for message in found:
            if not shown.is_full:
                shown.add(message, False, {})
        left = len(host.queue(queue))
        return shown.answer(left, is_all=len(shown.views) >= min(count, left))


class _Shown:
    """The messages of an answer, until it is full."""

    def __init__(self, encoding: str, truncate: int | None) -> None:
        self._encoding = encoding
        self._truncate = truncate
        self._left = LARGEST_ANSWER
        self._unread = _LARGEST_LOOK
        self.views: list[Parted] = []

    @property
    def is_full(self) -> bool:
        """Whether no further message is looked at."""
        return self._left <= 0 or self._unread <= 0

    def add(self, message: Message, redelivered: bool, counts: Mapping[str, object]) -> bool:
        """Show a message, its body as far as there is room; False where that is less than was asked for."""
        body = message.body
        raw = body.encode(errors="backslashreplace") if isinstance(body, str) else body
        if not isinstance(raw, bytes | bytearray | memoryview):
            raw = repr(body).encode()  # an object of this process: what can be shown of it
        wanted = len(raw) if self._truncate is None else min(len(raw), self._truncate)
        payload = Payload(bytes(raw[: min(wanted, self._left)]), may_be_text=self._encoding == "auto")
        self.views.append(
            Parted(
                payload_bytes=len(raw),
                redelivered=redelivered,
                exchange=message.exchange,
                routing_key=message.routing_key,
                message_count=0,
                properties=_properties(message, counts) or [],
                payload=payload,
                payload_encoding=payload.encoding,
            )
        )
        fits = wanted <= self._left
        self._left -= wanted + _OF_ONE
        self._unread -= len(raw)
        return fits

    def answer(self, left: int, *, is_all: bool) -> Answer:
        """The messages, of a queue that has so many; `is_all`: as many as were asked for."""
        for place, view in enumerate(self.views):
            view["message_count"] = max(0, left - 1 - place)
        is_cut = self.is_full and (not is_all or self._left < -_OF_ONE)
        text = f"{len(self.views)} messages; an answer has {LARGEST_ANSWER} bytes of bodies, of {_LARGEST_LOOK} at most"
        return Answer(200, self.views, {CUT: text} if is_cut else {})


def _properties(message: Message, counts: Mapping[str, object]) -> View:
    """The properties as a consumer would get them; of a message that none can get, what can be shown of it."""
    try:
        found: dict[str, Any] = dict(decode_properties(properties_of(message)))
    except (ValueError, TypeError):
        found = {name: _shown(value) for name in _SHOWN if (value := getattr(message, name))}
    if counts:
        found["headers"] = {**(found.get("headers") or {}), **counts}
    if not found.get("headers"):
        found.pop("headers", None)
    return {name: plain(value) for name, value in found.items()}


def _shown(value: object) -> object:
    try:
        check_value(value)
    except (ValueError, TypeError):
        return shown(value)
    return value
