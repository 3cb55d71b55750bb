"""The pages about the pipeline say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import (
    TRANSITIONS,
    FollowSection,
    JobSection,
    LaneSection,
    OutputSection,
    RetrySection,
    SparkSection,
    StateSection,
    StepSection,
    StorageSection,
)
from pydantic import BaseModel

from multiqueue.pipeline import ExitStatus, load_config

DOCS = Path(__file__).parents[2] / "docs"


def table(text: str) -> list[list[str]]:
    """The rows of the first table in the text, without its header, code marks removed."""
    lines = [line for line in text.split("\n\n|", 1)[1].split("\n\n", 1)[0].splitlines() if line.strip("|- ")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## `[spark]`", SparkSection),
        ("## `[lanes.NAME]`", LaneSection),
        ("## `[job]`", JobSection),
        ("## `[steps.NAME]`", StepSection),
        ("## `[output]`", OutputSection),
        ("## `[retry]`", RetrySection),
        ("## `[follow]`", FollowSection),
        ("## `[state]`", StateSection),
        ("## `[storage.NAME]`", StorageSection),
    ],
)
def test_every_key_is_in_the_reference(heading: str, model: type[BaseModel]) -> None:
    """The reference lists each key of a section with its default, in the order of the code, and no other."""
    section = (DOCS / "reference" / "pipeline-toml.md").read_text().split(heading)[1].split("\n## ")[0]
    documented = {row[0]: row[1] for row in table(section)}
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    assert list(documented) == list(fields)
    for key, field in fields.items():
        default: Any = field.get_default(call_default_factory=True)
        if field.is_required():
            assert documented[key] == "required", key
        elif default not in (None, {}, []):
            assert documented[key].strip('"') == str(default), key


def test_the_exit_statuses() -> None:
    """The reference has every exit status by number and name."""
    text = (DOCS / "reference" / "command-line.md").read_text().split("<!-- status")[1]
    assert {int(row[0]): row[1] for row in table(text)} == {
        status.value: status.name.lower().replace("_", " ") for status in ExitStatus
    }


def test_the_states() -> None:
    """The design page draws the table of states as it is."""
    text = (DOCS / "design" / "pipeline.md").read_text().split("<!-- states")[1]
    assert [tuple(row) for row in table(text)] == [
        (state.value, event.value, after.value) for (state, event), after in TRANSITIONS.items()
    ]


def test_the_configurations_in_the_guide_and_the_example(tmp_path: Path) -> None:
    """The configurations that the guide and the example show are valid."""
    guide = (DOCS / "guides" / "pipeline.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 4
    (tmp_path / "pipeline.toml").write_text("\n".join(blocks))
    for name in ("acme", "umbrella"):
        (tmp_path / "inbox" / name).mkdir(parents=True)
    assert [lane.name for lane in load_config(tmp_path / "pipeline.toml").lanes()] == [
        "acme",
        "umbrella",
        "corrections",
        "invoices",
        "orders",
    ]
    assert [step.name for step in load_config(tmp_path / "pipeline.toml").steps()] == ["per_customer", "total"]
    load_config(DOCS.parent / "examples" / "pipeline" / "pipeline.toml")


def test_the_python_in_the_guide_compiles() -> None:
    """The job that the guide shows is Python."""
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "pipeline.md").read_text(), re.DOTALL)
    compile(block, "cleaning.py", "exec")


def test_the_guide_to_the_cluster_shows_the_example() -> None:
    """The configuration in the guide is the example's, and the example is valid."""
    guide = (DOCS / "guides" / "laptop-to-cluster.md").read_text()
    block, part = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    assert part in (DOCS.parent / "examples" / "cluster" / "sales.toml").read_text()
    example = DOCS.parent / "examples" / "pipeline" / "sensors" / "sensors.toml"
    shown = [line for line in example.read_text().splitlines() if not line.startswith("#")]
    assert block.splitlines() == shown
    config = load_config(example)
    assert [lane.name for lane in config.lanes()] == ["north", "south"]
    assert config.on("sc://there").settings.spark.remote == "sc://there"
    assert config.on("sc://there").on("local[4]").settings.spark.remote is None


def test_the_metrics() -> None:
    """The reference has every metric that the file has."""
    text = (DOCS / "reference" / "command-line.md").read_text()
    source = (DOCS.parent / "multiqueue" / "pipeline" / "_tell" / "metrics.py").read_text()
    documented = set(re.findall(r"`multiqueue_pipeline_(\w+)`", text))
    assert documented == set(re.findall(r'_family\(\s*"(\w+)"', source))
