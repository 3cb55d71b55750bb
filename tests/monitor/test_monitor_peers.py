"""The tools that people have for RabbitMQ's management API and for Prometheus, unchanged, at our port."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pika
import pytest
from monitor_support import Client
from rabbitmq_support import free_ports

from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor
from multiqueue.broker import Broker, Message
from multiqueue.monitor import Figures, Lanes

pytestmark = pytest.mark.slow(selected=True)

Need = Callable[[str], str]


@pytest.fixture
def need_program(need_module: Any) -> Need:
    """The path of a program; without it the test ends as that of any missing peer."""

    def need(name: str) -> str:
        found = shutil.which(name)
        if found is None:
            need_module(f"no_{name}", f"there is no {name}: apt-get install prometheus rabbitmq-server")
        return str(found)

    return need


@contextmanager
def running(*command: object, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ended with the block."""
    with (cwd / "output").open("wb") as output:
        process = subprocess.Popen(list(map(str, command)), cwd=cwd, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def until(ask: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    """The first answer that is something, of a program that needs some time to start."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if found := ask():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(log.read_text(errors="replace")[-2000:])


def content(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


def test_promtool_finds_nothing_wrong_with_the_metrics(broker: Broker, server: Any, need_program: Need) -> None:
    """Names, types and help of all three pages, and of our own metrics, are as they should be. (monitor 2, 12)"""
    promtool = need_program("promtool")
    inbox: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    inbox.add_subqueue("orders", capacity=5).put(1)
    lanes, connection = Lanes(), pika.BlockingConnection(pika.URLParameters(server.url))
    connection.channel().queue_declare("orders")
    families = "queue_coarse_metrics queue_metrics queue_delivery_metrics connection_coarse_metrics channel_metrics"
    detailed = "&".join(f"family={name}" for name in families.split())
    with MultiQueueExecutor(1) as executor:
        lanes.watch("nightly", executor)
        executor.lane("acme").submit(int).result()
        http = broker.listen_http(amqp=server, lanes=lanes)
        client = Client(http.url, None)
        pages = [
            client("GET", path).text for path in ("/metrics", "/metrics/per-object", f"/metrics/detailed?{detailed}")
        ]
        figures = Figures(lanes)
        figures.add("inbox", inbox)
        from prometheus_client import generate_latest

        pages.append(generate_latest(figures.registry).decode())
    connection.close()
    for page in pages:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_prometheus_scrapes_a_broker(client: Client, broker: Broker, need_program: Need, tmp_path: Path) -> None:
    """A real Prometheus finds the depth of a queue under RabbitMQ's name. (monitor 2)"""
    prometheus = need_program("prometheus")
    broker.declare_queue("orders")
    broker.publish(Message(b"tea", routing_key="orders"))
    (port,) = free_ports(1)
    (tmp_path / "prometheus.yml").write_text(
        "scrape_configs: [{job_name: broker, scrape_interval: 1s, metrics_path: /metrics/per-object, "
        f"static_configs: [{{targets: ['{urlsplit(client.url).netloc}']}}]}}]\n"
    )
    here = f"127.0.0.1:{port}"
    query = quote('rabbitmq_queue_messages_ready{queue="orders"}')
    with running(
        prometheus,
        "--config.file=prometheus.yml",
        f"--web.listen-address={here}",
        "--storage.tsdb.path=data",
        cwd=tmp_path,
    ) as process:
        found = until(
            lambda: content(f"http://{here}/api/v1/query?query={query}")["data"]["result"], process, tmp_path / "output"
        )
    assert found[0]["value"][1] == "1"
    assert found[0]["metric"]["vhost"] == "/"


def test_rabbitmqadmin_prints_what_it_prints_at_rabbitmq(
    client: Client, broker: Broker, need_program: Need, tmp_path: Path
) -> None:
    """Debian's own copy declares, publishes, lists, gets, exports and imports. (monitor 2)"""
    program = need_program("rabbitmqadmin")
    port = str(urlsplit(client.url).port)

    def admin(*words: str) -> str:
        command = [sys.executable, program, "-H", "127.0.0.1", "-P", port, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert admin("declare", "queue", "name=orders", "durable=true") == "queue declared\n"
    assert admin("publish", "routing_key=orders", "payload=tea") == "Message published\n"
    assert "| orders | 1        |" in admin("list", "queues", "name", "messages")
    assert "tea" in admin("get", "queue=orders")
    assert "Exported definitions" in admin("export", "definitions.json")
    assert admin("delete", "queue", "name=orders") == "queue deleted\n"
    assert "Uploaded definitions" in admin("import", "definitions.json")
    assert "orders" in admin("list", "queues")
    assert "guest" in admin("list", "users")
    assert "4.3.6" in admin("show", "overview", "rabbitmq_version")


def test_amqpstorms_management_client_works(client: Client, broker: Broker) -> None:
    """It declares, publishes, gets, lists and deletes as at RabbitMQ. (monitor 2)"""
    from amqpstorm.management import ManagementApi

    api = ManagementApi(client.url, "guest", "guest")
    assert api.aliveness_test("/") == {"status": "ok"}
    api.queue.declare("orders", durable=True)
    api.exchange.declare("logs", exchange_type="topic")
    api.queue.bind("orders", "logs", routing_key="a.#")
    api.basic.publish("tea", "a.b", exchange="logs")
    (message,) = api.basic.get("orders")
    assert message.body == "tea"
    assert [queue["name"] for queue in api.queue.list()] == ["orders"]
    assert api.user.get("guest")["tags"] == ["administrator"]
    api.queue.delete("orders")
    api.exchange.delete("logs")


def test_kombus_manager_works(client: Client, broker: Broker, server: Any, need_module: Any) -> None:
    """`Connection.get_manager()`, which Celery's tools use, lists queues and publishes. (monitor 2)"""
    need_module("pyrabbit", "pyrabbit is not installed: pip install 'blocking-multiqueue[test]'")
    import kombu

    broker.declare_queue("orders")
    where = urlsplit(client.url)
    with kombu.Connection(server.url) as connection:
        manager = connection.get_manager(hostname=where.hostname, port=where.port)
        assert "orders" in [queue["name"] for queue in manager.get_queues("/")]
        manager.publish("/", "amq.default", "orders", "tea")
        assert len(broker.queue("orders")) == 1
        manager.http.client.close()


def test_flower_shows_the_queues(client: Client, broker: Broker, server: Any, need_module: Any, tmp_path: Path) -> None:
    """A real Flower asks our API for the lengths of Celery's queues. (monitor 2)"""
    need_module("flower", "flower is not installed: pip install 'blocking-multiqueue[test]'")
    (tmp_path / "shop.py").write_text("import celery\napp = celery.Celery('shop')\n")
    broker.declare_queue("celery", durable=True)
    for _ in range(3):
        broker.publish(Message(b"{}", routing_key="celery"))
    (port,) = free_ports(1)
    api = client.url.replace("http://", "http://guest:guest@") + "/api/"
    with running(
        sys.executable,
        "-m",
        "celery",
        "-A",
        "shop",
        "-b",
        server.url,
        "flower",
        f"--broker-api={api}",
        "--address=127.0.0.1",
        f"--port={port}",
        "--unauthenticated_api=true",
        cwd=tmp_path,
    ) as process:
        page = until(
            lambda: (page := _text(f"http://127.0.0.1:{port}/broker")) and "celery" in page and page,
            process,
            tmp_path / "output",
        )
    row = page[page.index(">celery<") :].partition("</tr>")[0]
    assert ">3<" in row.replace(" ", "").replace("\n", "")


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return str(reply.read().decode())
