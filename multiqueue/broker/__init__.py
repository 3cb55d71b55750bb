"""The sorting office: broker queues, their consumers, and the exchanges that route messages to them.

Promises a broker inside the process, without I/O: messages keep their order, are held by one consumer at a
time, and are settled once. Knows `multiqueue.core` and `multiqueue.store`, through their doors; the gatehouse
(`amqp`), the pipeline and the windows (`monitor`) know this one.
"""

from .._logs import one_line_each as _one_line_each
from ._base.alerts import Alert as Alert
from ._base.credit import Credit as Credit
from ._base.errors import AccessRefused as AccessRefused
from ._base.errors import BrokerClosed as BrokerClosed
from ._base.errors import BrokerError as BrokerError
from ._base.errors import ConsumerNotAdmitted as ConsumerNotAdmitted
from ._base.errors import MessageRefused as MessageRefused
from ._base.errors import MessageTooLarge as MessageTooLarge
from ._base.errors import NoConsumers as NoConsumers
from ._base.errors import NotAllowed as NotAllowed
from ._base.errors import NotFound as NotFound
from ._base.errors import NotImplementedByBroker as NotImplementedByBroker
from ._base.errors import PreconditionFailed as PreconditionFailed
from ._base.errors import ResourceLocked as ResourceLocked
from ._base.errors import SelectorError as SelectorError
from ._base.errors import Undeliverable as Undeliverable
from ._base.errors import UnknownQueueKind as UnknownQueueKind
from ._base.errors import Unroutable as Unroutable
from ._base.message import DeadLetterReason as DeadLetterReason
from ._base.message import Message as Message
from ._base.message import PutOutcome as PutOutcome
from ._base.message import WireForm as WireForm
from ._base.settings import AlertThresholds as AlertThresholds
from ._base.settings import DelayedRetry as DelayedRetry
from ._base.settings import DeliveryCounting as DeliveryCounting
from ._base.settings import Governing as Governing
from ._base.settings import MessageGroups as MessageGroups
from ._base.settings import Overflow as Overflow
from ._base.settings import QueueKind as QueueKind
from ._base.settings import QueueSettings as QueueSettings
from ._base.waits import PutOff as PutOff
from ._base.waits import give_way as give_way
from ._base.waits import serve_many as serve_many
from ._base.waits import without_waiting as without_waiting
from ._delivery.received import Delivery as Delivery
from ._delivery.received import Getter as Getter
from ._delivery.received import Received as Received
from ._delivery.received import Settler as Settler
from ._delivery.subscription import PullSubscription as PullSubscription
from ._delivery.subscription import Scheduler as Scheduler
from ._delivery.subscription import Subscription as Subscription
from ._delivery.target import ConsumerTarget as ConsumerTarget
from ._durable.submission import Submission as Submission
from ._host.broker import Broker as Broker
from ._host.dead_letters import deaths_of as deaths_of
from ._host.dead_letters import keys_in as keys_in
from ._host.host_limits import HOST_LIMITS as HOST_LIMITS
from ._host.host_limits import HostLimits as HostLimits
from ._host.host_limits import checked_limit as checked_limit
from ._host.host_metadata import GlobalParameters as GlobalParameters
from ._host.host_metadata import HostMetadata as HostMetadata
from ._host.host_state import VirtualHostPast as VirtualHostPast
from ._host.policies import APPLY_TO as APPLY_TO
from ._host.policies import OPERATOR_POLICY as OPERATOR_POLICY
from ._host.policies import Policies as Policies
from ._host.policies import Policy as Policy
from ._host.policies import UnknownPolicySetting as UnknownPolicySetting
from ._host.publishing import Published as Published
from ._host.publishing import Publisher as Publisher
from ._host.publishing import Sent as Sent
from ._host.transaction import Transaction as Transaction
from ._host.verbs import ConsumerOptions as ConsumerOptions
from ._host.virtual_host import VirtualHost as VirtualHost
from ._host.virtual_host import VirtualHostStatistics as VirtualHostStatistics
from ._paging.memory import MemoryStatistics as MemoryStatistics
from ._paging.memory import TargetStatistics as TargetStatistics
from ._queue.consumer import QueueConsumer as QueueConsumer
from ._queue.entry import Entry as Entry
from ._queue.entry import EntryQueue as EntryQueue
from ._queue.entry import EntryState as EntryState
from ._queue.entry import IllegalStep as IllegalStep
from ._queue.entry_list import EntryList as EntryList
from ._queue.entry_list import LastValueEntryList as LastValueEntryList
from ._queue.entry_list import PriorityEntryList as PriorityEntryList
from ._queue.entry_list import SortedEntryList as SortedEntryList
from ._queue.entry_list import StandardEntryList as StandardEntryList
from ._queue.entry_list import known_queue_kinds as known_queue_kinds
from ._queue.entry_list import make_entry_list as make_entry_list
from ._queue.entry_list import register_queue_kind as register_queue_kind
from ._queue.entry_list import unregister_queue_kind as unregister_queue_kind
from ._queue.figures import QueueStatistics as QueueStatistics
from ._queue.queue import BrokerQueue as BrokerQueue
from ._queue.tenants import FairStatistics as FairStatistics
from ._queue.tenants import TenantStatistics as TenantStatistics
from ._queue.watch import QueueWatch as QueueWatch
from ._routing.arguments import CONSUMER_ARGUMENTS as CONSUMER_ARGUMENTS
from ._routing.arguments import ConsumerArguments as ConsumerArguments
from ._routing.arguments import consumer_arguments as consumer_arguments
from ._routing.compat import QUEUE_TYPES as QUEUE_TYPES
from ._routing.compat import VERSIONS as VERSIONS
from ._routing.compat import Compat as Compat
from ._routing.exchange import EXCHANGE_TYPES as EXCHANGE_TYPES
from ._routing.exchange import Binding as Binding
from ._routing.exchange import Exchange as Exchange
from ._routing.exchange import ExchangeStatistics as ExchangeStatistics
from ._routing.topology import DeclaredQueue as DeclaredQueue
from ._selector.selector import Selector as Selector
from ._selector.selector import compile_selector as compile_selector

_one_line_each("multiqueue.broker")

__all__ = [name for name in dir() if name[0].isalpha()]
