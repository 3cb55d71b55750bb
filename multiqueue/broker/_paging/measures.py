"""What a message takes in memory, and where it stands in a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._base.message import MESSAGE_BYTES
from .._base.settings import QueueKind
from .target_list import LEVEL_SHIFT

if TYPE_CHECKING:
    from .._base.message import Message
    from .._base.settings import QueueSettings


def number_of(position: int) -> int:
    """The store's id of a message at a position."""
    return position & ((1 << LEVEL_SHIFT) - 1)


def cost_of(message: Message, size: int) -> int:
    """Bytes that a message takes in memory; long headers of plain types count."""
    headers = message.headers
    cost = size + MESSAGE_BYTES
    if headers and isinstance(headers, Mapping) and type(headers) is dict:
        for value in headers.values():
            cost += 64 + (len(value) if type(value) in (str, bytes) else 0)
    return cost


def levels_of(settings: QueueSettings) -> int:
    """How many levels the store has of a queue."""
    if settings.kind is not QueueKind.PRIORITY:
        return 1
    return settings.max_priority + 1 if settings.max_priority is not None else settings.priority_levels or 10
