"""Lanes that are fed from broker queues: acknowledged when done, done once, dead-lettered when bad."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_parts_support import Follow, Lane, StopRequested, split_source
from pipeline_support import Pipeline, rows_in, write_names
from queue_support import Dead, Host, words
from queue_support import host as host
from rabbitmq_support import Peer

from multiqueue.pipeline import ConfigError, Item, JobError, Unprepared, load_config
from multiqueue.testing import wait_until_blocked


def publish(host: Host, *bodies: str, **properties: Any) -> None:
    """Publish these, each under an id of its own."""
    for body in bodies:
        host.publish(body, **{"message_id": f"id-{body}", **properties})


def pipeline(base: Path, host: Host, **settings: Any) -> Pipeline:
    lane = {key: settings.pop(key) for key in ("batch", "batch_s", "prefetch", "batch_bytes") if key in settings}
    queue = Lane("q", base, (), source="amqp://host/work", format="message", section="q", **lane)
    return Pipeline(base, [queue], connect=host.connect, **settings)


@pytest.mark.parametrize("batch", [1, 4])
def test_what_is_in_the_queue_is_done(tmp_path: Path, host: Host, batch: int) -> None:
    """A run takes what the queue has, each message once into the output, and leaves the queue empty."""
    publish(host, *words(30))
    run = pipeline(tmp_path, host, batch=batch)
    snapshot = run.run()
    assert rows_in(run.output) == words(30)
    assert snapshot.total.done == -(-30 // batch)
    assert (host.depth("work"), host.depth("dead")) == (0, 0)


@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("prefetch", [1, 5, 100])
def test_a_lane_keeps_the_turns_of_a_fair_queue(tmp_path: Path, host: Host, batch: int, prefetch: int) -> None:
    """Items of a lane that a fair queue feeds begin in the order of the turns at the broker, in batches too."""
    host.channel.queue_delete("work")
    host.channel.queue_declare("work", durable=True, arguments={"x-queue-kind": "fair"})
    for tenant, count in (("flood", 20), ("a", 4), ("b", 4)):
        publish(host, *(f"{tenant}{number}" for number in range(count)), headers={"tenant": tenant})
    run = pipeline(tmp_path, host, batch=batch, prefetch=prefetch)
    run.run()
    begun = [message.body.decode() for item in run.dispatcher.submitted for message in item.messages]
    turns = [f"{tenant}{number}" for number in range(4) for tenant in ("flood", "a", "b")]
    assert begun == turns + [f"flood{number}" for number in range(4, 20)]


def test_an_empty_queue(tmp_path: Path, host: Host) -> None:
    """A run over an empty queue ends at once."""
    assert pipeline(tmp_path, host).run().total.total == 0


def test_no_more_than_the_prefetch_is_under_way(tmp_path: Path, host: Host) -> None:
    """However many messages wait, a run has at most `prefetch` of them, and the ledger holds no more."""
    publish(host, *words(50))
    most = 0

    def look(run: Pipeline) -> None:
        nonlocal most
        run.queues.check_invariants()
        most = max(most, sum(map(len, run.queues._held.values())))
        assert host.depth("work") >= 50 - len(run.reporter.attempts) - 10

    run = pipeline(tmp_path, host, prefetch=10, on_idle=look)
    run.run()
    assert most == 10
    assert rows_in(run.output) == words(50)


def test_a_run_ends_when_the_queue_is_empty_and_not_when_its_hands_are(tmp_path: Path, host: Host) -> None:
    """All that a run may hold is done at once: it fetches more, and ends when the broker says that there is none."""
    publish(host, *words(9))

    def all_at_once(run: Pipeline) -> None:
        while run.dispatcher.run_next():
            pass

    run = pipeline(tmp_path, host, prefetch=2, on_idle=all_at_once)
    run.run()
    assert rows_in(run.output) == words(9)


def test_batches_are_full_while_the_queue_has_more(tmp_path: Path, host: Host) -> None:
    """However little may be under way, only the last item of a run has fewer messages than `batch`."""
    publish(host, *words(23))
    run = pipeline(tmp_path, host, batch=4, prefetch=10)
    run.run()
    assert [len(item.messages) for item in run.dispatcher.submitted] == [4, 4, 4, 4, 4, 3]
    assert rows_in(run.output) == words(23)


def test_acknowledged_when_done_and_not_before(tmp_path: Path, host: Host) -> None:
    """A run that dies before the end of an item is committed has acknowledged nothing of it; afterwards it is known.

    (pipeline 10)
    """
    publish(host, *words(6))

    def die(run: Pipeline) -> None:
        if len(run.reporter.attempts) == 3:
            raise Dead

    run = pipeline(tmp_path, host, on_idle=die)
    with pytest.raises(Dead):
        run.run()
    assert host.depth("work") == 3
    again = pipeline(tmp_path, host)
    again.run()
    assert rows_in(again.output) == words(6)
    assert host.depth("work") == 0
    assert len(again.dispatcher.submitted) == 3


def test_delivered_again_after_it_was_done(tmp_path: Path, host: Host) -> None:
    """A message whose acknowledgement was lost is acknowledged when it comes again, and not done again.

    (pipeline 10)
    """
    publish(host, "one", "two")
    run = pipeline(tmp_path, host)
    run.queues.settled = lambda item, state: None  # type: ignore[method-assign] # the process dies just before
    run.run()
    assert host.depth("work") == 2
    again = pipeline(tmp_path, host)
    again.run()
    assert again.dispatcher.submitted == []
    assert (host.depth("work"), rows_in(again.output)) == (0, ["one", "two"])


def test_done_without_the_broker(tmp_path: Path, host: Host) -> None:
    """What a dead run has recorded is in the state: the next one does it although the queue was emptied meanwhile."""
    publish(host, *words(4))

    def die(run: Pipeline) -> None:
        if run.dispatcher.submitted:
            raise Dead

    with pytest.raises(Dead):
        pipeline(tmp_path, host, on_idle=die).run()
    host.channel.queue_purge("work")
    again = pipeline(tmp_path, host)
    again.run()
    assert rows_in(again.output) == words(4)
    rows = again.output / "_multiqueue" / "state.sqlite"
    assert rows.exists()


def test_published_twice(tmp_path: Path, host: Host) -> None:
    """Two messages of one id are one item, whether they come together or after it was done; both are acknowledged."""
    publish(host, "same", "other", "same")
    pipeline(tmp_path, host).run()
    publish(host, "same")
    again = pipeline(tmp_path, host)
    again.run()
    assert (rows_in(again.output), host.depth("work")) == (["other", "same"], 0)


def test_without_an_id_the_body_tells(tmp_path: Path, host: Host) -> None:
    """Messages without an id are told apart by their bodies."""
    publish(host, "a", "b", "a", message_id="")
    run = pipeline(tmp_path, host)
    run.run()
    assert (rows_in(run.output), host.depth("work")) == (["a", "b"], 0)


def bad(*bodies: str) -> Any:
    def work(spark: Any, item: Item, staged: Path) -> bool:
        if any(payload.body.decode() in bodies for payload in item.messages):
            raise JobError("bad message")
        return write_names(spark, item, staged)

    return work


@pytest.mark.parametrize("batch", [1, 8])
def test_poison(tmp_path: Path, host: Host, batch: int) -> None:
    """A message that cannot be done is rejected, so that the broker dead-letters it; those of its batch are done.

    (pipeline 10)
    """
    publish(host, *words(8))
    run = pipeline(tmp_path, host, batch=batch, work=bad("w003", "w006"))
    assert run.run().total.failed == 2
    assert rows_in(run.output) == sorted(set(words(8)) - {"w003", "w006"})
    assert (host.depth("work"), host.depth("dead")) == (0, 2)
    letters = [json.loads(path.read_text()) for path in (tmp_path / "dead").rglob("*.json")]
    assert sorted(letter["messages"][0]["body"] for letter in letters) == ["w003", "w006"]
    assert letters[0]["messages"][0]["message_id"].startswith("id-w00")


def test_poison_whose_rejection_was_lost(tmp_path: Path, host: Host) -> None:
    """A run that dies before it rejects leaves it to the next one, which does not try the message again."""
    publish(host, "poison")
    run = pipeline(tmp_path, host, work=bad("poison"))
    run.queues.settled = lambda item, state: None  # type: ignore[method-assign] # the process dies just before
    run.run()
    again = pipeline(tmp_path, host, work=bad("poison"))
    again.run()
    assert again.dispatcher.submitted == []
    assert (host.depth("work"), host.depth("dead")) == (0, 1)


def test_published_again_after_it_was_set_aside(tmp_path: Path, host: Host) -> None:
    """A message that was set aside and is published once more is tried once more."""
    publish(host, "poison")
    pipeline(tmp_path, host, work=bad("poison")).run()
    publish(host, "poison")
    again = pipeline(tmp_path, host)
    again.run()
    assert (rows_in(again.output), host.depth("work")) == (["poison"], 0)


def test_sent_back_by_a_queue_after_it_was_set_aside(tmp_path: Path, host: Host) -> None:
    """A dead letter that comes back is flagged as redelivered, and is tried once more."""
    publish(host, "poison")
    pipeline(tmp_path, host, work=bad("poison")).run()
    host.channel.queue_declare("back", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"})
    host.channel.publish_confirmed(b"poison", routing_key="back", message_id="id-poison").result(30)
    sent_back = host.channel.basic_get("back")
    assert sent_back is not None
    sent_back.reject(requeue=False)
    wait_until_blocked(lambda: host.depth("work") == 1)
    again = pipeline(tmp_path, host)
    again.run()
    assert (rows_in(again.output), host.depth("work")) == (["poison"], 0)


def test_following_a_queue(tmp_path: Path, host: Host) -> None:
    """While following, messages are taken as they come; those that do not fill a batch wait so long and no longer."""
    sent: list[float] = []

    def come(run: Pipeline) -> None:
        if len(sent) < 3 and run.time() >= 4 * len(sent):
            sent.append(run.time())
            publish(host, f"late{len(sent)}")
            wait_until_blocked(lambda: run.queues.patience_s() == 0.0)  # the broker delivers in a thread of its own
        if run.time() > 30:
            run.mailbox.post(StopRequested())

    run = pipeline(
        tmp_path,
        host,
        batch=10,
        batch_s=6.0,
        on_idle=come,
        follow=lambda run: Follow(1.0, 2.0, lambda: run.runner.feeding.lanes, run.time, run.time),
    )
    run.run()
    assert rows_in(run.output) == ["late1", "late2", "late3"]
    assert [len(item.messages) for item in run.dispatcher.submitted] == [2, 1]


def test_stopped(tmp_path: Path, host: Host) -> None:
    """What is not done when a run is stopped is in the queue again, for the next one, which does it once."""
    publish(host, *words(12))

    def stop(run: Pipeline) -> None:
        if len(run.reporter.attempts) == 4:
            run.mailbox.post(StopRequested())

    pipeline(tmp_path, host, on_idle=stop).run()
    assert 0 < host.depth("work") < 12
    again = pipeline(tmp_path, host)
    again.run()
    assert (rows_in(again.output), host.depth("work")) == (words(12), 0)


def test_a_queue_that_is_not_there(tmp_path: Path, host: Host) -> None:
    """A queue that was not declared is one sentence that names the lane and the queue."""
    host.channel.queue_delete("work")
    with pytest.raises(Unprepared, match=r"lane 'q': .*work"):
        pipeline(tmp_path, host).run()


@pytest.mark.slow
def test_over_rabbitmq(tmp_path: Path, rabbitmq_peer: Peer) -> None:
    """With RabbitMQ it is the same: a run dies, its messages come again, poison is dead-lettered, each is done once."""
    host = Host(rabbitmq_peer.url)
    with contextlib.closing(host.connection):
        publish(host, *words(200), "poison")

        def die(run: Pipeline) -> None:
            if len(run.reporter.attempts) >= 20:
                raise Dead

        with pytest.raises(Dead):
            pipeline(tmp_path, host, batch=4, on_idle=die, work=bad("poison")).run()
        again = pipeline(tmp_path, host, batch=4, work=bad("poison"))
        wait_until_blocked(lambda: host.depth("work") >= 100)  # the server notices a connection's end in its own time
        again.run()
        assert rows_in(again.output) == words(200)
        assert (host.depth("work"), host.depth("dead")) == (0, 1)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://host/work", ("amqp://host", "work")),
        ("amqp://u:p@host:1/vhost/a%2Fb", ("amqp://u:p@host:1/vhost", "a/b")),
        ("amqps://a,b:2/%2F/q?heartbeat=5", ("amqps://a,b:2/%2F?heartbeat=5", "q")),
    ],
)
def test_addresses(url: str, expected: tuple[str, str]) -> None:
    """The last part of the path is the queue, the rest the broker's address."""
    assert split_source(url) == expected


@pytest.mark.parametrize(
    ("lane", "complaint"),
    [
        ('source = "amqp://host"\nformat = "message"', "2: lanes.q.source: 'amqp://host' names no queue"),
        ('source = "http://host/q"\nformat = "message"', "2: lanes.q.source: 'http://host/q' names no queue"),
        ('source = "amqp://h/q"\nfiles = "*"\nformat = "text"', "1: lanes.q: give either files"),
        ('files = "*"\nformat = "message"', '1: lanes.q: format = "message" needs a source'),
        ('source = "amqp://h/q"\ndirectories = "*"\nformat = "text"', "1: lanes.q: directories and exclude need"),
    ],
)  # fmt: skip
def test_mistakes_in_the_configuration(tmp_path: Path, lane: str, complaint: str) -> None:
    """What cannot be a queue lane is told with its line."""
    text = f'[lanes.q]\n{lane}\n[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n'
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "p.toml")
    assert complaint in str(caught.value)
