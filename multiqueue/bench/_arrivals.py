"""Did every item arrive? A figure for a queue that loses items would be a lie told with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from ._model import ItemsLost

SHOWN = 5  # items named in a message; the counts say the rest


def check_arrivals(sent: Iterable[Hashable], received: Iterable[Hashable]) -> None:
    """Raise `ItemsLost` unless exactly the items sent were received, each once, in whatever order."""
    balance = Counter(sent)
    balance.subtract(Counter(received))
    lost = [item for item, count in balance.items() if count > 0]
    surplus = [item for item, count in balance.items() if count < 0]
    if lost or surplus:
        raise ItemsLost(
            f"{len(lost)} items never arrived (such as {lost[:SHOWN]}) and {len(surplus)} arrived that were "
            f"not sent or came twice (such as {surplus[:SHOWN]})"
        )


def check_order(streams: Sequence[Sequence[int]], received: Iterable[int]) -> None:
    """Raise `ItemsLost` if one receiver got any producer's items in another order than they were sent.

    The receiver may have had part of the items only: who got the others is `check_arrivals`' matter.
    """
    stream_of = {item: number for number, stream in enumerate(streams) for item in stream}
    latest: dict[int, int] = {}
    for item in received:
        stream = stream_of[item]
        before = latest.get(stream)
        if before is not None and item < before:
            raise ItemsLost(f"producer {stream}: {item} arrived after {before}, but was sent before it")
        latest[stream] = item


def deal(n: int, hands: int) -> list[range]:
    """Split the numbers 0 to n into `hands` equal runs, one for each producer."""
    if n % hands:
        raise ValueError(f"{n} items cannot be dealt to {hands} producers in equal parts")
    share = n // hands
    return [range(hand * share, (hand + 1) * share) for hand in range(hands)]
