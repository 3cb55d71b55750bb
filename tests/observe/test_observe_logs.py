"""What log records are about: lane, item, queue and connection on each."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from multiqueue import MultiQueueExecutor
from multiqueue.broker import AlertThresholds, Broker, Message, QueueSettings
from multiqueue.observe import LogContext, log_lanes

FORMAT = "[%(lane)s|%(item)s|%(queue)s|%(connection)s] %(message)s"


class Lines(logging.Handler):
    """Keeps what a formatter of the user's prints."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    for name in ("multiqueue", "shop"):
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in ("multiqueue", "shop"):
        logging.getLogger(name).removeHandler(handler)


def test_a_record_of_ours_says_which_queue(lines: Lines) -> None:
    """A formatter prints the fields without a filter of the user's; what does not apply is empty. (monitor 13)"""
    with Broker() as broker:
        broker.declare_queue("orders", settings=QueueSettings(alerts=AlertThresholds(depth=1)))
        broker.publish(Message(b"tea", routing_key="orders"))
    assert lines.lines == ["[||orders|] queue 'orders': depth is 1, its threshold 1"]


def test_a_record_of_a_job_says_lane_and_item(lines: Lines) -> None:
    """Of the program's own loggers too, once it has asked so; each job's records are its own. (monitor 13)"""
    lines.addFilter(LogContext())
    log = logging.getLogger("shop")

    def brew(what: str) -> None:
        log.warning("no %s", what)

    with MultiQueueExecutor(2) as executor:
        log_lanes(executor)
        for lane, what in (("hot", "tea"), ("cold", "juice")):
            executor.lane(lane).submit(brew, what).result()
    log.warning("closing")
    name = brew.__qualname__
    assert lines.lines == [f"[hot|{name}||] no tea", f"[cold|{name}||] no juice", "[|||] closing"]


def test_text_of_a_peers_in_a_field_ends_no_line(lines: Lines) -> None:
    """A queue's name with a newline is shown with an escape. (monitor 13)"""
    with Broker() as broker:
        broker.declare_queue("a\nb", settings=QueueSettings(alerts=AlertThresholds(depth=1)))
        broker.publish(Message(b"tea", routing_key="a\nb"))
    assert "\n" not in lines.lines[0]
    assert lines.lines[0].startswith("[||a\\nb|]")
