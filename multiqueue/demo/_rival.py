"""The demo's rival: the same items through one queue, first in, first out, as if they had arrived at random."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from ..pipeline._base.batching import cut
from ..pipeline._base.items import Item, item_id
from ..pipeline._config.config import PipelineConfig
from ..pipeline._config.scan import PassedOver, scan
from ..pipeline._run.work import prepare, work_of
from ..pipeline._write.publish import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Waits = Mapping[str, list[float]]
"""How long each item of a lane waited until its job began, in seconds, ascending."""


def waits_of_rival(spark: SparkSession, config: PipelineConfig, console: Console) -> Waits:
    """Run the items through one queue and throw their rows away; a rival that ran to its end is not run again."""
    kept = config.output / "waits.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    waits = _run(spark, config, console)
    config.output.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(waits))
    return waits


def mixed_items(config: PipelineConfig) -> list[Item]:
    """The items of all lanes in the order of their ids: mixed, and in every run alike."""
    items = []
    for lane in config.lanes():
        full, rest = cut(scan(lane, config.base, PassedOver(), config.written), lane.batch, lane.batch_bytes)
        for files in (*full, *([rest] if rest else [])):
            items.append(Item(item_id(lane.name, [one.path for one in files]), lane.name, tuple(files), config.base))
    return sorted(items, key=lambda item: item.id)


def _run(spark: SparkSession, config: PipelineConfig, console: Console) -> dict[str, list[float]]:
    from ..spark import SparkDispatcher

    output = Publisher(config.output)
    work = work_of(config, config.lanes(), output)
    prepare(spark, config, work, output)
    items = mixed_items(config)
    waits: dict[str, list[float]] = {item.lane: [] for item in items}
    scratch = config.output / "scratch"
    begun_s = time.monotonic()

    def attempt(spark: SparkSession, item: Item) -> None:
        waits[item.lane].append(time.monotonic() - begun_s)
        staged = scratch / item.id
        work(spark, item, staged)
        shutil.rmtree(staged)

    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with SparkDispatcher(spark, max_running=config.settings.spark.max_running) as dispatcher:
        ended = dispatcher.as_completed(attempt, items)
        for _, future in track(ended, "one queue", len(items), console=console, disable=not console.is_terminal):
            future.result()
    shutil.rmtree(scratch)
    return {lane: sorted(its) for lane, its in waits.items()}


def waits_of_lanes(waits: Waits, lanes: set[str]) -> list[float]:
    """Those of all items of these lanes, ascending."""
    return sorted(wait for lane in lanes for wait in waits.get(lane, ()))
