"""Commands that keep tables small: `vacuum` and `optimize`. Neither runs beside a run: they take the state's lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..._words import counted
from .._base.errors import Unprepared
from .._config.config import PipelineConfig
from .._state.ledger import open_ledger
from .._write.table import Table
from .._write.tables import output_of


def vacuum(config: PipelineConfig, keep_s: float) -> Iterator[tuple[str, str]]:
    """Remove the files that no commit names. Of each table its place, and how many there were.

    Files that were in a table less than `keep_s` ago stay: somebody may read an older version.

    Raises:
        Unprepared: the output has no tables, or has not run yet.
    """
    with _tables(config) as tables:
        for table in tables:
            found = table.maintain(lambda form: form.vacuum(keep_s)) or []
            for path in found:
                table.files.remove(path)
            yield table.place, f"removed {counted(len(found), 'file')} that no commit names"


def optimize(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Make few large files of many small ones. For each table its place, and the work done.

    Raises:
        Unprepared: as `vacuum`.
    """
    with _tables(config) as tables:
        for table in tables:
            yield table.place, table.maintain(lambda form: form.optimize()) or "there is no table yet"


@contextlib.contextmanager
def _tables(config: PipelineConfig) -> Iterator[list[Table]]:
    """The tables, while no run is under way; what a dead run had committed is recorded before."""
    output = output_of(config)
    if not output.tables:
        raise Unprepared(f"{config.source}: the output has no tables; [output] table names a kind")
    if not config.state.exists():
        raise Unprepared(f"there is no state {str(config.state)!r}: this pipeline has not run yet")
    with config.state.exclusive(), open_ledger(config.state, config.base, config.storage) as ledger:
        output.check(ledger)
        ledger.recover(output.is_published)
        yield list(output.tables.values())
