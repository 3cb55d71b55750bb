"""A run's parts, put together: for a run, and for the tests, which drive the same runner by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .._base.items import KEEP, Lane, Step, place_seen
from .._base.pace import Pace
from .._config.config import PipelineConfig
from .._input.events import Events
from .._input.presence import Lost
from .._input.queues import Queues
from .._input.scanner import Follow, Scanner
from .._read.read import met
from .._state.ledger import Ledger
from .._write.output import Output
from .attempt import Attempts, Dispatcher, Meet, Work
from .clock import WorkClock
from .committer import Committer
from .dead_letters import DeadLetters
from .disposal import Disposal
from .feeding import Feeding
from .intake import Intake
from .mailbox import Mailbox, Message
from .progress import Reporter
from .retry import Backoff
from .runner import Runner
from .settlement import Settlement
from .steps import Steps


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a run, and the call that syncs a disk."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sync: Callable[[], None] = os.sync


def assemble(
    config: PipelineConfig,
    ledger: Ledger,
    dispatcher: Callable[[], Dispatcher],
    *,
    lanes: Sequence[Lane],
    steps: Sequence[Step],
    output: Output,
    work: Work,
    meet: Meet | None = None,
    mailbox: Mailbox,
    reporter: Reporter,
    tell: Callable[[Message], None] | None = None,
    follow: Follow | None = None,
    lost: Sequence[Lost] = (),
    on_new_lane: Callable[[Lane], None] = lambda lane: None,
    clocks: Clocks | None = None,
) -> tuple[Runner, Committer]:
    """The runner over this ledger and output, and the committer, which its attempts post to.

    The caller opens the committer, `runner.disposal` and `runner.intake`, or does their threads' work itself.
    `dispatcher` is called when the first item is to be submitted. The committer tells `tell`, by default the mailbox.
    """
    clocks = clocks or Clocks()
    retry, storage = config.settings.retry, config.storage
    clock = WorkClock(ledger.seconds_at_work(), clocks.monotonic)
    committer = Committer(tell or mailbox.post, clocks.monotonic)
    backoff = Backoff(retry.attempts, retry.backoff, retry.backoff_factor, retry.backoff_max)
    scanner = Scanner(lanes, config.base, config.written, ledger, follow, lost, storage, clocks.wall)
    events = Events(
        lanes,
        config.base,
        config.written,
        ledger,
        storage,
        follow=follow,
        lane_at=config.lane_at,
        starts=config.event_starts(),
        clock=clocks.monotonic,
        wall=clocks.wall,
    )
    queues = Queues(lanes, ledger, follow=follow is not None, clock=clocks.monotonic)
    leaving = _lanes_with_an_end(config, lanes, ledger)
    fed = [*lanes, *(step.as_lane(config.base) for step in steps)]
    meet = meet or (lambda spark, item: replace(item, files=met(item, storage)))
    attempts = Attempts(work, output, committer.post, clock, meet)
    runner = Runner(
        ledger,
        Intake(scanner, events, queues, Steps(steps, lanes, ledger)),
        Feeding(fed, ledger, attempts, clock, dispatcher, Pace.of(ledger.measured())),
        Settlement(ledger, output, backoff, DeadLetters(config.dead_letters, storage)),
        Disposal(leaving, ledger, config.base, storage, mailbox.post, clocks.wall, clocks.sync, clocks.monotonic),
        mailbox,
        clock,
        reporter,
        on_new_lane,
        clocks.monotonic,
    )
    return runner, committer


def _lanes_with_an_end(config: PipelineConfig, lanes: Sequence[Lane], ledger: Ledger) -> dict[str, Lane]:
    """The lanes whose files are moved or deleted, also those of which a run that was cut off has left no file."""
    there = {lane.name for lane in lanes}
    went = [
        config.lane_that_went(name, place_seen(path, config.base))
        for name, path in ledger.leaving.lanes()
        if name not in there
    ]
    return {lane.name: lane for lane in (*lanes, *went) if lane is not None and lane.after != KEEP}
