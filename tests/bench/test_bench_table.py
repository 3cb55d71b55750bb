"""How figures are written."""

from __future__ import annotations

import dataclasses

import pytest
from bench_parts_support import as_page, facts, quantity, run_suite
from bench_support import scripted_rival, suite_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1_921_234, "1.92 M"),
        (18_700_000, "18.7 M"),
        (127e6, "127 M"),
        (683_000, "683 k"),
        (999_600, "1 M"),
        (52.13, "52.1"),
        (204.6, "205"),
        (0.01234, "0.0123"),
        (0, "0"),
    ],
)
def test_three_digits_are_enough(value: float, text: str) -> None:
    """More digits than the spread supports would be a claim."""
    assert quantity(value) == text


@pytest.mark.parametrize(("load", "advised"), [(0.3, False), (3.5, True), (None, False)])
def test_a_busy_machine_is_told(load: float | None, advised: bool) -> None:
    """Where the load was above the CPUs the reader is told to trust the CPU figures."""
    report = run_suite(suite_of(scripted_rival("base", [1.0])), rounds=1, command="")
    busy = dataclasses.replace(report, machine={**report.machine, "load_average": load, "usable_cpus": 2})
    assert ("trust the CPU figures" in dict(facts(busy))["load at the start"]) is advised


def test_the_page_puts_the_command_and_the_machine_before_the_figures() -> None:
    """A figure without them is not worth keeping."""
    page = as_page(run_suite(suite_of(scripted_rival("base", [1.0])), rounds=1, command="the command"))
    assert page.index("command: the command") < page.index("machine: ") < page.index("| base ")


def test_the_page_has_a_table_for_all_workloads_that_are_measured_alike() -> None:
    """A page stays short: medians, each workload's name once, and its title above the table. The JSON has the rest."""
    suite = suite_of(scripted_rival("base", [1.0]), scripted_rival("other", [2.0]))
    both = dataclasses.replace(
        suite, workloads=(suite.workloads[0], dataclasses.replace(suite.workloads[0], name="second", note="a note"))
    )
    page = as_page(run_suite(both, rounds=1, command=""))
    assert page.count("| workload | rival | ") == 1
    assert page.count("| base  |") == page.count("| other |") == 2
    assert f"- `second`: {suite.workloads[0].title}; a note" in page
    assert "spread |" not in page
