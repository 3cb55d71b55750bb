"""The plan of a run: the scan and the ledger's own decisions, on a copy of the state that is thrown away.

Promise     Nothing is started and nothing is written but a temporary copy of the state. Since the copy is handled by
            the code of a run, the plan stays what a run would begin with when that code changes.
Bounds      The copy has the items, and the files that are asked for. Input is listed for `_LOOK_S` seconds, and at
            least `_LOOK_FILES` files of it; the lanes that were not listed to their end are named. So a plan of
            a million files takes no longer than a few seconds, unless all of them are asked for.
State       A directory of the system's for temporary files.
Beside      A run that is under way does not notice; its submitted items are shown as waiting.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..._kinds import check_kind
from ...core import LinkedBlockingMultiQueue
from .._base.errors import PipelineError
from .._base.items import Item, Lane, Step
from .._base.lifecycle import ItemState
from .._base.pace import Pace
from .._columns.known import ddl_of_schema
from .._config.config import PipelineConfig
from .._config.fingerprint import fingerprints
from .._input.presence import Lost, lost_directories, require_input
from .._input.scanner import Scanner
from .._read.ways import why_whole
from .._run.steps import Steps
from .._state.ledger import Ledger, Scanned, open_ledger
from .._state.sqlite import SqliteState
from .._state.state import LaneCount, State, StateConnection
from .._write.tables import output_of

# Lanes take turns by slices of files, so this is what a run would begin with.
_LOOK_S = 0.5
_LOOK_FILES = 5_000

# Items that are joined and divided as a run would, of all lanes together and of each at least.
_REGROUPED = 2_000
_REGROUPED_OF_LANE = 20

_PAGE = 5_000

# From here on more tasks than one read a file that can be cut.
_LARGE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class LanePlan:
    """The input of a run in one lane. Items, but for `files` and `size_bytes`: those of the items to run."""

    lane: Lane
    done: int = 0
    """Done, and their files as they were."""
    failed: int = 0
    """Set aside; a run leaves them alone."""
    known: int = 0
    """To run: found by an earlier run."""
    new: int = 0
    """To run: new."""
    changed: int = 0
    """To run: done or set aside before, and a file has changed."""
    files: int = 0
    size_bytes: int = 0
    columns: str | None = None
    """Those that are known of a lane with `schema = "infer"`, as DDL."""
    batch: int = 1
    """The most files of an item; with `batch = "auto"` as its jobs so far show, and other files like those."""
    whole: str | None = None
    """Why one task reads a file of it that more tasks would read sooner, with its name."""

    @property
    def to_run(self) -> int:
        """How many items a run would find to do."""
        return self.known + self.new + self.changed


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The items of a run in one step."""

    step: Step
    runs: bool
    """Whether it has items to run now or behind what is to run before it."""
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run."""

    lanes: list[LanePlan]
    """In the order in which they would be served: by priority, then as configured."""
    steps: list[StepPlan]
    first: list[Item]
    """The first items in the order in which they would be submitted."""
    passed_over: list[str]
    lost: list[str]
    """Why the input of lanes is not whole: a sentence each. A run would do the rest and end with status 2."""
    made_by_others: int = 0
    """Items that are done and were made by another job than the configuration has now."""
    unread: tuple[str, ...] = ()
    """Lanes that were not listed to their end: they may have more than is counted."""

    @property
    def to_run(self) -> int:
        """How many items a run would find to do, over all lanes."""
        return sum(lane.to_run for lane in self.lanes)


def plan_of(config: PipelineConfig, first: int = 10, *, whole: bool = False) -> Plan:
    """The plan of a run, with its first so many items. With `whole` all input is listed, however long that takes.

    Raises:
        ConfigError: two lanes would have one name, or a first run has no files.
        StateMismatch: the state is something else, or knows nothing of the results.
        Unprepared: there can be no output where it is to be.
    """
    check_kind("config", config, PipelineConfig, "what `load_config` returns")
    output = output_of(config)
    output.require_place()
    (lanes, met), steps = config.look(), config.steps()
    with tempfile.TemporaryDirectory(prefix="multiqueue-plan-") as scratch, _original(config.state) as original:
        copy = SqliteState(Path(scratch) / "state.sqlite")
        if original is not None:
            _copy_state(original, copy)
        jobs = fingerprints(config)
        with _told_of(config.state, copy), open_ledger(copy, config.base, config.storage, jobs, original) as ledger:
            output.check(ledger)
            ledger.recover(output.is_published)
            require_input(config, ledger, lanes)
            known = {count.lane: count.items for count in ledger.counts() if count.state is ItemState.WAITING}
            gone = lost_directories(config, met, lanes, ledger)
            scanner, found = _look(config, lanes, ledger, gone, whole=whole)
            planned = Steps(steps, lanes, ledger)
            planned.incomplete = {one.name for one in scanner.lost}
            planned.take_in(0.0, lambda name, scanned: None)
            pace = Pace.of(ledger.measured())
            for lane in lanes:
                looked_at = sys.maxsize if whole else max(_REGROUPED // len(lanes), _REGROUPED_OF_LANE)
                _regroup(lane, ledger, pace, known, found[lane.name], looked_at)
            counts = {(count.lane, count.state): count for count in ledger.counts()}
            plans = [_lane_plan(lane, known.get(lane.name, 0), found[lane.name], counts, pace) for lane in lanes]
            schemas = ledger.schemas()
            plans = [
                replace(plan, columns=ddl_of_schema(schemas[plan.lane.name])) if plan.lane.name in schemas else plan
                for plan in plans
            ]
            plans = [replace(plan, whole=_whole(plan.lane, ledger)) for plan in plans]
            return Plan(
                sorted(plans, key=lambda plan: plan.lane.priority),
                _step_plans(steps, plans, planned, ledger),
                _first_items([*lanes, *(step.as_lane(config.base) for step in steps)], ledger, first),
                scanner.passed_over.sentences(),
                [one.why for one in scanner.lost],
                ledger.made_by_others(jobs),
                tuple(scanner.unread),
            )


@contextlib.contextmanager
def _told_of(state: State, copy: State) -> Iterator[None]:
    """While inside, an error that names the copy names the state: what is wrong in it is wrong there."""
    try:
        yield
    except PipelineError as error:
        raise type(error)(str(error).replace(str(copy), str(state))) from error


@contextlib.contextmanager
def _original(state: State) -> Iterator[StateConnection | None]:
    """The state as it is now, to look at, whatever a run does meanwhile, or None."""
    if not state.exists():
        yield None
        return
    with state.in_sentences(), contextlib.closing(state.connect_read_only()) as connection:
        connection.execute("BEGIN")
        yield connection


def _copy_state(original: StateConnection, copy: SqliteState) -> None:
    """Copy what is not asked for file by file; bodies of messages stay where they are."""
    with contextlib.closing(copy.connect()) as file:
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):  # nobody wants it after a crash
            file.execute(f"PRAGMA {pragma}")
        file.execute("BEGIN")
        indexes = file.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indexes:  # sorted once they are cheaper than row by row
            file.execute(f"DROP INDEX {name}")
        for table, keys in {"meta": "name", "items": "seq", "leaving": "item, path"}.items():
            after: Sequence[object] = ()
            while True:
                marks = ", ".join("?" * len(after))
                since = f"WHERE ({keys}) > ({marks})" if after else ""
                found = original.execute(f"SELECT * FROM {table} {since} ORDER BY {keys} LIMIT ?", (*after, _PAGE))
                names = [one[0] for one in found.description]
                rows = found.fetchall()
                if not rows:
                    break
                file.executemany(
                    f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", rows
                )
                after = [rows[-1][names.index(key)] for key in keys.split(", ")]
        for _, made in indexes:
            file.execute(made)
        file.execute("COMMIT")


def _look(
    config: PipelineConfig, lanes: list[Lane], ledger: Ledger, lost: list[Lost], *, whole: bool
) -> tuple[Scanner, dict[str, Counter[str]]]:
    """List input, turn by turn; per lane, how many items are new and how many are changed."""
    found: dict[str, Counter[str]] = {lane.name: Counter() for lane in lanes}

    def note(lane: str, scanned: Scanned) -> None:
        found[lane]["new"] += scanned.added
        found[lane]["changed"] += scanned.reopened.total()

    scanner = Scanner(lanes, config.base, config.written, ledger, lost=lost, storage=config.storage)
    ends_s = time.monotonic() + _LOOK_S
    while not scanner.finished and (whole or scanner.looked_at < _LOOK_FILES or time.monotonic() < ends_s):
        scanner.step(0.0, note)
    return scanner, found


def _regroup(
    lane: Lane, ledger: Ledger, pace: Pace, known: dict[str, int], found: Counter[str], looked_at: int
) -> None:
    """Join and divide the lane's next items as a run would, were all of its jobs like those before."""
    if lane.target_s is None:
        return
    with ledger.transaction():
        more = ledger.regroup(lane.name, 0.0, None, pace.fits(lane), looked_at)
    found["new"] += more
    if found["new"] < 0:  # what was joined was known before
        known[lane.name] = known.get(lane.name, 0) + found["new"]
        found["new"] = 0


def _lane_plan(
    lane: Lane, known: int, found: Counter[str], counts: Mapping[tuple[str, ItemState], LaneCount], pace: Pace
) -> LanePlan:
    done, failed, waiting = (
        counts.get((lane.name, state)) for state in (ItemState.DONE, ItemState.FAILED, ItemState.WAITING)
    )
    return LanePlan(
        lane,
        done=done.items if done else 0,
        failed=failed.items if failed else 0,
        known=known,
        new=found["new"],
        changed=found["changed"],
        files=waiting.files if waiting else 0,
        size_bytes=waiting.size_bytes if waiting else 0,
        batch=lane.batch if lane.target_s is None else pace.files(lane, _mean_bytes(done, waiting)),
    )


def _whole(lane: Lane, ledger: Ledger) -> str | None:
    """Why one task reads the largest file that waits, if that is large."""
    largest = ledger.largest_waiting(lane.name)
    if largest is None or largest[1] < _LARGE_BYTES or (why := why_whole(lane, largest[0])) is None:
        return None
    return f"{largest[0]!r} of {largest[1]:,} bytes is one task, and so are others like it: {why}"


def _mean_bytes(*counts: LaneCount | None) -> float:
    """Of a file of the lane."""
    known = [count for count in counts if count is not None]
    return sum(count.size_bytes for count in known) / max(sum(count.files for count in known), 1)


def _step_plans(steps: Sequence[Step], lanes: Sequence[LanePlan], planned: Steps, ledger: Ledger) -> list[StepPlan]:
    busy = {plan.lane.section for plan in lanes if plan.to_run}
    broken = {plan.lane.section for plan in lanes if plan.failed}
    plans = []
    for step in steps:
        plan = _step_plan(step, busy, broken, planned, ledger)
        if plan.runs:
            busy.add(step.name)
        elif ledger.standing(step.name).has_failed or broken.intersection(step.after):
            broken.add(step.name)
        plans.append(plan)
    return plans


def _step_plan(step: Step, busy: set[str], broken: set[str], planned: Steps, ledger: Ledger) -> StepPlan:
    lost = planned.incomplete_before(step)
    if lost is not None and (lost in step.after or not step.each_lane):
        return StepPlan(step, False, f"held back: the input of {lost!r} is not whole")
    failed = [name for name in step.after if name in broken]
    if failed and not step.allow_failed and not step.each_lane:
        return StepPlan(step, False, f"held back: items of {', '.join(failed)} are set aside")
    waits = [name for name in step.after if name in busy]
    if waits:
        return StepPlan(step, True, f"after {', '.join(waits)}")
    standing = ledger.standing(step.name)
    if standing.is_open:
        return StepPlan(step, True, "at once")
    if standing.has_failed:
        return StepPlan(step, False, "set aside")
    return StepPlan(step, False, "up to date" if any(ledger.done_of(step.name)) else "nothing to read")


def _first_items(lanes: Sequence[Lane], ledger: Ledger, count: int) -> list[Item]:
    """The order is the dispatcher's own: its lanes are the sub-queues of such a multi-queue."""
    queue: LinkedBlockingMultiQueue[Item] = LinkedBlockingMultiQueue()
    for lane in lanes:
        items = ledger.next_waiting(lane.name, 0.0, count)
        if items:
            queue.add_subqueue(lane.name, lane.priority, weight=lane.weight).put_many(items)
    return queue.get_many(count) if count and queue.qsize() else []
