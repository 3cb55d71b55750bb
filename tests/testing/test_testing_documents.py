"""The guide and the examples of the test tools run, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

HOUSE = Path(__file__).parent.parent.parent


def run_example(name: str) -> list[str]:
    """What an example prints, line by line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(HOUSE / "examples" / name), run_name="__main__")
    return printed.getvalue().splitlines()


def test_the_guide_runs() -> None:
    """The code of the guide runs from top to bottom and prints what the comments beside each print say."""
    text = (HOUSE / "docs" / "guides" / "testing-concurrent-code.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "testing-concurrent-code.md", "exec"), {"__name__": "guide"})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    assert printed.getvalue().splitlines() == expected


def test_the_race_of_the_example_is_found() -> None:
    """The example shows the schedule that overdraws the account, and that the remedy holds."""
    printed = run_example("testing_every_order.py")
    assert printed[0] == "AssertionError: overdrawn: -40"
    assert printed[-1] == "the careful one holds in all 2 orders"


def test_the_example_shows_what_an_interruption_leaves() -> None:
    """The example counts the points at which `queue.Queue` stays locked, and finds none for ours."""
    printed = run_example("testing_interrupted_anywhere.py")
    assert re.fullmatch(r"queue\.Queue: [1-9]\d* of \d+ interruptions leave it locked", printed[-2])
    assert re.fullmatch(r"multiqueue\.Queue: 0 of \d+", printed[-1])
