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
from ._base.kinds import known_queue_kinds as known_queue_kinds
from ._base.kinds import register_queue_kind as register_queue_kind
from ._base.kinds import unregister_queue_kind as unregister_queue_kind
from ._base.message import Message as Message
from ._base.message import WireForm as WireForm
from ._base.outcome import DeadLetterReason as DeadLetterReason
from ._base.outcome import PutOutcome as PutOutcome
from ._base.settings import AlertThresholds as AlertThresholds
from ._base.settings import MessageGroups as MessageGroups
from ._base.settings import Overflow as Overflow
from ._base.settings import QueueKind as QueueKind
from ._base.settings import QueueSettings as QueueSettings
from ._base.waits import serve_many as serve_many
from ._delivery.received import Delivery as Delivery
from ._delivery.received import Getter as Getter
from ._delivery.received import Received as Received
from ._delivery.scheduler import Scheduler as Scheduler
from ._delivery.subscription import PullSubscription as PullSubscription
from ._delivery.subscription import Subscription as Subscription
from ._delivery.target import ConsumerTarget as ConsumerTarget
from ._host.broker import Broker as Broker
from ._host.past import VirtualHostPast as VirtualHostPast
from ._host.publisher import Publisher as Publisher
from ._host.publisher import Run as Run
from ._host.publisher import Sent as Sent
from ._host.publishing import Published as Published
from ._host.receiving import ConsumerOptions as ConsumerOptions
from ._host.transaction import Transaction as Transaction
from ._host.virtual_host import VirtualHost as VirtualHost
from ._host.virtual_host import VirtualHostStatistics as VirtualHostStatistics
from ._paging.memory import MemoryStatistics as MemoryStatistics
from ._paging.memory import TargetStatistics as TargetStatistics
from ._queue.consumer import QueueConsumer as QueueConsumer
from ._queue.counters import QueueStatistics as QueueStatistics
from ._queue.entry import Entry as Entry
from ._queue.entry import EntryQueue as EntryQueue
from ._queue.entry import EntryState as EntryState
from ._queue.entry import IllegalStep as IllegalStep
from ._queue.entry_list import EntryList as EntryList
from ._queue.entry_list_kinds import LastValueEntryList as LastValueEntryList
from ._queue.entry_list_kinds import PriorityEntryList as PriorityEntryList
from ._queue.entry_list_kinds import SortedEntryList as SortedEntryList
from ._queue.entry_list_kinds import StandardEntryList as StandardEntryList
from ._queue.entry_list_kinds import make_entry_list as make_entry_list
from ._queue.queue import BrokerQueue as BrokerQueue
from ._routing.arguments import ConsumerArguments as ConsumerArguments
from ._routing.arguments import consumer_arguments as consumer_arguments
from ._routing.dead_letter import deaths_of as deaths_of
from ._routing.dead_letter import keys_in as keys_in
from ._routing.exchange import Binding as Binding
from ._routing.exchange import Exchange as Exchange
from ._routing.exchange import ExchangeStatistics as ExchangeStatistics
from ._routing.topology import DeclaredQueue as DeclaredQueue
from ._selector.selector import Selector as Selector
from ._selector.selector import compile_selector as compile_selector

_one_line_each("multiqueue.broker")

__all__ = [
    "AccessRefused",
    "Alert",
    "AlertThresholds",
    "Binding",
    "Broker",
    "BrokerClosed",
    "BrokerError",
    "BrokerQueue",
    "ConsumerArguments",
    "ConsumerNotAdmitted",
    "ConsumerOptions",
    "ConsumerTarget",
    "Credit",
    "DeadLetterReason",
    "DeclaredQueue",
    "Delivery",
    "Entry",
    "EntryList",
    "EntryQueue",
    "EntryState",
    "Exchange",
    "ExchangeStatistics",
    "Getter",
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
    "PreconditionFailed",
    "PriorityEntryList",
    "Published",
    "Publisher",
    "PullSubscription",
    "PutOutcome",
    "QueueConsumer",
    "QueueKind",
    "QueueSettings",
    "QueueStatistics",
    "Received",
    "ResourceLocked",
    "Run",
    "Scheduler",
    "Selector",
    "SelectorError",
    "Sent",
    "SortedEntryList",
    "StandardEntryList",
    "Subscription",
    "TargetStatistics",
    "Transaction",
    "Undeliverable",
    "UnknownQueueKind",
    "Unroutable",
    "VirtualHost",
    "VirtualHostPast",
    "VirtualHostStatistics",
    "WireForm",
    "compile_selector",
    "consumer_arguments",
    "deaths_of",
    "keys_in",
    "known_queue_kinds",
    "make_entry_list",
    "register_queue_kind",
    "serve_many",
    "unregister_queue_kind",
]
