"""The cellar: what must survive. Messages of many queues, in order, and the definitions of these queues.

Promises that all commits survive the failures that the durability names, that a commit is whole, and that no
id is ever given twice. Knows `multiqueue.errors` alone, and how records are logged; the broker and the pipeline know
this room.
"""

from .._logs import one_line_each as _one_line_each
from ._errors import StoreClosed as StoreClosed
from ._errors import StoreDamaged as StoreDamaged
from ._errors import StoreError as StoreError
from ._errors import StoreFailed as StoreFailed
from ._errors import StoreFull as StoreFull
from ._errors import StoreLocked as StoreLocked
from ._group_commit import give_way as give_way
from ._memory import MemoryStore as MemoryStore
from ._protocol import Commit as Commit
from ._protocol import Define as Define
from ._protocol import Definition as Definition
from ._protocol import Delete as Delete
from ._protocol import Delivered as Delivered
from ._protocol import DropQueue as DropQueue
from ._protocol import Durability as Durability
from ._protocol import Header as Header
from ._protocol import Held as Held
from ._protocol import Level as Level
from ._protocol import MessageStore as MessageStore
from ._protocol import Operation as Operation
from ._protocol import Outline as Outline
from ._protocol import Put as Put
from ._protocol import StoreStatistics as StoreStatistics
from ._protocol import Undefine as Undefine
from ._sqlite import SqliteStore as SqliteStore

__all__ = [name for name in dir() if name[0].isalpha()]

_one_line_each("multiqueue.store")
