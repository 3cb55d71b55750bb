"""The state machines, without sockets: every event in every state."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from amqp_parts_support import (
    CLOSE,
    DROPS_WHAT_IT_DOES_NOT_KNOW,
    HANDLERS,
    MOVES,
    SETTLING,
    ChannelEvent,
    ChannelMachine,
    ChannelState,
    ChannelWindow,
    Confirms,
    ConnectionMachine,
    ConnectionState,
    Window,
    check_limit,
)
from amqp_parts_support import machine as channel_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_support import examples
from pamqp import commands

from multiqueue import amqp

HEADER = b"\0\x3c\0\0" + (3).to_bytes(8) + b"\0\0"
EVENTS = {
    ChannelEvent.OPEN: (1, amqp.encode_method(1, commands.Channel.Open)[7:-1]),
    ChannelEvent.CLOSE: (1, amqp.encode_method(1, commands.Channel.Close)[7:-1]),
    ChannelEvent.CLOSE_OK: (1, amqp.encode_method(1, commands.Channel.CloseOk)[7:-1]),
    ChannelEvent.PUBLISH: (1, amqp.encode_method(1, commands.Basic.Publish)[7:-1]),
    ChannelEvent.METHOD: (1, amqp.encode_method(1, commands.Basic.Qos)[7:-1]),
    ChannelEvent.HEADER: (2, HEADER),
    ChannelEvent.BODY: (3, b"ab"),
}


def channel_in(state: ChannelState) -> ChannelMachine:
    """A machine that has come to a state by what a peer may send."""
    machine = ChannelMachine(1000)
    steps = {
        ChannelState.CLOSED: [],
        ChannelState.OPEN: [ChannelEvent.OPEN],
        ChannelState.HEADER: [ChannelEvent.OPEN, ChannelEvent.PUBLISH],
        ChannelState.BODY: [ChannelEvent.OPEN, ChannelEvent.PUBLISH, ChannelEvent.HEADER],
        ChannelState.CLOSING: [ChannelEvent.OPEN],
    }[state]
    for event in steps:
        machine.receive(*EVENTS[event])
    if state is ChannelState.CLOSING:
        machine.close()
    assert machine.state is state
    return machine


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ChannelState, ChannelEvent)))
def test_a_channel_follows_its_table(state: ChannelState, event: ChannelEvent) -> None:
    """Every event in every state goes where the table says, or raises what it says and changes nothing."""
    machine = channel_in(state)
    cell = channel_machine.MOVES[state][event]
    if isinstance(cell, tuple):
        with pytest.raises(amqp.ConnectionFault) as raised:
            machine.receive(*EVENTS[event])
        assert (raised.value.reply_code, raised.value.detail) == cell
        assert machine.state is state
    else:
        machine.receive(*EVENTS[event])
        assert machine.state is cell


def test_what_a_closing_channel_answers() -> None:
    """Only a close of the peer's, which has crossed with ours, and the close-ok, which ends it. An open is an error."""
    for event in ChannelEvent:
        if event is ChannelEvent.OPEN:
            continue
        effect = channel_in(ChannelState.CLOSING).receive(*EVENTS[event])
        assert (effect is not None) == (event in (ChannelEvent.CLOSE, ChannelEvent.CLOSE_OK))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
def test_a_body_comes_in_any_number_of_frames(pieces: list[bytes]) -> None:
    """The content is whole when the size of its header is reached, and not before."""
    machine = channel_in(ChannelState.HEADER)
    body = b"".join(pieces)
    header = b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\0\0"
    effects = [machine.receive(2, header)] + [machine.receive(3, piece) for piece in pieces]
    assert effects[:-1] == [None] * len(pieces)
    assert effects[-1] == (EVENTS[ChannelEvent.PUBLISH][1], b"\0\0", body)
    assert machine.state is ChannelState.OPEN


def test_a_body_is_no_longer_than_it_said() -> None:
    """One byte more costs the connection; a header beyond the limit costs the channel."""
    machine = channel_in(ChannelState.BODY)
    machine.receive(3, b"ab")
    with pytest.raises(amqp.ConnectionFault, match="1 bytes longer"):
        machine.receive(3, b"cd")
    machine = channel_in(ChannelState.HEADER)
    with pytest.raises(amqp.ChannelFault, match="message size 1001 is larger"):
        machine.receive(2, b"\0\x3c\0\0" + (1001).to_bytes(8) + b"\0\0")


def test_every_method_of_the_specification_has_its_place() -> None:
    """A method is the channel's, the connection's, or none that a client may call."""
    from_server = {
        "Basic.Return Basic.Deliver Basic.GetOk Basic.GetEmpty Basic.ConsumeOk Basic.QosOk Basic.RecoverOk"
        " Channel.OpenOk Confirm.SelectOk Tx.SelectOk Tx.CommitOk Tx.RollbackOk Exchange.DeclareOk"
        " Exchange.DeleteOk Exchange.BindOk Exchange.UnbindOk Queue.DeclareOk Queue.BindOk Queue.PurgeOk"
        " Queue.DeleteOk Queue.UnbindOk Channel.FlowOk Basic.CancelOk"
    }.pop()
    channels = {"Channel.Open", "Channel.Close", "Channel.CloseOk", "Basic.Publish"}
    known = set(HANDLERS) | SETTLING
    method: Any
    for method in commands.INDEX_MAPPING.values():
        if method.name.startswith("Connection."):
            continue
        handled = method.index.to_bytes(4) in known or method.name in channels
        assert handled != (method.name in from_server.split()), method.name


# -- the connection

METHODS = sorted({method for moves in MOVES.values() for method in moves} | {b"\0\x0a\0\x0a", b"\0\x3c\0\x28"})
MAY_GIVE_UP = {ConnectionState.STARTING, ConnectionState.TUNING, ConnectionState.OPENING}


@pytest.mark.parametrize(("state", "method"), list(itertools.product(ConnectionState, METHODS)))
def test_a_connection_follows_its_table(state: ConnectionState, method: bytes) -> None:
    """Every method in every state goes where the table says, is dropped, or raises and changes nothing."""
    machine = ConnectionMachine()
    machine.state = state
    to = MOVES[state].get(method)
    if method == CLOSE and state in MAY_GIVE_UP:
        assert to is ConnectionState.CLOSED
    if to is not None:
        assert machine.receive(method)
        assert machine.state is to
    elif state in DROPS_WHAT_IT_DOES_NOT_KNOW:
        assert not machine.receive(method)
        assert machine.state is state
    else:
        with pytest.raises(
            amqp.ConnectionFault, match=f"unexpected method in connection state {state.value}"
        ) as raised:
            machine.receive(method)
        assert raised.value.reply_code == 504
        assert machine.state is state


def test_a_channels_frame_needs_an_open_connection() -> None:
    """Before it is open such a frame is an error, while it closes it is dropped."""
    for state in ConnectionState:
        machine = ConnectionMachine()
        machine.state = state
        if state in (ConnectionState.RUNNING, *DROPS_WHAT_IT_DOES_NOT_KNOW):
            assert machine.check_channel_frame() == (state is ConnectionState.RUNNING)
        else:
            with pytest.raises(amqp.ConnectionFault):
                machine.check_channel_frame()


@given(st.integers(0, 5), st.integers(4000, 9000) | st.just(0))
def test_tuning_never_raises_a_limit(channel_max: int, frame_max: int) -> None:
    """What a client may choose is at most what was offered, and no less than a frame needs."""
    fits = 1 <= channel_max <= 3 and 4096 <= frame_max <= 8192
    try:
        check_limit("channel_max", 3, channel_max)
        check_limit("frame_max", 8192, frame_max, 4096)
        assert fits
    except amqp.ConnectionFault:
        assert not fits


def test_heartbeats() -> None:
    """Two whole periods of silence are the end of a peer, and a peer that is not read from is not judged."""
    monitor = amqp.HeartbeatMonitor()
    assert not monitor.tick(listening=True)  # just connected: something was heard
    assert [monitor.tick(listening=True) for _ in range(4)] == [False, False, False, True]
    monitor.heard = True
    assert not monitor.tick(listening=True)
    assert not any(monitor.tick(listening=False) for _ in range(9))


# -- confirms and windows


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 8))
def test_every_publish_is_confirmed_once(ends: list[tuple[int, bool]], at_once: int) -> None:
    """Whatever order publishes end in, each number is told once, and no `multiple` covers one that is open."""
    confirms = Confirms(1)
    open_: list[int] = []
    told: dict[int, bool] = {}
    expected: dict[int, bool] = {}

    def take() -> None:
        for method in confirms.take():
            lowest = next(n for n in range(1, 100) if n not in told) if method.multiple else method.delivery_tag
            for number in range(lowest, method.delivery_tag + 1):
                if number not in told:
                    told[number] = isinstance(method, amqp.Ack)
                    assert number not in open_

    for step, (index, refused) in enumerate(ends):
        open_.append(confirms.begin())
        number = open_.pop(min(index, len(open_) - 1))
        if index:
            confirms.end((number,), refused=refused)
            expected[number] = not refused
        else:
            open_.append(number)
            open_.sort()
        if step % at_once == 0:
            take()
    for number in open_[:]:
        open_.remove(number)
        confirms.end((number,))
        expected[number] = True
    take()
    assert told == expected
    assert not confirms.take()


def test_acks_of_a_burst_are_one_frame() -> None:
    """A hundred publishes that are done in order are confirmed by one ack."""
    confirms = Confirms(1)
    for _ in range(100):
        confirms.end((confirms.begin(),))
    assert confirms.take() == [amqp.Ack(100, True)]


def test_two_windows_hold_together() -> None:
    """A consumer takes what both its own limit and its channel's allow; one that was stopped hears of room."""
    shared = ChannelWindow()
    shared.limit = 3
    one, two = Window(2, shared), Window(None, shared)
    assert one.take_run([1, 1, 1]) == 2
    assert [two.take_run([1, 1]), two.take_run([1]), two.is_open, one.is_open] == [1, 0, False, False]
    assert two.settled(1, 0)
    assert (two.is_open, one.is_open) == (True, False)
    assert one.settled(1, 0)
    assert one.is_open
    assert not one.settled(1, 0)
    one.check_invariants()
    two.check_invariants()


# -- the page about them

PAGE = Path(__file__).parents[2] / "docs" / "design" / "amqp.md"


def rows(*names: str) -> list[list[str]]:
    """The rows of the table on the page that has these columns."""
    lines = PAGE.read_text().splitlines()
    at = lines.index("| " + " | ".join(names) + " |") + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[at:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_page_shows_the_channels_table() -> None:
    """The table in the document is the one in the code."""
    shown = rows("in", *(event.name for event in ChannelEvent))
    cells = [[channel_machine.MOVES[state][event] for event in ChannelEvent] for state in ChannelState]
    assert shown == [
        [state.name, *(str(cell[0]) if isinstance(cell, tuple) else cell.name for cell in row)]
        for state, row in zip(ChannelState, cells, strict=True)
    ]


def test_the_page_shows_the_connections_table() -> None:
    """The same for connections."""
    methods: list[Any] = list(commands.INDEX_MAPPING.values())
    called = {method.index.to_bytes(4): method.name for method in methods}
    moves = [[state.name, called[method], to.name] for state, moves in MOVES.items() for method, to in moves.items()]
    assert rows("from", "method", "to") == moves


def test_every_promise_about_the_protocol_is_tested() -> None:
    """Each number P1 to P22 is named by a test, and stands on the page."""
    tested = set()
    for path in Path(__file__).parent.glob("test_amqp_*.py"):
        for group in re.findall(r"\(((?:P\d+(?:, )?)+)\)\.\"\"\"", path.read_text()):
            tested.update(group.split(", "))
    numbers = re.findall(r"^\| (P\d+(?:, P\d+)*) \|", PAGE.read_text(), re.MULTILINE)
    shown = {number for row in numbers for number in row.split(", ")}
    assert shown == {f"P{n}" for n in range(1, 23)}
    assert shown == tested, sorted(shown ^ tested)
