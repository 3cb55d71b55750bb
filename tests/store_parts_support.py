"""The parts of `multiqueue.store` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from multiqueue.store import _bodies as _bodies
from multiqueue.store import _dump as _dump
from multiqueue.store import _group_commit as _group_commit
from multiqueue.store import _plan as _plan
from multiqueue.store import _presence as _presence
from multiqueue.store import _recovery as _recovery
from multiqueue.store import _salvage as _salvage
from multiqueue.store import _schema as _schema
from multiqueue.store import _sqlite as _sqlite
from multiqueue.store import _sqlite_reader as _sqlite_reader
from multiqueue.store import _sqlite_writer as _sqlite_writer
from multiqueue.store import _sync_beside as _sync_beside
from multiqueue.store._batch import Run as Run
from multiqueue.store._crc import crc32 as crc32
from multiqueue.store._room import Room as Room
from multiqueue.store._salvage import first_behind as first_behind
from multiqueue.store._schema import FILE_NAME as FILE_NAME
from multiqueue.store._schema import FORMAT as FORMAT
from multiqueue.store._sqlite_writer import IDS_RESERVED as IDS_RESERVED
from multiqueue.store._sqlite_writer import SqliteWriter as SqliteWriter
from multiqueue.store._wake_chain import WakeChain as WakeChain
