"""Taking many: `get_many` and `drain_to`, the same for the multi-queue and for one queue alone. No state.

Promise     What a target did not accept is back at the head that it came from, in order; what it accepted is not, also
            when an exception strikes right after that. Of a target in C that is no list, deque or set nothing tells
            whether it accepted, when an exception strikes right after its call: the element is in both.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ..errors import Empty, ShutDown
from ._priority_groups import Tail
from ._put_side import Head
from ._settings import check_max_items
from ._targets import acceptor

T = TypeVar("T")


def get_many(take_side: Head[T], own: Tail[T] | None, max_items: int, block: bool, timeout: float | None) -> list[T]:
    """`get_many` of a queue (`own`) or of the multi-queue."""
    taken = take_side._take_many(own, check_max_items(max_items, 1), block, timeout)
    if not taken:
        raise Empty
    return taken


def drain_to(take_side: Head[T], own: Tail[T] | None, target: Any, max_items: int | None) -> int:
    """`drain_to` of a queue (`own`) or of the multi-queue: what is there now, one at a time."""
    itself = take_side if own is None else own
    accept, container = acceptor(
        target, lambda owner: owner is itself or (own is None and getattr(owner, "_take_side", None) is take_side)
    )
    most = None if max_items is None else check_max_items(max_items, 0)
    is_set = type(container) is set
    count = 0
    limit = take_side._locked(None, take_side._size_locked) if own is None else len(own._items)
    if most is not None:
        limit = min(limit, most)
    while count < limit:
        pair = None
        try:
            pair = take_side._take_one(own, False)
            if pair is None:
                break
            if container is None:
                accept(pair[1])
            elif is_set:
                container |= {pair[1]}
                pair = None
            else:
                container += (pair[1],)
                pair = None
        except BaseException as error:
            if pair is not None:
                try:
                    take_side._stale.extend((None, (((pair[0], 0),), [pair[1]])))
                    take_side._mend()
                except BaseException:  # interrupted again
                    take_side._mend()
                    raise
            elif isinstance(error, ShutDown):
                break
            raise
        count += 1
    return count
