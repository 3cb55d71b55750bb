"""`report.html`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import _svg, ledger_view, render, write_report
from pipeline_support import Pipeline, lane_of, make_tree, write_names

from multiqueue.pipeline import Item, parse_config

EVIL = "<script>alert('x')</script>&"


class Tags(HTMLParser):
    """Checks that every tag is closed, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs), "nothing from elsewhere"
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(tmp_path: Path) -> str:
    make_tree(tmp_path, {EVIL.replace("/", "|"): 12, "eu": 3})

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if item.files[0].path == "eu/0001.txt":
            raise ValueError(EVIL)
        return write_names(spark, item, staged)

    lanes = [lane_of(tmp_path, name) for name in (EVIL.replace("/", "|"), "eu")]
    run = Pipeline(tmp_path, lanes, work=work, attempts=1)
    run.run()
    with ledger_view(run.output / "_multiqueue" / "state.sqlite") as view:
        return render(view, EVIL, {"made": EVIL})


def test_the_page_is_whole_and_stands_alone(tmp_path: Path) -> None:
    """The page has its tables and four plots, every tag closed, nothing loaded, light and dark."""
    page = page_of(tmp_path)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("svg") == 9  # each for a wide page and for a narrow one
    assert "script" not in tags.seen
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert f"ValueError: {EVIL}" in tags.text


def test_the_page_begins_with_the_verdict(tmp_path: Path) -> None:
    """Under the title stand how it went, when it was made, where the output is and by which versions."""
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "a.txt").touch()
    run = Pipeline(tmp_path, [lane_of(tmp_path, "eu")])
    run.run()
    lanes = {"eu": {"files": "eu/*.txt", "format": "text"}}
    values = {"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": str(run.output)}}
    config = parse_config(values, tmp_path, source=str(tmp_path / "orders.toml"))
    tags = Tags()
    tags.feed(write_report(config, "<h2>First</h2>").read_text())
    begin = tags.text[tags.text.rindex("Pipeline orders") : tags.text.index("lanedone")]
    pattern = (
        r"Pipeline ordersAll done: 1 item\.made\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+output"
        + re.escape(str(run.output))
        + r"versionsmultiqueue \S+, Python \S+.*at work\d+ s, all runs togetherFirstLanes"
    )
    assert re.fullmatch(pattern, begin), begin
    assert "Not all done: 14 items done, 1 set aside." in page_of(tmp_path / "other")


def test_names_and_errors_are_told_literally(tmp_path: Path) -> None:
    """Lane names, titles and error texts are shown as they are, never run."""
    assert "<script>" not in page_of(tmp_path)


def test_files_that_were_taken_away_have_a_column(tmp_path: Path) -> None:
    """The table says how many files of each lane were moved or deleted, if any were; else it is a column narrower."""
    make_tree(tmp_path, {"eu": 3, "us": 1})
    run = Pipeline(tmp_path, [lane_of(tmp_path, "eu", after="delete"), lane_of(tmp_path, "us")])
    run.run()
    with ledger_view(run.output / "_multiqueue" / "state.sqlite") as view:
        page = render(view, "orders", {})
    assert "files taken away" in page
    rows = re.findall("<tr.*?</tr>", page)
    assert [row.count("<td") for row in rows[1:4]] == [8, 8, 8]
    assert "<td>3</td>" in rows[1]
    page = page_of(tmp_path / "other")
    assert "files taken away" not in page
    rows = re.findall("<tr.*?</tr>", page)
    assert [row.count("<td") for row in rows[1:4]] == [7, 7, 7]


def test_an_empty_pipeline_has_a_page(tmp_path: Path) -> None:
    """A run that was stopped before anything ended still gives a page."""
    run = Pipeline(tmp_path, [lane_of(tmp_path, "eu")])
    run.run()
    with ledger_view(run.output / "_multiqueue" / "state.sqlite") as view:
        page = render(view, "nothing", {})
    assert page.count("<svg") == 6


def test_steps_reach_their_values() -> None:
    """The highest slice touches the top of the axis when it is a round number, and an empty one lies on the ground."""
    plot = _svg.steps([0, 10], 1.0, "s", "n")
    wide, narrow = re.findall(r'class="area" d="([^"]*)"', plot)
    for path in (wide, narrow):
        heights = {float(point.split()[1]) for point in re.findall(r"[\d.]+ [\d.]+", path)}
        assert heights == {12.0, 184.0}


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (1.01, 1.2), (30, 32), (56, 60), (99, 100), (0.003, 0.0032)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    """An axis ends where its quarters are round."""
    assert _svg._nice(value) == pytest.approx(top)


def test_a_timeline_tells_jobs_apart_by_more_than_colour(tmp_path: Path) -> None:
    """A wait is hollow, a later attempt hatched, a failure has a cross; those at one time stand below each other."""
    bars = [
        _svg.Bar(0.0, 1.0, 3.0, "first", "job", is_bad=False),
        _svg.Bar(0.0, 2.0, 4.0, "beside", "again", is_bad=False),
        _svg.Bar(0.0, 5.0, 6.0, "after", "failed", is_bad=True),
    ]
    wide = _svg.timeline([("acme", bars), ("none", [])], "seconds").split("<svg")[2]
    jobs = re.findall(r'<rect class="(job|again|failed)" x="([\d.]+)" y="(\d+)"', wide)
    assert [style for style, *_ in jobs] == ["job", "again", "failed"]
    assert jobs[0][2] == jobs[2][2] != jobs[1][2]
    assert wide.count('class="wait"') == 3
    assert wide.count('class="cross"') == 1
    crowd = [_svg.Bar(0.0, 0.0, 9.0, "x", "job", is_bad=False)] * 9
    rows = re.findall(r'<rect class="job" x="[\d.]+" y="(\d+)"', _svg.timeline([("acme", crowd)], "s").split("<svg")[2])
    assert len(rows) == 9
    assert len(set(rows)) == 6
