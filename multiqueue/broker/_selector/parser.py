"""A selector's grammar: recursive descent, one method per level of precedence, weakest first.

    condition   := both (OR both)*
    both        := negated (AND negated)*
    negated     := NOT* predicate
    predicate   := sum [ sign sum | IS [NOT] NULL | [NOT] (BETWEEN sum AND sum | IN (...) | LIKE ...) ]
    sum         := product ((+ | -) product)*
    product     := signed ((* | /) signed)*
    signed      := (+ | -)* primary
    primary     := literal | name | "quoted name" | ( condition )

Chains become one flat node and parentheses are bounded, so neither parsing nor evaluating can exhaust the
stack. Source: Jakarta Messaging 3.1, section 3.8.1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, NoReturn

from .._base.errors import SelectorError
from . import operations
from .operations import Evaluator
from .tokens import Token, tokenize

# A level costs thirteen frames to parse and fewer to evaluate: 25 of them leave the caller two thirds of
# Python's 1000.
MAX_DEPTH = 25
MAX_LENGTH = 65_536

Type = Literal["condition", "number", "string", "any"]


class Expression(NamedTuple):
    """A parsed part: how to evaluate it, what it is known to be ("any" for a name), where it began."""

    evaluate: Evaluator
    type: Type
    position: int


_Rule = Callable[[], Expression]
_Combine = Callable[[Sequence[Evaluator]], Evaluator]


def parse(text: str) -> Evaluator:
    """The evaluator of a whole selector: True, False or None (UNKNOWN) for a message.

    Raises:
        SelectorError: where `text` is not a selector, with the position.
    """
    if len(text) > MAX_LENGTH:
        problem = f"{len(text)} characters; {MAX_LENGTH} are the most"
        raise SelectorError(problem, text=text, position=MAX_LENGTH)
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(tokenize(text))
        self.index = 0
        self.depth = 0

    # Moving along the tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def fail(self, problem: str, position: int) -> NoReturn:
        raise SelectorError(problem, text=self.text, position=position)

    def accept(self, kind: str, *values: str) -> Token | None:
        """Step over the next token if it is one of `values`; otherwise stay."""
        token = self.token
        if token.kind != kind or token.value not in values:
            return None
        self.index += 1
        return token

    def expect(self, kind: str, value: str, after: str) -> None:
        if self.accept(kind, value) is None:
            self.fail(f"expected {value} after {after}, found {self.found()}", self.token.position)

    def expect_string(self, after: str) -> str:
        token = self.token
        if token.kind != "string":
            self.fail(f"expected a string after {after}, found {self.found()}", token.position)
        self.index += 1
        return str(token.value)

    def found(self) -> str:
        token = self.token
        return "the end" if token.kind == "end" else f"{token.kind} {token.value!r}"

    # The grammar

    def parse(self) -> Evaluator:
        whole = self.as_condition(self.condition())
        if self.token.kind != "end":
            self.fail(f"expected AND, OR or the end, found {self.found()}", self.token.position)
        return whole

    def condition(self) -> Expression:
        return self.chain("OR", self.both, operations.any_of)

    def both(self) -> Expression:
        return self.chain("AND", self.negated, operations.all_of)

    def chain(self, keyword: str, part: _Rule, combine: _Combine) -> Expression:
        first = part()
        if self.token[:2] != ("keyword", keyword):
            return first
        conditions = [self.as_condition(first)]
        while self.accept("keyword", keyword):
            conditions.append(self.as_condition(part()))
        return Expression(combine(conditions), "condition", first.position)

    def negated(self) -> Expression:
        position, times = self.token.position, 0
        while self.accept("keyword", "NOT"):
            times += 1
        inner = self.predicate()
        if not times:
            return inner
        evaluate = self.as_condition(inner)
        return Expression(operations.negation(evaluate) if times % 2 else evaluate, "condition", position)

    def predicate(self) -> Expression:
        left = self.sum()
        if sign := self.accept("operator", *operations.EQUALITIES, *operations.ORDERINGS):
            return self.comparison(left, sign)
        if self.accept("keyword", "IS"):
            negated = self.accept("keyword", "NOT")
            self.expect("keyword", "NULL", "IS")
            return self.maybe_not(negated, operations.is_null(left.evaluate), left)
        negated = self.accept("keyword", "NOT")
        if self.accept("keyword", "BETWEEN"):
            return self.maybe_not(negated, self.between(left), left)
        if self.accept("keyword", "IN"):
            return self.maybe_not(negated, self.membership(left), left)
        if self.accept("keyword", "LIKE"):
            return self.maybe_not(negated, self.like(left), left)
        if negated:
            self.fail(f"expected BETWEEN, IN or LIKE after NOT, found {self.found()}", self.token.position)
        return left

    def maybe_not(self, negated: Token | None, evaluate: Evaluator, left: Expression) -> Expression:
        return Expression(operations.negation(evaluate) if negated else evaluate, "condition", left.position)

    def comparison(self, left: Expression, sign: Token) -> Expression:
        right = self.sum()
        spelled = str(sign.value)
        if spelled in operations.ORDERINGS:
            self.as_number(left, spelled)
            self.as_number(right, spelled)
        elif "any" not in (left.type, right.type) and left.type != right.type:
            self.fail(f"a {left.type} is never {spelled} a {right.type}", sign.position)
        return Expression(operations.comparison(spelled, left.evaluate, right.evaluate), "condition", left.position)

    def between(self, value: Expression) -> Evaluator:
        low = self.as_number(self.sum(), "BETWEEN")
        self.expect("keyword", "AND", "BETWEEN and its lower bound")
        high = self.as_number(self.sum(), "BETWEEN")
        evaluate = self.as_number(value, "BETWEEN")
        return operations.all_of(
            [operations.comparison(">=", evaluate, low), operations.comparison("<=", evaluate, high)]
        )

    def membership(self, value: Expression) -> Evaluator:
        if value.type == "condition":
            self.fail("IN needs a value on its left, not a condition", value.position)
        self.expect("operator", "(", "IN")
        members: set[str | int | float] = set()
        while True:
            members.add(self.member())
            if self.accept("operator", ")"):
                return operations.membership(value.evaluate, frozenset(members))
            self.expect("operator", ",", "a value of IN")

    def member(self) -> str | int | float:
        sign = self.accept("operator", "-", "+")
        token = self.token
        if token.kind != "number" and (sign or token.kind != "string"):
            self.fail(f"IN lists strings and numbers, found {self.found()}", token.position)
        self.index += 1
        return -token.value if sign and sign.value == "-" and not isinstance(token.value, str) else token.value

    def like(self, value: Expression) -> Evaluator:
        if value.type not in ("string", "any"):
            self.fail(f"LIKE needs a string on its left, not a {value.type}", value.position)
        position = self.token.position
        pattern = self.expect_string("LIKE")
        escape = None
        if self.accept("keyword", "ESCAPE"):
            at = self.token.position
            escape = self.expect_string("ESCAPE")
            if len(escape) != 1:
                self.fail(f"ESCAPE needs one character, not {len(escape)}", at)
            if pattern.replace(escape * 2, "").endswith(escape):
                self.fail(f"the pattern ends in its escape character {escape!r}", position)
        return operations.like(value.evaluate, pattern, escape)

    def sum(self) -> Expression:
        return self.arithmetic(self.product, "+", "-")

    def product(self) -> Expression:
        return self.arithmetic(self.signed, "*", "/")

    def arithmetic(self, part: _Rule, *signs: str) -> Expression:
        first = part()
        steps: list[tuple[str, Evaluator]] = []
        while sign := self.accept("operator", *signs):
            self.as_number(first, str(sign.value))
            steps.append((str(sign.value), self.as_number(part(), str(sign.value))))
        if not steps:
            return first
        return Expression(operations.arithmetic(first.evaluate, steps), "number", first.position)

    def signed(self) -> Expression:
        position, minuses, signed = self.token.position, 0, False
        while sign := self.accept("operator", "+", "-"):
            signed = True
            minuses += sign.value == "-"
        inner = self.primary()
        if not signed:
            return inner
        evaluate = self.as_number(inner, "a sign")
        return Expression(operations.negative(evaluate) if minuses % 2 else evaluate, "number", position)

    def primary(self) -> Expression:
        token = self.token
        self.index += 1
        match token.kind:
            case "number":
                return Expression(operations.constant(token.value), "number", token.position)
            case "string":
                return Expression(operations.constant(token.value), "string", token.position)
            case "quoted name":
                return Expression(operations.header(str(token.value)), "any", token.position)
            case "name":
                return self.name(str(token.value), token.position)
            case "keyword" if token.value in ("TRUE", "FALSE"):
                return Expression(operations.constant(token.value == "TRUE"), "condition", token.position)
            case "operator" if token.value == "(":
                return self.parenthesis(token.position)
        self.index -= 1
        self.fail(f"expected a value, found {self.found()}", token.position)

    def name(self, name: str, position: int) -> Expression:
        known = operations.PROPERTIES.get(name)
        if known is None and name.startswith(("JMS", "amqp.")) and not name.startswith(("JMS_", "JMSX")):
            self.fail(f"{name} names no property; a header so called is written in double quotes", position)
        return Expression(known or operations.header(name), "any", position)

    def parenthesis(self, position: int) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} parentheses inside each other", position)
        inner = self.condition()
        self.expect("operator", ")", "the parenthesised part")
        self.depth -= 1
        return inner._replace(position=position)

    # What may stand where

    def as_condition(self, part: Expression) -> Evaluator:
        if part.type == "any":
            return operations.condition(part.evaluate)
        if part.type != "condition":
            self.fail(f"a {part.type} where a condition is needed", part.position)
        return part.evaluate

    def as_number(self, part: Expression, needed_by: str) -> Evaluator:
        if part.type not in ("number", "any"):
            self.fail(f"a {part.type} where {needed_by} needs a number", part.position)
        return part.evaluate
