"""A driver to be killed: `multiqueue pipeline run`, whose rows are written by pyarrow in threads and not by Spark.

Everything else is the command's own: the scan, the state, the committer, the table. What a driver needs is imported
with this module, so that drivers can be forked.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyiceberg.catalog.sql  # noqa: F401
import s3fs  # noqa: F401
from pipeline_parts_support import LedgerLeaving, TableOutput, delta_module, delta_table, met
from pipeline_parts_support import _run as command
from pipeline_support import PoolDispatcher
from table_support import put

from multiqueue.cli import main
from multiqueue.pipeline import Item, PipelineConfig


class Work:
    """A row for each file of an item: its text."""

    def __init__(self, config: PipelineConfig, output: TableOutput) -> None:
        self._storage = config.storage
        self._output = output

    def add(self, lane: Any) -> None:
        pass

    def meet(self, spark: Any, item: Item) -> Item:
        return replace(item, files=met(item, self._storage))

    def __call__(self, spark: Any, item: Item, staged: Path) -> bool:
        rows = []
        for place in item.places:
            with self._storage.open(place) as stream:
                rows.append(stream.read().decode())
        put(self._output, item, {"row": rows}, {"lane": "string", "item": "string", "row": "string"})
        return True


def fused(moment: int) -> None:
    """Kill this process at that moment, counted from the first commit on: before or after a call that files go by."""
    left, is_lit = moment, False

    def pass_by(lights: bool) -> None:
        nonlocal left, is_lit
        is_lit = is_lit or lights
        left -= is_lit
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str, lights: bool = False) -> None:
        there = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            pass_by(lights)
            result = there(*arguments, **named)
            pass_by(lights)
            return result

        setattr(owner, name, call)

    for name in ("link", "remove", "rename"):
        around(os, name)
    for owner, name in ((delta_table(), "commit"), (LedgerLeaving, "begin"), (LedgerLeaving, "forget")):
        around(owner, name, lights=True)
    around(LedgerLeaving, "count")


def drive(base: Path, moment: int | None = None) -> None:
    """Run the pipeline in this directory, as the only thing that this process does."""
    if moment is not None:
        fused(moment)
    os.chdir(base)
    log = os.open("drivers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    delta_module()._COMPACTED = ((3, 4 << 20),)  # often, so that some die while files are joined
    command.work_of = lambda config, lanes, output: Work(config, output)  # type: ignore[attr-defined]
    command._dispatcher = lambda *arguments: PoolDispatcher()  # type: ignore[assignment]
    try:
        main(["pipeline", "run", "p.toml", "--json"])
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(int(ended.code or 0))
