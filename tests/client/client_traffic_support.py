"""Mixed traffic that knows what it has sent: what was confirmed is either consumed, or still on its way.

Numbers instead of bodies: a byte for each message says whether it was confirmed and whether it was consumed, so hours
of traffic cost megabytes. Publishers stop while more than `AHEAD` messages are on their way: what consumers do not
keep up with would say nothing about memory.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

from multiqueue.client import Channel, ClientError, Connection, Message
from multiqueue.testing import PATIENCE

AHEAD = 3000
CONFIRMED, CONSUMED = 1, 2


class Record:
    """What is known of the messages of each publisher."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._flags: dict[int, bytearray] = {}
        self.on_their_way = 0
        self.confirmed = 0
        self.redelivered = 0

    def note(self, name: int, numbers: list[int], flag: int) -> None:
        """These were confirmed, or consumed."""
        with self._changed:
            flags = self._flags.setdefault(name, bytearray())
            for number in numbers:
                if number >= len(flags):
                    flags.extend(bytes(number + 1000 - len(flags)))
                before = flags[number]
                flags[number] = before | flag
                if flag == CONFIRMED:
                    self.confirmed += 1
                    self.on_their_way += not before & CONSUMED
                elif before & CONSUMED:
                    self.redelivered += 1
                else:
                    self.on_their_way -= before & CONFIRMED
            self._changed.notify_all()

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(is_so, PATIENCE)

    def missing(self) -> list[tuple[int, int]]:
        """Confirmed, and not consumed: publisher and number."""
        with self._changed:
            return [(name, at) for name, flags in self._flags.items() for at, each in enumerate(flags) if each == 1]


class Traffic:
    """Publishers and consumers over two queues of a topic exchange and one of dead letters, until `over`."""

    def __init__(self, seed: int) -> None:
        self.record = Record()
        self.over = threading.Event()
        self._seed = seed
        self._chance = random.Random(seed)  # of consumers; which of them asks is the machine's affair anyway

    @staticmethod
    def declare(channel: Channel) -> None:
        """Exchange, queues, bindings: all durable."""
        channel.exchange_declare("load", "topic", durable=True)
        channel.queue_declare("load-dead", durable=True)
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "load-dead"}
        for kind in ("order", "event"):
            channel.queue_declare(f"load-{kind}", durable=True, arguments=letters)
            channel.queue_bind(f"load-{kind}", "load", f"{kind}.#")

    # -- publishing

    def _batches(self, name: int) -> Iterator[tuple[list[int], list[tuple[str, bytes, int]]]]:
        """Numbers and messages (key, body, delivery mode) of one batch after the other."""
        chance, number = random.Random(self._seed + name), 0
        while not self.over.is_set() and self.record.wait_until(lambda: self.record.on_their_way < AHEAD):
            numbers = list(range(number, number + chance.randint(1, 80)))
            number = numbers[-1] + 1
            yield numbers, [self._message(name, each, chance) for each in numbers]

    @staticmethod
    def _message(name: int, number: int, chance: random.Random) -> tuple[str, bytes, int]:
        size = chance.choice((0, 0, 100, 1000, 1000, 20_000, 150_000 if number % 97 == 0 else 50))
        key = f"{chance.choice(('order', 'event'))}.{chance.choice(('eu', 'us.west'))}"
        return key, b"%d %d " % (name, number) + b"x" * size, 1 + (number % 10 > 0)

    def publish(self, connection: Connection, name: int) -> None:
        """With confirms: what is not confirmed when the connection is lost, the client publishes again."""
        channel = connection.channel()
        for numbers, messages in self._batches(name):
            confirms = []
            for key, body, mode in messages:
                while True:
                    try:
                        confirms.append(
                            channel.publish_confirmed(body, exchange="load", routing_key=key, delivery_mode=mode)
                        )
                        break
                    except ClientError:
                        assert connection.wait_until_open(PATIENCE)
            for confirm in confirms:
                confirm.result(PATIENCE)
            self.record.note(name, numbers, CONFIRMED)

    def publish_in_transactions(self, connection: Connection, name: int) -> None:
        """Messages of a commit that was lost are under no promise."""
        channel = connection.channel()
        channel.tx_select()
        for numbers, messages in self._batches(name):
            try:
                for key, body, mode in messages:
                    channel.publish(body, exchange="load", routing_key=key, delivery_mode=mode)
                channel.tx_commit()
            except ClientError:
                assert connection.wait_until_open(PATIENCE)
            else:
                self.record.note(name, numbers, CONFIRMED)

    # -- consuming

    def consume(self, message: Message) -> None:
        """A callback: most are acked, some put back, some dead-lettered, and then consumed as dead letters."""
        what = self._chance.random()
        if message.routing_key != "load-dead" and what < 0.03:
            message.nack(requeue=what < 0.02)
            return
        name, number = map(int, message.body.split(b" ", 2)[:2])
        self.record.note(name, [number], CONSUMED)
        message.ack()

    def get(self, connection: Connection) -> None:
        """One by one, settled by the dozen."""
        channel = connection.channel()
        while not self.over.is_set():
            try:
                for _ in range(12):
                    message = channel.basic_get("load-order")
                    if message is None:
                        break
                    name, number = map(int, message.body.split(b" ", 2)[:2])
                    self.record.note(name, [number], CONSUMED)
                channel.basic_ack(0, multiple=True)
            except ClientError:
                assert connection.wait_until_open(PATIENCE)
            self.over.wait(0.01)

    # -- channels that come and go

    def come_and_go(self, connection: Connection) -> None:
        """A channel that is opened, does this and that, and is closed, again and again."""
        while not self.over.is_set():
            try:
                with connection.channel() as channel:
                    channel.basic_qos(10)
                    channel.queue_declare("load-order", passive=True)
                    channel.publish_confirmed(b"hello", routing_key="nobody").result(PATIENCE)
            except ClientError:
                assert connection.wait_until_open(PATIENCE)
            self.over.wait(0.02)
