"""`multiqueue demo threads`, `fair` and `broker`: what they show, in terminals of all widths."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from multiqueue.cli import main
from multiqueue.demo._fair import run_fair
from multiqueue.demo._picture import Picture, Row, heights
from multiqueue.demo._svg import bars
from multiqueue.demo._tables import table_of
from multiqueue.demo._threads import run_threads

HOUSE = Path(__file__).parents[2]


def shown(picture: Picture, width: int, encoding: str = "utf-8") -> list[str]:
    """The lines of a picture in a terminal of this width."""
    console = Console(width=width)
    options = console.options.update(width=width)
    options.encoding = encoding
    return ["".join(segment.text for segment in line) for line in console.render_lines(picture, options, pad=False)]


def test_a_column_is_as_high_as_its_share_of_the_fullest() -> None:
    """The fullest column has the highest block, and a single event is seen beside a thousand."""
    assert heights([0.5] * 1000 + [1.5] * 500 + [3.5], 4.0, 4, 8) == [8, 4, 0, 1]


def test_an_event_after_the_end_is_in_the_last_column() -> None:
    """A run that takes longer than was expected still shows all that happened."""
    assert heights([9.0], 4.0, 4, 8) == [0, 0, 0, 8]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_picture_fits_its_terminal(width: int) -> None:
    """A row is one line of at most the terminal's columns, 100 at most, with its name and its number."""
    rows = [Row("broker up", [0.0], "1,200"), Row("handled", [0.5], "0.123 s")]
    lines = shown(Picture(rows, 1.0), width)
    assert [len(line) for line in lines] == [min(width, 100)] * 2
    assert lines[0].startswith("broker up █")
    assert lines[1].endswith("  0.123 s")


@pytest.mark.parametrize(
    ("width", "last"), [(120, "longest, lines"), (80, "longest, lines"), (70, "unparsed"), (40, "functions")]
)
def test_a_table_has_whole_columns(width: int, last: str) -> None:
    """What does not fit into the terminal is left out; no number is cut."""
    console = Console(width=width, record=True, file=io.StringIO())
    row = ["encodings", 122, 132_340, 7_025, 1_139, 187, "_make_iterencode", 184, 0]
    console.print(table_of([row, ["json", 5, 1_316, 31, 3, 14, "dumps", 83, 0]], width))
    head, *lines = console.export_text().splitlines()
    assert head.rstrip().endswith(last)
    assert "…" not in "".join(lines)
    assert lines[-1].split()[:4] == ["all", "127", "133,656", "7,056"]


def test_a_picture_without_blocks() -> None:
    """A terminal whose encoding has no blocks gets plain characters."""
    (line,) = shown(Picture([Row("all", [0.0], "")], 1.0), 40, "ascii")
    assert line.isascii()
    assert line.startswith("all       @")


def test_a_small_tenant_waits_less_beside_a_flood() -> None:
    """With a sub-queue each, 'mail' waits less than through one queue; both pictures are there, in 40 columns."""
    console = Console(width=40, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        run_threads(console, scale=0.2)
    text = console.export_text()
    assert all(len(line.rstrip()) <= 40 for line in text.splitlines())
    pictures = re.findall(r"^(big|mail|alarm) .* (\d+\.\d+) s$", text, re.MULTILINE)
    assert [name for name, _ in pictures] == ["big", "mail", "alarm"] * 2
    assert float(pictures[4][1]) < float(pictures[1][1])


def test_eight_tenants_wait_less_in_a_fair_queue(tmp_path: Path) -> None:
    """`multiqueue demo fair` shows both queues in 40 columns, and draws what it shows."""
    console = Console(width=40, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    svg = tmp_path / "fair.svg"
    with console.file:
        run_fair(console, svg, scale=0.25)
    text = console.export_text()
    assert all(len(line.rstrip()) <= 40 for line in text.splitlines() if str(tmp_path) not in line)
    pictures = re.findall(r"^(flood|tenant \d) .* (\d+\.\d+) s$", text, re.MULTILINE)
    assert len(pictures) == 18
    before, after = pictures[:9], pictures[9:]
    assert all(float(fair) < float(old) for (_, old), (_, fair) in zip(before[1:], after[1:], strict=True))
    drawn = ElementTree.fromstring(svg.read_text())
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"first in, first out", "fair", "flood", "tenant 8"} <= set(texts)


def test_bars_are_as_long_as_their_values() -> None:
    """The longest fills its room; on a logarithmic scale a tenth of it is the same step shorter each time."""

    def lengths(*, log: bool) -> list[float]:
        text = bars("a & b", ("old", "new"), [("x", [1000.0, 100.0]), ("y", [10.0, 0.0])], log=log)
        ElementTree.fromstring(text)
        return [float(width) for width in re.findall(r'<rect x="96".*? width="([\d.]+)"', text)]

    assert lengths(log=False) == [300.0, 30.0, 3.0, 1.0]
    first, second, third, none = lengths(log=True)
    assert first - second == pytest.approx(second - third, abs=0.2)
    assert (first, none) == (300.0, 1.0)


def test_a_simulated_day_serves_all_and_spares_the_small() -> None:
    """`tools/fair_day.py`: each way serves each job once, and in turns a small tenant waits least."""
    found = runpy.run_path(str(HOUSE / "tools" / "fair_day.py"))
    jobs = found["day"](60, 2, 1)
    ways = [found["Fifo"](), found["Priorities"](), found["QueueEach"](2), found["Fair"]()]
    waits = [found["waits"](way, jobs, 2) for way in ways]
    assert [sum(map(len, each.values())) for each in waits] == [len(jobs)] * 4
    fifo, priorities, queue_each, fair = (max(each[59]) for each in waits)
    assert fair < queue_each < fifo <= priorities


@pytest.mark.slow(selected=True)
def test_no_message_is_lost_when_the_broker_is_killed(need_module: Callable[[str, str], None]) -> None:
    """`multiqueue demo broker` kills the broker, and all messages are confirmed and handled."""
    need_module("pamqp", "pamqp is not installed")
    answer = subprocess.run(
        [sys.executable, "-m", "multiqueue", "demo", "broker"],
        env={**os.environ, "COLUMNS": "40", "PYTHONUTF8": "1"},
        cwd=HOUSE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert "1,200 published, 1,200 confirmed, 1,200 handled, 0 lost" in answer.stdout.replace(" \n", " ")
    assert all(len(line) <= 40 for line in answer.stdout.splitlines())
    (up,) = [line for line in answer.stdout.splitlines() if line.startswith("broker up")]
    assert re.search("█[ ▁-▇]+█", up), "the picture shows the outage, on a quick machine as a lower block"


@pytest.mark.slow(selected=True)
def test_what_could_not_be_published_is_not_called_lost(
    need_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`multiqueue demo broker` on a machine that is too slow for it says what it did not do."""
    need_module("pamqp", "pamqp is not installed")
    monkeypatch.setattr("multiqueue.demo._broker._PATIENCE_S", -1.0)
    monkeypatch.setattr("multiqueue.demo._broker._KILLED_AT_S", 0.0)
    result = CliRunner().invoke(main, ["demo", "broker"])
    assert result.exit_code == 1
    assert "0 published, 0 confirmed, 0 handled, 0 lost" in " ".join(result.stdout.split())
    assert "1200 could not be published, 0 were not confirmed, 0 were lost" in result.stderr


def test_the_publisher_ends_with_its_connection(need_module: Callable[[str, str], None]) -> None:
    """Ctrl-C, which ends the broker too, leaves no traceback of the publisher's thread."""
    need_module("pamqp", "pamqp is not installed")
    from multiqueue.client import ConnectionClosed
    from multiqueue.demo._broker import Record, _publish

    class Gone:
        def publish_confirmed(self, *arguments: object, **settings: object) -> None:
            raise ConnectionClosed("the broker was closed")

    record = Record()
    _publish(Gone(), record)  # type: ignore[arg-type]
    assert not record.published


def test_without_java_there_are_other_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`multiqueue demo` without Java names, in its one sentence, the demonstrations that need none."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    result = CliRunner().invoke(main, ["demo", "--dir", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "no java on PATH" in result.stderr
    assert "`multiqueue demo threads`, `fair` and `broker` need no Java" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_pipelines_options_are_not_the_others() -> None:
    """`demo --fresh threads` is a mistake that is told, for `threads` writes nothing that could be forgotten."""
    result = CliRunner().invoke(main, ["demo", "--fresh", "threads"])
    assert result.exit_code == 2
    assert "`demo threads` has no --dir, --fresh, --quick or --table" in result.stderr
