"""What each version of RabbitMQ does with arguments, methods, headers and types of exchange: one table.

`Compat` is a broker's choice of a column: "4.3" (the default), "3.10", or "lenient", which takes what any of them and
this broker can do. The server, the verbs in the process and the HTTP API ask it; no other module compares versions.
Arguments of this broker's own are in no row and are taken in every column.

Source: RabbitMQ 4.3.6 and 3.10.8, asked row by row; tests/interop/test_interop_compat.py asks them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeAlias

from ..._kinds import check_kind
from .._base.errors import CommandInvalid, DeprecatedFeature, NotImplementedByBroker, PreconditionFailed, ResourceLocked
from .._base.settings import LONGEST, DeliveryCounting

_log = logging.getLogger("multiqueue.broker")

Table: TypeAlias = Mapping[str, object]  # of arguments, by name
VERSIONS: Final = ("4.3", "3.10", "lenient")
_RELEASES: Final = {"3.10": "3.10.8"}
_NEWEST: Final = "4.3.6"
QUEUE_TYPE: Final = "x-queue-type"
QUEUE_TYPES: Final = ("classic", "quorum")
_WIRE_TYPES: Final = {
    bool: "bool",
    bytes: "binary",
    datetime: "timestamp",
    dict: "table",
    float: "double",
    list: "array",
    str: "longstr",
    type(None): "void",
}
_MOST_TOLD: Final = 1000  # words of clients that are remembered, so that each is told once

# RabbitMQ's objection to a value, None for none.
_Check = Callable[[Any], str | None]


def wire_type(value: object) -> str:
    """The type of a value, as RabbitMQ calls it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "signedint" if abs(value) < 2**31 else "long"
    return "decimal" if isinstance(value, Decimal) else _WIRE_TYPES.get(type(value), type(value).__name__)


def _anything(value: Any) -> str | None:
    return None


def _integer(value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return None if whole else f'"expected integer, got {wire_type(value)}"'


def _amount(value: Any) -> str | None:
    return _integer(value) or (f"{{value_negative,{value}}}" if value < 0 else None)


def _some(value: Any) -> str | None:
    return _amount(value) or (f"{{value_zero,{value}}}" if value == 0 else None)


def _life(value: Any) -> str | None:
    return _amount(value) or (f"{{value_too_large,{value}}}" if value > 1000 * LONGEST else None)


def _expiry(value: Any) -> str | None:
    return _life(value) or _some(value)


def _level(value: Any) -> str | None:
    return _amount(value) or (f"{{max_value_exceeded,{value}}}" if value > 255 else None)


def _version(*known: int) -> _Check:
    return lambda value: _amount(value) or (None if value in known else f"\"unsupported queue version '{value}'\"")


def _of_type(kind: type) -> _Check:
    return lambda value: None if isinstance(value, kind) else f"{{unacceptable_type,{wire_type(value)}}}"


_text, _flag = _of_type(str), _of_type(bool)


def _one_of(objection: str, *words: str) -> _Check:
    """`objection` may name the value by `{}`."""
    return lambda value: _text(value) or (None if value in words else objection.format(value))


class Row(NamedTuple):
    """The types of queue that have an argument: in 4.3, in 3.10, leniently. None: not known, so taken and ignored."""

    newest: tuple[str, ...] | None
    older: tuple[str, ...] | None
    lenient: tuple[str, ...] | None
    check: _Check = _anything
    check_older: _Check | None = None  # where it differs

    def types_in(self, version: str) -> tuple[str, ...] | None:
        return (self.newest, self.older, self.lenient)[VERSIONS.index(version)]


_ALL, _CLASSIC, _QUORUM, _STREAM = QUEUE_TYPES, ("classic",), ("quorum",), ()
_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders", "min-masters")
_Q_NEW: Final = (_QUORUM, None, None)

QUEUE_ARGUMENTS: Final[Mapping[str, Row]] = {
    "x-expires": Row(_ALL, _ALL, _ALL, _expiry),
    "x-message-ttl": Row(_ALL, _ALL, _ALL, _life),
    "x-dead-letter-exchange": Row(_ALL, _ALL, _ALL, _text),
    "x-dead-letter-routing-key": Row(_ALL, _ALL, _ALL, _text),
    "x-dead-letter-strategy": Row(
        _QUORUM, _QUORUM, _QUORUM, _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once")
    ),
    "x-max-length": Row(_ALL, _ALL, _ALL, _amount),
    "x-max-length-bytes": Row(_ALL, _ALL, _ALL, _amount),
    "x-max-in-memory-length": Row(_QUORUM, _QUORUM, _QUORUM, _amount),
    "x-max-in-memory-bytes": Row(_QUORUM, _QUORUM, _QUORUM, _amount),
    "x-max-priority": Row(_CLASSIC, _CLASSIC, _CLASSIC, _level),
    "x-overflow": Row(
        _ALL, _ALL, _ALL, _one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx")
    ),
    "x-queue-mode": Row(
        _CLASSIC, _CLASSIC, _CLASSIC, _anything, _one_of("\"unsupported queue mode '{}'\"", "default", "lazy")
    ),
    "x-queue-version": Row(_CLASSIC, _CLASSIC, _CLASSIC, _version(2), _version(1, 2)),
    "x-single-active-consumer": Row(_ALL, _ALL, _ALL, _flag),
    "x-consumer-timeout": Row(*_Q_NEW, _amount),
    "x-consumer-disconnected-timeout": Row(*_Q_NEW, _amount),
    "x-quorum-initial-group-size": Row(_QUORUM, _QUORUM, _QUORUM, _some),
    "x-max-age": Row(_STREAM, _STREAM, _STREAM),
    "x-stream-max-segment-size-bytes": Row(_STREAM, _STREAM, _STREAM),
    "x-stream-filter-size-bytes": Row(_STREAM, None, _STREAM),
    "x-initial-cluster-size": Row(_STREAM, _STREAM, _STREAM),
    "x-queue-leader-locator": Row(_ALL, _QUORUM, _ALL, _one_of("invalid_queue_locator_arg", *_LOCATORS)),
    "x-queue-master-locator": Row(_CLASSIC, _CLASSIC, None),
    "x-delivery-limit": Row(_QUORUM, _QUORUM, _ALL),
    "x-delayed-retry-type": Row(*_Q_NEW),
    "x-delayed-retry-min": Row(*_Q_NEW),
    "x-delayed-retry-max": Row(*_Q_NEW),
    "x-quorum-target-group-size": Row(None, None, None),
    "x-qpid-priorities": Row(_CLASSIC, _CLASSIC, _CLASSIC),  # ours, and no more than a queue with priorities has
}
_TURNS_OF_QUORUM: Final = {
    **dict.fromkeys(("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy"), -1),
    "x-message-ttl": 1,
    "x-queue-leader-locator": 2,
    "x-consumer-disconnected-timeout": 3,
    "x-consumer-timeout": 4,
    **dict.fromkeys(("x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"), 5),
}
"""Of two declarations of a quorum queue, which of these arguments are compared before (-1) and after the others."""

CONSUMER_ARGUMENTS: Final[Mapping[str, Row]] = {
    "x-priority": Row(_ALL, _ALL, _ALL, _integer),
    "x-consumer-timeout": Row(*_Q_NEW, _amount),
    "x-stream-offset": Row(_STREAM, _STREAM, _STREAM),
    "x-stream-filter": Row(_STREAM, None, _STREAM),
    "x-cancel-on-ha-failover": Row(None, _CLASSIC, None),
}
_EVERY: Final = frozenset(VERSIONS)
# Types of exchange that RabbitMQ has with a plugin.
PLUGINS: Final = {
    "x-delayed-message": "rabbitmq_delayed_message_exchange",
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-random": "rabbitmq_random_exchange",
}
EXCHANGES: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("direct", "fanout", "topic", "headers"), _EVERY),
    "x-local-random": frozenset({"4.3", "lenient"}),
    **dict.fromkeys(PLUGINS, _EVERY),
}
"""The types of exchange that can be declared, each with the columns that have it."""

RULES: Final[Mapping[str, frozenset[str]]] = {
    # Connections
    "the header of AMQP 0-8 begins a connection": frozenset({"3.10", "lenient"}),
    "a frame may have 4096 bytes at most": frozenset({"3.10", "lenient"}),
    "a message may have 16 MiB at most, unless the settings say otherwise": frozenset({"4.3"}),
    # Methods
    "a passive declaration needs a permission, whichever": frozenset({"4.3"}),
    "a prefetch with global is each consumer's, unless `global_qos` is permitted": frozenset({"4.3"}),
    "a commit fails where a queue of its messages is gone": frozenset({"4.3"}),
    "a dead letter goes on counting its failures": frozenset({"4.3"}),
    "an x-local-random exchange is bound to classic queues, without a key": frozenset({"4.3"}),
    "a delivery mode is 1 or 2": frozenset({"3.10"}),
    "quorum queues: no prefetch with global": frozenset({"4.3", "3.10"}),
    "quorum queues: no deletion if unused or empty": frozenset({"4.3", "3.10"}),
    "quorum queues: no get beside a single active consumer": frozenset({"4.3", "3.10"}),
    "quorum queues: no name by the server": frozenset({"4.3", "3.10"}),
    "an unknown exchange type closes the connection": frozenset({"3.10"}),
    "a queue without a type was declared with `classic`": frozenset({"4.3"}),
    "an empty type of queue is none": frozenset({"4.3"}),
    # HTTP
    "the policies and parameters of one virtual host do not name it": frozenset({"4.3"}),
    "a queue or exchange that is missing at a get or publish is named by its kind": frozenset({"4.3"}),
}
"""The columns in which a sentence is true."""

USUAL: Final[Mapping[tuple[str, str], Mapping[str, object]]] = {
    ("4.3", "classic"): {"expires_at_head": True},
    ("4.3", "quorum"): {
        "expires_at_head": True,
        "delivery_counting": DeliveryCounting.FAILURES,
        "max_delivery_attempts": 21,
        "max_priority": 31,
        "default_priority": 4,
    },
    ("3.10", "classic"): {"expires_at_head": True},
    ("3.10", "quorum"): {"expires_at_head": True, "delivery_counting": DeliveryCounting.RETURNS},
}
"""The settings of queues whose arguments say nothing else, by version and type."""

_STREAMS_ALONE: Final = frozenset({"initial-cluster-size", "max-age", "stream-max-segment-size-bytes"})
_CLASSIC_LACKS: Final = _STREAMS_ALONE | {"dead-letter-strategy", "delivery-limit"}
POLICIES_LACK: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("4.3", "classic"): _CLASSIC_LACKS | {"max-in-memory-bytes", "max-in-memory-length", "target-group-size"},
    ("4.3", "quorum"): _STREAMS_ALONE | {"queue-mode"},
    ("3.10", "classic"): _CLASSIC_LACKS | {"queue-leader-locator"},
    ("3.10", "quorum"): _STREAMS_ALONE | {"queue-mode"},
}
"""The keys of policies that do not apply to queues, by version and type. A policy with one of them is passed over."""

FEATURES: Final[Mapping[str, bool]] = {
    "global_qos": False,
    "queue_master_locator": False,
    "transient_nonexcl_queues": True,
}
"""RabbitMQ 4.3's deprecated features of what this broker has, and whether they are permitted by default."""


class Compat:
    """One column of the table, and which deprecated features are permitted. Any thread may ask.

    Raises:
        ValueError: no such version, or no such feature.
    """

    def __init__(self, version: str = VERSIONS[0], permitted: Mapping[str, bool] | None = None) -> None:
        permitted = {} if permitted is None else permitted
        check_kind("deprecated_features", permitted, Mapping, "a mapping, such as {'global_qos': True}")
        if version not in VERSIONS:
            raise ValueError(f"compat is {version!r}; one of {', '.join(map(repr, VERSIONS))}")
        if unknown := sorted(permitted.keys() - FEATURES.keys()):
            raise ValueError(f"there is no deprecated feature {unknown[0]!r}; one of {', '.join(FEATURES)}")
        self.version: str = version
        self.release: str = _RELEASES.get(version, _NEWEST)  # of RabbitMQ, as clients of the HTTP API compare it
        self._features = {**FEATURES, **permitted}
        self._told: set[str] = set()  # what was logged once; two threads may log one thing twice

    def says(self, rule: str) -> bool:
        """Whether a sentence of `RULES` is true."""
        return self.version in RULES[rule]

    def permits(self, feature: str) -> bool:
        """Whether a deprecated feature may be used. 3.10 has deprecated none."""
        return self.version != "4.3" or self._features[feature]

    def use(self, feature: str) -> None:
        """A client uses a deprecated feature. Raises DeprecatedFeature: it is not permitted."""
        if not self.permits(feature):
            raise DeprecatedFeature(feature)

    # -- queues

    def queue_type(self, queue: str, arguments: Table) -> str:
        """The type that a declaration asks for. Raises PreconditionFailed: there is no such type, or not here."""
        found = arguments.get(QUEUE_TYPE, "classic")
        if found in ("", "undefined") and self.says("an empty type of queue is none"):
            return "classic"
        if not isinstance(found, str):
            raise _invalid(QUEUE_TYPE, queue, f"{{unacceptable_type,{wire_type(found)}}}")
        if found not in QUEUE_TYPES:
            raise _invalid(QUEUE_TYPE, queue, f"\"unsupported queue type '{found}'\"; one of {', '.join(QUEUE_TYPES)}")
        return found

    def check_queue(self, queue: str, type: str, arguments: Table, known: Iterable[str]) -> None:
        """Return when a queue of this type may have these arguments. `known` are others that this broker reads.

        Raises:
            PreconditionFailed: a value does not fit, or the type has no such argument.
            DeprecatedFeature: it is one that is not permitted.
        """
        known, dead_letters = frozenset(known), arguments.get("x-dead-letter-exchange", "")
        if self.version != "lenient" and not isinstance(dead_letters, str):  # RabbitMQ looks at it before the others
            kind = wire_type(dead_letters)
            raise PreconditionFailed(f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in {queue}")
        self._check(queue, type, arguments, QUEUE_ARGUMENTS, known)
        if "x-queue-master-locator" in arguments:
            self.use("queue_master_locator")
        self._look_for_typos(queue, arguments, (*QUEUE_ARGUMENTS, *known, QUEUE_TYPE))

    def check_consumer(self, queue: str, type: str, arguments: Table, known: Iterable[str] = ()) -> None:
        """As `check_queue`, for a consumer of a queue."""
        known = frozenset(known)
        self._check(queue, type, arguments, CONSUMER_ARGUMENTS, known)
        self._look_for_typos(queue, arguments, (*CONSUMER_ARGUMENTS, *known))

    def _check(self, queue: str, type: str, arguments: Table, rows: Mapping[str, Row], read: frozenset[str]) -> None:
        """Values first, as RabbitMQ; leniently, those that this broker reads are checked where it reads them."""
        foreign: str | None = None
        for name, row in rows.items():
            if name not in arguments:
                continue
            types, value = row.types_in(self.version), arguments[name]
            if types is None:
                continue
            if type not in types:
                foreign = name
                continue
            if self.version == "lenient" and name in read:
                continue
            check = row.check_older if row.check_older is not None and self.version != "4.3" else row.check
            objection = check(value)
            if name == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in arguments:
                objection = objection or "routing_key_but_no_dlx_defined"
            if objection is not None:
                raise _invalid(name, queue, objection)
        if foreign is not None:
            raise PreconditionFailed(f"invalid arg '{foreign}' for {queue} of queue type rabbit_{type}_queue")

    def reads(self, name: str, rows: Mapping[str, Row] = QUEUE_ARGUMENTS) -> bool:
        """Whether this column knows an argument; one that it does not is taken, and means nothing."""
        row = rows.get(name)
        return row is None or row.types_in(self.version) is not None

    def compared(self, type: str, known: Iterable[str]) -> list[str]:
        """The arguments that two declarations of a queue must have in common, in the order in which RabbitMQ asks."""
        rows = QUEUE_ARGUMENTS.items()
        ours = sorted(set(known) - QUEUE_ARGUMENTS.keys() - {QUEUE_TYPE})
        names = [name for name, row in rows if type in (row.types_in(self.version) or ())]
        names.insert(names.index("x-single-active-consumer") + 1, QUEUE_TYPE)
        if type == "quorum":
            names.sort(key=lambda name: _TURNS_OF_QUORUM.get(name, 0))
        return [*names, *ours]

    def usual_settings(self, type: str) -> Mapping[str, object]:
        """The settings of a queue of this type whose arguments say nothing else."""
        return USUAL.get((self.version, type), {})

    def lets_apply(self, definition: Iterable[str], type: str) -> bool:
        """Whether a policy with these keys applies to queues of this type."""
        return POLICIES_LACK.get((self.version, type), frozenset()).isdisjoint(definition)

    def takes_anything(self, name: str) -> bool:
        """Whether RabbitMQ takes any value of an argument, and means nothing by one that does not fit."""
        return self.version != "lenient" and name in QUEUE_ARGUMENTS and QUEUE_ARGUMENTS[name].check is _anything

    def tell_odd(self, queue: str, name: str, value: object) -> None:
        """An argument has a value that means nothing: log it once."""
        self._tell(f"{name} {value!r}", f"argument '{name}' of {queue} is {value!r}, which RabbitMQ takes and ignores")

    # -- exchanges

    def check_exchange(self, exchange: str, type: str, arguments: Table) -> None:
        """Return when the type exists. Raises PreconditionFailed, CommandInvalid: it does not."""
        if self.version in EXCHANGES.get(type, ()):
            if type in PLUGINS:
                self._tell(type, f"{exchange} is of type '{type}': RabbitMQ needs its plugin {PLUGINS[type]} for it")
            inner = arguments.get("x-delayed-type")
            if type == "x-delayed-message" and inner not in ("direct", "fanout", "topic", "headers"):
                raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
            return
        if self.says("an unknown exchange type closes the connection"):
            raise CommandInvalid(f"unknown exchange type '{type}'")
        known = ", ".join(name for name, columns in EXCHANGES.items() if self.version in columns)
        raise PreconditionFailed(f"unknown exchange type '{type}'; one of {known}")

    def check_binding(self, source: str, key: str, queue: str | None) -> None:
        """Return when an exchange of this type can be bound with this key to a queue of this type, or, None, to an
        exchange. Raises PreconditionFailed."""
        rule = "an x-local-random exchange is bound to classic queues, without a key"
        if source != "x-local-random" or not self.says(rule):
            return
        if key:
            raise PreconditionFailed(f"Non empty binding '{key}' key not permitted")
        if queue is None:
            raise PreconditionFailed("Destination not found")
        if queue != "classic":
            raise PreconditionFailed(f"Queue type rabbit_{queue}_queue not valid for this exchange type")

    # -- methods on quorum queues

    def check_named(self, name: str, type: str) -> None:
        """Return when the server may name a queue of this type, or need not. Raises PreconditionFailed."""
        if not name and type == "quorum" and self.says("quorum queues: no name by the server"):
            raise PreconditionFailed("Cannot declare a server-named queue for type rabbit_quorum_queue")

    def check_deletion(self, queue: str, type: str, *, if_unused: bool, if_empty: bool) -> None:
        """Return when a queue of this type can be deleted so. Raises NotImplementedByBroker."""
        if type != "quorum" or not self.says("quorum queues: no deletion if unused or empty"):
            return
        for flag, asked in (("if-unused", if_unused), ("if-empty", if_empty)):
            if asked:
                why = f"queue.delete operations with {flag} flag set are not supported by quorum queues"
                raise NotImplementedByBroker(f"cannot delete {queue}. {why}")

    def check_get(self, queue: str, type: str, *, is_single: bool) -> None:
        """Return when a client may get from a queue of this type. Raises ResourceLocked."""
        if type == "quorum" and is_single and self.says("quorum queues: no get beside a single active consumer"):
            which = '<<"quorum">>' if self.version == "4.3" else "quorum"
            why = f"basic.get operations are not supported by {which} queues with single active consumer"
            raise ResourceLocked(f"cannot obtain access to locked {queue}. {why}")

    def check_window(self, queue: str, type: str, *, is_global: bool) -> None:
        """Return when a consumer may have a window that is its channel's. Raises NotImplementedByBroker."""
        if type == "quorum" and is_global and self.says("quorum queues: no prefetch with global"):
            raise NotImplementedByBroker(f"{queue} does not support global qos")

    # -- what is told once

    def _look_for_typos(self, where: str, arguments: Table, known: Iterable[str]) -> None:
        names = set(known)
        for name in arguments:
            if name.startswith("x-") and name not in names and (near := get_close_matches(name, names, 1, 0.8)):
                self._tell(name, f"argument '{name}' of {where} is unknown and ignored; did you mean '{near[0]}'?")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(what)
            _log.warning("%s", text)

    def __repr__(self) -> str:
        return f"<compat {self.version}>"


def _invalid(name: str, queue: str, objection: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{name}' for {queue}: {objection}")


LENIENT: Final = Compat("lenient")
