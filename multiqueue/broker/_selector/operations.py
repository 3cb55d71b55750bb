"""The operators of a selector: functions that make functions of a message.

Each maker takes the evaluators of its operands and returns one evaluator, so that a parsed selector is one
call per message. `None` is SQL's NULL in a value and UNKNOWN in a condition; the three-valued logic is that
of SQL-92. Values of unlike types compare as false, never as an error, as Jakarta Messaging asks.

An evaluator reads the message and nothing else: it takes no lock and may run on any thread.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence

from .._base.message import Message

Evaluator = Callable[["Message"], object]

COMPARISONS: dict[str, Callable[..., bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# The names that do not mean a header: JMS's own, and every property of a message under `amqp.`.
PROPERTIES: dict[str, Evaluator] = {
    "JMSPriority": lambda message: 4 if message.priority is None else message.priority,  # 4 is JMS's default
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.delivery_mode == 2 else "NON_PERSISTENT",
    "JMSTimestamp": lambda message: None if message.timestamp is None else message.timestamp * 1000,  # ms since 1970
    "JMSMessageID": operator.attrgetter("message_id"),
    "JMSCorrelationID": operator.attrgetter("correlation_id"),
    "JMSType": operator.attrgetter("type"),
    "JMSReplyTo": operator.attrgetter("reply_to"),
    "JMSXUserID": operator.attrgetter("user_id"),
    "JMSXAppID": operator.attrgetter("app_id"),
    **{
        f"amqp.{field}": operator.attrgetter(field)
        for field in (
            *("routing_key", "exchange", "content_type", "content_encoding", "delivery_mode", "priority"),
            *("correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id"),
            *("app_id", "size"),
        )
    },
}


def header(name: str) -> Evaluator:
    """The header called `name`, or NULL."""
    return lambda message: message.headers.get(name)


def condition(value: Evaluator) -> Evaluator:
    """A name used as a condition: true or false when it holds a boolean, otherwise UNKNOWN."""
    return lambda message: found if (found := value(message)) is True or found is False else None


def chain(conditions: Sequence[Evaluator], *, decided_by: bool) -> Evaluator:
    """OR of any number of conditions, which one true decides, or AND, decided by one false; else one UNKNOWN does."""

    def evaluate(message: Message) -> object:
        result: bool | None = not decided_by
        for each in conditions:
            found = each(message)
            if found is decided_by:
                return decided_by
            if found is None:
                result = None
        return result

    return evaluate


def _known(function: Callable[..., object], value: Evaluator) -> Evaluator:
    """The function of a value; NULL and UNKNOWN stay what they are."""
    return lambda message: None if (found := value(message)) is None else function(found)


def negation(value: Evaluator) -> Evaluator:
    """NOT: UNKNOWN stays UNKNOWN."""
    return _known(operator.not_, value)


def comparison(sign: str, left: Evaluator, right: Evaluator) -> Evaluator:
    """`=` and `<>` between values of one type, the others between numbers; NULL on a side is UNKNOWN."""
    operate, is_equality = COMPARISONS[sign], sign in ("=", "<>")

    def evaluate(message: Message) -> object:
        first = left(message)
        if first is None:
            return None
        second = right(message)
        if second is None:
            return None
        are_alike = (is_equality and type(first) is type(second)) or _are_numbers(first, second)
        return are_alike and operate(first, second)

    return evaluate


_NUMBERS = (int, float)  # as a union it would be made anew for each message


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _are_numbers(first: object, second: object) -> bool:
    return _is_number(first) and _is_number(second)


def membership(value: Evaluator, members: frozenset[str | int | float]) -> Evaluator:
    """IN over literals: strings and numbers."""
    return _known(lambda found: (isinstance(found, str) or _is_number(found)) and found in members, value)


def is_null(value: Evaluator) -> Evaluator:
    return lambda message: value(message) is None


def like(value: Evaluator, pattern: str, escape: str | None) -> Evaluator:
    """LIKE: `_` is one character, `%` any number of them; `escape` makes the next character plain.

    The time is bounded by pattern times value, which a chain of `.*` could exceed by far. The parts between the `%`,
    each of a fixed length, are looked for from left to right, each at its first place. That finds a match whenever
    there is one, because a part found earlier leaves more room for the next.
    """
    parts: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            parts[-1].append(re.escape(next(characters)))
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append("." if character == "_" else re.escape(character))
    head, tail = len(parts[0]), len(parts[-1])
    first, *others = [re.compile("".join(part), re.DOTALL) for part in parts]

    def matches(found: object) -> bool:
        if not isinstance(found, str):
            return False
        if not others:
            return first.fullmatch(found) is not None
        limit = len(found) - tail
        if head > limit or not first.match(found) or not others[-1].match(found, limit):
            return False
        position = head
        for part in others[:-1]:
            place = part.search(found, position, limit)
            if place is None:
                return False
            position = place.end()
        return True

    return _known(matches, value)


def negative(value: Evaluator) -> Evaluator:
    return _known(lambda found: -found if _is_number(found) else None, value)


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


_ARITHMETIC: dict[str, Callable[..., float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided}
