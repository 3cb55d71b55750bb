"""The looks at lanes: `/api/lanes`, and one job. They are for users with the tag `monitoring` or `administrator`."""

from __future__ import annotations

from typing import Any

from .._base.errors import bad_request, not_found
from .._figures.lanes import Lanes, job_view
from .asking import Ask, Table

_LONGEST = 3600  # seconds that a look may go back


class LaneReading:
    """The looks at the executors that a program shows."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def add_to(self, table: Table) -> None:
        """Answer what can be looked at."""
        table.add("GET", "/api/lanes", self.lanes)
        table.add("GET", "/api/lanes/{executor}/{number}", self.job)

    def lanes(self, ask: Ask) -> Any:
        """`/api/lanes?seconds=300`: executors, their lanes, and the jobs of that time."""
        ask.caller.check_monitor()
        seconds = ask.query.get("seconds", "300")
        if not seconds.isdecimal() or not 1 <= int(seconds) <= _LONGEST:
            raise bad_request(f"seconds is {seconds[:20]!r}; it is from 1 to {_LONGEST}")
        return self._lanes.view(int(seconds))

    def job(self, ask: Ask) -> Any:
        """`/api/lanes/EXECUTOR/NUMBER`: one job, with its error and its Spark jobs."""
        ask.caller.check_monitor()
        book, number = self._lanes.book(ask["executor"]), ask["number"]
        record = book.record(int(number)) if book is not None and number.isdecimal() and len(number) < 20 else None
        if book is None or record is None:
            raise not_found()
        return job_view(book, record)
