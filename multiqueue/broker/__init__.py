"""The sorting office: broker queues, their consumers, and the exchanges that route messages to them.

Promises a broker inside the process, without I/O: messages keep their order, are held by one consumer at a
time, and are settled once. Knows `multiqueue.core` and `multiqueue.store`, through their doors; the gatehouse
(`amqp`), the pipeline and the windows (`monitor`) know this one.
"""

from ._errors import AccessRefused as AccessRefused
from ._errors import BrokerClosed as BrokerClosed
from ._errors import BrokerError as BrokerError
from ._errors import MessageRefused as MessageRefused
from ._errors import NoConsumers as NoConsumers
from ._errors import NotAllowed as NotAllowed
from ._errors import NotFound as NotFound
from ._errors import PreconditionFailed as PreconditionFailed
from ._errors import ResourceLocked as ResourceLocked
from ._errors import SelectorError as SelectorError
from ._errors import Undeliverable as Undeliverable
from ._errors import Unroutable as Unroutable
from ._message import Message as Message
from ._queue_settings import MessageGroups as MessageGroups
from ._queue_settings import Overflow as Overflow
from ._queue_settings import QueueKind as QueueKind
from ._queue_settings import QueueSettings as QueueSettings
from ._selector import Selector as Selector
from ._virtual_host import Published as Published
from ._virtual_host import VirtualHost as VirtualHost
from ._virtual_host import VirtualHostStatistics as VirtualHostStatistics
