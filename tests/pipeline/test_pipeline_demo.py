"""`multiqueue demo`: what it extracts, what it prints, and that it goes on."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pipeline_parts_support import Group, Waits, demo_config, facts, fairness_sentence, mixed_items, small_lanes

from multiqueue.pipeline import plan_of

SOURCE = '''\
"""A module."""
import os, sys
from . import sibling
from collections.abc import Iterator
from collections.abc import Mapping

class A:
    def short(self): pass

    async def long(self):
        def inner():
            return 1

        return inner
'''


def test_the_facts_of_a_file(tmp_path: Path) -> None:
    """Lines, functions, classes, distinct imported modules, the longest function and its lines."""
    (tmp_path / "a.py").write_text(SOURCE)
    assert facts(str(tmp_path / "a.py")) == (14, 3, 1, 4, "long", 5, None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"def f(:\n", "SyntaxError"),
        (b"# coding: nonsense\n", "SyntaxError"),
        (b"\xff\xfe", "SyntaxError|UnicodeDecodeError"),
        (b"x = 1\0", "ValueError|SyntaxError"),
    ],
)
def test_a_file_that_is_not_python(tmp_path: Path, content: bytes, why: str) -> None:
    """A file that cannot be parsed is a row that says why, not a failed item: test suites are full of them."""
    (tmp_path / "a.py").write_bytes(content)
    unparsed = facts(str(tmp_path / "a.py"))[-1]
    assert unparsed is not None
    assert re.match(why, unparsed)


def test_an_empty_file(tmp_path: Path) -> None:
    """An `__init__.py` without content has no lines and no longest function."""
    (tmp_path / "__init__.py").touch()
    assert facts(str(tmp_path / "__init__.py")) == (0, 0, 0, 0, None, 0, None)


def test_lanes_of_the_standard_library(tmp_path: Path) -> None:
    """There is a lane per top-level package and one for single modules; installed packages are left out."""
    lanes = {lane.name: lane for lane in demo_config(tmp_path / "out").lanes()}
    assert {"top-level", "email", "json", "asyncio"} <= lanes.keys()
    assert not {"site-packages", "dist-packages"} & lanes.keys()
    assert {lane.format for lane in lanes.values()} == {"paths"}


def test_small_lanes() -> None:
    """A lane is small with at most a tenth of the items of the largest."""
    waits = [Waits("big", 100, 0, 0), Waits("ten", 10, 0, 0), Waits("eleven", 11, 0, 0)]
    assert [lane.lane for lane in small_lanes(waits)] == ["ten"]


def test_the_sentence_about_fairness() -> None:
    """The numbers of both runs are told, also what the largest lane paid."""
    groups = [Group("2 small lanes", 9, (1.0, 2.0), (10.0, 20.0)), Group("test", 80, (30.0, 40.0), (15.0, 33.0))]
    assert fairness_sentence(groups) == (
        "Half of the small lanes' items began within 1.0 s instead of 10.0 s, 95% within 2.0 s instead of 20.0 s; "
        "the median of 'test', the largest lane, went from 15.0 s to 30.0 s."
    )


_TWICE = """
import sys
from pathlib import Path
from multiqueue.pipeline._tell.console import console
from multiqueue.demo._pipeline import run_demo
for _ in range(2):
    status = run_demo(Path(sys.argv[1]), console(), fresh=False, library=Path(sys.argv[2]))
    print("status", int(status), flush=True)
"""


def make_library(library: Path, packages: dict[str, int]) -> None:
    """Packages of so many modules, and a module beside them."""
    for package, count in packages.items():
        (library / package).mkdir(parents=True)
        for i in range(count):
            (library / package / f"m{i}.py").write_text("def f():\n    pass\n")
    (library / "ast.py").write_text("import os\n")


def demo_said(library: Path, packages: dict[str, int], out: Path, code: str) -> str:
    """What the demo prints of such a library, in a process of its own."""
    make_library(library, packages)
    answer = subprocess.run(
        [sys.executable, "-c", code, str(out), str(library)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr == ""
    return answer.stdout


@pytest.mark.spark
@pytest.mark.slow(selected=True)
@pytest.mark.timeout(900)
def test_a_small_demo_and_the_same_again(tmp_path: Path) -> None:
    """On a small library the demo prints summary and fairness and ends with 0; again, it has nothing to run."""
    library, out = tmp_path / "library", tmp_path / "out"
    said = demo_said(library, {"big": 110, "small": 3}, out, _TWICE)
    first, again, rest = (part.splitlines() for part in said.split("status 0\n"))
    assert rest == []
    assert first[1] == f"output: {out}"
    (total,) = [line.split() for line in first if line.startswith("all ")]
    assert total[1:7] == ["114", "227", "113", "0", "1", "0"]
    assert any(line.startswith("2 small lanes") for line in first)
    assert first[-2].startswith(f"rows    {out}/data")
    assert len(list((out / "data").glob("lane=big/item=*/*.parquet"))) == 11
    assert [path.name for path in (out / "_multiqueue" / "rival").iterdir()] == ["waits.json"]
    assert again[1] == f"{out} holds a demo with 13 of 13 items done: going on (--fresh starts anew)."
    assert first[-2:] == again[-2:]
    assert [line for line in again if line.startswith("all ")] == [line for line in first if line.startswith("all ")]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_demo_into_a_table(tmp_path: Path) -> None:
    """With `--table` the rows are in a table that others read, and the demo says so; nothing is asked of a network."""
    library, out = tmp_path / "library", tmp_path / "out"
    code = _TWICE.replace("range(2)", "range(1)").replace("fresh=False", "fresh=False, table='delta'")
    lines = demo_said(library, {"big": 12, "small": 1}, out, code).splitlines()
    assert lines[-1] == "status 0"
    assert lines[-3] == f"rows    {out}/data   (a Delta table)"
    (total,) = [line.split() for line in lines if line.startswith("all ")]
    assert total[1:3] == ["14", "27"]
    import deltalake

    assert deltalake.DeltaTable(out / "data").to_pyarrow_table().num_rows == 14


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo(tmp_path: Path) -> None:
    """The demo on the standard library ends with 0, and the small lanes' items began earlier than with one queue.

    Earlier in the order of beginnings: seconds of two runs are not to be compared on a machine that does other things.
    """
    command = [sys.executable, "-m", "multiqueue", "demo", "--dir", str(tmp_path / "demo")]
    answer = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert re.search(r"^\d+ small lanes +\d+( +[\d.]+){4}$", answer.stdout, re.MULTILINE)
    state = tmp_path / "demo" / "_multiqueue" / "state.sqlite"
    with contextlib.closing(sqlite3.connect(state)) as connection:
        fair = places_of_small_lanes(
            [lane for (lane,) in connection.execute("SELECT lane FROM items ORDER BY started_s")]
        )
    waits = json.loads((tmp_path / "demo" / "_multiqueue" / "rival" / "waits.json").read_text())
    begun = sorted((wait, lane) for lane, its in waits.items() for wait in its)
    rival = places_of_small_lanes([lane for _, lane in begun])
    assert len(rival) == len(fair)
    assert fair[len(fair) // 2] < rival[len(rival) // 2]
    assert fair[len(fair) * 95 // 100] < rival[len(rival) * 95 // 100]
    assert (tmp_path / "demo" / "report.html").exists()


def places_of_small_lanes(order: list[str]) -> list[int]:
    """As the how-manieth item of a run each item of a small lane began, ascending."""
    items = Counter(order)
    return [place for place, lane in enumerate(order) if items[lane] <= max(items.values()) / 10]


def test_the_rival_has_the_items_of_the_run_mixed(tmp_path: Path) -> None:
    """The demo's rival takes the items that the lanes have, each once, in the order of their ids."""
    library = tmp_path / "library"
    make_library(library, {"big": 23, "small": 3})
    config = demo_config(tmp_path / "out", library)
    items = mixed_items(config)
    assert [item.id for item in items] == sorted(item.id for item in items)
    assert Counter(item.lane for item in items) == {"big": 3, "small": 1, "top-level": 1}
    files = sorted(one.path for item in items for one in item.files)
    assert files == sorted(str(path.relative_to(library)) for path in library.rglob("*.py"))
    assert {lane.lane.name: lane.to_run for lane in plan_of(config).lanes} == Counter(item.lane for item in items)


def test_the_quick_demo_has_small_lanes_and_few_items(tmp_path: Path) -> None:
    """`--quick` has a large lane and small ones beside it, and at most forty items in all."""
    plan = plan_of(demo_config(tmp_path / "out", quick=True))
    waits = [Waits(lane.lane.name, lane.to_run, 0, 0) for lane in plan.lanes]
    assert len(small_lanes(waits)) >= 3
    assert plan.to_run <= 40
