"""Columns as they were expected."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline_parts_support import Schemas, _read_schemas, differences

from multiqueue.pipeline import ConfigError, JobError, parse_config


def schema(**columns: str) -> Any:
    fields = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for name, kind in columns.items()
    ]
    return SimpleNamespace(fields=fields)


class Session:
    """A session that knows two schemas, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def sql(self, query: str) -> Any:
        self.asked += 1
        if "nonsense" in query:
            raise type("ParseException", (Exception,), {})("[PARSE_SYNTAX_ERROR] no such type\nmore")
        if "CHAR" in query:
            raise type("AnalysisException", (Exception,), {})("[UNSUPPORTED_CHAR_OR_VARCHAR_AS_STRING] not in JSON")
        return SimpleNamespace(schema={"columns": SimpleNamespace(dataType=schema(a="int", b="string"))})


@pytest.mark.parametrize(
    ("found", "exactly", "expected"),
    [
        ({"a": "int", "b": "string"}, True, []),
        ({"B": "string", "A": "int"}, True, []),
        ({"a": "int", "b": "string", "c": "date"}, False, []),
        ({"a": "int", "b": "string", "c": "date"}, True, ["'c' (date) is unexpected"]),
        ({"b": "array<int>"}, False, ["'a' (int) is missing", "'b' is array<int>, not string"]),
    ],
)
def test_what_differs(found: dict[str, str], exactly: bool, expected: list[str]) -> None:
    """Each column that is missing, of another type or too many is named, in any case and place."""
    assert differences({"a": "int", "b": "string"}, found, exactly=exactly) == expected


def test_a_mismatch_is_for_good() -> None:
    """A frame without the expected columns is an error of the job, which is not tried again; the place is named."""
    session, schemas = Session(), Schemas()
    schemas.require(session, SimpleNamespace(schema=schema(a="int", b="string")), "a INT, b STRING", "x", exactly=True)
    schemas.require(session, SimpleNamespace(schema=schema()), None, "x", exactly=True)
    with pytest.raises(JobError, match=r"the columns are not those of lanes\.eu\.expect: 'b' \(string\) is missing"):
        schemas.require(
            session, SimpleNamespace(schema=schema(a="int")), "a INT, b STRING", "lanes.eu.expect", exactly=False
        )
    assert session.asked == 1


@pytest.mark.parametrize("for_reading", [False, True])
def test_a_schema_that_is_none(for_reading: bool) -> None:
    """What Spark cannot parse is a mistake in the configuration, told before any item runs."""
    with pytest.raises(ConfigError, match=r"output\.expect: \[PARSE_SYNTAX_ERROR\] no such type$"):
        Schemas().check(Session(), "a NONSENSE; nonsense", "output.expect", for_reading=for_reading)


def test_a_schema_for_readers_alone() -> None:
    """A type that a reader takes and a comparison of columns does not is a mistake only where columns are compared."""
    Schemas().check(Session(), "a CHAR(3)", "lanes.eu.schema", for_reading=True)
    with pytest.raises(ConfigError, match=r"lanes\.eu\.expect: .*not in JSON"):
        Schemas().check(Session(), "a CHAR(3)", "lanes.eu.expect")


def test_the_schemas_that_are_checked(tmp_path: Path) -> None:
    """Before the first item, every schema that something is read with is asked for."""
    lanes = {"eu": {"files": "*", "format": "csv", "schema": "a INT"}, "us": {"files": "*", "format": "csv"}}
    steps = {"all": {"after": ["eu", "us"], "sql": "SELECT 1", "schemas": {"us": "b INT"}}}
    config = parse_config(
        {"lanes": lanes, "steps": steps, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}}, tmp_path
    )
    assert list(_read_schemas(config)) == [("lanes.eu.schema", "a INT"), ("steps.all.schemas.us", "b INT")]
