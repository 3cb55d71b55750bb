"""Runs the worker of the fault tests, and holds what it was promised against what the store has afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
from store_fault_worker import body_of

from multiqueue.store import MessageStore, SqliteStore

WORKER = Path(__file__).with_name("store_fault_worker.py")


@dataclass
class Promises:
    """What the workers of one store were told, in the order in which they told it."""

    there: dict[int, int] = field(default_factory=dict)  # id -> number of the message
    gone: set[int] = field(default_factory=set)
    maybe: dict[int, int] = field(default_factory=dict)  # submitted, or being deleted: there or not
    leaving: set[int] = field(default_factory=set)  # their removal was submitted
    given: set[int] = field(default_factory=set)  # every id there ever was
    ends: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Take a line of the worker's."""
        word, *rest = line.split()
        if word == "doubt":
            assert int(rest[0]) not in self.given, f"id {rest[0]} was given twice"
            self.given.add(int(rest[0]))
            self.maybe[int(rest[0])] = int(rest[1])
        elif word == "put":
            if int(rest[0]) not in self.gone | self.leaving:  # the writer may tell of the commit after the removal
                self.there[int(rest[0])] = self.maybe.pop(int(rest[0]))
        elif word == "undoubt":
            self.leaving.add(int(rest[0]))
            number = self.there.pop(int(rest[0]), None)
            if number is not None:
                self.maybe[int(rest[0])] = number
        elif word == "deleted":
            self.maybe.pop(int(rest[0]), None)
            self.there.pop(int(rest[0]), None)
            self.gone.add(int(rest[0]))
        elif word == "end":
            self.ends.append(line)

    def hold_for(self, store: MessageStore) -> None:
        """Fail unless the store keeps every promise; what was in doubt is decided from now on."""
        headers = store.page(1, 0, 10_000_000)
        found = {header.id: int(header.properties) for header in headers}
        lost = self.there.items() - found.items()
        assert not lost, f"confirmed and lost: {sorted(lost)[:5]}"
        assert not self.gone & found.keys(), f"deleted and back: {sorted(self.gone & found.keys())[:5]}"
        strange = found.items() - self.there.items() - self.maybe.items()
        assert not strange, f"never submitted: {sorted(strange)[:5]}"
        bodies = store.read(found)
        assert {one: body_of(number) for one, number in found.items()} == bodies, "a body is not what was put"
        assert not store.page(2, 0, 1), "a transient message came back"
        self.gone |= self.maybe.keys() - found.keys()
        self.leaving = set()
        self.there = found
        self.maybe = {}


def worker(directory: Path, seed: int, messages: int, *, durability: str = "sync", **environment: str) -> list[str]:
    """The command that runs a worker; `environment` is set by `env`."""
    prefix = ["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []
    return [*prefix, sys.executable, str(WORKER), str(directory), durability, str(seed), str(messages)]


def run_worker(promises: Promises, command: list[str]) -> int:
    """Run a worker to its end and hear it; the exit status."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                promises.hear(line)
    return process.returncode


def check_reopened(promises: Promises, directory: Path) -> SqliteStore:
    """Open the store, hold the promises for it, and return it open."""
    store = SqliteStore(directory, reserve_bytes=0)
    try:
        promises.hold_for(store)
    except BaseException:
        store.close()
        raise
    return store


def do_without(missing: str) -> NoReturn:
    """As in tests/conftest.py: skipped at a desk, failed where peers are required."""
    if os.environ.get("MULTIQUEUE_REQUIRE_PEERS"):
        pytest.fail(f"MULTIQUEUE_REQUIRE_PEERS is set, and {missing}", pytrace=False)
    pytest.skip(missing)


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
