"""The input of an item's job: the rows of its files, or of what others have put out."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.errors import JobError, PipelineError
from .._base.items import FileSeen, Item, Lane
from .._base.place import Place
from .._base.storage import PACKED, Status, Storage
from .._columns.known import KnownColumns
from .csv_input import Headers
from .fitting import Fitting
from .json_input import check_documents
from .parquet_input import read_parquet
from .reading import BY_PYTHON, Reading, schema_of, spark_path, unreadable
from .ways import Ways

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_PATHS_SCHEMA = "array<struct<path:string,size_bytes:bigint,modified:double>>"

_MESSAGES_SCHEMA = "array<struct<message_id:string,routing_key:string,headers:map<string,string>,body:string>>"


def met(item: Item, storage: Storage) -> tuple[FileSeen, ...]:
    """The item's files as they are now; call it before reading them. A path that is no file stays as it is.

    Raises:
        JobError: one of them is gone.
        PipelineError: a store does not answer.
    """
    files = [seen for seen in item.files if seen.is_file]
    found = iter(storage.statuses([item.place(seen) for seen in files]))
    return tuple(_met(seen.path, item.place(seen), next(found)) if seen.is_file else seen for seen in item.files)


def _met(path: str, place: Place, status: Status | OSError) -> FileSeen:
    if isinstance(status, OSError):
        may_pass = not place.is_local and not isinstance(status, FileNotFoundError | PermissionError)
        raise (PipelineError if may_pass else JobError)(
            f"cannot read {place.text!r}: {status.strerror}; "
            "`multiqueue pipeline retry` tries again and forgets files that are gone"
        ) from status
    return FileSeen(path, status.size_bytes, status.mtime_ns)


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


def unchanged(item: Item, storage: Storage, *, was_read: bool = True) -> None:
    """Return if the item's files are still those that were met: no program wrote to them while they were read.

    A file that is gone is as it was if it `was_read` whole.

    Raises:
        PipelineError: one has changed; the rows may be half of the one and half of the other.
        JobError: one is gone and was not read.
    """
    files = [seen for seen in item.files if seen.is_file]
    places = [item.place(seen) for seen in files]
    for seen, place, status in zip(files, places, storage.statuses(places), strict=True):
        if isinstance(status, FileNotFoundError):
            if was_read:
                continue
            raise JobError(
                f"{item.shown(place)} was deleted before it was read; "
                "`multiqueue pipeline retry` forgets files that are gone"
            ) from status
        if isinstance(status, OSError):
            raise PipelineError(f"cannot ask whether {item.shown(place)} has changed: {status.strerror}") from status
        if (status.size_bytes, status.mtime_ns) != (seen.size_bytes, seen.mtime_ns):
            raise PipelineError(f"{item.shown(place)} has changed while it was read")


class Inputs:
    """How the files of items are read, and the columns learnt from them. Threads of running items share it."""

    def __init__(self, storage: Storage, known: KnownColumns | None = None) -> None:
        self.storage = storage
        self.ways = Ways()
        self._headers = Headers()
        self._fitting = Fitting(
            known or KnownColumns({}, lambda learned: learned.recorded.set_result(None)), self._headers
        )
        self._schemas: dict[tuple[str, str | None], StructType | None] = {}

    def reading(self, spark: SparkSession, lane: Lane, item: Item) -> Reading:
        """How this item is read.

        Raises:
            JobError: the way that the lane's `io` allows does not read it.
        """
        way = self.ways.of(spark, lane, item)
        key = (lane.format, lane.schema)
        if key not in self._schemas:
            self._schemas[key] = schema_of(spark, lane, item, way)
        return Reading(spark, lane, item, self._schemas[key], self.storage, way)

    def read(self, reading: Reading) -> DataFrame | None:
        """The item's files as one DataFrame: rows of the format. None for files without rows of which nothing is known.

        Raises:
            JobError: a file is not what the lane's configuration says of it, as far as its start or end tells.
        """
        if reading.lane.format in ("csv", "json", "jsonl", "text"):
            _check_packed(reading)
        if reading.lane.on_new_columns is not None:
            return self._fitting.read(reading)
        if reading.lane.format == "csv" and reading.is_true("header") and not reading.is_true("enforceSchema"):
            return self._headers.read(reading)
        if reading.lane.format == "parquet":
            return read_parquet(reading)
        if reading.lane.format in ("json", "jsonl"):
            check_documents(reading)
        return reading.load(reading.item.places)


def _check_packed(reading: Reading) -> None:
    """Return if Spark can unpack the files, as far as their starts tell.

    Raises:
        JobError: one is packed in another way than its name says to Spark, or in one that Python does not know.
    """
    for path in reading.item.places:
        try:
            is_good = reading.storage.is_in_blocks(path)
        except OSError as error:
            raise unreadable(reading.item, path, error) from error
        if not is_good:
            raise JobError(
                f"{reading.item.shown(path)} is not packed as Hadoop packs {path.suffix}, in blocks with their "
                "lengths, and Spark reads no other; pack it as .gz, .bz2 or .zst"
            )
        if reading.way == BY_PYTHON and path.suffix in PACKED:
            raise JobError(f"{reading.item.shown(path)}: Python does not unpack {path.suffix}; pack it as .gz or .bz2")


def read_output(
    spark: SparkSession,
    root: Path,
    directories: Sequence[Path],
    output_format: str,
    options: Mapping[str, str],
    schema: str | None,
) -> DataFrame:
    """The output below `root` in these directories, with the directories' names as columns; not `item`.

    Raises:
        JobError: nothing was.
    """
    present = [directory for directory in directories if directory.is_dir()]
    if not present:
        raise JobError(
            f"there is nothing to read: nothing was written below {str(root)!r} by the lanes or steps before this one"
        )
    reader = spark.read.format(output_format).options(**options).option("basePath", "file://" + str(root))
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([spark_path(Place(str(directory))) for directory in present]).drop("item")


def read_paths(spark: SparkSession, item: Item) -> DataFrame:
    """A row per file."""
    # A literal in the plan: half the time of createDataFrame, which ships pickled rows through an RDD.
    rows = [
        {"path": place.text, "size_bytes": seen.size_bytes, "modified": seen.mtime_ns / 1e9}
        for place, seen in zip(item.places, item.files, strict=True)
    ]
    return spark.sql(f"SELECT inline(from_json(:files, '{_PATHS_SCHEMA}'))", args={"files": json.dumps(rows)})
