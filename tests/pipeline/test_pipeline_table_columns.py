"""Columns of items and of tables: what fits, what is made to fit, what is refused."""

from __future__ import annotations

import re

import pytest
from pipeline_parts_support import ADD, REFUSE, WIDEN, fitted, of_spark, to_spark

from multiqueue.pipeline import JobError

TABLE = {"item": "string", "Amount": "long", "at": "timestamp"}
STRUCT = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {"x": 1}}]}


def test_columns_go_to_json_and_back() -> None:
    """Nested types keep their shape; whether a value may be NULL does not count."""
    columns = of_spark(
        to_spark({"a": "long", "b": STRUCT, "c": {"type": "array", "elementType": STRUCT, "containsNull": False}})
    )
    assert of_spark(to_spark(columns)) == columns
    assert str(columns).count("'nullable': True") == 2


def test_a_type_that_no_table_has() -> None:
    """A column of NULLs without a type, or an interval, is refused by name."""
    with pytest.raises(JobError, match="the column 'a' is void, which no table has; cast it, or leave it out"):
        of_spark(to_spark({"a": "void"}))


def test_the_tables_spelling_counts() -> None:
    """Names are compared without case, and written as the table has them."""
    fit = fitted(TABLE, {"at": "timestamp", "AMOUNT": "long", "item": "string"}, REFUSE, "t")
    assert fit.spelled == {"at": "at", "AMOUNT": "Amount", "item": "item"}
    assert (fit.casts, fit.added, fit.widened) == ({}, {}, {})


@pytest.mark.parametrize(
    ("rule", "found", "said"),
    [
        (REFUSE, {**TABLE, "more": "date"}, r"'more' \(date\) is unexpected; output.on_other_columns is 'refuse'"),
        (REFUSE, {"item": "string", "Amount": "long"}, r"'at' \(timestamp\) is missing"),
        (REFUSE, {**TABLE, "Amount": "integer"}, "'Amount' is integer, not long"),
        (ADD, {**TABLE, "Amount": "integer"}, "'Amount' is integer, not long; .* may be 'refuse', 'widen'"),
        (WIDEN, {**TABLE, "Amount": "string"}, "'Amount' is string, not long"),
        (WIDEN, {**TABLE, "Amount": "double"}, "'Amount' is double, not long"),
    ],
)
def test_columns_that_do_not_fit(rule: str, found: dict[str, str], said: str) -> None:
    """Each column that differs is named, with the key that decides about it."""
    with pytest.raises(JobError, match=said):
        fitted(TABLE, found, rule, "t")


def test_columns_are_added() -> None:
    """With `add` the table gets what it lacks, and an item may lack what the table has."""
    assert fitted(TABLE, {"item": "string", "more": "date"}, ADD, "t").added == {"more": "date"}


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("byte", "long"),
        ("integer", "long"),
        ("integer", "double"),
        ("float", "double"),
        ("decimal(5,2)", "decimal(9,3)"),
    ],
)
def test_the_wider_type_is_taken(narrow: str, wide: str) -> None:
    """With `widen` a narrower column is cast to the table's type; a wider one makes the table's column wider."""
    assert fitted({"a": wide}, {"A": narrow}, WIDEN, "t").casts == {"A": wide}
    assert fitted({"a": narrow}, {"A": wide}, WIDEN, "t").widened == {"a": wide}
    with pytest.raises(JobError, match=re.escape(f"'A' is {wide}, not {narrow}")):
        fitted({"a": narrow}, {"A": wide}, WIDEN, "t", may_widen=False)


@pytest.mark.parametrize(("one", "other"), [("long", "double"), ("decimal(5,2)", "decimal(5,3)"), ("float", "integer")])
def test_neither_type_holds_the_other(one: str, other: str) -> None:
    """A cast that could lose a value is never made."""
    with pytest.raises(JobError):
        fitted({"a": one}, {"a": other}, WIDEN, "t")
