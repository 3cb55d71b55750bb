"""Counts the Python calls of one message, from `publish` to `accept`, and the file changes between them.

The counts depend on no clock and hardly on the machine: the thread that publishes waits until the callback accepted.
Run as a program it prints a table; `PYTHONPATH=CHECKOUT` lets it count another checkout of multiqueue:

    python tests/broker/journey_support.py [--trace]

`--trace` prints the calls of one persistent message in their order instead, thread by thread.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import multiqueue
from multiqueue.broker import Broker, Message

HOUSE = Path(multiqueue.__file__).parent
WARM_UP, MESSAGES = 50, 200


@dataclass
class Journey:
    """What the profiler saw while `running`; each thread appends to a list of its own."""

    running: bool = False
    traces: dict[int, list[tuple[str, str]]] = field(default_factory=dict)

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self.running:
            code = frame.f_code
            self.traces.setdefault(threading.get_ident(), []).append((code.co_filename, code.co_qualname))

    def calls(self) -> int:
        return sum(map(len, self.traces.values()))

    def file_changes(self) -> int:
        """How often a thread goes from one of our files to another; other people's files in between do not count."""
        changes = 0
        for trace in self.traces.values():
            ours = [file for file, _ in trace if Path(file).is_relative_to(HOUSE)]
            changes += sum(one != other for one, other in pairwise(ours))
        return changes

    def by_part(self) -> Counter[str]:
        """Calls by room, or by the room's folder where it has folders."""
        parts: Counter[str] = Counter()
        for trace in self.traces.values():
            for file, _ in trace:
                path = Path(file)
                inside = path.is_relative_to(HOUSE)
                parts["/".join(path.relative_to(HOUSE).parts[:-1]) if inside else "other libraries"] += 1
        return parts


def travel(data: str | None, messages: int = MESSAGES) -> Journey:
    """Publish messages one by one to a consumer that accepts each; persistent ones if there is a data directory."""
    journey = Journey()
    threading.setprofile(journey.see)  # for the threads that the broker starts
    with Broker(data=data, housekeeping_interval=3600.0) as broker:
        broker.declare_queue("orders", durable=data is not None)
        accepted = threading.Semaphore(0)

        def consume(received: Any) -> None:
            received.accept()
            accepted.release()

        broker.consume("orders", consume)

        def send(count: int) -> None:
            for _ in range(count):
                broker.publish(Message(b"one tea", routing_key="orders", persistent=data is not None))
                accepted.acquire()

        send(WARM_UP)
        sys.setprofile(journey.see)
        journey.running = True
        send(messages)
        journey.running = False
        sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]  # the stub forgets that None ends it
    return journey


def bases(room: str) -> dict[str, int]:
    """Classes of this room with more than two bases of the same room, over the whole line of descent."""
    counts = {}
    for path in sorted((HOUSE / room).rglob("*.py")):
        name = ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")
        for kind in vars(__import__(name, fromlist=["*"])).values():
            if isinstance(kind, type) and kind.__module__ == name and not issubclass(kind, BaseException):
                ours = [base for base in kind.__mro__[1:] if base.__module__.startswith(f"multiqueue.{room}")]
                if len(ours) > 2:
                    counts[kind.__name__] = len(ours)
    return counts


def main() -> None:
    if "--trace" in sys.argv:
        with tempfile.TemporaryDirectory() as data:
            for trace in travel(data, 1).traces.values():
                print("thread")
                for file, name in trace:
                    path = Path(file)
                    print(f"  {path.relative_to(HOUSE) if path.is_relative_to(HOUSE) else path.name}  {name}")
        return
    with tempfile.TemporaryDirectory() as data:
        for title, journey in (("in memory", travel(None)), ("persistent", travel(data))):
            print(
                f"{title}: {journey.calls() / MESSAGES:.0f} calls, {journey.file_changes() / MESSAGES:.0f} file changes"
            )
            for part, count in journey.by_part().most_common():
                print(f"    {count / MESSAGES:6.1f}  {part}")
    for room in ("broker", "amqp", "client"):
        many = bases(room)
        lines = sum(len(path.read_text().splitlines()) for path in (HOUSE / room).rglob("*.py"))
        print(f"{room}: {lines:,} lines; more than two bases of its own: {many or 'none'}")


if __name__ == "__main__":
    main()
