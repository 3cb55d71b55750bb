"""C clients as a load: each work does what it says at our server, and a machine that cannot compile is told so."""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from bench_parts_support import (
    LOADS,
    OURS,
    QUORUM,
    RELAXED,
    THEIRS,
    BenchError,
    Server,
    Suite,
    compiled,
    measured_suite,
    run_workload,
    suite,
)
from click.testing import CliRunner

from multiqueue.bench.cli import bench
from multiqueue.broker import Broker


@pytest.fixture(scope="module")
def compiler(ends_without: Callable[[str], NoReturn]) -> None:
    """What the suite needs is installed."""
    if shutil.which("gcc") is None or ctypes.util.find_library("rabbitmq") is None:
        ends_without("gcc or librabbitmq-dev is not installed: apt-get install gcc librabbitmq-dev")


@pytest.fixture(scope="module")
def tiny(compiler: None) -> Iterator[Suite]:
    """The suite at our server, a few messages for each connection."""
    with measured_suite(None) as suite:
        yield suite.scaled(0.002)


@pytest.mark.parametrize("name", [load.name for load in LOADS if not load.quorum])
def test_a_load_brings_every_message(name: str, tiny: Suite) -> None:
    """Each load publishes and consumes what it counts, and its queues have what they should afterwards."""
    (workload,) = tiny.only([name]).workloads
    result = run_workload(workload, rounds=1)
    assert [(failed.rival.name, failed.problem) for failed in result.failures] == []
    kinds, servers = ["standard queue", "fair queue"], [OURS] + [RELAXED] * ("durable" in name)
    assert [each.rival.name for each in result.rivals] == (kinds if name.startswith("fair") else servers)
    # Of a few messages a part may cost a server less than the system counts.
    assert all(max(each.samples[workload.metrics[0].name]) > 0 for each in result.rivals)


def test_beside_rabbitmq_every_load_has_its_goal() -> None:
    """RabbitMQ is the baseline; ours is to be at least as fast, its 99th percentile as short, also at its promises. So
    are ours beside quorum queues. A fair queue is to have nine tenths of a standard one's rate."""
    for workload in suite([Server(name, "", None) for name in (OURS, RELAXED, THEIRS, QUORUM)]).workloads:
        if workload.name.startswith("fair"):
            assert [(g.at_least, g.metric, g.rival, g.against) for g in workload.goals] == [
                (0.9, "rate", "fair queue", "standard queue")
            ]
            continue
        is_quorum = workload.name.startswith("quorum")
        theirs = QUORUM if is_quorum else THEIRS
        assert workload.baseline == theirs
        names = [OURS] + [RELAXED] * ("durable" in workload.name and not is_quorum)
        assert [(goal.at_least, goal.rival, goal.against) for goal in workload.goals] == [
            (1.0, name, theirs) for name in names
        ]
        metrics = {
            "latency-1": "p99",
            "latency-1-durable": "confirm_p99",
            "latency-half": "p99",
            "latency-half-durable": "confirm_p99",
        }
        assert {goal.metric for goal in workload.goals} == {metrics.get(workload.name.removeprefix("quorum-"), "rate")}


def test_what_syncs_is_beside_ours_where_a_message_is_confirmed_or_acknowledged(compiler: None) -> None:
    """A rival with quorum queues, which are gone afterwards; a note says that they promise what ours does."""
    with Broker() as broker, measured_suite(broker.listen().url) as suite:
        workloads = [each for each in suite.workloads if QUORUM in [rival.name for rival in each.rivals]]
        sizes = "16b", "1k", "4k", "16k", "64k", "256k", "1m"
        bodies = [f"quorum-{label}-{size}-durable" for label in ("body-ack-4", "body-confirm") for size in sizes]
        half = "quorum-latency-half-durable"
        assert [each.name for each in workloads] == [half, *bodies]
        assert all(
            each.note.endswith("the quorum queue syncs before it confirms, as our server does") for each in workloads
        )
        for workload in suite.only([half, "quorum-body-ack-4-16b-durable"]).workloads:
            assert [(rival.name, rival.role) for rival in workload.rivals] == [(OURS, "ours"), (QUORUM, "rival")]
            attempt = workload.rivals[1].open(80)
            attempt.run()
            queues = broker.virtual_host().declared_queues()
            assert [each.arguments for each in queues] == [{"x-queue-type": "quorum"}] * workload.divisor
            attempt.check()
            attempt.close()
            assert broker.virtual_host().declared_queues() == []


def test_a_server_without_quorum_queues_is_measured_without(compiler: None) -> None:
    """A line says why."""
    with Broker() as broker:
        broker.virtual_host().limits.set("max-queues", 0)
        with measured_suite(broker.listen().url) as suite:
            assert QUORUM not in {rival.name for workload in suite.workloads for rival in workload.rivals}
            (line,) = (line for line in suite.does_not_show if line.startswith("'RabbitMQ, quorum', left out: "))
            assert "queue limit in vhost '/' (0) is reached" in line


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command measures nothing, exits with 2 and names the packages."""
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(bench, ["amqp", "--load", "c"])
    assert result.exit_code == 2
    assert "needs a C compiler; on Debian: apt-get install gcc libc6-dev librabbitmq-dev" in result.output


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The compiler's first complaint is in the sentence."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'load.c:20: fatal error: amqp.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(compiler))
    with pytest.raises(BenchError, match=r"amqp\.h: No such file; it needs librabbitmq's headers") as refusal:
        compiled(str(tmp_path))
    assert "apt-get install librabbitmq-dev" in str(refusal.value)
