"""Selectors: which messages a consumer or a binding wants, as text.

The SQL-92 subset of Jakarta Messaging: `region = 'eu' AND (JMSPriority > 6 OR amount BETWEEN 10 AND 20)`.
A bare name is a header; `JMSPriority`, `JMSType` and their kin are the message's properties, as is every AMQP
property under `amqp.`; a header whose name is no identifier stands in double quotes: `"x-tenant" = 'a'`.
"""

from __future__ import annotations

from collections.abc import Callable

from .._base.message import Message
from .parser import parse

# The argument of a binding or a consumer that holds a selector, as Qpid calls it.
SELECTOR_ARGUMENT = "x-filter-jms-selector"


class Selector:
    """A compiled selector: `Selector("region = 'eu'")(message)` is True when the message matches.

    UNKNOWN (a header that is missing, a sum with a string in it) is no match. Immutable, so any thread may
    call it; equal selectors have equal text.

    Raises:
        SelectorError: the text does not parse; it names the position.

    Source: Jakarta Messaging 3.1, section 3.8.
    """

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str) -> None:
        self.text: str = text
        self._evaluate = parse(text)

    def __call__(self, message: Message) -> bool:
        return self._evaluate(message) is True

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Selector) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __reduce__(self) -> tuple[type[Selector], tuple[str]]:
        return Selector, (self.text,)


def compile_selector(selector: str | Callable[[Message], bool] | None) -> Callable[[Message], bool] | None:
    """A selector as a queue takes it: text is compiled, a predicate stays, blank text and None are none."""
    if isinstance(selector, str):
        return Selector(selector) if selector.strip() else None
    return selector
