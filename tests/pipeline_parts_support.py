"""The parts of `multiqueue.pipeline` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from multiqueue.demo._job import facts as facts
from multiqueue.demo._pipeline import demo_config as demo_config
from multiqueue.demo._rival import mixed_items as mixed_items
from multiqueue.demo._tables import Group as Group
from multiqueue.demo._tables import fairness_sentence as fairness_sentence
from multiqueue.demo._tables import small_lanes as small_lanes
from multiqueue.pipeline._base import storage as storage
from multiqueue.pipeline._base.batching import cut as cut
from multiqueue.pipeline._base.batching import halves as halves
from multiqueue.pipeline._base.errors import IllegalTransition as IllegalTransition
from multiqueue.pipeline._base.errors import unwritten as unwritten
from multiqueue.pipeline._base.items import FileSeen as FileSeen
from multiqueue.pipeline._base.items import Lane as Lane
from multiqueue.pipeline._base.items import PathColumn as PathColumn
from multiqueue.pipeline._base.items import Step as Step
from multiqueue.pipeline._base.items import item_id as item_id
from multiqueue.pipeline._base.lifecycle import TRANSITIONS as TRANSITIONS
from multiqueue.pipeline._base.lifecycle import ItemEvent as ItemEvent
from multiqueue.pipeline._base.lifecycle import ItemState as ItemState
from multiqueue.pipeline._base.lifecycle import after as after
from multiqueue.pipeline._base.lifecycle import before as before
from multiqueue.pipeline._base.pace import MOST_FILES as MOST_FILES
from multiqueue.pipeline._base.pace import QUEUED as QUEUED
from multiqueue.pipeline._base.pace import Measured as Measured
from multiqueue.pipeline._base.pace import Pace as Pace
from multiqueue.pipeline._base.place import Place as Place
from multiqueue.pipeline._base.place import local as local
from multiqueue.pipeline._base.place import place_of as place_of
from multiqueue.pipeline._base.rate import rate_told as rate_told
from multiqueue.pipeline._base.small_objects import SmallObjects as SmallObjects
from multiqueue.pipeline._base.storage import Entry as Entry
from multiqueue.pipeline._base.storage import Status as Status
from multiqueue.pipeline._base.storage import Storage as Storage
from multiqueue.pipeline._columns.kinds import ADD as ADD
from multiqueue.pipeline._columns.kinds import REFUSE as REFUSE
from multiqueue.pipeline._columns.kinds import WIDEN as WIDEN
from multiqueue.pipeline._columns.kinds import Kind as Kind
from multiqueue.pipeline._columns.kinds import fitted as fitted
from multiqueue.pipeline._columns.kinds import of_spark as of_spark
from multiqueue.pipeline._columns.kinds import to_spark as to_spark
from multiqueue.pipeline._columns.known import KnownColumns as KnownColumns
from multiqueue.pipeline._columns.known import Learned as Learned
from multiqueue.pipeline._columns.known import common as common
from multiqueue.pipeline._columns.known import ddl as ddl
from multiqueue.pipeline._columns.known import extended as extended
from multiqueue.pipeline._columns.known import hinted as hinted
from multiqueue.pipeline._columns.known import new_parts as new_parts
from multiqueue.pipeline._columns.put_out import note_columns as note_columns
from multiqueue.pipeline._columns.put_out import require_alike as require_alike
from multiqueue.pipeline._columns.schema import Schemas as Schemas
from multiqueue.pipeline._columns.schema import differences as differences
from multiqueue.pipeline._config import scan as _scan  # noqa: F401
from multiqueue.pipeline._config.fingerprint import fingerprints as fingerprints
from multiqueue.pipeline._config.path_columns import path_columns as path_columns
from multiqueue.pipeline._config.path_columns import values_in as values_in
from multiqueue.pipeline._config.refusal import Options as Options
from multiqueue.pipeline._config.refusal import uncut as uncut
from multiqueue.pipeline._config.sections import FollowSection as FollowSection
from multiqueue.pipeline._config.sections import JobSection as JobSection
from multiqueue.pipeline._config.sections import LaneSection as LaneSection
from multiqueue.pipeline._config.sections import OutputSection as OutputSection
from multiqueue.pipeline._config.sections import RetrySection as RetrySection
from multiqueue.pipeline._config.sections import SparkSection as SparkSection
from multiqueue.pipeline._config.sections import StateSection as StateSection
from multiqueue.pipeline._config.sections import StepSection as StepSection
from multiqueue.pipeline._config.sections import StorageSection as StorageSection
from multiqueue.pipeline._config.source import split_source as split_source
from multiqueue.pipeline._input import scanner as _scanner  # noqa: F401
from multiqueue.pipeline._input.inotify import Watches as Watches
from multiqueue.pipeline._input.queues import Queues as Queues
from multiqueue.pipeline._input.scanner import Follow as Follow
from multiqueue.pipeline._input.scanner import Scanner as Scanner
from multiqueue.pipeline._input.sqs import SqsQueue as SqsQueue
from multiqueue.pipeline._read import executor as _executor_read  # noqa: F401
from multiqueue.pipeline._read import python_io as _python_io  # noqa: F401
from multiqueue.pipeline._read.corrupt import RECORDS as RECORDS
from multiqueue.pipeline._read.csv_input import Headers as Headers
from multiqueue.pipeline._read.executor import Unreadable as Unreadable
from multiqueue.pipeline._read.python_io import parquet_frame as parquet_frame
from multiqueue.pipeline._read.read import Inputs as Inputs
from multiqueue.pipeline._read.read import met as met
from multiqueue.pipeline._read.read import unchanged as unchanged
from multiqueue.pipeline._read.reading import Reading as Reading
from multiqueue.pipeline._read.small_files import contents_of as contents_of
from multiqueue.pipeline._read.ways import why_whole as why_whole
from multiqueue.pipeline._run.attempt import Attempt as Attempt
from multiqueue.pipeline._run.attempt import Attempts as Attempts
from multiqueue.pipeline._run.clock import WorkClock as WorkClock
from multiqueue.pipeline._run.committer import Committer as Committer
from multiqueue.pipeline._run.dead_letters import DeadLetters as DeadLetters
from multiqueue.pipeline._run.disposal import Disposal as Disposal
from multiqueue.pipeline._run.job import asks_for_metadata as asks_for_metadata
from multiqueue.pipeline._run.job import by_metadata as by_metadata
from multiqueue.pipeline._run.job import lane_job as lane_job
from multiqueue.pipeline._run.job import sql_job as sql_job
from multiqueue.pipeline._run.mailbox import Committing as Committing
from multiqueue.pipeline._run.mailbox import Ended as Ended
from multiqueue.pipeline._run.mailbox import Mailbox as Mailbox
from multiqueue.pipeline._run.mailbox import Message as Message
from multiqueue.pipeline._run.mailbox import Met as Met
from multiqueue.pipeline._run.mailbox import Numbered as Numbered
from multiqueue.pipeline._run.mailbox import Started as Started
from multiqueue.pipeline._run.mailbox import StopRequested as StopRequested
from multiqueue.pipeline._run.retry import Backoff as Backoff
from multiqueue.pipeline._run.retry import Verdict as Verdict
from multiqueue.pipeline._run.retry import describe as describe
from multiqueue.pipeline._run.retry import verdict as verdict
from multiqueue.pipeline._run.runner import Runner as Runner
from multiqueue.pipeline._run.session import _servers as _servers
from multiqueue.pipeline._run.session import check_reachable as check_reachable
from multiqueue.pipeline._run.settlement import Settlement as Settlement
from multiqueue.pipeline._run.steps import Steps as Steps
from multiqueue.pipeline._run.tally import Tally as Tally
from multiqueue.pipeline._run.traces import leaving_nothing_unbegun as leaving_nothing_unbegun
from multiqueue.pipeline._run.wiring import Clocks as Clocks
from multiqueue.pipeline._run.wiring import assemble as assemble
from multiqueue.pipeline._run.work import SparkWork as SparkWork
from multiqueue.pipeline._run.work import Task as Task
from multiqueue.pipeline._run.work import _read_schemas as _read_schemas
from multiqueue.pipeline._run.work import work_of as work_of
from multiqueue.pipeline._state import ledger as _ledger
from multiqueue.pipeline._state import sqlite as _sqlite
from multiqueue.pipeline._state import view as _view
from multiqueue.pipeline._state.leaving import LedgerLeaving as LedgerLeaving
from multiqueue.pipeline._state.ledger import Scanned as Scanned
from multiqueue.pipeline._state.postgres import PostgresState as PostgresState
from multiqueue.pipeline._state.state import LaneCount as LaneCount
from multiqueue.pipeline._state.state import State as State
from multiqueue.pipeline._state.view import Waits as Waits
from multiqueue.pipeline._tell import svg as _svg  # noqa: F401
from multiqueue.pipeline._tell.arrivals import arrival_sentence as arrival_sentence
from multiqueue.pipeline._tell.console import JsonLines as JsonLines
from multiqueue.pipeline._tell.console import LiveTable as LiveTable
from multiqueue.pipeline._tell.console import PlainLines as PlainLines
from multiqueue.pipeline._tell.console import duration as duration
from multiqueue.pipeline._tell.console import failure_line as failure_line
from multiqueue.pipeline._tell.console import progress_line as progress_line
from multiqueue.pipeline._tell.console import progress_table as progress_table
from multiqueue.pipeline._tell.console import reporter_for as reporter_for
from multiqueue.pipeline._tell.report import render as render
from multiqueue.pipeline._tell.report import write_report as write_report
from multiqueue.pipeline._verbs import plan as _plan  # noqa: F401
from multiqueue.pipeline._verbs import run as _run  # noqa: F401
from multiqueue.pipeline._write import executor as _executor_write  # noqa: F401
from multiqueue.pipeline._write import publish as _publish  # noqa: F401
from multiqueue.pipeline._write.directory_sink import DirectorySink as DirectorySink
from multiqueue.pipeline._write.exchange import exchange as exchange
from multiqueue.pipeline._write.output import Output as Output
from multiqueue.pipeline._write.output import Writing as Writing
from multiqueue.pipeline._write.places import Places as Places
from multiqueue.pipeline._write.places import beside as beside
from multiqueue.pipeline._write.publish import Publisher as Publisher
from multiqueue.pipeline._write.table import Change as Change
from multiqueue.pipeline._write.table import Written as Written
from multiqueue.pipeline._write.table import new_number as new_number
from multiqueue.pipeline._write.table_output import TableOutput as TableOutput
from multiqueue.pipeline._write.tables import output_of as output_of
from multiqueue.pipeline.cli import pipeline as pipeline_command  # noqa: F401


def delta_module() -> ModuleType:
    """`_write.delta`: as `delta_table`."""
    from multiqueue.pipeline._write import delta

    return delta


def delta_table() -> type:
    """`DeltaTable`: its library is dear to load, and few tests name it."""
    from multiqueue.pipeline._write.delta import DeltaTable

    return DeltaTable


def state_at(where: Path | State) -> State:
    """A state, also one that is named by its file."""
    return _sqlite.SqliteState(where) if isinstance(where, Path) else where


class Ledger(_ledger.Ledger):
    """The ledger of a state, also one that is named by its file."""

    def __init__(self, where: Path | State, base: Path, **settings: Any) -> None:
        super().__init__(state_at(where), base, **settings)


def open_ledger(where: Path | State, base: Path) -> AbstractContextManager[_ledger.Ledger]:
    return _ledger.open_ledger(state_at(where), base)


def ledger_view(where: Path | State) -> AbstractContextManager[_view.LedgerView]:
    return _view.ledger_view(state_at(where))


def exclusive(where: Path | State) -> AbstractContextManager[None]:
    return state_at(where).exclusive()
