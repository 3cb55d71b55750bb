"""A publisher that does not wait, and hands what it publishes in a row to the store together.

Promise     As if each message were published by itself, with `publish_nowait`: it is whole on its durable queues or
            refused there, alone, and messages of one publisher join a queue in their order. What differs is when the
            store is given them: in runs.
State       A publisher, and the run that it fills, are one thread's; a run that was handed in is the store's thread's.
Waiting     A publisher calls `hand_in` before it does anything that has to come after, and before it waits: no other
            call commits it. `hand_in`, and a publish that fills a run, wait as `publish_nowait` does, while too many
            bytes wait for their commit; on an I/O thread `to_wait_for` says when its connection may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from multiqueue.store import Commit, StoreError

from .._base.errors import MessageRefused
from .._base.message import MESSAGE_BYTES, Message
from .._base.outcome import PutOutcome
from .._base.waits import may_take_long
from .._durable.batch import Arrivals, Submission
from .._durable.journal import Journal
from .._queue.queue import BrokerQueue
from .publishing import Publishing

_LONGEST: Final = 64  # messages of a run: some 500 us for the store's thread, while the next run is filled
_LARGEST: Final = 128 * 1024  # bytes of a run in memory, its last message apart
_SHARE: Final = 1 / 16  # of the memory limit: as much at most
_ENQUEUED: Final = PutOutcome.ENQUEUED

Tell = Callable[[list[tuple[object, bool]]], object]
"""A callback that takes the tags of messages, each with whether a store has refused it."""


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """Submissions that are handed to the store together, each to be committed or refused for itself."""

    _journal: Journal
    _tell: Tell
    room: float  # bytes that it still takes
    _submissions: list[tuple[Submission | Arrivals, int]] = field(default_factory=list)  # with how many parts it has
    _tags: list[object] = field(default_factory=list)  # of each part its own; None for what no one wants to be told of
    _commit: Commit | None = None  # of the last of them, once it is handed in

    def __len__(self) -> int:
        return len(self._tags)

    def add(self, submission: Submission | Arrivals, tags: Sequence[object], size: int) -> None:
        """Take a submission, with a tag for each of its parts."""
        self._submissions.append((submission, len(tags)))
        self._tags += tags
        self.room -= size

    def hand_in(self) -> None:
        """Have it committed. Raises as `Submission.submit`."""
        try:
            self._commit = self._journal.submit_run(
                [part for each, _ in self._submissions for part in each.parts], self._go_on
            )
        except BaseException:
            for each, _ in self._submissions:
                each.withdraw()
            raise

    @property
    def is_done(self) -> bool:
        """True once all of it is committed or refused, and told."""
        return self._commit is not None and self._commit.is_done

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None:
        """As `Commit.add_done_callback`, of a run that was handed in: when all of it is done, before or after that."""
        assert self._commit is not None, "what is not handed in is never done"
        self._commit.add_done_callback(callback)

    # On the store's thread

    def _go_on(self, refused: Mapping[int, StoreError]) -> None:
        submissions, self._submissions = self._submissions, []
        at = 0
        for submission, parts in submissions:
            end = at + parts
            submission.conclude({index - at: error for index, error in refused.items() if at <= index < end})
            at = end
        told = [(tag, index in refused) for index, tag in enumerate(self._tags) if tag is not None]
        if told:
            self._tell(told)


class Sent(NamedTuple):
    """The immediate outcome of a message: queues that ask its publisher to wait for room, and the run that has it.

    Without a `run` it is where it should be. With one, its tag is told when the store has committed or refused it.
    """

    throttled: tuple[BrokerQueue, ...] = ()
    run: Run | None = None


_SENT: Final = Sent()


@dataclass(eq=False, repr=False)
class Publisher:
    """One who publishes to a virtual host, without waiting for commits; made by `VirtualHost.publisher`."""

    _publishing: Publishing
    _journal: Journal | None
    _tell: Tell
    # Invariant: None, or not handed in; and what a message comes to that simply joins it.
    _run: Run | None = None
    _sent: Sent = _SENT
    _handed_in: Run | None = None  # the last run, while no publisher was asked to wait for it

    def publish(self, message: Message, *, mandatory: bool = False, tag: object = None) -> Sent:
        """As `VirtualHost.publish_nowait`, but for the moment in which the store is given the message.

        `tag` is what `tell` is called with, on the store's thread, if a run has the message; None: with nothing.
        """
        return self.put_on(self._publishing.route(message), message, mandatory=mandatory, tag=tag)

    def put_on(
        self, queues: list[BrokerQueue], message: Message, *, mandatory: bool = False, tag: object = None
    ) -> Sent:
        """The second half of `publish`, on the queues to which the first one led."""
        if self._journal is None or not message.persistent:
            self.hand_in()  # nothing overtakes what was published before
            throttled = self._publishing.put_on(queues, message, mandatory=mandatory).throttled
            return Sent(throttled) if throttled else _SENT
        self._publishing.check_size(queues, message)
        submission = Submission(self._journal)
        outcomes = submission.put_on([queue for queue in queues if queue.is_stored], message)
        stored = len(outcomes)
        for queue in queues:
            if not queue.is_stored:
                outcomes.append((queue, queue.put(message)))
        if stored and all(outcome is _ENQUEUED for _, outcome in outcomes):
            return self._join_alone(submission, message, tag)
        try:
            published = self._publishing.account_for(message, 0, outcomes, mandatory)
        except MessageRefused:
            self._join_alone(submission, message, None)  # others have it; its publisher is told already
            raise
        sent = self._join_alone(submission, message, tag)
        return sent._replace(throttled=published.throttled)

    def publish_all(self, messages: Sequence[Message], tags: Sequence[object]) -> Sent | None:
        """`publish` messages of one exchange and routing key together; None, and nothing was done: publish each.

        `tags` are one for each message, or none.
        """
        publishing, journal = self._publishing, self._journal
        queue = publishing.sole_queue(messages)
        if queue is None:
            return None
        if journal is None or not messages[0].persistent:
            self.hand_in()  # nothing overtakes what was published before
            outcome = queue.put_all(messages)
            sent = None if outcome is None else _SENT if outcome is _ENQUEUED else Sent((queue,))
        else:
            arrivals = Arrivals(queue, messages) if queue.is_stored else None
            if arrivals is None or not arrivals.admit(messages):
                return None
            size = sum([message.size for message in messages]) + MESSAGE_BYTES * len(messages)
            sent = self._join(arrivals, tags or [None] * len(messages), size)
        if sent is not None:
            publishing.have_gone(messages)
        return sent

    def hand_in(self) -> None:
        """Give the store what it was not given yet.

        Raises:
            StoreFailed, StoreClosed: it accepts nothing any more.
        """
        run, self._run = self._run, None
        if run is not None:
            run.hand_in()
            self._handed_in = run

    def to_wait_for(self) -> Run | None:
        """The run after whose commit this publisher may go on, where it does not wait by itself; None: at once.

        An I/O thread does not wait: the connection that publishes is held back when too much waits for its commit.
        """
        run = self._handed_in
        if run is None or may_take_long() or not self._publishing.memory.commits_too_much:
            return None
        self._handed_in = None
        return None if run.is_done else run

    def _join_alone(self, submission: Submission, message: Message, tag: object) -> Sent:
        """Have the run take it, if there is anything to store."""
        if not submission.operations:
            return _SENT
        return self._join(submission, (tag,), message.size + MESSAGE_BYTES)

    def _join(self, submission: Submission | Arrivals, tags: Sequence[object], size: int) -> Sent:
        run = self._run
        if run is None:
            assert self._journal is not None
            run = self._run = Run(self._journal, self._tell, min(_LARGEST, self._publishing.memory.limit * _SHARE))
            self._sent = Sent((), run)
        sent = self._sent
        run.add(submission, tags, size)
        if run.room <= 0 or len(run) >= _LONGEST:
            self.hand_in()
        return sent
