"""Input that should be there: what a run must not pass over in silence.

Promise     A lane is *lost* when something of its input cannot be read, when a place that its globs name does not
            exist, or when it had files before and has none now. A lost lane is reported and makes the run end with a
            separate status; the other lanes are done. `allow_empty` takes a place that does not exist and a lane
            without files; what cannot be read is never taken for empty. While following, a lane without files waits for
            some, so only unreadable input is reported.
State       None: the ledger knows which lanes had files, the scan its findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._base.errors import ConfigError
from .._base.items import KEEP, Lane, place_seen
from .._base.place import scheme_of
from .._config.config import PipelineConfig
from .._config.scan import PassedOver, scan
from .._config.sections import LaneSection
from .._state.ledger import Ledger

_REMEDY = "bring it back, correct the configuration, or set allow_empty = true"


@dataclass(frozen=True, slots=True)
class Lost:
    """A lane, or a section with directories, whose input is not whole."""

    name: str
    why: str
    is_gone: bool
    """It has no files at all: its items that wait would only fail."""


def lost_lane(lane: Lane, met: PassedOver, ledger: Ledger, *, following: bool) -> Lost | None:
    """Why the lane that was scanned is lost; None when it is not."""
    is_empty = met.matched == 0
    if met.unread is not None:
        return Lost(lane.name, f"lane {lane.name!r}: cannot read {met.unread}", is_empty)
    if lane.allow_empty or following:
        return None
    if met.missing is not None and not (lane.after != KEEP and scheme_of(met.missing)):
        return Lost(lane.name, f"lane {lane.name!r}: {met.missing!r} does not exist; {_REMEDY}", is_empty)
    if is_empty and ledger.has_files(lane.name):
        globs = ", ".join(map(repr, lane.globs))
        return Lost(lane.name, f"lane {lane.name!r} had files, and none matches {globs} now; {_REMEDY}", True)
    return None


def lost_directories(
    config: PipelineConfig, met: dict[str, PassedOver], lanes: Sequence[Lane], ledger: Ledger
) -> list[Lost]:
    """The sections whose directories cannot be read, and the directories that were lanes and are gone."""
    lost = []
    for name, passed_over in met.items():
        section = config.settings.lanes[name]
        if passed_over.unread is not None:
            lost.append(Lost(name, f"lanes.{name}.directories: cannot read {passed_over.unread}", False))
        elif passed_over.missing is not None and not section.allow_empty and not _went(section, passed_over.missing):
            lost.append(
                Lost(name, f"lanes.{name}.directories: {passed_over.missing!r} does not exist; {_REMEDY}", False)
            )
    told, present = {one.name for one in lost}, {lane.name for lane in lanes}
    gone: dict[str, list[str]] = {}
    for lane, path in ledger.lanes_with_files():
        section_name = None if lane in present else config.section_of(lane, place_seen(path, config.base))
        if section_name in met and not config.settings.lanes[section_name].allow_empty:
            gone.setdefault(section_name, []).append(lane)
    for name, names in gone.items():
        if name not in told:
            which = f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            lost.append(
                Lost(
                    name, f"lanes.{name}.directories: the directory of {which} had files and is gone; {_REMEDY}", False
                )
            )
    return lost


def _went(section: LaneSection, missing: str) -> bool:
    """Whether a store has no such place because its objects were taken away: it has no empty directories."""
    return section.after != KEEP and bool(scheme_of(missing))


def require_input(config: PipelineConfig, ledger: Ledger, lanes: Sequence[Lane]) -> None:
    """Return if any lane has a file, or the ledger had one before: otherwise it is rather said before anything starts.

    Raises:
        ConfigError: there is none.
    """
    chosen = {lane.section for lane in lanes} | config.chosen
    sections = {name: one for name, one in config.settings.lanes.items() if not config.chosen or name in chosen}
    if not ledger.is_empty() or any(one.source or one.events or one.allow_empty for one in sections.values()):
        return
    passed_over = PassedOver()
    if any(True for lane in lanes for _ in scan(lane, config.base, passed_over, config.written, config.storage)):
        return
    globs = ", ".join(f"lanes.{name}.files = {section.files!r}" for name, section in sections.items())
    why = "".join(f"; {sentence}" for sentence in passed_over.sentences())
    raise ConfigError(f"no input files below {str(config.base)!r}: {globs}{why}")
