"""Heartbeats: when to send one, and when the peer is gone. No threads and no clock."""

from __future__ import annotations


class HeartbeatMonitor:
    """Who was silent for how long, in half periods. Told of time by `tick`, once per half a period.

    Any frame counts as a heartbeat. A peer that sent nothing for two whole periods is gone; we send a heartbeat
    in a half period in which we sent nothing else. Any thread sets `heard` and `said`; one that is lost because `tick`
    resets it then costs half a period of the four.
    """

    __slots__ = ("_silent", "heard", "said")

    def __init__(self) -> None:
        self.heard: bool = True  # something came since the last tick
        self.said: bool = True  # something was sent since the last tick
        self._silent = 0

    def tick(self, *, listening: bool) -> tuple[bool, bool]:
        """Whether to send a heartbeat now, and whether the peer is gone. A peer we do not read is not judged."""
        send = not self.said
        self.said = False
        self._silent = 0 if self.heard or not listening else self._silent + 1
        self.heard = False
        return send, self._silent >= 4
