"""The examples for other clients and frameworks run against our server, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
EXAMPLES = sorted([*HOUSE.glob("examples/amqp_*.py"), *HOUSE.glob("examples/fair_*.py")])
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, need_module: Callable[[str, str], None]) -> None:
    """Each `print` in an example has beside it what it prints, and that is what it prints."""
    client = example.stem.partition("_")[2]
    client = {"taskiq": "taskiq_aio_pika"}.get(client, client)
    if client not in sys.modules:  # kombu is there, but cannot be found, once it was imported
        need_module(client, f"{client} is not installed: pip install {client.replace('_', '-')}")
    expected = PRINTED.findall(example.read_text())
    assert expected
    command = [sys.executable, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_there_is_an_example_for_every_client() -> None:
    """pika, kombu, Celery and aio-pika; and for fair queues those that the guide names."""
    there = {path.name for path in EXAMPLES}
    assert there >= {"amqp_pika.py", "amqp_kombu.py", "amqp_celery.py", "amqp_aio_pika.py"}
    guide = (HOUSE / "docs" / "guides" / "fair-workers.md").read_text()
    assert set(re.findall(r"\bfair_\w+\.py", guide)) == {name for name in there if name.startswith("fair_")}
