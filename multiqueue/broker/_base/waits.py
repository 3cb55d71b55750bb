"""Which threads must not wait: very many depend on each of their turns.

A store's thread makes the commits that others wait for, and an I/O thread serves many connections. What takes long is
done by another thread where they meet it, and publishers are held back instead of the thread.
"""

from __future__ import annotations

import threading


class Here(threading.local):
    """What the present thread is."""

    follows_commit = 0  # a store's, running what follows a commit, so many calls deep
    serves_many = False


here = Here()


def serve_many() -> None:
    """The present thread serves many from now on: nothing on it may wait for commits, or do what takes long."""
    here.serves_many = True


def may_take_long() -> bool:
    """False on a thread that others depend on."""
    return not (here.serves_many or here.follows_commit)


def follows_commit() -> bool:
    """True on a store's thread, while it runs what follows a commit or a refusal."""
    return here.follows_commit > 0
