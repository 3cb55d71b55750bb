"""The common part of all attempts of the suite `store`: the message, a directory of their own, and its removal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ._crew import Crew
from ._model import BenchError, Figures, ItemsLost

BODY = bytes(range(256)) * 4
PROPERTIES = b"p" * 60

_VARIABLE = "MULTIQUEUE_BENCH_DIR"

Body = Callable[[], object]


def new_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="multiqueue-bench-", dir=os.environ.get(_VARIABLE)))


def check_disk() -> None:
    """Return if there can be directories.

    Raises:
        BenchError: not where the environment says.
    """
    try:
        new_directory().rmdir()
    except OSError as error:
        where = os.environ.get(_VARIABLE, tempfile.gettempdir())
        raise BenchError(
            f"cannot write into {where!r}: {error.strerror}; {_VARIABLE} names another directory"
        ) from error


@dataclass
class OnDisk:
    """Bodies that run together on something in a directory, which is removed afterwards."""

    n: int
    directory: Path
    bodies: list[Body]
    count: Callable[[], int]  # how much is there afterwards
    expected: int
    on_close: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._crew = Crew(self.bodies)

    def run(self) -> Figures:
        return self._crew.race().rates(self.n)

    def check(self) -> None:
        found = self.count()
        if found != self.expected:
            raise ItemsLost(f"{found} messages are there, and {self.expected} should be")

    def close(self) -> None:
        self._crew.abandon()
        for action in self.on_close:
            action()
        shutil.rmtree(self.directory, ignore_errors=True)
