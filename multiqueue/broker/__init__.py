"""The sorting office: broker queues, their consumers, and the exchanges that route messages to them.

Promises a broker inside the process, without I/O: messages keep their order, are held by one consumer at a
time, and are settled once. Knows `multiqueue.core` and `multiqueue.store`, through their doors; the gatehouse
(`amqp`), the pipeline and the windows (`monitor`) know this one.
"""

from .._logs import one_line_each as _one_line_each
from ._base.alerts import Alert
from ._base.credit import Credit
from ._base.errors import (
    AccessRefused,
    BrokerClosed,
    BrokerError,
    ConsumerNotAdmitted,
    MessageRefused,
    MessageTooLarge,
    NoConsumers,
    NotAllowed,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
    ResourceLocked,
    SelectorError,
    Undeliverable,
    UnknownQueueKind,
    Unroutable,
)
from ._base.message import DeadLetterReason, Message, PutOutcome, WireForm
from ._base.settings import (
    AlertThresholds,
    DelayedRetry,
    DeliveryCounting,
    Governing,
    MessageGroups,
    Overflow,
    QueueKind,
    QueueSettings,
)
from ._base.waits import PutOff, serve_many, without_waiting
from ._delivery.received import Delivery, Getter, Received, Settler
from ._delivery.subscription import PullSubscription, Scheduler, Subscription
from ._delivery.target import ConsumerTarget
from ._durable.submission import Submission
from ._host.broker import Broker
from ._host.dead_letters import deaths_of, keys_in
from ._host.host_limits import HOST_LIMITS, HostLimits, checked_limit
from ._host.host_metadata import GlobalParameters, HostMetadata
from ._host.host_state import VirtualHostPast
from ._host.policies import APPLY_TO, OPERATOR_POLICY, Policies, Policy, UnknownPolicySetting
from ._host.publishing import Published, Publisher, Sent
from ._host.transaction import Transaction
from ._host.verbs import ConsumerOptions
from ._host.virtual_host import VirtualHost, VirtualHostStatistics
from ._paging.memory import MemoryStatistics, TargetStatistics
from ._queue.consumer import QueueConsumer
from ._queue.entry import Entry, EntryQueue, EntryState, IllegalStep
from ._queue.entry_list import (
    EntryList,
    LastValueEntryList,
    PriorityEntryList,
    SortedEntryList,
    StandardEntryList,
    known_queue_kinds,
    make_entry_list,
    register_queue_kind,
    unregister_queue_kind,
)
from ._queue.figures import QueueStatistics
from ._queue.queue import BrokerQueue
from ._queue.tenants import FairStatistics, TenantStatistics
from ._queue.watch import QueueWatch
from ._routing.arguments import CONSUMER_ARGUMENTS, ConsumerArguments, consumer_arguments
from ._routing.compat import QUEUE_TYPES, VERSIONS, Compat
from ._routing.exchange import EXCHANGE_TYPES, Binding, Exchange, ExchangeStatistics
from ._routing.topology import DeclaredQueue
from ._selector.selector import Selector, compile_selector

_one_line_each("multiqueue.broker")

__all__ = [
    "APPLY_TO",
    "CONSUMER_ARGUMENTS",
    "EXCHANGE_TYPES",
    "HOST_LIMITS",
    "OPERATOR_POLICY",
    "QUEUE_TYPES",
    "VERSIONS",
    "AccessRefused",
    "Alert",
    "AlertThresholds",
    "Binding",
    "Broker",
    "BrokerClosed",
    "BrokerError",
    "BrokerQueue",
    "Compat",
    "ConsumerArguments",
    "ConsumerNotAdmitted",
    "ConsumerOptions",
    "ConsumerTarget",
    "Credit",
    "DeadLetterReason",
    "DeclaredQueue",
    "DelayedRetry",
    "Delivery",
    "DeliveryCounting",
    "Entry",
    "EntryList",
    "EntryQueue",
    "EntryState",
    "Exchange",
    "ExchangeStatistics",
    "FairStatistics",
    "Getter",
    "GlobalParameters",
    "Governing",
    "HostLimits",
    "HostMetadata",
    "IllegalStep",
    "LastValueEntryList",
    "MemoryStatistics",
    "Message",
    "MessageGroups",
    "MessageRefused",
    "MessageTooLarge",
    "NoConsumers",
    "NotAllowed",
    "NotFound",
    "NotImplementedByBroker",
    "Overflow",
    "Policies",
    "Policy",
    "PreconditionFailed",
    "PriorityEntryList",
    "Published",
    "Publisher",
    "PullSubscription",
    "PutOff",
    "PutOutcome",
    "QueueConsumer",
    "QueueKind",
    "QueueSettings",
    "QueueStatistics",
    "QueueWatch",
    "Received",
    "ResourceLocked",
    "Scheduler",
    "Selector",
    "SelectorError",
    "Sent",
    "Settler",
    "SortedEntryList",
    "StandardEntryList",
    "Submission",
    "Subscription",
    "TargetStatistics",
    "TenantStatistics",
    "Transaction",
    "Undeliverable",
    "UnknownPolicySetting",
    "UnknownQueueKind",
    "Unroutable",
    "VirtualHost",
    "VirtualHostPast",
    "VirtualHostStatistics",
    "WireForm",
    "checked_limit",
    "compile_selector",
    "consumer_arguments",
    "deaths_of",
    "keys_in",
    "known_queue_kinds",
    "make_entry_list",
    "register_queue_kind",
    "serve_many",
    "unregister_queue_kind",
    "without_waiting",
]
