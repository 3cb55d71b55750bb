"""What is mistyped on the command line is told, and not taken for nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pipeline_support import Pipeline, make_tree

from multiqueue.pipeline import Unprepared, load_config
from multiqueue.pipeline.cli import demo, pipeline

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
