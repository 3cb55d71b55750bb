"""Delivery tags: which messages of a channel are unsettled, over all connections that it has had.

Promise     What a tag means never changes. A connection numbers from 1 what it delivers on a channel; after a recovery
            our tags go on from the highest, and settling one of before does nothing, for that message is back in its
            queue.
State       Guarded by the lock of the channel, which is also held while a settlement is appended to the link: the
            server gets them in the order in which they were entered here.
"""

from __future__ import annotations


class DeliveryTags:
    """The tags of one channel."""

    def __init__(self) -> None:
        self._offset = 0  # the highest tag of the connections before this one
        self._highest = 0
        # Invariant: in rising order, all above _offset and not above _highest.
        self._unsettled: dict[int, None] = {}

    def __len__(self) -> int:
        """How many are unsettled."""
        return len(self._unsettled)

    def __contains__(self, tag: int) -> bool:
        """Is it unsettled?"""
        return tag in self._unsettled

    def deliver(self, wire_tag: int, is_unsettled: bool) -> int:
        """Our tag for a message that has come under the server's `wire_tag`."""
        tag = self._highest = wire_tag + self._offset
        if is_unsettled:
            self._unsettled[tag] = None
        return tag

    def is_stale(self, tag: int) -> bool:
        """Did it come over a connection that is gone?"""
        return tag <= self._offset

    def settle(self, tag: int, multiple: bool) -> int | None:
        """The server's tag to settle, 0 for all that there are; None when the message is back in its queue.

        With `multiple`, `tag` and all below it are meant, or all when it is 0.

        Raises:
            KeyError: there is no such unsettled message.
        """
        unsettled = self._unsettled
        if tag in unsettled and not multiple:
            del unsettled[tag]
        elif multiple and tag == 0:
            unsettled.clear()
            return 0
        elif 0 < tag <= self._offset:
            return None
        elif multiple and unsettled and next(iter(unsettled)) <= tag <= self._highest:
            for each in [each for each in unsettled if each <= tag]:
                del unsettled[each]
        else:
            raise KeyError(tag)
        return tag - self._offset

    def clear(self) -> None:
        """All that was unsettled has gone back to its queue."""
        self._unsettled.clear()

    def renew(self) -> None:
        """The connection is gone, and what was unsettled has gone back: the next connection numbers from 1."""
        self._offset = self._highest
        self._unsettled.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError when the tags contradict themselves. For tests, with the channel's lock held."""
        tags = list(self._unsettled)
        assert tags == sorted(tags), tags
        assert all(self._offset < tag <= self._highest for tag in tags), tags
