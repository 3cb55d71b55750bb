"""Exchanges, queues and bindings as a store keeps them: a document for each, and back.

Kept: what is durable and not exclusive; of a binding both ends must be. Documents are JSON, see `_base/json_values`. A
queue's has its number in the store and of its settings what differs from the usual, so a setting that is added later
has its usual value in queues that were declared before. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import Enum
from typing import Any, Final, NamedTuple

from multiqueue.store import Define, Definition, StoreDamaged, Undefine

from .._base.json_values import dump, load
from .._base.settings import AlertThresholds, MessageGroups, Overflow, QueueKind, QueueSettings
from .._routing.exchange import Binding, Destination, Exchange
from .._routing.topology import Declared, DeclaredQueue

EXCHANGE, QUEUE, BINDING = "exchange", "queue", "binding"
_OF_EXCHANGE: Final = ("type", "auto_delete", "internal", "arguments", "alternate")
_ENUMS: Final[Mapping[str, type[Enum]]] = {"kind": QueueKind, "overflow": Overflow, "groups": MessageGroups}


class KeptQueue(NamedTuple):
    name: str
    number: int
    settings: QueueSettings
    arguments: Mapping[str, object]


def is_kept(declared: Declared | Destination) -> bool:
    """True for what a store keeps. Exchanges that every virtual host has are there anyway."""
    if isinstance(declared, Binding):
        return declared.source.name != "" and is_kept(declared.source) and is_kept(declared.destination)
    if isinstance(declared, Exchange):
        return declared.durable
    if isinstance(declared, DeclaredQueue):
        return declared.queue.is_stored
    return declared.is_stored


def definition_of(declared: Declared) -> Define:
    """The definition of something that is kept."""
    kind, key = _place_of(declared)
    if isinstance(declared, Binding):
        return Define(kind, key, key)
    if isinstance(declared, Exchange):
        return Define(kind, key, dump({name: getattr(declared, name) for name in _OF_EXCHANGE}))
    queue = declared.queue
    document = {
        "number": queue.store_number,
        "settings": _settings_out(queue.settings),
        "arguments": declared.arguments,
    }
    return Define(kind, key, dump(document))


def undefinition_of(declared: Declared) -> Undefine:
    return Undefine(*_place_of(declared))


def exchange_from(definition: Definition) -> Exchange:
    return Exchange(definition.key, durable=True, **_document_of(definition))


def queue_from(definition: Definition) -> KeptQueue:
    document = _document_of(definition)
    settings = _settings_in(document["settings"])
    return KeptQueue(definition.key, document["number"], settings, document["arguments"])


def binding_from(definition: Definition) -> tuple[str, str, bool, str, Mapping[str, object]]:
    """The binding that was kept: source, destination, whether that is a queue, routing key and arguments."""
    return tuple(load(definition.document))  # type: ignore[arg-type, return-value]


def _place_of(declared: Declared) -> tuple[str, str]:
    if isinstance(declared, Binding):
        to_queue = not isinstance(declared.destination, Exchange)
        names = (declared.source.name, declared.destination.name, to_queue)
        return BINDING, dump([*names, declared.routing_key, dict(sorted(declared.arguments.items()))])
    return EXCHANGE if isinstance(declared, Exchange) else QUEUE, declared.name


def _document_of(definition: Definition) -> dict[str, Any]:
    try:
        document = load(definition.document)
    except ValueError as error:
        raise StoreDamaged(f"the definition of {definition.kind} '{definition.key}' is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise StoreDamaged(f"the definition of {definition.kind} '{definition.key}' is no JSON object")
    return document


def _settings_out(settings: QueueSettings) -> dict[str, object]:
    values = {name: getattr(settings, name) for name in _USUAL}
    return {name: _plain(value) for name, value in values.items() if value != _USUAL[name]}


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else asdict(value) if isinstance(value, AlertThresholds) else value


def _settings_in(document: Mapping[str, Any]) -> QueueSettings:
    values = dict(document)
    for name, enum in _ENUMS.items():
        if name in values and not (name == "kind" and values[name] not in _OUR_KINDS):  # then it is a program's own
            values[name] = enum(values[name])
    if values.get("alerts") is not None:
        values["alerts"] = AlertThresholds(**values["alerts"])
    return QueueSettings(**values)


_OUR_KINDS: Final = frozenset(kind.value for kind in QueueKind)
_USUAL: Final = {field.name: field.default for field in fields(QueueSettings)}
