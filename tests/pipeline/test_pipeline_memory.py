"""Memory that does not grow with the number of files."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pipeline_support import Pipeline, lane_of

from multiqueue.pipeline import Silent, _scan
from multiqueue.pipeline._items import Item


def peak_bytes(base: Path, lanes: int, files: int) -> int:
    """The most memory that a run over so many lanes of so many files had allocated at a time."""
    for lane in range(lanes):
        directory = base / f"lane{lane:03}"
        directory.mkdir(parents=True)
        for i in range(files):
            (directory / f"{i}.txt").touch()
    done = 0

    def work(spark: Any, item: Item, staged: Path) -> bool:
        nonlocal done
        done += 1
        return False

    names = [f"lane{lane:03}" for lane in range(lanes)]
    gc.collect()
    tracemalloc.start()
    try:
        run = Pipeline(base, [lane_of(base, name) for name in names], work=work)
        run.dispatcher.submitted = _Forgetful()
        run.runner.reporter = Silent()
        run.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done == lanes * files
    return peak


class _Forgetful(list[Item]):
    def append(self, item: Item) -> None:
        pass


def test_more_files_in_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of 2,000 files take the memory of lanes of 300, where the slices of a scan are full already."""
    monkeypatch.setattr(_scan, "_SLICE", 100)
    small = peak_bytes(tmp_path / "small", 2, 300)
    assert peak_bytes(tmp_path / "large", 2, 2000) < small * 1.1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_thousand_files_in_two_hundred_lanes(tmp_path: Path) -> None:
    """20,000 files in 200 lanes take hardly more memory than 4,000 in the same lanes, and not much at all."""
    few = peak_bytes(tmp_path / "few", 200, 20)
    many = peak_bytes(tmp_path / "many", 200, 100)
    assert many < few * 1.25
    assert many < 30_000_000
