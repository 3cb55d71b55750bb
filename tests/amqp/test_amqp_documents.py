"""The guides of the server run, and print what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.parametrize(("guide", "client"), [("broker-server", "pika"), ("celery-and-kombu", "celery")])
def test_a_guide_prints_what_it_says(guide: str, client: str, need_module: Callable[[str, str], None]) -> None:
    """The pieces of a guide, one after the other, are a program that does what the guide says."""
    need_module(client, f"{client} is not installed: pip install {client}")
    text = (GUIDES / f"{guide}.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    house = {**os.environ, "PYTHONPATH": os.pathsep.join([str(GUIDES.parents[1]), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=house, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED.findall(code)
