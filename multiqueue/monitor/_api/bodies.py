"""What requests bring in their bodies: each field once, with its allowed values, and the decoder of all of them.

Promise     A value that AMQP could not carry, or that a setting does not take, is refused here with the path of its
            field, before anything is changed. The broker checks the values of a queue's arguments.
Null        A field that is null is a field that is not there.
Others      Further fields are passed over: RabbitMQ's tools send back the objects that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from reprlib import Repr
from typing import Any, Final, get_type_hints

from ..._carried import check_value, long_string, short_string
from ..._patterns import bounded_pattern
from ...amqp import RABBITMQ_HASH, Properties
from ...broker import APPLY_TO, EXCHANGE_TYPES
from .._base.errors import bad_request

LARGEST_COUNT: Final = 10_000  # messages of one get: all of them stand in one answer
_LARGEST: Final = 2**63 - 1
_short = Repr()
_short.maxstring, _short.maxother = 255, 60
shown: Final = _short.repr  # a value in a sentence: as deep and long as a reader follows


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be: the end of the sentence "it is ...", how it is read, and the same as JSON Schema.

    `read` takes the value and its path, and raises ValueError or TypeError.
    """

    words: str
    read: Callable[[Any, str], Any]
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object. One that is not there is `default`; one that must be there has none."""

    kind: Kind
    default: Any = None
    is_required: bool = False


Body = Mapping[str, Field]


def read_body(body: Body, found: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of all fields of `body`.

    Raises:
        Refused: a field is missing, or has a wrong value.
    """
    missing = [name for name, field in body.items() if field.is_required and name not in found]
    if missing:
        keys = ",".join(f"{{key_missing,{name}}}" for name in missing)
        raise bad_request(f"{path}: [{keys}]" if path else f"[{keys}]")
    return {
        name: field.default
        if (value := found.get(name)) is None and not field.is_required
        else read_value(field.kind, value, f"{path}.{name}" if path else name)
        for name, field in body.items()
    }


def read_value(kind: Kind, value: Any, path: str) -> Any:
    """The value, as it is used. Raises Refused: it is not of this kind."""
    try:
        return kind.read(value, path)
    except (ValueError, TypeError) as error:
        why = f": {error}" if str(error) else ""
        raise bad_request(f"{path} is {shown(value)}; it is {kind.words}{why}") from None


def _unless(fits: bool) -> None:
    if not fits:
        raise ValueError


def _text(value: Any, path: str) -> str:
    _unless(isinstance(value, str))
    long_string(value)
    return str(value)


def _name(value: Any, path: str) -> str:
    _unless(isinstance(value, str))
    short_string(value)
    return str(value)


def _flag(value: Any, path: str) -> bool:
    _unless(isinstance(value, bool) or value in ("true", "false"))  # as text from `rabbitmqadmin`
    return value in (True, "true")


def _table(value: Any, path: str) -> dict[str, Any]:
    _unless(isinstance(value, dict))
    check_value(value)
    return dict(value)


def _table_or_nothing(value: Any, path: str) -> dict[str, Any]:
    """A table; RabbitMQ writes one that is empty as a list."""
    return _table(value or {}, path)


def _object(value: Any, path: str) -> dict[str, Any]:
    _unless(isinstance(value, dict))
    return dict(value)


def _tags(value: Any, path: str) -> frozenset[str]:
    names = value.split(",") if isinstance(value, str) else value
    _unless(isinstance(names, list))
    return frozenset(name for each in names if (name := _name(each, path).strip()))


def _expression(value: Any, path: str) -> str:
    bounded_pattern(_text(value, path))
    return str(value)


def _whole(least: int, most: int) -> Kind:
    def read(value: Any, path: str) -> int:
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
            value = int(value)
        _unless(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most)
        return int(value)

    words = f"a whole number from {least} to {most}"
    return Kind(words, read, {"type": "integer", "minimum": least, "maximum": most})


def _number(value: Any, path: str) -> int:
    _unless(isinstance(value, int) and not isinstance(value, bool))
    return int(value)


def one_of(*choices: str) -> Kind:
    def read(value: Any, path: str) -> str:
        _unless(isinstance(value, str) and value in choices)
        return str(value)

    return Kind(f"one of {', '.join(choices)}", read, {"type": "string", "enum": list(choices)})


def list_of(kind: Kind) -> Kind:
    def read(value: Any, path: str) -> list[Any]:
        _unless(isinstance(value, list))
        return [read_value(kind, each, f"{path}[{index}]") for index, each in enumerate(value)]

    return Kind("a list", read, {"type": "array", "items": kind.schema})


def object_of(body: Body) -> Kind:
    def read(value: Any, path: str) -> dict[str, Any]:
        _unless(isinstance(value, dict))
        return read_body(body, value, path)

    return Kind("an object", read, schema_of(body))


def schema_of(body: Body) -> dict[str, Any]:
    """The same as JSON Schema."""
    return {
        "type": "object",
        "properties": {name: field.kind.schema for name, field in body.items()},
        "required": [name for name, field in body.items() if field.is_required],
    }


_TYPES: Final = {str: "string", int: "integer"}
_PROPERTIES: Final = {name: {"type": _TYPES.get(type, "object")} for name, type in get_type_hints(Properties).items()}

TEXT: Final = Kind("text", _text, {"type": "string"})
PASSWORD: Final = Kind("text", _text, {"type": "string", "format": "password"})
NAME: Final = Kind("text of at most 255 bytes", _name, {"type": "string", "maxLength": 255})
FLAG: Final = Kind("true or false", _flag, {"type": "boolean"})
TABLE: Final = Kind("an object", _table, {"type": "object"})
PROPERTIES: Final = Kind("an object", _table_or_nothing, {"type": "object", "properties": _PROPERTIES})
OBJECT: Final = Kind("an object", _object, {"type": "object"})
ANYTHING: Final = Kind("anything", lambda value, path: value, {})
TAGS: Final = Kind("a list of names, or one text with commas", _tags, {"type": ["array", "string"]})
EXPRESSION: Final = Kind("a regular expression", _expression, {"type": "string", "format": "regex"})
COUNT: Final = _whole(0, LARGEST_COUNT)
BYTES: Final = _whole(0, _LARGEST)


def _needed(kind: Kind) -> Field:
    return Field(kind, is_required=True)


_NO_TABLE: Final[Mapping[str, Any]] = {}
_FLAG: Final = Field(FLAG, False)
_ARGUMENTS: Final = Field(TABLE, _NO_TABLE)
_HASH: Final[Body] = {"password_hash": Field(TEXT, ""), "hashing_algorithm": Field(one_of(RABBITMQ_HASH, "scrypt"))}

QUEUE: Final[Body] = {"durable": _FLAG, "auto_delete": _FLAG, "arguments": _ARGUMENTS}
EXCHANGE: Final[Body] = {
    "type": _needed(replace(NAME, schema={**NAME.schema, "examples": EXCHANGE_TYPES})),
    **QUEUE,
    "internal": _FLAG,
}
BINDING: Final[Body] = {"routing_key": Field(NAME, ""), "arguments": _ARGUMENTS}
PUBLISH: Final[Body] = {
    "properties": _needed(PROPERTIES),
    "routing_key": _needed(NAME),
    "payload": _needed(TEXT),
    "payload_encoding": _needed(one_of("string", "base64")),
}
GET: Final[Body] = {
    "count": _needed(COUNT),
    "ackmode": _needed(one_of("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")),
    "encoding": _needed(one_of("auto", "base64")),
    "truncate": Field(BYTES),
}
PEEK: Final[Body] = {
    "count": Field(COUNT, 10),
    "truncate": Field(BYTES),
    "encoding": Field(GET["encoding"].kind, "auto"),
}
# The broker says what each may be; here null is a value, and takes a limit away.
TENANT: Final[Body] = {
    each: Field(ANYTHING)
    for each in (
        *("weight", "priority", "paused", "max_in_flight", "rate", "burst"),
        *("max_length", "max_length_bytes", "overflow"),
    )
}
TENANTS: Final[Body] = {"count": Field(COUNT, 100)}
MOVE: Final[Body] = {"to": _needed(NAME), "count": Field(COUNT)}
USER: Final[Body] = {"password": Field(PASSWORD), **_HASH, "tags": _needed(TAGS)}
USERS: Final[Body] = {"users": _needed(list_of(NAME))}
HOST: Final[Body] = {
    "description": Field(TEXT, ""),
    "tags": Field(TAGS, frozenset()),
    "default_queue_type": Field(TEXT),
}
POLICY: Final[Body] = {
    "pattern": _needed(EXPRESSION),
    "definition": _needed(TABLE),
    "priority": Field(Kind("a whole number", _number, {"type": "integer"}), 0),
    "apply-to": Field(one_of(*APPLY_TO), "all"),
}
LIMIT: Final[Body] = {"value": _needed(ANYTHING)}
TOPIC_PERMISSIONS: Final[Body] = {"exchange": _needed(NAME), "write": _needed(EXPRESSION), "read": _needed(EXPRESSION)}
PERMISSIONS: Final[Body] = {each: _needed(EXPRESSION) for each in ("configure", "write", "read")}

_IN_HOST: Final[Body] = {"name": _needed(NAME), "vhost": _needed(NAME)}
_ITEMS: Final[Mapping[str, Body]] = {
    "users": {"name": _needed(NAME), **_HASH, "tags": Field(TAGS, frozenset()), "limits": Field(OBJECT, _NO_TABLE)},
    "vhosts": {
        "name": _needed(NAME),
        "limits": Field(OBJECT, _NO_TABLE),
        "metadata": Field(OBJECT, _NO_TABLE),
        **HOST,
    },
    "policies": {**_IN_HOST, **POLICY},
    "global_parameters": {"name": _needed(NAME), "value": _needed(ANYTHING)},
    "parameters": {**_IN_HOST, "component": _needed(NAME), "value": _needed(ANYTHING)},
    "topic_permissions": {"user": _needed(NAME), "vhost": _needed(NAME), **TOPIC_PERMISSIONS},
    "permissions": {"user": _needed(NAME), "vhost": _needed(NAME), **PERMISSIONS},
    "exchanges": {**_IN_HOST, **EXCHANGE},
    "queues": {**_IN_HOST, **QUEUE, "tenants": Field(OBJECT, _NO_TABLE)},
    "bindings": {
        "vhost": _needed(NAME),
        "source": _needed(NAME),
        "destination": _needed(NAME),
        "destination_type": _needed(one_of("queue", "exchange")),
        **BINDING,
    },
}


def definitions(host: str | None = None) -> Body:
    """The lists of an import. Into one virtual host, entries are put there, also those that name another."""
    there = Kind("anything", lambda value, path: host, {})
    items = {
        kind: {**body, "vhost": Field(there, host)} if host is not None and "vhost" in body else body
        for kind, body in _ITEMS.items()
    }
    return {kind: Field(list_of(object_of(body)), ()) for kind, body in items.items()}
