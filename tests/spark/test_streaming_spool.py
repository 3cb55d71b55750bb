"""The spool: what was accepted is there and reads the same, whatever stops the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_parts_support import Slice, Spool, file_name
from spark_streaming_support import ForgetfulDisk, PowerCut

from multiqueue.spark import DataLoss, SpoolInUse, SpoolNotShared, StreamingError


def numbered(first: int, count: int) -> bytes:
    """A payload of bytes that are their messages' numbers."""
    return bytes(range(first, first + count))


def contents(slices: list[Slice]) -> list[int]:
    pieces = [(each.payload(), each.piece) for each in slices]
    return [number for payload, piece in pieces for number in payload[piece.skip : piece.skip + piece.count]]


def everything(spool: Spool) -> list[int]:
    return contents(spool.slices(spool.chunks.first, spool.chunks.end))


def fill(spool: Spool, *counts: int) -> None:
    for count in counts:
        spool.append(numbered(spool.chunks.end, count), count, 10 * count)
        spool.check_invariants()


def test_numbers_go_on_over_restarts(tmp_path: Path) -> None:
    """Messages keep their numbers when the spool is opened again, and new ones get the next numbers.

    (streaming source 2)
    """
    spool = Spool.open(tmp_path / "a" / "spool")
    fill(spool, 3, 2)
    spool.close()
    again = Spool.open(tmp_path / "a" / "spool")
    fill(again, 4)
    assert (again.id, again.chunks.first, again.chunks.end) == (spool.id, 0, 9)
    assert everything(again) == list(range(9))
    assert contents(again.slices(2, 6)) == [2, 3, 4, 5]
    again.close()


def test_trimming_forgets_whole_chunks_and_keeps_the_numbering(tmp_path: Path) -> None:
    """What is trimmed is gone in whole chunks; the last stays, so that its numbers are not used again."""
    spool = Spool.open(tmp_path)
    fill(spool, 3, 3, 3)
    spool.trim(5)
    assert (spool.chunks.first, spool.chunks.end) == (3, 9)
    spool.trim(9)
    spool.check_invariants()
    assert (spool.chunks.first, spool.chunks.end) == (6, 9)
    spool.close()
    again = Spool.open(tmp_path)
    with pytest.raises(DataLoss, match="2 of the 4 messages from 4 on"):
        again.slices(4, 8)
    again.close()


def test_a_batch_is_bounded_by_messages_and_bytes(tmp_path: Path) -> None:
    """A batch ends at its number of messages, or before the chunk that would go beyond its bytes."""
    spool = Spool.open(tmp_path)
    fill(spool, 3, 3, 3)
    assert spool.chunks.position(0, 4, None) == 4
    assert spool.chunks.position(4, 4, None) == 8
    assert spool.chunks.position(0, None, 60) == 6
    assert spool.chunks.position(0, None, 59) == 3
    assert spool.chunks.position(3, None, 1) == 6, "a batch has one chunk, however large"
    assert spool.chunks.position(9, 4, 10) == 9
    assert spool.chunks.position(0, None, None) == 9
    assert spool.chunks.held(4) == (5, 60)
    spool.close()


def run_life(directory: Path, disk: ForgetfulDisk) -> list[int]:
    """Append thrice and trim; returns the numbers whose append returned before the machine stopped."""
    accepted: list[int] = []
    spool = None
    try:
        spool = Spool.open(directory, files=disk)
        for count in (2, 3, 1):
            first = spool.chunks.end
            spool.append(numbered(first, count), count, 10 * count)
            accepted += range(first, first + count)
        spool.trim(2)
    except PowerCut:
        pass
    finally:
        if spool is not None:
            spool.close()
    return accepted


@pytest.mark.parametrize("is_power_lost", [False, True], ids=["killed", "power"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_every_crash_point(tmp_path: Path, before: bool, is_power_lost: bool) -> None:
    """Wherever process or machine stops: what was accepted is there, whole appends or nothing of the rest."""
    disk = ForgetfulDisk()
    run_life(tmp_path / "whole", disk)
    for number in range(1, disk.operations + 1):
        directory = tmp_path / str(number)
        broken = ForgetfulDisk(number, before=before)
        accepted = run_life(directory, broken)
        if is_power_lost:
            broken.lose()
        spool = Spool.open(directory)
        there = everything(spool)
        assert there == list(range(spool.chunks.first, spool.chunks.end)), number
        trimmed = set(range(2)) if number >= disk.operations - 1 else set()  # the last two operations
        assert set(accepted) - trimmed <= set(there), number
        assert len(there) in (0, 2, 4, 5, 6), "half of an append"
        fill(spool, 2)  # and it goes on
        assert everything(spool)[: len(there)] == there
        spool.close()


def test_what_a_killed_process_left_is_synced_before_it_is_used(tmp_path: Path) -> None:
    """A chunk whose name was not synced when its process was killed survives a power cut after the next open."""
    run_life(tmp_path, ForgetfulDisk(7))  # the first append: written, renamed, and killed before the sync
    assert list(tmp_path.glob("*.chunk"))
    disk = ForgetfulDisk()
    spool = Spool.open(tmp_path, files=disk)
    assert disk.operations == 1, "the directory's sync"
    assert everything(spool) == [0, 1]
    spool.close()


@pytest.mark.parametrize("operation", [5, 6, 7], ids=["write", "rename", "sync"])
def test_an_error_of_the_disk_ends_the_spool(tmp_path: Path, operation: int) -> None:
    """After an error of the disk nothing is accepted until the spool is opened again."""
    disk = ForgetfulDisk(operation, error=OSError("no space"))
    spool = Spool.open(tmp_path, files=disk)
    with pytest.raises(OSError, match="no space"):
        spool.append(b"\0", 1, 1)
    with pytest.raises(StreamingError, match="failed before: no space"):
        spool.append(b"\0", 1, 1)
    spool.close()
    again = Spool.open(tmp_path)
    fill(again, 1)
    assert everything(again) == ([0, 1] if operation == 7 else [0])
    again.close()


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty"])
def test_damage_is_seen(tmp_path: Path, damage: str) -> None:
    """A chunk that is not what was written is an error, never other or fewer messages (streaming source 8)."""
    spool = Spool.open(tmp_path)
    fill(spool, 4)
    [path] = tmp_path.glob("*.chunk")
    data = path.read_bytes()
    path.write_bytes({"torn": data[:-1], "flipped": data[:-1] + b"\xff", "empty": b""}[damage])
    with pytest.raises(DataLoss, match="is damaged"):
        everything(spool)
    spool.close()


def test_what_is_missing_is_told_or_left_out(tmp_path: Path) -> None:
    """A lost chunk is told with how many messages it had; where losses are allowed, the others are read."""
    spool = Spool.open(tmp_path)
    fill(spool, 2, 2, 2)
    spool.close()
    sorted(tmp_path.glob("*.chunk"))[1].unlink()
    spool = Spool.open(tmp_path)
    with pytest.raises(DataLoss, match=r"2 of the 6 messages .* failOnDataLoss=false"):
        everything(spool)
    assert contents(spool.slices(0, 6, lossy=True)) == [0, 1, 4, 5]
    spool.chunks.reach(20)
    fill(spool, 1)
    assert spool.chunks.end == 21
    spool.close()


def test_a_slice_elsewhere_says_what_it_needs(tmp_path: Path) -> None:
    """A task that does not see the spool says that it must be shared; one whose chunk is gone says that."""
    spool = Spool.open(tmp_path / "spool")
    fill(spool, 1)
    spool.close()
    [mine] = spool.slices(0, 1)
    elsewhere = Slice(str(tmp_path / "not-mounted"), mine.spool, mine.piece)
    with pytest.raises(SpoolNotShared, match="there is no spool; the option spool must name a directory on a file sys"):
        elsewhere.payload()
    other = Spool.open(tmp_path / "other")
    other.close()
    with pytest.raises(SpoolNotShared, match=f"there is spool {other.id}"):
        Slice(str(other.directory), mine.spool, mine.piece).payload()
    (spool.directory / file_name(mine.piece.chunk)).unlink()
    with pytest.raises(DataLoss, match="is gone from spool"):
        mine.payload()


@pytest.mark.parametrize("file", ["kept", "removed"])
def test_two_cannot_have_it(tmp_path: Path, file: str) -> None:
    """A second one is refused with who has it, whether its file is there or not, and gets it once that lets go."""
    first = Spool.open(tmp_path)
    holder = f"process {os.getpid()} on"
    if file == "removed":
        (tmp_path / "spool.lock").unlink()
        holder = "another process for"
    with pytest.raises(SpoolInUse, match=f"in use by {holder} .* give each readStream another spool"):
        Spool.open(tmp_path, patience=0)
    first.close()
    Spool.open(tmp_path, patience=0).close()


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    """A spool that is closed is free, although a child of a fork has its files: Spark's daemon forks its workers."""
    first = Spool.open(tmp_path)
    inherited = [os.dup(one) for one in first._lock._descriptors]  # what a child has: the same open files
    try:
        first.close()
        Spool.open(tmp_path, patience=0).close()
    finally:
        for one in inherited:
            os.close(one)


HOLD = """
import sys, pathlib
from multiqueue.spark._stream.spool import Spool
spool = Spool.open(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    """The spool of a process that was killed can be opened."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(SpoolInUse, match=f"process {holder.pid}"):
                Spool.open(tmp_path, patience=0)
        finally:
            holder.kill()
    Spool.open(tmp_path).close()


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    """A directory with another spool.json is left alone."""
    (tmp_path / "spool.json").write_text("[]")
    with pytest.raises(StreamingError, match="is not a spool's"):
        Spool.open(tmp_path)
