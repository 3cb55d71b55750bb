"""What docs/reference/amqp-frames.md compares. A new row is a function under `@row(section, what is sent)`."""

from __future__ import annotations

import struct

from interop_frames_support import (
    PROTOCOL_HEADER,
    Frames,
    header_frame,
    headers_block,
    method_frame,
    raw_frame,
    row,
)
from interop_frames_support import ROWS as ROWS
from pamqp import commands

# -- the beginning

_BEGINNING = "The protocol header"


for _shown, _beginning in {
    "`AMQP 0 0 9 1`": PROTOCOL_HEADER,
    "`AMQP 1 1 0 9` (AMQP 0-9)": b"AMQP\x01\x01\x00\x09",
    "`AMQP 1 1 9 1`": b"AMQP\x01\x01\x09\x01",
    "`AMQP 1 1 8 0` (AMQP 0-8)": b"AMQP\x01\x01\x08\x00",
    "`AMQP 0 0 9 0`": b"AMQP\x00\x00\x09\x00",
    "`AMQP 0 1 0 0` (AMQP 1.0)": b"AMQP\x00\x01\x00\x00",
}.items():

    @row(_BEGINNING, _shown, opens=False)
    def _(frames: Frames, beginning: bytes = _beginning) -> str:
        frames.send(beginning)
        if (first := frames.peek(13))[:4] == b"AMQP":
            return "`AMQP " + " ".join(map(str, first[4:8])) + "`, end"
        return f"{frames.next()} {first[11]}-{first[12]}"


# -- frames out of order, or not as they should be

_ODD = "Frames that are not as they should be"
_CLOSE_CRASHES = "RabbitMQ's reader fails where it looks for the reason of the close"


@row(_ODD, "a heartbeat on channel 1")
def _(frames: Frames) -> object:
    frames.send(raw_frame(8, 1, b""))
    return frames.in_step()


@row(_ODD, "a heartbeat with a payload")
def _(frames: Frames) -> object:
    frames.send(raw_frame(8, 0, b"beat"))
    return frames.in_step()


@row(_ODD, "a heartbeat on a channel that is not open")
def _(frames: Frames) -> object:
    frames.send(raw_frame(8, 7, b""))
    return frames.in_step()


@row(_ODD, "a heartbeat between a publish and its header")
def _(frames: Frames) -> object:
    queue = frames.queue()
    publish = commands.Basic.Publish(exchange="", routing_key=queue)
    frames.send(method_frame(publish), raw_frame(8, 0, b""), header_frame(1, b"\0\0"), raw_frame(3, 1, b"m"))
    return frames.get(queue)[1].decode()


for _name, _channel, _method in (
    ("basic.qos", 1, commands.Basic.Qos()),
    ("queue.declare", 1, commands.Queue.Declare(queue="", exclusive=True)),
    ("tx.select", 1, commands.Tx.Select()),
    ("basic.ack", 1, commands.Basic.Ack(0, True)),
    ("basic.publish", 1, commands.Basic.Publish(exchange="", routing_key="nowhere")),
    ("channel.open", 2, commands.Channel.Open()),
    ("connection.close", 0, commands.Connection.Close(200, "bye", 0, 0)),
):

    @row(
        _ODD,
        f"`{_name}` with a byte after its last field",
        because=_CLOSE_CRASHES if _name == "connection.close" else None,
    )
    def _(frames: Frames, channel: int = _channel, method: object = _method) -> object:
        whole = method_frame(method, channel)  # type: ignore[arg-type]
        frames.send(raw_frame(1, channel, whole[7:-1] + b"\0"))
        if isinstance(method, commands.Basic.Publish):
            frames.send(header_frame(0, b"\0\0"))
        answers = {
            commands.Basic.Qos: "basic.qos-ok",
            commands.Queue.Declare: "queue.declare-ok",
            commands.Tx.Select: "tx.select-ok",
            commands.Channel.Open: "channel.open-ok",
            commands.Connection.Close: "connection.close-ok",
        }
        if type(method) in answers:
            return frames.until(answers[type(method)])
        return frames.in_step()


@row(_ODD, "a method that is cut off")
def _(frames: Frames) -> object:
    frames.send(raw_frame(1, 1, method_frame(commands.Basic.Qos())[7:-3]))
    return frames.until("basic.qos-ok")


@row(_ODD, "`channel.flow-ok`, which was not asked for")
def _(frames: Frames) -> object:
    frames.send(method_frame(commands.Channel.FlowOk(True)))
    return frames.in_step()


@row(_ODD, "`channel.close-ok`, which was not asked for")
def _(frames: Frames) -> object:
    frames.send(method_frame(commands.Channel.CloseOk()))
    return frames.in_step()


for _answer in (commands.Basic.QosOk(), commands.Queue.DeclareOk("q", 0, 0), commands.Basic.CancelOk("t")):

    @row(_ODD, f"`{type(_answer).__qualname__}`, a server's method")
    def _(frames: Frames, answer: object = _answer) -> object:
        frames.send(method_frame(answer))  # type: ignore[arg-type]
        return frames.in_step()


@row(_ODD, "a method of channel 0 on channel 1")
def _(frames: Frames) -> object:
    frames.send(method_frame(commands.Connection.CloseOk(), 1))
    return frames.in_step()


@row(_ODD, "a method of a channel on channel 0")
def _(frames: Frames) -> object:
    frames.send(method_frame(commands.Basic.Qos(), 0))
    return frames.in_step()


@row(_ODD, "a content header on channel 0")
def _(frames: Frames) -> object:
    frames.send(raw_frame(2, 0, b"\0\x3c\0\0" + bytes(8) + b"\0\0"))
    return frames.in_step()


@row(_ODD, "a header whose weight is 1")
def _(frames: Frames) -> object:
    queue = frames.queue()
    publish = commands.Basic.Publish(exchange="", routing_key=queue)
    frames.send(method_frame(publish), raw_frame(2, 1, b"\0\x3c\0\x01" + bytes(7) + b"\x01\0\0"), raw_frame(3, 1, b"m"))
    return frames.in_step()


# -- exchanges and queues

_DECLARED = "Exchanges, queues, bindings"


@row(_DECLARED, "`queue.unbind` of another connection's exclusive queue, with no such binding")
def _(frames: Frames) -> object:
    other = frames.another()
    queue = other.queue(exclusive=True)
    answer = frames.call(commands.Queue.Unbind(queue=queue, exchange="amq.direct", routing_key="k"))
    other.close()
    return answer


@row(_DECLARED, "`queue.unbind` of another connection's exclusive queue")
def _(frames: Frames) -> object:
    other = frames.another()
    queue = other.queue(exclusive=True)
    other.call(commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k"))
    answer = frames.call(commands.Queue.Unbind(queue=queue, exchange="amq.direct", routing_key="k"))
    other.close()
    return answer


@row(_DECLARED, "and whether the binding is gone then")
def _(frames: Frames) -> object:
    other = frames.another()
    queue = other.queue(exclusive=True)
    other.call(commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key=queue))
    frames.call(commands.Queue.Unbind(queue=queue, exchange="amq.direct", routing_key=queue))
    third = frames.another()
    third.publish(queue, exchange="amq.direct", mandatory=True)
    answer = third.in_step()
    other.close()
    third.close()
    return answer


@row(_DECLARED, "`queue.bind` of another connection's exclusive queue")
def _(frames: Frames) -> object:
    other = frames.another()
    queue = other.queue(exclusive=True)
    answer = frames.call(commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k"))
    other.close()
    return answer


@row(_DECLARED, "`queue.purge` of another connection's exclusive queue")
def _(frames: Frames) -> object:
    other = frames.another()
    answer = frames.call(commands.Queue.Purge(queue=other.queue(exclusive=True)))
    other.close()
    return answer


@row(_DECLARED, "`queue.unbind` from the default exchange")
def _(frames: Frames) -> object:
    queue = frames.queue()
    return frames.call(commands.Queue.Unbind(queue=queue, exchange="", routing_key=queue))


@row(_DECLARED, "`queue.unbind` of a queue that is not there")
def _(frames: Frames) -> object:
    return frames.call(commands.Queue.Unbind(queue="nothing-here", exchange="amq.direct", routing_key="k"))


@row(_DECLARED, "a passive `exchange.declare` of `amq.rabbitmq.trace`")
def _(frames: Frames) -> object:
    return frames.call(commands.Exchange.Declare(exchange="amq.rabbitmq.trace", passive=True))


for _kind, _flags in (("topic", {"durable": True, "internal": True}), ("topic", {"durable": True}), ("direct", {})):
    _said = ", ".join((_kind, *_flags))

    @row(_DECLARED, f"`exchange.declare` of `amq.rabbitmq.trace` as {_said}")
    def _(frames: Frames, kind: str = _kind, flags: dict[str, bool] = _flags) -> object:
        return frames.call(commands.Exchange.Declare(exchange="amq.rabbitmq.trace", exchange_type=kind, **flags))


@row(_DECLARED, "a publish to `amq.rabbitmq.trace`")
def _(frames: Frames) -> object:
    frames.publish("k", exchange="amq.rabbitmq.trace")
    return frames.in_step()


@row(_DECLARED, "`queue.bind` to `amq.rabbitmq.trace`")
def _(frames: Frames) -> object:
    return frames.call(commands.Queue.Bind(queue=frames.queue(), exchange="amq.rabbitmq.trace", routing_key="#"))


@row(_DECLARED, "`exchange.delete` of `amq.rabbitmq.trace`")
def _(frames: Frames) -> object:
    return frames.call(commands.Exchange.Delete(exchange="amq.rabbitmq.trace"))


@row(_DECLARED, "`exchange.delete` of `amq.direct`")
def _(frames: Frames) -> object:
    return frames.call(commands.Exchange.Delete(exchange="amq.direct"))


# -- transactions

_TX = "Transactions"
_NOWHERE = "frames-nowhere"


def _in_tx(frames: Frames) -> None:
    frames.call(commands.Tx.Select())


@row(_TX, "a mandatory publish that leads nowhere, then `basic.qos`")
def _(frames: Frames) -> object:
    _in_tx(frames)
    frames.publish(_NOWHERE, mandatory=True)
    return frames.in_step()


@row(_TX, "the same, then `tx.commit`")
def _(frames: Frames) -> object:
    _in_tx(frames)
    frames.publish(_NOWHERE, mandatory=True)
    return frames.call(commands.Tx.Commit())


@row(_TX, "two of them with one between that leads to a queue, then `tx.commit`")
def _(frames: Frames) -> object:
    queue = frames.queue()
    _in_tx(frames)
    frames.publish(_NOWHERE, mandatory=True)
    frames.publish(queue, mandatory=True)
    frames.publish(_NOWHERE, mandatory=True)
    return frames.call(commands.Tx.Commit())


@row(_TX, "the same, then `tx.rollback`, `tx.commit`")
def _(frames: Frames) -> object:
    _in_tx(frames)
    frames.publish(_NOWHERE, mandatory=True)
    return [*frames.call(commands.Tx.Rollback()), *frames.call(commands.Tx.Commit())]


@row(_TX, "a mandatory publish, whose queue is deleted before `tx.commit`")
def _(frames: Frames) -> object:
    queue = frames.queue()
    _in_tx(frames)
    frames.publish(queue, mandatory=True)
    frames.in_step()
    other = frames.another()
    other.call(commands.Queue.Delete(queue=queue))
    other.close()
    return frames.call(commands.Tx.Commit())


@row(
    _TX,
    "a mandatory publish by the default exchange, whose queue is declared before `tx.commit`",
    because="a message is routed when it is published, by the default exchange too; RabbitMQ looks at commit",
)
def _(frames: Frames) -> object:
    queue = frames.queue()
    frames.call(commands.Queue.Delete(queue=queue))
    _in_tx(frames)
    frames.publish(queue, mandatory=True)
    frames.in_step()
    frames.call(commands.Queue.Declare(queue=queue))
    return frames.call(commands.Tx.Commit())


@row(_TX, "a publish to an exchange that is not there, then `tx.commit`")
def _(frames: Frames) -> object:
    _in_tx(frames)
    frames.publish("k", exchange="frames-no-exchange")
    return frames.until("never")


@row(_TX, "a mandatory publish, and an ack of a tag that is not known, then `tx.commit`")
def _(frames: Frames) -> object:
    _in_tx(frames)
    frames.publish(_NOWHERE, mandatory=True)
    frames.send(method_frame(commands.Basic.Ack(99)))
    return frames.call(commands.Tx.Commit())


@row(_TX, "`channel.close` with a mandatory publish in it")
def _(frames: Frames) -> object:
    _in_tx(frames)
    frames.publish(_NOWHERE, mandatory=True)
    return frames.call(commands.Channel.Close(200, "bye", 0, 0))


# -- headers and properties

_VALUES = "Header values, as they come back from a queue that was dead-lettered to"
_LONG = struct.Struct(">I")


def _long(kind: bytes, content: bytes) -> bytes:
    return kind + _LONG.pack(len(content)) + content


VALUES: dict[str, bytes] = {
    "`t` true": b"t\x01",
    "`t` false": b"t\x00",
    "`b` -5": struct.pack(">cb", b"b", -5),
    "`B` 200": struct.pack(">cB", b"B", 200),
    "`s` -300": struct.pack(">ch", b"s", -300),
    "`u` 60000": struct.pack(">cH", b"u", 60000),
    "`I` 7": struct.pack(">ci", b"I", 7),
    "`I` -7": struct.pack(">ci", b"I", -7),
    "`i` 4000000000": struct.pack(">cI", b"i", 4_000_000_000),
    "`l` 7": struct.pack(">cq", b"l", 7),
    "`l` 2^40": struct.pack(">cq", b"l", 1 << 40),
    "`f` 1.5": struct.pack(">cf", b"f", 1.5),
    "`d` 0.1": struct.pack(">cd", b"d", 0.1),
    "`D` 1.25": struct.pack(">cBI", b"D", 2, 125),
    "`D` 0.000": struct.pack(">cBI", b"D", 3, 0),
    "`S` text": _long(b"S", "naïve".encode()),
    "`S` empty": _long(b"S", b""),
    "`S` that is no UTF-8": _long(b"S", b"\xff\xfe"),
    "`x` bytes": _long(b"x", b"abc"),
    "`T` a time": struct.pack(">cQ", b"T", 1_700_000_000),
    "`T` beyond the year 9999": struct.pack(">cQ", b"T", 1 << 60),
    "`V`": b"V",
    "`F` of odd values": _long(b"F", b"\x01a" + struct.pack(">cq", b"l", 1) + b"\x01b" + struct.pack(">cf", b"f", 2.5)),
    "`A` of odd values": _long(b"A", struct.pack(">cq", b"l", 1) + struct.pack(">ch", b"s", 2) + _long(b"S", b"\xff")),
    "`F` in `A` in `F`": _long(b"F", b"\x01k" + _long(b"A", _long(b"F", b"\x01v" + struct.pack(">cb", b"b", 1)))),
}


def dead_lettered(frames: Frames, properties: bytes, **arguments: object) -> bytes:
    """Properties of a message that has expired on one queue and come to another."""
    target = frames.queue()
    source = frames.queue(
        {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **arguments}
    )
    frames.publish(source, properties)
    return frames.get(target)[0]


for _shown, _value in VALUES.items():

    @row(_VALUES, _shown)
    def _(frames: Frames, value: bytes = _value) -> object:
        came = dead_lettered(frames, headers_block(("here", value)))
        at = came.index(b"\x04here") + 5
        return f"`{came[at : at + len(value)].hex()}`"


_PROPERTIES = "Properties"


@row(_PROPERTIES, "a dead letter's record: its types")
def _(frames: Frames) -> object:
    came = dead_lettered(frames, b"\x01\x00\x0560000")
    table = came[6 : 6 + int.from_bytes(came[2:6])]
    at = table.index(b"\x07x-deathA") + 13
    assert table[at : at + 1] == b"F"
    at, end = at + 5, at + 5 + int.from_bytes(table[at + 1 : at + 5])
    types: dict[str, str] = {}
    while at < end:
        name = table[at + 1 : at + 1 + table[at]].decode()
        at += 1 + table[at]
        kind = chr(table[at])
        types[name] = kind
        at += 9 if kind in "lT" else 5 if kind == "I" else 5 + int.from_bytes(table[at + 1 : at + 5])
    return [f"{name} {kind}" for name, kind in sorted(types.items())]


_BLOCKS = {
    "no property at all": b"\0\0",
    "an empty table of headers": b"\x20\x00\0\0\0\0",
    "delivery mode 1": b"\x10\x00\x01",
    "delivery mode 0": b"\x10\x00\x00",
    "priority 0": b"\x08\x00\x00",
    "priority 255": b"\x08\x00\xff",
    "timestamp 2^63": b"\x00\x40" + (1 << 63).to_bytes(8),
    "expiration `60000`": b"\x01\x00\x0560000",
    "expiration `0060000`": b"\x01\x00\x070060000",
    "cluster-id": b"\x00\x04\x01c",
    "empty texts": b"\xc6\xac" + b"\0" * 8,
}
for _shown, _block in _BLOCKS.items():

    @row(_PROPERTIES, f"{_shown}, straight through a queue")
    def _(frames: Frames, block: bytes = _block) -> object:
        queue = frames.queue()
        frames.publish(queue, block)
        return f"`{frames.get(queue)[0].hex()}`"

    @row(_PROPERTIES, f"{_shown}, dead-lettered: what is there beside headers")
    def _(frames: Frames, block: bytes = _block) -> object:
        came = dead_lettered(frames, block)
        flags = int.from_bytes(came[:2])
        # content type and encoding stand before the headers
        at = 2
        for flag in (0x8000, 0x4000):
            at += 1 + came[at] if flags & flag else 0
        end = at + 4 + int.from_bytes(came[at : at + 4])
        return f"`{(flags & ~0x2000).to_bytes(2).hex()}{came[2:at].hex()}{came[end:].hex()}`"


_LETTERS = "Dead letters and further keys"


def _keys(*keys: str) -> bytes:
    return _long(b"A", b"".join(_long(b"S", key.encode()) for key in keys))


def _reach(frames: Frames, header: str, *, names_key: bool) -> list[str]:
    """Which of three queues a dead letter comes to: its own key's, that of CC, that of the queue's key."""
    own, further, named = frames.queue(), frames.queue(), frames.queue()
    letters, entry = f"{own}-x", f"{own}-e"
    for exchange in (letters, entry):
        frames.call(commands.Exchange.Declare(exchange=exchange, exchange_type="direct"))
    source_arguments: dict[str, object] = {"x-message-ttl": 0, "x-dead-letter-exchange": letters}
    if names_key:
        source_arguments["x-dead-letter-routing-key"] = named
    source = frames.queue(source_arguments)
    for queue, key in ((own, source), (further, further), (named, named)):
        frames.call(commands.Queue.Bind(queue=queue, exchange=letters, routing_key=key))
    frames.call(commands.Queue.Bind(queue=source, exchange=entry, routing_key=source))
    tail = frames.queue()  # has the letter in any case
    frames.call(commands.Queue.Bind(queue=tail, exchange=letters, routing_key=source))
    frames.call(commands.Queue.Bind(queue=tail, exchange=letters, routing_key=named))
    frames.publish(source, headers_block((header, _keys(further))), exchange=entry)
    frames.get(tail)
    reached = []
    frames.in_step()
    for name, queue in (("its key", own), (header, further), ("the queue's key", named)):
        frames.send(method_frame(commands.Basic.Get(queue=queue, no_ack=True)))
        if frames.next() == "basic.get-ok":
            frames.content()
            reached.append(name)
    return reached


for _header in ("CC", "BCC"):
    for _named in (False, True):
        _what = "a queue that names a key" if _named else "a queue that names no key"

        @row(_LETTERS, f"a message with {_header} that expires on {_what}: goes to")
        def _(frames: Frames, header: str = _header, named: bool = _named) -> object:
            return _reach(frames, header, names_key=named)


def _after(frames: Frames, header: bytes, value: bytes, *, dies: bool, named: bool = True) -> str:
    name = header.decode()
    if dies:
        target = frames.queue()
        arguments: dict[str, object] = {"x-message-ttl": 0, "x-dead-letter-exchange": "amq.topic"}
        source = frames.queue(arguments | ({"x-dead-letter-routing-key": target} if named else {}))
        for key in (target, source):
            frames.call(commands.Queue.Bind(queue=target, exchange="amq.topic", routing_key=key))
        frames.publish(source, headers_block((name, value)))
        came = frames.get(target)[0]
    else:
        queue = frames.queue()
        frames.publish(queue, headers_block((name, value)))
        came = frames.get(queue)[0]
    mark = bytes((len(header),)) + header
    if mark not in came:
        return f"no {name}" if came[:2] == b"\x20\x00" and came[2:6] != bytes(4) else f"`{came.hex()}`"
    at = came.index(mark) + len(mark)
    return f"`{came[at : at + 5 + int.from_bytes(came[at + 1 : at + 5])].hex()}`"


for _header in (b"CC", b"BCC"):
    for _shown, _value in (("a list of one", _keys("elsewhere")), ("an empty list", _keys())):
        for _dies, _named, _where in (
            (False, False, "delivered"),
            (True, True, "dead-lettered to a key of the queue's"),
            (True, False, "dead-lettered, no key named"),
        ):

            @row(_LETTERS, f"{_header.decode()} {_shown}, {_where}: the header")
            def _(
                frames: Frames,
                header: bytes = _header,
                value: bytes = _value,
                dies: bool = _dies,
                named: bool = _named,
            ) -> object:
                return _after(frames, header, value, dies=dies, named=named)


@row(_LETTERS, "the record's routing keys of a message with CC and BCC")
def _(frames: Frames) -> object:
    raw = headers_block(("CC", _keys("c1", "c2")), ("BCC", _keys("b1")))
    came = dead_lettered(frames, raw)
    at = came.index(b"\x0crouting-keysA") + 14
    size = int.from_bytes(came[at : at + 4])
    inside, keys = came[at + 4 : at + 4 + size], []
    while inside:
        length = int.from_bytes(inside[1:5])
        keys.append(inside[5 : 5 + length])
        inside = inside[5 + length :]
    return [key.decode() if not key.startswith(b"frames-") else "its key" for key in keys]


for _shown, _value in (
    ("a text", _long(b"S", b"key")),
    ("a list with a number", _long(b"A", struct.pack(">ci", b"I", 1))),
    ("a table", _long(b"F", b"")),
):

    @row(_LETTERS, f"a publish whose CC is {_shown}")
    def _(frames: Frames, value: bytes = _value) -> object:
        frames.publish(frames.queue(), headers_block(("CC", value)))
        return frames.in_step()


# -- what is negotiated

_LIMITS = "Limits that were agreed on (frame_max 131072, channel_max 2047)"


for _over in (0, 8, 9):

    @row(_LIMITS, f"a body frame of frame_max + {_over} bytes, its head and end included")
    def _(frames: Frames, over: int = _over) -> object:
        queue = frames.queue()
        assert frames.tune is not None
        size = frames.tune.frame_max - 8 + over
        publish = commands.Basic.Publish(exchange="", routing_key=queue)
        frames.send(method_frame(publish), header_frame(size, b"\0\0"), raw_frame(3, 1, bytes(size)))
        return f"{len(frames.get(queue)[1])} bytes"


@row(_LIMITS, "`channel.open` of channel 2048")
def _(frames: Frames) -> object:
    frames.send(method_frame(commands.Channel.Open(), 2048))
    return frames.until("channel.open-ok")


@row(_LIMITS, "`channel.open` of channel 65535")
def _(frames: Frames) -> object:
    frames.send(method_frame(commands.Channel.Open(), 65535))
    return frames.until("channel.open-ok")


@row(_LIMITS, "2047 further channels, one after the other: the last one")
def _(frames: Frames) -> object:
    frames.send(*(method_frame(commands.Channel.Open(), number) for number in range(2, 2048)))
    opened = [frames.until("channel.open-ok") for _ in range(2, 2048)]
    assert opened == [["channel.open-ok"]] * 2046, set(map(tuple, opened))
    frames.send(method_frame(commands.Channel.Open(), 2048))
    return frames.until("channel.open-ok")
