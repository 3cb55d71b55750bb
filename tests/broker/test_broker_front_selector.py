"""What a selector accepts, what it matches, and where it says that it is wrong."""

from __future__ import annotations

import pickle
import re

import pytest
from broker_parts_support import MAX_DEPTH, MAX_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from multiqueue.broker import Message, Selector, SelectorError, compile_selector

ORDER = Message(
    b"twelve bytes",
    routing_key="orders.eu",
    headers={"region": "eu", "amount": 12, "rate": 0.5, "paid": True, "x-tenant": "a", "note": "50%_off"},
    persistent=True,
    priority=7,
    timestamp=1.5,
    message_id="m-1",
)


@pytest.mark.parametrize(
    "text",
    [
        "region = 'eu'",
        "region <> 'us' AND amount > 11",
        "AMOUNT IS NULL AND amount IS NOT NULL",
        "amount BETWEEN 12 AND 13 and not amount between 13 and 20",
        "amount NOT BETWEEN 0xD AND 20L",
        "region IN ('us', 'eu') AND amount IN (+1, -1, 12)",
        "region NOT IN ('us')",
        "region LIKE 'e_' AND region LIKE '%' AND region NOT LIKE '_'",
        "note LIKE '50!%!_%' ESCAPE '!'",
        "paid AND NOT NOT paid",
        "paid = TRUE OR FALSE",
        "amount * 2 + 1 = 25 AND amount - 2 - 2 = 8 AND amount / 5 = 2 AND -amount / 5 = -2",
        "amount + rate * 2 = 13 AND (amount + rate) * 2 = 25",
        "- -amount = 12 AND -amount = -12 AND +amount = 12.0",
        "amount = 1.2e1 AND rate = .5 AND rate < 1f",
        "\"x-tenant\" = 'a'",
        "JMSPriority > 6 AND JMSDeliveryMode = 'PERSISTENT' AND JMSMessageID = 'm-1' AND JMSTimestamp = 1500",
        "amqp.routing_key = 'orders.eu' AND amqp.size = 12 AND amqp.timestamp = 1.5 AND amqp.type IS NULL",
        "missing = 1 OR region = 'eu'",
    ],
)
def test_a_selector_matches_a_message_it_describes(text: str) -> None:
    """SQL's comparisons, arithmetic, precedence and the names of the properties mean what SQL and JMS say."""
    assert Selector(text)(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "region = 'EU'",
        "missing = 1",
        "missing <> 1",
        "NOT missing = 1",
        "missing",
        "amount",
        "region LIKE 'e'",
        "amount LIKE '12'",
        "region IN ('us')",
        "missing NOT IN ('us')",
        "amount = '12'",
        "amount / 0 = 1 OR NOT amount / 0 = 1",
        "region + 1 = 1 OR region + 1 <> 1",
        "paid = 1",
        "paid IN (1)",
    ],
)
def test_unknown_and_unlike_types_match_nothing(text: str) -> None:
    """A missing header is UNKNOWN, which NOT does not turn true; values of unlike types are never equal."""
    assert not Selector(text)(ORDER)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected a value, found the end"),
        ("a = ", 4, "expected a value, found the end"),
        ("a = 'x", 4, "a string that is not closed"),
        ('a = "', 4, "a quoted name that is empty or not closed"),
        ("a = 12x", 4, "a number that runs into other characters"),
        ("a # b", 2, "'#' starts nothing a selector knows"),
        ("a = 1 b", 6, "expected AND, OR or the end, found name 'b'"),
        ("a IS 1", 5, "expected NULL after IS, found number 1"),
        ("a BETWEEN 1 OR 2", 12, "expected AND after BETWEEN and its lower bound, found keyword 'OR'"),
        ("a NOT 1", 6, "expected BETWEEN, IN or LIKE after NOT, found number 1"),
        ("a IN ()", 6, "IN lists strings and numbers, found operator ')'"),
        ("a IN (1 2)", 8, "expected , after a value of IN, found number 2"),
        ("a LIKE 1", 7, "expected a string after LIKE, found number 1"),
        ("a LIKE 'x' ESCAPE 'yy'", 18, "ESCAPE needs one character, not 2"),
        ("a LIKE 'x!' ESCAPE '!'", 7, "the pattern ends in its escape character '!'"),
        ("1 LIKE 'x'", 0, "LIKE needs a string on its left, not a number"),
        ("a = 1 AND 'x'", 10, "a string where a condition is needed"),
        ("a > 'x'", 4, "a string where > needs a number"),
        ("1 = 'x'", 2, "a number is never = a string"),
        ("(a = 1", 6, "expected ) after the parenthesised part, found the end"),
        ("JMSPriorty = 1", 0, "JMSPriorty names no property"),
        ("amqp.kind = 1", 0, "amqp.kind names no property"),
        ("a = " + "9" * 65, 4, "a number of 65 characters; 64 are the most"),
    ],
)
def test_an_error_names_the_character_where_the_selector_goes_wrong(text: str, position: int, problem: str) -> None:
    """The error tells which character of the selector to look at and what was expected there."""
    with pytest.raises(SelectorError, match=re.escape(problem)) as raised:
        Selector(text)
    assert (raised.value.position, raised.value.text) == (position, text)
    assert f"character {position}" in str(raised.value)


def test_parentheses_are_bounded_so_that_no_selector_can_exhaust_the_stack() -> None:
    """The deepest selector that parses also evaluates; one parenthesis more is refused with its position."""
    deepest = "(a or b and not " * MAX_DEPTH + "paid" + ")" * MAX_DEPTH
    assert not Selector(deepest)(ORDER)
    with pytest.raises(SelectorError, match=f"more than {MAX_DEPTH} parentheses") as raised:
        Selector("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1))
    assert raised.value.position == MAX_DEPTH


def test_chains_cost_no_stack_whatever_their_length() -> None:
    """Thousands of alternatives, signs or NOTs are one flat step, not thousands of calls deep."""
    assert Selector(" OR ".join(["amount = 1"] * 4000 + ["paid"]))(ORDER)
    assert Selector("NOT " * 5000 + "paid")(ORDER)
    assert Selector("-" * 5000 + "amount = 12")(ORDER)
    with pytest.raises(SelectorError, match=f"{MAX_LENGTH} are the most"):
        Selector("a" * (MAX_LENGTH + 1))


def test_like_takes_no_exponential_time_on_a_hostile_pattern() -> None:
    """A pattern of fifty `%a` against a long run of `a` is answered, which a chain of `.*` would not be."""
    hostile = Selector("text LIKE '" + "%a" * 50 + "b'")
    assert not hostile(Message(headers={"text": "a" * 20_000}))


@given(st.text("ab%_", max_size=8), st.text("ab%_", max_size=12))
def test_like_agrees_with_the_obvious_regular_expression(pattern: str, value: str) -> None:
    """`%` is any run of characters, `_` any one of them, everything else itself."""
    expected = re.fullmatch("".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in pattern), value)
    assert Selector(f"text LIKE '{pattern}'")(Message(headers={"text": value})) is (expected is not None)


# A condition as text, beside what it should be: True, False, or None for UNKNOWN.
_Condition = tuple[str, bool | None]

_leaves = st.sampled_from(
    [
        ("TRUE", True),
        ("1 = 2", False),
        ("missing = 1", None),
        ("region = 'eu'", True),
        ("paid = FALSE", False),
    ]
)


def _combined(parts: st.SearchStrategy[_Condition]) -> st.SearchStrategy[_Condition]:
    def conjunction(a: _Condition, b: _Condition) -> _Condition:
        worst = False if False in (a[1], b[1]) else None if None in (a[1], b[1]) else True
        return f"({a[0]} AND {b[0]})", worst

    def disjunction(a: _Condition, b: _Condition) -> _Condition:
        best = True if True in (a[1], b[1]) else None if None in (a[1], b[1]) else False
        return f"({a[0]} OR {b[0]})", best

    def negation(a: _Condition) -> _Condition:
        return f"(NOT {a[0]})", None if a[1] is None else not a[1]

    pairs = (parts, parts)
    return st.builds(conjunction, *pairs) | st.builds(disjunction, *pairs) | st.builds(negation, parts)


@given(st.recursive(_leaves, _combined, max_leaves=12))
def test_conditions_follow_three_valued_logic(condition: _Condition) -> None:
    """AND, OR and NOT over true, false and UNKNOWN give SQL's truth tables, however they are nested."""
    text, truth = condition
    assert Selector(text)(ORDER) is (truth is True)
    assert Selector(f"NOT {text}")(ORDER) is (truth is False)


def test_selectors_are_equal_by_text_and_can_be_pickled() -> None:
    """A selector is a value: it can be a dictionary key, be sent to a process, and shows what it says."""
    selector = Selector("amount > 1")
    copy = pickle.loads(pickle.dumps(selector))
    assert (copy, hash(copy), repr(copy)) == (selector, hash(selector), "Selector('amount > 1')")
    assert copy(ORDER)
    assert selector != Selector("amount > 2")


def test_a_queue_takes_a_selector_as_text_as_a_predicate_or_not_at_all() -> None:
    """Text is compiled, a predicate is used as it is, None and blank text select everything."""

    def predicate(message: Message) -> bool:
        return message.priority == 7

    assert compile_selector("region = 'eu'") == Selector("region = 'eu'")
    assert compile_selector(predicate) is predicate
    assert compile_selector(None) is None
    assert compile_selector("  ") is None
