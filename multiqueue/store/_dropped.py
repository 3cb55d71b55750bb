"""The numbers of the queues that were dropped last, for messages on their way to them."""

from __future__ import annotations

_REMEMBERED = 10_000  # a submission that is overtaken by so many drops was not on its way, but a mistake


class Dropped(dict[int, None]):
    """A set of queue numbers that forgets the oldest, and is asked for each message. The writer's own."""

    def add(self, queue: int) -> None:
        self[queue] = None
        if len(self) > _REMEMBERED:
            del self[next(iter(self))]
