"""A fan-in of Arrow decodes what the JVM wrote: every type of Spark, under every setting that changes a layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType, IntegerType, StringType, StructType, UserDefinedType

from multiqueue.spark import FanInError, fan_in

# A value of each type, made of the column `id`; collations and types with parameters besides.
VALUES = {
    "NullType": ["null"],
    "ByteType": ["cast(id as byte)"],
    "ShortType": ["cast(id as short)"],
    "IntegerType": ["cast(id as int)"],
    "LongType": ["id"],
    "FloatType": ["cast(id / 3 as float)"],
    "DoubleType": ["id / 3D"],
    "DecimalType": ["cast(id as decimal(5, 2))", "cast(id as decimal(38, 10))"],
    "StringType": [
        "repeat('ü', cast(id as int))",
        "cast(id as string) collate UTF8_LCASE",
        "cast(id as string) collate DE",
    ],
    "CharType": ["cast(id as char(5))"],
    "VarcharType": ["cast(id as varchar(9))"],
    "BinaryType": ["cast(repeat('b', cast(id as int)) as binary)"],
    "BooleanType": ["id > 2"],
    "DateType": ["date_add(date '2026-11-21', cast(id as int))"],
    "TimeType": ["time '10:20:30.123456'"],
    "TimestampType": ["timestamp_micros(id + 1)", "timestamp '2026-11-21 10:00:00'"],
    "TimestampNTZType": ["timestamp_ntz '2026-11-21 10:00:00.000001'"],
    "DayTimeIntervalType": ["make_dt_interval(1, 2, 3, cast(id as int))"],
    "VariantType": ["parse_json(concat('{\"k\": [', id, ', \"x\"]}'))"],
    "GeometryType": ["st_geomfromwkb(X'0101000000000000000000f03f0000000000000040')"],
    "GeographyType": ["st_geogfromwkb(X'0101000000000000000000f03f0000000000000040')"],
    "ArrayType": ["array(cast(id as string), null)", "slice(array(id), 1, 0)"],
    "MapType": ["map(cast(id as string), id, 'z', null)"],
    # A field that cannot be null makes `toArrow` fail on a struct that is.
    "StructType": ["named_struct('x', nullif(id, -1), 'y', cast(null as string))"],
}
# Those that `toArrow` refuses.
REFUSED = {"YearMonthIntervalType": "make_ym_interval(1, 2)", "CalendarIntervalType": "make_interval(1, 2, 3, 4)"}
ABSTRACT = {"AtomicType", "NumericType", "IntegralType", "FractionalType", "DatetimeType", "AnyTimeType"} | {
    "SpatialType",
    "AnsiIntervalType",
    "StructField",
}
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
ARROW = "spark.sql.execution.arrow."
# What is set for a pass over all types. A setting of Arrow that is neither here nor in `WITHOUT_EFFECT` fails a test.
SETTINGS = [
    {},
    # Not lz4: `toArrow` cannot read what the JVM's lz4 writes.
    {ARROW + "compression.codec": "zstd", ARROW + "compression.zstd.level": "1", ARROW + "maxRecordsPerBatch": "2"},
    {ARROW + "pyspark.selfDestruct.enabled": "true", ARROW + "pyspark.validateSchema.enabled": "true"},
    {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.timestampType": "TIMESTAMP_NTZ"},
    {"spark.sql.execution.pandas.structHandlingMode": "row"},
    {"spark.sql.charAsVarchar": "true", "spark.sql.execution.pandas.structHandlingMode": "dict"},
]
WITHOUT_EFFECT = {  # on how a result is written: those of caches, of pandas, of UDFs, of SparkR
    ARROW + name
    for name in (
        "cache.prefetch.enabled",
        "enabled",
        "fallback.enabled",
        "localRelationThreshold",
        "pyspark.enabled",
        "pyspark.fallback.enabled",
        "pythonUDF.columnarInput.enabled",
        "sparkr.enabled",
        "transformWithStateInPySpark.maxStateRecordsPerBatch",
    )
}


class Point(UserDefinedType):
    """A type of a user's own, which is stored as a struct."""

    @classmethod
    def sqlType(cls) -> DataType:
        return StructType().add("x", IntegerType()).add("name", StringType())

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: Any) -> Any:
        return obj

    def deserialize(self, datum: Any) -> Any:
        return datum


@contextmanager
def settings_of(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, told in before.items():
            spark.conf.set(name, str(told))


def all_types(spark: SparkSession) -> DataFrame:
    """Each value alone, with nulls between, and within an array, a map, and a struct of a struct."""
    columns = []
    for index, value in enumerate(value for values in VALUES.values() for value in values):
        columns += [  # lists of nulls are written with a wrong length: `toArrow` fails
            f"if(id % 3 = 0, null, {value}) as plain{index}",
            f"array({'id' if value == 'null' else value}, null) as in_array{index}",
            f"map('key', {value}, 'none', {value}) as in_map{index}" if value != "null" else "map('key', id) as no_map",
            f"named_struct('a', named_struct('b', {value})) as in_struct{index}",
        ]
    return spark.range(0, 5, 1, 2).selectExpr(*columns)


def told(frame: DataFrame) -> Any:
    """What a fan-in hands out, as a table."""
    import pyarrow as pa  # type: ignore[import-untyped]

    with fan_in({"a": frame}, batches="arrow") as fan:
        batches = [batch for _, batch in fan]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


def test_every_type_of_spark_is_in_the_table() -> None:
    """A type that a newer Spark has makes this fail, by its name, until it has a value here."""

    def below(kind: type[Any]) -> Iterator[str]:
        for one in kind.__subclasses__():
            if one.__module__ == spark_types.__name__:
                yield one.__name__
                yield from below(one)

    assert {*below(DataType)} - {"UserDefinedType", *ABSTRACT} == {*VALUES, *REFUSED}


@pytest.mark.spark
@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("large", ["false", "true"])
def test_batches_of_every_type_are_those_of_to_arrow(spark: SparkSession, large: str) -> None:
    """All types, plain and nested, have the schema of `toArrow` and its values under each setting (fan-in 7).

    The values are taken from the stream of `toArrow` before its cast, which fails on variants that are null.
    """
    import pyarrow as pa

    for settings in SETTINGS:
        with settings_of(spark, {LARGE: large, "spark.sql.timeType.enabled": "true", **settings}):
            frame = all_types(spark)
            expected, got = pa.Table.from_batches(frame._collect_as_arrow()), told(frame)
            for name in expected.column_names:
                assert got.column(name).to_pylist() == expected.column(name).to_pylist(), (name, settings)
            assert got.schema.equals(frame.limit(0).toArrow().schema, check_metadata=True), settings


@pytest.mark.spark
def test_users_types_and_rows_without_columns(spark: SparkSession) -> None:
    """Types of a user's own are those of `toArrow`, with large types too; rows that have no column are as many."""
    rows = [((1, "a"),), ((2, None),), (None,)]
    points = spark.createDataFrame(rows, StructType().add("at", Point()), verifySchema=False)
    for large in ("false", "true"):
        with settings_of(spark, {LARGE: large}):
            expected, got = points.toArrow(), told(points)
            assert got.schema.equals(expected.schema, check_metadata=True)
            assert got.to_pylist() == expected.to_pylist()
            assert told(spark.range(3).select()).num_rows == 3  # `toArrow` says none


@pytest.mark.spark
@pytest.mark.parametrize("value", [*REFUSED.values(), *VALUES["CharType"]])
def test_a_type_that_to_arrow_refuses_is_refused_in_its_words(spark: SparkSession, value: str) -> None:
    """A fan-in says of such a type what `toArrow` says, and hands out nothing."""
    with settings_of(spark, {"spark.sql.preserveCharVarcharTypeInfo": "true"}):
        frame = spark.range(3).selectExpr(f"{value} as value")
        with pytest.raises(Exception) as expected:
            frame.toArrow()
        with pytest.raises(FanInError) as caught, fan_in({"a": frame}, batches="arrow") as fan:
            list(fan)
    assert str(caught.value.__cause__) == str(expected.value)


@pytest.mark.spark
def test_a_new_setting_of_arrow_is_noticed(spark: SparkSession) -> None:
    """Each setting of Arrow that this Spark has is one of those tried above, or one that changes no result."""
    rows = spark.sql("set -v").where(f"key like '{ARROW}%'").collect()
    assert {row.key for row in rows} == {LARGE, *WITHOUT_EFFECT} | {
        name for settings in SETTINGS for name in settings if name.startswith(ARROW)
    }
