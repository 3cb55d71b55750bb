"""Spark's fair-scheduler pools, written as the allocation file that Spark reads when a session starts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from ..._kinds import check_kind, check_path, checked_list

# With one slash as well, which `Path` makes of two; a letter alone is a drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, slots=True)
class SchedulerPool:
    """One pool: its share of the cores against other pools, and how many cores it gets before shares count."""

    name: str
    weight: int = 1
    min_share: int = 0
    mode: Literal["FAIR", "FIFO"] = "FAIR"

    def __post_init__(self) -> None:
        for what in ("name", "mode"):
            check_kind(what, getattr(self, what), str, "a string")
        for what in ("weight", "min_share"):
            check_kind(what, getattr(self, what), int, "a whole number")
        if not self.name:
            raise ValueError("a scheduler pool needs a name")
        if self.weight < 1:
            raise ValueError(f"scheduler pool {self.name!r}: weight must be at least 1, not {self.weight}")
        if self.min_share < 0:
            raise ValueError(f"scheduler pool {self.name!r}: min_share must not be negative, not {self.min_share}")
        if self.mode not in ("FAIR", "FIFO"):
            raise ValueError(f"scheduler pool {self.name!r}: mode must be 'FAIR' or 'FIFO', not {self.mode!r}")


def pools_xml(pools: Iterable[SchedulerPool | str], directory: str | Path | None = None) -> str:
    """Write an allocation file and return its URI, for `spark.scheduler.allocation.file`.

    Spark reads it once, when the session starts, together with `spark.scheduler.mode=FAIR`. A string stands for a pool
    with default settings. The file goes to `directory`, by default a new temporary one, and is yours to delete.

    Raises:
        ValueError: two pools have the same name, or the directory is a URL.
    """
    if directory is not None:
        check_path("directory", directory)
    if directory is not None and is_url(str(directory)):
        raise ValueError(f"{str(directory)!r} is no directory; Spark's driver reads the file on its own machine")
    root = ElementTree.Element("allocations")
    names: set[str] = set()
    for entry in checked_list("pools", pools, (SchedulerPool, str), "a SchedulerPool or a name"):
        pool = SchedulerPool(entry) if isinstance(entry, str) else entry
        if pool.name in names:
            raise ValueError(f"scheduler pool {pool.name!r} is defined twice")
        names.add(pool.name)
        element = ElementTree.SubElement(root, "pool", name=pool.name)
        ElementTree.SubElement(element, "schedulingMode").text = pool.mode
        ElementTree.SubElement(element, "weight").text = str(pool.weight)
        ElementTree.SubElement(element, "minShare").text = str(pool.min_share)
    folder = Path(tempfile.mkdtemp(prefix="multiqueue-pools-") if directory is None else directory)
    path = folder / "fairscheduler.xml"
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    return path.resolve().as_uri()


def is_url(text: str) -> bool:
    """Whether the text begins like `hdfs:/x`, `dbfs:/x` or `s3://x`, which Spark would not take for a path."""
    return _SCHEME.match(text) is not None
