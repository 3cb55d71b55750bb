"""The examples for other clients run against our server, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/amqp_*.py"))
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, need_module: Callable[[str, str], None]) -> None:
    """Each `print` in an example has beside it what it prints, and that is what it prints."""
    client = example.stem.removeprefix("amqp_")
    if client not in sys.modules:  # kombu is there, but cannot be found, once it was imported
        need_module(client, f"{client} is not installed: pip install {client.replace('_', '-')}")
    expected = PRINTED.findall(example.read_text())
    assert expected
    command = [sys.executable, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_there_is_an_example_for_every_client() -> None:
    """pika, kombu, Celery and aio-pika."""
    assert {path.stem for path in EXAMPLES} >= {"amqp_pika", "amqp_kombu", "amqp_celery", "amqp_aio_pika"}
