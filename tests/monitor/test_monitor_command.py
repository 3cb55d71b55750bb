"""`multiqueue broker --http`: the windows of a broker that is a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from monitor_support import Client

from multiqueue.testing import PATIENCE


@pytest.mark.slow(selected=True)
def test_a_broker_with_windows(tmp_path: Path) -> None:
    """It says where it answers, shows what AMQP and HTTP made, keeps users over a restart, and ends on SIGTERM."""
    for is_first in (True, False):
        command = [sys.executable, "-m", "multiqueue", "broker", "--port", "0", "--http", "0", "--data", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = re.match(r"HTTP on (http://127\.0\.0\.1:\d+)$", process.stdout.readline().strip())
            assert found is not None
            assert process.stdout.readline().startswith("listening on ")
            client = Client(found[1])
            if is_first:
                assert client("PUT", "/api/queues/%2F/orders", {"durable": True}).status == 201
                assert client("PUT", "/api/users/ada", {"password": "lovelace", "tags": "monitoring"}).status == 201
            assert [each["name"] for each in client.get("/api/queues")] == ["orders"]
            assert client.as_user("ada:lovelace").get("/api/whoami")["tags"] == ["monitoring"]
            assert "rabbitmq_queues 1.0" in client.as_user(None)("GET", "/metrics").text
        finally:
            process.send_signal(signal.SIGTERM)
            said, complained = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, complained
        assert said == "closing\n"
