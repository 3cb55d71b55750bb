"""What a selector's operators do to a message: functions that make functions.

Each maker takes the evaluators of its operands and returns one evaluator, so that a parsed selector is one
call per message. `None` is SQL's NULL in a value and UNKNOWN in a condition; the three-valued logic is that
of SQL-92. Values of unlike types compare as false, never as an error, as Jakarta Messaging asks.

An evaluator reads the message and nothing else: it takes no lock and may run on any thread.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._base.message import Message

Evaluator = Callable[["Message"], object]

EQUALITIES: dict[str, Callable[[object, object], bool]] = {"=": operator.eq, "<>": operator.ne}
ORDERINGS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_DEFAULT_JMS_PRIORITY = 4


def _jms_delivery_mode(message: Message) -> object:
    return "PERSISTENT" if message.delivery_mode == 2 else "NON_PERSISTENT"


def _jms_priority(message: Message) -> object:
    return _DEFAULT_JMS_PRIORITY if message.priority is None else message.priority


def _jms_timestamp(message: Message) -> object:
    """Milliseconds since 1970, as JMS counts."""
    return None if message.timestamp is None else message.timestamp * 1000


def _property(name: str) -> Evaluator:
    return operator.attrgetter(name)


# The names that do not mean a header: JMS's own, and every property of a message under `amqp.`.
PROPERTIES: dict[str, Evaluator] = {
    "JMSPriority": _jms_priority,
    "JMSDeliveryMode": _jms_delivery_mode,
    "JMSTimestamp": _jms_timestamp,
    "JMSMessageID": _property("message_id"),
    "JMSCorrelationID": _property("correlation_id"),
    "JMSType": _property("type"),
    "JMSReplyTo": _property("reply_to"),
    "JMSXUserID": _property("user_id"),
    "JMSXAppID": _property("app_id"),
} | {
    f"amqp.{field}": _property(field)
    for field in (
        *("routing_key", "exchange", "content_type", "content_encoding", "delivery_mode", "priority"),
        *("correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id"),
        *("app_id", "size"),
    )
}


def header(name: str) -> Evaluator:
    """The header called `name`, or NULL."""
    return lambda message: message.headers.get(name)


def constant(value: object) -> Evaluator:
    return lambda message: value


def condition(value: Evaluator) -> Evaluator:
    """A name used as a condition: true or false when it holds a boolean, otherwise UNKNOWN."""

    def evaluate(message: Message) -> object:
        found = value(message)
        return found if found is True or found is False else None

    return evaluate


def all_of(conditions: Sequence[Evaluator]) -> Evaluator:
    """AND over any number of conditions: one false decides, otherwise one UNKNOWN does."""
    return _decided_by(False, conditions)


def any_of(conditions: Sequence[Evaluator]) -> Evaluator:
    """OR over any number of conditions: one true decides, otherwise one UNKNOWN does."""
    return _decided_by(True, conditions)


def _decided_by(decisive: bool, conditions: Sequence[Evaluator]) -> Evaluator:
    def evaluate(message: Message) -> object:
        result: bool | None = not decisive
        for each in conditions:
            found = each(message)
            if found is decisive:
                return decisive
            if found is None:
                result = None
        return result

    return evaluate


def negation(value: Evaluator) -> Evaluator:
    """NOT: UNKNOWN stays UNKNOWN."""

    def evaluate(message: Message) -> object:
        found = value(message)
        return None if found is None else not found

    return evaluate


def comparison(sign: str, left: Evaluator, right: Evaluator) -> Evaluator:
    """`=` and `<>` between values of one type, the others between numbers; NULL on a side is UNKNOWN."""
    if sign in EQUALITIES:
        return _two_sided(EQUALITIES[sign], _are_alike, left, right)
    return _two_sided(ORDERINGS[sign], _are_numbers, left, right)


def _two_sided(
    operate: Callable[..., bool],
    comparable: Callable[[object, object], bool],
    left: Evaluator,
    right: Evaluator,
) -> Evaluator:
    def evaluate(message: Message) -> object:
        first = left(message)
        if first is None:
            return None
        second = right(message)
        if second is None:
            return None
        return comparable(first, second) and operate(first, second)

    return evaluate


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(first: object, second: object) -> bool:
    return _is_number(first) and _is_number(second)


def _are_alike(first: object, second: object) -> bool:
    return type(first) is type(second) or _are_numbers(first, second)


def membership(value: Evaluator, members: frozenset[str | int | float]) -> Evaluator:
    """IN over literals: strings and numbers."""

    def evaluate(message: Message) -> object:
        found = value(message)
        if found is None:
            return None
        return (isinstance(found, str) or _is_number(found)) and found in members

    return evaluate


def is_null(value: Evaluator) -> Evaluator:
    return lambda message: value(message) is None


def like(value: Evaluator, pattern: str, escape: str | None) -> Evaluator:
    """LIKE: `_` is one character, `%` any number of them; `escape` makes the next character plain."""
    matches = _like_matcher(pattern, escape)

    def evaluate(message: Message) -> object:
        found = value(message)
        if found is None:
            return None
        return isinstance(found, str) and matches(found)

    return evaluate


def _like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A matcher whose time is bounded by pattern times value: a chain of `.*` could take much longer.

    The parts between the `%` are looked for from left to right, each at its first place. That finds a match
    whenever there is one, because a part found earlier leaves more room for the next.
    """
    parts = _like_parts(pattern, escape)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return lambda value: first.regex.fullmatch(value) is not None

    def matches(value: str) -> bool:
        limit = len(value) - last.length
        if first.length > limit or not first.regex.match(value) or not last.regex.match(value, limit):
            return False
        position = first.length
        for part in parts[1:-1]:
            found = part.regex.search(value, position, limit)
            if found is None:
                return False
            position = found.end()
        return True

    return matches


class _Part:
    """What stands between two `%`: a run of characters of fixed length."""

    __slots__ = ("length", "regex")

    def __init__(self, characters: Sequence[str]) -> None:
        self.length = len(characters)
        self.regex = re.compile("".join(characters), re.DOTALL)


def _like_parts(pattern: str, escape: str | None) -> list[_Part]:
    parts: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            parts[-1].append(re.escape(next(characters)))
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append("." if character == "_" else re.escape(character))
    return [_Part(part) for part in parts]


def negative(value: Evaluator) -> Evaluator:
    return lambda message: -found if _is_number(found := value(message)) else None  # type: ignore[operator]


def arithmetic(first: Evaluator, steps: Sequence[tuple[str, Evaluator]]) -> Evaluator:
    """`first` and then each step, left to right; NULL where an operand is no number or divides by zero."""

    def evaluate(message: Message) -> object:
        result = first(message)
        for sign, operand in steps:
            value = operand(message)
            if not _are_numbers(result, value):
                return None
            try:
                result = _ARITHMETIC[sign](result, value)
            except ArithmeticError:
                return None
        return result

    return evaluate


def _divided(dividend: float, divisor: float) -> float:
    """Two integers divide as Java's do: towards zero."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        quotient = abs(dividend) // abs(divisor)
        return quotient if (dividend < 0) == (divisor < 0) else -quotient
    return dividend / divisor


_ARITHMETIC: dict[str, Callable[..., float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
}
