"""The output of a run, of either kind: directories of files (`_publish`), or tables (`_table_output`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .._base.items import Item
from .._state.ledger import Ledger
from .publish import Places
from .table import Written


class Output(Protocol):
    """An output. `attempt` and `put_out` may run in many threads, on different items."""

    places: Places

    def require_place(self) -> None:
        """Return if the output can be where it is to be, as far as that can be told without writing.

        Raises:
            Unprepared: it cannot.
        """

    def check(self, ledger: Ledger) -> None:
        """Return if the ledger knows of what is there.

        Raises:
            StateMismatch: there is data that it knows nothing of.
        """

    def prepare(self, ledger: Ledger) -> None:
        """As `check`; then make the directories, and remove what a dead run has left in staging.

        Raises:
            Unprepared: the output cannot be written.
        """

    def attempt(self, item: Item) -> AbstractContextManager[Path]:
        """A directory that does not exist yet, for what the attempt writes; what is left of it is removed."""

    def put_out(self, item: Item, staged: Path, *, has_output: bool) -> Written | None:
        """Put what the attempt has written in the place of what an earlier one has; what is still to be committed."""

    def retract(self, item: Item) -> None:
        """Take an earlier attempt's output away, and the records that it has set aside, if there are any."""

    def is_published(self, item: Item) -> bool:
        """Whether the item's last attempt has put out what it made."""
