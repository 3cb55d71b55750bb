"""Rows as files in directories: written into an attempt's own, read from the final ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.items import Item
from .._columns.put_out import note_columns, require_alike, require_free
from .._read.read import read_output
from .output import Writing
from .places import Places
from .spark_files import WITHOUT_MARK, into

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class DirectorySink:
    """As `Sink` says it."""

    places: Places
    how: Writing

    @property
    def keeps_types(self) -> bool:
        return self.how.format in ("parquet", "orc")

    def write(self, frame: DataFrame, item: Item, staged: Path) -> None:
        require_free(frame, Places.directories(item))
        if self.how.files_per_item is not None:
            frame = frame.coalesce(self.how.files_per_item)
        writer = frame.write.format(self.how.format).options(**{**WITHOUT_MARK, **self.how.options})
        if self.how.partition_by:
            writer = writer.partitionBy(*self.how.partition_by)
        into(writer, frame.sparkSession, staged).save("file://" + str(staged))
        note_columns(frame, staged)

    def read(self, spark: SparkSession, source: str, lanes: Sequence[str] | None, schema: str | None) -> DataFrame:
        root = self.places.of_step(source) if source else self.places.data
        if lanes is None:
            directories = [root]
        else:
            directories = [self.places.of_step(source, lane) if source else self.places.of_lane(lane) for lane in lanes]
        require_alike(directories, self.how.format, self.places.output)
        return read_output(spark, root, directories, self.how.format, self.how.options, schema)

    def is_read_by_spark(self, spark: SparkSession) -> bool:
        return True
