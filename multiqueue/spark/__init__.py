"""THE LOADING DOCK: feeds Spark from the driver.

Promises: jobs start by lane, priority and fairness, at most `max_running` at a time; a cancelled or timed-out future
cancels its Spark job; nothing one job sets is seen by the next; every outcome has a separate type; `fan_in` reads
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
from ._backend.causes import cause_of as cause_of
from ._backend.errors import FanInError as FanInError
from ._backend.errors import SparkDeadlineMissed as SparkDeadlineMissed
from ._backend.errors import SparkDispatchError as SparkDispatchError
from ._backend.errors import SparkEnvironmentError as SparkEnvironmentError
from ._backend.errors import SparkJobCancelled as SparkJobCancelled
from ._backend.errors import SparkJobTimeout as SparkJobTimeout
from ._backend.errors import SparkSessionStopped as SparkSessionStopped
from ._backend.errors import TaskEventsError as TaskEventsError
from ._backend.progress import Progress as Progress
from ._dispatch.dispatcher import SparkDispatcher as SparkDispatcher
from ._dispatch.environment import Finding as Finding
from ._dispatch.environment import check_environment as check_environment
from ._dispatch.future import SparkFuture as SparkFuture
from ._dispatch.lane import SparkLane as SparkLane
from ._dispatch.options import JobOptions as JobOptions
from ._dispatch.options import Retry as Retry
from ._dispatch.pools import SchedulerPool as SchedulerPool
from ._dispatch.pools import pools_xml as pools_xml
from ._dispatch.session import quiet_query_contexts as quiet_query_contexts
from ._dispatch.session import session_builder as session_builder
from ._dispatch.statistics import Histogram as Histogram
from ._dispatch.statistics import SparkLaneStatistics as SparkLaneStatistics
from ._dispatch.statistics import SparkStatistics as SparkStatistics
from ._dispatch.transient import is_transient as is_transient
from ._events.events import TaskEvents as TaskEvents
from ._events.events import TaskEventsStatistics as TaskEventsStatistics
from ._events.events import TaskProgress as TaskProgress
from ._events.events import task_events as task_events
from ._events.ledger import TaskEvent as TaskEvent
from ._events.sender import TaskSender as TaskSender
from ._fan_in.fan_in import FanIn as FanIn
from ._fan_in.fan_in import fan_in as fan_in
from ._stream.data_source import QueueDataSource as QueueDataSource
from ._stream.data_source import register as register
from ._stream.errors import BadOption as BadOption
from ._stream.errors import DataLoss as DataLoss
from ._stream.errors import LeaseInUse as LeaseInUse
from ._stream.errors import MalformedBody as MalformedBody
from ._stream.errors import PublishFailed as PublishFailed
from ._stream.errors import SourceUnavailable as SourceUnavailable
from ._stream.errors import SpoolInUse as SpoolInUse
from ._stream.errors import SpoolNotShared as SpoolNotShared
from ._stream.errors import StreamingError as StreamingError
from ._stream.lease_return import give_back as give_back

_one_line_each("multiqueue.spark")

__all__ = [name for name in dir() if name[0].isalpha()]
