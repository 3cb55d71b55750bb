"""By which way an item's files are read: Spark's own readers, or the executors' Python.

Promise     With `io = "auto"` local files go by Spark, and places in a store by Spark where it has a connector for it,
            else by Python. Spark is asked once for each scheme; an option that Python does not honour is named.
Threads     Those of running items; two that ask at once get the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.errors import JobError
from .._base.items import Item, Lane
from .._base.place import Place
from .._config.refusal import Options, is_packed, refusal, uncut
from .reading import BY_PYTHON, BY_SPARK, spark_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How Hadoop says that it knows no such file system, or has no code for it.
_NO_CONNECTOR = ("No FileSystem for scheme", "ClassNotFoundException", "UnsupportedFileSystem", "NoClassDefFoundError")

# Spark's readers find lines in the middle of a file without a look at these.
_OF_BYTES = ("encoding", "charset", "linesep")


class Ways:
    """The ways of a session."""

    def __init__(self) -> None:
        self._has_connector: dict[str, bool] = {}

    def of(self, spark: SparkSession, lane: Lane, item: Item) -> str:
        """`BY_SPARK` or `BY_PYTHON`.

        Raises:
            JobError: only Python reaches the files, and it does not read them with the lane's options.
        """
        if lane.io == BY_SPARK:
            return BY_SPARK
        remote = next((place for place in item.places if not place.is_local), None)
        if lane.io == "auto" and (remote is None or self.reaches(spark, remote)):
            return BY_SPARK
        if why := refusal(lane.format, lane.options):
            if lane.io == "auto" and remote is not None:
                why = f"Spark has no connector for {remote.scheme}://, and {why}"
            raise JobError(why)
        return BY_PYTHON

    def reaches(self, spark: SparkSession, place: Place) -> bool:
        """Whether Spark itself reads and writes at this place; it is asked once for each scheme."""
        if place.is_local:
            return True
        if place.scheme not in self._has_connector:
            try:
                spark.read.format("text").load(spark_path(place)).schema  # noqa: B018 - asks for the path
                found = True
            except Exception as error:  # noqa: BLE001 - of the many errors of Spark, these say that there is none
                found = not any(sign in str(error) for sign in _NO_CONNECTOR)
            self._has_connector[place.scheme] = found
        return self._has_connector[place.scheme]


def planned_way(lane: Lane) -> str:
    """The words of a plan, which asks no Spark: the way, or that Spark is asked."""
    if lane.format in ("message", "paths"):
        return "-"
    if lane.io != "auto":
        return lane.io
    places = [Place(text) for text in (*lane.globs, str(lane.root))]
    return BY_SPARK if all(place.is_local for place in places) else "spark or python"


def why_whole(lane: Lane, path: str) -> str | None:
    """Why one task reads this file of the lane, however large it is; None where several can."""
    by_spark = planned_way(lane) == BY_SPARK
    if is_packed(path) and not (by_spark and path.endswith(".bz2")):
        return "a packed file is unpacked from its start"
    plain = {name: value for name, value in Options(lane.options).items() if name not in _OF_BYTES or not by_spark}
    return uncut(lane.format, plain)
