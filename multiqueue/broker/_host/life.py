"""Whether a virtual host still takes anything: its parts ask, `VirtualHost.close` says no, once."""

from __future__ import annotations

from .._base.errors import BrokerClosed
from .._durable.journal import Journal
from .past import Past


class Life:
    """The life of one virtual host. `journal` is that of its store; None where it lives in memory."""

    __slots__ = ("_name", "is_closed", "journal", "past")

    def __init__(self, name: str, journal: Journal | None) -> None:
        self._name = name
        self.journal: Journal | None = journal
        self.is_closed: bool = False
        self.past: Past = Past()

    def check(self) -> None:
        """Return when the virtual host can be used.

        Raises:
            BrokerClosed: it was closed.
            StoreFailed: its store failed; close it and open it again.
        """
        if self.is_closed:
            raise BrokerClosed(f"vhost '{self._name}' is closed")
        if self.journal is not None:
            self.journal.check()
