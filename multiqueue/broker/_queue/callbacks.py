"""Calling user code, under no lock: selectors and callbacks.

Failures    An exception goes to `on_error` and stops no other callback; one that is no `Exception` goes through, but
            not on a thread that others depend on: `sys.exit` may end the caller's thread, not an I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .._base.message import Message
from .._base.ports import After
from .._base.waits import HeldLock, may_take_long
from .consumer import Predicate


@dataclass(eq=False, repr=False, slots=True)
class Callbacks:
    """The callbacks of one broker queue, and its lock. `on_error(action, error)` gets the failed one."""

    _on_error: Callable[[str, BaseException], object]
    _lock: HeldLock

    def act(self, after: Iterable[Callable[[], object]]) -> None:
        """Run the actions that were decided under the lock, now that it is free."""
        actions = iter(after)
        try:
            for action in actions:
                try:  # as `guard`, without a call for each message
                    action()
                except BaseException as error:  # noqa: BLE001  # the next callback still runs
                    self._failed("callback", error)
        except BaseException:
            self.act(actions)  # those that follow one that was interrupted: somebody waits for them
            raise

    @contextmanager
    def deciding(self) -> Iterator[After]:
        """A block under the lock; the actions that it appends to the list run when the lock is free. Not for each
        message.
        """
        after: After = []
        with self._lock:
            yield after
        self.act(after)

    def guard(self, what: str, action: Callable[[], object], *, untold: tuple[type[BaseException], ...] = ()) -> bool:
        """False when it failed; nobody is told of the errors that are `untold`."""
        try:
            action()
        except untold:
            return False
        except BaseException as error:  # noqa: BLE001  # the next callback still runs
            self._failed(what, error)
            return False
        return True

    def matches(self, selector: Predicate | None, message: Message) -> bool:
        """Ask a selector; none wants everything, and one that raises has refused."""
        try:
            return selector is None or bool(selector(message))
        except BaseException as error:  # noqa: BLE001  # a selector that fails refuses
            self._failed("selector", error)
            return False

    def _failed(self, what: str, error: BaseException) -> None:
        """Called while the error is handled."""
        if not isinstance(error, Exception) and may_take_long():
            raise
        self._on_error(what, error)
