"""The command line: every mistake is one sentence and a status, and each command loads its own room alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pipeline_parts_support import ItemState, LaneCount, Ledger, exclusive
from rich.console import Console

from multiqueue import __version__
from multiqueue.cli import main
from multiqueue.core import engine
from multiqueue.pipeline import FileSeen
from multiqueue.pipeline.cli import lanes_table

CONFIG = """\
[lanes.eu]
files = "eu/*.csv"
format = "csv"
[job]
sql = "SELECT * FROM input"
[output]
path = "out"
"""


# Makes a module as missing as if it had never been installed.
HIDING = """
import sys

class Hidden:
    def __init__(self, package):
        self.package = package
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def hide(package):
    sys.meta_path.insert(0, Hidden(package))

"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "a.csv").write_text("a\n1\n")
    path = tmp_path / "p.toml"
    path.write_text(CONFIG)
    return path


def test_another_project_in_the_same_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody else's distribution `multiqueue` is installed as well, the command says what to do."""
    monkeypatch.setattr("multiqueue.cli.metadata.version", lambda name: {"multiqueue": "0.1.6"}[name])
    answer = call("--help")
    assert "another project" not in answer.stderr  # help is help
    answer = call("bench", "--help")
    assert "pip uninstall multiqueue" in answer.stderr
    assert answer.stderr.count("\n") == 1


def call(*args: object, **settings: Any) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], **settings)


def refused(result: Result, sentence: str, status: int = 2) -> None:
    """One sentence on standard error, this status, no traceback."""
    assert result.exit_code == status, result.output
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert result.stderr.count("\n") == 1


def in_process(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


def test_as_a_module() -> None:
    """`python -m multiqueue` is the same command."""
    command = [sys.executable, "-m", "multiqueue", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("multiqueue, version ")


def test_version() -> None:
    """`multiqueue --version` says it, and which engine runs."""
    language = {"c": "C", "python": "Python"}[engine]
    assert call("--version").output == f"multiqueue, version {__version__}, engine in {language}\n"


def test_help_loads_no_room() -> None:
    """The list of commands is printed without importing what they need."""
    code = (
        "import sys, multiqueue.cli as cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print([name for name in ('pydantic', 'pyspark', 'rich', 'sqlite3') if name in sys.modules])\n"
    )
    answer = in_process(code)
    assert answer.stderr == ""
    assert {"pipeline", "demo", "bench"} <= {line.split()[0] for line in answer.stdout.splitlines() if line.strip()}
    assert answer.stdout.endswith("[]\n")


def test_a_command_loads_no_spark_before_it_is_needed() -> None:
    """The pipeline's commands import no pyspark until a session is started."""
    answer = in_process("import sys, multiqueue.pipeline.cli; print('pyspark' in sys.modules)")
    assert answer.stdout == "False\n"


def test_an_unknown_command() -> None:
    """A command that does not exist is an error of usage."""
    result = call("pipelin")
    assert result.exit_code == 2
    assert "No such command 'pipelin'" in result.stderr


@pytest.mark.parametrize(
    ("module", "command", "sentence"),
    [
        ("click", "--help", "multiqueue: the command line needs click: pip install 'blocking-multiqueue[cli]'\n"),
        (
            "pydantic",
            "demo",
            "multiqueue: multiqueue.pipeline needs pydantic: pip install 'blocking-multiqueue[cli]'\n",
        ),
        ("rich", "pipeline", "multiqueue: multiqueue.pipeline needs rich: pip install 'blocking-multiqueue[cli]'\n"),
        (
            "pydantic",
            "broker",
            "multiqueue: `multiqueue broker` needs pydantic: pip install 'blocking-multiqueue[cli]'\n",
        ),
        ("pamqp", "consume", "multiqueue: multiqueue.client needs pamqp: pip install 'blocking-multiqueue[amqp]'\n"),
        ("pamqp", "bench amqp", "Error: bench amqp needs pamqp: pip install 'blocking-multiqueue[amqp]'\n"),
        ("pyspark", "bench spark", "Error: bench spark needs pyspark: pip install 'blocking-multiqueue[spark]'\n"),
        ("pyarrow", "bench spark", "Error: bench spark needs pyarrow: pip install 'blocking-multiqueue[spark]'\n"),
    ],
)
def test_a_missing_extra(module: str, command: str, sentence: str) -> None:
    """Without a package of the extra the command says which extra to install."""
    code = HIDING + f"hide({module!r}); from multiqueue.cli import main; main({command.split()!r})"
    answer = in_process(code)
    assert (answer.returncode, answer.stderr) == (2, sentence)


def test_a_store_is_looked_into_without_the_client() -> None:
    """`multiqueue store info` needs no pamqp; `store move`, which has a client, says what to install."""
    code = HIDING + "hide('pamqp'); from multiqueue.cli import main; main(['store', 'info', '--help'])"
    assert in_process(code).returncode == 0
    code = HIDING + "hide('pamqp'); from multiqueue.cli import main; main(['store', 'move', '.', 'amqp://host'])"
    answer = in_process(code)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "pip install 'blocking-multiqueue[amqp]'" in answer.stderr


def test_the_help_of_a_suite_that_cannot_run() -> None:
    """`bench amqp --help` says what is missing where it lists its workloads."""
    code = HIDING + "hide('pamqp'); from multiqueue.cli import main; main(['bench', 'amqp', '--help'])"
    answer = in_process(code)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.endswith("Workloads:\n  bench amqp needs pamqp: pip install 'blocking-multiqueue[amqp]'\n")


def test_no_java_for_the_benchmark(tmp_path: Path) -> None:
    """`bench spark` without Java is one sentence, not a page of failures."""
    pytest.importorskip("pyspark")
    (tmp_path / "bin").mkdir()
    code = "from multiqueue.cli import main; main(['bench', 'spark', '--only', 'jobs'])"
    answer = in_process(code, PATH=str(tmp_path / "bin"), JAVA_HOME="")
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.startswith("Error: bench spark cannot start Spark: Java: no java on PATH")
    assert answer.stderr.count("\n") == 1


def test_no_pyspark(config: Path) -> None:
    """Without pyspark the run says what to install, once it has found something to do."""
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        f"from multiqueue.cli import main; main(['pipeline', 'run', {str(config)!r}])"
    )
    answer = in_process(code)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "pip install 'blocking-multiqueue[spark]'" in answer.stderr
    assert not (config.parent / "out").exists()


@pytest.mark.parametrize("java_home", ["", "/nowhere"])
def test_no_java(config: Path, tmp_path: Path, java_home: str) -> None:
    """Without Java the run says so in a sentence, and that Java 17 would do; it leaves nothing behind."""
    pytest.importorskip("pyspark")
    (tmp_path / "bin").mkdir()
    code = f"from multiqueue.cli import main; main(['pipeline', 'run', {str(config)!r}])"
    answer = in_process(code, PATH=str(tmp_path / "bin"), JAVA_HOME=java_home)
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "Java 17" in answer.stderr
    assert not (config.parent / "out").exists()


def test_no_configuration(tmp_path: Path) -> None:
    """A configuration that is not there is a sentence."""
    for command in ("run", "status", "retry"):
        refused(
            call("pipeline", command, tmp_path / "none.toml"), "none.toml: cannot be read: No such file or directory"
        )


def test_a_wrong_configuration(config: Path) -> None:
    """A misspelt key is told with its line and the right one."""
    config.write_text(CONFIG.replace("format", "fromat"))
    result = call("pipeline", "run", config)
    assert result.exit_code == 2
    assert f"{config}:3: lanes.eu.fromat: unknown key; did you mean 'format'?" in result.stderr


def test_no_input(config: Path) -> None:
    """A first run without any file is refused, with the globs."""
    (config.parent / "eu" / "a.csv").unlink()
    refused(call("pipeline", "run", config), "no input files below")


def test_input_that_spark_ignores(config: Path) -> None:
    """When all files have names that Spark ignores, that is said."""
    (config.parent / "eu" / "a.csv").rename(config.parent / "eu" / "_a.csv")
    refused(call("pipeline", "run", config), "Spark ignores names that start with '_' or '.', for example 'eu/_a.csv'")


def test_an_output_that_cannot_be_written(config: Path) -> None:
    """An output below a file is refused."""
    (config.parent / "out").touch()
    refused(call("pipeline", "run", config), "choose another [output] path")


def test_an_output_without_its_state(config: Path) -> None:
    """Results whose state is gone are not added to: they could be counted twice."""
    (config.parent / "out" / "data" / "lane=eu").mkdir(parents=True)
    refused(call("pipeline", "run", config), "has results that are not in the state")


def test_a_job_that_does_not_exist(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that cannot be imported is told before anything starts."""
    config.write_text(CONFIG.replace('sql = "SELECT * FROM input"', 'python = "no_such_module:f"'))
    before = list(sys.path)
    refused(call("pipeline", "run", config), "job.python: cannot import 'no_such_module': ModuleNotFoundError")
    assert sys.path == before
    monkeypatch.setattr(sys, "path", before)
    config.write_text(CONFIG.replace('sql = "SELECT * FROM input"', 'python = "job_without:f"'))
    (config.parent / "job_without.py").touch()
    refused(call("pipeline", "run", config), "has no function 'f'")


def test_a_pipeline_in_use(config: Path) -> None:
    """A second run, or a retry beside a run, is refused; looking is allowed."""
    state = config.parent / "out" / "_multiqueue" / "state.sqlite"
    Ledger(state, config.parent).close()
    with exclusive(state):
        for command in ("run", "retry"):
            refused(call("pipeline", command, config), "is in use by another process; wait for it or stop it", 3)
        assert call("pipeline", "status", config).exit_code == 0


def test_status_before_any_run(config: Path) -> None:
    """There is nothing to show, to put back, or to make."""
    for command in ("status", "retry"):
        refused(call("pipeline", command, config), "this pipeline has not run yet")
    assert not (config.parent / "out").exists()


def test_status_and_retry(config: Path) -> None:
    """`status` shows what failed and why; `retry` puts it back."""
    for name in ("b", "c"):
        (config.parent / "eu" / f"{name}.csv").touch()
    ledger = Ledger(config.parent / "out" / "_multiqueue" / "state.sqlite", config.parent)
    ledger.record_scan("eu", [FileSeen(f"eu/{name}.csv", 1, 1) for name in "abc"], 1, 0.0)
    a, b, _ = ledger.next_waiting("eu", 0.0, 9)
    ledger.succeed(ledger.submit(a), a.files, 0.0, 1.0)
    ledger.give_up(ledger.submit(b), "ValueError: [bold]bad[/bold] row\nmore", 0.0, 1.0)
    ledger.close()
    text = call("pipeline", "status", config).output
    assert "failed eu: eu/b.csv, attempt 1: ValueError: [bold]bad[/bold] row\n" in text
    assert text.splitlines()[1].split() == ["eu", "1", "1", "1"]
    values = json.loads(call("pipeline", "status", "--json", config).output)
    assert values["lanes"]["eu"] == {"waiting": 1, "submitted": 0, "done": 1, "failed": 1}
    assert values["failures"][0]["error"] == "ValueError: [bold]bad[/bold] row\nmore"
    refused = call("pipeline", "retry", "--lane", "us", config)
    assert (refused.exit_code, "no lane 'us' has run here; there are eu" in refused.output) == (2, True)
    assert call("pipeline", "retry", config).output.startswith("1 item put back")
    assert json.loads(call("pipeline", "status", "--json", config).output)["lanes"]["eu"]["waiting"] == 2


def test_a_table_of_many_lanes() -> None:
    """At the end of a run with many lanes those that are not all done are shown, the others counted."""
    counts = [LaneCount(f"lane{i:03}", ItemState.DONE, 5, 5, 1) for i in range(100)]
    counts.append(LaneCount("lane050", ItemState.FAILED, 1, 1, 1))
    console = Console(file=io.StringIO(), width=80)
    console.print(lanes_table(counts, most=3))
    assert isinstance(console.file, io.StringIO)
    assert [line.split() for line in console.file.getvalue().splitlines()][1:] == [
        ["lane050", "0", "5", "1"],
        ["lane000", "0", "5", "0"],
        ["lane001", "0", "5", "0"],
        ["and", "97", "more"],
        ["100", "lanes", "0", "500", "1"],
    ]


def test_fresh_removes_only_a_demo(tmp_path: Path) -> None:
    """`demo --fresh` on a directory with something else removes nothing."""
    (tmp_path / "precious").write_text("x")
    refused(call("demo", "--fresh", "--dir", tmp_path), "is not a demo's, so nothing was removed")
    assert (tmp_path / "precious").exists()
