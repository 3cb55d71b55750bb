"""Columns as they were expected: what differs, in one sentence.

A schema in the configuration is DDL, `"a INT, b STRING"`. Names are compared without case, as Spark does; types by
Spark's own short names, so whether a column may be null does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._base.errors import ConfigError, JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Columns = Mapping[str, str]
"""The type of each column, by the column's name."""

NO_DDL = ("[PARSE_", "[UNSUPPORTED_DATATYPE")
"""How Spark's complaints about DDL begin that no reader takes either."""


class Schemas:
    """The types that a session reads from DDL; each is asked for once. Threads that ask at once get the same."""

    def __init__(self) -> None:
        self._known: dict[str, Columns] = {}

    def columns(self, spark: SparkSession, ddl: str) -> Columns:
        """The columns of this DDL. Raises what Spark raises where it is wrong."""
        if ddl not in self._known:
            literal = ddl.replace("\\", "\\\\").replace("'", "\\'")
            schema = spark.sql(f"SELECT from_json('{{}}', '{literal}') AS columns").schema
            self._known[ddl] = columns_of(schema["columns"].dataType)
        return self._known[ddl]

    def check(self, spark: SparkSession, ddl: str, place: str, *, for_reading: bool = False) -> None:
        """Return if the DDL that the configuration has at `place` is one. Readers know types that JSON does not.

        Raises:
            ConfigError: it is not.
        """
        try:
            self.columns(spark, ddl)
        except Exception as error:  # of the many errors of Spark, these are the DDL's own
            if type(error).__name__ not in ("ParseException", "AnalysisException"):
                raise
            said = str(error).strip().splitlines()[0]
            if not for_reading or said.startswith(NO_DDL):
                raise ConfigError(f"{place}: {said}") from error

    def require(self, spark: SparkSession, frame: DataFrame, ddl: str | None, place: str, *, exactly: bool) -> None:
        """Return if the frame has the columns that the configuration expects at `place`; `exactly`: and no others.

        Raises:
            JobError: it has not; the message names each column that differs.
        """
        if ddl is None:
            return
        found = columns_of(frame.schema)
        wrong = differences(self.columns(spark, ddl), found, exactly=exactly)
        if wrong:
            there = ", ".join(f"{name} {kind}" for name, kind in found.items()) or "none"
            raise JobError(f"the columns are not those of {place}: {'; '.join(wrong)}; expected {ddl}, found {there}")


def columns_of(schema: Any) -> Columns:
    """The columns of a Spark StructType."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def differences(expected: Columns, found: Columns, *, exactly: bool) -> list[str]:
    """The columns that are missing, that have another type and, `exactly`, the surplus ones."""
    types = {name.lower(): kind for name, kind in found.items()}
    wrong = []
    for name, kind in expected.items():
        actual = types.get(name.lower())
        if actual is None:
            wrong.append(f"{name!r} ({kind}) is missing")
        elif actual != kind:
            wrong.append(f"{name!r} is {actual}, not {kind}")
    if exactly:
        names = {name.lower() for name in expected}
        wrong += [f"{name!r} ({kind}) is unexpected" for name, kind in found.items() if name.lower() not in names]
    return wrong


def other_names(expected: Iterable[str], found: Iterable[str]) -> str | None:
    """The names that are missing or too many, and both lists; None when they are the same, in any order."""
    wanted, there = list(expected), list(found)
    missing = _without(wanted, there)
    extra = _without(there, wanted)
    if not missing and not extra:
        return None
    parts = [f"missing {_listed(missing)}"] if missing else []
    parts += [f"unexpected {_listed(extra)}"] if extra else []
    return f"{', '.join(parts)}; expected {_listed(wanted)}, found {_listed(there)}"


def _without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    known = {name.lower() for name in others}
    return [name for name in names if name.lower() not in known]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
