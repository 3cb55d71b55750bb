"""Lanes whose files are found by events: each version once, whatever the queue does with them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest
from click.testing import CliRunner
from pipeline_parts_support import (
    Follow,
    Lane,
    Place,
    SqsQueue,
    StopRequested,
    Watches,
    arrival_sentence,
    pipeline_command,
)
from pipeline_support import Pipeline, lane_of, rows_in
from queue_support import Dead, Host, words
from queue_support import host as host
from s3_support import KEYS

from multiqueue.amqp import serve
from multiqueue.broker import Broker
from multiqueue.pipeline import ConfigError, Item, Unprepared, parse_config
from multiqueue.testing import wait_until_blocked

if TYPE_CHECKING:
    from s3_support import Store

URL = "amqp://host/work"


def event(bucket: str, *keys: str, name: str = "ObjectCreated:Put", **more: Any) -> str:
    """What MinIO, RustFS and S3 send, with these keys."""
    records = [
        {
            "eventName": name,
            "eventTime": "2026-11-25T10:00:00.000Z",
            "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key), "size": 1, "eTag": "x", **more}},
        }
        for key in keys
    ]
    return json.dumps({"EventName": f"s3:{name}", "Key": f"{bucket}/{keys[0] if keys else ''}", "Records": records})


def local(base: Path, host: Host, *, listed: bool = True, **settings: Any) -> Pipeline:
    """A run over `in/*.txt`, of which the queue tells; it was listed before, as far as it knows."""
    lane = {key: settings.pop(key) for key in ("batch", "batch_s", "prefetch", "listing_s") if key in settings}
    lanes = [lane_of(base, "in", events=URL, section="in", **lane)]
    run = Pipeline(base, lanes, connect=host.connect, **settings)
    if listed:
        now = run.scanner._wall()
        with run.ledger.transaction():
            run.ledger.arrivals.note(lanes[0], listed_at=now)
        unlisted(run)
    return run


def unlisted(run: Pipeline) -> None:
    """Nothing is listed now."""
    run.scanner._scans.clear()
    run.scanner._unseen = 0


def write(base: Path, *names: str) -> list[str]:
    (base / "in").mkdir(exist_ok=True)
    for name in names:
        (base / "in" / f"{name}.txt").write_text(name)
    return [f"in/{name}.txt" for name in names]


@pytest.mark.parametrize("batch", [1, 4])
def test_files_are_found_by_events_and_nothing_is_listed(tmp_path: Path, host: Host, batch: int) -> None:
    """What events name is done, once; a file that none names waits for the next listing.

    (pipeline 34)
    """
    host.publish(*write(tmp_path, *words(10)))
    write(tmp_path, "untold")
    run = local(tmp_path, host, batch=batch)
    run.run()
    assert rows_in(run.output) == words(10)
    assert [len(item.files) for item in run.dispatcher.submitted] == ([1] * 10 if batch == 1 else [4, 4, 2])
    assert host.depth() == 0


def test_a_listing_finds_what_no_event_told(tmp_path: Path, host: Host) -> None:
    """When its time has come the files are listed: once in `listing_s`, over runs; both ways are counted.

    (pipeline 34)
    """
    moment = [1_000_000.0]
    host.publish(*write(tmp_path, "a", "b"))
    write(tmp_path, "lost")
    first = local(tmp_path, host, listed=False, wall=lambda: moment[0])
    found = first.ledger.arrivals
    unlisted(first)  # the events come first
    first.run()
    assert rows_in(first.output) == ["a", "b"]
    second = local(tmp_path, host, listed=False, wall=lambda: moment[0])
    second.run()
    assert rows_in(second.output) == ["a", "b", "lost"]
    write(tmp_path, "later")
    moment[0] += 3599
    third = local(tmp_path, host, listed=False, wall=lambda: moment[0])
    third.run()
    assert third.dispatcher.submitted == []
    moment[0] += 2
    last = local(tmp_path, host, listed=False, wall=lambda: moment[0])
    found = last.ledger.arrivals
    close = last.ledger.close
    last.ledger.close = lambda: None  # type: ignore[method-assign]
    last.run()
    assert rows_in(last.output) == ["a", "b", "later", "lost"]
    told = found.of("in")
    close()
    assert (told.by_event, told.by_listing, told.listed_at) == (2, 2, moment[0])


HOSTILE: dict[str, tuple[bytes | str, bool]] = {
    "no text": (b"\xff\xfe\x00", False),
    "no JSON": ("{", False),
    "a list": ("{}[]", False),
    "no records": ("{}", False),
    "records of none": ('{"Records": 7}', False),
    "records of numbers": ('{"Records": [7]}', False),
    "no key": ('{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {}}}]}', False),
    "a key of none": ('{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": null}}}]}', False),
    "half a character": ('{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "\\ud800"}}}]}', False),
    "a key that is no UTF-8": ('{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "%ff"}}}]}', False),
    "a key with a zero": (event("b", "a\0b"), False),
    "a long key": (event("b", "k" * 2000), False),
    "deep JSON": ('{"Records":' + "[" * 100_000, False),
    "nothing": (b"", False),
    "a URL that is not reached": ("hdfs://x/y", False),
    "the test of S3": ('{"Service": "Amazon S3", "Event": "s3:TestEvent"}', True),
    "no record": ('{"Records": []}', True),
    "another bucket": (event("other", "in/good.txt"), True),
    "a directory's mark": (event("b", "in/"), True),
    "another directory": ("elsewhere/good.txt", True),
    "the directory itself": ("in", True),
    "a directory like a file": ("in/directory.txt", True),
    "a hidden file": ("in/_good.txt", True),
    "below a file": ("in/good.txt/in/good.txt", True),
    "out of the way": ("in/../../../etc/passwd", True),
    "what is gone": ("in/gone.txt", True),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_events(tmp_path: Path, host: Host, kind: str) -> None:
    """An event of nothing is settled; what is no event is rejected and told; the next event is taken either way.

    (pipeline 35)
    """
    body, is_event = HOSTILE[kind]
    (name,) = write(tmp_path, "good")
    (tmp_path / "in" / "directory.txt").mkdir()
    host.publish(body, name, body)
    run = local(tmp_path, host)
    run.run()
    assert rows_in(run.output) == ["good"]
    assert (host.depth(), host.depth("dead")) == (0, 0 if is_event else 2)
    told = [one for one in run.runner.intake.sentences() if "no event" in one]
    assert len(told) == (0 if is_event else 1)


def test_doubled_events(tmp_path: Path, host: Host) -> None:
    """An event that comes again, with its first or after its file was done, is settled, and nothing is done again."""
    names = write(tmp_path, "a", "b")
    host.publish(*names, *names)
    local(tmp_path, host).run()
    host.publish(*names, *reversed(names))
    again = local(tmp_path, host)
    again.run()
    assert (again.dispatcher.submitted, host.depth()) == ([], 0)
    assert rows_in(again.output) == ["a", "b"]


def test_an_event_is_settled_when_its_file_stands_in_the_ledger(tmp_path: Path, host: Host) -> None:
    """A run that dies before a transaction has settled nothing of it; the files of settled events are known.

    (pipeline 34)
    """
    host.publish(*write(tmp_path, *words(6)))
    run = local(tmp_path, host)
    record = run.ledger.record_scan

    def die(lane: str, seen: Any, *rest: Any) -> Any:
        record(lane, seen, *rest)
        raise Dead

    run.ledger.record_scan = die  # type: ignore[method-assign]
    with pytest.raises(Dead):
        run.run()
    assert host.depth() == 6
    dies_later = local(tmp_path, host, on_idle=_die)
    with pytest.raises(Dead):
        dies_later.run()
    assert host.depth() == 0
    last = local(tmp_path, host)
    last.run()
    assert rows_in(last.output) == words(6)


def _die(run: Pipeline) -> None:
    if run.dispatcher.submitted:
        raise Dead


def test_a_file_that_is_written_anew_while_its_item_runs(tmp_path: Path, host: Host) -> None:
    """The event of a version that came too late for the running job is kept until that has ended; then it is done.

    (pipeline 35)
    """
    (name,) = write(tmp_path, "a")
    host.publish(name)
    written: list[int] = []
    kept: list[int] = []

    def work(spark: Any, item: Item, staged: Path) -> bool:
        staged.mkdir()
        (staged / "part-0.json").write_text(json.dumps([path.read_text() for path in item.paths]))
        return True

    run = local(tmp_path, host, work=work)
    put_out = run.publisher.put_out

    def late(item: Item, *args: Any, **settings: Any) -> Any:
        if not written:  # after the job has read it, and before its end is recorded
            written.append((tmp_path / name).write_text("anew"))
            os.utime(tmp_path / name, (5, 5))
            host.publish(name)
            run.events.step(0.0, lambda lane, scanned: None)  # the runner goes on while items run
            kept.append(len(run.events._hints))
            run.events.check_invariants()
        return put_out(item, *args, **settings)

    run.publisher.put_out = late  # type: ignore[method-assign]
    run.run()
    assert (rows_in(run.output), kept) == (["anew"], [1])
    assert [one.error for one in run.reporter.attempts] == [None, None]
    assert [item.attempt for item in run.dispatcher.submitted] == [1, 2]
    assert host.depth() == 0


def test_one_event_of_many_files(tmp_path: Path, host: Host) -> None:
    """An event with many records is settled once, when all of their files are recorded."""
    names = write(tmp_path, *words(5))
    records = [{"s3": {"bucket": {"name": "b"}, "object": {"key": "x"}}}] * 2
    host.publish(json.dumps({"Records": records}), *names)
    run = local(tmp_path, host, batch=3)
    run.run()
    run.events.check_invariants()
    assert (rows_in(run.output), host.depth()) == (words(5), 0)


def test_following_events(tmp_path: Path, host: Host) -> None:
    """While following, a file is taken when its event has come and it was not written to for a while."""
    start = 1_000_000.0
    told: list[float] = []

    def tell(run: Pipeline) -> None:
        if len(told) < 3 and run.time() >= 10 * len(told):
            (name,) = write(tmp_path, f"late{len(told)}")
            os.utime(tmp_path / name, (start + run.time(),) * 2)
            told.append(run.time())
            host.publish(name)
            wait_until_blocked(lambda: run.events.patience_s() == 0.0)
        if run.time() > 40:
            run.mailbox.post(StopRequested())

    run = local(
        tmp_path,
        host,
        listing_s=1e6,
        on_idle=tell,
        follow=lambda run: Follow(1.0, 2.0, lambda: run.runner.feeding.lanes, run.time, lambda: start + run.time()),
        wall=lambda: start,
    )
    run.run()
    assert rows_in(run.output) == ["late0", "late1", "late2"]
    waited = [run.reporter.attempts[number].item for number in range(3)]
    assert len(waited) == 3


def test_two_lanes_of_one_queue(tmp_path: Path, host: Host) -> None:
    """Lanes share a queue: an event is that of each lane that reads the file, and a directory that it names first is a
    lane of its own."""
    for name in ("acme/1.txt", "acme/2.csv", "new/1.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
        host.publish(f"in/{name}")
    section = {"directories": "in/*", "files": "*.txt", "format": "text", "events": URL}
    lanes = [
        Lane("acme", tmp_path / "in" / "acme", ("*.txt",), events=URL, section="c"),
        Lane("all", tmp_path, ("in/**/*.txt", "in/acme/*.csv"), events=URL, section="all"),
    ]
    run = Pipeline(tmp_path, lanes, connect=host.connect, settings={"lanes": {"c": section}})
    unlisted(run)
    run.run()
    by_lane = {lane: rows_in(run.output, f"data/lane={lane}") for lane in ("acme", "new", "all")}
    assert by_lane == {"acme": ["acme/1.txt"], "new": ["new/1.txt"], "all": ["acme/1.txt", "acme/2.csv", "new/1.txt"]}
    assert host.depth() == 0


def test_status_says_how_far_behind_a_lane_is(tmp_path: Path) -> None:
    """`status` has what waits in the queue, how old the newest event was when it was taken, and how files were found;
    without its queue it has the rest."""
    with Broker() as broker, serve(broker) as server:
        host = Host(server.url)
        (tmp_path / "p.toml").write_text(
            f'[lanes.in]\nfiles = "in/*.txt"\nformat = "text"\nevents = "{server.url}/work"\n'
            '[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n'
        )
        host.publish(*write(tmp_path, "a", "b"))
        run = local(tmp_path, host, wall=lambda: 1_764_064_803.5)
        with run.ledger.transaction():
            run.ledger.arrivals.note(run.runner.feeding.lanes[0], event_at=1_764_064_800.0)
        run.run()
        host.publish("in/c.txt")
        told = status(tmp_path)
        assert told == {
            "waiting": 1,
            "found_by_event": 2,
            "found_by_listing": 0,
            "listed_at": 1_764_064_803.5,
            "event_at": 1_764_064_800.0,
            "behind_seconds": 3.5,
        }
        sentence = arrival_sentence("in", told, 1_764_064_863.5)
        assert sentence == (
            "in: 1 event in its queue; the newest one taken was 3.5 s old then; 2 files found by events, "
            "0 by listings; listed 1 min 0 s ago"
        )
        host.connection.close()
    assert "its queue does not answer" in arrival_sentence("in", status(tmp_path), 0.0)


def status(base: Path) -> dict[str, Any]:
    found = CliRunner().invoke(pipeline_command, ["status", str(base / "p.toml"), "--json"], catch_exceptions=False)
    told: dict[str, Any] = json.loads(found.output)["events"]["in"]
    return told


def store_run(base: Path, store: Store, bucket: str, **settings: Any) -> Pipeline:
    events = settings.pop("events", URL)
    lanes = [Lane("s", base, (f"s3://{bucket}/in/**/*.txt",), events=events, section="s")]

    def work(spark: Any, item: Item, staged: Path) -> bool:
        staged.mkdir()
        rows = []
        for place in item.places:
            with run.disposal.storage.open(place) as stream:
                rows.append(stream.read().decode())
        (staged / "part-0.json").write_text(json.dumps(rows))
        return True

    run = Pipeline(base, lanes, work=work, settings={"storage": {"s": store.section(bucket)}}, **settings)
    return run


def test_events_of_a_store_over_the_wire(tmp_path: Path, s3_store: Store) -> None:
    """Through our server: keys as a URL has them, events that are late, doubled, out of order, of what is gone.

    (pipeline 35)
    """
    keys = ["in/a b+c.txt", "in/ü/ñ.txt", "in/plus+%20.txt", "in/100%.txt"]
    bucket = s3_store.bucket({key: key.encode() for key in keys})
    with Broker() as broker, serve(broker) as server:
        host = Host(server.url)
        host.publish(*(event(bucket, key) for key in keys), event(bucket, "in/gone.txt"))
        host.publish(event(bucket, keys[0], name="ObjectRemoved:Delete"), event(bucket, *keys))
        host.publish(json.dumps({"Type": "Notification", "Message": event(bucket, keys[1])}))
        run = store_run(tmp_path, s3_store, bucket, connect=host.connect)
        unlisted(run)
        run.run()
        assert rows_in(run.output) == sorted(keys)
        s3_store.client.put_object(Bucket=bucket, Key=keys[0], Body=b"anew")
        s3_store.client.delete_object(Bucket=bucket, Key=keys[1])
        host.publish(event(bucket, keys[1], name="ObjectRemoved:Delete"), event(bucket, keys[0]))
        again = store_run(tmp_path, s3_store, bucket, connect=host.connect)
        unlisted(again)
        again.run()
        assert rows_in(again.output) == sorted(["anew", *keys[1:]])
        assert (host.depth(), host.depth("dead")) == (0, 0)
        host.connection.close()


def test_a_flood_of_events_of_one_file(tmp_path: Path, host: Host) -> None:
    """While a file's item runs, one of its events is kept: more than the queue's `prefetch` hold no other file up.

    (pipeline 34)
    """
    a, b = write(tmp_path, "a", "b")
    host.publish(a)
    taken: list[int] = []
    run = local(
        tmp_path,
        host,
        prefetch=3,
        listing_s=1e6,
        on_idle=lambda run: run.time() > 40 and run.mailbox.post(StopRequested()),
        follow=lambda run: Follow(1.0, 0.0, lambda: run.runner.feeding.lanes, run.time, lambda: 4e9),
        wall=lambda: 1e6,
    )

    def step() -> bool:
        run.events.step(0.0, lambda lane, scanned: taken.append(scanned.files))
        run.events.check_invariants()
        return sum(taken) > 0

    def tell() -> None:
        os.utime(tmp_path / a, (5, 5))
        host.publish(*[a] * 30, b)
        wait_until_blocked(step, 20.0)
        assert len(run.events._hints) == 1

    _while_an_item_runs(run, tell)
    run.run()
    assert (rows_in(run.output), host.depth()) == (["a", "b"], 0)
    assert [one.error for one in run.reporter.attempts] == [None, None, None]


def _while_an_item_runs(run: Pipeline, act: Callable[[], None]) -> None:
    """Call this once, while the run's first item runs."""
    put_out = run.publisher.put_out

    def acts(item: Item, *args: Any, **settings: Any) -> Any:
        run.publisher.put_out = put_out  # type: ignore[method-assign]
        act()
        return put_out(item, *args, **settings)

    run.publisher.put_out = acts  # type: ignore[method-assign]


@pytest.mark.parametrize("follows", [False, True])
def test_lanes_that_fill_no_batch(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, follows: bool) -> None:
    """Where events of many lanes, none of which fills a batch, are all that may be held, batches go as they are.

    (pipeline 34)
    """
    monkeypatch.setattr("multiqueue.pipeline._input.events._MOST_HINTS", 10)
    monkeypatch.setattr("multiqueue.pipeline._input.events.MOST", 4)
    lanes = []
    for number in range(8):
        directory = tmp_path / "in" / str(number)
        directory.mkdir(parents=True)
        lanes.append(
            Lane(str(number), directory, ("*.txt",), events=URL, batch=4, batch_s=1e6, prefetch=8, listing_s=1e9)
        )
        for name in "abc":
            (directory / f"{name}.txt").write_text(f"{name}{number}")
            host.publish(f"in/{number}/{name}.txt")

    def stop(run: Pipeline) -> None:
        if not host.depth() or run.time() > 100:
            run.mailbox.post(StopRequested())

    follow = lambda run: Follow(1.0, 0.0, lambda: lanes, run.time, lambda: 4e9)  # noqa: E731
    settings: dict[str, Any] = {"follow": follow, "on_idle": stop} if follows else {}
    run = Pipeline(tmp_path, lanes, connect=host.connect, wall=lambda: 1e6, **settings)
    with run.ledger.transaction():
        for lane in lanes:
            run.ledger.arrivals.note(lane, listed_at=1e6)
    unlisted(run)
    step, steps = run.events.step, iter(range(5000))

    def counted(*args: Any) -> None:
        assert next(steps, None) is not None, "it waits for what does not come"
        step(*args)

    run.events.step = counted  # type: ignore[method-assign]
    run.run()
    taken = sum(len(item.files) for item in run.dispatcher.submitted)
    assert taken == 24 if not follows else taken >= 16


def test_a_store_that_does_not_answer(tmp_path: Path, host: Host, s3_store: Store) -> None:
    """An event whose object cannot be asked for is not settled: it is in the queue again, and the run says why."""
    bucket = s3_store.bucket({"in/a.txt": b"a"})
    host.publish(event(bucket, "in/a.txt"))
    run = store_run(tmp_path, s3_store, bucket, connect=host.connect)
    unlisted(run)
    storage = run.events._storage
    storage.statuses = lambda places: [OSError(5, "no answer") for _ in places]  # type: ignore[method-assign]
    run.run()
    assert host.depth() == 1
    assert [one.why for one in run.runner.intake.lost] == [
        f"lane 's': cannot ask for 's3://{bucket}/in/a.txt': no answer"
    ]


def test_the_queue_of_a_bucket_at_sqs(tmp_path: Path, s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that sends its events to a queue of SQS: each file once, and the queue is empty then.

    (pipeline 35)
    """
    import boto3

    for name, value in (("ACCESS_KEY_ID", KEYS["key"]), ("SECRET_ACCESS_KEY", KEYS["secret"])):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", KEYS["region"])
    client = boto3.client("sqs", endpoint_url=s3_store.endpoint)
    url = client.create_queue(QueueName="uploads")["QueueUrl"]
    bucket = s3_store.bucket()
    queue = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    s3_store.client.put_bucket_notification_configuration(
        Bucket=bucket,
        NotificationConfiguration={"QueueConfigurations": [{"QueueArn": queue, "Events": ["s3:ObjectCreated:*"]}]},
    )
    keys = [f"in/{number} +ü.txt" for number in range(25)]
    for key in keys:
        s3_store.client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    client.send_message(QueueUrl=url, MessageBody="hdfs://no/event")
    client.send_message(QueueUrl=url, MessageBody=event(bucket, keys[0], "in/gone.txt"))
    run = store_run(tmp_path, s3_store, bucket, events=url)
    unlisted(run)
    run.run()
    assert rows_in(run.output) == sorted(keys)
    attributes = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = client.get_queue_attributes(QueueUrl=url, AttributeNames=attributes)["Attributes"]
    assert sum(map(int, left.values())) == 1  # the message that is no event, for the redrive policy
    client.delete_queue(QueueUrl=url)


@pytest.mark.skipif(find_spec("botocore") is None, reason="botocore is not installed: pip install s3fs")
def test_a_queue_of_sqs_without_a_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that tells no region, and an environment that has none, are one sentence."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    lane = Lane("u", tmp_path, ("*.txt",), events="http://127.0.0.1:1/1/uploads", section="u")
    with pytest.raises(Unprepared, match=r"lane 'u': 'http://127.0.0.1:1/1/uploads' does not answer: .* region"):
        Pipeline(tmp_path, [lane]).run()


def test_a_queue_of_sqs_that_is_not_there(tmp_path: Path, s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that does not answer is one sentence before anything starts."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    url = f"{s3_store.endpoint}/123456789012/nowhere"
    with pytest.raises(Unprepared, match=r"lane 's': .*nowhere' does not answer"):
        store_run(tmp_path, s3_store, "b", events=url).run()


def test_a_queue_of_sqs_is_not_drained_while_a_message_of_it_is_taken() -> None:
    """It can be taken as soon as it is there: then another may be there too."""
    drained: list[bool] = []

    class Came(deque[tuple[str, str]]):
        def extend(self, messages: Iterable[tuple[str, str]]) -> None:
            super().extend(messages)
            queue.events(1)
            drained.append(queue.is_drained)

    queue = SqsQueue.__new__(SqsQueue)
    queue._url, queue._error, queue._came, queue._is_empty = "", None, Came(), [True]
    message = {"Body": "", "ReceiptHandle": ""}
    queue._client = SimpleNamespace(receive_message=lambda **_: {"Messages": [message]})
    queue._receive(0)
    assert drained == [False]


class Watching:
    """A run that follows `in` by inotify, and what is done to the directory when."""

    def __init__(self, base: Path, *acts: Callable[[], object], **settings: Any) -> None:
        (base / "in").mkdir(exist_ok=True)
        self.acts = list(acts)
        lanes = [Lane("i", base, ("in/**/*.txt",), events="inotify", section="i", **settings)]
        self.looks = 0

        def look() -> list[Lane]:
            self.looks += 1
            return lanes

        # Files are stamped by the system's clock, and the time of the run passes by itself.
        self.run = Pipeline(
            base,
            lanes,
            on_idle=self._idle,
            follow=lambda run: Follow(1.0, 0.0, look, run.time, lambda: 4e9),
        )

    def _idle(self, run: Pipeline) -> None:
        if self.acts:
            self.acts.pop(0)()
        elif run.time() > 20:
            run.mailbox.post(StopRequested())


linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")


@linux
def test_local_files_by_inotify(tmp_path: Path) -> None:
    """Written, moved in, linked, in a new directory, in one that was moved in, written anew: each version once."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "before.txt").write_text("before")
    (tmp_path / "moved.txt").write_text("moved")
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "t.txt").write_text("tree")
    inbox = tmp_path / "in"
    watching = Watching(
        tmp_path,
        lambda: None,
        lambda: (inbox / "written.txt").write_text("written"),
        lambda: os.rename(tmp_path / "moved.txt", inbox / "moved.txt"),
        lambda: os.link(inbox / "written.txt", inbox / "linked.txt"),
        lambda: (inbox / "new" / "er").mkdir(parents=True),
        lambda: (inbox / "new" / "er" / "n.txt").write_text("new"),
        lambda: os.rename(tmp_path / "tree", inbox / "tree"),
        lambda: (inbox / "tree" / "deep" / "u.txt").write_text("later"),
        lambda: (inbox / "before.txt").write_text("before, anew"),
        lambda: (inbox / "other.csv").write_text("no"),
    )
    watching.run.ledger.close, close = lambda: None, watching.run.ledger.close  # type: ignore[method-assign]
    watching.run.run()
    told = watching.run.ledger.arrivals.of("i")
    close()
    assert rows_in(watching.run.output) == sorted(
        ["written", "moved", "written", "new", "tree", "later", "before, anew"]
    )
    assert (told.by_event, told.by_listing) == (7, 1)


@linux
def test_events_that_inotify_dropped(tmp_path: Path) -> None:
    """When the system has dropped events, the directories are listed."""
    watching = Watching(tmp_path)

    def lose() -> None:
        (tmp_path / "in" / "a.txt").write_text("a")
        source = watching.run.events._sources["inotify"]
        assert source is not None
        source.events(100)
        source.has_lost = True

    watching.acts = [lambda: None] * 5 + [lose]
    watching.run.run()
    assert rows_in(watching.run.output) == ["a"]


@linux
def test_a_root_that_goes_and_comes_back(tmp_path: Path) -> None:
    """A root that is removed and made again, or that another directory replaces, is watched as before."""
    inbox = tmp_path / "in"

    def again() -> None:
        inbox.mkdir()
        (inbox / "again.txt").write_text("again")

    def replace() -> None:
        os.rename(inbox, tmp_path / "old")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "with.txt").write_text("with")
        os.rename(tmp_path / "new", inbox)

    watching = Watching(
        tmp_path,
        lambda: None,
        inbox.rmdir,
        lambda: None,
        again,
        lambda: (inbox / "late.txt").write_text("late"),
        lambda: None,
        replace,
        lambda: (inbox / "last.txt").write_text("last"),
    )
    watching.run.run()
    assert rows_in(watching.run.output) == ["again", "last", "late", "with"]


@linux
def test_a_directory_whose_making_inotify_dropped(tmp_path: Path) -> None:
    """Where events were dropped, one of them may have told of a directory: it is watched from then on."""
    watching = Watching(tmp_path)

    def lose() -> None:
        source: Any = watching.run.events._sources["inotify"]
        (tmp_path / "in" / "new").mkdir()
        os.read(source._fd, 1 << 16)
        source._note(-1, 0x4000, "")

    watching.acts = [
        *[lambda: None] * 5,
        lose,
        *[lambda: None] * 20,
        lambda: (tmp_path / "in" / "new" / "a.txt").write_text("a"),
    ]
    watching.run.run()
    assert rows_in(watching.run.output) == ["a"]


@linux
def test_what_is_avoided_is_not_watched(tmp_path: Path) -> None:
    """A directory that the run makes for itself below a root costs no watches."""
    with contextlib.ExitStack() as stack:
        watches = Watches("i", [Place(str(tmp_path))], [Place(f"{tmp_path}/out")], stack)
        (tmp_path / "out" / "item").mkdir(parents=True)
        (tmp_path / "other").mkdir()
        assert watches.events(9) == []
        assert sorted(watches._directories.values()) == [str(tmp_path), f"{tmp_path}/other"]


@linux
def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """inotify needs its directory; without it, one sentence."""
    watching = Watching(tmp_path)
    (tmp_path / "in").rmdir()
    with pytest.raises(Unprepared, match=r"lane 'i': .*/in' does not exist"):
        watching.run.run()


@pytest.mark.parametrize(
    ("lane", "complaint"),
    [
        ('events = "amqp://h"\nfiles = "*"\nformat = "text"', "names no queue"),
        ('events = "amqp://h/q"\nformat = "text"', "either files"),
        ('events = "inotify"\nfiles = "s3://b/*"\nformat = "text"', "a local one is needed"),
        ('source = "amqp://h/q"\nformat = "text"', 'events = "amqp://..." finds those'),
        ('listing_seconds = 5\nfiles = "*"\nformat = "text"', "listing_seconds needs events"),
    ],
)  # fmt: skip
def test_mistakes_in_the_configuration(tmp_path: Path, lane: str, complaint: str) -> None:
    """What cannot be a lane with events is told."""
    text = f'[lanes.q]\n{lane}\n[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n'
    with pytest.raises(ConfigError, match=complaint.replace("(", r"\(")):
        parse_config(tomllib.loads(text), tmp_path)


@pytest.mark.parametrize(("files", "kills"), [(300, 12), pytest.param(2000, 100, marks=pytest.mark.slow)])
def test_killed_runs_with_events_lost_and_doubled(tmp_path: Path, host: Host, files: int, kills: int) -> None:
    """Runs die at any moment, events are lost, doubled, late, and files are written anew: each file's last version
    is in the output once.

    (pipeline 34, 35)
    """
    chance = random.Random(kills)
    names = [f"f{number:04}" for number in range(files)]
    wanted: dict[str, str] = {}
    late: list[str] = []
    moment = [1_000_000.0]

    def upload(name: str, version: int) -> None:
        wanted[name] = f"{name} {version}"
        path = tmp_path / "in" / f"{name}.txt"
        path.write_text(wanted[name])
        os.utime(path, (version, version))
        events = [f"in/{name}.txt"] * chance.choice((0, 1, 1, 1, 2))
        for one in events:
            if chance.random() < 0.2:
                late.append(one)
            else:
                host.publish(one)

    (tmp_path / "in").mkdir()
    died = 0
    rest = list(names)
    while died < kills or rest or late:
        for _ in range(min(len(rest), max(files // max(kills - 2, 1), 1))):
            upload(rest.pop(), 1)
        for name in chance.sample(sorted(wanted), min(3, len(wanted))):
            upload(name, died + 2)
        while late and (chance.random() < 0.5 or not rest):
            host.publish(late.pop(chance.randrange(len(late))))
        left = chance.randrange(1, 25)

        def die(run: Pipeline) -> None:
            nonlocal left, died
            left -= 1
            if left == 0 and died < kills:
                died += 1
                raise Dead

        run = local(
            tmp_path,
            host,
            listed=False,
            batch=chance.choice((1, 3)),
            on_idle=die,
            wall=lambda: moment[0],
            listing_s=9.0,
        )
        moment[0] += chance.choice((1.0, 4.0))
        with contextlib.suppress(Dead):
            run.run()
    moment[0] += 10
    last = local(tmp_path, host, listed=False, listing_s=9.0, wall=lambda: moment[0])
    last.run()
    assert rows_in(last.output) == sorted(wanted.values())
    assert host.depth() == 0
