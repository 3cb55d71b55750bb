"""The parts of `multiqueue.spark` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from multiqueue.spark._backend import classic as _classic  # noqa: F401
from multiqueue.spark._backend.after_stop import AfterStop as AfterStop
from multiqueue.spark._backend.after_stop import Item as Item
from multiqueue.spark._backend.after_stop import end_read_of_result as end_read_of_result
from multiqueue.spark._backend.after_stop import waits_in_vain as waits_in_vain
from multiqueue.spark._backend.backend import Marks as Marks
from multiqueue.spark._backend.backend import Spent as Spent
from multiqueue.spark._backend.backend import is_connect as is_connect
from multiqueue.spark._backend.causes import is_cancellation as is_cancellation
from multiqueue.spark._backend.classic import ClassicBackend as ClassicBackend
from multiqueue.spark._backend.connect import ConnectBackend as ConnectBackend
from multiqueue.spark._backend.jvm_threads import JvmThreads as JvmThreads
from multiqueue.spark._dispatch import dispatcher as _dispatcher  # noqa: F401
from multiqueue.spark._dispatch import environment as _environment  # noqa: F401
from multiqueue.spark._dispatch.alarms import FEW as FEW
from multiqueue.spark._dispatch.alarms import Alarm as Alarm
from multiqueue.spark._dispatch.alarms import Alarms as Alarms
from multiqueue.spark._dispatch.costs import Costs as Costs
from multiqueue.spark._dispatch.environment import warn_of_another_python as warn_of_another_python
from multiqueue.spark._dispatch.job import SparkJob as SparkJob
from multiqueue.spark._dispatch.running import Running as Running
from multiqueue.spark._dispatch.statistics import BOUNDS as BOUNDS
from multiqueue.spark._events import sender as _task_events_sender  # noqa: F401
from multiqueue.spark._events.events import PREFETCH as PREFETCH
from multiqueue.spark._events.ledger import SPOOL_IN_MEMORY as SPOOL_IN_MEMORY
from multiqueue.spark._events.ledger import Ledger as Ledger
from multiqueue.spark._events.sender import PENDING_BYTES as PENDING_BYTES
from multiqueue.spark._events.sender import Chunk as Chunk
from multiqueue.spark._events.sender import Route as Route
from multiqueue.spark._events.sender import read as read
from multiqueue.spark._events.sender import sender as sender
from multiqueue.spark._events.sender import written as written
from multiqueue.spark._fan_in import fan_in as _fan_in  # noqa: F401
from multiqueue.spark._fan_in import reading as _reading  # noqa: F401
from multiqueue.spark._fan_in.budget import Budget as Budget
from multiqueue.spark._stream import lease as _lease  # noqa: F401
from multiqueue.spark._stream import lease_backlog as _lease_backlog  # noqa: F401
from multiqueue.spark._stream import lease_reading as _lease_reading  # noqa: F401
from multiqueue.spark._stream import lease_return as _lease_return  # noqa: F401
from multiqueue.spark._stream import queue_reader as _queue_reader  # noqa: F401
from multiqueue.spark._stream import sink as _sink  # noqa: F401
from multiqueue.spark._stream import source as _source  # noqa: F401
from multiqueue.spark._stream import spool as _spool  # noqa: F401
from multiqueue.spark._stream.columns import RAW as RAW
from multiqueue.spark._stream.lease import Lease as Lease
from multiqueue.spark._stream.lease_backlog import Leased as Leased
from multiqueue.spark._stream.lease_backlog import LeasedQueueReader as LeasedQueueReader
from multiqueue.spark._stream.lease_properties import properties_as_text as properties_as_text
from multiqueue.spark._stream.lease_properties import properties_of_text as properties_of_text
from multiqueue.spark._stream.options import SourceOptions as SourceOptions
from multiqueue.spark._stream.queue_reader import QueueReader as QueueReader
from multiqueue.spark._stream.queue_reader import Supply as Supply
from multiqueue.spark._stream.source import QueueStreamReader as QueueStreamReader
from multiqueue.spark._stream.spool import Slice as Slice
from multiqueue.spark._stream.spool import Spool as Spool
from multiqueue.spark._stream.spool import file_name as file_name
from multiqueue.spark._stream.spool_files import Files as Files
