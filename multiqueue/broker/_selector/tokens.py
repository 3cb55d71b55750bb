"""A selector's text cut into tokens, each with the position it started at.

Source: Jakarta Messaging 3.1, section 3.8.1 (lexical elements of the message selector syntax).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from .._base.errors import SelectorError

Kind = Literal["name", "quoted name", "keyword", "string", "number", "operator", "end"]

KEYWORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE"))

# Longer than any number a header can hold, and short enough that arithmetic on it stays cheap.
MAX_DIGITS = 64

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


class Token(NamedTuple):
    """One token: `value` is the keyword in capitals, the unquoted string, the number, or the text itself."""

    kind: Kind
    value: str | int | float
    position: int


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, then one of kind "end".

    Raises:
        SelectorError: at the first character that starts no token.
    """
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise SelectorError(_what_is_wrong(text, position), text=text, position=position)
        if match.lastgroup != "space":
            yield _token(match, position)
        position = match.end()
    yield Token("end", "", position)


def _token(match: re.Match[str], position: int) -> Token:
    found = match.group()
    match match.lastgroup:
        case "number":
            if len(found) > MAX_DIGITS:
                problem = f"a number of {len(found)} characters; {MAX_DIGITS} are the most"
                raise SelectorError(problem, text=match.string, position=position)
            return Token("number", _number(found), position)
        case "string":
            return Token("string", found[1:-1].replace("''", "'"), position)
        case "quoted":
            return Token("quoted name", found[1:-1].replace('""', '"'), position)
        case "operator":
            return Token("operator", found, position)
    capitals = found.upper()
    if capitals in KEYWORDS:
        return Token("keyword", capitals, position)
    return Token("name", found, position)


def _number(found: str) -> int | float:
    if found[:2] in ("0x", "0X"):
        return int(found.rstrip("lL"), 16)
    plain = found.rstrip("lLfFdD")
    return int(plain) if plain == found.rstrip("lL") and plain.isdecimal() else float(plain)


def _what_is_wrong(text: str, position: int) -> str:
    character = text[position]
    if character == "'":
        return "a string that is not closed; a quote inside one is written twice"
    if character == '"':
        return "a quoted name that is empty or not closed"
    if character.isdigit() or character == ".":
        return "a number that runs into other characters"
    return f"{character!r} starts nothing a selector knows"
