"""Which messages of a channel are unsettled, over all connections that it has had. The channel's lock guards this.

Promise     A message is settled once. What a tag means never changes: each connection numbers from 1 what it delivers
            on a channel, and after a recovery our tags go on from the highest.
"""

from __future__ import annotations


class DeliveryTags:
    """The tags of one channel."""

    def __init__(self) -> None:
        self._offset = 0  # the highest tag of the connections before this one
        self._highest = 0
        # Invariant: in rising order, all above _offset and not above _highest.
        self._unsettled: dict[int, None] = {}
        # Settled in the transaction that is open, and in the one whose end the server was asked for.
        self.is_transacted: bool = False
        self._pending: dict[int, None] = {}
        self._ending: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._unsettled)

    def __contains__(self, tag: int) -> bool:
        return tag in self._unsettled

    def deliver(self, wire_tag: int, is_unsettled: bool) -> int:
        """Our tag for a message that has come under the server's `wire_tag`."""
        tag = self._highest = wire_tag + self._offset
        if is_unsettled:
            self._unsettled[tag] = None
        return tag

    def is_stale(self, tag: int) -> bool:
        return tag <= self._offset

    def settle(self, tag: int, multiple: bool) -> int | None:
        """The server's tag to settle, 0 for all that there are; None when the message is back in its queue. With
        `multiple`, `tag` and all below it are meant, or all when it is 0. Raises KeyError: there is no such unsettled
        message."""
        unsettled = self._unsettled
        if multiple and tag == 0:
            self._take(list(unsettled))
            return 0
        if 0 < tag <= self._offset:
            return None
        if tag not in unsettled:
            raise KeyError(tag)
        self._take([each for each in unsettled if each <= tag] if multiple else [tag])
        return tag - self._offset

    def _take(self, tags: list[int]) -> None:
        for each in tags:
            del self._unsettled[each]
        if self.is_transacted:
            self._pending.update(dict.fromkeys(tags))

    def begin_transactions(self) -> None:
        self.is_transacted = True

    def end_transaction(self) -> None:
        self._ending, self._pending = self._pending, {}

    def transaction_ended(self, *, is_done: bool) -> None:
        """The server has answered: what was settled is done, or as it was before."""
        if not is_done:
            self._unsettled = dict.fromkeys(sorted(self._ending | self._unsettled))
        self._ending = {}

    def clear(self) -> None:
        self._unsettled.clear()

    def renew(self) -> None:
        """The connection is gone, and what was unsettled has gone back: the next connection numbers from 1."""
        self._offset = self._highest
        for tags in (self._unsettled, self._pending, self._ending):
            tags.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError when the tags contradict themselves. For tests, with the channel's lock held."""
        tags = list(self._unsettled)
        assert tags == sorted(tags), tags
        known = [*tags, *self._pending, *self._ending]
        assert len(known) == len(set(known)), known
        assert all(self._offset < tag <= self._highest for tag in known), known
