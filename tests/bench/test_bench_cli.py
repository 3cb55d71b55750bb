"""`multiqueue bench core` as a user meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_parts_support import Goal, ItemsLost
from bench_support import scripted_rival, suite_of
from click.testing import CliRunner, Result

from multiqueue.bench import cli


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `bench core` over a suite of two rivals with known figures."""

    def runner(*arguments: str, fault: Exception | None = None) -> Result:
        suite = suite_of(
            scripted_rival("base", [10.0] * 9),
            scripted_rival("ours", [25.0] * 9, fault=fault, role="ours"),
            scripted_rival("absent", [], requires="no_such_module"),
            goals=(Goal("rate", 2.0, "ours", "base"),),
        )
        monkeypatch.setattr(cli, "_load", lambda name: suite)
        rounds = () if {"--rounds", "--quick"} & set(arguments) else ("--rounds", "2")  # each is two processes
        return CliRunner().invoke(cli.bench, ["core", *arguments, *rounds])

    return runner


def test_a_table_shows_figures_ratios_goals_and_who_is_missing(run: Any) -> None:
    """The reader sees each rival with its ratio, what is not installed, and what the figures do not show."""
    result = run()
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if "| ours " in line and "25" in line)
    assert [cell.strip() for cell in line.split("|")] == ["", "", "ours", "25", "0%", "2.50 (2.50-2.50)", ""]
    assert "absent: no_such_module is not installed" in result.stdout
    assert "2.50 (2.50-2.50) yes" in result.stdout
    assert "Anything at all." in result.stdout


def test_json_holds_every_sample_and_what_it_takes_to_judge_them(run: Any) -> None:
    """`--json` prints one document on standard output, of the documented shape."""
    report = json.loads(run("--json", "--rounds", "2").stdout)
    assert set(report) == {
        "schema", "suite", "date", "command", "rounds", "seconds", "machine", "versions", "commit",
        "workloads", "does_not_show",
    }  # fmt: skip
    assert report["schema"] == 2
    assert {"cpu", "usable_cpus", "python", "build", "load_average"} <= set(report["machine"])
    (workload,) = report["workloads"]
    base, ours, absent = workload["rivals"]
    assert ours["metrics"]["rate"] == {
        "samples": [25.0, 25.0],
        "median": 25.0,
        "low": 25.0,
        "high": 25.0,
        "ratio": {"median": 2.5, "low": 2.5, "high": 2.5},
    }
    assert base["metrics"]["rate"]["ratio"]["median"] == 1.0
    assert (absent["status"], absent["metrics"]) == ("missing", {})
    assert workload["goals"][0]["is_reached"] is True


def test_a_lost_item_fails_the_run_and_names_the_queue(run: Any) -> None:
    """The exit status is 1 and the error says which rival lost what in which workload."""
    result = run(fault=ItemsLost("3 items never arrived"))
    assert result.exit_code == 1
    assert "Error: widgets: ours: ItemsLost: 3 items never arrived" in result.stderr
    assert "not measured" in result.stdout


def test_quick_does_a_tenth_of_the_work_in_three_rounds(run: Any) -> None:
    """`--quick` shrinks both, and `--rounds` beside it wins."""
    quick = json.loads(run("--quick", "--json").stdout)
    assert (quick["rounds"], quick["workloads"][0]["n"]) == (3, 10)
    assert json.loads(run("--quick", "--rounds", "1", "--json").stdout)["rounds"] == 1


def test_only_picks_workloads_and_names_those_there_are(run: Any) -> None:
    """A misspelt workload is a usage error that lists the right ones, before anything runs."""
    assert run("--only", "widgets").exit_code == 0
    result = run("--only", "gadgets")
    assert result.exit_code == 2
    assert "no workload 'gadgets', but widgets" in result.stderr


def test_no_rounds_are_a_usage_error(run: Any) -> None:
    """Zero rounds are refused by the option itself."""
    assert run("--rounds", "0").exit_code == 2


def test_record_writes_a_page_and_its_json(run: Any, tmp_path: Path) -> None:
    """Both are named for the day, the suite and the interpreter, and tell how they came to be."""
    directory = tmp_path / "kept"
    result = run("--record", str(directory))
    assert result.exit_code == 0
    page, data = sorted(directory.iterdir(), key=lambda path: path.suffix, reverse=True)
    report = json.loads(data.read_text())
    assert page.stem == data.stem == f"{report['date'][:10]}-test-{report['machine']['build']}"
    text = page.read_text()
    assert re.search(r"\| ours +\| +25 \|", text)
    assert "## What these figures do not show" in text
    assert f"commit: {report['commit']}" in text


def test_record_without_a_directory_goes_into_the_checkout(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/measurements is the place where there is a checkout."""
    monkeypatch.setattr(cli, "default_directory", lambda: tmp_path)
    assert run("--record").exit_code == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".json"}


def test_record_outside_of_a_checkout_is_refused_before_the_work(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package has no docs/measurements: one sentence says what to do instead."""
    monkeypatch.setattr(cli, "default_directory", lambda: None)
    result = run("--record")
    assert result.exit_code == 2
    assert "name a directory: --record DIR" in result.stderr
    assert result.stdout == ""


def test_record_over_a_file_is_refused(run: Any, tmp_path: Path) -> None:
    """A path that is a file is named before the work begins."""
    (tmp_path / "file").touch()
    result = run("--record", str(tmp_path / "file"))
    assert (result.exit_code, "that is a file" in result.stderr) == (2, True)


def test_a_directory_that_cannot_be_written_is_one_sentence(run: Any, tmp_path: Path) -> None:
    """A directory that cannot be made is named before the work begins."""
    (tmp_path / "file").touch()
    result = run("--record", str(tmp_path / "file" / "below"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "below: Not a directory; name another directory" in result.stderr


@pytest.mark.parametrize(("suite", "workload"), [("core", "idle-subqueues"), ("broker", "idle-consumers")])
def test_the_help_lists_the_workloads(suite: str, workload: str) -> None:
    """A reader learns from the command what `--only` takes."""
    assert workload in CliRunner().invoke(cli.bench, [suite, "--help"]).stdout


def test_measuring_the_core_loads_no_broker() -> None:
    """Each suite loads its own room alone, so that another one's fault or cost is not in its way."""
    code = "import sys, multiqueue.bench.cli as cli; cli._load('core'); print('multiqueue.broker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_command_is_recorded_as_one_would_type_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader can copy it from the record, whatever it was started by; a password is left out."""
    monkeypatch.setattr(sys, "argv", ["/x/bin/multiqueue", "bench", "amqp", "--against", "amqp://me:secret@there/"])
    assert cli._command() == "multiqueue bench amqp --against amqp://me:...@there/"
