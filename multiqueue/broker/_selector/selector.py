"""Selectors: which messages a consumer or a binding wants, as text; its tokens, and its grammar.

The SQL-92 subset of Jakarta Messaging: `region = 'eu' AND (JMSPriority > 6 OR amount BETWEEN 10 AND 20)`.
A bare name is a header; `JMSPriority`, `JMSType` and their kin are the message's properties, as is every AMQP
property under `amqp.`; a header whose name is no identifier stands in double quotes: `"x-tenant" = 'a'`.

Recursive descent, weakest first:

    condition   := both (OR both)*
    both        := negated (AND negated)*
    negated     := NOT* predicate
    predicate   := sum [ sign sum | IS [NOT] NULL | [NOT] (BETWEEN sum AND sum | IN (...) | LIKE ...) ]
    sum         := product ((+ | -) product)*
    product     := signed ((* | /) signed)*
    signed      := (+ | -)* primary
    primary     := literal | name | "quoted name" | ( condition )

Chains become one flat node and parentheses are bounded, so neither parsing nor evaluating can exhaust the
stack. Source: Jakarta Messaging 3.1, sections 3.8.1.1 (lexical elements) and 3.8.1.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn, TypeAlias

from .._base.errors import SelectorError
from .._base.message import Message
from . import operations
from .operations import Evaluator

# The argument of a binding or a consumer that holds a selector, as Qpid calls it.
SELECTOR_ARGUMENT = "x-filter-jms-selector"

# A level costs twelve frames to parse and fewer to evaluate: 25 of them leave the caller two thirds of
# Python's 1000.
MAX_DEPTH = 25
MAX_LENGTH = 65_536

# Longer than any number a header can hold, and short enough that arithmetic on it stays cheap.
_MAX_DIGITS = 64
_KEYWORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE"))

# One alternative per kind of token. A number must not run into a name (`12abc`); the L, F and D suffixes are
# Java's. A doubled quote inside a string or a quoted name stands for the quote itself.
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>(?:0[xX][0-9a-fA-F]+[lL]?
                     |(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eEfFdD]))(?:[eE][+-]?[0-9]+)?[fFdD]?
                     |[0-9]+[lL]?)(?![\w$.]))
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<name>[^\W\d][\w$.]*|\$[\w$.]*)
      | (?P<operator><>|<=|>=|[=<>+\-*/(),])
    """,
    re.VERBOSE,
)
_UNCLOSED = {
    "'": "a string that is not closed; a quote inside one is written twice",
    '"': "a quoted name that is empty or not closed",
}


class Token(NamedTuple):
    """One token: `value` is the keyword in capitals, the unquoted string, the number, or the text itself."""

    kind: Literal["name", "quoted name", "keyword", "string", "number", "operator", "end"]
    value: str | int | float
    position: int


class Expression(NamedTuple):
    """A parsed part: how to evaluate it, what it is known to be ("any" for a name), where it began."""

    evaluate: Evaluator
    type: Literal["condition", "number", "string", "any"]
    position: int


_Rule: TypeAlias = Callable[[], Expression]


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled selector: `Selector("region = 'eu'")(message)` is True when the message matches.

    UNKNOWN (a header that is missing, a sum with a string in it) is no match. Immutable, so any thread may
    call it; equal selectors have equal text.

    Raises:
        SelectorError: the text does not parse; it names the position.

    Source: Jakarta Messaging 3.1, section 3.8.
    """

    text: str
    _evaluate: Evaluator = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_LENGTH:
            problem = f"{len(self.text)} characters; {MAX_LENGTH} are the most"
            raise SelectorError(problem, text=self.text, position=MAX_LENGTH)
        object.__setattr__(self, "_evaluate", _Parser(self.text).parse())

    def __call__(self, message: Message) -> bool:
        return self._evaluate(message) is True

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __reduce__(self) -> tuple[type[Selector], tuple[str]]:
        return Selector, (self.text,)


def compile_selector(selector: str | Callable[[Message], bool] | None) -> Callable[[Message], bool] | None:
    """A selector as a queue takes it: text is compiled, a predicate stays, blank text and None are none."""
    if isinstance(selector, str):
        return Selector(selector) if selector.strip() else None
    return selector


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self.tokenize())
        self.index = 0
        self.depth = 0

    def fail(self, problem: str, position: int) -> NoReturn:
        raise SelectorError(problem, text=self.text, position=position)

    # Tokens

    def tokenize(self) -> Iterator[Token]:
        """The tokens of the text, then one of kind "end"."""
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                self.fail(_what_is_wrong(self.text[position]), position)
            found = match.group()
            match match.lastgroup:
                case "number":
                    if len(found) > _MAX_DIGITS:
                        self.fail(f"a number of {len(found)} characters; {_MAX_DIGITS} are the most", position)
                    yield Token("number", _number(found), position)
                case "string":
                    yield Token("string", found[1:-1].replace("''", "'"), position)
                case "quoted":
                    yield Token("quoted name", found[1:-1].replace('""', '"'), position)
                case "operator":
                    yield Token("operator", found, position)
                case "name" if (capitals := found.upper()) in _KEYWORDS:
                    yield Token("keyword", capitals, position)
                case "name":
                    yield Token("name", found, position)
            position = match.end()
        yield Token("end", "", position)

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def accept(self, *values: str) -> str:
        """Step over the next token if it is one of these keywords or operators, and return it; otherwise stay."""
        kind, value, _ = self.token
        if kind not in ("keyword", "operator") or value not in values:
            return ""
        self.index += 1
        return str(value)

    def expect(self, value: str, after: str) -> None:
        if not self.accept(value):
            self.fail_to_find(f"expected {value} after {after}")

    def expect_string(self, after: str) -> str:
        if self.token.kind != "string":
            self.fail_to_find(f"expected a string after {after}")
        self.index += 1
        return str(self.tokens[self.index - 1].value)

    def fail_to_find(self, expected: str) -> NoReturn:
        kind, value, position = self.token
        self.fail(f"{expected}, found {'the end' if kind == 'end' else f'{kind} {value!r}'}", position)

    # The grammar

    def parse(self) -> Evaluator:
        whole = self.as_condition(self.condition())
        if self.token.kind != "end":
            self.fail_to_find("expected AND, OR or the end")
        return whole

    def condition(self) -> Expression:
        return self.chain("OR", lambda: self.chain("AND", self.negated))

    def chain(self, keyword: Literal["OR", "AND"], part: _Rule) -> Expression:
        first = part()
        if self.token[:2] != ("keyword", keyword):
            return first
        conditions = [self.as_condition(first)]
        while self.accept(keyword):
            conditions.append(self.as_condition(part()))
        return Expression(operations.chain(conditions, decided_by=keyword == "OR"), "condition", first.position)

    def negated(self) -> Expression:
        position, times = self.token.position, 0
        while self.accept("NOT"):
            times += 1
        inner = self.predicate()
        if not times:
            return inner
        evaluate = self.as_condition(inner)
        return Expression(operations.negation(evaluate) if times % 2 else evaluate, "condition", position)

    def predicate(self) -> Expression:
        left, position = self.sum(), self.token.position
        if sign := self.accept(*operations.COMPARISONS):
            return self.comparison(left, sign, position)
        if self.accept("IS"):
            negated = self.accept("NOT")
            self.expect("NULL", "IS")
            evaluate = operations.is_null(left.evaluate)
        else:
            negated = self.accept("NOT")
            word = self.accept("BETWEEN", "IN", "LIKE")
            if not word:
                return self.fail_to_find("expected BETWEEN, IN or LIKE after NOT") if negated else left
            evaluate = {"BETWEEN": self.between, "IN": self.membership, "LIKE": self.like}[word](left)
        return Expression(operations.negation(evaluate) if negated else evaluate, "condition", left.position)

    def comparison(self, left: Expression, sign: str, position: int) -> Expression:
        right = self.sum()
        if sign not in ("=", "<>"):
            self.as_number(left, sign)
            self.as_number(right, sign)
        elif "any" not in (left.type, right.type) and left.type != right.type:
            self.fail(f"a {left.type} is never {sign} a {right.type}", position)
        return Expression(operations.comparison(sign, left.evaluate, right.evaluate), "condition", left.position)

    def between(self, value: Expression) -> Evaluator:
        low = self.as_number(self.sum(), "BETWEEN")
        self.expect("AND", "BETWEEN and its lower bound")
        high = self.as_number(self.sum(), "BETWEEN")
        evaluate = self.as_number(value, "BETWEEN")
        bounds = [operations.comparison(">=", evaluate, low), operations.comparison("<=", evaluate, high)]
        return operations.chain(bounds, decided_by=False)

    def membership(self, value: Expression) -> Evaluator:
        if value.type == "condition":
            self.fail("IN needs a value on its left, not a condition", value.position)
        self.expect("(", "IN")
        members = {self.member()}
        while not self.accept(")"):
            self.expect(",", "a value of IN")
            members.add(self.member())
        return operations.membership(value.evaluate, frozenset(members))

    def member(self) -> str | int | float:
        sign = self.accept("-", "+")
        kind, value, _ = self.token
        if kind != "number" and (sign or kind != "string"):
            self.fail_to_find("IN lists strings and numbers")
        self.index += 1
        return -value if sign == "-" and not isinstance(value, str) else value

    def like(self, value: Expression) -> Evaluator:
        if value.type not in ("string", "any"):
            self.fail(f"LIKE needs a string on its left, not a {value.type}", value.position)
        position = self.token.position
        pattern, escape = self.expect_string("LIKE"), None
        if self.accept("ESCAPE"):
            at = self.token.position
            escape = self.expect_string("ESCAPE")
            if len(escape) != 1:
                self.fail(f"ESCAPE needs one character, not {len(escape)}", at)
            if pattern.replace(escape * 2, "").endswith(escape):
                self.fail(f"the pattern ends in its escape character {escape!r}", position)
        return operations.like(value.evaluate, pattern, escape)

    def sum(self) -> Expression:
        return self.arithmetic(lambda: self.arithmetic(self.signed, "*", "/"), "+", "-")

    def arithmetic(self, part: _Rule, *signs: str) -> Expression:
        first = part()
        steps: list[tuple[str, Evaluator]] = []
        while sign := self.accept(*signs):
            self.as_number(first, sign)
            steps.append((sign, self.as_number(part(), sign)))
        return Expression(operations.arithmetic(first.evaluate, steps), "number", first.position) if steps else first

    def signed(self) -> Expression:
        position, minuses, is_signed = self.token.position, 0, False
        while sign := self.accept("+", "-"):
            is_signed = True
            minuses += sign == "-"
        inner = self.primary()
        if not is_signed:
            return inner
        evaluate = self.as_number(inner, "a sign")
        return Expression(operations.negative(evaluate) if minuses % 2 else evaluate, "number", position)

    def primary(self) -> Expression:
        kind, value, position = self.token
        self.index += 1
        match kind:
            case "number" | "string":
                return Expression(lambda message: value, kind, position)
            case "quoted name":
                return Expression(operations.header(str(value)), "any", position)
            case "name":
                return Expression(self.name(str(value), position), "any", position)
            case "keyword" if value in ("TRUE", "FALSE"):
                truth = value == "TRUE"
                return Expression(lambda message: truth, "condition", position)
            case "operator" if value == "(":
                return self.parenthesis(position)
        self.index -= 1
        self.fail_to_find("expected a value")

    def name(self, name: str, position: int) -> Evaluator:
        known = operations.PROPERTIES.get(name)
        if known is None and name.startswith(("JMS", "amqp.")) and not name.startswith(("JMS_", "JMSX")):
            self.fail(f"{name} names no property; a header so called is written in double quotes", position)
        return known or operations.header(name)

    def parenthesis(self, position: int) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} parentheses inside each other", position)
        inner = self.condition()
        self.expect(")", "the parenthesised part")
        self.depth -= 1
        return inner._replace(position=position)

    # What may stand where

    def as_condition(self, part: Expression) -> Evaluator:
        if part.type not in ("condition", "any"):
            self.fail(f"a {part.type} where a condition is needed", part.position)
        return operations.condition(part.evaluate) if part.type == "any" else part.evaluate

    def as_number(self, part: Expression, needed_by: str) -> Evaluator:
        if part.type not in ("number", "any"):
            self.fail(f"a {part.type} where {needed_by} needs a number", part.position)
        return part.evaluate


def _number(found: str) -> int | float:
    if found[:2] in ("0x", "0X"):
        return int(found.rstrip("lL"), 16)
    plain = found.rstrip("lL")
    return int(plain) if plain.isdecimal() else float(plain.rstrip("fFdD"))


def _what_is_wrong(character: str) -> str:
    if character.isdigit() or character == ".":
        return "a number that runs into other characters"
    return _UNCLOSED.get(character) or f"{character!r} starts nothing a selector knows"
