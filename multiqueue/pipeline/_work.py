"""What is done with one item on Spark: read, run the job, write what it returns.

Called by many threads at once, each with an item of its own. The lanes may become more while others run: that is one
assignment into a dict, and an item's lane is there before the item is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._config import PipelineConfig, spark_options
from ._corrupt import explained, split, write_records
from ._errors import JobError
from ._items import Item, Lane, Step
from ._job import INPUT, Job, check_queries, job_of, ship_modules
from ._json_input import check_expected
from ._publish import Places, beside
from ._put_out import note_columns, require_alike
from ._read import Inputs, named_files, read_messages, read_output, read_paths, unchanged
from ._reading import Reading
from ._schema import Schemas
from ._storage import Storage

DataFrame = Any
SparkSession = Any


@dataclass(frozen=True, slots=True)
class Sink:
    """How results are written."""

    format: str
    options: Mapping[str, str]
    partition_by: Sequence[str]
    files_per_item: int | None
    expect: str | None
    place: str
    """Where `expect` stands in the configuration."""

    def write(self, frame: DataFrame, staged: Path, directories: Sequence[str]) -> None:
        """Write the rows into `staged`, which must not exist.

        Raises:
            JobError: a column has the name of one of the `directories` around the item's.
        """
        taken = [column for column in frame.columns if column.lower() in directories]
        if taken:
            raise JobError(f"the job's result has a column {taken[0]!r}, which the output's directories add; rename it")
        if self.files_per_item is not None:
            frame = frame.coalesce(self.files_per_item)
        writer = frame.write.format(self.format).options(**self.options)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.save("file://" + str(staged))
        note_columns(frame, staged)


@dataclass(frozen=True, slots=True)
class Task:
    """The job of a lane or a step, and where its rows go."""

    job: Job
    sink: Sink
    step: Step | None = None


@dataclass
class SparkWork:
    """The work of a configuration. Call it in the thread of a running item."""

    places: Places
    sections: Mapping[str, Task]
    """By the name of a step; `""` for all lanes."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    schemas: Schemas = field(default_factory=Schemas)
    inputs: Inputs = field(default_factory=lambda: Inputs(Storage()))

    def __call__(self, spark: SparkSession, item: Item, staged: Path) -> bool:
        """Whether the job returned something, which is then in `staged`, complete.

        Raises:
            JobError: the job or the input is wrong for good. Whatever Spark raises comes through unchanged.
        """
        task = self.sections["" if item.part is None else item.lane]
        if task.step is not None:
            frames = {name: self._output_of(name, spark, item, task.step, task.sink) for name in task.step.after}
            return self._put_out(spark, item, task, frames, staged)
        lane = self.lanes[item.lane]
        if item.messages and lane.format != "message":
            item = named_files(item, self.inputs.storage)
        if lane.format in ("message", "paths"):
            frame = read_messages(spark, item) if lane.format == "message" else read_paths(spark, item)
            self.schemas.require(spark, frame, lane.expect, f"lanes.{lane.section}.expect", exactly=False)
            has_output = self._put_out(spark, item, task, {INPUT: frame}, staged)
        else:
            has_output = self._of_files(self.inputs.reading(spark, lane, item), task, staged)
        unchanged(item, self.inputs.storage)
        return has_output

    def add(self, lane: Lane) -> None:
        """Know one more lane."""
        self.lanes[lane.name] = lane

    def _of_files(self, reading: Reading, task: Task, staged: Path) -> bool:
        """Read the item's files and put out what the job makes of them; records that are not as configured are told."""
        try:
            frame = self._checked(reading)
            if not reading.sets_aside:
                return self._put_out(reading.spark, reading.item, task, {INPUT: frame}, staged)
            with split(reading, frame) as (good, records):
                has_output = self._put_out(reading.spark, reading.item, task, {INPUT: good}, staged)
                if records:
                    write_records(reading, records, beside(staged))
                return has_output
        except Exception as error:
            better = explained(reading, error, self.inputs.read)
            if better is error:
                raise
            raise better from error

    def _checked(self, reading: Reading) -> DataFrame:
        """The rows of the item's files, which have the columns that the lane expects."""
        lane, frame = reading.lane, self.inputs.read(reading)
        if lane.expect is not None:
            self.schemas.require(reading.spark, frame, lane.expect, f"lanes.{lane.section}.expect", exactly=False)
            if lane.format in ("json", "jsonl"):
                check_expected(reading, frame, list(self.schemas.columns(reading.spark, lane.expect)))
        return frame

    def _put_out(
        self, spark: SparkSession, item: Item, task: Task, frames: Mapping[str, DataFrame], staged: Path
    ) -> bool:
        """Run the job and write what it returns; whether it returned something."""
        result = task.job(spark, frames, item)
        if result is None:
            return False
        self.schemas.require(spark, result, task.sink.expect, task.sink.place, exactly=True)
        task.sink.write(result, staged, self.places.directories(item))
        return True

    def _output_of(self, name: str, spark: SparkSession, item: Item, step: Step, sink: Sink) -> DataFrame:
        """The rows of the section or step of this name; for an item by lane those of its lane, without the column."""
        part = item.part or None
        if name in self.sections:
            root = self.places.of_step(name)
            directories = [self.places.of_step(name, part)]
        else:
            root = self.places.data
            lanes = [part] if part else [lane.name for lane in self.lanes.values() if lane.section == name]
            directories = [self.places.of_lane(lane) for lane in lanes]
        require_alike(directories, sink.format, self.places.output)
        frame = read_output(spark, root, directories, sink.format, sink.options, step.schemas.get(name))
        return frame.drop("lane") if part else frame


def work_of(config: PipelineConfig, lanes: Sequence[Lane]) -> SparkWork:
    """The work that the configuration describes.

    Raises:
        ConfigError: a Python function cannot be imported.
    """
    settings, output, base = config.settings, config.settings.output, config.base
    options = spark_options(output.options)
    sink = Sink(
        output.format, options, output.partition_by, output.files_per_item, output.expect, "output.expect"
    )  # fmt: skip
    tasks = {"": Task(job_of("job", settings.job.sql, settings.job.python, base), sink)}
    for step in config.steps():
        section, place = settings.steps[step.name], f"steps.{step.name}"
        sink = Sink(
            output.format, options, section.partition_by, section.files_per_item, step.expect, f"{place}.expect"
        )  # fmt: skip
        tasks[step.name] = Task(job_of(place, section.sql, section.python, base), sink, step)
    return SparkWork(Places(config.output), tasks, {lane.name: lane for lane in lanes}, inputs=Inputs(config.storage))


def prepare(spark: SparkSession, config: PipelineConfig, work: SparkWork) -> None:
    """What is to be done and checked once a session is there: nothing of it would change from item to item.

    Raises:
        ConfigError: a query or a schema is none.
    """
    ship_modules(spark, config)
    check_queries(spark, config)
    for place, ddl in _read_schemas(config):
        work.schemas.check(spark, ddl, place, for_reading=True)
    expected = {f"lanes.{name}.expect": lane.expect for name, lane in config.settings.lanes.items()}
    expected |= {task.sink.place: task.sink.expect for task in work.sections.values()}
    for place, expect in expected.items():
        if expect is not None:
            work.schemas.check(spark, expect, place)


def _read_schemas(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Every place with columns, as DDL, that something is read with."""
    for name, lane in config.settings.lanes.items():
        if lane.schema_ is not None:
            yield f"lanes.{name}.schema", lane.schema_
    for name, step in config.settings.steps.items():
        for source, ddl in step.schemas.items():
            yield f"steps.{name}.schemas.{source}", ddl
