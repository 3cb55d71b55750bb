"""Columns that a lane knows, and files that have others: the same rows by Spark's readers and by Python. On Spark."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Inputs, KnownColumns, Storage, open_ledger
from pipeline_support import Recorder, spark_for_tests
from test_pipeline_input import Files, Reader

from multiqueue.pipeline import ExitStatus, RunResult, parse_config, plan_of, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WAYS = [pytest.param(io, marks=pytest.mark.slow(selected=True)) for io in ("spark", "python")]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from spark_for_tests()


class Lane:
    """A lane with `schema = "infer"`, whose items are read one after another."""

    def __init__(self, spark: Any, base: Path, io: str, format: str, on_new_columns: str, **lane: Any) -> None:
        self.reader = Reader(spark, base, io=io)
        self.format = format
        self.lane = {"schema": "infer", "on_new_columns": on_new_columns, **lane}
        if format == "parquet":
            self.lane.setdefault("corrupt", "allow")

    def __call__(self, files: Files) -> list[Any]:
        rows = self.reader(files, self.format, **self.lane)
        for row in rows:
            if rescued := row.get("_rescued_data"):
                row["_rescued_data"] = json.loads(rescued)
                row["_rescued_data"]["_file_path"] = Path(row["_rescued_data"]["_file_path"]).name
        return sorted(rows, key=str)

    def error(self, files: Files) -> str:
        return self.reader.error(files, self.format, **self.lane)


@pytest.mark.parametrize("io", WAYS)
def test_csv_with_new_columns_added(spark: Any, tmp_path: Path, io: str) -> None:
    """A lane's columns are inferred once; others are found by name, a new one is added, one that is missing is NULL.

    (pipeline 26)
    """
    lane = Lane(spark, tmp_path, io, "csv", "add", schema_hints="price DECIMAL(9,2)")
    assert lane({"head.csv": "a,b,price\n"}) == []  # nothing can be learnt of it
    assert lane({"1.csv": "a,b,price\n1,x,1.5\n"}) == [{"a": 1, "b": "x", "price": 1.5}]
    assert lane({"2.csv": "B,A\ny,2\n", "head.csv": "a,b,price\n"}) == [{"a": 2, "b": "y"}]
    assert lane({"3.csv": "a,b,c\n3,7,2026-01-02\n", "4.csv": "b,a\nz,4\n"}) == [
        {"a": 3, "b": "7", "c": "2026-01-02"},
        {"a": 4, "b": "z"},
    ]
    assert lane.error({"5.csv": "x,y\n1,2\n"}) == (
        "'5.csv' has none of the columns of lane 'lane': expected 'a', 'b', 'price', 'c', found 'x', 'y'"
    )
    assert "line 2 of '6.csv' is not as configured: '1.5,x'" in lane.error({"6.csv": "a,b\n1.5,x\n"})


@pytest.mark.parametrize("io", WAYS)
def test_csv_with_a_rescued_column(spark: Any, tmp_path: Path, io: str) -> None:
    """What is of another type or in another column is in the rescued column as it was written; malformed lines are not.

    (pipeline 27)
    """
    lane = Lane(spark, tmp_path, io, "csv", "rescue", rescued_column="_rescued_data")
    assert lane({"1.csv": "a,b,d\n1,x,2026-01-01\n"}) == [{"a": 1, "b": "x", "d": "2026-01-01"}]
    rows = lane({"2.csv": 'd,c,a\n2026-01-02,"q ""1""",2\nnever,,1.5\n,n,t\n', "3.csv": "a,b\n3,y\n"})
    assert rows == [
        {"_rescued_data": {"_file_path": "2.csv", "c": "n", "a": "t"}},
        {"_rescued_data": {"_file_path": "2.csv", "a": "1.5", "d": "never"}},
        {"a": 2, "d": "2026-01-02", "_rescued_data": {"_file_path": "2.csv", "c": 'q "1"'}},
        {"a": 3, "b": "y"},
    ]
    assert "line 3 of '4.csv' is not as configured: '1.5,x,2026-01-01,7'" in lane.error(
        {"4.csv": "a,b,d\n1,x,\n1.5,x,2026-01-01,7\n"}
    )
    lane.lane["corrupt"] = "set aside"
    assert lane({"4.csv": "a,b,d\nt,x,\n1.5,x,2026-01-01,7\n"}) == [
        {"b": "x", "_rescued_data": {"_file_path": "4.csv", "a": "t"}}
    ]
    assert lane.reader.records() == [("4.csv", 3, "1.5,x,2026-01-01,7")]


@pytest.mark.parametrize("io", WAYS)
def test_csv_with_new_columns_set_aside_or_ignored(spark: Any, tmp_path: Path, io: str) -> None:
    """A file with a new column is set aside and the column named, or the column is left out. (pipeline 26)"""
    lane = Lane(spark, tmp_path, io, "csv", "set aside")
    assert lane({"1.csv": "a,b\n1,x\n"}) == [{"a": 1, "b": "x"}]
    assert lane.error({"2.csv": "c,a\n1,2\n"}) == (
        "'2.csv' has columns that lane 'lane' lacks: 'c'; on_new_columns = \"add\" takes them, "
        '"rescue" keeps their values in a column, "ignore" leaves them out'
    )
    lane.lane["on_new_columns"] = "ignore"
    assert lane({"2.csv": "c,a\n1,2\n"}) == [{"a": 2}]


@pytest.mark.parametrize("io", WAYS)
@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_json_with_new_columns_added(spark: Any, tmp_path: Path, io: str, format: str) -> None:
    """Keys of JSON, also inside of structs and of arrays, are added; another spelling is told. (pipeline 26)"""
    lane = Lane(spark, tmp_path, io, format, "add")
    if format == "jsonl":
        assert lane({"empty": ""}) == []
    assert lane({"1": '{"a": 1, "s": {"x": 1}}'}) == [{"a": 1, "s": {"x": 1}}]
    second = {"a": 2, "b": [{"y": 1}], "s": {"x": 2, "z": "n"}}
    assert lane({"2": json.dumps(second)}) == [second]
    assert lane({"3": '{"a": 3, "b": [{"y": 2, "w": true}]}', "1": '{"a": 1}'}) == [
        {"a": 1},
        {"a": 3, "b": [{"w": True, "y": 2}]},
    ]
    assert "has the key 'A', and the lane's column is 'a'" in lane.error({"4": '{"A": 1, "s": {"x": 1}}'})
    assert "has none of the columns of lane 'lane'" in lane.error({"5": '{"q": 1}'})
    lane.lane["on_new_columns"] = "set aside"
    assert "has columns that lane 'lane' lacks: 's.k'; " in lane.error({"6": '{"a": 1, "s": {"k": 1}}'})
    lane.lane["on_new_columns"] = "ignore"
    assert lane({"6": '{"a": 6, "s": {"k": 1, "x": 5}}'}) == [{"a": 6, "s": {"x": 5}}]


@pytest.mark.parametrize("io", WAYS)
@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_json_with_a_rescued_column(spark: Any, tmp_path: Path, io: str, format: str) -> None:
    """What does not fit, at the top or inside of a value, is rescued; what is no JSON is not. (pipeline 27)"""
    lane = Lane(spark, tmp_path, io, format, "rescue", rescued_column="_rescued_data")
    assert lane({"1": '{"a": 1, "s": {"x": 1}, "l": [{"y": 1}]}'}) == [{"a": 1, "l": [{"y": 1}], "s": {"x": 1}}]
    records = [
        '{"a": 2, "s": {"x": 2}}',
        '{"a": 2.5, "A": 3, "n": null, "t": "it is"}',
        '{"a": 4, "s": {"x": "q"}, "l": [{"y": 1}]}',
        '{"a": 5, "s": {"x": 5, "z": 1}, "l": [{"y": 1, "w": {}}]}',
    ]
    rows = lane({"2": "\n".join(records) if format == "jsonl" else f"[{','.join(records)}]"})
    file = {"_file_path": "2"}
    assert [row for row in rows if "_rescued_data" not in row] == [{"a": 2, "s": {"x": 2}}]
    assert [row["_rescued_data"] for row in rows if row.get("a") not in (2, 5)] == [
        {**file, "a": "2.5", "A": "3", "t": "it is"},
        {**file, "s": '{"x":"q"}', "l": '[{"y":1}]'},
    ]
    (fifth,) = (row for row in rows if row.get("a") == 5)
    assert fifth["_rescued_data"] == {**file, "s": '{"x":5,"z":1}', "l": '[{"y":1,"w":{}}]'}
    assert (fifth["s"], fifth["l"]) == ({"x": 5}, [{"y": 1}])
    assert "is not as configured: '{\"a\": '" in lane.error({"3": '{"a": '})


@pytest.mark.parametrize("io", WAYS)
def test_parquet_with_other_columns(spark: Any, tmp_path: Path, io: str) -> None:
    """Files of Parquet with wider types, other types and new columns give one set of columns. (pipeline 26, 27)"""
    lane = Lane(spark, tmp_path, io, "parquet", "add")
    assert lane({"1": {"a": [1], "b": ["x"]}}) == [{"a": 1, "b": "x"}]
    assert lane({"2": {"B": ["y"], "c": [1.5]}, "1": {"a": [1], "b": ["x"]}}) == [
        {"a": 1, "b": "x"},
        {"b": "y", "c": 1.5},
    ]
    assert lane.error({"3": {"a": ["n"]}}) == "'3' has 'a' as string, and lane 'lane' as bigint"
    lane.lane |= {"on_new_columns": "rescue", "rescued_column": "_rescued_data"}
    file = {"_file_path": "3"}
    assert lane({"3": {"a": ["7", "n"], "d": [[1], None]}, "1": {"a": [1], "b": ["x"]}}) == [
        {"_rescued_data": {**file, "a": "n"}},
        {"a": 1, "b": "x"},
        {"a": 7, "_rescued_data": {**file, "d": "[1]"}},
    ]
    assert lane({"3": {"a": [1.0, 1.5]}}) == [
        {"_rescued_data": {**file, "a": "1.0"}},
        {"_rescued_data": {**file, "a": "1.5"}},
    ]
    assert "has none of the columns" in lane.error({"4": {"z": [1]}})


@pytest.mark.parametrize("io", WAYS)
def test_parquet_with_other_columns_inside_of_columns(spark: Any, tmp_path: Path, io: str) -> None:
    """What a struct, also in an array or a map, has more or less than before is added, NULL, left out or rescued.

    (pipeline 26, 27)
    """
    import pyarrow

    def tall(*names: str, kind: str = "int64") -> dict[str, Any]:
        """A column of structs, and an array and a map of those."""
        n = {name: place for place, name in enumerate(names)}
        struct = pyarrow.struct([(name, kind) for name in names])
        types = {"n": struct, "l": pyarrow.list_(struct), "m": pyarrow.map_(pyarrow.string(), struct)}
        values = {"n": n, "l": [n, None], "m": [("k", n)]}
        return {name: pyarrow.array([values[name], None], kind) for name, kind in types.items()}

    small, large = tall("x"), tall("X", "y", kind="int32")
    as_small = {"n": {"x": 0}, "l": [{"x": 0}, None], "m": {"k": {"x": 0}}}
    as_large = {"n": {"x": 0, "y": 1}, "l": [{"x": 0, "y": 1}, None], "m": {"k": {"x": 0, "y": 1}}}
    lane = Lane(spark, tmp_path, io, "parquet", "add")
    assert lane({"1": small}) == [as_small, {}]
    assert lane({"2": large}) == [as_large, {}]
    assert lane({"3": small, "4": tall("y", kind="int32")}) == [
        {"l": [{"x": 0}, None], "m": {"k": {"x": 0}}, "n": {"x": 0}},
        {"l": [{"y": 0}, None], "m": {"k": {"y": 0}}, "n": {"y": 0}},
        {},
        {},
    ]
    assert "has 'n' as struct<x: double>, and lane 'lane' as struct<x: bigint, y: int>" in lane.error(
        {"5": tall("x", kind="float64")}
    )
    lane.lane["on_new_columns"] = "set aside"
    assert "has columns that lane 'lane' lacks: 'n.z', 'l.z', 'm.z'" in lane.error({"6": tall("z")})
    other = Lane(spark, tmp_path, io, "parquet", "ignore")
    assert other({"1": small}) == [as_small, {}]
    assert other({"2": large}) == [as_small, {}]
    other.lane |= {"on_new_columns": "rescue", "rescued_column": "_rescued_data"}
    (row, empty) = other({"2": large})
    whole = {"n": '{"X":0,"y":1}', "l": '[{"X":0,"y":1},null]', "m": '{"k":{"X":0,"y":1}}', "_file_path": "2"}
    assert (row, empty) == ({"_rescued_data": whole, **as_small}, {})


def run(base: Path, spark: Any, lane: dict[str, Any], **output: Any) -> RunResult:
    lanes = {"in": {"directories": "in/*", "files": "*", "format": "csv", "options": {"header": True}, **lane}}
    config = parse_config(
        {"lanes": lanes, "job": {"sql": "SELECT * FROM input"}, "output": {"path": "out", **output}}, base
    )
    return run_pipeline(config, Recorder(), session=lambda: spark)


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_gets_the_columns_of_its_lanes(spark: Any, tmp_path: Path, kind: str) -> None:
    """Each directory is a lane with columns of its own, which the next run finds in the state, and the table has all.

    (pipeline 26)
    """
    pytest.importorskip("deltalake" if kind == "delta" else "pyiceberg")
    from table_support import read

    for lane, text in {"eu": "a,b\n1,x\n", "us": "b,a\ny,2\n"}.items():
        (tmp_path / "in" / lane).mkdir(parents=True)
        (tmp_path / "in" / lane / "1.csv").write_text(text)
    settings = {"schema": "infer", "rescued_column": "_rescued_data", "batch": 1}
    assert run(tmp_path, spark, settings, table=kind).status is ExitStatus.DONE
    (tmp_path / "in" / "us" / "2.csv").write_text("a,c\n3.5,4\n5,6\n")
    assert run(tmp_path, spark, settings, table=kind).status is ExitStatus.DONE
    rows = sorted(read(tmp_path / "out" / "data", kind).to_pylist(), key=lambda row: (row["lane"], row["c"] or 0))
    assert [(row["lane"], row["a"], row["b"], row["c"]) for row in rows] == [
        ("eu", 1, "x", None),
        ("us", 2, "y", None),
        ("us", None, None, 4),
        ("us", 5, None, 6),
    ]
    assert json.loads(rows[2]["_rescued_data"])["a"] == "3.5"
    lanes = {"in": {"directories": "in/*", "files": "*", "format": "csv", "options": {"header": True}, **settings}}
    planned = plan_of(
        parse_config({"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": "out", "table": kind}}, tmp_path)
    )
    assert {plan.lane.name: plan.columns for plan in planned.lanes} == {
        "eu": "a int, b string",
        "us": "b string, a int, c int",
    }


class Overtaken(KnownColumns):
    """Columns of lanes; another item learns some while the first one that wants to waits."""

    def __init__(self, overtake: Callable[[], object]) -> None:
        super().__init__({}, lambda learned: learned.recorded.set_result(None))
        self._overtake: list[Callable[[], object]] = [overtake]

    @contextlib.contextmanager
    def learning(self, lane: str) -> Iterator[Any]:
        while self._overtake:
            self._overtake.pop()()
        with super().learning(lane) as columns:
            yield columns


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize(  # columns are found out in another way for each format, and decided about in the same one
    "format", ["csv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jsonl", "parquet"))]
)
def test_files_that_begin_together_are_as_files_one_after_another(spark: Any, tmp_path: Path, format: str) -> None:
    """A lane's first files may begin together: `on_new_columns` decides about the second as if it came later.

    (pipeline 26)
    """

    def content(**values: Any) -> Any:
        if format == "parquet":
            return {name: [value] for name, value in values.items()}
        if format == "jsonl":
            return json.dumps(values)
        return ",".join(values) + "\n" + ",".join(map(str, values.values())) + "\n"

    def read(policy: str) -> Lane:
        first = Lane(spark, tmp_path, "spark", format, policy)
        first.reader.staged = tmp_path / "staged of the first"
        lane = Lane(spark, tmp_path, "spark", format, policy)
        if policy == "rescue":
            first.lane["rescued_column"] = lane.lane["rescued_column"] = "_rescued_data"
        known = Overtaken(lambda: first({"1": content(a=1, b="x")}))
        first.reader.work.inputs = lane.reader.work.inputs = Inputs(Storage(), known)
        return lane

    two = {"2": content(a=2, c="y")}
    assert "has columns that lane 'lane' lacks: 'c'" in read("set aside").error(two)
    assert read("ignore")(two) == [{"a": 2}]
    assert read("rescue")(two) == [{"a": 2, "_rescued_data": {"_file_path": "2", "c": "y"}}]
    assert read("add")(two) == [{"a": 2, "c": "y"}]
    assert "has none of the columns of lane 'lane'" in read("add").error({"2": content(z=1)})


@pytest.mark.slow(selected=True)
def test_what_a_lane_puts_out_can_be_read_as_one(spark: Any, tmp_path: Path) -> None:
    """An item whose column has another type than the lane has put out before is set aside, in the next run too, and the
    rows of the others are read by one call; `redo` lets another type begin. (pipeline 31)"""
    values = {"1": '{"a": 1}', "2": '{"a": 1.5}', "3": '{"a": "x"}', "4": '{"b": [{"c": 1}], "a": 7}'}
    (tmp_path / "in" / "eu").mkdir(parents=True)
    settings = {"format": "jsonl", "options": {}, "batch": 1, "max_in_flight": 1}
    for name, text in values.items():
        (tmp_path / "in" / "eu" / name).write_text(text)
        result = run(tmp_path, spark, settings)
    assert (result.snapshot.total.done, result.snapshot.total.failed) == (2, 2)
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out" / "data")).collect()
    assert sorted(row.a for row in rows) == [1, 7]
    (letter, other) = (json.loads(one.read_text())["error"] for one in (tmp_path / "out" / "failed").rglob("*.json"))
    assert "the column 'a' is " in letter
    assert ", and bigint in what lane 'eu' has put out before, which no reader of the files takes" in other
    with open_ledger(tmp_path / "out/_multiqueue/state.sqlite", tmp_path) as ledger, ledger.transaction():
        assert ledger.redo(["eu"], None, changed=False).items == 2
        ledger.put_back_failed()
    assert run(tmp_path, spark, {**settings, "schema": "a STRING"}).snapshot.total.done == 4
    rows = spark.read.parquet(str(tmp_path / "out" / "data")).collect()
    assert sorted(row.a for row in rows) == ["1", "1.5", "7", "x"]
