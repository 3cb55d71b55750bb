"""The guides and examples of the client run, and print what they say."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from client_parts_support import TABLE, Happening, State

HOUSE = Path(__file__).parents[2]
GUIDES = HOUSE / "docs" / "guides"
EXAMPLES = sorted(HOUSE.glob("examples/client_*.py"))
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def code_of(guide: str) -> str:
    text = (GUIDES / guide).read_text()
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each `print` in an example has beside it what it prints, and that is what it prints."""
    expected = PRINTED.findall(example.read_text())
    assert expected
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("guide", ["rabbitmq-threading.md", "moving-to-rabbitmq.md"])
def test_a_guide_prints_what_it_says(
    guide: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces of a guide, one after the other, are a program that does what the guide says."""
    monkeypatch.delenv("BROKER_URL", raising=False)
    code = code_of(guide)
    names = {"__name__": "__main__"}
    exec(compile(code, guide, "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == PRINTED.findall(code)


@pytest.mark.slow(selected=True)
def test_the_suite_of_the_guide_passes(tmp_path: Path, need_module: Callable[[str, str], None]) -> None:
    """The guide to a broker in tests is a suite that pytest runs, and so is README.md's test."""
    need_module("pika", "pika is not installed: pip install pika")
    (tmp_path / "test_orders.py").write_text(code_of("broker-in-tests.md"))
    found = re.findall(r"```python\n(.*?)```", (HOUSE / "README.md").read_text(), flags=re.DOTALL)
    (block,) = (block for block in found if "multiqueue_broker" in block)
    (tmp_path / "test_readme.py").write_text(block)
    from importlib.metadata import entry_points

    is_installed = any(point.value == "multiqueue.pytest_plugin" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "multiqueue.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_the_table_of_the_design_is_the_table_of_the_code() -> None:
    """docs/design/client.md shows every step, and no other."""
    text = (HOUSE / "docs" / "design" / "client.md").read_text()
    shown = {}
    for row in re.findall(r"^\| ([A-Z]+) \|(.*)\|$", text, flags=re.MULTILINE):
        shown[row[0]] = [cell.strip() for cell in row[1].split("|")]
    happenings = [Happening.OPENED, Happening.LOST, Happening.CLOSE, Happening.ENDED]
    for state in State:
        steps = [TABLE[state].get(happening) for happening in happenings]
        assert shown[state.name] == ["" if step is None else step.name for step in steps]
