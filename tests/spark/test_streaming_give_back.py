"""The end of a lease: its messages are on their queues again, as they were published."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_parts_support import _lease_backlog, _lease_return, properties_as_text, properties_of_text
from spark_streaming_support import Engine, depth, numbers, publish, source_reader

from multiqueue.client import Channel, ConnectionClosed, Message, connect
from multiqueue.spark import LeaseInUse, SourceUnavailable, StreamingError, give_back


def leased(url: str, batches: int, **options: str) -> Engine:
    """An engine that has read some batches of five, and is stopped."""
    stream = Engine(lambda: source_reader({"url": url, "queue": "orders", "sourceId": "s", **options}))
    stream.reader.prepareForTriggerAvailableNow()
    for _ in range(batches):
        stream.batch()
    stream.reader.stop()
    return stream


def all_of(url: str, queue: str) -> list[Message]:
    with connect(url) as connection, connection.channel() as channel:
        found = []
        while (message := channel.basic_get(queue, auto_ack=True)) is not None:
            found.append(message)
        return found


def write_checkpoint(directory: Path, stream: Engine, committed: int) -> None:
    """As Spark does, with so many batches committed and all planned."""
    for kind in ("offsets", "commits"):
        (directory / kind).mkdir()
    for number, offset in enumerate(stream.offsets):
        (directory / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}')
        (directory / "offsets" / f".{number}.crc").touch()
    for number in range(committed):
        (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_messages_come_back_as_they_were(url: str) -> None:
    """What a lease holds is on its queues again with all its properties, and the lease is gone.

    (streaming source 11)
    """
    headers: dict[str, Any] = {
        "number": 2**40,
        "bytes": b"\xff",
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "decimal": Decimal("1.50"),
        "table": {"list": [1, None, True, 0.5]},
    }
    publish(url, "orders", b"\x00", message_id="m", headers=headers, priority=4, timestamp=7, expiration="100000")
    publish(url, "returns", b"r", headers={"CC": ["orders"], "kept": 1}, user_id="guest")
    all_of(url, "orders")
    publish(url, "orders", b"\x00", message_id="m", headers=headers, priority=4, timestamp=7, expiration="100000")
    leased(url, 1, queue="orders,returns")
    assert give_back(url, "s") == 2
    [order] = all_of(url, "orders")
    assert order.body == b"\x00"
    assert order.properties == {
        "message_id": "m",
        "headers": headers,
        "priority": 4,
        "timestamp": 7,
        "expiration": "100000",
        "delivery_mode": 2,
    }
    [back] = all_of(url, "returns")
    assert back.headers == {"kept": 1}
    assert "user_id" not in back.properties
    with pytest.raises(StreamingError, match=r"there is no lease 's' at this broker: it has no queue lease\.s"):
        give_back(url, "s")


@pytest.mark.parametrize(("committed", "count"), [(2, 2), (3, 0)])
def test_what_is_in_the_output_is_dropped(url: str, tmp_path: Path, committed: int, count: int) -> None:
    """With the query's checkpoint those messages come back whose batch it has not committed."""
    publish(url, "orders", *numbers(0, 12))
    stream = leased(url, 3, maxMessagesPerBatch="5")
    write_checkpoint(tmp_path, stream, committed)
    assert give_back(url, "s", checkpoint=tmp_path) == count
    assert [message.body for message in all_of(url, "orders")] == numbers(10, count)


def test_a_checkpoint_without_a_committed_batch(url: str, tmp_path: Path) -> None:
    """If the query has committed nothing, everything comes back."""
    publish(url, "orders", *numbers(0, 5))
    write_checkpoint(tmp_path, leased(url, 1), committed=0)
    assert give_back(url, "s", checkpoint=f"file://{tmp_path}") == 5


def test_a_wrong_checkpoint_gives_nothing_back(url: str, tmp_path: Path) -> None:
    """Another query's checkpoint, or none, is told before anything is done."""
    publish(url, "orders", *numbers(0, 12))
    stream = leased(url, 3, maxMessagesPerBatch="5")
    with pytest.raises(StreamingError, match=r"commits is not there: .* is not the checkpoint"):
        give_back(url, "s", checkpoint=tmp_path / "nowhere")
    with pytest.raises(StreamingError, match=r"s3a://lake/c is not on this machine: copy its directories offsets and"):
        give_back(url, "s", checkpoint="s3a://lake/c")
    with pytest.raises(StreamingError, match="s3a:/lake/c is not on this machine: copy"):
        give_back(url, "s", checkpoint=Path("s3a://lake/c"))
    with pytest.raises(StreamingError, match="the checkpoint file://lake/c names the host 'lake'"):
        give_back(url, "s", checkpoint="file://lake/c")
    stream.offsets[1]["lease"] = "another"
    write_checkpoint(tmp_path, stream, committed=2)
    with pytest.raises(StreamingError, match="does not know lease"):
        give_back(url, "s", checkpoint=tmp_path)
    assert depth(url, "orders") == 0
    assert give_back(url, "s") >= 2


def test_a_query_keeps_its_lease(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a query reads, its lease cannot be given back."""
    publish(url, "orders", b"0")
    monkeypatch.setattr(_lease_return, "PATIENCE", 0)
    stream = Engine(lambda: source_reader({"url": url, "queue": "orders", "sourceId": "s"}))
    stream.run_until(1)
    with pytest.raises(LeaseInUse):
        give_back(url, "s")
    stream.reader.stop()


@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
def test_it_can_be_interrupted(url: str, monkeypatch: pytest.MonkeyPatch, is_done: bool) -> None:
    """Interrupted in any commit and called again, it has given each message back once (streaming source 11)."""
    monkeypatch.setattr(_lease_backlog, "CHUNK_BYTES", 1)
    publish(url, "orders", *numbers(0, 5))
    leased(url, 1)
    commit, commits = Channel.tx_commit, list[Channel]()

    def cut(channel: Channel) -> None:
        commits.append(channel)
        if len(commits) == 2:
            if is_done:
                commit(channel)
            raise ConnectionClosed("cut")
        commit(channel)

    monkeypatch.setattr(Channel, "tx_commit", cut)
    with pytest.raises(ConnectionClosed):
        give_back(url, "s")
    give_back(url, "s")
    assert sorted(int(message.body) for message in all_of(url, "orders")) == list(range(5))


def test_a_queue_that_is_gone_is_told(url: str) -> None:
    """A message whose queue is gone stays in the lease until the queue is declared again."""
    publish(url, "orders", b"0")
    leased(url, 1)
    with connect(url) as connection, connection.channel() as channel:
        channel.queue_delete("orders")
        with pytest.raises(SourceUnavailable, match="queue orders is not there any more; declare it"):
            give_back(url, "s")
        publish(url, "orders")
        assert give_back(url, "s") == 1


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(0, 2**31, places=2)
    | st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["$bytes", "$$bytes", "$"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_properties_survive_as_text(headers: dict[str, Any]) -> None:
    """Whatever headers a publisher sets are the same after the way through text."""
    properties = {"message_id": "m", "headers": headers}
    assert properties_of_text(properties_as_text(properties)) == properties
