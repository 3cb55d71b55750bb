"""The traces of a first run that could not begin: taken away again, so that nothing looks begun.

Promise     When a first run ends with `Unprepared` (no Java, no input, Spark does not start), it leaves no files:
            state, report, empty directories. Spark's log stays if it says something, for the error names it. Earlier
            files stay, and so does everything once a run has begun.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from .._base.errors import ConfigError, StateMismatch, Unprepared
from .._config.config import PipelineConfig

_LOG = "spark.log"


@contextlib.contextmanager
def leaving_nothing_unbegun(config: PipelineConfig) -> Iterator[None]:
    """Take away files made inside, if it ends as not ready (status 2) and no state existed before."""
    if config.state.exists():
        yield
        return
    places = [config.output]
    if config.state.path is not None:
        places.append(config.state.path.parent)
    if config.dead_letters.is_local:
        places.append(config.dead_letters.path)
    missing = [one for place in places for one in (place, *place.parents) if not one.exists()]
    own = config.output / "_multiqueue"
    is_ours = not own.exists() or not any(own.iterdir())
    report = config.output / "report.html"
    made = [] if report.exists() else [report]
    try:
        yield
    except (Unprepared, ConfigError, StateMismatch):  # not StateInUse: the state is then somebody else's
        _take_away(config, own if is_ours else None, made, missing)
        raise


def _take_away(config: PipelineConfig, own: Path | None, files: list[Path], missing: list[Path]) -> None:
    state = config.state.path
    own_state = () if state is None else state.parent.glob(f"{state.name}*")
    for file in (*own_state, *files):
        with contextlib.suppress(OSError):  # not there
            file.unlink()
    for made in own.iterdir() if own is not None and own.exists() else ():
        if made.is_dir():
            shutil.rmtree(made)
        elif made.name != _LOG or not made.stat().st_size:
            made.unlink()
    parts = [config.output / part for part in ("data", "steps", "corrupt")]
    for directory in sorted({*parts, *missing, *([own] if own else [])}, key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):  # not there, or with something in it
            directory.rmdir()
