"""The same calls over a socket, over the direct link, and at RabbitMQ: they end alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_calls_support import CALLS, outcome
from client_parts_support import direct_link
from rabbitmq_support import Peer

from multiqueue.amqp import ServerSettings
from multiqueue.broker import Broker
from multiqueue.client import ChannelClosed, connect
from multiqueue.testing import PATIENCE

# Where our server differs from RabbitMQ 3.10, and why: docs/decisions/0841-where-programs-see-a-difference.md
OURS: set[str] = {"ask for the server's figures", "declare an unknown type"}
OURS_AT_4 = OURS - {"declare an unknown type"}  # which is a 406 there, as here


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[str, Broker]]:
    """Our server's address, and a broker of this process: two, so that names do not meet."""
    with Broker(housekeeping_interval=0.02) as served, Broker(housekeeping_interval=0.02) as direct:
        yield str(served.listen().url), direct


@pytest.mark.parametrize("label", CALLS)
def test_a_call_ends_alike_over_both_links(label: str, brokers: tuple[str, Broker]) -> None:
    """What a client sees of a call is the same over a socket and over a link to a broker in its process (client 12)."""
    over_a_socket, direct = (outcome(peer, label, CALLS[label]) for peer in brokers)
    assert direct == over_a_socket, f"{direct} where a socket gives {over_a_socket}"


@pytest.mark.parametrize("label", CALLS)
def test_a_call_ends_as_at_rabbitmq(label: str, brokers: tuple[str, Broker], rabbitmq_peer: Peer) -> None:
    """What a client sees of a call is what it sees at RabbitMQ, the words of an error aside."""
    ours, theirs = (outcome(peer, label, CALLS[label]) for peer in (brokers[0], rabbitmq_peer.url))
    differs = OURS if rabbitmq_peer.version < (4,) else OURS_AT_4
    assert (_without_text(ours) == _without_text(theirs)) == (label not in differs), (
        f"{ours} where RabbitMQ gives {theirs}"
    )


def _without_text(seen: object) -> object:
    return seen[:2] if isinstance(seen, tuple) and len(seen) == 3 and isinstance(seen[1], int) else seen


@pytest.mark.parametrize("link", ["socket", "direct"])
def test_a_body_above_the_limit_is_refused(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message larger than a server takes closes its channel with 406 over both links; one as large does not."""
    monkeypatch.setattr(direct_link, "_MOST_BYTES", 1000)
    with Broker() as broker:
        peer = broker if link == "direct" else broker.listen(settings=ServerSettings(max_message_bytes=1000)).url
        with connect(peer, recover=False) as connection:
            channel = connection.channel()
            channel.publish_confirmed(bytes(1000)).result(PATIENCE)
            channel.publish(bytes(1001))
            with pytest.raises(ChannelClosed, match="message size 1001 is larger than configured max size 1000"):
                channel.basic_qos(0)
