"""`with` and `async with` for objects with a `close` that blocks: connections, channels, inboxes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closed at the end of a `with` block, and of an `async with` block without blocking its loop."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.close)
