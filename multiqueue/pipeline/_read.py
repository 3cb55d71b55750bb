"""What an item's job is given: the rows of its files, or of what others have put out."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ._errors import JobError
from ._items import FileSeen, Item, Lane
from ._place import local

DataFrame = Any
SparkSession = Any

# The reader's name and options for each format of a lane.
_READERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "csv": ("csv", {}),
    "json": ("json", {"multiLine": "true"}),
    "jsonl": ("json", {}),
    "parquet": ("parquet", {}),
    "text": ("text", {}),
    "binary": ("binaryFile", {}),
}
_PATHS_SCHEMA = "array<struct<path:string,size_bytes:bigint,modified:double>>"

_MESSAGES_SCHEMA = "array<struct<message_id:string,routing_key:string,headers:map<string,string>,body:string>>"


def met(item: Item) -> tuple[FileSeen, ...]:
    """The item's files as they are now; call it before reading them. What is no file stays as it is.

    Raises:
        JobError: one of them is gone.
    """
    return tuple(_met(seen, item.base / seen.path) if seen.is_file else seen for seen in item.files)


def _met(seen: FileSeen, path: Path) -> FileSeen:
    try:
        status = os.stat(path)
    except OSError as error:
        raise JobError(
            f"cannot read {str(path)!r}: {error.strerror}; "
            "`multiqueue pipeline retry` tries again and forgets files that are gone"
        ) from error
    return FileSeen(seen.path, status.st_size, status.st_mtime_ns)


def named_files(item: Item) -> Item:
    """The item of a queue lane with the files that its messages name, a path each.

    Raises:
        JobError: one of them is no path, or the file is gone.
    """
    files = []
    for payload in item.messages:
        try:
            path = local(payload.body.decode().strip())
        except UnicodeDecodeError as error:
            raise JobError(f'the body of message {payload.id!r} is no path; format = "message" takes bodies') from error
        except ValueError as error:
            raise JobError(f"the message {payload.id!r}: {error}") from error
        files.append(_met(FileSeen(path, 0, 0), item.base / path))
    return replace(item, files=tuple(files))


def read_messages(spark: SparkSession, item: Item) -> DataFrame:
    """A row per message: `message_id`, `routing_key`, `headers` and the `body` as bytes."""
    rows = [
        {
            "message_id": payload.id or None,
            "routing_key": payload.routing_key,
            "headers": dict(payload.headers),
            "body": base64.b64encode(payload.body).decode(),
        }
        for payload in item.messages
    ]
    return spark.sql(
        "SELECT message_id, routing_key, headers, unbase64(body) AS body FROM "
        f"(SELECT inline(from_json(:messages, '{_MESSAGES_SCHEMA}')))",
        args={"messages": json.dumps(rows)},
    )


def read(spark: SparkSession, lane: Lane, item: Item) -> DataFrame:
    """The item's files as one DataFrame: rows of the format, or for `paths` a row per file."""
    if lane.format == "paths":
        return _paths(spark, item)
    name, preset = _READERS[lane.format]
    reader = spark.read.format(name).options(**{**preset, **lane.options})
    if lane.schema is not None:
        reader = reader.schema(lane.schema)
    return reader.load([spark_path(path) for path in item.paths])


def read_output(
    spark: SparkSession,
    root: Path,
    directories: Sequence[Path],
    output_format: str,
    options: Mapping[str, str],
    schema: str | None,
) -> DataFrame:
    """What was put out below `root` in these directories, with the directories' names as columns; not `item`.

    Raises:
        JobError: nothing was.
    """
    present = [directory for directory in directories if directory.is_dir()]
    if not present:
        raise JobError(f"there is nothing to read: nothing was put out below {str(root)!r} by what this comes after")
    reader = spark.read.format(output_format).options(**options).option("basePath", "file://" + str(root))
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([spark_path(directory) for directory in present]).drop("item")


def _paths(spark: SparkSession, item: Item) -> DataFrame:
    # A literal in the plan: half the time of createDataFrame, which ships pickled rows through an RDD.
    rows = [
        {"path": str(path), "size_bytes": seen.size_bytes, "modified": seen.mtime_ns / 1e9}
        for path, seen in zip(item.paths, item.files, strict=True)
    ]
    return spark.sql(f"SELECT inline(from_json(:files, '{_PATHS_SCHEMA}'))", args={"files": json.dumps(rows)})


def spark_path(path: Path) -> str:
    """The path as Spark takes it literally: it reads a glob where we mean a name.

    Raises:
        JobError: the name has a colon, which Hadoop cannot read.
    """
    if ":" in str(path):
        raise JobError(f'Spark cannot read {str(path)!r}: its name has a colon; rename it, or use format = "paths"')
    return "file://" + "".join("\\" + c if c in "\\*?[]{}" else c for c in str(path))
