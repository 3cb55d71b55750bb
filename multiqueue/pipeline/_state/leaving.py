"""The files of done items that are to be moved or deleted, in the ledger.

Promise     A file is input, or noted here, or neither: one transaction takes all files of a done item from the one to
            the other, and a scan takes a noted file for known while it is the same.
State       The table leaving, and `ended_at` of items: when one was done by the clock on the wall, NULL once its files
            leave or stay for good.
Threads     The ledger's one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._base.items import FileSeen
from .state import TAKEN_AWAY, LedgerPart, note, noted


@dataclass(frozen=True, slots=True)
class Leaving:
    """A file of a done item that is to be taken away."""

    item: int
    lane: str
    seen: FileSeen
    """As it was read."""


class LedgerLeaving(LedgerPart):
    """The files that go, as a ledger keeps them. Call its writing methods inside the ledger's transactions."""

    def versions(self, lane: str, paths: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """Sizes and times of files that are to be taken away, by path: one may be followed by another of its name."""
        marks = ",".join("?" * len(paths))
        found: dict[str, list[tuple[int, int]]] = {}
        for path, size_bytes, mtime_ns in self._connection.execute(
            f"SELECT path, size, mtime_ns FROM leaving WHERE lane = ? AND path IN ({marks})", (lane, *paths)
        ):
            found.setdefault(path, []).append((size_bytes, mtime_ns))
        return found

    def lanes(self) -> list[tuple[str, str]]:
        """The lanes of which files are noted to be taken away, each with the path of one."""
        return [*self._connection.execute("SELECT lane, min(path) FROM leaving GROUP BY lane ORDER BY lane")]

    def noted(self, lanes: Sequence[str], most: int) -> list[Leaving]:
        """Files of these lanes that are noted to be taken away."""
        marks = ",".join("?" * len(lanes))
        rows = self._connection.execute(
            f"SELECT item, lane, path, size, mtime_ns FROM leaving WHERE lane IN ({marks}) LIMIT ?", (*lanes, most)
        )
        return [Leaving(item, lane, FileSeen(path, size, mtime_ns)) for item, lane, path, size, mtime_ns in rows]

    def done_before(self, lane: str, at_s: float, most: int) -> list[list[Leaving]]:
        """The files of the lane's items that were done by then, the first ones, item by item: at most so many files,
        or one item. Those that `stay` or are leaving are not among them."""
        rows = self._connection.execute(
            "SELECT seq FROM items WHERE state = 'done' AND lane = ? AND ended_at <= ? ORDER BY ended_at, seq LIMIT ?",
            (lane, at_s, most),
        ).fetchall()
        found: list[list[Leaving]] = []
        count = 0
        for (seq,) in rows:
            found.append(self._files(seq, lane))
            count += len(found[-1])
            if count >= most:
                break
        return found

    def first_done(self, lane: str) -> float | None:
        """When the first of the items that `done_before` knows was done, by the clock on the wall."""
        (at_s,) = self._connection.execute(
            "SELECT min(ended_at) FROM items WHERE state = 'done' AND lane = ?", (lane,)
        ).fetchone()
        return None if at_s is None else float(at_s)

    def begin(self, files: Sequence[Leaving]) -> None:
        """Note that these, all files of a done item, are taken away from now on; they are input no more."""
        self._connection.executemany(
            "INSERT INTO leaving (item, lane, path, size, mtime_ns) VALUES (?, ?, ?, ?, ?)",
            [(one.item, one.lane, one.seen.path, one.seen.size_bytes, one.seen.mtime_ns) for one in files],
        )
        self._connection.execute("DELETE FROM files WHERE item = ?", (files[0].item,))
        self.stay(files[0].item)

    def stay(self, item: int) -> None:
        """The files of this done item are not taken away, unless it is done anew."""
        self._connection.execute("UPDATE items SET ended_at = NULL WHERE seq = ?", (item,))

    def forget(self, files: Sequence[Leaving]) -> None:
        """These are not to be taken away any more."""
        self._connection.executemany(
            "DELETE FROM leaving WHERE item = ? AND path = ?", [(one.item, one.seen.path) for one in files]
        )

    def count(self, lane: str, count: int) -> None:
        """So many more files of the lane were moved or deleted."""
        note(self._connection, TAKEN_AWAY + lane, count + int(noted(self._connection, TAKEN_AWAY + lane) or 0))

    def _files(self, item: int, lane: str) -> list[Leaving]:
        rows = self._connection.execute("SELECT path, size, mtime_ns FROM files WHERE item = ? ORDER BY place", (item,))
        return [Leaving(item, lane, FileSeen(*row)) for row in rows]
