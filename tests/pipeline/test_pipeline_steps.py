"""Steps: jobs that wait for the items they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Places, Step, StopRequested
from pipeline_support import Pipeline, lane_of, make_tree, rows_in, write_names

from multiqueue.pipeline import ConfigError, Item, JobError, load_config

LANES = {"big": 9, "small": 2}
TOTALS = Step("totals", ("in",))
DAILY = Step("daily", ("in",), each_lane=True)
WEEKLY = Step("weekly", ("daily",), each_lane=True)
REPORT = Step("report", ("daily", "totals"))


def pipeline(base: Path, *steps: Step, lanes: dict[str, int] = LANES, **settings: Any) -> Pipeline:
    return Pipeline(base, [lane_of(base, name, section="in") for name in lanes], steps=steps, **settings)


def order(run: Pipeline) -> list[str]:
    """What ran, in order: lanes by name, items of steps with their part."""
    return [item.lane if item.part is None else f"{item.lane}/{item.part}" for item in run.dispatcher.submitted]


def test_a_step_runs_once_after_everything(tmp_path: Path) -> None:
    """A step is one item that runs when the last item of the lanes before it is done (pipeline 9)."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, TOTALS)
    snapshot = run.run()
    assert order(run)[-1] == "totals/"
    assert len(run.dispatcher.submitted) == 12
    assert {lane.lane: lane.done for lane in snapshot.lanes} == {"big": 9, "small": 2, "totals": 1}
    assert rows_in(run.output, "steps") == ["totals"]


def test_a_step_for_each_lane_waits_for_that_lane_alone(tmp_path: Path) -> None:
    """The step of a small lane runs while a big one goes on, and what comes after it in that lane as well."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, DAILY, WEEKLY)
    run.run()
    ran = order(run)
    assert ran.index("daily/small") < ran.index("weekly/small") < len(ran) - 2
    assert ran.index("daily/big") > max(place for place, name in enumerate(ran) if name == "big")
    assert rows_in(run.output, "steps") == ["daily big", "daily small", "weekly big", "weekly small"]
    assert (tmp_path / "out" / "steps" / "daily" / "lane=small").is_dir()


def test_a_graph_in_order(tmp_path: Path) -> None:
    """A step after two steps runs when both are complete, whichever way they are given."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, DAILY, TOTALS, REPORT)
    run.run()
    assert order(run)[-1] == "report/"
    assert sorted(order(run)[11:]) == ["daily/big", "daily/small", "report/", "totals/"]


def test_nothing_new_nothing_to_do(tmp_path: Path) -> None:
    """A second run over the same files runs no step again."""
    make_tree(tmp_path, LANES)
    pipeline(tmp_path, DAILY, TOTALS, REPORT).run()
    again = pipeline(tmp_path, DAILY, TOTALS, REPORT)
    again.run()
    assert again.dispatcher.submitted == []


@pytest.mark.parametrize("what", ["new", "changed"])
def test_a_step_runs_again_for_what_is_new(tmp_path: Path, what: str) -> None:
    """A new or changed file makes exactly the steps behind it run again, once each; their output is replaced.

    (pipeline 9)
    """
    make_tree(tmp_path, LANES)
    pipeline(tmp_path, DAILY, WEEKLY, TOTALS).run()
    (tmp_path / "small" / ("9999.txt" if what == "new" else "0001.txt")).write_text("something else")
    again = pipeline(tmp_path, DAILY, WEEKLY, TOTALS)
    again.run()
    assert order(again)[0] == "small"
    assert sorted(order(again)[1:]) == ["daily/small", "totals/", "weekly/small"]
    assert rows_in(again.output, "steps") == ["daily big", "daily small", "totals", "weekly big", "weekly small"]


def failing(*names: str) -> Any:
    def work(spark: Any, item: Item, staged: Path) -> bool:
        if any(item.name.endswith(name) for name in names) or item.lane in names:
            raise JobError("bad")
        return write_names(spark, item, staged)

    return work


def test_a_step_is_held_back_by_what_failed(tmp_path: Path) -> None:
    """Where an item was set aside, steps behind it do not run, and the run says why; those beside it do.

    (pipeline 9)
    """
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, DAILY, WEEKLY, TOTALS, work=failing("big/0003.txt"))
    run.run()
    assert rows_in(run.output, "steps") == ["daily small", "weekly small"]
    assert run.held_back == [
        f"step {name!r} was held back: items of 'big' are set aside; put them back with `retry`, or set allow_failed"
        for name in ("daily", "totals")
    ]


def test_a_step_that_failed_holds_back_the_next(tmp_path: Path) -> None:
    """A step that was set aside is as an item that was; once it is put back and done, the rest follows."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, TOTALS, Step("report", ("totals",)), work=failing("totals"))
    assert run.run().total.failed == 1
    assert "report/" not in order(run)
    again = pipeline(tmp_path, TOTALS, Step("report", ("totals",)))
    with again.ledger.transaction():
        assert again.ledger.put_back_failed() == 1
    again.runner._tally = type(again.runner._tally).of([*LANES, "totals", "report"], again.ledger.counts())
    again.run()
    assert order(again) == ["totals/", "report/"]


def test_a_step_that_takes_what_there_is(tmp_path: Path) -> None:
    """With `allow_failed` a step runs over the items that are done."""
    make_tree(tmp_path, LANES)
    run = pipeline(tmp_path, Step("totals", ("in",), allow_failed=True), work=failing("big/0003.txt"))
    run.run()
    assert rows_in(run.output, "steps") == ["totals"]


def test_stopped_before_the_step(tmp_path: Path) -> None:
    """A run that is stopped leaves the step to the next one."""
    make_tree(tmp_path, LANES)

    def stop(run: Pipeline) -> None:
        if len(run.reporter.attempts) == 6:
            run.mailbox.post(StopRequested())

    run = pipeline(tmp_path, TOTALS, on_idle=stop)
    run.run()
    assert "totals/" not in order(run)
    again = pipeline(tmp_path, TOTALS)
    again.run()
    assert order(again)[-1] == "totals/"


def test_where_the_rows_of_a_step_lie(tmp_path: Path) -> None:
    """A step has a directory beside `data`, by lane if its items are, and says which columns the directories add."""
    places = Places(tmp_path)
    make_tree(tmp_path, {"eu": 1})
    run = pipeline(tmp_path, DAILY, TOTALS, lanes={"eu": 1})
    run.run()
    lanes = {item.lane: item for item in run.dispatcher.submitted}
    assert places.of_item(lanes["daily"]).parent == tmp_path / "steps" / "daily" / "lane=eu"
    assert places.of_item(lanes["totals"]).parent == tmp_path / "steps" / "totals"
    assert places.directories(lanes["totals"]) == ("item",)
    assert places.directories(lanes["daily"]) == ("lane", "item")
    (marker,) = (run.output / "steps" / "totals").rglob("_item.json")
    assert json.loads(marker.read_text())["lane"] == "totals"


TOML = """\
[lanes.eu]
files = "eu/*.csv"
format = "csv"
[job]
sql = "SELECT * FROM input"
[output]
path = "out"
[steps.daily]
after = "eu"
sql = "SELECT 1"
[steps.total]
after = ["daily", "eu"]
sql = "SELECT 1"
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('after = "eu"', 'after = "totl"', "9: steps.daily.after: there is no lane or step 'totl'; did you mean"),
        ('after = "eu"', 'after = "xyz"', "9: steps.daily.after: there is no lane or step 'xyz'; known are eu, total"),
        ('after = "eu"', 'after = "daily"', "9: steps.daily.after: step 'daily' cannot come after itself"),
        ('after = "eu"', 'after = "total"', "each waits for the next for ever: "),
        ('after = "eu"', "after = []", "9: steps.daily.after: must not be empty"),
        ("[steps.daily]", "[steps.eu]", "8: steps.eu: there is a lane 'eu' already; rename the step"),
        ('after = ["daily", "eu"]', 'after = ["daily", "eu"]\neach_lane = true', "13: steps.total.each_lane: a step"),
        ('after = ["daily", "eu"]', 'after = "daily"\neach_lane = true', "13: steps.total.each_lane: step 'daily'"),
        ('after = "eu"', 'after = "eu"\nschemas = { us = "a INT" }', "10: steps.daily.schemas.us: 'us' is not in"),
        ('after = "eu"\nsql = "SELECT 1"', 'after = "eu"', "8: steps.daily: give either sql"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_graph(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    """Names that no step or lane has, cycles and the like are told with the file, the line and the key."""
    path = tmp_path / "p.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:")
    assert complaint in str(caught.value)


def test_a_cycle_is_told_in_full(tmp_path: Path) -> None:
    """The message about a cycle names each step in it."""
    path = tmp_path / "p.toml"
    path.write_text(TOML.replace('after = "eu"', 'after = "total"'))
    with pytest.raises(ConfigError, match=r"(daily -> total -> daily|total -> daily -> total)$"):
        load_config(path)


def test_steps_in_order(tmp_path: Path) -> None:
    """The configuration gives its steps so that each comes after those that it needs."""
    path = tmp_path / "p.toml"
    head, daily, total = TOML.partition("[steps.daily]")[0], *TOML.split("[steps.")[1:]
    path.write_text(f"{head}[steps.{total}[steps.{daily}")
    assert [step.name for step in load_config(path).steps()] == ["daily", "total"]


def test_what_is_done_is_not_read_again_for_each_item_of_another_lane(tmp_path: Path) -> None:
    """While a lane goes on, the step of another lane that is done is left alone: looking costs what has changed."""
    make_tree(tmp_path, {"big": 40, "small": 5})
    run = pipeline(tmp_path, DAILY, TOTALS, lanes={"big": 40, "small": 5})
    reads: list[str] = []
    done_of = run.ledger.done_of

    def counted(lane: str, part: str | None = None) -> Any:
        reads.append(lane)
        return done_of(lane, part)

    run.ledger.done_of = counted  # type: ignore[method-assign]
    run.run()
    assert reads.count("small") <= 4
    assert reads.count("big") <= 4
