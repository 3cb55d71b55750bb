"""THE LOADING DOCK: feeds Spark from the driver.

Promises: jobs start by lane, priority and fairness, at most `max_running` at a time; a cancelled or timed-out future
cancels its Spark job; nothing one job sets is seen by the next; every outcome has a type of its own; `fan_in` reads
many DataFrames into one loop in bounded memory, `task_events` counts what tasks send once, a message of the source
`multiqueue` has a number, in a spool or a lease, when it leaves its queue.
Knows the core and the client. The only room that imports pyspark: `blocking-multiqueue[spark]`.
docs/design/spark.md, fan-in.md, streaming.md and task-events.md have the promises and the states.
"""

try:
    import pyspark as _pyspark  # noqa: F401 - asked for here so that its absence is said in one sentence
except ImportError as _error:
    raise ImportError(f"multiqueue.spark needs pyspark ({_error}): pip install 'blocking-multiqueue[spark]'") from None

from .._logs import one_line_each as _one_line_each
from ._causes import cause_of as cause_of
from ._dispatcher import SparkDispatcher as SparkDispatcher
from ._environment import Finding as Finding
from ._environment import check_environment as check_environment
from ._errors import FanInError as FanInError
from ._errors import SparkDeadlineMissed as SparkDeadlineMissed
from ._errors import SparkDispatchError as SparkDispatchError
from ._errors import SparkEnvironmentError as SparkEnvironmentError
from ._errors import SparkJobCancelled as SparkJobCancelled
from ._errors import SparkJobTimeout as SparkJobTimeout
from ._errors import SparkSessionStopped as SparkSessionStopped
from ._errors import TaskEventsError as TaskEventsError
from ._fan_in import FanIn as FanIn
from ._fan_in import fan_in as fan_in
from ._future import SparkFuture as SparkFuture
from ._lane import SparkLane as SparkLane
from ._lease_return import give_back as give_back
from ._options import JobOptions as JobOptions
from ._options import Retry as Retry
from ._pools import SchedulerPool as SchedulerPool
from ._pools import pools_xml as pools_xml
from ._progress import Progress as Progress
from ._session import quiet_query_contexts as quiet_query_contexts
from ._session import session_builder as session_builder
from ._statistics import Histogram as Histogram
from ._statistics import SparkLaneStatistics as SparkLaneStatistics
from ._statistics import SparkStatistics as SparkStatistics
from ._streaming import QueueDataSource as QueueDataSource
from ._streaming import register as register
from ._streaming_errors import BadOption as BadOption
from ._streaming_errors import DataLoss as DataLoss
from ._streaming_errors import LeaseInUse as LeaseInUse
from ._streaming_errors import MalformedBody as MalformedBody
from ._streaming_errors import PublishFailed as PublishFailed
from ._streaming_errors import SourceUnavailable as SourceUnavailable
from ._streaming_errors import SpoolInUse as SpoolInUse
from ._streaming_errors import SpoolNotShared as SpoolNotShared
from ._streaming_errors import StreamingError as StreamingError
from ._task_events import TaskEvents as TaskEvents
from ._task_events import TaskEventsStatistics as TaskEventsStatistics
from ._task_events import task_events as task_events
from ._task_events_ledger import TaskEvent as TaskEvent
from ._task_events_ledger import TaskProgress as TaskProgress
from ._task_events_sender import TaskSender as TaskSender
from ._transient import is_transient as is_transient

_one_line_each("multiqueue.spark")

__all__ = [
    "BadOption",
    "DataLoss",
    "FanIn",
    "FanInError",
    "Finding",
    "Histogram",
    "JobOptions",
    "LeaseInUse",
    "MalformedBody",
    "Progress",
    "PublishFailed",
    "QueueDataSource",
    "Retry",
    "SchedulerPool",
    "SourceUnavailable",
    "SparkDeadlineMissed",
    "SparkDispatchError",
    "SparkDispatcher",
    "SparkEnvironmentError",
    "SparkFuture",
    "SparkJobCancelled",
    "SparkJobTimeout",
    "SparkLane",
    "SparkLaneStatistics",
    "SparkSessionStopped",
    "SparkStatistics",
    "SpoolInUse",
    "SpoolNotShared",
    "StreamingError",
    "TaskEvent",
    "TaskEvents",
    "TaskEventsError",
    "TaskEventsStatistics",
    "TaskProgress",
    "TaskSender",
    "cause_of",
    "check_environment",
    "fan_in",
    "give_back",
    "is_transient",
    "pools_xml",
    "quiet_query_contexts",
    "register",
    "session_builder",
    "task_events",
]
