"""The messages of queue lanes in the ledger: those that came, until their items are done.

Promise     A message that was recorded can be worked on without the broker, also after a crash. Its key stays for
            ever, so a message that is delivered again is known; its body goes with the transaction that says done.
State       The table messages, beside the ledger's own.
Threads     The ledger's one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .._base.items import FileSeen, Payload
from .._base.lifecycle import ItemState
from .state import LedgerPart, state_named


class LedgerMessages(LedgerPart):
    """The messages that a ledger keeps. Call it inside the ledger's transactions."""

    def state_of(self, lane: str, path: str) -> tuple[ItemState, int] | None:
        """The state and the number of the item that has the message; None for one that is new."""
        row = self._connection.execute(
            "SELECT state, seq FROM files JOIN items ON seq = item WHERE files.lane = ? AND files.path = ?",
            (lane, path),
        ).fetchone()
        return None if row is None else (state_named(row[0]), row[1])

    def keep(self, lane: str, path: str, payload: Payload) -> None:
        """Keep the body of a message."""
        self._connection.execute(
            "INSERT INTO messages (lane, path, id, routing_key, headers, body) VALUES (?, ?, ?, ?, ?, ?)",
            (lane, path, payload.id, payload.routing_key, json.dumps(payload.headers), payload.body),
        )

    def forget(self, lane: str, files: Sequence[FileSeen]) -> None:
        """Drop the bodies of these messages; they stay known."""
        self._connection.executemany(
            "DELETE FROM messages WHERE lane = ? AND path = ?", [(lane, one.path) for one in files]
        )

    def payloads(self, lane: str, files: Sequence[FileSeen]) -> tuple[Payload, ...]:
        """The messages as they came, in this order."""
        rows = (
            self._connection.execute(
                "SELECT id, routing_key, headers, body FROM messages WHERE lane = ? AND path = ?", (lane, one.path)
            ).fetchone()
            for one in files
        )
        return tuple(Payload(row[0], row[1], json.loads(row[2]), row[3]) for row in rows if row is not None)
