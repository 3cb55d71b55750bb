"""The node, which is this process, in figures: its open files and memory, and how many connections and messages came
and went.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...amqp import Server, memory_used_bytes

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CHURN: Final = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
GAUGES: Final = ("mem_used", "fd_used", "sockets_used", "proc_used", "disk_free")
COUNTERS: Final = ("gc_num", "context_switches", "io_sync_count", *CHURN)
FIGURES: Final = (*GAUGES, *COUNTERS)


def threads_limit() -> int:
    """How many threads and processes the system lets this user have."""
    if resource is None or not hasattr(resource, "RLIMIT_NPROC"):
        return 2**20
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return soft if 0 <= soft < 2**31 else 2**20


def node_figures(server: Server | None, data: Path | None, counted: Mapping[str, int]) -> Mapping[str, int]:
    """The figures of this process now, under RabbitMQ's names; `proc_used` are threads. `counted` are those of virtual
    hosts, also of the ones that are gone.
    """
    found = {
        **counted,
        "mem_used": memory_used_bytes(),
        "proc_used": threading.active_count(),
        "gc_num": sum(each["collections"] for each in gc.get_stats()),
    }
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found["context_switches"] = usage.ru_nvcsw + usage.ru_nivcsw
    if server is not None:
        past = server.past()
        found["connection_created"], found["connection_closed"] = past.connections_created, past.connections_closed
        found["channel_created"], found["channel_closed"] = past.channels_created, past.channels_closed
        found["sockets_used"] = past.connections_created - past.connections_closed
    try:
        found["fd_used"] = len(os.listdir("/proc/self/fd"))
    except OSError:
        pass  # a system without it
    try:
        found["disk_free"] = shutil.disk_usage(data or Path.cwd()).free
    except OSError:
        pass  # a directory that is gone has no free space to speak of
    return {name: found.get(name, 0) for name in FIGURES}
