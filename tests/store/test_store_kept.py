"""Stores of every format that was released are kept here, and this version opens each of them.

`kept/format-N.gz` is the `messages.sqlite` of a virtual host, as the first version with that format left it. When the
format changes, a store of the new one is added: `python tests/store/test_store_kept.py` writes it.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest
from store_parts_support import FILE_NAME, FORMAT

from multiqueue.broker import Broker, Message
from multiqueue.store import SqliteStore, StoreError

KEPT = Path(__file__).parent / "kept"
STORES = sorted(KEPT.glob("format-*.gz"))


def unpack(kept: Path, data: Path) -> Path:
    """The kept store as that of `/` in a data directory; its file."""
    file = data / "%2f" / FILE_NAME
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.decompress(kept.read_bytes()))
    return file


def test_there_is_one_of_each_format() -> None:
    """No format is without its store."""
    assert [kept.name for kept in STORES] == [f"format-{number}.gz" for number in range(1, FORMAT + 1)]


@pytest.mark.parametrize("kept", STORES, ids=lambda kept: kept.stem)
def test_an_old_store_is_opened_whole(kept: Path, tmp_path: Path) -> None:
    """Exchange, binding, queue and messages are there, in order, and further ones go where they should."""
    unpack(kept, tmp_path)
    with Broker(data=tmp_path) as broker:
        broker.publish(Message(b"new", exchange="shop", routing_key="order.new", persistent=True))
        found = []
        while (received := broker.get("orders")) is not None:
            found.append((received.body, received.message.headers.get("number")))
            received.accept()
    assert found == [(b"order 0", 0), (b"order 1", 1), (b"order 2", 2), (b"new", None)]


def test_a_store_of_a_later_format_is_refused_and_unchanged(tmp_path: Path) -> None:
    """A store from a later version is refused in a sentence that says so, and no byte of it changes."""
    file = unpack(STORES[-1], tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}.* knows up to {FORMAT}; use a later multiqueue"):
        SqliteStore(file.parent)
    assert file.read_bytes() == before


def write() -> None:
    """Write a store of the current format into `kept`."""
    with tempfile.TemporaryDirectory() as directory:
        with Broker(data=directory) as broker:
            broker.declare_exchange("shop", "topic", durable=True)
            broker.declare_queue("orders", durable=True)
            broker.bind_queue("orders", "shop", "order.*")
            for number in range(3):
                body, headers = b"order %d" % number, {"number": number}
                broker.publish(
                    Message(body, exchange="shop", routing_key="order.new", persistent=True, headers=headers)
                )
        file = Path(directory) / "%2f" / FILE_NAME
        (KEPT / f"format-{FORMAT}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))


if __name__ == "__main__":
    sys.exit(write())
