"""multiqueue: block on many queues at once; feed threads and Spark fairly.

    from multiqueue import LinkedBlockingMultiQueue

    inbox = LinkedBlockingMultiQueue()
    orders, mail = inbox.add_subqueue("orders", capacity=1000), inbox.add_subqueue("mail", priority=1)
    orders.put("two coffees")
    subqueue, item = inbox.take()

`import multiqueue as queue` is a drop-in for the standard library's `queue`. This door opens the core alone: no
sockets, no files, no Spark. The other rooms, along the path of a message, are imported by name:

    core       the engine room: multi-queue, sub-queue, drop-in Queue, executor with lanes
    store      the cellar: messages that must survive, in an SQLite file
    broker     the sorting office: broker queues, exchanges, consumers, in process
    amqp       the gatehouse: an AMQP 0-9-1 server in front of the broker
    client     the front office: connections and channels, over a wire or in process
    spark      the loading dock: the executor with Spark behind it; the only room that imports pyspark
    pipeline   the main job: files to Spark jobs to output, restartable
    monitor    the windows: RabbitMQ's HTTP API and metrics of a running broker
    observe    whose log record it is, OpenTelemetry's traces, how far futures are
    bench      what we claim, measured beside its rivals
    transfer   the removal van: what a broker keeps, to another broker by URL
    demo       the first minute, in the terminal
    testing    public tools for deterministic tests of threaded code
    cli        the command line
    pytest_plugin  the fixture multiqueue_broker
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import SimpleQueue

    from .core import (
        FairQueue,
        FairTaken,
        Lane,
        LifoQueue,
        LinkedBlockingMultiQueue,
        MultiQueueExecutor,
        Offerable,
        Pollable,
        PriorityQueue,
        Queue,
        SubQueue,
        SubQueueSelection,
        Taken,
    )
    from .errors import Detached, Empty, Full, InvalidSelection, MultiQueueError, ShutDown, SubQueueExists

__all__ = [
    "Detached",
    "Empty",
    "FairQueue",
    "FairTaken",
    "Full",
    "InvalidSelection",
    "Lane",
    "LifoQueue",
    "LinkedBlockingMultiQueue",
    "MultiQueueError",
    "MultiQueueExecutor",
    "Offerable",
    "Pollable",
    "PriorityQueue",
    "Queue",
    "ShutDown",
    "SimpleQueue",
    "SubQueue",
    "SubQueueExists",
    "SubQueueSelection",
    "Taken",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The core and its names, loaded when a program first asks for one: other rooms, such as the plugin, need none."""
    from importlib import import_module

    if name in ("core", "errors"):
        return import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    core = import_module(".core", __name__)
    for home in (import_module("queue"), import_module(".errors", __name__), core):  # the last one that has it
        globals().update({each: vars(home)[each] for each in __all__ if each in vars(home)})
    if name not in globals():
        globals()[name] = getattr(core, name)  # which the core in turn loads now
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
