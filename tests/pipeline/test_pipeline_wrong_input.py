"""What is mistyped on the command line is told, and not taken for nothing to do."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from pipeline_support import Pipeline, make_tree

from multiqueue.pipeline import Unprepared, load_config
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
