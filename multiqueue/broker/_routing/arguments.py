"""Arguments as users of RabbitMQ and of Qpid write them, read as the settings of this broker.

Qpid's names are there for what RabbitMQ lacks. Times in arguments are milliseconds, as both count. A name that is not
known is kept with the queue and otherwise ignored. A further argument is one more row in `_ARGUMENTS`; `compat` has
RabbitMQ's rules for its own arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias, TypeVar

from multiqueue._carried import check_value, short_string

from ..._kinds import check_kind
from .._base.errors import PreconditionFailed
from .._base.fair_options import FairOptions
from .._base.settings import (
    KIND_OF_SETTING,
    LONGEST,
    RANGES,
    AlertThresholds,
    DelayedRetry,
    MessageGroups,
    Overflow,
    QueueKind,
    QueueSettings,
    Range,
)
from .._queue.entry_list import known_queue_kinds
from .._selector.selector import SELECTOR_ARGUMENT, Selector
from .compat import CONSUMER_ARGUMENTS as OF_CONSUMERS
from .compat import LENIENT, QUEUE_TYPE, Compat, Table, wire_type

ALTERNATE_EXCHANGE = "alternate-exchange"
DEFAULT_LVQ_KEY = "qpid.LVQ_key"
_KIND_OPTIONS = "x-queue-kind-options"

_Convert: TypeAlias = Callable[[Any], Any]
_T = TypeVar("_T")


_WHOLE = Range(True, 0)
_INTEGER = Range(True, -(2**63))


def _of_type(kind: type[_T], needed: str) -> Callable[[object], _T]:
    def convert(value: object) -> _T:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is of type {type(value).__name__}; {needed} is needed")
        return value

    return convert


def _name(value: Any) -> Any:
    short_string(value)
    return value


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{value!r} is not a share of the limit in (0, 1]")
    return float(value)


def _flag(value: object) -> bool:
    """A boolean, or what Qpid's clients send for one."""
    meaning = {"1": True, "true": True, "0": False, "false": False}.get(str(value).lower())
    if meaning is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return meaning


def _one_of(choices: Mapping[str, _T]) -> Callable[[object], _T]:
    def convert(value: object) -> _T:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{value!r} is not known; one of {', '.join(choices)}")
        return choices[value]

    return convert


def _kind(value: object) -> QueueKind | str:
    known = known_queue_kinds()
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{value!r} is not registered; known are {', '.join(known)}")
    return value


_OVERFLOW = {
    "drop-head": Overflow.RING,
    "reject-publish": Overflow.REJECT,
    "reject-publish-dlx": Overflow.REJECT_DEAD_LETTER,
}
_RETRIES = {each.value: each for each in DelayedRetry}
_POLICIES = {
    "none": Overflow.NONE,
    "ring": Overflow.RING,
    "reject": Overflow.REJECT,
    "producer_flow_control": Overflow.FLOW_CONTROL,
}
_UNFIT_FOR_QUORUM = {
    "auto_delete": (True, "auto-delete"),
    "exclusive": (True, "exclusive-owner"),
    "durable": (False, "non-durable"),
}


def _as_it_is(value: Any) -> Any:
    return value


class _Argument(NamedTuple):
    """The setting that an argument gives ("alerts." for one of the thresholds, "" for none), its value from the
    argument's, and the way back from the setting's value."""

    setting: str
    convert: _Convert
    back: _Convert = _as_it_is


def _time(setting: str, least: int = 0) -> _Argument:
    milliseconds = Range(True, least, 1000 * LONGEST)

    def back(seconds: float) -> int:
        return max(least, round(seconds * 1000) or (1 if seconds else 0))

    return _Argument(setting, lambda value: milliseconds(value) / 1000, back=back)


_ARGUMENTS: dict[str, _Argument] = {
    "x-message-ttl": _time("message_ttl"),
    "x-expires": _time("expires", least=1),
    "x-max-length": _Argument("max_length", RANGES["max_length"]),
    "x-max-length-bytes": _Argument("max_length_bytes", RANGES["max_length_bytes"]),
    "x-overflow": _Argument("overflow", _one_of(_OVERFLOW)),
    "x-dead-letter-exchange": _Argument("dead_letter_exchange", _name),
    "x-dead-letter-routing-key": _Argument("dead_letter_routing_key", _name),
    "x-max-priority": _Argument("max_priority", RANGES["max_priority"]),
    "x-single-active-consumer": _Argument("single_active_consumer", _of_type(bool, "true or false")),
    "x-qpid-maximum-delivery-count": _Argument("max_delivery_attempts", RANGES["max_delivery_attempts"]),
    # n returns are n + 1 deliveries; -1 is no limit.
    "x-delivery-limit": _Argument("max_delivery_attempts", lambda value: max(_INTEGER(value) + 1, 0) or None),
    "x-delayed-retry-type": _Argument("delayed_retry", _one_of(_RETRIES), lambda retry: retry.value),
    "x-delayed-retry-min": _time("delayed_retry_min"),
    "x-delayed-retry-max": _time("delayed_retry_max"),
    "x-consumer-timeout": _time("consumer_timeout"),
    "x-minimum-message-ttl": _time("minimum_message_ttl"),
    "x-expired-to-dead-letter": _Argument("expired_to_dead_letter", _of_type(bool, "true or false")),
    "x-max-active-consumers": _Argument("max_active_consumers", RANGES["max_active_consumers"]),
    "x-flow-resume-ratio": _Argument("flow_resume_ratio", _share),
    "x-queue-kind": _Argument("kind", _kind),
    _KIND_OPTIONS: _Argument("kind_options", _of_type(Mapping, "a table")),
    "x-qpid-priorities": _Argument("priority_levels", RANGES["priority_levels"]),
    "qpid.queue_sort_key": _Argument("sort_key", _name),
    "qpid.last_value_queue_key": _Argument("lvq_key", _name),
    "qpid.last_value_queue": _Argument("", _flag),
    "qpid.policy_type": _Argument("overflow", _one_of(_POLICIES)),
    "qpid.max_count": _Argument("max_length", RANGES["max_length"]),
    "qpid.max_size": _Argument("max_length_bytes", RANGES["max_length_bytes"]),
    "x-qpid-capacity": _Argument("max_length_bytes", Range(True, 1)),
    "x-qpid-flow-resume-capacity": _Argument("", Range(True, 1)),
    "qpid.group_header_key": _Argument("group_key", _name),
    "qpid.shared_msg_group": _Argument("", _flag),
    "qpid.ensure_nondestructive_consumers": _Argument("browse_only", _flag),
    "qpid.alert_count": _Argument("alerts.depth", _WHOLE),
    "qpid.alert_size": _Argument("alerts.depth_bytes", _WHOLE),
    "qpid.alert_repeat_gap": _time("alerts.repeat_gap"),
    "x-qpid-maximum-message-size": _Argument("alerts.message_bytes", _WHOLE),
    "x-qpid-maximum-message-age": _time("alerts.age"),
}
_USUAL, _USUAL_ALERTS = QueueSettings(), AlertThresholds()


def queue_settings(
    queue: str,
    arguments: Table,
    *,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    compat: Compat = LENIENT,
) -> QueueSettings:
    """The settings that `arguments` ask for. `queue` says in errors which one: `queue 'x' in vhost '/'`.

    Raises:
        PreconditionFailed: a value does not fit its argument, or two arguments contradict each other.
    """
    found: dict[str, object] = {"durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
    given_by: dict[str, str] = {}
    type = compat.queue_type(queue, arguments)
    compat.check_queue(queue, type, arguments, _ARGUMENTS)
    for flag, (unfit, called) in _UNFIT_FOR_QUORUM.items() if type == "quorum" else ():
        if found[flag] is unfit:
            raise PreconditionFailed(f"invalid property '{called}' for {queue}")
    if not (durable or exclusive):
        compat.use("transient_nonexcl_queues")
    for name, (setting, convert, _) in _ARGUMENTS.items():
        if name not in arguments or not compat.reads(name):
            continue
        try:
            value = _given(queue, arguments, name, convert)
        except PreconditionFailed:
            if not compat.takes_anything(name):
                raise
            compat.tell_odd(queue, name, arguments[name])
            continue
        if not setting:
            continue
        if setting in given_by:
            raise PreconditionFailed(f"args '{given_by[setting]}' and '{name}' for {queue} set the same thing")
        given_by[setting] = name
        found[setting] = value
    usual = compat.usual_settings(type)
    _derive(queue, arguments, found, usual)
    alerts = {each.removeprefix("alerts."): found.pop(each) for each in given_by if each.startswith("alerts.")}
    try:
        thresholds = AlertThresholds(**alerts) if alerts else None  # type: ignore[arg-type]
        return QueueSettings(**found, alerts=thresholds)  # type: ignore[arg-type]
    except ValueError as error:
        raise PreconditionFailed(f"invalid args for {queue}: {error}") from error


# What a policy may say, by RabbitMQ's keys: these arguments without `x-`. Some change nothing here, as there.
_OF_POLICIES = (
    *("message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit"),
    *("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy"),
    *("delayed-retry-type", "delayed-retry-min", "delayed-retry-max", "target-group-size", "initial-cluster-size"),
    *("consumer-disconnected-timeout", "max-in-memory-length", "max-in-memory-bytes"),
    *("consumer-timeout", "queue-mode", "queue-version", "queue-leader-locator", "max-age"),
    *("stream-max-segment-size-bytes", "stream-filter-size-bytes"),
)


def policy_settings(definition: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings of queues that a policy's definition gives, and the keys that are not of queues.

    Raises:
        ValueError, TypeError: a value does not fit its key.
    """
    found: dict[str, Any] = {}
    others = [key for key in definition if key not in _OF_POLICIES]
    for key in definition.keys() - set(others):
        if (argument := _ARGUMENTS.get(f"x-{key}")) is None:
            continue
        try:
            value = argument.convert(definition[key])
        except (ValueError, TypeError) as error:
            raise type(error)(f"{key}: {error}") from None
        if argument.setting:
            found[argument.setting] = value
    return found, others


def arguments_of(settings: QueueSettings) -> Table:
    """Arguments that ask for these settings, times in whole milliseconds; flags have none.

    A queue that was declared by settings is shown, exported and moved by them.
    """
    found: dict[str, object] = {}
    given = {"", "kind", "overflow"}
    for name, (setting, _, back) in _ARGUMENTS.items():
        is_alert, attribute = setting.startswith("alerts."), setting.removeprefix("alerts.")
        usual = getattr(_USUAL_ALERTS if is_alert else _USUAL, attribute, None)
        value = getattr(settings.alerts if is_alert else settings, attribute, usual)
        if setting not in given and value is not None and value != usual:
            given.add(setting)
            found[name] = back(value)
    implied = {kind for name, kind in KIND_OF_SETTING.items() if getattr(settings, name) is not None}
    if settings.kind not in {QueueKind.STANDARD, *implied}:
        found["x-queue-kind"] = settings.kind_name
    if settings.groups is MessageGroups.SHARED:
        found["qpid.shared_msg_group"] = True
    if settings.type == "quorum":
        found[QUEUE_TYPE] = settings.type
        found.pop("x-max-priority", None)  # its levels are its type's
    is_limited = settings.max_length is not None or settings.max_length_bytes is not None
    if settings.overflow is not (Overflow.RING if is_limited else Overflow.NONE):
        for name, choices in (("x-overflow", _OVERFLOW), ("qpid.policy_type", _POLICIES)):
            words = [word for word, overflow in choices.items() if overflow is settings.overflow]
            if words:
                found[name] = words[0]
                break
    return found


def _given(where: str, arguments: Table, name: str, convert: Callable[[object], _T]) -> _T | None:
    """The value of an argument, None where it is not there. Raises PreconditionFailed: it does not fit."""
    try:
        return convert(arguments[name]) if name in arguments else None
    except (ValueError, TypeError) as error:
        raise PreconditionFailed(f"invalid arg '{name}' for {where}: {error}") from None


def _derive(queue: str, arguments: Table, found: dict[str, object], usual: Table) -> None:
    """Settings that follow from several arguments, or from one that is not there."""
    has_kind = "kind" in found or any(setting in found for setting in KIND_OF_SETTING)
    has_kind = has_kind or "qpid.last_value_queue" in arguments
    for name, value in usual.items():
        if not (has_kind and name.endswith("priority")):
            found.setdefault(name, value)
    if _flag(arguments.get("qpid.last_value_queue", False)):
        found.setdefault("lvq_key", DEFAULT_LVQ_KEY)
    kinds = {kind for setting, kind in KIND_OF_SETTING.items() if setting in found}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.value for kind in kinds))
        raise PreconditionFailed(f"invalid args for {queue}: it cannot be {names} at once; choose one")
    if kinds:
        found.setdefault("kind", kinds.pop())  # where a kind is named too, the settings say whether the two agree
    if "group_key" in found:
        shared = _flag(arguments.get("qpid.shared_msg_group", False))
        found["groups"] = MessageGroups.SHARED if shared else MessageGroups.STANDARD
    capacity, resume = arguments.get("x-qpid-capacity"), arguments.get("x-qpid-flow-resume-capacity")
    if isinstance(capacity, int):
        found.setdefault("overflow", Overflow.FLOW_CONTROL)
        if isinstance(resume, int):
            if resume > capacity:
                problem = f"{resume} is more than x-qpid-capacity, {capacity}"
                raise PreconditionFailed(f"invalid arg 'x-qpid-flow-resume-capacity' for {queue}: {problem}")
            found["flow_resume_ratio"] = resume / capacity
    if "max_length" in found or "max_length_bytes" in found:
        found.setdefault("overflow", Overflow.RING)
    if "dead_letter_routing_key" in found and "dead_letter_exchange" not in found:
        problem = "it needs x-dead-letter-exchange beside it"
        raise PreconditionFailed(f"invalid arg 'x-dead-letter-routing-key' for {queue}: {problem}")


_TIMEOUT = "x-consumer-timeout"
CONSUMER_ARGUMENTS = ("x-priority", SELECTOR_ARGUMENT, _TIMEOUT)


@dataclass(frozen=True, slots=True)
class ConsumerArguments:
    """A consumer's arguments: `x-priority`, `x-filter-jms-selector`, and the seconds of `x-consumer-timeout`."""

    priority: int = 0
    selector: Selector | None = None
    timeout: float | None = None


def consumer_arguments(queue: str, arguments: Table, compat: Compat = LENIENT) -> ConsumerArguments:
    """The consumer settings that `arguments` ask for.

    Raises:
        PreconditionFailed: a value does not fit.
        SelectorError: the selector does not parse.
    """
    priority = _given(queue, arguments, "x-priority", Range(True, -(2**31)))
    reads = compat.reads(_TIMEOUT, OF_CONSUMERS)
    timeout = _given(queue, arguments, _TIMEOUT, _time("").convert) if reads else None
    return ConsumerArguments(priority or 0, selector_argument(queue, arguments), timeout)


def selector_argument(where: str, arguments: Table) -> Selector | None:
    """The selector in a binding's or a consumer's arguments; blank is none."""
    text = _given(where, arguments, SELECTOR_ARGUMENT, _of_type(str, "a string")) or ""
    return Selector(text) if text.strip() else None


def alternate_exchange(exchange: str, arguments: Table) -> str | None:
    return _given(exchange, arguments, ALTERNATE_EXCHANGE, _name)


# Equivalence: what a second declaration must have in common with the first


def checked_arguments(what: str, arguments: Table | None) -> Table:
    """The arguments, of which the caller keeps the copy. Raises PreconditionFailed: no AMQP table can carry them."""
    try:
        check_kind("arguments", arguments, (Mapping, type(None)), "a mapping")
        found = {} if arguments is None else dict(arguments)
        check_value(found)
    except (ValueError, TypeError) as error:
        raise PreconditionFailed(f"invalid args for {what}: {error}") from None
    return found


_SCALARS: tuple[type[Any], ...] = (str, bytes, int, float, Decimal)


def frozen(value: object) -> Hashable:
    """A hashable stand-in for what an argument can be, equal for equal values of one type: True is not 1. Its hash and
    comparison run no user code."""
    if isinstance(value, Mapping):
        return "table", frozenset((frozen(key), frozen(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(frozen(each) for each in value)
    for scalar in _SCALARS:
        if isinstance(value, scalar):
            return type(value), scalar(value)
    return type(value), value


def assert_same(what: str, name: str, received: object, current: object) -> None:
    """Refuse a redeclaration that differs: PreconditionFailed in RabbitMQ's words, which its users search for."""
    if frozen(received) != frozen(current):
        raise _inequivalent(what, name, _shown(received), _shown(current))


def assert_same_queue(what: str, received: Table, current: Table, compat: Compat = LENIENT) -> None:
    """Refuse arguments of a queue that differ where its type has them."""
    other = current.get(QUEUE_TYPE, "classic")
    if compat.says("a queue without a type was declared with `classic`"):
        mine = received.get(QUEUE_TYPE)
        mine = "classic" if mine in (None, "", "undefined") else mine
        received, current = {**received, QUEUE_TYPE: mine}, {**current, QUEUE_TYPE: other}
    elif (mine := compat.queue_type(what, received)) == other:
        received, current = {**received, QUEUE_TYPE: mine}, {**current, QUEUE_TYPE: mine}
    names = compat.compared(str(other), _ARGUMENTS)
    if received.get("x-queue-kind") == current.get("x-queue-kind") == QueueKind.FAIR.value:
        tables: list[Any] = [each.get(_KIND_OPTIONS) for each in (received, current)]
        with suppress(ValueError, TypeError):  # wrong ones are not the same
            if FairOptions.of(tables[0]) == FairOptions.of(tables[1]):  # 2 and 2.0 are one weight
                names.remove(_KIND_OPTIONS)
    assert_same_arguments(what, received, current, names)


def assert_same_arguments(what: str, received: Table, current: Table, names: Iterable[str]) -> None:
    """Refuse arguments that differ in one of the names."""
    for name in names:
        if name in received and name in current:
            assert_same(what, name, received[name], current[name])
        elif name in received or name in current:
            raise _inequivalent(what, name, _typed(received, name), _typed(current, name))


def assert_same_settings(what: str, received: QueueSettings, current: QueueSettings) -> None:
    for field in fields(QueueSettings):
        if field.name == "expires_at_head":  # by the rules of the version that declared it
            continue
        mine, other = getattr(received, field.name), getattr(current, field.name)
        if mine != other:
            raise _inequivalent(what, field.name, _shown(mine), _shown(other))


def _inequivalent(what: str, name: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(f"inequivalent arg '{name}' for {what}: received {received} but current is {current}")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower()}'" if isinstance(value, bool) else f"'{value}'"


def _typed(arguments: Table, name: str) -> str:
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"the value {_shown(value)} of type '{wire_type(value)}'"
