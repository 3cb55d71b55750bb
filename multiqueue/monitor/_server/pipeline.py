"""A pipeline's run on the page: its dispatcher's lanes, and how far each is."""

from __future__ import annotations

from typing import Any

from ...core import MultiQueueExecutor
from .._figures.lanes import Lanes
from .server import HttpServer, serve_lanes

_STATES = ("waiting", "running", "done", "failed")


class PipelineWindows:
    """The page of one run: a `Reporter` of `multiqueue.pipeline` that passes everything on. A context manager.

    The page exists from `with` until its end. The runner's thread reports, the page reads the latest snapshot.
    """

    def __init__(self, name: str, reporter: Any, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._name = name
        self._to = reporter
        self._address = host, port
        self._lanes = Lanes()
        self._snapshot: Any = None
        self.server: HttpServer | None = None  # while it is open

    def __enter__(self) -> PipelineWindows:
        """Answer requests.

        Raises:
            MonitorError: the port cannot be had.
        """
        self.server = serve_lanes(self._lanes, *self._address)
        self._to.note(f"the lanes are shown at {self.server.url} to the user guest, password guest, of this machine")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.server is not None:
            self.server.close()

    def watch(self, dispatcher: MultiQueueExecutor) -> None:
        """Show the jobs of the run's dispatcher."""
        self._lanes.watch(self._name, dispatcher, self._items)

    def _items(self) -> dict[str, dict[str, int]]:
        lanes = () if self._snapshot is None else self._snapshot.lanes
        return {lane.lane: {state: getattr(lane, state) for state in _STATES} for lane in lanes}

    # -- as the run reports

    def note(self, text: str) -> None:
        """Passed on, as all that follows."""
        self._to.note(text)

    def begin(self, snapshot: Any) -> None:
        self._snapshot = snapshot
        self._to.begin(snapshot)

    def update(self, snapshot: Any) -> None:
        self._snapshot = snapshot
        self._to.update(snapshot)

    def attempt_ended(self, ended: Any) -> None:
        self._to.attempt_ended(ended)

    def stopping(self, requests: int, in_flight: int) -> None:
        self._to.stopping(requests, in_flight)

    def end(self, snapshot: Any) -> None:
        self._snapshot = snapshot
        self._to.end(snapshot)
