"""The configuration file: its sections as models, and the lanes they come to on this machine.

Relative paths start at the directory of the file. Nothing unknown is accepted, and every complaint names its
place; docs/reference/pipeline-toml.md lists the keys, and a test compares the two.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from . import _scan
from ._config_errors import syntax_sentence, validation_sentences
from ._errors import ConfigError
from ._items import Lane

InputFormat = Literal["csv", "json", "jsonl", "parquet", "text", "binary", "paths"]
OutputFormat = Literal["parquet", "json", "csv", "orc", "text"]
Scalar = str | bool | int | float
Globs = Annotated[str | list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
"""One glob or several."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class SparkSection(_Section):
    """`[spark]`: where the jobs run, and how many at a time."""

    master: str | None = None
    remote: str | None = None
    conf: dict[str, Scalar] = Field(default_factory=dict)
    max_running: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _one_place(self) -> SparkSection:
        if self.master is not None and self.remote is not None:
            raise ValueError("master and remote exclude each other: keep one")
        return self


class LaneSection(_Section):
    """`[lanes.NAME]`: what is read, and how it is scheduled beside the others."""

    files: Globs
    directories: str | None = None
    exclude: Globs = Field(default_factory=list)
    format: InputFormat
    options: dict[str, Scalar] = Field(default_factory=dict)
    schema_: str | None = Field(default=None, alias="schema")
    batch: int = Field(default=1, ge=1, le=10_000)
    priority: int = 0
    capacity: int = Field(default=16, ge=1)
    weight: int = Field(default=1, ge=1)
    max_in_flight: int | None = Field(default=None, ge=1)
    pool: str | None = None

    @field_validator("directories")
    @classmethod
    def _has_fixed_depth(cls, value: str | None) -> str | None:
        if value is not None and "**" in value:
            raise ValueError("`**` has no place here: say how deep the directories are, as in 'inbox/*/*'")
        return value


class JobSection(_Section):
    """`[job]`: what is done with each item: a query, or a function."""

    sql: str | None = None
    python: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")

    @model_validator(mode="after")
    def _one_job(self) -> JobSection:
        if (self.sql is None) == (self.python is None):
            raise ValueError('give either sql = "SELECT ... FROM input" or python = "module:function"')
        return self


class OutputSection(_Section):
    """`[output]`: where the results go."""

    path: str = Field(min_length=1)
    format: OutputFormat = "parquet"
    options: dict[str, Scalar] = Field(default_factory=dict)
    partition_by: list[str] = Field(default_factory=list)
    files_per_item: int | None = Field(default=None, ge=1)

    @field_validator("path")
    @classmethod
    def _is_local(cls, value: str) -> str:
        return _local(value)


class RetrySection(_Section):
    """`[retry]`: how often a failing item is tried, and how long in between."""

    attempts: int = Field(default=3, ge=1)
    backoff: float = Field(default=1.0, ge=0, strict=False)
    backoff_factor: float = Field(default=2.0, ge=1, strict=False)
    backoff_max: float = Field(default=60.0, ge=0, strict=False)


class StateSection(_Section):
    """`[state]`: what survives."""

    path: str | None = None

    @field_validator("path")
    @classmethod
    def _is_local(cls, value: str | None) -> str | None:
        return None if value is None else _local(value)


class Settings(_Section):
    """The whole file."""

    spark: SparkSection = Field(default_factory=SparkSection)
    lanes: dict[str, LaneSection] = Field(min_length=1)
    job: JobSection
    output: OutputSection
    retry: RetrySection = Field(default_factory=RetrySection)
    state: StateSection = Field(default_factory=StateSection)


@dataclass(frozen=True)
class PipelineConfig:
    """Valid settings and the directory their relative paths start from."""

    settings: Settings
    base: Path
    """Absolute."""

    @property
    def output(self) -> Path:
        return Path(os.path.normpath(self.base / self.settings.output.path))

    @property
    def written(self) -> frozenset[Path]:
        """The directories that a run writes: no scan may enter them, whatever the globs say."""
        return frozenset({self.output, self.output / "data", self.output / "_multiqueue"})

    @property
    def state(self) -> Path:
        path = self.settings.state.path
        return self.base / path if path else self.output / "_multiqueue" / "state.sqlite"

    def lanes(self) -> list[Lane]:
        """The lanes as they are now: one per section, or one per directory that a section names.

        Raises:
            ConfigError: two lanes would have one name.
        """
        found: dict[str, Lane] = {}
        for name, section in self.settings.lanes.items():
            for lane in _lanes_of(name, section, self.base):
                if lane.name in found:
                    raise ConfigError(
                        f"lanes.{name}.directories: the directory {str(lane.root)!r} makes a lane "
                        f"{lane.name!r}, which exists already; rename the section or narrow the glob"
                    )
                found[lane.name] = lane
        return list(found.values())


def load_config(path: str | Path) -> PipelineConfig:
    """The configuration in a TOML file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or says something wrong; the message names the file,
            and per mistake the key and its line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8, as TOML must be (byte {error.start})") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {syntax_sentence(error)}") from error
    return parse_config(values, path.absolute().parent, source=str(path), text=text)


def parse_config(
    values: Mapping[str, Any], base: Path, *, source: str = "configuration", text: str = ""
) -> PipelineConfig:
    """The configuration in a mapping shaped like the TOML file; `text` lets errors name lines.

    Raises:
        ConfigError: as `load_config`.
    """
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(validation_sentences(error, Settings, source, text))) from error
    return PipelineConfig(settings, base.absolute())


def _lanes_of(name: str, section: LaneSection, base: Path) -> list[Lane]:
    if section.directories is None:
        return [_lane(name, section, base)]
    pattern = _scan.absolute(section.directories, base)
    root, _ = _scan.fixed_root(pattern)
    roots = _scan.directories(pattern, _strings(section.exclude))
    return [_lane(directory.relative_to(root).as_posix(), section, directory) for directory in roots]


def _lane(name: str, section: LaneSection, root: Path) -> Lane:
    return Lane(
        name=name,
        root=root,
        globs=_strings(section.files),
        exclude=_strings(section.exclude),
        format=section.format,
        options=spark_options(section.options),
        schema=section.schema_,
        batch=section.batch,
        priority=section.priority,
        capacity=section.capacity,
        weight=section.weight,
        max_in_flight=section.max_in_flight,
        pool=section.pool,
    )


def spark_options(options: Mapping[str, Scalar]) -> dict[str, str]:
    """Options as Spark spells them: `true`, not `True`."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}


def _strings(globs: str | list[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)


def _local(path: str) -> str:
    if "://" in path:
        raise ValueError(
            f"{path!r} is not a local path; results are moved into place by renaming, which this version "
            "does on local or mounted file systems only"
        )
    return path
