"""The parts of the client that its tests try alone: the one place where tests name its modules.

No door has them: applications get them inside connections and channels.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from multiqueue.client import _output as _output
from multiqueue.client._base.settings import Settings as Settings
from multiqueue.client._base.settings import settings_for as settings_for
from multiqueue.client._channel.consumers import DeliveryTags as DeliveryTags
from multiqueue.client._channel.lifecycle import TABLE as TABLE
from multiqueue.client._channel.lifecycle import Happening as Happening
from multiqueue.client._channel.lifecycle import IllegalHappening as IllegalHappening
from multiqueue.client._channel.lifecycle import State as State
from multiqueue.client._channel.lifecycle import after as after
from multiqueue.client._channel.publishing import Publication as Publication
from multiqueue.client._channel.publishing import Unconfirmed as Unconfirmed
from multiqueue.client._channel.recorded_topology import Declaration as Declaration
from multiqueue.client._channel.recorded_topology import RecordedTopology as RecordedTopology
from multiqueue.client._dispatch.buffers import Outbox as Outbox
from multiqueue.client._dispatch.buffers import ReceiveBuffer as ReceiveBuffer
from multiqueue.client._dispatch.work_pool import TURNS, Lane, Work, WorkPool
from multiqueue.client._link import direct_link as direct_link
from multiqueue.client._link.assembler import Assembler as Assembler
from multiqueue.client._link.direct_link import DirectLink as DirectLink
from multiqueue.client._link.link import Event as Event
from multiqueue.client._link.link import Link as Link
from multiqueue.client._link.socket import TlsSocket as TlsSocket
from multiqueue.client._link.wire_link import Agreement as Agreement
from multiqueue.client._link.wire_link import WireLink as WireLink


class Pool:
    """Lanes and the pool that runs them: on an executor of the user's or, with `linger` seconds, on one of our own."""

    def __init__(
        self,
        executor: Executor,
        parallel: int,
        on_broken: Callable[[Exception], object] = lambda error: None,
        *,
        linger: float | None = None,
    ) -> None:
        self.work = Work()
        turns = TURNS if linger is None else 1
        self.runner = WorkPool(self.work, executor, parallel, on_broken, turns=turns, linger=linger)

    def add_lane(self, key: object) -> Lane:
        return self.work.add_subqueue(key, max_in_flight=1)

    def put(self, lane: Lane, function: Callable[[Any], object], argument: Any) -> None:
        lane.put((function, argument))
        self.runner.announce()
