"""Which Python thread has which connection of py4j. Without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from spark_parts_support import ClassicBackend, JvmThreads, _classic


class Client:
    """Py4J's: a connection for each thread that makes a call."""

    def __init__(self) -> None:
        self.thread_connection = threading.local()
        self.made = 0

    def get_thread_connection(self) -> Any:
        return getattr(self.thread_connection, "connection", None)

    def set_thread_connection(self, connection: Any) -> None:
        self.thread_connection.connection = connection

    def call(self) -> Any:
        """The connection that a call of this thread uses."""
        if self.get_thread_connection() is None:
            self.made += 1
            self.set_thread_connection(SimpleNamespace(socket=self.made))
        return self.get_thread_connection()


def context(client: Any) -> Any:
    return SimpleNamespace(_gateway=SimpleNamespace(_gateway_client=client))


def in_a_thread(*steps: Any) -> list[Any]:
    """What the steps return, called one after the other in a new thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(step() for step in steps))
    thread.start()
    thread.join()
    return results


def test_a_later_thread_has_the_connection_of_an_earlier_one() -> None:
    """What a thread gives back the next one borrows; nothing new is made."""
    client = Client()
    threads = JvmThreads(context(client))
    item = (threads.borrow, client.call, threads.give_back)
    assert in_a_thread(*item)[1] is in_a_thread(*item)[1]
    assert client.made == 1


def test_a_connection_has_one_thread_at_a_time() -> None:
    """A thread that calls on after it gave its connection back has another one, also when no thread has borrowed it."""
    client = Client()
    threads = JvmThreads(context(client))
    _, own, _, further = in_a_thread(threads.borrow, client.call, threads.give_back, client.call)
    assert further is not own
    first, second = [], []
    assert in_a_thread(threads.borrow, lambda: first.append(client.call()), lambda: second.extend(in_a_thread(
        threads.borrow, client.call)))  # fmt: skip
    assert first[0] is own
    assert second[1] is not own


def test_what_is_forgotten_or_closed_is_not_borrowed() -> None:
    """After `forget`, and after py4j has closed a connection, a thread has a new one."""
    client = Client()
    threads = JvmThreads(context(client))
    first = in_a_thread(client.call, threads.give_back)[0]
    threads.forget()
    second = in_a_thread(
        threads.borrow, client.call, lambda: vars(client.call()).update(socket=None), threads.give_back
    )[1]
    third = in_a_thread(threads.borrow, client.call)[1]
    assert len({id(one) for one in (first, second, third)}) == 3


@pytest.mark.parametrize("client", [None, SimpleNamespace(), SimpleNamespace(get_thread_connection=lambda: None)])
def test_another_py4j_keeps_nothing(client: Any) -> None:
    """Where py4j has other ways, or no connection was made, nothing is kept and nothing fails."""
    threads = JvmThreads(context(client))
    threads.give_back()
    threads.borrow()


def test_the_connection_of_an_item_that_raised_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception may have come in the middle of an answer: the next item has a new connection."""
    client = Client()
    java = SimpleNamespace(getLocalProperties=lambda: SimpleNamespace(clone=dict))
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java), **vars(context(client))), getTags=set
    )
    monkeypatch.setattr(_classic.ClassicBackend, "_replace_context", lambda *_: None)
    monkeypatch.setattr(_classic.ClassicBackend, "_current_java_thread", object)
    backend = ClassicBackend(spark)

    def fail() -> None:
        failed_on.append(client.call())
        raise ZeroDivisionError

    def swallow() -> None:
        with pytest.raises(ZeroDivisionError):
            backend.inheriting(fail)()

    failed_on: list[Any] = []
    works_on = in_a_thread(backend.inheriting(client.call))
    in_a_thread(swallow)
    assert failed_on == works_on
    assert in_a_thread(backend.inheriting(client.call)) != works_on
    backend.close()
