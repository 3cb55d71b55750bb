"""Commits to tables: items that end within half a second go into one commit.

Promise     The runner learns of an item's end once its rows are committed, and not before. With an error, if they were
            left out; with the same error for all of a commit that could not be made.
            The number of a commit is in the state before it is made: after a crash the table is asked for that one.
            The runner records the ends of a commit before the number of the next, so it is the last of ours there.
            It learns of an end with nothing to commit at once.
State       `_ended`, ends that wait for a commit; `_running`, items that run: an ended item waits for company only
            while some may come. Both under `_lock`.
Threads     A separate one, between `open` and its end, makes the commits. `post` is called by the threads of items.
            `_recording`, what the runner is asked to record.
Waiting     The thread waits for an end, then until `_TOGETHER_S` are over, `_MOST` have ended, or none runs.
            `post` notifies, and so does the end.
Stopping    What waits at the end is not committed: its items are submitted still, and run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError

from ..._locks import Condition, Lock
from .._base.errors import PipelineError
from .._write.table import Table, Written
from .mailbox import Committing, Ended, Message, Met, Numbered, Started

# A commit costs tenths of a second on an object store, and versions of a table are few this way.
_TOGETHER_S = 0.5
_MOST = 500


class Committer:
    """Stands between the items' threads and the mailbox."""

    def __init__(self, tell: Callable[[Message], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._monotonic = monotonic
        self._lock = Lock()
        self._may_commit = Condition(self._lock)
        self._running: set[int] = set()
        self._ended: list[tuple[Ended, Met, Written]] = []
        self._since_s = 0.0
        self._recording: Future[str] | None = None
        self._is_over = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """While inside, commits are made."""
        thread = threading.Thread(target=self._work, name="multiqueue-pipeline-committer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._is_over = True
                self._may_commit.notify()
                recording = self._recording
            if recording is not None:  # the runner has ended, and records nothing any more
                with contextlib.suppress(InvalidStateError):  # it has in this moment
                    recording.set_exception(PipelineError("the run has ended"))
            thread.join()

    def post(self, message: Message) -> None:
        """Tell the runner, at once or when what the message brings is committed."""
        waiting = _to_commit(message)
        if waiting is not None:
            self._tell(Committing(waiting[0].seq))  # before the thread can tell of the end
        with self._lock:
            if isinstance(message, Started):
                self._running.add(message.seq)
            elif isinstance(message, Ended):
                self._running.discard(message.seq)
            if waiting is not None:
                if not self._ended:
                    self._since_s = self._monotonic()
                self._ended.append(waiting)
            self._may_commit.notify()
        if waiting is None:
            self._tell(message)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._is_over and (patience_s := self._patience_s_locked()) != 0.0:
                    self._may_commit.wait(patience_s)
                if self._is_over:
                    return
            self.commit()

    def commit(self) -> int:
        """Commit what waits, at most `_MOST` ends; how many there were. The thread calls it, or tests do."""
        with self._lock:
            chosen, self._ended = self._ended[:_MOST], self._ended[_MOST:]
        by_table: dict[int, list[tuple[Ended, Met, Written]]] = {}
        for one in chosen:
            by_table.setdefault(id(one[2].table), []).append(one)
        for group in by_table.values():
            self._commit(group[0][2].table, group)
        return len(chosen)

    def _patience_s_locked(self) -> float | None:
        """How long what has ended still waits for more; None while nothing has."""
        if not self._ended:
            return None
        if not self._running or len(self._ended) >= _MOST:
            return 0.0
        return max(self._since_s + _TOGETHER_S - self._monotonic(), 0.0)

    def _commit(self, table: Table, group: Sequence[tuple[Ended, Met, Written]]) -> None:
        errors: Sequence[BaseException | None]
        try:
            number = self._numbered(tuple(ended.seq for ended, _, _ in group))
            errors = table.commit([written.change for _, _, written in group], number)
        except Exception as error:  # noqa: BLE001 - it is every item's own: the runner decides what follows
            errors = [error] * len(group)
        for (ended, met, _), left_out in zip(group, errors, strict=True):
            future: Future[Met] = Future()
            if left_out is None:
                future.set_result(dataclasses.replace(met, written=None))
            else:
                future.set_exception(left_out)
            self._tell(dataclasses.replace(ended, future=future))
        table.tidy()  # its items' ends need not wait for that

    def _numbered(self, seqs: tuple[int, ...]) -> str:
        """The number of a commit that the runner has recorded. Raises PipelineError: the run has ended."""
        recorded: Future[str] = Future()
        with self._lock:
            if self._is_over:
                raise PipelineError("the run has ended")
            self._recording = recorded
        self._tell(Numbered(seqs, recorded))
        try:
            return recorded.result()
        finally:
            with self._lock:
                self._recording = None


def _to_commit(message: Message) -> tuple[Ended, Met, Written] | None:
    if not isinstance(message, Ended) or message.future.cancelled() or message.future.exception() is not None:
        return None
    met = message.future.result()
    return None if met.written is None else (message, met, met.written)
