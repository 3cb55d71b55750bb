"""The parts of `multiqueue.amqp` that its tests try alone: the one place where they name its modules."""

from __future__ import annotations

from multiqueue.amqp import Ack, Nack, Reject
from multiqueue.amqp._server import accepting as accepting
from multiqueue.amqp._server import access as access
from multiqueue.amqp._server import config as config
from multiqueue.amqp._server import connection as connection
from multiqueue.amqp._server.access import UsersFile as UsersFile
from multiqueue.amqp._server.config import LimitsSection as LimitsSection
from multiqueue.amqp._server.config import load_config as load_config
from multiqueue.amqp._server.connection import ServerConnection as ServerConnection
from multiqueue.amqp._server.frame_io import FrameWriter as FrameWriter
from multiqueue.amqp._server.frame_io import ReadGate as ReadGate
from multiqueue.amqp._server.handshake import CLOSE as CLOSE
from multiqueue.amqp._server.handshake import DROPS_WHAT_IT_DOES_NOT_KNOW as DROPS_WHAT_IT_DOES_NOT_KNOW
from multiqueue.amqp._server.handshake import MOVES as MOVES
from multiqueue.amqp._server.handshake import ConnectionMachine as ConnectionMachine
from multiqueue.amqp._server.handshake import ConnectionState as ConnectionState
from multiqueue.amqp._server.handshake import check_limit as check_limit
from multiqueue.amqp._server.io_thread import IoThread as IoThread
from multiqueue.amqp._server.io_thread import Piecework as Piecework
from multiqueue.amqp._server.settings import RANGES as RANGES
from multiqueue.amqp._server.settings import memory_of_machine as memory_of_machine
from multiqueue.amqp._server.strangers import LINES as LINES
from multiqueue.amqp._server.strangers import PERIOD as PERIOD
from multiqueue.amqp._server.strangers import Newcomer as Newcomer
from multiqueue.amqp._server.strangers import Newcomers as Newcomers
from multiqueue.amqp._server.strangers import QuietLog as QuietLog
from multiqueue.amqp._server.strangers import network_of as network_of
from multiqueue.amqp._session import deliveries as deliveries
from multiqueue.amqp._session import machine as machine
from multiqueue.amqp._session import transaction as transaction
from multiqueue.amqp._session.confirms import Confirms as Confirms
from multiqueue.amqp._session.consumer import ChannelWindow as ChannelWindow
from multiqueue.amqp._session.consumer import Turns as Turns
from multiqueue.amqp._session.consumer import Window as Window
from multiqueue.amqp._session.machine import ChannelEvent as ChannelEvent
from multiqueue.amqp._session.machine import ChannelMachine as ChannelMachine
from multiqueue.amqp._session.machine import ChannelState as ChannelState
from multiqueue.amqp._session.session import HANDLERS as HANDLERS
from multiqueue.amqp._session.session import SETTLING as SETTLING
from multiqueue.amqp._session.transaction import SessionTransaction as SessionTransaction
from multiqueue.amqp._wire import frames as frames
from multiqueue.amqp._wire import message as message
from multiqueue.amqp._wire import methods as methods
from multiqueue.amqp._wire import plain as plain
from multiqueue.amqp._wire.errors import FrameError as FrameError
from multiqueue.amqp._wire.errors import MalformedFrame as MalformedFrame
from multiqueue.amqp._wire.fields import decode_table as decode_table
from multiqueue.amqp._wire.fields import encode_short_string as encode_short_string
from multiqueue.amqp._wire.frames import ContentHeader as ContentHeader
from multiqueue.amqp._wire.frames import Publish as Publish
from multiqueue.amqp._wire.frames import deliver_prefix as deliver_prefix
from multiqueue.amqp._wire.frames import encode_deliver as encode_deliver
from multiqueue.amqp._wire.frames import encode_get_ok as encode_get_ok
from multiqueue.amqp._wire.frames import encode_return as encode_return
from multiqueue.amqp._wire.frames import encode_settlement
from multiqueue.amqp._wire.message import WireMessage as WireMessage
from multiqueue.amqp._wire.message import body_of as body_of
from multiqueue.amqp._wire.message import digest as digest
from multiqueue.amqp._wire.message import names_of as names_of
from multiqueue.amqp._wire.message import remembered as remembered
from multiqueue.amqp._wire.message import without_header as without_header
from multiqueue.amqp._wire.properties import rewritten as rewritten
from multiqueue.amqp.cli import fetch_health as fetch_health
from multiqueue.amqp.cli import fetch_status as fetch_status


def encode_ack(channel: int, delivery_tag: int, multiple: bool = False) -> bytes:
    return encode_settlement(channel, Ack(delivery_tag, multiple))


def encode_nack(channel: int, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> bytes:
    return encode_settlement(channel, Nack(delivery_tag, multiple, requeue))


def encode_reject(channel: int, delivery_tag: int, requeue: bool = True) -> bytes:
    return encode_settlement(channel, Reject(delivery_tag, requeue))
