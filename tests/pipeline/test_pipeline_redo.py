"""Done items that another job has made: they are told, and `redo` has them done anew, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pipeline_parts_support import Ledger, Publisher, _publish, exchange, exclusive, fingerprints, open_ledger
from pipeline_support import Pipeline, lane_of, make_tree, rows_in
from test_pipeline_crash import Fuse, Killed, fragile

from multiqueue.cli import main
from multiqueue.pipeline import Item, JobError, load_config, plan_of

TOML = """\
[lanes.eu]
files = "eu/*.txt"
format = "text"
batch = 1
[lanes.us]
files = "us/*.txt"
format = "text"
batch = 2
[job]
sql = "SELECT {0}"
[steps.total]
after = ["eu", "us"]
sql = "SELECT 1"
[output]
path = "out"
"""

LANES = {"eu": 2, "us": 4}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make_tree(tmp_path, LANES)
    return configured(tmp_path, "old")


def configured(base: Path, job: str) -> Path:
    (base / "p.toml").write_text(TOML.format(job))
    return base


def writing(text: str) -> Callable[[Any, Item, Path], bool]:
    """A job whose rows are this text."""

    def work(spark: Any, item: Item, staged: Path) -> bool:
        staged.mkdir()
        rows = [f"{text} {item.lane}"] * (1 if item.part is not None else len(item.files))
        (staged / "part-0.json").write_text(json.dumps(rows))
        return True

    return work


def failing(spark: Any, item: Item, staged: Path) -> bool:
    raise JobError("there is no such column")


def run(base: Path, job: str | Callable[[Any, Item, Path], bool]) -> Pipeline:
    """Do what there is to do with the job of the file."""
    config = load_config(base / "p.toml")
    work = writing(job) if isinstance(job, str) else job
    ledger = lambda path, base: Ledger(path, base, jobs=fingerprints(config))  # noqa: E731
    made = Pipeline(base, config.lanes(), steps=config.steps(), ledger=ledger, work=work)
    made.run()
    return made


def call(base: Path, *arguments: str) -> Result:
    command, *others = arguments
    answer = CliRunner().invoke(main, ["pipeline", command, str(base / "p.toml"), *others])
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    return answer


def told(base: Path) -> int:
    """How many items `status` and `plan` say that another job has made."""
    count = int(json.loads(call(base, "status", "--json").stdout)["made_by_others"])
    assert plan_of(load_config(base / "p.toml")).made_by_others == count
    for command in ("status", "plan"):
        said = f"made by another job than {base / 'p.toml'} has now; `multiqueue pipeline redo "
        assert (said in call(base, command).stdout) == (count > 0)
    return count


def test_what_another_job_has_made_is_told_and_done_anew(base: Path) -> None:
    """After a change of the query `status` and `plan` say how many items are of the old one, and `redo --changed` has
    the next run replace exactly their rows, and do the steps behind them. (pipeline 31)"""
    run(base, "old")
    assert told(base) == 0
    configured(base, "new")
    (base / "eu" / "new.txt").write_text("another file")
    run(base, "new")
    assert Counter(rows_in(base / "out")) == {"old eu": 2, "new eu": 1, "old us": 4}
    assert told(base) == 4
    answer = call(base, "redo", "--changed")
    assert (answer.exit_code, answer.stdout.split(";")[0]) == (0, "4 items to be done anew")
    assert told(base) == 0
    assert Counter(rows_in(base / "out")) == {"old eu": 2, "new eu": 1, "old us": 4}, "rows stay until the run"
    done = run(base, "new").dispatcher.submitted
    assert Counter(item.lane for item in done) == {"eu": 2, "us": 2, "total": 1}
    assert Counter(rows_in(base / "out")) == {"new eu": 3, "new us": 4}
    assert run(base, "new").dispatcher.submitted == []


def test_a_changed_step_is_done_anew(base: Path) -> None:
    """A step whose own query has changed is told and done anew as an item is, and the lanes are left alone."""
    run(base, "old")
    text = (base / "p.toml").read_text()
    (base / "p.toml").write_text(text.replace("SELECT 1", "SELECT 2"))
    assert told(base) == 1
    assert call(base, "redo", "--changed").exit_code == 0
    assert [item.lane for item in run(base, "new").dispatcher.submitted] == ["total"]
    assert told(base) == 0
    assert rows_in(base / "out", "steps") == ["new total"]


def test_what_is_done_anew_is_chosen(base: Path) -> None:
    """`--lane` and `--since` choose, and a name, a moment or a state that is none is told with status 2."""
    assert (call(base, "redo").exit_code, (base / "out").exists()) == (2, False)
    run(base, "old")
    assert call(base, "redo", "--since", "2999-01-01").stdout.startswith("no item")
    assert call(base, "redo", "--lane", "us", "--since", "2020-01-01T00:00+01:00").stdout.startswith("2 items")
    assert {item.lane for item in run(base, "new").dispatcher.submitted} == {"us", "total"}
    assert Counter(rows_in(base / "out")) == {"old eu": 2, "new us": 4}
    assert call(base, "redo").stdout.startswith("5 items")
    for wrong in (["--lane", "nobody"], ["--since", "yesterday"]):
        assert call(base, "redo", *wrong).exit_code == 2
    with exclusive(base / "out/_multiqueue/state.sqlite"):
        assert call(base, "redo").exit_code == 3


def test_rows_stay_where_the_new_job_fails(base: Path) -> None:
    """An item that is done anew is set aside as it is when it fails, and its rows stay: those of each of its files. Put
    back, it is done anew again. (pipeline 31)"""
    run(base, "old")
    call(base, "redo")
    run(base, failing)
    assert Counter(rows_in(base / "out")) == {"old eu": 2, "old us": 4}
    status = json.loads(call(base, "status", "--json").stdout)
    assert [failure["files"] for failure in status["failures"]] == [1, 1, 2, 2]
    call(base, "retry")
    run(base, failing)
    assert Counter(rows_in(base / "out")) == {"old eu": 2, "old us": 4}
    call(base, "retry")
    run(base, "new")
    assert Counter(rows_in(base / "out")) == {"new eu": 2, "new us": 4}


def test_files_that_are_gone_are_not_done_anew(base: Path) -> None:
    """What cannot be read any more stays as it is, with its rows, and is counted."""
    run(base, "old")
    (base / "us" / "0001.txt").unlink()
    said = call(base, "redo").stdout.splitlines()
    assert said[0] == "1 item left as done: their files are gone, or they were messages"
    assert said[1].startswith("4 items to be done anew")
    run(base, "new")
    assert Counter(rows_in(base / "out")) == {"new eu": 2, "new us": 2, "old us": 2}


def test_where_nothing_is_chosen_redo_says_so(base: Path) -> None:
    """With no item to be done anew `redo` says that, and names no run that would do some."""
    run(base, "old")
    for options in (["--changed"], ["--since", "2999-01-01"]):
        answer = call(base, "redo", *options)
        assert (answer.exit_code, answer.stdout) == (0, "no item is chosen: all rows stay as they are\n")
    assert Counter(rows_in(base / "out")) == {"old eu": 2, "old us": 4}


@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_refusal_is_one_object_too(base: Path, command: str) -> None:
    """`plan --json` and `status --json` print one object also where the state is none, as `run --json` does."""
    state = base / "out" / "_multiqueue" / "state.sqlite"
    state.parent.mkdir(parents=True)
    state.write_text("no state of a pipeline")
    answer = call(base, command, "--json")
    said = json.loads(answer.stdout)
    assert (answer.exit_code, said["verdict"], said["status"]) == (2, "not ready", 2)
    assert "is not a state of ours" in said["sentence"]


def test_killed_at_every_moment_of_doing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a run dies that does items anew, readers see for each item its old rows or its new ones, never both and
    never none; the next run ends with the new ones. (pipeline 2, 4, 31)"""
    if not exchanges(tmp_path):
        pytest.skip("this file system does not exchange directories")
    last, is_over = 0, False
    while not is_over:
        last += 1
        fuse, is_over = Fuse(last), True
        base = tmp_path / str(last)
        make_tree(base, LANES)
        lanes = [lane_of(base, name, batch=2) for name in LANES]
        Pipeline(base, lanes, work=writing("old")).run()
        with open_ledger(base / "out/_multiqueue/state.sqlite", base) as ledger, ledger.transaction():
            assert ledger.redo(LANES, None, changed=False).items == 3
        ledger_type, publisher = fragile(fuse)
        try:
            Pipeline(base, lanes, work=writing("new"), ledger=ledger_type, publisher=publisher).run()
        except Killed:
            is_over = False
        rows = rows_in(base / "out")
        assert Counter(row.split()[1] for row in rows) == LANES, fuse.passed[-1:]
        Pipeline(base, lanes, work=writing("new")).run()
        assert Counter(rows_in(base / "out")) == {"new eu": 2, "new us": 4}
    assert "after the rename" in fuse.passed


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow(selected=True))])
def test_a_table_is_done_anew_whatever_dies(tmp_path: Path, kind: str) -> None:
    """The same of tables: each version has an item's old rows or its new ones. (pipeline 17, 31)"""
    from table_support import put, rows_of, table_pipeline
    from test_pipeline_table import dying

    def writes(text: str) -> Callable[[Any], Callable[[Any, Item, Path], bool]]:
        def of(output: Any) -> Callable[[Any, Item, Path], bool]:
            def work(spark: Any, item: Item, staged: Path) -> bool:
                columns = {"lane": "string", "item": "string", "row": "string"}
                put(output, item, {"row": [f"{text} {path.name}" for path in item.paths]}, columns)
                return True

            return work

        return of

    last, is_over = 0, False
    while not is_over:
        last += 1
        base = tmp_path / str(last)
        make_tree(base, LANES)
        lanes = [lane_of(base, name, batch=2) for name in LANES]
        table_pipeline(base, lanes, kind, work=writes("old")).run()
        with open_ledger(base / "out/_multiqueue/state.sqlite", base) as ledger, ledger.transaction():
            ledger.redo(LANES, None, changed=False)
        fuse, is_over = Fuse(last), True
        try:
            table_pipeline(base, lanes, kind, work=writes("new"), ledger=fragile(fuse)[0], prepared=dying(fuse)).run()
        except Killed:
            is_over = False
        names = sorted(row.split()[1] for row in rows_of(base / "out/data", kind))
        assert names == sorted(f"{number:04}.txt" for count in LANES.values() for number in range(count))
        table_pipeline(base, lanes, kind, work=writes("new")).run()
        assert {row.split()[0] for row in rows_of(base / "out/data", kind)} == {"new"}
    assert {"before commit", "after commit"} <= set(fuse.passed)


def exchanges(base: Path) -> bool:
    """Whether directories can be exchanged here; this tries it."""
    for name in ("one", "other"):
        (base / name / name).mkdir(parents=True)
    found = exchange(base / "one", base / "other")
    assert (base / ("other" if found else "one") / "one").is_dir()
    assert (base / ("one" if found else "other") / "other").is_dir()
    return found


def test_directories_that_cannot_be_exchanged_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no exchange, a later attempt's output replaces the earlier one by renames."""
    assert not exchange(tmp_path / "nothing", tmp_path / "no other")
    monkeypatch.setattr(_publish, "exchange", lambda one, other: False)
    make_tree(tmp_path, {"eu": 1})
    for text in ("old", "new"):
        (tmp_path / "eu" / "0000.txt").write_text(text)
        Pipeline(tmp_path, [lane_of(tmp_path, "eu")], work=writing(text), publisher=Publisher).run()
        assert rows_in(tmp_path / "out") == [f"{text} eu"]


def test_what_a_job_refers_to_is_its_fingerprint(tmp_path: Path) -> None:
    """The code that a function imports from beside the file counts, directly or not, and no other."""

    def found() -> str:
        return fingerprints(load_config(tmp_path / "p.toml"))[""]

    (tmp_path / "tools").mkdir()
    files = {
        "job.py": "import json\nfrom tools import one\ndef f(spark, frame, item): ...\n",
        "tools/__init__.py": "",
        "tools/one.py": "from . import two\nimport nothing_of_the_kind\n",
        "tools/two.py": "import job\n",
        "tools/other.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "p.toml").write_text(TOML.format("1").replace('sql = "SELECT 1"\n[steps', 'python = "job:f"\n[steps'))
    seen = [found()]
    for name in files:
        (tmp_path / name).write_text("# changed\n" + files[name])
        seen.append(found())
    assert len(set(seen)) == 5
    assert seen[-1] == seen[-2], "tools/other.py is imported by nothing"
    (tmp_path / "job.py").write_text("this is no Python")
    assert found() not in seen
    toml = (tmp_path / "p.toml").read_text()
    (tmp_path / "p.toml").write_text(toml.replace("job:f", "json.decoder:f"))
    assert found() == found() != seen[-1]
