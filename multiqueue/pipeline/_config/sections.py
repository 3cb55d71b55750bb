"""The sections of the configuration file, as models: which keys there are, their types, ranges and defaults.

Nothing unknown is accepted. docs/reference/pipeline-toml.md lists the keys; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from .._base.items import ADD, INFER, INOTIFY, KEEP, MOVE, RESCUE
from .._base.place import Place, local, place_of
from .._base.stores import FromEnvironment, Section, StorageSection
from .path_columns import path_columns
from .refusal import refusal
from .source import split_source

InputFormat = Literal["csv", "json", "jsonl", "parquet", "text", "binary", "paths", "message"]
OutputFormat = Literal["parquet", "json", "csv", "orc", "text"]
TableKind = Literal["delta", "iceberg"]
TABLES: tuple[str, ...] = get_args(TableKind)
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""`module:function`."""
RECORDS = ("csv", "json", "jsonl")
"""The formats of records that Spark parses."""
RESCUED_COLUMN = "_rescued_data"
"""The name that Auto Loader gives it."""
DIRECTORY = "{directory}"
"""Stands for the directory in the name of a lane."""
_POSTGRES = ("postgresql://", "postgres://")
Scalar = str | bool | int | float
_Text = Annotated[str, Field(min_length=1)]
Globs = Annotated[str | list[_Text], Field(min_length=1)]
"""One glob or several."""
_PlaceText = Annotated[_Text, AfterValidator(lambda text: place_of(text).text)]
_Local = Annotated[_Text, AfterValidator(local)]


def _told_apart(names: list[str]) -> list[str]:
    """The names of columns, which Spark compares without case. Raises ValueError: one is there twice."""
    lowered = [name.lower() for name in names]
    if twice := [name for name in names if lowered.count(name.lower()) > 1]:
        raise ValueError(f"names {twice[0]!r} twice")
    return names


_Names = Annotated[list[str], AfterValidator(_told_apart)]


class SparkSection(Section):
    """`[spark]`: where the jobs run, and how many at a time."""

    master: str | None = Field(default=None, min_length=1)
    remote: str | None = Field(default=None, min_length=1)
    conf: dict[str, Scalar] = Field(default_factory=dict)
    max_running: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _one_place(self) -> SparkSection:
        if self.master is not None and self.remote is not None:
            raise ValueError("master and remote exclude each other: keep one")
        return self


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


class LaneSection(Section):
    """`[lanes.NAME]`: its input, and its place in the schedule beside the others."""

    files: Globs | None = None
    directories: str | None = Field(default=None, min_length=1)
    name: str | None = None
    exclude: str | list[_Text] = Field(default_factory=list)
    allow_empty: bool = False
    source: str | None = None
    events: str | None = None
    listing_seconds: float = Field(default=3600.0, gt=0, strict=False)
    prefetch: int = Field(default=100, ge=1, le=65_535)
    format: InputFormat
    options: dict[str, Scalar] = Field(default_factory=dict)
    io: Literal["auto", "spark", "python"] = "auto"
    schema_: str | None = Field(default=None, alias="schema", min_length=1)
    schema_hints: str | None = Field(default=None, min_length=1)
    on_new_columns: Literal["add", "rescue", "set aside", "ignore"] | None = None
    rescued_column: str | None = Field(default=None, min_length=1)
    path_columns: str | None = Field(default=None, min_length=1)
    path_filter: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
    expect: str | None = Field(default=None, min_length=1)
    corrupt: Literal["error", "set aside", "allow"] | None = None
    batch: Literal["auto"] | int = "auto"
    target_seconds: float = Field(default=10.0, gt=0, strict=False)
    batch_bytes: int | None = Field(default=None, ge=1)
    batch_seconds: float = Field(default=0.0, ge=0, strict=False)
    max_files_per_second: float | None = Field(default=None, gt=0, strict=False)
    max_bytes_per_second: float | None = Field(default=None, gt=0, strict=False)
    after: Literal["keep", "move", "delete"] = "keep"
    forget_after: float | None = Field(default=None, gt=0, strict=False)
    on_forgotten: Literal["refuse", "again"] | None = None
    after_delay: float = Field(default=0.0, ge=0, strict=False)
    after_place: _PlaceText | None = None
    priority: int = 0
    capacity: int = Field(default=16, ge=1)
    weight: int = Field(default=1, ge=1)
    max_in_flight: int | None = Field(default=None, ge=1)
    pool: str | None = Field(default=None, min_length=1)
    timeout: float | None = Field(default=None, gt=0, strict=False)

    @field_validator("batch", mode="before")
    @classmethod
    def _is_a_number_of_files(cls, value: object) -> object:
        if value != "auto" and (type(value) is not int or not 1 <= value <= 10_000):
            raise ValueError(f'must be "auto" or a number of files from 1 to 10000, not {value!r}')
        return value

    @field_validator("files")
    @classmethod
    def _are_places(cls, value: str | list[str] | None) -> str | list[str] | None:
        return [place_of(one).text for one in value] if isinstance(value, list) else value and place_of(value).text

    @field_validator("exclude")
    @classmethod
    def _are_names(cls, value: str | list[str]) -> str | list[str]:
        if not value and isinstance(value, str):
            raise ValueError("must not be empty")
        if paths := [one for one in strings(value) if "/" in one]:
            raise ValueError(f"has names of files or directories, in which no '/' can be, not {paths[0]!r}")
        return value

    @field_validator("name")
    @classmethod
    def _tells_directories_apart(cls, value: str | None) -> str | None:
        if value is not None and DIRECTORY not in value:
            raise ValueError(f"must have {DIRECTORY} in it, for the directory's own name, as in '{DIRECTORY}-json'")
        return value

    @field_validator("source")
    @classmethod
    def _names_a_queue(cls, value: str | None) -> str | None:
        if value is not None:
            split_source(value)
        return value

    @field_validator("events")
    @classmethod
    def _tell_of_files(cls, value: str | None) -> str | None:
        if value is not None and value != INOTIFY:
            is_sqs = value.startswith(("http://", "https://"))
            try:
                if not is_sqs:
                    split_source(value)
                elif not urlsplit(value).hostname or not urlsplit(value).path.strip("/"):
                    raise ValueError(f"{value!r} names no queue")
            except ValueError as error:
                others = 'of SQS https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE, and for local directories "inotify"'
                raise ValueError(f"{error}; {others}") from None
        return value

    @field_validator("path_filter", mode="before")
    @classmethod
    def _days_are_values(cls, value: Any) -> Any:
        """TOML has dates of its own."""
        if not isinstance(value, dict):
            return value
        shown = {
            name: [_as_text(one) for one in wanted] if isinstance(wanted, list) else _as_text(wanted)
            for name, wanted in value.items()
        }
        return shown

    @model_validator(mode="after")
    def _paths_have_columns(self) -> LaneSection:
        path_columns(self.path_columns, self.path_filter)
        if self.path_columns is not None and self.files is None:
            raise ValueError("path_columns needs files; messages have no path")
        return self

    @model_validator(mode="after")
    def _records_are_read(self) -> LaneSection:
        options = {key.lower(): str(value).lower() for key, value in self.options.items()}
        if self.corrupt is not None and self.format not in RECORDS:
            raise ValueError(f"corrupt needs one of the formats {', '.join(RECORDS)}: others have no records")
        if self.corrupt is not None and "mode" in options:
            raise ValueError("corrupt and the option mode exclude each other: keep one")
        wide = options.get("encoding", options.get("charset", "")).replace("_", "-").startswith(("utf-16", "utf-32"))
        if self.format == "csv" and wide and options.get("multiline") != "true":
            raise ValueError("Spark cuts lines by bytes, which UTF-16 and UTF-32 do not have: set multiLine = true")
        return self

    @model_validator(mode="after")
    def _files_go(self) -> LaneSection:
        if self.after != KEEP and self.source is not None:
            raise ValueError(f"after = {self.after!r} needs files")
        if (self.after == MOVE) != (self.after_place is not None):
            raise ValueError('after = "move" and after_place go together: give both, or neither')
        if self.after == KEEP and self.after_delay:
            raise ValueError('after_delay needs after = "move" or "delete"')
        if self.forget_after is not None and (self.source is not None or self.after != KEEP):
            raise ValueError("forget_after needs files that stay where they are: the state forgets those that go")
        if self.on_forgotten is not None and self.forget_after is None:
            raise ValueError("on_forgotten needs forget_after: without it no file is forgotten")
        return self

    @model_validator(mode="after")
    def _columns_are_known(self) -> LaneSection:
        infers = self.schema_ == INFER
        asked = [name for name in ("on_new_columns", "rescued_column") if getattr(self, name) is not None]
        if self.schema_hints is not None and not infers:
            raise ValueError('schema_hints needs schema = "infer"; your schema has the types already')
        if asked and self.schema_ is None:
            raise ValueError(f'{asked[0]} needs schema: "infer", or the columns that are known')
        if not infers and not asked:
            return self
        key = 'schema = "infer"' if infers else asked[0]
        if self.format not in (*RECORDS, "parquet"):
            raise ValueError(f"{key} needs one of the formats {', '.join(RECORDS)} and parquet, not {self.format}")
        if self.on_new_columns == ADD and not infers:
            raise ValueError('on_new_columns = "add" needs schema = "infer"; schema_hints can name its types')
        options = {name.lower(): str(value).lower() for name, value in self.options.items()}
        if self.format == "csv" and options.get("header") != "true":
            raise ValueError(f"{key} needs the names of columns: set header = true in options, or leave it out")
        for option in ("enforceschema", "mergeschema"):
            if options.get(option) == "true":
                raise ValueError(f"{key} and the option {option} exclude each other: keep one")
        if self.rescues is None:
            return self
        if "mode" in options:
            raise ValueError("a rescued column and the option mode exclude each other: keep one")
        encoding = options.get("encoding", options.get("charset", "utf-8"))
        if self.format in ("json", "jsonl") and encoding != "utf-8":
            raise ValueError(f"a rescued column of {self.format} is read as UTF-8; leave encoding = {encoding!r} out")
        return self

    @property
    def new_columns(self) -> str | None:
        """The treatment of new columns; None where columns are not known, or have to be those of `schema`."""
        if self.on_new_columns is not None or self.schema_ is None:
            return self.on_new_columns
        return ADD if self.schema_ == INFER else RESCUE if self.rescued_column is not None else None

    @property
    def rescues(self) -> str | None:
        """The column for what does not fit into the others, or None."""
        return self.rescued_column or (RESCUED_COLUMN if self.on_new_columns == RESCUE else None)

    @model_validator(mode="after")
    def _is_read_that_way(self) -> LaneSection:
        if self.io == "python" and (
            why := refusal(self.format, {key: str(value) for key, value in self.options.items()})
        ):
            raise ValueError(f'io = "python": {why}')
        return self

    @model_validator(mode="after")
    def _one_source(self) -> LaneSection:
        if (self.files is None) == (self.source is None):
            raise ValueError(
                'give either files = "..." or source = "amqp://HOST/VHOST/QUEUE"; files of which a queue tells have '
                'files = "..." and events = "amqp://HOST/VHOST/QUEUE"'
            )
        if self.source is not None and (self.directories is not None or self.exclude):
            raise ValueError("directories and exclude need files; a lane with a source has neither")
        if self.name is not None and self.directories is None:
            raise ValueError("name needs directories; a lane without them has the name of its section")
        if (self.source is None) == (self.format == "message"):
            raise ValueError(
                'format = "message" needs a source; files are "text", "binary", "paths" ..., and events = '
                '"amqp://..." finds those that a queue names'
            )
        if self.events is not None and self.files is None:
            raise ValueError('events needs files = "...", which says which files it may name')
        if self.events == INOTIFY:
            for text in (*strings(self.files or ()), *strings(self.directories or ())):
                local(text)
        if self.events is None and "listing_seconds" in self.model_fields_set:
            raise ValueError("listing_seconds needs events; files are listed at every look otherwise")
        return self

    @field_validator("directories")
    @classmethod
    def _has_fixed_depth(cls, value: str | None) -> str | None:
        if value is not None and "**" in value:
            raise ValueError("`**` is not possible here: say how deep the directories are, as in 'inbox/*/*'")
        return value and place_of(value).text


class JobSection(Section):
    """`[job]`: the work on each item: a query, or a function."""

    sql: str | None = Field(default=None, min_length=1)
    python: str | None = Field(default=None, pattern=FUNCTION)
    metadata: bool = False

    @model_validator(mode="after")
    def _one_job(self) -> JobSection:
        if (self.sql is None) == (self.python is None):
            raise ValueError('give either sql = "SELECT ... FROM input" or python = "module:function"')
        if self.metadata and self.sql is not None:
            raise ValueError("metadata needs python; a query has _metadata where it names it")
        return self


class StepSection(Section):
    """`[steps.NAME]`: a job over what lanes or other steps have put out, once they have nothing left to do."""

    after: Globs
    each_lane: bool = False
    sql: str | None = Field(default=None, min_length=1)
    python: str | None = Field(default=None, pattern=FUNCTION)
    schemas: dict[str, str] = Field(default_factory=dict)
    expect: str | None = Field(default=None, min_length=1)
    allow_failed: bool = False
    priority: int = 0
    max_in_flight: int | None = Field(default=None, ge=1)
    pool: str | None = Field(default=None, min_length=1)
    timeout: float | None = Field(default=None, gt=0, strict=False)
    partition_by: _Names = Field(default_factory=list)
    files_per_item: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_job(self) -> StepSection:
        if (self.sql is None) == (self.python is None):
            raise ValueError('give either sql = "SELECT ... FROM NAME" or python = "module:function"')
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The names in `after`."""
        return strings(self.after)


class OutputSection(Section):
    """`[output]`: where the results go."""

    path: _PlaceText
    table: TableKind | None = None
    on_other_columns: Literal["refuse", "add", "widen"] | None = None
    name: str = "multiqueue.data"
    catalog: dict[str, FromEnvironment] = Field(default_factory=dict, repr=False)
    format: OutputFormat = "parquet"
    options: dict[str, Scalar] = Field(default_factory=dict)
    partition_by: _Names = Field(default_factory=list)
    files_per_item: int | None = Field(default=None, ge=1)
    expect: str | None = Field(default=None, min_length=1)
    dead_letters: _PlaceText | None = None
    work: _Local = "multiqueue-work"

    @field_validator("name")
    @classmethod
    def _is_in_a_namespace(cls, value: str) -> str:
        if re.fullmatch(r"\w+(\.\w+)+", value) is None:
            raise ValueError(f'must be "NAMESPACE.TABLE", not {value!r}')
        return value

    @model_validator(mode="after")
    def _directories_are_renamed(self) -> OutputSection:
        if self.table is None and not place_of(self.path).is_local:
            raise ValueError(
                f'path {self.path!r} is in a store, which cannot rename a directory: set table = "delta", whose '
                "commits need no rename, or a local or mounted path"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_table(self) -> OutputSection:
        if self.table is not None and self.format != "parquet":
            raise ValueError(f"the files of a table are Parquet; leave format = {self.format!r} out, or table")
        if self.table != "iceberg" and (self.catalog or "name" in self.model_fields_set):
            raise ValueError('catalog and name need table = "iceberg"')
        if self.table is None and (own := {"lane", "item"} & {name.lower() for name in self.partition_by}):
            raise ValueError(
                f"partition_by: the rows are in directories by {min(own)} already; leave it out, or set table"
            )
        if self.table is None and self.on_other_columns is not None:
            raise ValueError("on_other_columns needs table; the columns of files are named by expect")
        return self


class RetrySection(Section):
    """`[retry]`: how often a failing item is tried, and how long in between."""

    attempts: int = Field(default=3, ge=1)
    backoff: float = Field(default=1.0, ge=0, strict=False)
    backoff_factor: float = Field(default=2.0, ge=1, strict=False)
    backoff_max: float = Field(default=60.0, ge=0, strict=False)


class FollowSection(Section):
    """`[follow]`: how `run --follow` watches for files."""

    poll: float = Field(default=1.0, gt=0, strict=False)
    settle: float = Field(default=2.0, ge=0, strict=False)


class StateSection(Section):
    """`[state]`: what survives."""

    path: _Local | None = None
    url: FromEnvironment | None = Field(default=None, repr=False)
    schema_: str = Field(default="multiqueue", alias="schema", min_length=1, max_length=63)

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith(_POSTGRES) and urlsplit(value).path.strip("/")):
            raise ValueError("must be postgresql://USER@HOST:PORT/DATABASE")  # without the value: it may have a secret
        return value

    @model_validator(mode="after")
    def _one_state(self) -> StateSection:
        if self.path is not None and self.url is not None:
            raise ValueError("path and url exclude each other: keep one")
        if self.url is None and "schema_" in self.model_fields_set:
            raise ValueError("schema needs url; a file has none")
        return self


class Settings(Section):
    """The whole file."""

    spark: SparkSection = Field(default_factory=SparkSection)
    lanes: dict[str, LaneSection] = Field(min_length=1)
    job: JobSection
    steps: dict[str, StepSection] = Field(default_factory=dict)
    output: OutputSection
    retry: RetrySection = Field(default_factory=RetrySection)
    follow: FollowSection = Field(default_factory=FollowSection)
    state: StateSection = Field(default_factory=StateSection)
    storage: dict[str, StorageSection] = Field(default_factory=dict)

    @field_validator("storage")
    @classmethod
    def _one_for_each_place(cls, value: dict[str, StorageSection]) -> dict[str, StorageSection]:
        names: dict[Place, str] = {}
        for name, section in value.items():
            if (first := names.setdefault(section.place, name)) != name:
                raise ValueError(f"{first} and {name} are both for {section.url!r}; keep one")
        return value


def strings(globs: str | Iterable[str]) -> tuple[str, ...]:
    """One string or several, as several."""
    return (globs,) if isinstance(globs, str) else tuple(globs)
