"""Those who have not logged in: what they may take of hashes, places, memory and lines of the log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import pytest
from amqp_desk_support import Desk
from amqp_parts_support import LINES, PERIOD, IoThread, Newcomer, Newcomers, QuietLog, accepting, network_of
from amqp_parts_support import access as _access
from amqp_parts_support import connection as _connection
from amqp_raw_support import RawClient
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from multiqueue import amqp
from multiqueue.amqp import Access, Logins, Permissions, Server, ServerSettings, User, hash_password
from multiqueue.broker import Broker
from multiqueue.testing import FakeClock, wait_until_blocked

# -- lines of the log


def test_lines_of_a_kind_are_counted_when_there_are_many(caplog: pytest.LogCaptureFixture) -> None:
    """Ten of each kind in ten seconds, then one that says how many more there were, and what the last was."""
    clock = FakeClock()
    quiet = QuietLog(logging.getLogger("multiqueue.amqp"), clock)
    for number in range(1000):
        quiet.warning("login of %s refused", number)
    quiet.warning("%s: another kind", "a stranger")
    assert len(caplog.records) == LINES + 1
    clock.advance(PERIOD)
    quiet.flush()
    last = caplog.records[-1].getMessage()
    assert last == "990 more lines like this in 10 s were left out; the last: login of 999 refused"
    quiet.flush()
    quiet.warning("login of %s refused", "one more")
    assert len(caplog.records) == LINES + 3
    for _ in range(LINES):
        quiet.warning("login of %s refused", "again")
    quiet.flush(everything=True)  # the server closes
    assert caplog.records[-1].getMessage().startswith("1 more lines")


# -- places


@pytest.mark.parametrize("files", [16, 256, 1024, 65536, 2**31])
def test_each_door_has_its_files(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """HTTP has a quarter at most, and AMQP leaves it those, and some for the store, where there are that many."""
    monkeypatch.setattr(accepting, "open_files_limit", lambda: files)
    http, amqp_most = accepting.http_connections_limit(), accepting.amqp_connections_limit(10_000)
    assert 4 <= http <= max(4, min(1024, files // 4))
    assert amqp_most <= 10_000
    assert amqp_most + http <= files
    assert files < 512 or amqp_most + http + 64 <= files


def test_a_peer_that_leaves_at_once_does_not_end_accepting() -> None:
    """Of its socket nothing can be asked any more; who comes next is accepted."""
    gone, here = socket.socket(), socket.socket()
    gone.close()
    waiting = [(gone, ("127.0.0.1", 1)), (here, ("127.0.0.1", 2))]
    came: list[socket.socket] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patched, here:
            patched.setattr(loop, "sock_accept", AsyncMock(side_effect=[*waiting, asyncio.CancelledError]))
            await accepting.accept(here, Newcomers(6), QuietLog(logging.getLogger()), lambda peer, _: came.append(peer))

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run())
    assert came == [gone, here]


def newcomers(most: int) -> tuple[Newcomers, list[str]]:
    return Newcomers(most), []


def come(table: Newcomers, cut: list[str], name: str, address: str) -> Newcomer:
    newcomer = Newcomer(address, lambda: cut.append(name))
    table.come(newcomer)
    return newcomer


def test_the_first_of_a_crowd_goes() -> None:
    """When there are too many of one address, first one that was refused, else the one that came first."""
    table, cut = newcomers(6)
    crowd = [come(table, cut, f"a{number}", "10.0.0.1") for number in range(3)]
    other = come(table, cut, "b", "10.0.0.2")
    come(table, cut, "a3", "10.0.0.1")
    assert cut == ["a0"]
    crowd[2].was_refused = True
    come(table, cut, "a4", "10.0.0.1")
    assert cut == ["a0", "a2"]
    table.leave(other)
    table.leave(other)
    other.was_refused = True
    assert len(table) == 3
    table.cut_one()
    assert cut[2:] == ["a1"]


def test_the_largest_crowd_gives_when_there_are_too_many() -> None:
    """Those of an address with few stay."""
    table, cut = newcomers(4)
    for name, address in (("a0", "10.0.0.1"), ("b0", "10.0.0.2"), ("b1", "10.0.0.2"), ("c0", "10.0.0.3")):
        come(table, cut, name, address)
    come(table, cut, "d0", "10.0.0.4")
    assert cut == ["b0"]
    Newcomers(4).cut_one()


def test_who_has_just_come_has_a_chance() -> None:
    """Where all places are taken by peers that have just come, the next waits until the first has had a moment."""
    clock = FakeClock()
    table, cut = Newcomers(2, 2, clock), list[str]()
    come(table, cut, "0", "10.0.0.1")
    clock.advance(0.0625)
    assert table.pause() == 0
    second = come(table, cut, "1", "10.0.0.1")
    assert 0 < table.pause() < 0.0625
    clock.advance(0.0625)
    assert table.pause() == 0
    come(table, cut, "2", "10.0.0.1")
    assert cut == ["0"]
    assert table.pause() > 0
    second.was_refused = True
    assert table.pause() == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["come", "refuse", "leave"])), max_size=60))
def test_newcomers_are_bounded(steps: list[tuple[str, str]]) -> None:
    """In all and by address, whatever comes and goes; who was cut is not counted any more."""
    table, cut = newcomers(6)
    here: list[tuple[str, Newcomer]] = []
    for address, step in steps:
        mine = [newcomer for where, newcomer in here if where == address]
        if step == "come":
            here.append((address, come(table, cut, address, address)))
        elif mine and step == "refuse":
            mine[0].was_refused = True
        elif mine:
            table.leave(mine[0])
        counts = Counter({network: len(crowd) for network, crowd in table._crowds.items()})
        assert len(table) == counts.total() <= 6
        assert max(counts.values(), default=0) <= 3
        assert 0 not in counts.values()


def test_what_counts_as_one_address() -> None:
    """An address, or the half of one of IPv6 that a site is given."""
    assert network_of("10.0.0.1") == network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("2001:db8::1%eth0") == network_of("2001:db8::ffff:0:1") == "2001:0db8:0000:0000"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("no:address") == "no:address"


def test_who_logs_in_gets_through_a_crowd(broker: Broker) -> None:
    """Peers that only sit there are cut, the first ones first, for one that comes; logged in, it is none of them."""
    with amqp.serve(broker, settings=ServerSettings(handshake_timeout=3600)) as server:
        server.newcomers = Newcomers(8)
        silent = [RawClient(server.url, opens=False) for _ in range(20)]
        with RawClient(server.url) as client:
            assert all(each.is_cut() for each in silent[:17])
            assert client.declare("q").queue == "q"
            assert len(server.newcomers) == 3


def test_a_user_holds_its_share_of_connections(broker: Broker) -> None:
    """A user is refused beyond its places, in RabbitMQ's words, and others get in; one that goes frees its place."""
    users = [User(name, hash_password("secret"), everywhere=Permissions()) for name in ("anna", "bert")]
    limits = ServerSettings(max_connections=8, max_connections_per_user=2, handshake_timeout=3600)
    with amqp.serve(broker, users=users, settings=limits) as server:
        anna, bert = (partial(RawClient, server.url, user=name, password="secret") for name in ("anna", "bert"))
        waiting = anna(opens=False)
        waiting.start_ok()
        waiting.tune_ok()  # logged in: it has a place, though it has opened nothing
        with anna() as second, bert() as other:
            for _ in range(10):  # more than all places: what is refused holds none
                refused = anna(opens=False)
                refused.start_ok()
                refused.tune_ok()
                assert len(server.newcomers) == 1
                refused.send_method(0, commands.Connection.Open, virtual_host="/")
                why = "NOT_ALLOWED - connection refused for user 'anna': user connection limit (2) is reached"
                assert refused.connection_error() == (530, why)
                wait_until_blocked(lambda: len(server.connections()) == 3)
            assert len(server.newcomers) == 0
            waiting.socket.close()
            wait_until_blocked(lambda: len(server.connections()) == 2)
            with anna() as third:
                assert [each.declare(name).queue for each, name in ((second, "a"), (third, "b"), (other, "c"))]


def test_a_users_refused_crowd_goes_for_one_that_comes(broker: Broker) -> None:
    """Connections beyond a user's places that do not go on are strangers, and are cut before others."""
    users = [User(name, hash_password("secret"), everywhere=Permissions()) for name in ("anna", "bert")]
    limits = ServerSettings(max_connections=40, max_connections_per_user=1, handshake_timeout=3600)
    with amqp.serve(broker, users=users, settings=limits) as server:
        server.newcomers = Newcomers(8)
        first = RawClient(server.url, opens=False)
        first.send(amqp.PROTOCOL_HEADER)
        assert isinstance(first.method(), commands.Connection.Start)
        crowd = [RawClient(server.url, user="anna", password="secret", opens=False) for _ in range(3)]
        for each in crowd:
            each.start_ok()
            each.tune_ok()
        others = [RawClient(server.url, opens=False) for _ in range(3)]
        assert all(each.is_cut() for each in crowd[1:])
        first.send_method(0, commands.Connection.Close)
        assert isinstance(first.method(), commands.Connection.CloseOk)
        with RawClient(server.url, user="bert", password="secret") as bert:
            assert bert.declare("q").queue == "q"
        for each in [crowd[0], *others, first]:
            each.socket.close()


@pytest.mark.parametrize(("most", "mine", "share"), [(1, None, 1), (7, None, 3), (100, None, 50), (100, 70, 70)])
def test_the_share_of_a_user(broker: Broker, most: int, mine: int | None, share: int) -> None:
    """Half of all connections, or the number that is set; an administrator on this machine has eight more."""
    limits = ServerSettings(max_connections=most, max_connections_per_user=mine)
    plain, chief = User("plain", None), User("chief", None, tags=frozenset({"administrator"}))
    with amqp.serve(broker, settings=limits) as server:
        for user, peer, places in ((plain, "127.0.0.1", share), (chief, "192.0.2.1", share), (chief, "::1", share + 8)):
            crowd: list[Any] = [object() for _ in range(most + 10)]
            there = [each for each in crowd if server.admit(each)]
            let_in = [each for each in there if server.take_place(each, user, peer) is None]
            for each in crowd:
                server.forget(each)
            assert len(there) == most
            assert len(let_in) == min(places, most)


def test_a_stranger_that_says_too_much_is_cut(broker: Broker, hashing: Hashing) -> None:
    """What waits behind a login is 8 KiB at the most."""
    with amqp.serve(broker, users=hashing.users) as server:
        client = RawClient(server.url, opens=False, user="anna", password="no matter what")
        client.start_ok()
        hashing.begun.wait(60)
        client.send(amqp.HEARTBEAT * 1100)
        assert client.is_cut()
        hashing.gate.set()


# -- hashes


class Hashing:
    """Passwords whose hashes are verified when the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.verified: list[tuple[str, bytes]] = []
        self.users = [User(name, hash_password("secret"), everywhere=amqp.Permissions()) for name in ("anna", "bert")]


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashing]:
    made = Hashing()
    verify = Access.verify

    def slow(access: Access, name: str, password: bytes) -> bool:
        made.begun.set()
        made.gate.wait(60)
        made.verified.append((name, password))
        return verify(access, name, password)

    monkeypatch.setattr(Access, "verify", slow)
    monkeypatch.setattr(_access, "_matches", lambda password, hashed: password == b"secret")
    monkeypatch.setattr(_access, "_right", {})  # nobody has logged in since the start
    monkeypatch.setattr(_access, "_wrong", {})
    yield made
    made.gate.set()


def test_logins_have_fair_turns(hashing: Hashing) -> None:
    """A crowd that guesses one name delays a login from elsewhere by a hash; it keeps no other name out."""
    logins = Logins(Access(hashing.users))
    told: list[str] = []
    all_told = threading.Event()

    def tell(who: str) -> None:
        told.append(who)
        if len(told) == 11:
            all_told.set()

    crowd = [logins.verify("10.0.0.1", "anna", b"%d" % n, lambda right, n=n: tell(f"anna{n}")) for n in range(30)]
    assert [future is not None for future in crowd] == [True] * 9 + [False] * 21
    assert logins.verify("10.0.0.1", "bert", b"secret", lambda right: tell(f"bert here {right}")) is not None
    assert logins.verify("10.0.0.2", "anna", b"secret", lambda right: tell(f"anna {right}")) is not None
    hashing.gate.set()
    assert all_told.wait(60)
    assert told.index("anna True") <= 2
    assert told[-1] == "bert here True"
    logins.close()
    assert logins.verify("10.0.0.1", "bert", b"wrong", lambda right: tell("late")) is None
    assert not any(thread.name.startswith("multiqueue-amqp-logins") for thread in threading.enumerate())


@pytest.mark.parametrize("names", [["anna"], ["nobody"], ["anna", "bert", "nobody"], [f"guess{n}" for n in range(60)]])
def test_an_address_has_a_share_of_hashes(hashing: Hashing, names: list[str]) -> None:
    """Whatever names it guesses, known or not: so many wait, and other addresses of any crowd have their turns."""
    logins = Logins(Access(hashing.users))
    told: list[str] = []
    crowd = [
        logins.verify(f"2001:db8::{n}", names[n % len(names)], b"%d" % n, lambda _: told.append("crowd"))
        for n in range(120)
    ]
    assert sum(future is not None for future in crowd) == min(9 * len(names), 33)
    last = logins.verify("2001:db9::1", "anna", b"secret", lambda right: told.append(f"last {right}"))
    assert last is not None
    hashing.gate.set()
    last.result(60)
    assert told.index("last True") <= 2
    logins.close()


def test_what_waits_for_a_hash_is_bounded_in_all(hashing: Hashing) -> None:
    """However many addresses it comes from; what is given up makes room, and its password is not hashed."""
    logins = Logins(Access(hashing.users))
    waiting = [logins.verify(f"10.0.0.{n}", "anna", b"%d" % n, lambda right: None) for n in range(300)]
    assert sum(future is not None for future in waiting) == 256
    hashing.begun.wait(60)
    given_up = [future.cancel() for future in waiting if future is not None]
    assert given_up.count(False) == 1  # it runs
    assert logins.verify("10.0.0.1", "bert", b"x", lambda right: None) is not None
    hashing.gate.set()
    logins.close()
    assert len(hashing.verified) <= 2
    assert not logins._waiting


def test_a_hash_that_fails_refuses(hashing: Hashing, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for it, for example: the login gets its answer."""
    logins = Logins(Access(hashing.users))
    monkeypatch.setattr(_access, "_matches", lambda password, hashed: 1 // 0)
    hashing.gate.set()
    told: list[bool] = []
    future = logins.verify("10.0.0.1", "anna", b"secret", told.append)
    assert future is not None
    future.result(60)
    assert told == [False]
    logins.close()


def test_a_peer_that_leaves_is_not_hashed_for(broker: Broker, hashing: Hashing) -> None:
    """Its login is dropped, and its connection ends without it."""
    with amqp.serve(broker, users=hashing.users) as server:
        first = RawClient(server.url, opens=False, user="anna", password="first")
        first.start_ok()
        hashing.begun.wait(60)
        second = RawClient(server.url, opens=False, user="anna", password="second")
        second.start_ok()
        wait_until_blocked(lambda: sum(each._login is not None for each in server.connections()) == 2)
        second.socket.close()
        first.socket.close()
        wait_until_blocked(lambda: not server.connections())
        hashing.gate.set()
        third = RawClient(server.url, opens=False, user="anna", password="secret", host="/")
        third.handshake()
        third.close()
    assert hashing.verified == [("anna", b"first"), ("anna", b"secret")]


def test_commits_and_known_logins_wait_for_no_hash(broker: Broker, hashing: Hashing) -> None:
    """While a hundred wrong logins of a user wait for a hash that does not end, all others go on."""
    broker.declare_queue("q", durable=True)
    with amqp.serve(broker, users=[*hashing.users, User.with_password("carl", "known")]) as server:
        committing = RawClient(server.url, user="carl", password="known")
        committing.call(1, commands.Tx.Select)
        wrong = []
        for number in range(100):
            client = RawClient(server.url, opens=False, user="anna", password=f"wrong{number}")
            client.start_ok()
            wrong.append(client)
        hashing.begun.wait(60)
        for _ in range(10):
            committing.publish("", "q", b"x", delivery_mode=2)
            assert isinstance(committing.call(1, commands.Tx.Commit), commands.Tx.CommitOk)
            RawClient(server.url, user="carl", password="known").close()
        hashing.gate.set()
        committing.close()
    assert len(broker.queue("q")) == 10


def test_a_thousand_wrong_logins(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A good login of the same user from the same address gets in among them; the log says it in few lines, however
    long that takes: no time passes for it here, since it has as many lines again in the next ten seconds."""
    with amqp.serve(broker) as server:
        server.strangers = QuietLog(logging.getLogger("multiqueue.amqp"), FakeClock())
        wrong = []
        for number in range(1000):
            client = RawClient(server.url, opens=False, password=f"wrong{number}")
            client.start_ok()
            wrong.append(client)
            if number % 100 == 99:
                RawClient(server.url).close()
        assert len(server.newcomers) <= server.newcomers.most_of_one
    refused = [record for record in caplog.records if "login refused" in record.getMessage()]
    assert len(refused) == LINES + 1


@pytest.mark.parametrize("user", ["anna", "bert", "nobody"])
def test_a_refusal_says_nothing_by_its_time(
    broker: Broker, hashing: Hashing, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not known, a wrong password, and one that has to be hashed are refused after the same time."""
    monkeypatch.setattr(_connection, "REFUSED_AFTER", 8.0)  # longer than a busy machine takes
    hashing.gate.set()
    server = amqp.serve(broker, users=hashing.users)
    assert server.access.verify("bert", b"secret")
    io = IoThread("desk")
    peer = Desk(server, io)
    try:
        peer.say(amqp.PROTOCOL_HEADER)
        login = {"client_properties": {"capabilities": {"authentication_failure_close": True}}, "locale": "en_US"}
        response = f"\0{user}\0wrong".encode()
        peer.say_method(0, commands.Connection.StartOk, **login, mechanism="PLAIN", response=response)
        peer.transport.read()
        peer.wait_for_others()
        assert peer.transport.read() == b""
        timer = peer.connection._timer
        assert timer is not None
        assert timer.when() == pytest.approx(peer.connection._asked_at + _connection.REFUSED_AFTER, abs=0.2)
        monkeypatch.setattr(io.loop, "time", lambda: timer.when() + 1.0)
        said = b""
        while b"ACCESS_REFUSED" not in said:
            peer.run()
            said += peer.transport.read()
    finally:
        peer.close()
        io.loop.close()
        server.close()


def test_names_are_not_told_by_the_work_of_a_refusal(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known and an unknown name cost one hash of the same cost each, over AMQP and HTTP."""
    from monitor_parts_support import _access as http_access

    monkeypatch.setattr(_connection, "REFUSED_AFTER", 0.0)
    monkeypatch.setattr(http_access, "REFUSED_AFTER", 0.0)
    costs: list[dict[str, object]] = []
    scrypt = hashlib.scrypt

    def counted(password: bytes, *, salt: bytes, **cost: Any) -> bytes:
        costs.append(cost | {"salt": len(salt), "password": len(password)})
        return scrypt(password, salt=salt, **cost)

    server = broker.listen(users=[User.with_password("anna", "secret", tags=["administrator"])])
    http = urlsplit(broker.listen_http(amqp=server).url)

    def amqp_login(name: str, password: str) -> None:
        client = RawClient(server.url, opens=False, user=name, password=password, capabilities={})
        client.start_ok()
        assert client.is_cut()

    def http_login(name: str, password: str) -> None:
        with contextlib.closing(HTTPConnection(str(http.hostname), http.port)) as connection:
            login = base64.b64encode(f"{name}:{password}".encode()).decode()
            connection.request("GET", "/api/whoami", headers={"authorization": f"Basic {login}"})
            assert connection.getresponse().status == 401

    server.access.verify("nobody", b"x")  # the hash of nobody is made once
    monkeypatch.setattr(hashlib, "scrypt", counted)
    for log_in in (amqp_login, http_login):
        for name in ("anna", "nobody"):
            log_in(name, f"{log_in.__name__} as {name:>6}")
    assert len(costs) == 4
    assert costs[0] == costs[1]
    assert costs[2] == costs[3]


def test_a_server_closes_under_a_crowd(broker: Broker, hashing: Hashing) -> None:
    """What waits for a hash is dropped, and only what is being hashed is waited for."""
    server: Server = amqp.serve(broker, users=hashing.users)
    clients = [RawClient(server.url, opens=False, user="anna", password=f"wrong{number}") for number in range(9)]
    for client in clients:
        client.start_ok()
    hashing.begun.wait(60)
    wait_until_blocked(lambda: sum(each._login is not None for each in server.connections()) == 9)
    closing = threading.Thread(target=server.close)
    closing.start()
    wait_until_blocked(lambda: server.logins._count == 1)
    hashing.gate.set()
    closing.join()
    assert len(hashing.verified) == 1
    assert all(client.is_cut() for client in clients)
