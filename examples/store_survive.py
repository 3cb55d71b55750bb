"""Use a store alone: commit messages with their queue, and read them after a restart."""

import tempfile

from multiqueue.store import Define, Delete, Put, SqliteStore


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with SqliteStore(directory) as store:
            queue = store.allocate()
            messages = [Put(queue, b"text/plain", f"order {number}".encode()) for number in range(3)]
            store.submit([Define("queue", "orders", f'{{"number": {queue}}}'), *messages]).wait()
            store.submit([Delete([messages[0].id])])  # not waited for: the close commits it
        with SqliteStore(directory) as store:
            print([definition.key for definition in store.definitions()])  # ['orders']
            headers = store.page(queue, after=0, limit=100)
            bodies = store.read(header.id for header in headers)
            print([bodies[header.id].decode() for header in headers])  # ['order 1', 'order 2']


if __name__ == "__main__":
    main()
