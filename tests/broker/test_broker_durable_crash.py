"""kill -9 of a process that works with a durable broker, over and over, checked by what it had said before.

This proves the order of commits and hand-overs, and that recovery is right. Of power loss it says nothing: what a
killed process has written, the kernel still has. The store's own tests lose power.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import broker_durable_child_support as child
import pytest


class Witness:
    """Hears what a process was promised and what it got, and objects to what must not be."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # of the queues
        self.confirmed: set[int] = set()
        self.delivered: dict[str, set[int]] = {queue: set() for queue in child.QUEUES}
        self.accepted: dict[str, set[int]] = {queue: set() for queue in child.QUEUES}
        self.highest = 0
        self.last_new: dict[tuple[str, int], int] = {}

    def hear(self, line: str) -> None:
        match line.split():
            case ["P", number]:
                self.confirmed.add(int(number))
                self.highest = max(self.highest, int(number))
            case ["A", queue, number]:
                self.accepted[queue].add(int(number))
            case ["E", queue, number]:
                raise AssertionError(f"{number} came before its time on {queue}")
            case ["D", queue, number, flag]:
                self._deliver(queue, int(number), flag == "1")

    def _deliver(self, queue: str, number: int, flagged: bool) -> None:
        assert number not in self.accepted[queue], f"{number} came back on {queue} after a waited accept"
        if not flagged:
            assert number not in self.delivered[queue], f"{number} came twice on {queue} without the flag"
            if queue != "moved" and self.kind != "delayed":
                line = (queue, number % (child.TENANTS if self.kind == "fair" else 2))  # of a tenant, or a publisher
                assert number > self.last_new.get(line, -1), f"{number} came out of order on {queue}"
                self.last_new[line] = number
        self.delivered[queue].add(number)
        self.highest = max(self.highest, number)

    def conclude(self) -> None:
        """Everything was drained: nothing confirmed is lost, and what was one commit is whole."""
        first, second, moved = (self.delivered[queue] for queue in child.QUEUES)
        assert self.confirmed <= first, f"lost: {sorted(self.confirmed - first)[:5]}"
        assert first == second, f"on one of two queues: {sorted(first ^ second)[:5]}"
        assert first == moved, f"moved and not, or not and moved: {sorted(first ^ moved)[:5]}"


def live(directory: Path, witness: Witness, lines: int | None) -> None:
    """One life of the process, killed after so many lines; None drains and ends cleanly."""
    mode = "work" if lines is not None else "drain"
    witness.highest += 1000  # also above what the life before published and could not tell of
    command = [sys.executable, child.__file__, str(directory), str(witness.highest), mode, witness.kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for count, line in enumerate(process.stdout):
                if count == lines:
                    process.kill()
                if line.endswith("\n"):  # the last one may be cut
                    witness.hear(line)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == (0 if lines is None else -9)


def kill_often(directory: Path, kills: int, seed: int, kind: str) -> None:
    chance = random.Random(seed)
    witness = Witness(kind)
    for turn in range(kills):
        live(directory, witness, chance.choice([0, chance.randrange(20), chance.randrange(2000)]))
        if turn % 5 == 3:
            live(directory, witness, None)
    live(directory, witness, None)
    witness.conclude()
    assert len(witness.confirmed) > 0


@pytest.mark.slow(selected=True)
@pytest.mark.parametrize("kind", ["standard", "fair", "delayed"])
def test_a_killed_process_loses_nothing_it_was_promised(tmp_path: Path, kind: str) -> None:
    """No confirmed message is lost, none that was acked comes back, none comes twice unflagged, commits are whole.

    (broker-durability 2, 4, 5, 7). A fair queue has each tenant's messages in order. None comes before its time
    (bounded-memory 19).
    """
    kill_often(tmp_path, 6, 1, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["standard", "fair", "delayed"])
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_kills_lose_nothing(tmp_path: Path, seed: int, kind: str) -> None:
    """The same, twenty kills on each of five directories."""
    kill_often(tmp_path, 20, seed + 100, kind)
