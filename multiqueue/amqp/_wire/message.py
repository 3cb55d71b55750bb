"""A message that came over a wire: what a broker needs of it, and the rest as the bytes it came in.

Promise     Reads as any `Message`. Its bytes are kept beside its properties, so a message that passes from wire to wire
            comes out as it came in, unknown header types included. One that was changed on its way, or read from a
            store, keeps the bytes of every value that was not changed.
State       Every block of properties was validated when it came (`digest`). A persistent message has all slots set from
            the start: a durable queue writes them down, and reads twenty, each dearer in a class with `__getattr__`.
            A transient one is a `_LateMessage`, which decodes a slot that is not set; two threads that do so at once
            decode the same values, and that never fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Any, Final, NamedTuple

from ..._copies import Copier
from ...broker import Message, WireForm, deaths_of
from .errors import ChannelFault
from .fields import Long, encode_short_string, encode_table
from .frames import Content
from .properties import (
    FLAG_CLUSTER_ID,
    FLAG_DELIVERY_MODE,
    FLAG_EXPIRATION,
    FLAG_HEADERS,
    Properties,
    decode_properties,
    encode_properties,
    headers_in,
    property_flags,
    rewritten,
)

_LONGEST_LIFE: Final = 10 * 365 * 24 * 3600 * 1000  # milliseconds: ten years, as RabbitMQ
_DEATHS: Final = "x-death"
_LOOKED_AT: Final = frozenset({"CC", "BCC", "x-delay"})
_NO_HEADERS: Final[Mapping[str, object]] = {}
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


class _Came(WireForm):
    """A block of properties that came over a wire. `kept` is found out when somebody first asks."""

    __slots__ = ()

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.bcc = ()

    def __getattr__(self, name: str) -> bytes | None:
        if name != "kept":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.kept = found = self.block if _is_singular(self.block) else None
        return found


def _is_singular(block: bytes) -> bool:
    """Whether the fields of a `Message` would not give these bytes again."""
    flags = property_flags(block)
    if not flags & FLAG_DELIVERY_MODE or flags & FLAG_CLUSTER_ID:
        return True
    if not flags & (FLAG_HEADERS | FLAG_EXPIRATION):
        return False
    found = decode_properties(block)
    text = found.get("expiration")
    if text is not None and str(int(text)) != text:
        return True
    headers = found.get("headers")
    if not headers:
        return headers is not None
    try:
        return encode_table(headers) != headers_in(block)
    except ValueError:  # a time beyond 2^63, which is an integer here, and none of 64 bits
        return True


class WireMessage(Message):
    """A message with its properties, exchange and routing key as they were on the wire."""

    __slots__ = ("names", "properties")

    # Set by `wire_message`; not set on a copy that `dataclasses.replace` made.
    names: bytes
    properties: bytes


class _LateMessage(WireMessage):
    """A message whose properties are decoded when a caller first asks for one: of most messages none does."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """A field that was not decoded yet."""
        if name not in _REST:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        _set_rest(self, _rest_of(decode_properties(self.properties)))
        return object.__getattribute__(self, name)


# Setting a slot by its descriptor is what a frozen dataclass leaves us.
_descriptors = Message.__dict__
_set_wire = _descriptors["wire"].__set__
_REST: Final = (*_TEXTS, "priority", "timestamp")
_rest_setters: Final = tuple(_descriptors[name].__set__ for name in _REST)
_copies: Final = Copier(WireMessage, ("body",), ("exchange", "routing_key", "names", "publisher")).copies


def _rest_of(found: Properties) -> tuple[object, ...]:
    return tuple(map(found.get, _REST))


def _set_rest(message: WireMessage, rest: tuple[object, ...]) -> None:
    for put, value in zip(_rest_setters, rest, strict=True):
        put(message, value)


def _empty(kind: type[WireMessage], *, persistent: bool) -> WireMessage:
    """What is alike in all messages of a kind."""
    made = kind.__new__(kind)
    for name, value in (("persistent", persistent), ("delay", None), ("failures", 0)):
        _descriptors[name].__set__(made, value)
    return made


_PERSISTENT: Final = _empty(WireMessage, persistent=True)
_TRANSIENT: Final = _empty(_LateMessage, persistent=False)
_NO_FORM: Final = _Came(b"")
_templates: Final = Copier(WireMessage, ("wire", "properties", "headers", "expiration")).copies
_wire_forms: Final = Copier(_Came, ("block",)).copies


class Digest(NamedTuple):
    """A block of properties as publishing needs it."""

    special: bool  # user-id, reply-to, CC, BCC, x-delay, a delivery mode of no meaning: somebody has to look
    template: WireMessage  # a message with these properties, without body, address and publisher


def digest(properties: bytes) -> Digest:
    """Validate a block, and tell what publishing has to know of it. Raises MalformedFrame: it does not decode.
    ChannelFault: its expiration is no number of milliseconds."""
    found = decode_properties(properties)
    mode = found.get("delivery_mode", 1)
    headers = found.get("headers", _NO_HEADERS)
    special = "user_id" in found or "reply_to" in found or not headers.keys().isdisjoint(_LOOKED_AT)
    expiration = _expiration(found) if "expiration" in found else None
    wire = _wire_forms(_NO_FORM, [properties])
    if mode not in (1, 2):
        special, wire[0].kept = True, properties
    template = _templates(_PERSISTENT if mode == 2 else _TRANSIENT, wire, [properties], [headers], [expiration])[0]
    if mode == 2:
        _set_rest(template, _rest_of(found))
    return Digest(special, template)


def _expiration(found: Properties) -> float:
    text = found["expiration"]
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18 or int(digits) > _LONGEST_LIFE:
        raise ChannelFault(406, f"invalid expiration '{text}': not milliseconds, a whole number up to {_LONGEST_LIFE}")
    return int(text) / 1000


_LARGEST: Final = 512  # bytes of a block that is worth remembering
remembered = lru_cache(16_384)(digest)  # of all connections: some 14 MB where all are different


def digest_of(properties: bytes) -> Digest:
    """As `digest`, which is remembered for the blocks that were seen last: publishers send them again and again."""
    return remembered(properties) if len(properties) <= _LARGEST else digest(properties)


def wire_message(
    body: bytes,
    exchange: str,
    routing_key: str,
    names: bytes,
    properties: bytes,
    known: Digest,
    publisher: object,
    bcc: tuple[str, ...] = (),
) -> WireMessage:
    """A message from its frames. `names` are exchange and routing key as on the wire, `known` is of `properties`."""
    message = _copies(known.template, [body], exchange, routing_key, names, publisher)[0]
    if bcc:
        _set_wire(message, WireForm(properties, bcc))
    return message


def wire_messages(
    bodies: list[bytes],
    exchange: str,
    routing_key: str,
    names: bytes,
    templates: list[WireMessage],
    publisher: object,
) -> list[WireMessage]:
    """As `wire_message`, with these bodies, of one address; `templates` are those of their digests."""
    return _copies(templates, bodies, exchange, routing_key, names, publisher)


def names_of(message: Message) -> bytes:
    names: bytes | None = getattr(message, "names", None)  # not on a copy that `replace` made
    return names or encode_short_string(message.exchange) + encode_short_string(message.routing_key)


def properties_of(message: Message) -> bytes:
    """The block of properties, as on the wire.

    Raises:
        ValueError, TypeError: a property, or a header, that no wire can carry.
    """
    block: bytes | None = getattr(message, "properties", None)  # not on a copy that `replace` made
    if block is not None:
        return block
    found: dict[str, object] = {name: getattr(message, name) for name in (*_REST, "delivery_mode")}
    found["headers"] = _headers_of(message)
    if message.expiration not in (None, inf):
        found["expiration"] = str(round(message.expiration * 1000))
    if message.wire is None or message.wire.kept is None:
        return encode_properties(found)
    _keep(found, message, message.wire.block)
    return encode_properties(found, message.wire.block)


def _headers_of(message: Message) -> Mapping[str, object] | None:
    """Its headers, None for none; deaths are counted in the type that RabbitMQ counts them in."""
    headers = message.headers
    deaths = headers.get(_DEATHS)
    if isinstance(deaths, list):
        counted = [
            {**death, "count": Long(count)} if type(count := death.get("count")) is int else death
            for death in deaths_of(message)
        ]
        if len(counted) == len(deaths):
            return {**headers, _DEATHS: counted}
    return headers or None


def _keep(found: dict[str, object], message: Message, block: bytes) -> None:
    """Let what fields cannot say, and what was not changed since, be as it came."""
    came = decode_properties(block)
    if found["headers"] is None and "headers" in came:
        found["headers"] = {}
    if not message.persistent and came.get("delivery_mode") != 2:
        found["delivery_mode"] = came.get("delivery_mode")
    found["cluster_id"] = came.get("cluster_id")
    text = came.get("expiration")
    if text is not None and message.expiration == int(text) / 1000:
        found["expiration"] = text


def body_of(message: Message) -> bytes:
    """The body as bytes. Raises ValueError: it is an object of this process, not bytes and no text."""
    body = message.body
    if type(body) is bytes:
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    raise ValueError(f"a body of type {type(body).__name__} cannot leave its process; publish bytes")


def content_of(message: Message) -> Content:
    """Exchange and routing key, the block of properties, the body. Raises as `properties_of` and `body_of`."""
    if isinstance(message, WireMessage):
        try:
            names, properties, body = message.names, message.properties, message.body
        except AttributeError:
            pass  # a copy made by `replace`
        else:
            if type(body) is bytes:
                return names, properties, body
    return names_of(message), properties_of(message), body_of(message)


def with_headers(properties: bytes, added: Mapping[str, object]) -> bytes:
    return rewritten(properties, headers={**decode_properties(properties).get("headers", _NO_HEADERS), **added})


def without_header(properties: bytes, name: str) -> bytes:
    headers = dict(decode_properties(properties).get("headers", _NO_HEADERS))
    headers.pop(name, None)
    return rewritten(properties, headers=headers)
