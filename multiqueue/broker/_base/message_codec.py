"""A message as a store keeps it: everything but the body in one short text, the body as it is.

The text is a JSON object of the properties that differ from a new message's, by the names of `_NAMES`: it can be read
by eye. `publisher` is not among them: it is a connection, and gone. Where the properties would not give the bytes
again that a wire brought, those are kept beside them. Pure functions, one with a memory of frequent addresses.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from .json_values import load, to_json, write
from .message import Message, WireForm

# Short, because they are written with every message; never reused for another property.
_NAMES: Final = {
    "routing_key": "k",
    "exchange": "x",
    "priority": "p",
    "expiration": "e",
    "delay": "d",
    "content_type": "ct",
    "content_encoding": "ce",
    "correlation_id": "ci",
    "reply_to": "rt",
    "message_id": "mi",
    "timestamp": "ts",
    "type": "ty",
    "user_id": "ui",
    "app_id": "ai",
    "failures": "f",
}
_KEYS: Final = tuple(_NAMES.values())
_PROPERTIES: Final = {key: name for name, key in _NAMES.items()}
_values_of: Final = attrgetter(*_NAMES)
_DEFAULTS: Final = _values_of(Message())
_UNSET: Final = _DEFAULTS[2:]  # all but the address
_HEADERS, _TRANSIENT, _HELD_UNTIL, _IN_DOUBT, _WIRE, _BCC = "h", "v", "u", "q", "w", "bc"


class StoredForm(NamedTuple):
    """A message as it was stored. `in_doubt`: it may have been delivered; `held_until`, in seconds since 1970, is not
    written any more: a column of the store has it."""

    message: Message
    held_until: float | None
    in_doubt: bool


def encode_message(message: Message, *, in_doubt: bool = False) -> bytes:
    """The properties of a message, and whether it is in doubt, for `decode_message`. Raises as `dump`."""
    values = _values_of(message)
    wire = message.wire
    if wire is not None and wire.kept is None:
        wire = None
    if not in_doubt and wire is None and not message.headers and values[2:] == _UNSET:
        return _address_alone(values[0], values[1], message.persistent)
    fields: dict[str, object] = {}
    for key, value, default in zip(_KEYS, values, _DEFAULTS, strict=True):
        if value != default:
            fields[key] = value if type(value) is str else to_json(value, _PROPERTIES[key])
    if message.headers:
        fields[_HEADERS] = to_json(message.headers, "headers")
    if not message.persistent:
        fields[_TRANSIENT] = True
    if in_doubt:
        fields[_IN_DOUBT] = True
    if wire is not None:
        fields[_WIRE] = base64.b64encode(wire.block).decode()
        if wire.bcc:
            fields[_BCC] = wire.bcc
    return write(fields).encode()


@lru_cache(maxsize=1024)
def _address_alone(routing_key: str, exchange: str, persistent: bool) -> bytes:
    """A message without other properties, encoded: most have one of few addresses."""
    fields = {"k": routing_key, "x": exchange, _TRANSIENT: not persistent}
    return write({key: value for key, value in fields.items() if value}).encode()


def decode_message(properties: bytes, body: bytes) -> Message:
    """The message that was encoded, with its body, or with none for a caller that needs the rest. Raises as `load`."""
    return decode_stored(properties, body).message


def decode_stored(properties: bytes, body: bytes) -> StoredForm:
    """Everything that was encoded. Raises as `decode_message`."""
    fields = load(properties)
    if not isinstance(fields, dict):
        raise ValueError(f"no properties of a message: {properties[:40]!r}")
    arguments: dict[str, Any] = {"persistent": _TRANSIENT not in fields}
    for key, value in fields.items():
        name = _PROPERTIES.get(key)
        if name is not None:
            arguments[name] = value
        elif key == _HEADERS:
            arguments["headers"] = value
        elif key == _WIRE:
            arguments["wire"] = WireForm(base64.b64decode(value), tuple(fields.get(_BCC, ())))
    return StoredForm(Message(body, **arguments), fields.get(_HELD_UNTIL), _IN_DOUBT in fields)
