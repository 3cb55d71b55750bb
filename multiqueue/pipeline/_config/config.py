"""The configuration file: read, checked, and the lanes and steps that it comes to on this machine.

Relative paths start at the directory of the file, and every complaint names its place. The keys are in `_sections`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..._kinds import check_kind, check_path
from ..._toml import Mistaken, placed_sentences, read_toml, validated
from .._base.errors import ConfigError
from .._base.items import ALLOW, ERROR, KEEP, Lane, Step
from .._base.pace import CHUNK_BYTES, CHUNK_FILES
from .._base.place import MOST_BYTES, Place, joined, place_of, quoted
from .._base.storage import Storage
from .._state.postgres import PostgresState
from .._state.sqlite import SqliteState
from .._state.state import State
from . import scan as _scan
from .graph import in_order, mistakes
from .path_columns import path_columns
from .scan import PassedOver
from .sections import DIRECTORY, RECORDS, LaneSection, Scalar, Settings, StepSection, strings

# Of a complaint's length.
_MOST_NAMES = 20


@dataclass(frozen=True)
class PipelineConfig:
    """Valid settings and the directory their relative paths start from."""

    settings: Settings
    base: Path
    """Absolute."""
    source: str = "configuration"
    """Where the settings were read: a path, or what a program calls them."""
    chosen: frozenset[str] = frozenset()
    """Lanes, and sections with all their lanes, that a run is of; empty for all."""

    @cached_property
    def storage(self) -> Storage:
        """The files at the places of this configuration."""
        return Storage(self.settings.storage)

    @property
    def output(self) -> Path:
        """The local directory of the output, absolute: rows, report and state, or all but the rows."""
        section = self.settings.output
        local_path = section.path if place_of(section.path).is_local else section.work
        return Path(os.path.normpath(self.base / local_path))

    @property
    def rows_at(self) -> Place:
        """The directory, or the place in a store, below which the rows are."""
        return place_of(self.settings.output.path, self.base)

    @property
    def written(self) -> frozenset[Place]:
        """The directories that a run writes: no scan may enter them, even if a glob matches."""
        parts = ("data", "steps", "corrupt", "_multiqueue")
        output = Place(str(self.output))
        own = {output, self.rows_at, self.dead_letters, *(output / part for part in parts)}
        return frozenset(own | set(self._after_places().values()))

    def _after_places(self) -> dict[str, Place]:
        """Where files that are done are moved to, by lane section."""
        lanes = self.settings.lanes.items()
        return {name: place_of(one.after_place, self.base) for name, one in lanes if one.after_place is not None}

    @property
    def dead_letters(self) -> Place:
        """The directory for items that are set aside, also in a store."""
        path = self.settings.output.dead_letters
        return Place(str(self.output / "failed")) if path is None else place_of(path, self.base)

    @property
    def state(self) -> State:
        """The SQLite file of the state, or the schema of PostgreSQL."""
        section = self.settings.state
        if section.url is not None:
            return PostgresState(section.url, section.schema_)
        path = section.path
        return SqliteState(self.output / "_multiqueue" / "state.sqlite" if path is None else self.base / path)

    def on(self, url: str) -> PipelineConfig:
        """The same on another Spark: a master's URL, or `sc://` for a Connect server.

        Raises:
            ConfigError: the URL is empty, as that of a variable that is not set; it does not mean this machine.
        """
        if not url.strip():
            raise ConfigError("--on is empty; it takes a URL: local[4], spark://HOST:PORT, sc://HOST")
        place = {"remote": url, "master": None} if url.startswith("sc://") else {"remote": None, "master": url}
        spark = self.settings.spark.model_copy(update=place)
        return replace(self, settings=self.settings.model_copy(update={"spark": spark}))

    def only(self, names: Collection[str], ran: Collection[str] = ()) -> PipelineConfig:
        """The same for these lanes alone; the name of a section means all its lanes. Steps are left out.

        Lanes that `ran` before need not be there, if directories may go: the input may be empty, or is taken away.

        Raises:
            ConfigError: a name is that of no lane; or as `lanes`.
        """
        found = self.lanes()
        there = {one for lane in found for one in (lane.name, lane.section)} | self.settings.lanes.keys()
        sections = self.settings.lanes.values()
        if any(one.directories is not None and (one.allow_empty or one.after != KEEP) for one in sections):
            there |= set(ran)
        if unknown := [name for name in names if name not in there]:
            shown = ", ".join(repr(lane.name) for lane in found[:_MOST_NAMES])
            more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
            raise ConfigError(f"there is no lane {unknown[0]!r}; there are {shown or 'none'}{more}")
        return replace(self, chosen=frozenset(names))

    def lanes(self) -> list[Lane]:
        """The lanes as they are now: one per section, or one per directory that a section names.

        Raises:
            ConfigError: two lanes would have one name.
        """
        return self.look()[0]

    def look(self, kept: Sequence[Lane] = ()) -> tuple[list[Lane], dict[str, PassedOver]]:
        """The lanes as they are now, and the findings while the directories of sections were listed, by section.

        The sections of the lanes that are `kept` are not listed. Of lanes that are chosen by name their sections have
        met nothing: the others are none of this run's.

        Raises:
            ConfigError: two lanes would have one name.
        """
        found: dict[str, Lane] = {}
        met: dict[str, PassedOver] = {}
        for name, section in self.settings.lanes.items():
            own = [lane for lane in kept if lane.section == name]
            for lane in own or _lanes_of(name, section, self, met):
                if lane.name in found:
                    raise ConfigError(_two_of_one_name(lane, found[lane.name]))
                if len(quoted(lane.name).encode(errors="surrogateescape")) > MOST_BYTES:
                    raise ConfigError(
                        f"lanes.{lane.section}: the lane {lane.name!r} has too long a name for a directory of the "
                        f"output, which takes {MOST_BYTES} bytes; shorten it"
                    )
                found[lane.name] = lane
        for name in self.settings.steps.keys() & found.keys():
            raise ConfigError(f"steps.{name}: there is a lane {name!r} already; rename the step")
        if not self.chosen:
            return list(found.values()), met
        lanes = [lane for lane in found.values() if not self.chosen.isdisjoint((lane.name, lane.section))]
        # A queue may tell of other lanes too, whose events would be lost: these lanes are listed.
        lanes = [replace(lane, events=None) for lane in lanes]
        return lanes, {name: one for name, one in met.items() if name in self.chosen}

    def section_of(self, lane: str, place: Place) -> str | None:
        """The section of whose directories one made this lane, which has a file there; None when none did."""
        for name, section in self.settings.lanes.items():
            if section.directories is not None:
                pattern = _scan.absolute(section.directories, self.base)
                directory = _scan.is_directory_of(place, pattern, strings(section.exclude))
                if directory is not None and lane == _lane_name(section, directory):
                    return name
        return None

    def lane_at(self, source: str, place: Place) -> Lane | None:
        """The lane that a directory makes in which something is at this place, of a section with these events."""
        for name, section in self.settings.lanes.items():
            if section.directories is not None and section.events == source:
                pattern = _scan.absolute(section.directories, self.base)
                directory = _scan.is_directory_of(place, pattern, strings(section.exclude))
                if directory is not None:
                    depth = len(_scan.fixed_root(pattern)[0].parts) + len(directory.split("/"))
                    root = _root(Place(joined(place.parts[:depth])))
                    lane = _lane(_lane_name(section, directory), name, section, root, self.base)
                    return lane if len(quoted(lane.name).encode(errors="surrogateescape")) <= MOST_BYTES else None
        return None

    def event_starts(self) -> dict[str, list[Place]]:
        """Where the globs of lanes with events start, by what tells of their files; none when lanes are chosen."""
        starts: dict[str, list[Place]] = {}
        for section in () if self.chosen else self.settings.lanes.values():
            if section.events is not None:
                globs = strings(section.directories or section.files or ())
                found = [_scan.fixed_root(_scan.absolute(one, self.base))[0] for one in globs]
                starts.setdefault(section.events, []).extend(found)
        return starts

    def lane_that_went(self, lane: str, place: Place) -> Lane | None:
        """The lane as a directory made it that need not be there any more, which had a file at this place.

        None when no section of this run has such a directory.
        """
        name = self.section_of(lane, place)
        if name is None or (self.chosen and self.chosen.isdisjoint((lane, name))):
            return None
        return _lane(lane, name, self.settings.lanes[name], self.base, self.base)

    def steps(self) -> list[Step]:
        """The steps, each after those that it needs; none when lanes are chosen."""
        if self.chosen:
            return []
        sections = self.settings.steps
        return [_step(name, sections[name]) for name in in_order(self.settings)]


def load_config(path: str | Path) -> PipelineConfig:
    """The configuration in a TOML file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or says something wrong; the message names the file,
            and per mistake the key and its line.
    """
    check_path("path", path)
    path = Path(path)
    try:
        values, text = read_toml(path)
    except Mistaken as error:
        raise ConfigError(str(error)) from error
    return parse_config(values, path.absolute().parent, source=str(path), text=text)


def parse_config(
    values: Mapping[str, Any], base: Path, *, source: str = "configuration", text: str = ""
) -> PipelineConfig:
    """The configuration in a mapping shaped like the TOML file; `text` lets errors name lines.

    Raises:
        ConfigError: as `load_config`.
    """
    check_kind("values", values, Mapping, "a mapping, as of a TOML file")
    check_kind("base", base, Path, "the Path that relative paths begin at")
    check_kind("text", text, str, "a string")
    try:
        settings = validated(Settings, values, source, text)
    except Mistaken as error:
        raise ConfigError(str(error)) from error
    config = PipelineConfig(settings, base.absolute(), source)
    if found := mistakes(settings) or _own_output(config) or _among_the_rows(config) or _moved_onto_input(config):
        raise ConfigError("\n".join(placed_sentences(found, source, text)))
    return config


def _own_output(config: PipelineConfig) -> list[tuple[tuple[str | int, ...], str]]:
    """The globs that start in what the pipeline itself writes: each run would read what the last one has put out."""
    # Dead letters elsewhere may lie around the input.
    output = Place(str(config.output))
    own = {place for place in config.written if place != output and place.is_below(output)}
    return [
        (("lanes", name, "files"), f"{glob!r} is what this pipeline writes; a step reads what lanes have put out")
        for name, section in config.settings.lanes.items()
        if section.directories is None
        for glob in strings(section.files or ())
        if not own.isdisjoint(_with_parents(_scan.fixed_root(_scan.absolute(glob, config.base))[0]))
    ]


def _among_the_rows(config: PipelineConfig) -> list[tuple[tuple[str | int, ...], str]]:
    """The places of other files in which the pipeline's rows are: readers of the rows would meet them."""
    rows = [
        root / part for root in {config.rows_at, Place(str(config.output))} for part in ("data", "steps", "corrupt")
    ]
    places = {("output", "dead_letters"): config.dead_letters}
    if (path := config.state.path) is not None:
        places["state", "path"] = Place(os.path.normpath(path))
    return [
        (key, f"{str(place)!r} is where the rows are; name a place beside them")
        for key, place in places.items()
        if any(place.is_below(one) for one in rows)
    ]


def _moved_onto_input(config: PipelineConfig) -> list[tuple[tuple[str | int, ...], str]]:
    """The places for what is done in which files of a lane are: they would be read again."""
    starts = {
        _scan.fixed_root(_scan.absolute(glob, config.base))[0]
        for section in config.settings.lanes.values()
        for glob in strings(section.directories or section.files or ())
    }
    return [
        (("lanes", name, "after_place"), f"{str(place)!r} has input below it; name a directory beside the lanes' own")
        for name, place in config._after_places().items()
        if any(start.is_below(place) for start in starts)
    ]


def _with_parents(place: Place) -> list[Place]:
    return [Place(joined(place.parts[:length])) for length in range(1, len(place.parts) + 1)]


def _two_of_one_name(second: Lane, first: Lane) -> str:
    """The error for the second lane of a name; at least one of the two is made by a directory."""
    lane, other = (first, second) if second.name == second.section else (second, first)
    whose = "is that of the section" if other.name == other.section else f"lanes.{other.section} has already"
    return (
        f"lanes.{lane.section}.directories: the directory {str(lane.root)!r} makes a lane {lane.name!r}, a name that "
        f'{whose}; give lanes.{lane.section} other ones, name = "{DIRECTORY}-{lane.section}", or narrow its glob'
    )


def _lanes_of(name: str, section: LaneSection, config: PipelineConfig, met: dict[str, PassedOver]) -> list[Lane]:
    if section.directories is None:
        return [_lane(name, name, section, config.base, config.base)]
    pattern = _scan.absolute(section.directories, config.base)
    root, _ = _scan.fixed_root(pattern)
    passed_over = met[name] = PassedOver()
    return [
        _lane(
            _lane_name(section, "/".join(directory.parts[len(root.parts) :])),
            name,
            section,
            _root(directory),
            config.base,
        )
        for directory in _scan.directories(pattern, strings(section.exclude), passed_over, config.storage)
    ]


def _root(directory: Place) -> Path | Place:
    return directory.path if directory.is_local else directory


def _lane_name(section: LaneSection, directory: str) -> str:
    """The name of the lane that a directory makes, which is relative to where the glob starts."""
    return (section.name or DIRECTORY).replace(DIRECTORY, directory)


def _lane(name: str, section_name: str, section: LaneSection, root: Path | Place, base: Path) -> Lane:
    return Lane(
        name=name,
        section=section_name,
        root=root,
        globs=strings(section.files or ()),
        source=section.source,
        events=section.events,
        listing_s=section.listing_seconds,
        prefetch=section.prefetch,
        exclude=strings(section.exclude),
        format=section.format,
        options=spark_options(section.options),
        io=section.io,
        schema=section.schema_,
        schema_hints=section.schema_hints,
        on_new_columns=section.new_columns,
        rescued_column=section.rescues,
        path_columns=path_columns(section.path_columns, section.path_filter),
        expect=section.expect,
        corrupt=_corrupt(section),
        allow_empty=section.allow_empty,
        **_batch(section),
        batch_s=section.batch_seconds,
        max_files_per_s=section.max_files_per_second,
        max_bytes_per_s=section.max_bytes_per_second,
        after=section.after,
        forget_after_s=section.forget_after,
        forgets_for_good=section.on_forgotten == "again",
        after_delay_s=section.after_delay,
        after_place=None if section.after_place is None else place_of(section.after_place, base),
        priority=section.priority,
        capacity=section.capacity,
        weight=section.weight,
        max_in_flight=section.max_in_flight,
        pool=section.pool,
        timeout_s=section.timeout,
    )


def _batch(section: LaneSection) -> dict[str, Any]:
    if section.batch != "auto":
        return {"batch": section.batch, "batch_bytes": section.batch_bytes}
    if section.source is not None:
        return {"batch": 1, "batch_bytes": section.batch_bytes}
    chunk_bytes = min(CHUNK_BYTES, section.batch_bytes or CHUNK_BYTES)
    return {
        "batch": CHUNK_FILES,
        "batch_bytes": chunk_bytes,
        "target_s": section.target_seconds,
        "most_bytes": section.batch_bytes,
    }


def _corrupt(section: LaneSection) -> str:
    if section.corrupt is not None:
        return section.corrupt
    chosen = "mode" in (key.lower() for key in section.options)
    return ERROR if section.format in RECORDS and not chosen else ALLOW


def _step(name: str, section: StepSection) -> Step:
    return Step(
        name=name,
        after=section.sources,
        each_lane=section.each_lane,
        allow_failed=section.allow_failed,
        schemas=section.schemas,
        expect=section.expect,
        priority=section.priority,
        max_in_flight=section.max_in_flight,
        pool=section.pool,
        timeout_s=section.timeout,
    )


def spark_options(options: Mapping[str, Scalar]) -> dict[str, str]:
    """Options as Spark spells them: `true`, not `True`."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
