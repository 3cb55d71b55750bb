"""Outputs that are tables: each item's rows once, whatever dies."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from pipeline_parts_support import Change, Kind, Ledger, Publisher, TableOutput, delta_module, new_number, open_ledger
from pipeline_support import Pipeline, contents, lane_of, make_tree
from table_support import STEPS, output_in, put, read, rows_of, table_pipeline, versions
from test_pipeline_crash import LANES, Fuse, Killed, fragile

from multiqueue.pipeline import FileSeen, Item, PipelineError, StateMismatch
from multiqueue.pipeline.cli import pipeline

KINDS = ["delta", "iceberg"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dying(fuse: Fuse) -> Callable[[TableOutput], None]:
    """Has an output's tables die before and after all that lasts in them."""

    def prepare(output: TableOutput) -> None:
        for table in output.tables.values():
            for name in ("make", "commit", "tidy"):
                setattr(table._form, name, _around(fuse, name, getattr(table._form, name)))

    return prepare


def _around(fuse: Fuse, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        fuse.moment(f"before {name}")
        result = method(*args)
        fuse.moment(f"after {name}")
        return result

    return wrapped


def start(base: Path, kind: str, fuse: Fuse, **settings: Any) -> Pipeline:
    lanes = [lane_of(base, name, section="in", batch=2, capacity=3) for name in LANES]
    return table_pipeline(base, lanes, kind, ledger=fragile(fuse)[0], prepared=dying(fuse), **settings)


def after_each_death(tmp_path: Path, kind: str, **settings: Any) -> Iterator[tuple[Pipeline, str]]:
    """For each moment at which a run can die: the pipeline that goes on after it, and when it died."""
    make_tree(tmp_path / "whole", LANES)
    fuse = Fuse()
    start(tmp_path / "whole", kind, fuse, **settings).run()
    assert {"before make", "after make", "before commit", "after commit"} <= set(fuse.passed)
    for last, name in enumerate(fuse.passed, 1):
        base = tmp_path / str(last)
        make_tree(base, LANES)
        with pytest.raises(Killed):
            start(base, kind, Fuse(last), **settings).run()
        yield start(base, kind, Fuse(), **settings), f"died at moment {last}, {name}"


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow(selected=True))])
def test_killed_at_every_moment(tmp_path: Path, kind: str) -> None:
    """Whichever commit of the state or the table is the last before death, the next run ends with each row once."""
    for again, died in after_each_death(tmp_path, kind):
        again.run()
        assert rows_of(again.output / "data", kind) == contents(LANES), died


@pytest.mark.parametrize(
    "kind",
    [pytest.param("delta", marks=pytest.mark.slow(selected=True)), pytest.param("iceberg", marks=pytest.mark.slow)],
)
def test_steps_have_tables(tmp_path: Path, kind: str) -> None:
    """Each step has a table of its own below `steps`, whatever dies."""
    for again, died in after_each_death(tmp_path, kind, steps=STEPS):
        again.run()
        assert rows_of(again.output / "data", kind) == contents(LANES), died
        found = [row for step in STEPS for row in rows_of(again.output / "steps" / step.name, kind)]
        assert found == ["daily big", "daily small", "totals"], died


def items(base: Path, count: int, attempt: int = 1) -> list[Item]:
    return [Item(f"i{place}", "eu", (FileSeen(f"{place}.txt", 1, 1),), base, attempt) for place in range(count)]


def put_all(output: TableOutput, chosen: list[Item], value: Any, columns: dict[str, Kind] | None = None) -> list[Any]:
    """Put a row of this value into the table for each of the items, in one commit; what that said of each."""
    given = columns or {"row": "string"}
    for item in chosen:
        put(output, item, {name: [value] for name in given}, {"lane": "string", "item": "string", **given})
    written = [output.put_out(item, output.places.output / "none", has_output=True) for item in chosen]
    return output.tables[""].commit([one.change for one in written], new_number())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "state.sqlite", tmp_path) as ledger:
        yield ledger


def opened(base: Path, kind: str, ledger: Ledger, **settings: Any) -> TableOutput:
    """The tables, as a run that begins finds them."""
    output = output_in(base, kind, **settings)
    output.prepare(ledger)
    return output


def test_many_items_are_one_commit(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """What has ended together is one version of the table, which names each item with its attempt. (pipeline 16, 17)"""
    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 1), "x")
    before = versions(tmp_path / "out/data", kind)
    put_all(output, items(tmp_path, 20)[1:], "x")
    assert versions(tmp_path / "out/data", kind) == before + 1
    again = opened(tmp_path, kind, ledger)
    assert all(again.is_published(item) for item in items(tmp_path, 20))
    assert not any(again.is_published(item) for item in items(tmp_path, 20, attempt=2))


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """The files that a failed attempt has written below its table are gone, and no later commit names them."""
    output, (item,) = opened(tmp_path, kind, ledger), items(tmp_path, 1)

    def fail() -> None:
        with output.attempt(item):
            put(output, item, {"row": ["x"]}, {"lane": "string", "item": "string", "row": "string"})
            assert (tmp_path / "out/data" / output.directory_of(item)).exists()
            raise OSError("executor lost")

    with pytest.raises(OSError, match="executor lost"):
        fail()
    assert not (tmp_path / "out/data" / output.directory_of(item)).exists()
    assert not output.put_out(item, tmp_path / "none", has_output=True).change.files


@pytest.mark.parametrize(("kind", "optimized"), [*((kind, False) for kind in KINDS), ("delta", True)])
def test_a_later_attempt_replaces_its_own_rows(tmp_path: Path, kind: str, ledger: Ledger, optimized: bool) -> None:
    """One commit takes an item's old rows and brings the new ones; those of others stay, in one file with them too.

    (pipeline 17)
    """
    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 4), "old")
    if optimized:
        output.tables[""].maintain(lambda form: form.optimize())
        output = opened(tmp_path, kind, ledger)
    before = versions(tmp_path / "out/data", kind)
    put_all(output, items(tmp_path, 2, attempt=2), "new")
    assert rows_of(tmp_path / "out/data", kind) == ["new", "new", "old", "old"]
    assert versions(tmp_path / "out/data", kind) > before
    assert rows_of(tmp_path / "out/data", kind, "item") == ["i0", "i1", "i2", "i3"]


@pytest.mark.slow(selected=True)
def test_a_commit_reads_no_file(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """A commit asks for the bytes of no file, neither of those that come nor of those that go or stay. (pipeline 17)"""
    from pyiceberg.expressions.visitors import IN_PREDICATE_LIMIT

    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 1), "stays")
    count = IN_PREDICATE_LIMIT + 2 if kind == "iceberg" else 3  # pyiceberg asks no bounds for longer lists
    for attempt in (1, 2):
        chosen = items(tmp_path, count, attempt)[1:]
        for item in chosen:
            put(output, item, {"row": ["x"]}, {"lane": "string", "item": "string", "row": "string"})
        changes = [output.put_out(item, tmp_path / "none", has_output=True).change for item in chosen]
        for directory in (tmp_path / "out/data").glob("i*"):
            shutil.rmtree(directory)
        assert set(output.tables[""].commit(changes, new_number())) == {None}
    named = {file.path.partition("/")[0] for file in output.tables[""].current()[1]}
    assert named == {output.directory_of(item) for item in items(tmp_path, 1) + chosen}


@pytest.mark.slow(selected=True)
def test_a_table_keeps_its_size(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """However many commits are made, a table has as many of its own files and names as many items in them, and its last
    commit is known by its number. (pipeline 17, 32)"""
    output = opened(tmp_path, kind, ledger)
    numbers, sizes, count, named = [], [], 320 if kind == "delta" else 100, 0
    for item in items(tmp_path, count):
        put(output, item, {"row": ["x"]}, {"lane": "string", "item": "string", "row": "string"})
        written = output.put_out(item, output.places.output / "none", has_output=True)
        numbers.append(new_number())
        assert output.tables[""].commit([written.change], numbers[-1]) == [None]
        output.tables[""].tidy()
        sizes.append(len(list((tmp_path / "out/data").glob("[_m][de]*/*"))))
        named = max(named, len(output.tables[""].current()[1]) if kind == "delta" else 0)
    again = opened(tmp_path, kind, ledger)
    last = dataclasses.replace(items(tmp_path, count)[-1], number=numbers[-1])
    assert again.is_published(last)
    assert not again.is_published(dataclasses.replace(last, number="another"))
    assert rows_of(tmp_path / "out/data", kind) == ["x"] * count
    if kind == "iceberg":
        assert max(sizes) < 120, "a commit makes three files"
        left = again.tables[""].maintain(lambda form: form.vacuum(3600.0))
        assert len(left) <= 4, "a manifest that a commit made and merged at once"
        assert all(path.startswith("metadata/") for path in left)
    else:
        assert named <= 32, "the last thirty, and those that they were joined into"
        assert max(sizes) < 120, "the entries since the older one of two checkpoints"
        entries = (tmp_path / "out/data/_delta_log").glob("*.json")
        lines = [line for entry in entries for line in entry.read_text().splitlines()]
        assert not [line for line in lines if line.startswith('{"txn"')], "each version would name them all"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("retention", [None, "interval 1 day"])
def test_versions_of_a_delta_table(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, retention: str | None
) -> None:
    """Entries of the log go with the checkpoints before them, but stay where the table says how long. The files that
    they named stay until `vacuum` takes them. (pipeline 19, 32)"""
    import deltalake

    monkeypatch.setattr(delta_module(), "_CHECKPOINTS", 5)
    output = opened(tmp_path, "delta", ledger)
    for place, item in enumerate(items(tmp_path, 17)):
        put_all(output, [item], "x")
        if place == 0 and retention is not None:
            table = deltalake.DeltaTable(tmp_path / "out/data")
            table.alter.set_table_properties({"delta.logRetentionDuration": retention})
        output.tables[""].tidy()
    names = [path.name for path in (tmp_path / "out/data/_delta_log").iterdir()]
    assert len([name for name in names if ".checkpoint." in name]) in (2, 3)  # the third goes with the next commit
    entries = len([name for name in names if name.endswith(".json")])
    assert entries == versions(tmp_path / "out/data", "delta") if retention else entries < 12
    files = {*(tmp_path / "out/data").glob("i*/*.parquet")}
    assert output.tables[""].maintain(lambda form: form.vacuum(3600.0)) == []
    assert {*(tmp_path / "out/data").glob("i*/*.parquet")} == files
    assert len(files) == 17
    assert rows_of(tmp_path / "out/data", "delta") == ["x"] * 17


def test_old_files_of_a_table_go_with_vacuum(tmp_path: Path, ledger: Ledger) -> None:
    """What an Iceberg table has of its own and no version names any more is found. (pipeline 19)"""
    output = opened(tmp_path, "iceberg", ledger)
    put_all(output, items(tmp_path, 2), "x")
    for name in ("1-m0.avro", "00000-left.metadata.json"):
        (tmp_path / "out/data/metadata" / name).touch()
    found = output.tables[""].maintain(lambda form: form.vacuum(3600.0))
    assert sorted(found) == ["metadata/00000-left.metadata.json", "metadata/1-m0.avro"]


def test_an_item_that_is_taken_away(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """An item that is halved, or puts out nothing any more, has no rows; and is not taken for published by that."""
    output = opened(tmp_path, kind, ledger)
    first, second, third = items(tmp_path, 3)
    put_all(output, [first, second, third], "x")
    output.retract(dataclasses.replace(first, attempt=2))
    assert not output.is_published(dataclasses.replace(first, attempt=2))
    nothing = output.put_out(dataclasses.replace(second, attempt=2), tmp_path / "none", has_output=False)
    assert output.tables[""].commit([nothing.change], new_number()) == [None]
    assert rows_of(tmp_path / "out/data", kind, "item") == ["i2"]


def test_a_table_of_another_state(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """A table belongs to one state: another one is refused before anything is read or written. (pipeline 18)

    The other one is as it was, and can be another output's.
    """
    put_all(opened(tmp_path, kind, ledger), items(tmp_path, 1), "x")
    said = f"belongs to another state, number {ledger.identity()}, and not to the state .*other.sqlite', which is new;"
    with open_ledger(tmp_path / "other.sqlite", tmp_path) as other:
        with pytest.raises(StateMismatch, match=said):
            opened(tmp_path, kind, other)
        Publisher(tmp_path / "files").prepare(other)


def test_a_table_of_nobody(tmp_path: Path, ledger: Ledger) -> None:
    """A table that another program has made is refused as that. (pipeline 18)"""
    import deltalake
    import pyarrow

    deltalake.write_deltalake(tmp_path / "out/data", pyarrow.table({"row": ["theirs"]}))
    with pytest.raises(StateMismatch, match="was made by another program; delete the table"):
        opened(tmp_path, "delta", ledger)


def test_a_table_that_cannot_be_looked_at(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """What the library says of a store that does not answer is one sentence, before anything starts."""
    output = output_in(tmp_path, kind)
    output.tables[""]._form.open = Mock(side_effect=OSError("no answer\nand more"))  # type: ignore[method-assign]
    with pytest.raises(PipelineError, match=r"cannot look at the table '.*out/data': no answer; correct \[storage\]"):
        output.prepare(ledger)


@pytest.mark.parametrize("form", [*KINDS, "directories"])
def test_an_output_that_is_gone(tmp_path: Path, form: str) -> None:
    """A run whose table, or directory of results, was deleted while its state was kept says so and does nothing.

    (pipeline 18)
    """
    make_tree(tmp_path, LANES)
    lanes = [lane_of(tmp_path, "big")]

    def started() -> Pipeline:
        if form == "directories":
            return Pipeline(tmp_path, lanes)
        return table_pipeline(tmp_path, lanes, form)

    for _ in range(2):
        started().run()
    shutil.rmtree(tmp_path / "out" / "data")
    if form == "iceberg":
        (tmp_path / "out" / "_multiqueue" / "catalog.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(StateMismatch, match=r"out/data' is gone, and the state .* has items that are done"):
            started()


def test_an_older_copy_of_the_state(tmp_path: Path, kind: str) -> None:
    """A state from a backup does not have the table's last items: they would be there twice. (pipeline 18)"""
    make_tree(tmp_path, {"big": 2})
    lanes = [lane_of(tmp_path, "big")]
    table_pipeline(tmp_path, lanes, kind).run()
    state = tmp_path / "out/_multiqueue/state.sqlite"
    shutil.copy(state, tmp_path / "backup.sqlite")
    make_tree(tmp_path, LANES)
    table_pipeline(tmp_path, lanes, kind).run()
    shutil.copy(tmp_path / "backup.sqlite", state)
    with pytest.raises(StateMismatch, match=r"has commit \d+, and the state .*sqlite' has counted \d+: it is an older"):
        table_pipeline(tmp_path, lanes, kind)
    assert rows_of(tmp_path / "out/data", kind) == contents({"big": LANES["big"]})


def test_a_catalog_that_is_lost(tmp_path: Path) -> None:
    """The catalog beside the state is lost with it: the table is not made anew over the other one's. (pipeline 18)"""
    make_tree(tmp_path, LANES)
    lanes = [lane_of(tmp_path, "big")]
    table_pipeline(tmp_path, lanes, "iceberg").run()
    shutil.rmtree(tmp_path / "out/_multiqueue")
    with pytest.raises(StateMismatch, match="its catalog, which lies beside the state, does not know it"):
        table_pipeline(tmp_path, lanes, "iceberg")


def test_another_kind_of_output(tmp_path: Path, kind: str) -> None:
    """A state whose items are done in directories is not taken for one of a table, nor the other way round."""
    make_tree(tmp_path, LANES)
    lanes = [lane_of(tmp_path, name) for name in LANES]
    Pipeline(tmp_path, lanes).run()
    with pytest.raises(StateMismatch, match=f"the finished items are in an output of files, not of {kind} tables"):
        table_pipeline(tmp_path, lanes, kind)
    make_tree(tmp_path / "other", LANES)
    table_pipeline(tmp_path / "other", lanes, kind).run()
    with pytest.raises(StateMismatch, match=f"the finished items are in an output of {kind} tables, not of files"):
        Pipeline(tmp_path / "other", lanes)


def test_two_runs_that_begin_at_once(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """Of two runs with states of their own, the one whose table comes second ends without having put out anything.

    (pipeline 18)
    """
    with open_ledger(tmp_path / "other.sqlite", tmp_path) as other:
        first, second = opened(tmp_path, kind, ledger), opened(tmp_path, kind, other)
        put_all(first, items(tmp_path, 2), "first")
        with pytest.raises(StateMismatch):
            put_all(second, items(tmp_path, 2), "second")
    assert rows_of(tmp_path / "out/data", kind) == ["first", "first"]


@pytest.mark.parametrize("zombie_first", [False, True])
def test_a_run_that_has_lost_its_lock(tmp_path: Path, kind: str, ledger: Ledger, zombie_first: bool) -> None:
    """A run that goes on though another one has taken over doubles no row: what comes second is replaced or refused.

    (pipeline 18)
    """
    zombie = opened(tmp_path, kind, ledger)
    put_all(zombie, items(tmp_path, 3)[2:], "before")
    heir = opened(tmp_path, kind, ledger)
    old, new = items(tmp_path, 2), items(tmp_path, 2, attempt=2)
    if zombie_first:
        put_all(zombie, old, "zombie")
        put_all(heir, new, "heir")
    else:
        put_all(heir, new, "heir")
        with pytest.raises(StateMismatch, match="another process has put item i0 into the table"):
            put_all(zombie, old, "zombie")
    assert rows_of(tmp_path / "out/data", kind) == ["before", "heir", "heir"]


def test_what_others_have_committed_is_remembered(tmp_path: Path, ledger: Ledger) -> None:
    """An item that another run has put out is refused however many commits came since. (pipeline 18)"""
    zombie = opened(tmp_path, "delta", ledger)
    put_all(zombie, items(tmp_path, 1), "before")
    heir = opened(tmp_path, "delta", ledger)
    mine = items(tmp_path, 30)
    put_all(heir, [dataclasses.replace(mine[1], attempt=2)], "heir")
    for item in mine[2:]:
        put_all(zombie, [item], "zombie")
    with pytest.raises(StateMismatch, match="another process has put item i1 into the table"):
        put_all(zombie, [mine[1]], "zombie")
    assert rows_of(tmp_path / "out/data", "delta") == ["before", "heir", *["zombie"] * 28]


def test_a_run_that_commits_alone_reads_no_entry_of_the_log(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made an entry of a Delta log is asked only where another process may have. (pipeline 32)"""
    output = opened(tmp_path, "delta", ledger)
    put_all(output, items(tmp_path, 1), "x")
    monkeypatch.setattr(output.tables[""]._form, "_entry", lambda version: pytest.fail(f"version {version} was read"))
    for item in items(tmp_path, 4)[1:]:
        put_all(output, [item], "x")
        output.tables[""].tidy()


def test_two_runs_with_the_same_attempt(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """Of two runs that have the same attempt of an item, the second to commit is refused: nothing says whose rows are
    right. (pipeline 18)
    """
    zombie = opened(tmp_path, kind, ledger)
    put_all(zombie, items(tmp_path, 3)[2:], "before")
    heir = opened(tmp_path, kind, ledger)
    put_all(heir, items(tmp_path, 2), "heir")
    with pytest.raises(StateMismatch, match=r"another process has put item i0 into the table .* \(attempt 1\)"):
        put_all(zombie, items(tmp_path, 2), "zombie")
    assert rows_of(tmp_path / "out/data", kind) == ["before", "heir", "heir"]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a Delta table are joined after every second commit."""
    monkeypatch.setattr(delta_module(), "_COMPACTED", ((2, 4 << 20),))


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("joins_first", [False, True])
def test_files_that_are_joined_while_another_run_replaces_rows(
    tmp_path: Path, ledger: Ledger, joins_first: bool
) -> None:
    """Of a commit that joins files and another run's that replaces rows in them, the second fails and is made again on
    what there is then: no row is lost, none is there twice. (pipeline 17, 18)"""
    one = opened(tmp_path, "delta", ledger)
    for item in items(tmp_path, 4):
        put_all(one, [item], "old")
    other = opened(tmp_path, "delta", ledger)
    assert other.is_published(items(tmp_path, 1)[0])
    table, pauses = other.tables[""], list[float]()
    table._sleep = pauses.append
    if joins_first:
        one.tables[""].tidy()
        assert len(one.tables[""].current()[1]) == 1
        put_all(other, items(tmp_path, 1, attempt=2), "new")
        assert pauses == [0.1]
    else:
        put_all(other, items(tmp_path, 1, attempt=2), "new")
        one.tables[""].tidy()
        assert len(other.tables[""].current()[1]) == 4
        put_all(one, items(tmp_path, 5)[4:], "more")
        one.tables[""].tidy()
        assert len(one.tables[""].current()[1]) == 1
    more = [] if joins_first else ["more"]
    assert rows_of(tmp_path / "out/data", "delta") == [*more, "new", "old", "old", "old"]


@pytest.mark.usefixtures("often")
def test_readers_of_a_version_whose_files_were_joined(tmp_path: Path, ledger: Ledger) -> None:
    """A reader that began before files were joined finds them until `vacuum` takes them, as the reader of any old
    version; and the rows did not change: a stream of changes has none. (pipeline 19)"""
    import deltalake

    output = opened(tmp_path, "delta", ledger)
    for item in items(tmp_path, 3):
        put_all(output, [item], item.id)
    reader = deltalake.DeltaTable(tmp_path / "out/data")
    files, version = set(reader.file_uris()), reader.version()
    output.tables[""].tidy()
    (joined,) = output.tables[""].current()[1]
    assert sorted(reader.to_pyarrow_table()["row"].to_pylist()) == ["i0", "i1", "i2"]
    entry = (tmp_path / f"out/data/_delta_log/{version + 1:020}.json").read_text().splitlines()
    actions = [action for line in entry for name, action in json.loads(line).items() if name in ("add", "remove")]
    assert len(actions) == 4
    assert not any(action["dataChange"] for action in actions)
    table = output.tables[""]
    assert table.maintain(lambda form: form.vacuum(3600.0)) == []
    assert sorted(reader.to_pyarrow_table()["row"].to_pylist()) == ["i0", "i1", "i2"]
    for path in table.maintain(lambda form: form.vacuum(0.0)):
        table.files.remove(path)
    assert not [uri for uri in files if Path(uri).exists()]
    assert rows_of(tmp_path / "out/data", "delta") == ["i0", "i1", "i2"]
    assert joined.path in {one.path for one in table.current()[1]}


@pytest.mark.usefixtures("often")
def test_files_of_other_columns_are_joined(tmp_path: Path, ledger: Ledger) -> None:
    """Files from before a column came are joined with later ones; the column is NULL in their rows. (pipeline 20)"""
    output = opened(tmp_path, "delta", ledger, on_other_columns="add")
    first, second, third = items(tmp_path, 3)
    put_all(output, [first], "x")
    put_all(output, [second], "y", {"row": "string", "more": "string"})
    put_all(output, [third], "z")
    output.tables[""].tidy()
    assert len(output.tables[""].current()[1]) == 1
    found = read(tmp_path / "out/data", "delta").select(["item", "row", "more"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [("i0", "x", None), ("i1", "y", "y"), ("i2", "z", None)]


@pytest.mark.usefixtures("often")
def test_files_that_cannot_be_joined(tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """Where files cannot be joined the log says so, commits go on, and a later one joins them. (pipeline 32)"""
    output = opened(tmp_path, "delta", ledger)
    put_all(output, items(tmp_path, 2), "x")
    put_all(output, items(tmp_path, 3)[2:], "x")
    hidden = [path.rename(path.with_suffix(".away")) for path in (tmp_path / "out/data").glob("i*/*.parquet")]
    held: list[bool] = []
    with caplog.filtering(SimpleNamespace(filter=lambda record: held.append(output.tables[""]._lock.locked()) or True)):
        output.tables[""].tidy()
    assert "could not be kept small, a later commit tries again" in caplog.text
    assert held == [False]  # a handler is the user's code
    assert put_all(output, items(tmp_path, 4)[3:], "x") == [None]
    assert put_all(output, items(tmp_path, 5)[4:], "x") == [None]
    for path in hidden:
        path.rename(path.with_suffix(".parquet"))
    output.tables[""].tidy()
    assert len(output.tables[""].current()[1]) == 1
    assert rows_of(tmp_path / "out/data", "delta") == ["x"] * 5


def test_other_programs_commit_to_a_delta_table(tmp_path: Path, ledger: Ledger) -> None:
    """A commit of no pipeline, as of `OPTIMIZE` by Spark, is not taken for that of another run. (pipeline 18)"""
    import deltalake

    output = opened(tmp_path, "delta", ledger)
    put_all(output, items(tmp_path, 2), "x")
    deltalake.DeltaTable(tmp_path / "out/data").optimize.compact()
    put_all(output, items(tmp_path, 3)[2:], "x")
    assert not output.tables[""].maintain(lambda form: form.others_commit)
    put_all(output, items(tmp_path, 1, attempt=2), "new")
    assert rows_of(tmp_path / "out/data", "delta") == ["new", "x", "x"]


def test_rows_that_another_program_has_put_in(tmp_path: Path, ledger: Ledger) -> None:
    """Rows without an item stay when the file into which they were joined loses the rows of its only item. (pipeline
    17)"""
    import deltalake
    import pyarrow

    output = opened(tmp_path, "delta", ledger)
    put_all(output, items(tmp_path, 1), "x")
    nobody = pyarrow.array([None], pyarrow.string())
    theirs = pyarrow.table({"lane": nobody, "item": nobody, "row": ["theirs"]})
    deltalake.write_deltalake(tmp_path / "out/data", theirs, mode="append")
    deltalake.DeltaTable(tmp_path / "out/data").optimize.compact()
    put_all(output, items(tmp_path, 1, attempt=2), "new")
    assert rows_of(tmp_path / "out/data", "delta") == ["new", "theirs"]


def put_in_partition(output: TableOutput, item: Item, column: str, value: Any, kind: Kind, directory: str) -> None:
    """Put a row into the table in a partition, as Spark writes it: the directory's name has the column's value."""
    import pyarrow
    import pyarrow.parquet as parquet

    body, own, columns = io.BytesIO(), output.directory_of(item), {"lane": "string", "item": "string", column: kind}
    rows = {"lane": [item.lane], "item": [item.id], column: [value]}
    if not output.table_of(item).keeps_partition_columns:
        del rows[column]
    parquet.write_table(pyarrow.table(rows), body)
    files = output.table_of(item).files
    files.storage.put(files.place(f"{own}/{column}={directory}/part-0.parquet"), body.getvalue())
    output.note(Change(item, own, files.described(own, [column]), columns))
    written = output.put_out(item, output.places.output / "none", has_output=True)
    assert output.tables[""].commit([written.change], new_number()) == [None]


def test_a_table_partitioned_by_the_item(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """The rows of a later attempt replace those of an item whose files have no column `item`. (pipeline 17)"""
    output = opened(tmp_path, kind, ledger, partition_by=["item"])
    for item in (*items(tmp_path, 3), *items(tmp_path, 1, attempt=2)):
        put_in_partition(output, item, "item", item.id, "string", item.id)
    assert rows_of(tmp_path / "out/data", kind, "item") == ["i0", "i1", "i2"]


@pytest.mark.parametrize("value", ["2026-11-24 10:00:00", "2026-11-24 10:00:00.123456"])
def test_a_moment_stays_a_partition(tmp_path: Path, ledger: Ledger, value: str) -> None:
    """Rows that are written anew, since another item of their file was replaced, keep the text of their partition, as
    Delta has it: without a time zone. (pipeline 17)"""
    import deltalake

    output = opened(tmp_path, "delta", ledger, partition_by=["at"])
    for item in items(tmp_path, 3):
        put_in_partition(output, item, "at", None, "timestamp", quote(value))
    deltalake.DeltaTable(tmp_path / "out/data").optimize.compact()
    put_in_partition(output, *items(tmp_path, 1, attempt=2), "at", None, "timestamp", quote(value))
    assert rows_of(tmp_path / "out/data", "delta", "item") == ["i0", "i1", "i2"]
    newest = max((tmp_path / "out/data/_delta_log").glob("*.json")).read_text().splitlines()
    actions = [action for line in newest for name, action in json.loads(line).items() if name in ("add", "remove")]
    assert [action["partitionValues"] for action in actions] == [{"at": value}] * 3


def test_an_answer_that_is_lost(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """A commit that was made, and of which that was not heard, is not made twice. (pipeline 17)"""
    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 1), "x")
    table = output.tables[""]
    table._sleep = lambda seconds: None
    commit, calls = table._form.commit, []

    def unheard(*args: Any) -> None:
        calls.append(args)
        commit(*args)
        raise OSError("timed out")

    table._form.commit = unheard  # type: ignore[method-assign]
    assert put_all(output, items(tmp_path, 3)[1:], "y") == [None, None]
    assert len(calls) == 1
    assert rows_of(tmp_path / "out/data", kind) == ["x", "y", "y"]


def test_a_store_that_fails(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """A commit that fails is made again, after pauses; after the last one the error is one sentence."""
    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 1), "x")
    table, pauses = output.tables[""], list[float]()
    table._sleep = pauses.append
    commit = table._form.commit

    def failing(*args: Any) -> None:
        if len(pauses) < 2:
            raise OSError("503 Slow Down\nand more")
        commit(*args)

    table._form.commit = failing  # type: ignore[method-assign]
    put_all(output, items(tmp_path, 2)[1:], "y")
    assert pauses == [0.1, 0.5]
    pauses.clear()
    table._form.commit = lambda *args: (_ for _ in ()).throw(OSError("503 Slow Down\nand more"))  # type: ignore[method-assign]
    with pytest.raises(PipelineError, match=r"cannot commit to the table '.*out/data': 503 Slow Down$"):
        put_all(output, items(tmp_path, 3)[2:], "z")
    assert rows_of(tmp_path / "out/data", kind) == ["x", "y"]


def test_vacuum_finds_what_no_commit_names(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """The files of attempts that died are found, at once; those of the table stay, and replaced ones for a while.

    (pipeline 19)
    """
    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 2), "x")
    put_all(output, items(tmp_path, 1, attempt=2), "y")
    dead = items(tmp_path, 1, attempt=3)[0]
    put(output, dead, {"row": ["z"]}, {"lane": "string", "item": "string", "row": "string"})
    table = output.tables[""]
    assert table.maintain(lambda form: form.vacuum(3600.0)) == [f"{output.directory_of(dead)}/part-0.parquet"]
    assert rows_of(tmp_path / "out/data", kind) == ["x", "y"]


def test_a_table_partitioned_in_another_way(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """Other columns in `partition_by` than the table has are refused, with both."""
    put_all(opened(tmp_path, kind, ledger), items(tmp_path, 1), "x")
    with pytest.raises(StateMismatch, match=r"is partitioned by nothing, and output.partition_by says row"):
        opened(tmp_path, kind, ledger, partition_by=["row"])


def test_a_type_that_the_table_has_not(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """Iceberg has no integers of one or two bytes: such a column is written as one of four, also by later items."""
    import pyarrow

    output = opened(tmp_path, kind, ledger)
    found: dict[str, Kind] = {"lane": "string", "item": "string", "n": "short"}
    for item in items(tmp_path, 2):
        fit = output.tables[""].fit(found)
        stored = {"n": fit.casts.get("n", "short")}
        assert stored == {"n": "integer" if kind == "iceberg" else "short"}
        written = pyarrow.scalar(7, pyarrow.int32() if kind == "iceberg" else pyarrow.int16())
        assert put_all(output, [item], written, stored) == [None]


def test_columns_that_come_later(tmp_path: Path, kind: str, ledger: Ledger) -> None:
    """With `add` a new column is NULL in the rows before it; by default its item fails alone, and leaves no file.

    (pipeline 20)
    """
    output = opened(tmp_path, kind, ledger)
    put_all(output, items(tmp_path, 1), "x")
    (error,) = put_all(output, items(tmp_path, 2)[1:], "y", {"row": "string", "more": "string"})
    assert re.search(r"'more' \(string\) is unexpected; output.on_other_columns is 'refuse'", str(error))
    assert len(list((tmp_path / "out/data").glob("i*"))) == 1
    adding = opened(tmp_path, kind, ledger, on_other_columns="add")
    before = versions(tmp_path / "out/data", kind)
    assert put_all(adding, items(tmp_path, 3)[2:], "z", {"row": "string", "more": "string"}) == [None]
    assert versions(tmp_path / "out/data", kind) == before + (1 if kind == "iceberg" else 2)
    assert not adding.tables[""]._form.others_commit
    assert put_all(adding, items(tmp_path, 4)[3:], "w") == [None]
    assert rows_of(tmp_path / "out/data", kind) == ["w", "x", "z"]
    assert read(tmp_path / "out/data", kind)["more"].to_pylist().count(None) == 2


def test_killed_between_columns_and_rows(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies when a Delta table has a new column, and not the rows yet, leaves no row lost or doubled.

    (pipeline 20)
    """
    more: dict[str, Kind] = {"row": "string", "more": "string"}
    first, second = items(tmp_path, 2)
    output = opened(tmp_path, "delta", ledger, on_other_columns="add")
    put_all(output, [first], "x")
    with monkeypatch.context() as patch:
        patch.setattr("deltalake.DeltaTable.create_write_transaction", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            put_all(output, [second], "y", more)
    assert read(tmp_path / "out/data", "delta").select(["row", "more"]).to_pylist() == [{"row": "x", "more": None}]
    again = opened(tmp_path, "delta", ledger, on_other_columns="add")
    assert not again.is_published(second)
    assert put_all(again, [dataclasses.replace(second, attempt=2)], "y", more) == [None]
    assert rows_of(tmp_path / "out/data", "delta") == ["x", "y"]


def test_the_commands_for_tables(tmp_path: Path) -> None:
    """`vacuum` and `optimize` say what they did to each table, and that an output of files has none (pipeline 19)."""
    make_tree(tmp_path, LANES)
    text = '[lanes.big]\nfiles = "big/*.txt"\nformat = "text"\n[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n'
    (tmp_path / "files.toml").write_text(text)
    (tmp_path / "p.toml").write_text(f'{text}table = "delta"\n')
    runner = CliRunner()
    unborn = runner.invoke(pipeline, ["vacuum", str(tmp_path / "p.toml")])
    assert "this pipeline has not run yet" in str(unborn.exception)
    run = table_pipeline(tmp_path, [lane_of(tmp_path, "big")], "delta")
    run.run()
    (tmp_path / "out/data/i1-1-dead").mkdir()
    (tmp_path / "out/data/i1-1-dead/part-0.parquet").touch()
    said = runner.invoke(pipeline, ["vacuum", str(tmp_path / "p.toml")])
    assert said.output == f"{tmp_path}/out/data: removed 1 file that no commit names\n"
    assert not (tmp_path / "out/data/i1-1-dead").exists()
    assert runner.invoke(pipeline, ["optimize", str(tmp_path / "p.toml")]).output.endswith("files are 1 now\n")
    assert rows_of(tmp_path / "out/data", "delta") == [f"big-{place}" for place in range(LANES["big"])]
    none = runner.invoke(pipeline, ["optimize", str(tmp_path / "files.toml")])
    assert "the output has no tables; [output] table names a kind" in str(none.exception)


def test_the_name_of_a_catalog(tmp_path: Path, ledger: Ledger) -> None:
    """A catalog in SQL has the table by the catalog's name, which is ours to choose and `multiqueue` by default."""
    from pyiceberg.catalog import load_catalog

    uri = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.sqlite"}
    for name in ("multiqueue", "lake"):
        chosen = uri if name == "multiqueue" else {**uri, "name": name}
        output = output_in(tmp_path, "iceberg", catalog=chosen, path=str(tmp_path / name))
        for table in output.tables.values():
            table.claim("this one")
        put_all(output, items(tmp_path, 1), "row")
        catalog = load_catalog(name, **uri)
        assert catalog.list_tables("multiqueue") == [("multiqueue", "data")]
        catalog.close()
