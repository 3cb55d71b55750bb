"""The work on one item on Spark: read, run the job, write what it returns.

Called by many threads at once, each with another item. The lanes may become more while others run: that is one
assignment into a dict, and an item's lane is there before the item is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.errors import JobError
from .._base.items import ALLOW, ERROR, INFER, FileSeen, Item, Lane, Step
from .._base.pace import MOST_FILES
from .._base.place import Place
from .._base.storage import Status, Storage
from .._columns.put_out import OutputTypes
from .._columns.schema import Schemas
from .._config.config import PipelineConfig, spark_options
from .._config.sections import OutputSection, StepSection
from .._read.corrupt import corrupt_record, explained, split, write_records
from .._read.json_input import check_expected
from .._read.of_path import wants_files, with_path
from .._read.read import Inputs, met, read_messages, read_paths, unchanged
from .._read.reading import BY_SPARK, FILE, Reading
from .._read.small_files import contents_of
from .._write.output import Output, Sink, Writing
from .._write.places import beside
from .job import (
    INPUT,
    Job,
    asks_for_blocks,
    asks_for_metadata,
    by_metadata,
    check_queries,
    file_functions,
    job_of,
    lane_job,
    ship_modules,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"

# Spark makes a task of so many small files: it counts 4 MB for opening one, and 128 MB are a task.
_FILES_OF_TASK = 32
_LITTLE_BYTES = 32 << 20

# Why Spark does not know which file a row is of.
_ASK = "the column _metadata tells it, in a query, and in Python with metadata = true in [job]"
_BY_PYTHON = f"Python reads the files; {_ASK}"
_KEPT = f"Spark keeps the rows to look for corrupt records; {_ASK}"


@dataclass(frozen=True, slots=True)
class Task:
    """The job of a lane or a step, and where its rows go."""

    job: Job
    sink: Sink
    step: Step | None = None
    sees_files: bool = True
    """Whether the job may ask Spark which file a row is of."""
    metadata: bool = False
    """Whether the job gets `_metadata` with each row."""
    is_query: bool = False
    """Whether it is one query, which has the same functions for each item."""


@dataclass
class SparkWork:
    """The work of a configuration. Call it in the thread of a running item."""

    sections: Mapping[str, Task]
    """By the name of a step; `""` for all lanes."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    schemas: Schemas = field(default_factory=Schemas)
    inputs: Inputs = field(default_factory=lambda: Inputs(Storage()))
    types: OutputTypes | None = None
    """Those of the columns that were put out; None where no state remembers them."""
    cores: int | None = None
    """How many tasks run at once; None where that is not known."""
    _seen: set[Job] = field(default_factory=set)
    """Queries that were seen to have none of Spark's functions that tell a row's file."""
    _read: dict[tuple[str, int], dict[Place, bytes]] = field(default_factory=dict)
    """Of attempts that begin, the files that were read when they were met; none where others are to read them."""

    def meet(self, spark: SparkSession, item: Item) -> Item:
        """The item with its files as they are now; small objects of S3 are read, for the answers tell their versions.

        Raises:
            JobError: as `met`, and as `Inputs.reading`.
        """
        lane, versions = self.lanes.get(item.lane), dict[Place, Status]()
        if lane is not None and lane.format == "csv" and self._tells_versions(item):
            contents = contents_of(self.inputs.reading(spark, lane, item), versions)
            is_told = len(versions) == len(contents)
            if is_told or not contents:
                self._read[item.id, item.attempt] = contents
            if is_told and contents:
                return replace(item, files=tuple(_as_read(seen, versions[item.place(seen)]) for seen in item.files))
        return replace(item, files=met(item, self.inputs.storage))

    def _tells_versions(self, item: Item) -> bool:
        """Whether the driver may read the item's files, and the answers may tell their versions."""
        return item.part is None and not self.sections[""].sees_files and {one.scheme for one in item.places} == {"s3"}

    def __call__(self, spark: SparkSession, item: Item, staged: Path) -> bool:
        """Whether the job returned something, which is then in `staged`, complete.

        Raises:
            JobError: the job or the input is wrong for good. Spark's errors come through unchanged.
        """
        task = self.sections["" if item.part is None else item.lane]
        if task.step is not None:
            frames = {name: self._output_of(name, spark, item, task.step, task.sink) for name in task.step.after}
            why = "" if task.sink.is_read_by_spark(spark) else _BY_PYTHON
            return self._put_out(spark, item, task, frames, staged, no_files=why)
        lane = self.lanes[item.lane]
        if lane.format in ("message", "paths"):
            if lane.format == "message":
                frame = read_messages(spark, item)
            else:
                reading = Reading(spark, lane, item, None, self.inputs.storage)
                reading = replace(reading, wants_files=wants_files(reading, metadata=task.metadata))
                frame = read_paths(spark, item).selectExpr("*", f"replace(path, '%', '%25') AS {FILE}")
                frame = with_path(reading, frame, metadata=task.metadata).drop(FILE)
            self.schemas.require(spark, frame, lane.expect, f"lanes.{lane.section}.expect", exactly=False)
            why = f"the format {lane.format!r} reads no file"
            has_output = self._put_out(spark, item, task, {INPUT: frame}, staged, no_files=why)
        else:
            reading = self.inputs.reading(spark, lane, item)
            reading = replace(reading, wants_files=wants_files(reading, metadata=task.metadata))
            contents = self._read.pop((item.id, item.attempt), None)
            if contents:  # the rows are of the bytes of the versions that were met
                return self._of_files(replace(reading, contents=contents), task, staged)
            if contents is None and not task.sees_files:
                reading = replace(reading, contents=contents_of(reading))
            has_output = self._of_files(reading, task, staged)
        unchanged(item, self.inputs.storage)
        return has_output

    def add(self, lane: Lane) -> None:
        """Know one more lane."""
        self.lanes[lane.name] = lane

    def _of_files(self, reading: Reading, task: Task, staged: Path) -> bool:
        """Read the item's files and put out what the job makes of them; records that are not as configured are told."""
        try:
            frame = self._checked(reading, metadata=task.metadata)
            if frame is None:
                return False
            frame = self._in_few_tasks(reading, frame)
            if not reading.sets_aside or reading.lane.corrupt == ALLOW:
                frame = frame.drop(*reading.own_columns) if reading.own_columns else frame
                why = "" if reading.way == BY_SPARK else _BY_PYTHON
                return self._put_out(reading.spark, reading.item, task, {INPUT: frame}, staged, no_files=why)
            with split(reading, frame) as (good, records):
                if records and reading.lane.corrupt == ERROR:
                    raise corrupt_record(reading, records[0])
                has_output = self._put_out(reading.spark, reading.item, task, {INPUT: good}, staged, no_files=_KEPT)
                if records:
                    write_records(reading, records, beside(staged))
                return has_output
        except Exception as error:
            # The end of a file that is being written is no record: that is not the file's fault.
            unchanged(reading.item, self.inputs.storage, was_read=False)
            better = explained(reading, error, self.inputs.read)
            if better is error:
                raise
            raise better from error

    def _checked(self, reading: Reading, *, metadata: bool) -> DataFrame | None:
        """The rows of the item's files, which have the columns that the lane expects; None as `Inputs.read`."""
        lane, frame = reading.lane, self.inputs.read(reading)
        if frame is not None:
            frame = with_path(reading, frame, metadata=metadata)
        if lane.expect is not None and frame is not None:
            self.schemas.require(reading.spark, frame, lane.expect, f"lanes.{lane.section}.expect", exactly=False)
            if lane.format in ("json", "jsonl"):
                check_expected(reading, frame, list(self.schemas.columns(reading.spark, lane.expect)))
        return frame

    def _in_few_tasks(self, reading: Reading, frame: DataFrame) -> DataFrame:
        """The rows of many small files in as many tasks as run at once: one more costs a start and a file of output."""
        item = reading.item
        is_little = reading.way == BY_SPARK and not reading.contents and item.size_bytes <= _LITTLE_BYTES
        if self.cores is None or not is_little or len(item.files) <= self.cores * _FILES_OF_TASK:
            return frame
        return frame.coalesce(self.cores)

    def _put_out(
        self,
        spark: SparkSession,
        item: Item,
        task: Task,
        frames: Mapping[str, DataFrame],
        staged: Path,
        *,
        no_files: str = "",
    ) -> bool:
        """Run the job and write what it returns; whether it returned something.

        `no_files` is why Spark does not know which file a row is of, where that is so.
        """
        result = task.job(spark, frames, item)
        if result is None:
            return False
        if no_files and task.job not in self._seen:
            if file_functions(result):
                raise JobError(f"input_file_name() and its like are empty in this job: {no_files}")
            if task.is_query:
                self._seen.add(task.job)
        self.schemas.require(spark, result, task.sink.how.expect, task.sink.how.place, exactly=True)
        types = self.types if task.sink.keeps_types else None
        if types is not None:
            types.require(item.lane, result)
        task.sink.write(result, item, staged)
        if types is not None:
            types.note(item.lane, result)
        return True

    def _output_of(self, name: str, spark: SparkSession, item: Item, step: Step, sink: Sink) -> DataFrame:
        """The rows of the section or step of this name; for an item by lane those of its lane, without the column."""
        part = item.part or None
        if name in self.sections:
            source, lanes = name, None
        else:
            source, lanes = "", [lane.name for lane in self.lanes.values() if lane.section == name]
        frame = sink.read(spark, source, [part] if part else lanes, step.schemas.get(name))
        return frame.drop("lane") if part else frame


def _as_read(seen: FileSeen, version: Status) -> FileSeen:
    return FileSeen(seen.path, version.size_bytes, version.mtime_ns)


def work_of(config: PipelineConfig, lanes: Sequence[Lane], output: Output) -> SparkWork:
    """The work that the configuration describes.

    Raises:
        ConfigError: a Python function cannot be imported.
    """
    settings, base = config.settings, config.base
    section = settings.output
    how = _writing(config, section, section.expect, "output.expect")
    query = settings.job.sql
    if query is None:
        job = job_of("job", None, settings.job.python, base)
        tasks = {"": Task(job, output.sink("", how), metadata=settings.job.metadata)}
    else:
        metadata = asks_for_metadata(by_metadata(query))
        sink = output.sink("", how)
        tasks = {"": Task(lane_job(query), sink, None, asks_for_blocks(query), metadata, is_query=True)}
    for step in config.steps():
        own, place = settings.steps[step.name], f"steps.{step.name}"
        how = _writing(config, own, step.expect, f"{place}.expect")
        tasks[step.name] = Task(job_of(place, own.sql, own.python, base), output.sink(step.name, how), step)
    return SparkWork(tasks, {lane.name: lane for lane in lanes}, inputs=Inputs(config.storage))


def _writing(config: PipelineConfig, section: OutputSection | StepSection, expect: str | None, place: str) -> Writing:
    output = config.settings.output
    options = spark_options(output.options)
    return Writing(output.format, options, section.partition_by, section.files_per_item, expect, place)


def prepare(spark: SparkSession, config: PipelineConfig, work: SparkWork, output: Output) -> None:
    """The preparations and checks that follow the start of a session: nothing of it would change from item to item.

    Raises:
        ConfigError: a query or a schema is none.
    """
    output.set_up(spark)
    _list_in_the_driver(spark)
    with contextlib.suppress(Exception):  # Spark Connect does not tell
        work.cores = spark.sparkContext.defaultParallelism
    ship_modules(spark, config)
    check_queries(spark, config)
    for place, ddl in _read_schemas(config):
        work.schemas.check(spark, ddl, place, for_reading=True)
    expected = {f"lanes.{name}.expect": lane.expect for name, lane in config.settings.lanes.items()}
    expected |= {task.sink.how.place: task.sink.how.expect for task in work.sections.values()}
    for place, expect in expected.items():
        if expect is not None:
            work.schemas.check(spark, expect, place)


def _list_in_the_driver(spark: SparkSession) -> None:
    """Have Spark look at an item's files by itself: above 32 it would start a job with a task for each of them.

    A session that says how many paths are too many for its driver is left alone, and one that takes no settings.
    """
    with contextlib.suppress(Exception):
        if spark.conf.get(_LISTING) == "32":
            spark.conf.set(_LISTING, str(MOST_FILES))


def _read_schemas(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Every place with columns, as DDL, that something is read with."""
    for name, lane in config.settings.lanes.items():
        if lane.schema_ is not None and lane.schema_ != INFER:
            yield f"lanes.{name}.schema", lane.schema_
        if lane.schema_hints is not None:
            yield f"lanes.{name}.schema_hints", lane.schema_hints
    for name, step in config.settings.steps.items():
        for source, ddl in step.schemas.items():
            yield f"steps.{name}.schemas.{source}", ddl
