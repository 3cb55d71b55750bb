"""The guide on monitoring is true: its program runs, and prints what the comments beside each print say."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "monitoring.md"


def test_the_guides_program_runs() -> None:
    """The Python in the guide runs as it stands."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL))
    assert code
    printed = io.StringIO()
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(GUIDE), "exec"), {"__name__": "__main__"})
    finally:
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
    said = [line for line in printed.getvalue().splitlines() if not line.startswith("orders: [")]  # of progress
    assert said == re.findall(r"print\(.*\)  # (.*)", code)
