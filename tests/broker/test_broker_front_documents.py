"""The guide and the examples of the broker run, and print what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from multiqueue.broker import known_queue_kinds, unregister_queue_kind

HOUSE = Path(__file__).parents[2]
GUIDES = [
    HOUSE / "docs" / "guides" / f"{name}.md" for name in ("in-process-broker", "bounded-memory", "own-queue-kind")
]
EXAMPLES = sorted(HOUSE.glob("examples/broker_*.py"))
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each `print` in an example has beside it what it prints, and that is what it prints."""
    expected = PRINTED.findall(example.read_text())
    assert expected
    before = set(known_queue_kinds())
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        for kind in set(known_queue_kinds()) - before:
            unregister_queue_kind(kind)
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_prints_what_it_says(guide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pieces of a guide, one after the other, are a program that does what the guide says."""
    before = set(known_queue_kinds())
    code = "\n".join(re.findall(r"```python\n(.*?)```", guide.read_text(), flags=re.DOTALL))
    try:
        exec(compile(code, str(guide), "exec"), {"__name__": "__main__"})
    finally:
        for kind in set(known_queue_kinds()) - before:
            unregister_queue_kind(kind)
    assert capsys.readouterr().out.splitlines() == PRINTED.findall(code)


def test_there_is_an_example_for_every_kind_of_use() -> None:
    """Priorities, browsing, groups, dead letters, and a slow consumer beside a fast one."""
    topics = ("priorities", "browsing", "message_groups", "dead_letters", "slow_and_fast")
    assert {path.stem for path in EXAMPLES} >= {f"broker_{topic}" for topic in topics}
