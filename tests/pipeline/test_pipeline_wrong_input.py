"""What is mistyped on the command line is told, and not taken for nothing to do."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pipeline_parts_support import output_of, work_of
from pipeline_support import Pipeline, make_tree

from multiqueue.cli import main
from multiqueue.demo.cli import demo
from multiqueue.pipeline import ConfigError, Item, Unprepared, load_config, parse_config
from multiqueue.pipeline.cli import pipeline

TOML = """\
[lanes.small]
files = "small/*.txt"
format = "text"
[job]
sql = "SELECT 1"
[output]
path = "out"
"""


def test_retry_of_a_lane_that_is_none(tmp_path: Path) -> None:
    """`retry --lane` with a name that no lane has is an error that says which there are; with a lane's it puts back."""
    make_tree(tmp_path, {"small": 2})
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    config = load_config(path)
    Pipeline(config.base, config.lanes()).run()
    mistyped = CliRunner().invoke(pipeline, ["retry", str(path), "--lane", "smal"])
    assert isinstance(mistyped.exception, Unprepared)
    assert str(mistyped.exception) == "no lane 'smal' has run here; there are small"
    right = CliRunner().invoke(pipeline, ["retry", str(path), "--lane", "small"])
    assert right.output.startswith("0 items put back")


def fail(spark: Any, item: Item, staged: Path) -> bool:
    raise ValueError(item.path)


def test_retry_of_a_file_that_was_deleted(tmp_path: Path) -> None:
    """A failed item whose file the user has deleted is forgotten, and `retry` says so."""
    make_tree(tmp_path, {"small": 2})
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    config = load_config(path)
    Pipeline(config.base, config.lanes(), work=fail, attempts=1).run()
    (tmp_path / "small" / "0000.txt").unlink()
    first = CliRunner().invoke(pipeline, ["retry", str(path)])
    assert first.output.startswith("1 item forgotten: no file of it is left\n1 item put back")
    assert CliRunner().invoke(pipeline, ["retry", str(path)]).output.startswith("0 items put back")


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("below", ["", "/deep/er"])
def test_an_output_that_cannot_be(tmp_path: Path, command: str, below: str) -> None:
    """An output in whose place a file is, is told by `plan` as by `run`, with the place and the key."""
    make_tree(tmp_path, {"small": 1})
    (tmp_path / "out").touch()
    path = tmp_path / "p.toml"
    path.write_text(TOML.replace('"out"', f'"out{below}"'))
    asked = CliRunner().invoke(pipeline, [command, str(path)])
    assert isinstance(asked.exception, Unprepared)
    assert str(asked.exception) == (
        f"cannot write the output '{tmp_path}/out{below}': '{tmp_path}/out' is a file; choose another [output] path"
    )


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system in which root makes no file")
def test_an_output_that_cannot_be_written(tmp_path: Path, command: str) -> None:
    """Where nobody can write, `plan` says so as `run` does, also to root, and leaves nothing where it has tried."""
    make_tree(tmp_path, {"small": 1})
    path = tmp_path / "p.toml"
    path.write_text(TOML.replace('"out"', '"/proc/o"'))
    asked = CliRunner().invoke(pipeline, [command, str(path)])
    assert str(asked.exception) == (
        "cannot write the output '/proc/o': '/proc' is not writable; choose another [output] path"
    )
    path.write_text(TOML)
    assert CliRunner().invoke(pipeline, ["plan", str(path)]).exit_code == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["p.toml", "small"]


def test_two_places_for_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SPARK_REMOTE in the environment and a master in the file a run says that these exclude each other, with
    status 2, and as a document too. (pipeline 25)"""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("SPARK_REMOTE", "sc://here:1")
    make_tree(tmp_path, {"small": 1})
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    said = (
        "SPARK_REMOTE is set to 'sc://here:1', and the pipeline is to run on 'local[*]': unset SPARK_REMOTE, "
        'or say --on sc://here:1 or remote = "sc://here:1" in [spark]'
    )
    asked = CliRunner().invoke(main, ["pipeline", "run", str(path), "--json"])
    told = json.loads(asked.stdout)
    assert (asked.exit_code, told["status"], told["sentence"]) == (2, 2, said)


@pytest.mark.parametrize("as_json", [False, True])
def test_what_nobody_foresaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """An error that is a bug of ours ends with its traceback and a status that schedulers try again, not with that for
    items that are set aside; with `--json` there is a document. (pipeline 25)"""
    path = tmp_path / "p.toml"
    path.write_text(TOML)

    def broken(*arguments: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("multiqueue.pipeline.cli.load_config", broken)
    asked = CliRunner().invoke(main, ["pipeline", "run", str(path), *(["--json"] if as_json else [])])
    assert asked.exit_code == 3
    assert "Traceback (most recent call last)" in asked.stderr
    assert [json.loads(line)["status"] for line in asked.stdout.splitlines()] == ([3] if as_json else [])
    for command in ("plan", "status", "redo"):
        assert CliRunner().invoke(main, ["pipeline", command, str(path)]).exit_code == 3
    assert CliRunner().invoke(main, ["pipeline", "run", "--no-such-option"]).exit_code == 2


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_first_run_without_input(tmp_path: Path, command: str) -> None:
    """A first run that finds no file leaves nothing behind, so that `status` does not say that it has run.

    (pipeline 15)
    """
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    asked = CliRunner().invoke(pipeline, [command, str(path)])
    assert isinstance(asked.exception, ConfigError)
    assert list(tmp_path.iterdir()) == [path]


def test_a_demo_without_a_place(tmp_path: Path) -> None:
    """A directory in which the demo cannot write is an error that names --dir, and comes before anything is said."""
    (tmp_path / "file").touch()
    asked = CliRunner().invoke(demo, ["--dir", str(tmp_path / "file" / "demo")])
    assert isinstance(asked.exception, Unprepared)
    assert str(asked.exception) == f"cannot write into '{tmp_path}/file/demo': Not a directory; choose another --dir"
    assert asked.output == ""


@pytest.mark.parametrize("command", ["run", "plan", "status", "retry"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "{path}: cannot be read: No such file or directory"),
        (b"x = [", "{path}: end of document: not TOML: "),
        (b"\xff\xfe", "{path}: not UTF-8, as TOML must be (byte 0)"),
        (TOML.replace("path", "pfad").encode(), "{path}:7: output.pfad: unknown key; known are "),
    ],
)
def test_a_configuration_that_is_none(tmp_path: Path, command: str, content: bytes | None, said: str) -> None:
    """Every command says of a file that is missing, broken or mistyped what is wrong and where, with status 2."""
    path = tmp_path / "p.toml"
    if content is not None:
        path.write_bytes(content)
    asked = CliRunner().invoke(pipeline, [command, str(path)])
    assert asked.exception is not None
    assert getattr(asked.exception, "exit_status", None) == 2
    assert said.format(path=path) in str(asked.exception)


def test_an_empty_url(tmp_path: Path) -> None:
    """An empty --on or master, as of a variable that is not set, is an error and does not mean this machine."""
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    asked = CliRunner().invoke(pipeline, ["run", str(path), "--on", ""])
    assert isinstance(asked.exception, ConfigError)
    assert str(asked.exception).startswith("--on is empty; it takes a URL")
    path.write_text(f'{TOML}[spark]\nmaster = ""\n')
    with pytest.raises(ConfigError, match=r"p\.toml:9: spark\.master: must not be empty"):
        load_config(path)


@pytest.mark.parametrize(("arguments", "fits"), [("spark, frame, item", True), ("frame, item", False), ("*all", True)])
def test_a_function_of_other_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, fits: bool
) -> None:
    """A job that cannot be called with what it will be called with is told before Spark starts, not once per item."""
    module = f"wrong_input_{len(arguments)}"
    (tmp_path / f"{module}.py").write_text(f"def job({arguments}): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    values = {"lanes": {"a": {"files": "*", "format": "text"}}, "output": {"path": "out"}}
    config = parse_config({**values, "job": {"python": f"{module}:job"}}, tmp_path)
    if fits:
        work_of(config, config.lanes(), output_of(config))
    else:
        with pytest.raises(ConfigError, match=r"job\.python: .*:job is called as \(spark, frame, item\), which "):
            work_of(config, config.lanes(), output_of(config))


@pytest.mark.parametrize("command", ["plan", "run", "status", "retry"])
def test_a_state_that_cannot_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A state in a directory that refuses is told with what to do, and status 2, and is not taken for none."""
    make_tree(tmp_path, {"small": 1})
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    stat = os.stat

    def refused(path: Any, **others: Any) -> os.stat_result:
        if str(path).endswith("state.sqlite"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, **others)

    monkeypatch.setattr(os, "stat", refused)
    asked = CliRunner().invoke(pipeline, [command, str(path)])
    assert isinstance(asked.exception, Unprepared)
    assert str(asked.exception) == (
        f"cannot read the state '{tmp_path}/out/_multiqueue/state.sqlite': Permission denied; "
        "run as its owner, or make its directory readable"
    )
