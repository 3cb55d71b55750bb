"""What a scheduler needs of `pipeline run`: lanes by name, one document, statuses to retry by, a timely end."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pipeline_parts_support import Started, StopRequested, TableOutput, exclusive
from pipeline_support import Pipeline, Recorder, lane_of, make_tree, no_spark, rows_in, write_names
from table_support import table_pipeline

from multiqueue.cli import main
from multiqueue.pipeline import ConfigError, Item, PipelineConfig, Unprepared, load_config, run_pipeline

TOML = """\
[lanes.big]
files = "big/*.txt"
format = "text"
batch = 1
[lanes.customers]
directories = "inbox/*"
files = "*.txt"
format = "text"
batch = 1
[job]
sql = "SELECT 1"
[steps.totals]
after = ["big", "customers"]
sql = "SELECT 1"
[output]
path = "out"
"""

LANES = {"big": 3, "inbox/acme": 2, "inbox/umbrella": 1}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make_tree(tmp_path, LANES)
    (tmp_path / "p.toml").write_text(TOML)
    return tmp_path


def config_of(base: Path, *lanes: str) -> PipelineConfig:
    config = load_config(base / "p.toml")
    return config.only(lanes) if lanes else config


def once(config: PipelineConfig, **settings: Any) -> Pipeline:
    """Do what there is to do, without Spark."""
    run = Pipeline(config.base, config.lanes(), steps=config.steps(), **settings)
    run.run()
    return run


def call(base: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", "run", str(base / "p.toml"), *arguments])


def document(answer: Result) -> dict[str, Any]:
    """What standard output has: one line."""
    (line,) = answer.stdout.splitlines()
    told = json.loads(line)
    assert told["status"] == answer.exit_code
    return dict(told)


# Lanes by name


def test_a_lane_alone(base: Path) -> None:
    """With `--lane` the items of that lane run; the others, and steps, wait for a run of all lanes. (pipeline 24)"""
    assert {item.lane for item in once(config_of(base, "acme")).dispatcher.submitted} == {"acme"}
    rest = once(config_of(base))
    assert {item.lane for item in rest.dispatcher.submitted} == {"big", "umbrella", "totals"}
    assert len(rows_in(base / "out")) == sum(LANES.values())


def test_a_section_means_all_its_lanes(base: Path) -> None:
    """The name of a section with directories stands for the lanes that they make."""
    assert [lane.name for lane in config_of(base, "customers").lanes()] == ["acme", "umbrella"]
    assert [lane.name for lane in config_of(base, "umbrella", "big").lanes()] == ["big", "umbrella"]


def test_no_such_lane(base: Path) -> None:
    """A name that is no lane is refused with the lanes that there are, before anything starts. (pipeline 24)"""
    answer = call(base, "--lane", "acme", "--lane", "nobody")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == "multiqueue: there is no lane 'nobody'; there are 'big', 'acme', 'umbrella'\n"
    assert not (base / "out").exists()


def test_a_step_is_no_lane(base: Path) -> None:
    """Steps are not chosen by `--lane`."""
    with pytest.raises(ConfigError, match="there is no lane 'totals'; there are 'big'"):
        config_of(base, "totals")


def test_the_others_are_untouched(base: Path) -> None:
    """Of other lanes a run with `--lane` neither reads files nor misses them, and its report says so. (pipeline 24)"""
    once(config_of(base))
    make_tree(base, {"big": 9})  # new work, which would need Spark
    (base / "inbox" / "umbrella" / "0000.txt").unlink()
    (base / "inbox" / "umbrella").rmdir()  # input that is gone
    reporter = Recorder()
    result = run_pipeline(config_of(base, "acme"), reporter, session=no_spark)
    assert (int(result.status), result.lost, result.snapshot.total.done) == (0, (), 2)
    assert "steps wait for a run of all lanes" in reporter.notes
    assert "was of acme alone; the other lanes are as runs before it left them" in result.report.read_text()
    with pytest.raises(Unprepared, match="there is work to do"):
        run_pipeline(config_of(base, "big"), Recorder(), session=no_spark)
    whole = run_pipeline(config_of(base, "customers"), Recorder(), session=no_spark)
    assert int(whole.status) == 2
    assert "the directory of 'umbrella' had files and is gone" in whole.lost[0]


def test_a_chosen_lane_without_files(base: Path) -> None:
    """A first run of a lane that has no file is refused for that lane's globs, also when the others have files."""
    (base / "inbox" / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no input files below .*: lanes.customers.files = '\*.txt'$"):
        run_pipeline(config_of(base, "empty"), Recorder(), session=no_spark)


def test_a_chosen_lane_whose_directory_may_go(base: Path) -> None:
    """A lane that has run is chosen also while its directory is away, if its section may be empty. (pipeline 24)"""
    once(config_of(base))
    (base / "inbox" / "umbrella" / "0000.txt").unlink()
    (base / "inbox" / "umbrella").rmdir()
    refused = call(base, "--lane", "umbrella")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "multiqueue: there is no lane 'umbrella'; there are 'big', 'acme'\n"
    (base / "p.toml").write_text(TOML.replace("[lanes.customers]", "[lanes.customers]\nallow_empty = true"))
    told = document(call(base, "--lane", "umbrella", "--json"))
    assert (told["verdict"], told["missing"]) == ("done", [])
    assert call(base, "--lane", "nobody").exit_code == 2


# One document


def test_the_document_of_a_run(base: Path) -> None:
    """Standard output has one JSON document, at the end; all else is on standard error. (pipeline 25)"""
    once(config_of(base))
    answer = call(base, "--json")
    told = document(answer)
    assert (told["verdict"], told["status"], told["missing"], told["set_aside"]) == ("done", 0, [], [])
    assert told["sentence"].startswith("all done: 7 items")
    assert told["lanes"]["acme"] == {"waiting": 0, "running": 0, "committing": 0, "done": 2, "failed": 0}
    assert told["total"]["done"] == 7
    assert told["seconds"] >= 0
    assert [json.loads(line)["event"] for line in answer.stderr.splitlines()] == ["begin", "end"]


def test_the_document_names_what_is_set_aside(base: Path) -> None:
    """An item that was set aside is in the document with its error, and the status is 1. (pipeline 25)"""

    def work(spark: Any, item: Item, staged: Path) -> bool:
        if item.lane == "big":
            raise ValueError("no good")
        return write_names(spark, item, staged)

    once(config_of(base), work=work)
    told = document(call(base, "--json"))
    assert (told["verdict"], told["status"], len(told["set_aside"])) == ("set aside", 1, 3)
    first = told["set_aside"][0]
    assert (first["lane"], first["path"], first["error"].splitlines()[0]) == (
        "big",
        "big/0000.txt",
        "ValueError: no good",
    )
    assert document(call(base, "--json", "--lane", "acme"))["set_aside"] == []


def test_the_document_names_what_is_missing(base: Path) -> None:
    """Input that is gone is in the document, and the status is 2. (pipeline 25)"""
    once(config_of(base))
    for path in (base / "big").iterdir():
        path.unlink()
    told = document(call(base, "--json"))
    assert (told["verdict"], told["status"]) == ("not ready", 2)
    assert "lane 'big' had files" in told["missing"][0]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_document_has_the_tables_versions(base: Path, kind: str) -> None:
    """Of each table the document has the version that the run left, as its library calls it. (pipeline 25)"""
    text = TOML.partition("[steps.totals]")[0] + f'[output]\npath = "out"\ntable = "{kind}"\n'
    (base / "p.toml").write_text(text)
    run = table_pipeline(base, config_of(base).lanes(), kind)
    run.run()
    assert isinstance(run.publisher, TableOutput)
    (table,) = document(call(base, "--json"))["tables"]
    assert table["table"] == str(base / "out" / "data")
    assert table["version"] == run.publisher.tables[""].version()
    assert table["version"]


# Statuses to retry by


def test_another_run_is_worth_waiting_for(base: Path) -> None:
    """A state that another run has ends with 3: the same command later is right. (pipeline 25)"""
    once(config_of(base))
    with exclusive(base / "out" / "_multiqueue" / "state.sqlite"):
        answer = call(base, "--json")
    told = document(answer)
    assert (told["verdict"], told["status"]) == ("broken off", 3)
    assert answer.stderr == f"multiqueue: {told['sentence']}\n"


def test_a_server_is_worth_waiting_for(base: Path) -> None:
    """A Spark that does not answer ends with 3, and nothing is left behind. (pipeline 25)"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and no program listens
        answer = call(base, "--json", "--on", f"spark://127.0.0.1:{taken.getsockname()[1]}")
    told = document(answer)
    assert (told["verdict"], told["status"]) == ("broken off", 3)
    assert "nothing answers at" in told["sentence"]
    assert not (base / "out").exists()


def test_a_mistake_is_not_worth_waiting_for(base: Path) -> None:
    """A mistake in the configuration ends with 2, as a document too. (pipeline 25)"""
    (base / "p.toml").write_text(TOML.replace("[job]", "[jbo]"))
    told = document(call(base, "--json"))
    assert (told["verdict"], told["status"]) == ("not ready", 2)


# An end within a grace


def test_what_runs_has_so_long(tmp_path: Path) -> None:
    """After the time that a stop leaves, what still runs is cancelled once and handed back. (pipeline 8)"""
    make_tree(tmp_path, {"a": 3})
    begun: list[tuple[Any, float]] = []
    cancelled_s: list[float] = []
    run = Pipeline(tmp_path, [lane_of(tmp_path, "a", batch=1)])

    def begin() -> bool:
        if begun:
            return False  # it does not end by itself
        future, fn = run.dispatcher.lanes["a"].queued.pop(0)
        run.mailbox.post(Started(fn.item.seq, run.time()))
        run.mailbox.post(StopRequested(run.time() + 20.0))
        begun.append((future, run.time()))
        return True

    def cancel() -> int:
        cancelled_s.append(run.time() - begun[0][1])
        return int(begun[0][0].cancel())

    run.dispatcher.run_next = begin  # type: ignore[method-assign]
    run.dispatcher.cancel_running = cancel  # type: ignore[method-assign]
    snapshot = run.run()
    assert len(cancelled_s) == 1
    assert 20.0 <= cancelled_s[0] < 20.5
    assert (snapshot.total.waiting, snapshot.total.running) == (3, 0)
    assert run.runner.was_interrupted
