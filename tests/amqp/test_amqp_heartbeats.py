"""Signs of life: when the server sends them."""

from __future__ import annotations

import pytest
from amqp_desk_support import desk
from pamqp import commands

from multiqueue import amqp
from multiqueue.broker import Broker


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_heartbeat_leaves_every_half_period(broker: Broker, is_busy: bool) -> None:
    """A client never waits a whole period for a byte: neither our last heartbeat nor an answer puts the next heartbeat
    off (P14)."""
    with amqp.serve(broker) as server, desk(server, heartbeat=60) as client:
        connection, transport = client.connection, client.transport
        for _ in range(5):
            timer = connection._timer
            assert timer is not None
            assert timer.when() - client.io.loop.time() <= 30
            if is_busy:
                client.say_method(1, commands.Basic.Qos)
                transport.read()
            timer.cancel()
            connection._tick()  # as its timer does
            assert transport.read() == amqp.HEARTBEAT
            client.say(amqp.HEARTBEAT)
