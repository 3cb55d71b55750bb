"""Files of tables as the executors' Python writes them, without Spark: a store in memory counts what is open."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from fsspec.implementations import memory
from pipeline_parts_support import _executor_write


class Counted(memory.MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that knows how many objects are written at once."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    writing = 0
    most = 0

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        opened = super().open(path, mode, **kwargs)
        if "w" in mode:
            Counted.writing += 1
            Counted.most = max(Counted.most, Counted.writing)
            close, is_open = opened.close, [True]

            def closed() -> None:
                if is_open:  # the collector closes a file once more
                    is_open.clear()
                    Counted.writing -= 1
                close()

            opened.close = closed
        return opened


@pytest.fixture(autouse=True)
def store() -> Iterator[None]:
    import fsspec

    fsspec.register_implementation("counted", Counted, clobber=True)
    Counted.store.clear()
    Counted.writing = Counted.most = 0
    yield
    Counted.store.clear()


def written(rows: dict[str, list[Any]], batch: int, **target: Any) -> dict[str, Any]:
    """The footer of each file by its path, once its bytes are found to be those that were told."""
    import pyarrow.parquet as parquet

    batches = pa.table(rows).to_batches(max_chunksize=batch)
    write = _executor_write.writer(_executor_write.Target("counted", {}, "bucket/table/i-1", **target))
    found = {}
    for told in write(iter(batches)):
        for one in told.to_pylist():
            content = Counted.store[f"/bucket/table/i-1/{one['path']}"].getvalue()
            assert len(content) == one["size_bytes"]
            footer = parquet.read_metadata(io.BytesIO(one["footer"]))
            assert parquet.read_metadata(io.BytesIO(content)).num_rows == footer.num_rows
            found[one["path"]] = footer
    assert len(found) == len(Counted.store)
    assert Counted.writing == 0
    return found


def test_a_row_group_is_no_batch() -> None:
    """What comes in many small batches is one file with one row group."""
    (footer,) = written({"a": list(range(5000)), "b": ["x"] * 5000}, 50).values()
    assert (footer.num_rows, footer.num_row_groups) == (5000, 1)


def test_a_file_for_each_value() -> None:
    """Each value of the columns that a table is partitioned by has one file of one row group, and few are open at once,
    however many values there are and in whichever batches they come."""
    values = sorted(f"v{place % 200:03}" for place in range(2000))
    found = written({"p": values, "a": list(range(2000))}, 33, partition_by=("p",))
    assert {path.partition("/")[0] for path in found} == {f"p=v{place:03}" for place in range(200)}
    assert [(one.num_rows, one.num_row_groups, one.num_columns) for one in found.values()] == [(10, 1, 1)] * 200
    assert Counted.most <= 8


def test_values_in_names() -> None:
    """A value is in the name of its directory as Spark writes it, escaped; Iceberg's files keep the column."""
    values = ["a/b c%", None, "", "é", "a=b"]
    found = written({"p": values, "q": [True, False, True, None, True]}, 5, partition_by=("p", "q"), keeps_columns=True)
    nothing = "__HIVE_DEFAULT_PARTITION__"
    assert {path.rpartition("/")[0] for path in found} == {
        "_of_p=a%2Fb%20c%25/_of_q=true",
        f"_of_p={nothing}/_of_q=false",
        f"_of_p={nothing}/_of_q=true",
        f"_of_p=%C3%A9/_of_q={nothing}",
        "_of_p=a%3Db/_of_q=true",
    }
    assert {one.schema.names[0] for one in found.values()} == {"p"}


def test_no_rows_are_no_file() -> None:
    """A task without rows writes nothing, and tells of nothing."""
    assert written({"a": pa.array([], pa.int64())}, 5) == {}
