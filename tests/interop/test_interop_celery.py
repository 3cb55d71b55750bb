"""Celery on both brokers: workers in processes of their own, with gossip, mingle, events and remote control.

CI runs it against this project's server; `--slow all` against RabbitMQ too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_celery_support import celery, close_app, kill, make_app, wait_for, worker
from rabbitmq_support import Peer

from multiqueue.broker import Broker
from multiqueue.testing import PATIENCE

Name = Callable[[str], str]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("multiqueue", marks=pytest.mark.slow(selected=True)),
        pytest.param("rabbitmq", marks=pytest.mark.slow),
    ],
)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    if request.param == "rabbitmq":
        yield request.getfixturevalue("rabbitmq_peer")
        return
    with Broker() as broker, broker.listen() as server:
        yield Peer(server.url, server.port, os.getpid())


@pytest.fixture(scope="module")
def shop(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The application with a worker of two processes; results are files, which chords can be made with."""
    app = make_app(peer.url, f"file://{tmp_path_factory.mktemp('results')}", "shop")
    with worker(app, "shop@here", "--pool", "prefork", "--concurrency", "2"):
        yield app
    close_app(app)


def call(app: Any, task: str, *arguments: Any, **settings: Any) -> Any:
    return app.tasks[task].apply_async(arguments, **settings).get(timeout=PATIENCE)


def test_tasks_run(shop: Any) -> None:
    """A result comes back; so does an exception."""
    assert call(shop, "price", "tea") == 3
    with pytest.raises(KeyError, match="no such thing"):
        call(shop, "fail")


def test_a_task_is_tried_again(shop: Any) -> None:
    """retry() publishes the task anew; the third attempt gives the result."""
    assert call(shop, "pay", 9) == "9 paid, attempt 3"


def test_a_chain_a_group_and_a_chord(shop: Any) -> None:
    """Tasks that call tasks: one after the other, several at once, several at once with a summary at the end."""
    price, total, both = shop.tasks["price"], shop.tasks["total"], shop.tasks["both"]
    prices = [price.s(item) for item in ("tea", "coffee", "milk")]
    canvas = {
        9: celery.chain(price.s("tea"), both.s(6), app=shop),
        (3, 6, 4): celery.group(prices, app=shop),
        13: celery.chord(prices, total.s(), app=shop),
    }
    for expected, signature in canvas.items():
        got = signature.apply_async().get(timeout=PATIENCE)
        assert got == (list(expected) if isinstance(expected, tuple) else expected)


def test_a_task_for_later(shop: Any) -> None:
    """A countdown holds the task in the worker, unacknowledged, beyond its prefetch."""
    assert call(shop, "is_late", countdown=0.5) is True
    assert call(shop, "is_late") is False


def test_a_worker_is_controlled_from_afar(shop: Any) -> None:
    """Commands go to all workers by a fanout exchange, answers to a queue that is gone afterwards."""
    (answer,) = shop.control.broadcast("active_queues", reply=True, limit=1, timeout=PATIENCE)
    ((queue,),) = answer.values()
    assert (queue["name"], queue["queue_arguments"]) == ("shop", {"x-max-priority": 9})


def test_a_revoked_task_does_not_run(shop: Any) -> None:
    """What is revoked before it comes to the worker ends as revoked."""
    name = "to be revoked"
    assert shop.control.revoke(name, reply=True, limit=1, timeout=PATIENCE)
    with pytest.raises(celery.exceptions.TaskRevokedError):
        call(shop, "price", "tea", task_id=name)


def test_events_tell_what_happens(shop: Any) -> None:
    """A listener at the topic exchange for events sees the task received, started and done."""
    seen: list[str] = []
    with shop.connection_for_read() as connection:

        def on_event(event: dict[str, Any]) -> None:
            seen.append(event["type"])
            receiver.should_stop = event["type"] == "task-succeeded"

        kinds = ("task-received", "task-started", "task-succeeded")
        receiver = shop.events.Receiver(connection, handlers=dict.fromkeys(kinds, on_event))
        receiver.on_consume_ready = lambda *_, **__: shop.tasks["price"].delay("tea")
        receiver.capture(limit=None, timeout=PATIENCE, wakeup=False)
    assert seen == list(kinds)


def test_the_task_of_a_killed_worker_runs_again(peer: Peer, tmp_path: Path) -> None:
    """With late acks, what a worker had when it was killed -9 goes to the next one, after what matters more.

    Results go by rpc://: each client has a reply queue of its own on the broker.
    """
    app, log = make_app(peer.url, "rpc://", "works"), tmp_path / "log"
    tasks, one_at_a_time = app.tasks, ("--concurrency", "1")
    with worker(app, "doomed@here", "--pool", "prefork", *one_at_a_time) as doomed:
        interrupted = tasks["last_breath"].apply_async([str(log)], priority=3)
        wait_for(log, "begun")
        waiting = [tasks["note"].apply_async([str(log), str(each)], priority=each) for each in (1, 9, 5)]
        kill(doomed)
    with worker(app, "heir@here", "--pool", "threads", *one_at_a_time):
        assert interrupted.get(timeout=PATIENCE) == "done by the next one"
        assert [each.get(timeout=PATIENCE) for each in waiting] == ["1", "9", "5"]
    assert log.read_text().split() == ["begun", "9", "5", "1"]
    close_app(app)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_worker_of_greenlets_runs_tasks_that_use_our_queues(
    peer: Peer, pool: str, need_module: Callable[[str, str], None]
) -> None:
    """A worker that gevent or eventlet patches imports multiqueue, whose waits hold up greenlets, not the worker."""
    need_module(pool, f"{pool} is not installed: pip install -e '.[test]'")  # not imported: it warns of each fork
    app = make_app(peer.url, "rpc://", f"greenlets-{pool}")
    with worker(app, f"{pool}@here", "--pool", pool, "--concurrency", "20") as process:
        results = [app.tasks["hand_over"].delay(20) for _ in range(10)]
        for result in results:
            lock, *numbers = result.get(timeout=PATIENCE)
            assert lock.startswith(pool)
            assert numbers == list(range(20))
        kill(process)  # one of eventlet's that is told to end may not, tasks or none
    close_app(app)
