"""Input that is missing or cannot be read is told, and a run does not say done of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pipeline_parts_support import StopRequested
from pipeline_support import Pipeline, Recorder, make_tree, no_spark, rows_in

from multiqueue.cli import main
from multiqueue.pipeline import (
    ConfigError,
    PipelineConfig,
    RunResult,
    StateMismatch,
    load_config,
    plan_of,
    run_pipeline,
)

TOML = """\
[lanes.big]
files = "big/*.txt"
format = "text"
batch = 1
[lanes.small]
files = ["small/*.txt", "small/**/*.log"]
format = "text"
batch = 1
[lanes.customers]
directories = "inbox/*"
files = "*.txt"
format = "text"
batch = 1
[job]
sql = "SELECT 1"
[steps.totals]
after = ["big", "small", "customers"]
sql = "SELECT 1"
[output]
path = "out"
"""

LANES = {"big": 3, "small": 2, "inbox/acme": 2, "inbox/umbrella": 1}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A pipeline that was run: everything is done."""
    make_tree(tmp_path, LANES)
    (tmp_path / "p.toml").write_text(TOML)
    once(tmp_path)
    return tmp_path


def config_of(base: Path) -> PipelineConfig:
    return load_config(base / "p.toml")


def once(base: Path) -> Pipeline:
    """Do what there is to do, without Spark."""
    config = config_of(base)
    run = Pipeline(config.base, config.lanes(), steps=config.steps())
    run.run()
    return run


def again(base: Path) -> tuple[RunResult, Recorder]:
    """The same command, when there is nothing to do on Spark."""
    reporter = Recorder()
    return run_pipeline(config_of(base), reporter, session=no_spark), reporter


def lost(base: Path) -> list[str]:
    """Why input is not whole, as `run` and `plan` say alike; with status 2 if anything is."""
    result, reporter = again(base)
    assert int(result.status) == (2 if result.lost else 0)
    assert set(result.lost) <= set(reporter.notes)
    planned = CliRunner().invoke(main, ["pipeline", "plan", str(base / "p.toml"), "--json"])
    assert planned.exit_code == int(result.status)
    assert json.loads(planned.output)["lost"] == list(result.lost)
    return list(result.lost)


def allow_empty(base: Path) -> None:
    text = (base / "p.toml").read_text()
    (base / "p.toml").write_text(text.replace('format = "text"', 'format = "text"\nallow_empty = true'))


def test_nothing_is_lost(base: Path) -> None:
    """A lane that never had a file is no loss, neither are some files of a lane."""
    (base / "big" / "0000.txt").unlink()
    (base / "none").mkdir()
    (base / "p.toml").write_text(TOML + '[lanes.new]\nfiles = "none/*"\nformat = "text"\n')
    assert lost(base) == []


def test_files_that_are_gone(base: Path) -> None:
    """A lane that had files and has none now is told, and may be allowed to be empty (pipeline 14)."""
    for file in (base / "big").iterdir():
        file.unlink()
    assert lost(base) == [
        "lane 'big' had files, and none matches 'big/*.txt' now; "
        "bring it back, correct the configuration, or set allow_empty = true"
    ]
    allow_empty(base)
    assert lost(base) == []


def test_a_directory_that_is_gone(base: Path) -> None:
    """A directory in which a glob starts and that does not exist is told, also on a first run (pipeline 14)."""
    shutil.rmtree(base / "small")
    (said,) = lost(base)
    assert said.startswith(f"lane 'small': '{base}/small' does not exist; bring it back, correct the ")
    shutil.rmtree(base / "out")
    assert any(f"lane 'small': '{base}/small' does not exist" in one for one in plan_of(config_of(base)).lost)
    allow_empty(base)
    assert plan_of(config_of(base)).lost == []


def test_a_file_that_is_named_and_gone(base: Path) -> None:
    """A glob without wildcards names a file: that it does not exist is told, also when the lane has other files."""
    text = TOML.replace('"big/*.txt"', '["big/0000.txt", "big/0009.txt"]')
    (base / "p.toml").write_text(text)
    (said,) = lost(base)
    assert said.startswith(f"lane 'big': '{base}/big/0009.txt' does not exist; ")


def test_directories_that_are_gone(base: Path) -> None:
    """A directory that was a lane and is gone is told by its section, as are directories that are all gone."""
    shutil.rmtree(base / "inbox" / "acme")
    (said,) = lost(base)
    assert said.startswith(
        "lanes.customers.directories: the directory of 'acme' had files and is gone; bring it back, "
    )
    shutil.rmtree(base / "inbox" / "umbrella")
    (said,) = lost(base)
    assert said.startswith("lanes.customers.directories: the directory of 'acme' and 1 more had files and is gone; ")
    (base / "inbox").rmdir()
    (said,) = lost(base)
    assert said.startswith(f"lanes.customers.directories: '{base}/inbox' does not exist; ")
    allow_empty(base)
    assert plan_of(config_of(base)).lost == []


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("big", "lane 'big': cannot read '{base}/big': directory not readable (Permission denied)"),
        ("small/deep", "lane 'small': cannot read '{base}/small/deep': directory not readable (Permission denied)"),
        (
            "inbox",
            "lanes.customers.directories: cannot read '{base}/inbox': directory not readable (Permission denied)",
        ),
        ("inbox/acme", "lane 'acme': cannot read '{base}/inbox/acme': directory not readable (Permission denied)"),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_a_directory_that_refuses(
    base: Path, monkeypatch: pytest.MonkeyPatch, refused: str, said: str, allowed: bool
) -> None:
    """A directory that cannot be listed is told, at the root of a glob, in its middle and as that of lanes, and never
    taken for an empty one."""
    (base / "small" / "deep").mkdir(exist_ok=True)
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if str(path) == str(base / refused):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    if allowed:
        allow_empty(base)
    assert said.format(base=base) in lost(base)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("nowhere"), "'big/x.txt': a link to nothing"),
        (lambda path: path.symlink_to("x.txt"), "{base}/big/x.txt': not readable (Too many levels of symbolic links)"),
        (os.mkfifo, "'big/x.txt': not a file but a pipe, a socket or a device"),
    ],
)
def test_a_file_that_is_none(base: Path, make: Any, said: str) -> None:
    """Something that matches and cannot be read as a file is told; excluded it is not."""
    make(base / "big" / "x.txt")
    (sentence,) = lost(base)
    assert said.format(base=base) in sentence
    (base / "p.toml").write_text(TOML.replace('files = "big/*.txt"', 'files = "big/*.txt"\nexclude = "x*"'))
    assert lost(base) == []


def test_a_directory_that_became_a_file(base: Path) -> None:
    """A file in the place of a directory cannot be listed, and is told."""
    shutil.rmtree(base / "big")
    (base / "big").touch()
    (said,) = lost(base)
    assert said == f"lane 'big': cannot read '{base}/big': directory not readable (Not a directory)"


def test_what_waits_of_a_lost_lane_is_kept(base: Path) -> None:
    """Items of a lane whose files are gone wait until they are back, instead of being set aside; the other lanes are
    done, and steps behind the lost lane are held back.

    (pipeline 14)
    """
    make_tree(base, {"big": 6, "small": 4})
    config = config_of(base)

    def stop(run: Pipeline) -> None:
        run.mailbox.post(StopRequested())

    Pipeline(config.base, config.lanes(), steps=config.steps(), on_idle=stop).run()
    os.rename(base / "big", base / "unmounted")
    (base / "big").mkdir()
    run = once(base)
    assert {item.lane for item in run.dispatcher.submitted} == {"small"}
    progress = {lane.lane: lane for lane in run.runner._snapshot().lanes}
    assert progress["big"].waiting > 0
    assert (progress["big"].failed, progress["small"].waiting) == (0, 0)
    assert run.held_back == ["step 'totals' was held back: the input of 'big' is not whole"]
    (base / "big").rmdir()
    os.rename(base / "unmounted", base / "big")
    run = once(base)
    assert run.held_back == []
    assert run.runner._snapshot().total.waiting == 0
    assert len([row for row in rows_in(base / "out") if row.startswith("big-")]) == 6


def test_plan_refuses_what_run_refuses(tmp_path: Path) -> None:
    """A first run without any file, and results that the state knows nothing of, are the same error to `plan`."""
    (tmp_path / "p.toml").write_text(TOML)
    for attempt in (lambda: plan_of(config_of(tmp_path)), lambda: again(tmp_path)):
        with pytest.raises(ConfigError, match="no input files below"):
            attempt()
    make_tree(tmp_path, LANES)
    (tmp_path / "out" / "data" / "lane=old").mkdir(parents=True)
    for attempt in (lambda: plan_of(config_of(tmp_path)), lambda: again(tmp_path)):
        with pytest.raises(StateMismatch, match="has results that are not in the state"):
            attempt()


def test_what_the_command_says(base: Path) -> None:
    """The last line of a run names what is lost, and its status is 2 (pipeline 14)."""
    shutil.rmtree(base / "big")
    asked = CliRunner().invoke(main, ["pipeline", "run", str(base / "p.toml")])
    assert asked.exit_code == 2
    assert (
        f"not all input was read: 9 items done; lane 'big': '{base}/big' does not exist; bring it back" in asked.output
    )
    asked = CliRunner().invoke(main, ["pipeline", "run", str(base / "p.toml"), "--json"])
    result = json.loads(asked.stdout)
    assert (result["status"], len(result["missing"])) == (2, 1)


def test_the_plan_holds_steps_back_too(base: Path) -> None:
    """`plan` says of a step behind a lost lane that a run holds it back, also where others of its lanes have items."""
    (base / "big" / "x.txt").symlink_to("nowhere")
    make_tree(base, {"small": 4})
    (step,) = plan_of(config_of(base)).steps
    assert (step.runs, step.why) == (False, "held back: the input of 'big' is not whole")
