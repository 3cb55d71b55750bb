"""Files that Spark writes into a local directory of an attempt, with few programs started for it.

Hadoop without its native library starts `chmod` for each directory and file that it makes: nine times for a file of
twenty rows, each some milliseconds of CPU. Directories that are there need none, and a mark of success is not wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

# Those of the committer that Spark uses for a path: of the job, and of its tasks.
_OF_ATTEMPTS = "_temporary/0/_temporary"

WITHOUT_MARK = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""An option of a writer."""


def into(writer: DataFrameWriter, spark: SparkSession, directory: Path) -> DataFrameWriter:
    """The writer, ready to write into this directory, which must not exist."""
    if getattr(spark, "_jsparkSession", None) is None:  # Spark Connect: the server makes its directories
        return writer
    (directory / _OF_ATTEMPTS).mkdir(parents=True)
    return writer.mode("append")
