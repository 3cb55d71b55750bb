"""From a staging directory to the final place by one rename: an item's output exists as a whole or not at all.

Promise     P1  `data/lane=LANE/item=ID`, for a step's item a directory below `steps`, exists only with everything
                its attempt wrote.
            P2  An item has at most one such directory: a later attempt replaces it, and readers see one or the other.
            P3  After a crash `is_published(item)` tells whether the item's *last* attempt got there: the directory
                carries the attempt's number in `_item.json`, written before the rename.
                Records that an attempt has set aside are renamed to `corrupt` just before: a crash in between has the
                item run again.
            P4  Readers of `data` see no staging: that lies in `_multiqueue/staging`, outside.
State       Files only. `attempt` directories belong to the thread that runs the attempt; the final ones to
            no thread, they change by rename alone.
Crash       before the rename: staging is rubbish, removed at the next start. After it and before the ledger's
            record: P3 makes it done. A replacement is one exchange of two directories, after which the old version is
            rubbish in staging; where the file system lacks that call it is two renames, and between them neither
            version exists: the ledger still says submitted, so the item runs again.
Assumes     os.rename of a directory is atomic within one file system (POSIX); staging is in the output for that.
            Spark does not fsync its files, so nothing is promised for a power loss.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from .._base.errors import StateMismatch, Unprepared, unwritten
from .._base.items import Item
from .._state.ledger import FILES, Ledger
from .directory_sink import DirectorySink
from .exchange import exchange
from .output import Writing
from .places import Places, beside
from .table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARKER = "_item.json"


def require_there(ledger: Ledger, there: Mapping[str, bool], places: Mapping[str, str]) -> None:
    """Return if nothing is gone that the state knows of.

    Raises:
        StateMismatch: something is: the items that are done would not be done again, and their rows are nowhere.
    """
    for name in ledger.lost(there):
        raise StateMismatch(
            f"{places[name]!r} is gone, and {ledger} has items that are done, whose rows were there; bring it back, "
            "or delete the state too, and all is done anew"
        )


class Publisher:
    """The output directory of a pipeline: as `Output` says it."""

    tables: Mapping[str, Table] = MappingProxyType({})

    def __init__(self, output: Path) -> None:
        self.output = output
        self.places = Places(output)
        self.data = self.places.data
        self._staging = output / "_multiqueue" / "staging"

    def sink(self, name: str, how: Writing) -> DirectorySink:
        return DirectorySink(self.places, how)

    def set_up(self, spark: SparkSession) -> None:
        """Nothing: Spark writes directories as it is."""

    def prepare(self, ledger: Ledger) -> None:
        self.check(ledger)
        self.make_directories()

    def make_directories(self) -> None:
        """Make the directories and remove what a dead run left in staging.

        Raises:
            Unprepared: the output cannot be written.
        """
        try:
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging.mkdir(parents=True, exist_ok=True)
            self.data.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritten(f"the output {str(self.output)!r}", error, "[output]") from error

    def require_place(self) -> None:
        """Return if the output can be where it is to be, as far as that can be told without leaving anything there.

        Raises:
            Unprepared: there is a file in its place, or a directory in which nothing can be made.
        """
        there = next(path for path in (self.output, *self.output.parents) if os.path.exists(path))
        if not there.is_dir():
            why = f"{str(there)!r} is a file"
        elif not os.access(there, os.W_OK | os.X_OK) or not _takes_files(there):
            why = f"{str(there)!r} is not writable"
        else:
            return
        raise Unprepared(f"cannot write the output {str(self.output)!r}: {why}; choose another [output] path")

    def check(self, ledger: Ledger) -> None:
        with ledger.transaction():  # a state that is refused has not been given to this output
            ledger.require_output(FILES, str(self.output))
            if ledger.is_empty() and _has_entries(self.data):
                raise StateMismatch(
                    f"{str(self.data)!r} has results that are not in {ledger}; "
                    "bring their state back, delete the results, or choose another [output] path"
                )
            require_there(ledger, self.there(), {"": str(self.data)})

    def there(self) -> dict[str, bool]:
        return {"": self.data.exists()}

    @contextlib.contextmanager
    def attempt(self, item: Item) -> Iterator[Path]:
        path = self._staging / f"{item.id}-{item.attempt}"
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(beside(path), ignore_errors=True)

    def put_out(self, item: Item, staged: Path, *, has_output: bool) -> None:
        if has_output:
            self.publish(item, staged)
        else:
            self.retract(item)
            self.publish_corrupt(item, staged)

    def publish(self, item: Item, staged: Path) -> None:
        """Move the attempt's directory to the item's final place."""
        marker = {
            "item": item.id,
            "lane": item.lane,
            "attempt": item.attempt,
            "files": [f.path for f in item.files],
        }
        (staged / _MARKER).write_text(json.dumps(marker, ensure_ascii=False), encoding="utf-8")
        final = self.place(item)
        final.parent.mkdir(parents=True, exist_ok=True)
        self.retract_corrupt(item)
        self.publish_corrupt(item, staged)
        if final.is_dir() and exchange(staged, final):
            return  # what was there is in staging now, and goes with it
        self._take_away(item, final)
        os.rename(staged, final)

    def publish_corrupt(self, item: Item, staged: Path) -> None:
        """Move the records that the attempt has set aside to their place, if there are any."""
        if beside(staged).is_dir():
            final = self.places.corrupt_of(item)
            final.parent.mkdir(parents=True, exist_ok=True)
            os.rename(beside(staged), final)

    def retract(self, item: Item) -> None:
        self._take_away(item, self.place(item))
        self.retract_corrupt(item)

    def retract_corrupt(self, item: Item) -> None:
        """Take the records away that an earlier attempt has set aside, if there are any."""
        self._take_away(item, self.places.corrupt_of(item))

    def _take_away(self, item: Item, place: Path) -> None:
        old = self._staging / f"{item.id}-{item.attempt}-replaced"
        with contextlib.suppress(FileNotFoundError):
            os.rename(place, old)
            shutil.rmtree(old, ignore_errors=True)

    def is_published(self, item: Item) -> bool:
        try:
            marker = json.loads((self.place(item) / _MARKER).read_text(encoding="utf-8"))
            return bool(marker["attempt"] == item.attempt)
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # none, or a power loss has damaged it
            return False

    def place(self, item: Item) -> Path:
        """The item's final directory."""
        return self.places.of_item(item)


def _takes_files(directory: Path) -> bool:
    """Whether a file can be made there: root may write everywhere, but not in /proc, or on a disk that is read-only."""
    try:
        with tempfile.TemporaryFile(dir=directory):  # without a name, where the file system can
            return True
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)  # which a run says in its own words


def _has_entries(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())
