"""Regular expressions of users and administrators, matched in a time that is bounded.

Promise     `bounded_pattern` returns a search whose time grows with pattern times text, or it raises: no expression can
            hold the interpreter's lock for long. RE2 has this bound for all that it knows. What it does not know (it is
            not installed, or the expression looks ahead or refers back) Python's `re` matches, if there are few ways to
            match: that is counted on the expression, before any text comes. docs/decisions/0885.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

_LONGEST: Final = 4096  # characters of an expression
_NAME: Final = 255  # characters that `re` is given; names of AMQP are no longer
_WAYS: Final = 1024  # of matching at one place: a star and four alternatives

Search = Callable[[str], object]
_parse: Final[Callable[..., Any]] = importlib.import_module("re._parser").parse


def _is_main() -> bool:
    """Whether this is the process's first interpreter: in another one RE2 waits for the GIL that it holds."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


try:
    re2 = importlib.import_module("re2") if _is_main() else None
except ImportError:  # there is no wheel of it for this interpreter, or nobody wanted it
    re2 = None


def bounded_pattern(pattern: str, *, ignore_case: bool = False) -> Search:
    """Whether the expression matches anywhere in a text, in bounded time.

    Raises:
        ValueError: it is no regular expression, or one that could take any time; the sentence says which.
    """
    if len(pattern) > _LONGEST:
        raise ValueError(f"has {len(pattern)} characters; the most is {_LONGEST}")
    if pattern == ".*":
        return lambda text: True
    if re2 is not None:
        options = re2.Options()
        options.case_sensitive = not ignore_case
        options.log_errors = False
        try:
            return re2.compile(pattern, options).search  # type: ignore[no-any-return]
        except re2.error:
            pass  # it looks ahead, refers back, or is no expression at all
    flags = re.IGNORECASE if ignore_case else re.ASCII
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a set in a set, `[[:alpha:]]`, would mean another thing
            search, ways = re.compile(pattern, flags).search, _ways(_parse(pattern, flags))
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if ways > _WAYS:
        has_re2 = "as RE2 does not know it (it looks ahead or refers back)" if re2 is not None else "without google-re2"
        raise ValueError(f"repeats and chooses so often that it could take any time, {has_re2}; write a simpler one")
    return lambda text: len(text) <= _NAME and search(text)


def _ways(parts: Any) -> int:
    """In how many ways a backtracking matcher may go through a parsed expression from one place: an upper bound."""
    ways = 1
    for kind, value in parts:
        ways *= _ways_of(str(kind), value)
        if ways > _WAYS:
            return ways
    return ways


def _ways_of(kind: str, value: Any) -> int:
    match kind:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT" | "GROUPREF":
            return 1
        case "SUBPATTERN":
            return _ways(value[-1])
        case "ATOMIC_GROUP":
            return _ways(value)
        case "ASSERT" | "ASSERT_NOT":
            return _ways(value[1])
        case "BRANCH":
            return sum(map(_ways, value[1]))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inner = value
            once, most = _ways(inner), min(int(most), _NAME)
            if once == 1:
                return most - min(int(least), most) + 1
            return (
                sum(once**times for times in range(int(least), most + 1))
                if most * once.bit_length() < 64
                else _WAYS + 1
            )
        case _:
            return _WAYS + 1
