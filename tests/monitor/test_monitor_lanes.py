"""Lanes on the windows: jobs that wait, run, fail and are retried, of executors that may come and go."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from monitor_parts_support import _lanes
from monitor_support import Client
from prometheus_client import generate_latest

from multiqueue import LinkedBlockingMultiQueue, MultiQueueExecutor
from multiqueue.broker import Broker
from multiqueue.core import Job, LaneFuture
from multiqueue.monitor import Figures, HttpServer, Lanes, MonitorError, serve_lanes
from multiqueue.testing import FakeClock, wait_until_blocked


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def lanes(clock: FakeClock) -> Lanes:
    return Lanes(clock)


@pytest.fixture
def executor(lanes: Lanes) -> Iterator[MultiQueueExecutor]:
    with MultiQueueExecutor(1) as executor:
        lanes.watch("nightly", executor)
        yield executor


@contextmanager
def serving(lanes: Lanes) -> Iterator[HttpServer]:
    """Windows whose threads have ended when the block is left: anyio's workers are told to, and not joined."""
    with serve_lanes(lanes) as http:
        yield http
    wait_until_blocked(lambda: not any("AnyIO" in thread.name for thread in threading.enumerate()))


def shown(lanes: Lanes, name: str = "nightly") -> dict[str, Any]:
    (found,) = (each for each in lanes.view()["executors"] if each["name"] == name)
    return {lane["name"]: lane for lane in found["lanes"]}


def states(lanes: Lanes, lane: str) -> list[str]:
    return [state for *_, state, _ in shown(lanes)[lane]["jobs"]]


def fail() -> None:
    raise ValueError("no Parquet")


def test_a_job_is_shown_while_it_waits_runs_and_has_ended(
    lanes: Lanes, executor: MultiQueueExecutor, clock: FakeClock
) -> None:
    """Waiting, running, done, failed and cancelled, each with its times. (monitor 11)"""
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait()

    lane = executor.lane("acme", weight=2)
    running, failing, cancelled = lane.submit(work), lane.submit(fail), lane.submit(work)
    begun.wait()
    assert states(lanes, "acme") == ["running", "waiting", "waiting"]
    clock.advance(2.0)
    cancelled.cancel()
    go.set()
    wait([running, failing])
    executor.shutdown()
    assert states(lanes, "acme") == ["done", "failed", "cancelled"]
    it = shown(lanes)["acme"]
    assert [it[key] for key in ("done", "failed", "cancelled", "weight", "waiting", "running")] == [1, 1, 1, 2, 0, 0]
    first, second, _ = it["jobs"]
    number, name, submitted, began, ended, *_ = first
    assert (number, name.rpartition(".")[2], ended - submitted) == (1, "work", 2.0)
    assert began == submitted
    assert second[3] - second[2] == 2.0
    assert (it["wait_median"], it["wait_p95"]) == (0.0, 2.0)


def test_a_job_that_is_faster_than_its_submitter_is_shown_once(lanes: Lanes, executor: MultiQueueExecutor) -> None:
    """It may begin, and even end, before its submitter tells of it; or be cancelled before its worker does."""
    (book,) = lanes.books()
    job: Job[None] = Job(lambda: None, (), {}, LaneFuture())
    book.began("acme", job)
    book.submitted("acme", job)
    job.run()
    book.submitted("acme", job)
    assert states(lanes, "acme") == ["done"]
    taken: Job[None] = Job(lambda: None, (), {}, LaneFuture())
    book.submitted("acme", taken)
    taken.future.cancel()
    book.began("acme", taken)
    assert states(lanes, "acme") == ["done", "cancelled"]
    assert book.counts() == {"acme": {"done": 1, "cancelled": 1}}


def test_what_is_kept_is_bounded(
    lanes: Lanes, executor: MultiQueueExecutor, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many waiting jobs of an executor, so many ended ones of a lane, so many in an answer; counts go on.

    (monitor 11)
    """
    monkeypatch.setattr(_lanes, "_WAITING", 3)
    monkeypatch.setattr(_lanes, "_ENDED", 4)
    lane = executor.lane("acme")
    lane.pause()
    futures = [lane.submit(int) for _ in range(10)]
    assert states(lanes, "acme") == ["waiting"] * 3
    assert shown(lanes)["acme"]["waiting"] == 10
    lane.resume()
    wait(futures)
    executor.shutdown()
    assert states(lanes, "acme") == ["done"] * 4
    assert shown(lanes)["acme"]["done"] == 10
    (book,) = lanes.books()
    assert book._waiting == 0
    assert not book._under_way
    monkeypatch.setattr(_lanes, "_JOBS", 2)
    assert states(lanes, "acme") == ["done"] * 2
    clock.advance(1000.0)
    assert states(lanes, "acme") == []


def test_lanes_that_come_and_go_are_kept_so_many(
    lanes: Lanes, executor: MultiQueueExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lane for each tenant, those are shown in which jobs ended last. (monitor 11)"""
    monkeypatch.setattr(_lanes, "_KEPT", 2)
    for name in ("a", "b", "a", "c"):
        executor.lane(name).submit(int).result()
        executor.lane(name).shutdown()
    assert sorted(shown(lanes)) == ["a", "c"]
    (book,) = lanes.books()
    assert book.counts() == {"a": {"done": 2}, "c": {"done": 1}}


def test_names_that_cannot_be_said_end_no_worker(lanes: Lanes, executor: MultiQueueExecutor) -> None:
    """A lane's key, a function and an error whose text raises are shown by that, and the job runs."""

    class Mute(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

        def __call__(self) -> None:
            raise self

    mute = Mute()
    lane = executor.lane(mute)
    assert isinstance(lane.submit(mute).exception(), Mute)
    assert lane.submit(int).result() == 0
    executor.shutdown()
    (book,) = lanes.books()
    first, second = book.records(0.0)["(its name raises RuntimeError)"]
    assert (first.state, first.name, first.error) == ("failed", first.lane, first.lane)
    assert (second.state, second.name) == ("done", "int")


def test_a_result_is_not_kept_and_an_executor_may_go(lanes: Lanes) -> None:
    """A job that has ended lets go of its future; an executor that its program drops is shown as over."""

    class Result:
        alive = 0

        def __init__(self) -> None:
            Result.alive += 1

        def __del__(self) -> None:
            Result.alive -= 1

    executor = MultiQueueExecutor(1)
    lanes.watch("nightly", executor)
    assert isinstance(executor.submit(Result).result(), Result)
    executor.shutdown()
    gc.collect()
    assert Result.alive == 0
    del executor
    gc.collect()
    (found,) = lanes.view()["executors"]
    assert found["is_over"]
    assert found["lanes"][0]["done"] == 1


def test_a_work_list_behind_the_lanes_is_shown(lanes: Lanes, executor: MultiQueueExecutor) -> None:
    """A lane of the list is shown before its first job, with what is done of how many."""
    lanes.watch("nightly", executor, lambda: {"tiny": {"done": 1, "waiting": 3}})
    assert shown(lanes)["tiny"]["items"] == {"done": 1, "waiting": 3}
    assert b'multiqueue_pipeline_items{executor="nightly",lane="tiny",state="waiting"} 3.0' in generate_latest(
        Figures(lanes).registry
    )


def test_sparks_items_have_their_retries_and_their_jobs(need_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts after the first have times; one item tells its Spark jobs, with links to Spark's UI. (monitor 11)"""
    need_module("pyspark", "pyspark is not installed")
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "spark")
    from spark_support import FakeSpark, dispatcher

    from multiqueue.spark import Progress, Retry

    spark, lanes, fails = FakeSpark(), Lanes(), [True, False]

    def flaky(session: object) -> str:
        if fails.pop(0):
            raise OSError("lost executor")
        return "done"

    with dispatcher(spark) as dock, serving(lanes) as http:
        lanes.watch("nightly", dock)
        lane = dock.lane("acme", retry=Retry(attempts=2, first_pause=0.0, when=lambda error: True))
        future = lane.submit(flaky)
        assert future.result() == "done"
        spark.told[future.tag] = Progress(jobs=1)
        (row,) = shown(lanes)["acme"]["jobs"]
        assert row[1].endswith("flaky")
        assert len(row[6]) == 1
        client = Client(http.url)
        found = client.get("/api/lanes/nightly/1")
        assert found["spark"] == [{"job": 7, "url": "http://spark.example:4040/jobs/job/?id=7"}]
        assert (found["state"], found["lane"], found["tag"]) == ("done", "acme", future.tag)
        assert 'multiqueue_lane_jobs_total{executor="nightly",lane="acme",outcome="succeeded"} 1.0' in (
            client("GET", "/metrics").text
        )


def test_a_program_without_a_broker_shows_its_lanes(lanes: Lanes, executor: MultiQueueExecutor) -> None:
    """The page, the looks, a stream and the metrics are there; what is a broker's is not. (monitor 11)"""
    with pytest.raises(ValueError, match="no Parquet"):
        executor.lane("acme").submit(fail).result()
    with serve_lanes(lanes) as http:
        client = Client(http.url)
        assert client.get("/api/windows") == {"pages": ["lanes"], "tags": ["administrator"], "rights": {}}
        assert client("GET", "/").status == 200
        assert client.get("/api/lanes?seconds=60")["executors"][0]["kind"] == "MultiQueueExecutor"
        assert client.get("/api/lanes/nightly/1")["error"] == "ValueError: no Parquet"
        assert "multiqueue_executor_workers" in client.as_user(None)("GET", "/metrics").text
        for path in ("/api/queues", "/api/lanes/nightly/2", "/api/lanes/nightly/x", "/api/lanes/nobody/1"):
            assert client("GET", path).status == 404
        for seconds in ("0", "x", "9999999"):
            assert client("GET", f"/api/lanes?seconds={seconds}").status == 400
        assert client.as_user("guest:wrong")("GET", "/api/lanes").status == 401


def test_lanes_are_for_those_who_may_monitor(broker: Broker, server: Any, lanes: Lanes) -> None:
    """A user with the tag `management` sees its queues, and no lane; names of jobs may tell files. (monitor 1)"""
    client = Client(broker.listen_http(amqp=server, lanes=lanes).url)
    assert client.get("/api/windows")["pages"][-2:] == ["lanes", "admin"]
    assert client("PUT", "/api/users/m", {"password": "secret", "tags": "management"}).status == 201
    assert client.as_user("m:secret")("GET", "/api/lanes").status == 401
    assert client("GET", "/api/lanes").status == 200


# -- metrics of our own


def test_a_program_exports_its_sub_queues_executors_and_connections(server: Any) -> None:
    """One registry has the figures of all that is added, under our own names, and forgets what is gone. (monitor 12)"""
    from multiqueue.client import connect

    inbox: LinkedBlockingMultiQueue[int] = LinkedBlockingMultiQueue()
    inbox.add_subqueue("orders", capacity=5).put(1)
    inbox.add_subqueue("mail")
    figures = Figures()
    with MultiQueueExecutor(3) as executor, connect(server.url) as connection:
        executor.lane("acme").submit(int).result()
        for name, thing in (("inbox", inbox), ("nightly", executor), ("wire", connection)):
            figures.add(name, thing)
        connection.channel()
        text = generate_latest(figures.registry).decode()
    for line in (
        'multiqueue_subqueue_size{multiqueue="inbox",subqueue="orders"} 1.0',
        'multiqueue_subqueue_capacity{multiqueue="inbox",subqueue="orders"} 5.0',
        'multiqueue_subqueue_put_total{multiqueue="inbox",subqueue="mail"} 0.0',
        'multiqueue_executor_workers{executor="nightly"} 3.0',
        'multiqueue_lane_waiting{executor="nightly",lane="acme"} 0.0',
        'multiqueue_client_channels{connection="wire"} 1.0',
        'multiqueue_client_recoveries_total{connection="wire"} 0.0',
    ):
        assert line in text
    assert 'capacity{multiqueue="inbox",subqueue="mail"}' not in text
    del inbox
    gc.collect()
    assert "multiqueue_subqueue" not in generate_latest(figures.registry).decode()


def test_what_has_no_figures_is_refused() -> None:
    """The error says what may be added. (monitor 12)"""
    with pytest.raises(MonitorError, match="'x' is object; figures are of a LinkedBlockingMultiQueue"):
        Figures().add("x", object())
