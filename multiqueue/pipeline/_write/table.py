"""A table of rows whose files Spark wrote: one commit for many items, each item's rows once.

Promise     T1  An item's rows are in the table as a whole or not at all, and once: those of its last attempt that was
                committed. A commit names each item with its attempt, adds its files and takes its earlier ones away.
            T2  `is_committed` tells of an item after a crash whether its last attempt is in the table. The table is
                asked, not the disk, and for the commit whose number the state has: so it need not remember its items.
            T3  A commit whose end is not known (a time-out, an answer that was lost) is looked for by its own number
                before it is made again.
            T4  A table belongs to one state, whose number it carries; another one is refused, and so is an older copy
                of it: the commits are counted, in the state before they are made. If another process
                commits beside this one (it has lost its lock and does not know), a commit first asks what there is:
                an item that it has with the same attempt or a later one ends the run.
            T5  An item whose rows do not fit the table's columns fails alone; the others of the commit are made.
State       What the table was when last looked at (`TableFormat`), and whether others commit: under `_lock`.
Threads     The committer's, the runner's when it takes an item's output away, those of running items that ask for the
            columns. One commit at a time.
Waiting     A commit that fails is made again after pauses, `_PAUSES_S` together; the caller waits.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..._locks import Lock
from .._base.errors import JobError, PipelineError, StateMismatch
from .._base.items import Item
from .._columns.kinds import Columns, Fit, Kind, fitted, told
from .files import DataFile, TableFiles

_log = logging.getLogger("multiqueue.pipeline")

_ANEW = "delete the table, or choose another [output] path"

# The libraries have patience of their own with a store; these are for conflicts and for what they give up on.
_PAUSES_S = (0.1, 0.5, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Change:
    """The files that an attempt has written for a table: these files stand for the item from now on."""

    item: Item
    directory: str
    """Where its files are, in the table's."""
    files: tuple[DataFile, ...] = ()
    columns: Columns | None = None
    """The columns of the rows; None when the attempt has put out nothing."""


@dataclass(frozen=True, slots=True)
class Written:
    """A change that is to be committed to a table."""

    table: Table
    change: Change


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a table has now."""

    path: str
    """Relative to the table."""
    size_bytes: int
    partition: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Commit:
    """Files that go into a table, and out of it, at once."""

    number: str
    add: Sequence[DataFile] = ()
    without: Collection[str] = ()
    """Items whose rows go."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """By item, to be noted with it."""
    added: Columns = field(default_factory=dict)
    """Columns that the table gets, with it or just before; they are NULL in the rows that are there."""
    widened: Columns = field(default_factory=dict)

    @property
    def note(self) -> str:
        """The items and attempts as a table notes them: `ID:ATTEMPT ID:ATTEMPT`."""
        return " ".join(f"{name}:{attempt}" for name, attempt in self.attempts.items())


def attempts_noted(note: str) -> dict[str, int]:
    """The attempts by item, of a `Commit.note`."""
    return {name: int(attempt) for name, _, attempt in (word.partition(":") for word in note.split())}


def new_number() -> str:
    """A number for a commit that the state does not count."""
    return uuid.uuid4().hex


def _said(error: Exception) -> str:
    """The first line of what a library says, or else the error's name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _count_in(number: str) -> int:
    """How many commits the state had counted with the one of this number; 0 where it did not count."""
    count, dash, _ = number.partition("-")
    return int(count) if dash else 0


class TableFormat(Protocol):
    """The operations that Delta and Iceberg each do their own way. `open` comes before everything else but `make`."""

    files: TableFiles
    may_widen: bool
    """Whether a column's type can become a wider one."""
    stored_as: Mapping[str, str]
    """Simple types that the table has not, and the wider ones that it has instead."""
    keeps_partition_columns: bool
    """Whether a file has the columns that the table is partitioned by; else only its directories' names have them."""

    def open(self) -> bool:
        """Look at the newest version of the table; False when it does not exist."""

    def make(self, columns: Columns, partition_by: Sequence[str], owner: str) -> None:
        """Make an empty table, unless there is one by now."""

    @property
    def owner(self) -> str | None: ...
    @property
    def columns(self) -> Columns: ...
    @property
    def partition_by(self) -> list[str]: ...
    @property
    def others_commit(self) -> bool:
        """Whether the table has a commit of another process that came since it was opened for the first time."""

    @property
    def version(self) -> str | int | None:
        """The library's name for the version that was opened last; None when no row was ever committed."""

    @property
    def is_orphan(self) -> bool:
        """Whether there is no table for `open`, and yet one with rows in its place, whose catalog is lost."""

    def numbers(self) -> Iterator[str]:
        """Those of the last commits of the table as last opened, the newest first; it may be asked on the way."""

    def attempt_of(self, identity: str) -> int | None:
        """The attempt of the item that was committed last, if that was in one of the last commits."""

    def commit(self, commit: Commit) -> None: ...

    def tidy(self) -> None:
        """Have the table keep its size however many commits are made; called after each."""

    def current(self) -> list[TableFile]:
        """The files of the table as last opened."""

    def vacuum(self, keep_s: float) -> list[str]:
        """Forget versions that are older; the files that no version names any more, relative to the table."""

    def optimize(self) -> str:
        """Make few large files of many small ones; the work done, in a sentence."""


class Table:
    """One table. Every method may be called by any thread."""

    def __init__(
        self,
        form: TableFormat,
        partition_by: Sequence[str],
        rule: str,
        place: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._form = form
        self._owner = ""
        self._state = ""
        self._partition_by = list(partition_by)
        self._rule = rule
        self._sleep = sleep
        self._lock = Lock()
        self._is_there = False
        self._is_stale = True
        self.place = place
        self.files = form.files
        self.keeps_partition_columns = form.keeps_partition_columns

    def claim(self, owner: str, state: str = "this state", commits: int | None = None) -> None:
        """Return if there is no table yet, or one of the state of this number that is partitioned as configured.

        `state` names it, and `commits` is how many it has counted.

        Raises:
            StateMismatch: there is another one, or this one has commits that the state does not know.
            PipelineError: the store or the catalog does not let one see.
        """
        with self._lock:
            self._owner, self._state, self._is_stale = owner, state, True
            try:
                self._claim_locked(commits)
            except PipelineError:
                raise
            except Exception as error:
                raise PipelineError(
                    f"cannot look at the table {self.place!r}: {_said(error)}; "
                    "correct [storage] or [output], or try again later"
                ) from error

    def _claim_locked(self, commits: int | None) -> None:
        self._look_locked()
        if not self._is_there and self._form.is_orphan:
            raise StateMismatch(
                f"there are files of a table with rows in {self.place!r}, and its catalog, which lies beside the "
                f"state, does not know it; bring back state and catalog, {_ANEW}"
            )
        newest = next((count for number in self._numbers_locked() if (count := _count_in(number))), 0)
        if commits is not None and newest > commits:
            raise StateMismatch(
                f"the table {self.place!r} has commit {newest}, and {self._state} has counted {commits}: it is an "
                "older copy, and would write again what came since; bring back the newest state, or delete state and "
                "table"
            )

    def _numbers_locked(self) -> Iterator[str]:
        return self._form.numbers() if self._is_there else iter(())

    def fit(self, found: Columns) -> Fit:
        """How rows with these columns become rows of the table as last seen; as they are while no table exists.

        Raises:
            JobError: as `fitted`.
        """
        with self._lock:
            self._look_locked()
            kept = {name: self._form.stored_as.get(told(kind), kind) for name, kind in found.items()}
            fit = self._fitted_locked(self._form.columns if self._is_there else kept, kept)
            wider = {name: str(kind) for name, kind in kept.items() if kind != found[name]}
            return replace(fit, casts={**wider, **fit.casts})

    def is_committed(self, item: Item) -> bool:
        """Whether the item's last attempt is in the table."""
        with self._lock:
            self._look_locked()
            if item.number is None:  # no commit was to be made for it, or an earlier version made it
                return self._is_there and self._form.attempt_of(item.id) == item.attempt
            return item.number in self._numbers_locked()

    def current(self) -> tuple[Columns, list[TableFile]]:
        """The columns and the files of the table; none of either when there is no table."""
        with self._lock:
            self._look_locked()
            return (self._form.columns, self._form.current()) if self._is_there else ({}, [])

    def version(self) -> str | int | None:
        """The table's version as last seen; None while no table exists. The store is not asked."""
        with self._lock:
            return self._form.version if self._is_there else None

    def take_away(self, item: Item) -> None:
        """Take the item's rows out of the table. Its attempts stay as they are noted."""
        with self._lock:
            self._look_locked()
            if self._is_there:
                commit = Commit(new_number(), without={item.id})
                self._patiently_locked(commit.number, lambda: self._form.commit(commit))

    def commit(self, changes: Sequence[Change], number: str) -> list[Exception | None]:
        """Make these changes in one commit of this number; of each, why it was left out, or None.

        Raises:
            StateMismatch: the table is not this state's, or another process has put out one of the items.
            PipelineError: the commit could not be made.
        """
        with self._lock:
            outcomes: list[Exception | None] = [None] * len(changes)
            self._patiently_locked(number, lambda: self._commit_locked(changes, outcomes, number))
            for change, error in zip(changes, outcomes, strict=True):
                if error is not None:
                    self.files.discard(change.directory)
            return outcomes

    def tidy(self) -> None:
        """Keep the table small; call it after a commit. What fails is logged, and done after a later one."""
        with self._lock:
            if self._is_stale or not self._is_there:
                return
            try:
                self._form.tidy()
                return
            except Exception as caught:  # noqa: BLE001 - of whichever library; the commit itself was made
                self._is_stale = True
                error = caught
        _log.warning("the table %s could not be kept small, a later commit tries again: %s", self.place, error)

    def maintain(self, work: Callable[[TableFormat], Any]) -> Any:
        """Do the work of a `vacuum` or `optimize`; None when there is no table."""
        with self._lock:
            self._look_locked()
            return work(self._form) if self._is_there else None

    def _look_locked(self) -> None:
        if self._is_stale:
            self._is_there = self._form.open()
            if self._is_there:
                self._require_own_locked()
            self._is_stale = False

    def _require_own_locked(self) -> None:
        if (owner := self._form.owner) is None:
            raise StateMismatch(
                f"the table {self.place!r} was made by another program; delete the table, or choose another [output] "
                "path"
            )
        if owner != self._owner:
            raise StateMismatch(
                f"the table {self.place!r} belongs to another state, number {owner}, and not to {self._state}; bring "
                f"that state back, {_ANEW}"
            )
        if self._form.partition_by != self._partition_by:
            there = ", ".join(self._form.partition_by) or "nothing"
            raise StateMismatch(
                f"the table {self.place!r} is partitioned by {there}, and output.partition_by says "
                f"{', '.join(self._partition_by) or 'nothing'}; name these columns, or choose another [output] path"
            )

    def _patiently_locked(self, number: str, make: Callable[[], None]) -> None:
        """Make a commit, again and again if need be; one that was made although it failed is not made twice."""
        for pause_s in (*_PAUSES_S, None):
            try:
                if self._is_stale:
                    self._look_locked()
                    if number in self._numbers_locked():
                        return
                make()
            except StateMismatch:
                raise
            except Exception as error:
                self._is_stale = True
                if pause_s is None:
                    raise PipelineError(f"cannot commit to the table {self.place!r}: {_said(error)}") from error
                self._sleep(pause_s)
            else:
                return

    def _commit_locked(self, changes: Sequence[Change], outcomes: list[Exception | None], number: str) -> None:
        filled = [change.columns for change in changes if change.columns is not None]
        if not self._is_there:
            if not filled:
                return  # nothing was put out, and there is nothing to take away
            self._form.make(filled[0], self._partition_by, self._owner)
            self._is_stale = True
            self._look_locked()
        if self._form.others_commit:
            self._require_none_newer_locked(changes)
        new: dict[str, Kind] = {}
        widened: dict[str, Kind] = {}
        outcomes[:] = self._fit_locked(changes, new, widened)
        chosen = [change for change, error in zip(changes, outcomes, strict=True) if error is None]
        replaced = {one.item.id for one in chosen if one.item.attempt > 1 or self._form.others_commit}
        added = [file for one in chosen for file in one.files]
        if added or replaced or new or widened:
            attempts = {one.item.id: one.item.attempt for one in chosen}
            self._form.commit(Commit(number, added, replaced, attempts, new, widened))

    def _require_none_newer_locked(self, changes: Sequence[Change]) -> None:
        for change in changes:
            there = self._form.attempt_of(change.item.id)
            if there is not None and there >= change.item.attempt:
                raise StateMismatch(
                    f"another process has put item {change.item.id} into the table {self.place!r} meanwhile "
                    f"(attempt {there}); end it, and run again"
                )

    def _fit_locked(
        self, changes: Sequence[Change], added: dict[str, Kind], widened: dict[str, Kind]
    ) -> list[Exception | None]:
        """Of each change, why its rows are not the table's; the columns that the others need are noted."""
        outcomes: list[Exception | None] = []
        for change in changes:
            try:
                if change.columns is not None:
                    fit = self._written_fit_locked({**self._form.columns, **widened, **added}, change.columns)
                    added.update(fit.added)
                    widened.update(fit.widened)
            except PipelineError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def _fitted_locked(self, table: Columns, found: Columns) -> Fit:
        return fitted(table, found, self._rule, self.place, may_widen=self._form.may_widen)

    def _written_fit_locked(self, table: Columns, found: Columns) -> Fit:
        """How rows fit that are written and cannot be changed any more."""
        try:
            fit = self._fitted_locked(table, found)
        except JobError as error:
            raise PipelineError(f"{error} (the table got its columns while the item ran)") from error
        other = [name for name, there in fit.spelled.items() if there != name] + list(fit.casts)
        if other:
            raise PipelineError(
                f"the table {self.place!r} got its column {fit.spelled[other[0]]!r} "
                f"({told(table[fit.spelled[other[0]]])}) while the item ran; it is tried again"
            )
        return fit
