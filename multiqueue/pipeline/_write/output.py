"""The output of a run, whichever kind it is: directories of files (`publish`), or tables (`table_output`).

The configuration makes one (`tables.output_of`); no other code asks which kind it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .._base.items import Item
from .._state.ledger import Ledger
from .places import Places
from .table import Table, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Writing:
    """How the rows of a step, or of all lanes, are written."""

    format: str
    options: Mapping[str, str]
    partition_by: Sequence[str]
    files_per_item: int | None
    expect: str | None
    place: str
    """Where `expect` stands in the configuration."""


class Sink(Protocol):
    """Where the rows of a step go, or those of all lanes, and how they are read again."""

    @property
    def how(self) -> Writing: ...

    @property
    def keeps_types(self) -> bool:
        """Whether the state must remember the columns' types: readers of a directory need all of its files alike."""

    def write(self, frame: DataFrame, item: Item, staged: Path) -> None:
        """Write the rows, in files into `staged`, which must not exist.

        Raises:
            JobError: the rows do not fit the existing output, or have a column with one of our names.
        """

    def read(self, spark: SparkSession, source: str, lanes: Sequence[str] | None, schema: str | None) -> DataFrame:
        """The output of the step `source`, or for `""` by lanes; in these lanes only, if they are given.

        Raises:
            JobError: nothing was put out.
        """

    def is_read_by_spark(self, spark: SparkSession) -> bool:
        """Whether `read` is by Spark's own readers, and not by Python."""


class Output(Protocol):
    """An output. `attempt` and `put_out` may run in many threads, on different items."""

    places: Places

    @property
    def tables(self) -> Mapping[str, Table]:
        """By the name of a step, `""` for all lanes; none where the rows are in directories."""

    def sink(self, name: str, how: Writing) -> Sink:
        """Where the rows of the step of this name go, or those of all lanes for `""`."""

    def set_up(self, spark: SparkSession) -> None:
        """Have the session write what all readers read."""

    def require_place(self) -> None:
        """Return if the output can be where it is to be, as far as that can be told without writing.

        Raises:
            Unprepared: it cannot.
        """

    def check(self, ledger: Ledger) -> None:
        """Return if the ledger knows the existing output.

        Raises:
            StateMismatch: there is data that it knows nothing of, or what it knows is gone.
        """

    def there(self) -> dict[str, bool]:
        """Whether each of the places that rows come to exists, by a name; a table as last seen."""

    def prepare(self, ledger: Ledger) -> None:
        """As `check`; then make the directories, and remove what a dead run has left in staging.

        Raises:
            Unprepared: the output cannot be written.
        """

    def attempt(self, item: Item) -> AbstractContextManager[Path]:
        """A directory that does not exist yet, for what the attempt writes; its remains are removed."""

    def put_out(self, item: Item, staged: Path, *, has_output: bool) -> Written | None:
        """Put what the attempt has written in the place of what an earlier one has; the files still to be committed."""

    def retract(self, item: Item) -> None:
        """Take an earlier attempt's output away, and the records that it has set aside, if there are any."""

    def is_published(self, item: Item) -> bool:
        """Whether the item's last attempt has published its output."""
