"""What a notebook shows of a broker and a queue."""

from __future__ import annotations

import re

from multiqueue.broker import Broker, Message


def test_a_broker_shows_its_queues_and_a_queue_its_figures() -> None:
    """Names are text, whatever stands in them."""
    with Broker() as broker:
        broker.declare_queue("<i>")
        broker.publish(Message(b"tea", routing_key="<i>"))
        assert re.findall(r"<td[^>]*>(.*?)</td>", broker._repr_html_()) == ["/", "&lt;i&gt;", "1", "0", "0"]
        shown = broker.virtual_host().queue("<i>")._repr_html_()
        assert re.findall(r"<td[^>]*>(.*?)</td>", shown) == ["1", "0", "0", "3", "1", "0", "0", "0"]
        assert "<i>" not in shown
