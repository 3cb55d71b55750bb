"""The plan: what a run would do, told without doing anything."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pipeline_parts_support import _plan, _scanner
from pipeline_support import Pipeline, make_tree, write_names

from multiqueue.pipeline import Item, JobError, PipelineConfig, StateMismatch, load_config, parse_config, plan_of
from multiqueue.pipeline.cli import pipeline

TOML = """\
[lanes.big]
files = "big/*.txt"
format = "text"
batch = 4
[lanes.small]
files = "small/*.txt"
format = "text"
batch = 1
priority = -1
[job]
python = "a_module_that_nobody_has:function"
[output]
path = "out"
[steps.totals]
after = ["big", "small"]
sql = "SELECT 1"
[steps.report]
after = "totals"
sql = "SELECT 1"
"""


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    make_tree(tmp_path, {"big": 9, "small": 2})
    (tmp_path / "big" / "_hidden.txt").touch()
    (tmp_path / "p.toml").write_text(TOML)
    return load_config(tmp_path / "p.toml")


def run_of(config: PipelineConfig) -> Pipeline:
    return Pipeline(config.base, config.lanes(), steps=config.steps())


def everything(base: Path) -> dict[str, int]:
    """Every file and when it was written; not SQLite's own beside the state, which come and go with a reader."""
    files = (path for path in base.rglob("*") if path.is_file() and "sqlite-" not in path.name)
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_before_the_first_run(config: PipelineConfig) -> None:
    """The plan has the items that a run makes, in the order in which it submits them, and writes nothing.

    (pipeline 12)
    """
    before = everything(config.base)
    plan = plan_of(config, 100)
    assert everything(config.base) == before
    assert [(lane.lane.name, lane.to_run, lane.new, lane.files) for lane in plan.lanes] == [
        ("small", 2, 2, 2),
        ("big", 3, 3, 9),
    ]
    assert [item.lane for item in plan.first] == ["small", "small", "big", "big", "big"]
    assert [(step.step.name, step.runs, step.why) for step in plan.steps] == [
        ("totals", True, "after big, small"),
        ("report", True, "after totals"),
    ]
    assert len(plan.passed_over) == 1
    run = run_of(config)
    run.run()
    planned = {item.id for item in plan.first}
    assert planned == {item.id for item in run.dispatcher.submitted if item.part is None}


def test_after_a_run(config: PipelineConfig) -> None:
    """What is done is told as done; new and changed files are told apart, with what must be done again for them."""
    run_of(config).run()
    plan = plan_of(config)
    assert plan.to_run == 0
    assert [(step.runs, step.why) for step in plan.steps] == [(False, "up to date")] * 2
    (config.base / "big" / "0000.txt").write_text("changed")
    (config.base / "small" / "new.txt").write_text("new")
    state = everything(config.output)
    plan = plan_of(config)
    assert {lane.lane.name: (lane.new, lane.changed, lane.done) for lane in plan.lanes} == {
        "small": (1, 0, 2),
        "big": (0, 1, 2),
    }
    assert all(step.runs for step in plan.steps)
    assert everything(config.output) == state


def test_after_a_crash(config: PipelineConfig) -> None:
    """What a dead run had submitted is told as the next one would find it."""
    run = run_of(config)
    run.scanner.step(0.0, lambda lane, scanned: None)
    with run.ledger.transaction():
        for item in run.ledger.next_waiting("big", 0.0, 2):
            run.ledger.submit(item)
    run.ledger.close()
    plan = plan_of(config)
    assert {lane.lane.name: (lane.known, lane.new) for lane in plan.lanes} == {"small": (0, 2), "big": (3, 0)}


def test_held_back(config: PipelineConfig) -> None:
    """A step behind items that are set aside is told as held back, and so is what comes after it."""
    run = run_of(config)
    while not run.scanner.finished:
        run.scanner.step(0.0, lambda lane, scanned: None)
    for lane in ("big", "small"):
        for item in run.ledger.next_waiting(lane, 0.0, 99):
            submitted = run.ledger.submit(item)
            if lane == "big":
                run.ledger.succeed(submitted, item.files, 0.0, 1.0)
            else:
                run.ledger.give_up(submitted, "bad", 0.0, 1.0)
    run.ledger.close()
    assert [step.why for step in plan_of(config).steps] == [
        "held back: items of small are set aside",
        "held back: items of totals are set aside",
    ]


def test_a_step_that_was_set_aside(config: PipelineConfig) -> None:
    """A step that failed is told as set aside, and what comes after it as held back."""

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if item.part is not None:
            raise JobError("bad")
        return write_names(spark, item, staged)

    Pipeline(config.base, config.lanes(), steps=config.steps(), work=work).run()
    assert [step.why for step in plan_of(config).steps] == [
        "set aside",
        "held back: items of totals are set aside",
    ]


def test_a_plan_lists_a_part_of_much_input(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan stops after some time and some files, names the lanes that it has not listed to the end, and lists all
    of them when it is asked to. (pipeline 36)"""
    monkeypatch.setattr(_plan, "_LOOK_S", 0.0)
    monkeypatch.setattr(_plan, "_LOOK_FILES", 3)
    monkeypatch.setattr(_scanner, "_SLICE", 2)
    plan = plan_of(config)
    assert plan.unread == ("big", "small")
    assert sum(lane.files for lane in plan.lanes) == 2  # the small lane's; those of the big one fill no batch
    whole = plan_of(config, whole=True)
    assert whole.unread == ()
    assert sum(lane.files for lane in whole.lanes) == 11
    said = CliRunner().invoke(pipeline, ["plan", str(config.base / "p.toml")]).output
    assert "not listed to the end: big, small; the counts are of what was listed, and --whole lists everything" in said


def test_a_plan_of_a_state_of_many_items(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's copy of the state is read in pages, and has files when they are asked for: the plan is the same.

    (pipeline 36)
    """
    run = run_of(config)
    run.run()
    (config.base / "small" / "new.txt").write_text("new")
    (config.base / "big" / "0003.txt").write_text("changed")
    before = plan_of(config, 100)
    monkeypatch.setattr(_plan, "_PAGE", 1)
    assert plan_of(config, 100) == before
    assert {(lane.lane.name, lane.new, lane.changed, lane.done) for lane in before.lanes} == {
        ("small", 1, 0, 2),
        ("big", 0, 1, 2),
    }


def test_a_large_file_that_one_task_reads_is_named(tmp_path: Path) -> None:
    """Where the format of a large file cannot be cut, the plan says so and why; of small files it says nothing.

    (pipeline 33)
    """
    (tmp_path / "in").mkdir()
    for name, size in {"large.json": 1 << 28, "small.json": 10}.items():
        with open(tmp_path / "in" / name, "wb") as stream:
            stream.truncate(size)
    lanes = {
        "json": {"files": "in/l*.json", "format": "json"},
        "lines": {"files": "in/l*.json", "format": "jsonl"},
        "small": {"files": "in/s*.json", "format": "json"},
    }
    values = {"lanes": lanes, "job": {"sql": "SELECT 1 FROM input"}, "output": {"path": "out"}}
    found = {lane.lane.name: lane.whole for lane in plan_of(parse_config(values, tmp_path)).lanes}
    assert found == {
        "json": "'in/large.json' of 268,435,456 bytes is one task, and so are others like it: "
        "with multiLine = true a line's end does not end a record",
        "lines": None,
        "small": None,
    }


def test_the_command(config: PipelineConfig) -> None:
    """`plan` prints lanes, steps and the first items; with --json all of it as one object."""
    path = str(config.base / "p.toml")
    shown = CliRunner().invoke(pipeline, ["plan", path, "--items", "1"])
    assert shown.exit_code == 0
    assert "5 items to run on local[*], 8 at a time; nothing was started" in shown.output
    assert "1. small: small/0000.txt" in shown.output
    assert "and 4 more" in shown.output
    values = json.loads(CliRunner().invoke(pipeline, ["plan", path, "--json"]).output)
    assert values["to_run"] == 5
    assert values["lanes"]["big"] == {
        "priority": 0, "weight": 1, "to_run": 3, "new": 3, "changed": 0, "files": 9,
        "bytes": sum(os.path.getsize(one) for one in (config.base / "big").glob("[0-9]*")), "done": 0, "failed": 0,
            "by": "spark", "batch": 4, "files_per_item": 4, "columns": None, "after": "keep", "rate": None,
            "one_task": None,
    }  # fmt: skip
    assert values["steps"]["report"] == {"after": ["totals"], "each_lane": False, "runs": True, "why": "after totals"}
    assert not config.output.exists()


def test_a_queue_is_not_asked(tmp_path: Path) -> None:
    """Of a lane that is fed from a queue the plan says that it does not know what is there; no broker is needed."""
    (tmp_path / "p.toml").write_text(
        '[lanes.orders]\nsource = "amqp://nowhere.invalid/%2F/orders"\nformat = "message"\n'
        '[job]\nsql = "SELECT * FROM input"\n[output]\npath = "out"\n'
    )
    shown = CliRunner().invoke(pipeline, ["plan", str(tmp_path / "p.toml")])
    assert shown.output.startswith("0 items to run")
    assert "orders will also take what its queue has then: a plan asks no broker" in shown.output


def test_something_else_where_the_state_should_be(config: PipelineConfig) -> None:
    """A state that is no state of ours is one sentence."""
    config.state.path.parent.mkdir(parents=True)
    shutil.copy(config.base / "p.toml", config.state.path)
    with pytest.raises(StateMismatch, match="is not a state of ours"):
        plan_of(config)
