"""The fixture `multiqueue_broker`, as a test suite that installed multiqueue has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SUITE = """
import pika
import pytest

ports = []

@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_broker(multiqueue_broker, turn):
    connection = pika.BlockingConnection(pika.URLParameters(multiqueue_broker.url))
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"tea")
    connection.close()
    assert multiqueue_broker.bodies("orders") == [b"tea"]
    ours = multiqueue_broker.connect().channel()
    assert ours.basic_get("orders") is None
    ports.append(multiqueue_broker.port)

def test_nothing_is_left():
    import socket
    for port in ports:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port))
"""


def test_a_suite_uses_the_fixture(tmp_path: Path) -> None:
    """Two tests, two brokers; pika and our client reach them; ports are closed afterwards."""
    (tmp_path / "test_orders.py").write_text(_SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    plugin = [] if _is_installed() else ["-p", "multiqueue.pytest_plugin"]
    done = subprocess.run([*command, *plugin, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "multiqueue.pytest_plugin" for point in entry_points(group="pytest11"))


def test_the_plugin_loads_nothing_by_itself() -> None:
    """Whoever has multiqueue installed and runs other tests pays nothing for the fixture."""
    code = (
        "import sys, multiqueue.pytest_plugin;"
        "print(sorted(m.split('.')[1] for m in sys.modules if m.startswith('multiqueue.') and m.count('.') == 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['core', 'errors', 'pytest_plugin']"
