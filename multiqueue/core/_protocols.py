"""The two ends of a queue, as the rooms above the core know them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar, overload, runtime_checkable

from ._targets import DrainTarget

T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")


@runtime_checkable
class Offerable(Protocol[T_contra]):
    """The tail: where elements are put. Sub-queues and `Queue` have it.

    Each method promises what that of `SubQueue` says; `multiqueue.testing.contracts.OfferableContract` tests it.
    """

    def put(self, item: T_contra, block: bool = True, timeout: float | None = None) -> None: ...
    def put_nowait(self, item: T_contra) -> None: ...
    def offer(self, item: T_contra, timeout: float = 0.0) -> bool: ...
    def put_many(self, items: Iterable[T_contra], timeout: float | None = None) -> int: ...


@runtime_checkable
class Pollable(Protocol[T_co]):
    """The head: where elements are taken. The multi-queue, sub-queues and `Queue` have it.

    Each method promises what that of `SubQueue` says; `multiqueue.testing.contracts.PollableContract` tests it.
    """

    def get(self, block: bool = True, timeout: float | None = None) -> T_co: ...
    def get_nowait(self) -> T_co: ...
    @overload
    def poll(self, timeout: float | None = 0.0) -> T_co | None: ...
    @overload
    def poll(self, timeout: float | None = 0.0, *, default: D) -> T_co | D: ...
    @overload
    def poll(self, timeout: float | None, default: D) -> T_co | D: ...
    @overload
    def peek(self) -> T_co | None: ...
    @overload
    def peek(self, default: D) -> T_co | D: ...
    def get_many(self, max_items: int, block: bool = True, timeout: float | None = None) -> Sequence[T_co]: ...
    def drain_to(self, target: DrainTarget[T_co], max_items: int | None = None) -> int: ...
    def qsize(self) -> int: ...
    def empty(self) -> bool: ...
