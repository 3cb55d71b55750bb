"""The sorting office: broker queues, their consumers, and the exchanges that route messages to them.

Promises a broker inside the process, without I/O: messages keep their order, are held by one consumer at a
time, and are settled once. Knows `multiqueue.core` and `multiqueue.store`, through their doors; the gatehouse
(`amqp`), the pipeline and the windows (`monitor`) know this one.
"""

from .._logs import one_line_each as _one_line_each
from ._alerts import Alert as Alert
from ._arguments import ConsumerArguments as ConsumerArguments
from ._arguments import consumer_arguments as consumer_arguments
from ._binding import Binding as Binding
from ._broker import Broker as Broker
from ._consumer import QueueConsumer as QueueConsumer
from ._credit import Credit as Credit
from ._dead_letter import deaths_of as deaths_of
from ._dead_letter import keys_in as keys_in
from ._entry import Entry as Entry
from ._entry import EntryState as EntryState
from ._entry import IllegalStep as IllegalStep
from ._entry_list import EntryList as EntryList
from ._entry_list_kinds import LastValueEntryList as LastValueEntryList
from ._entry_list_kinds import PriorityEntryList as PriorityEntryList
from ._entry_list_kinds import SortedEntryList as SortedEntryList
from ._entry_list_kinds import StandardEntryList as StandardEntryList
from ._entry_list_kinds import make_entry_list as make_entry_list
from ._errors import AccessRefused as AccessRefused
from ._errors import BrokerClosed as BrokerClosed
from ._errors import BrokerError as BrokerError
from ._errors import ConsumerNotAdmitted as ConsumerNotAdmitted
from ._errors import MessageRefused as MessageRefused
from ._errors import MessageTooLarge as MessageTooLarge
from ._errors import NoConsumers as NoConsumers
from ._errors import NotAllowed as NotAllowed
from ._errors import NotFound as NotFound
from ._errors import NotImplementedByBroker as NotImplementedByBroker
from ._errors import PreconditionFailed as PreconditionFailed
from ._errors import ResourceLocked as ResourceLocked
from ._errors import SelectorError as SelectorError
from ._errors import Undeliverable as Undeliverable
from ._errors import UnknownQueueKind as UnknownQueueKind
from ._errors import Unroutable as Unroutable
from ._exchange import Exchange as Exchange
from ._exchange import ExchangeStatistics as ExchangeStatistics
from ._host_publishing import Published as Published
from ._host_receiving import ConsumerOptions as ConsumerOptions
from ._memory import MemoryStatistics as MemoryStatistics
from ._memory import TargetStatistics as TargetStatistics
from ._message import Message as Message
from ._message import WireForm as WireForm
from ._publisher import Publisher as Publisher
from ._publisher import Run as Run
from ._publisher import Sent as Sent
from ._queue import BrokerQueue as BrokerQueue
from ._queue_kinds import known_queue_kinds as known_queue_kinds
from ._queue_kinds import register_queue_kind as register_queue_kind
from ._queue_kinds import unregister_queue_kind as unregister_queue_kind
from ._queue_outcome import DeadLetterReason as DeadLetterReason
from ._queue_outcome import PutOutcome as PutOutcome
from ._queue_settings import AlertThresholds as AlertThresholds
from ._queue_settings import MessageGroups as MessageGroups
from ._queue_settings import Overflow as Overflow
from ._queue_settings import QueueKind as QueueKind
from ._queue_settings import QueueSettings as QueueSettings
from ._queue_statistics import QueueStatistics as QueueStatistics
from ._received import Getter as Getter
from ._received import Received as Received
from ._scheduler import Connection as Connection
from ._scheduler import Scheduler as Scheduler
from ._scheduler import Session as Session
from ._selector import Selector as Selector
from ._selector import compile_selector as compile_selector
from ._subscription import PullSubscription as PullSubscription
from ._subscription import Subscription as Subscription
from ._target import ConsumerTarget as ConsumerTarget
from ._target import Delivery as Delivery
from ._topology import DeclaredQueue as DeclaredQueue
from ._transaction import Transaction as Transaction
from ._virtual_host import VirtualHost as VirtualHost
from ._virtual_host import VirtualHostStatistics as VirtualHostStatistics

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
    "Connection",
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
    "Session",
    "SortedEntryList",
    "StandardEntryList",
    "Subscription",
    "TargetStatistics",
    "Transaction",
    "Undeliverable",
    "UnknownQueueKind",
    "Unroutable",
    "VirtualHost",
    "VirtualHostStatistics",
    "WireForm",
    "compile_selector",
    "consumer_arguments",
    "deaths_of",
    "keys_in",
    "known_queue_kinds",
    "make_entry_list",
    "register_queue_kind",
    "unregister_queue_kind",
]
