"""A place in the configuration is local, or refused by its name."""

from __future__ import annotations

import bz2
import gzip
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from pipeline_parts_support import Place, Storage, local, place_of

from multiqueue.cli import main
from multiqueue.pipeline import ConfigError, load_config

PLACES = {
    "lanes.a.files": 'files = "{}"',
    "lanes.a.files.1": 'files = ["in/*", "{}"]',
    "lanes.a.directories": 'files = "*"\ndirectories = "{}"',
    "output.path": "",
    "output.dead_letters": "",
    "state.path": "",
}


def configuration(place: str, text: str) -> str:
    """A configuration that has this text at this place, and nothing else wrong."""
    lane = PLACES[place].replace("{}", text) or 'files = "in/*"'
    output, letters = (text if place == one else one for one in ("output.path", "output.dead_letters"))
    state = f'[state]\npath = "{text}"\n' if place == "state.path" else ""
    return (
        f'[lanes.a]\n{lane}\nformat = "text"\n[job]\nsql = "SELECT 1"\n'
        f'[output]\npath = "{output}"\ndead_letters = "{letters}"\n{state}'
    )


@pytest.mark.parametrize("command", ["plan", "run", "status", "retry"])
@pytest.mark.parametrize("place", PLACES)
def test_every_command_refuses_the_same_places(tmp_path: Path, place: str, command: str) -> None:
    """A place that is not local is refused by every command, wherever it stands, and nothing is made in its name."""
    path = tmp_path / "p.toml"
    path.write_text(configuration(place, "hdfs:/x"))
    asked = CliRunner().invoke(main, ["pipeline", command, str(path)])
    assert asked.exit_code == 2
    assert f"{place.removesuffix('.1')}: 'hdfs:/x' is a place in HDFS, which is out of reach; use " in asked.output
    assert [one.name for one in tmp_path.iterdir()] == ["p.toml"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "s3://b/x",
            "'s3://b/x' is a place in an object store, and a local one is needed here: PATH, ~/PATH or file:///",
        ),
        ("s3a://b/x", "a place in an object store"),
        ("S3://b/x", "a place in an object store"),
        ("gs://b/x", "a place in an object store"),
        ("abfss://c@a.dfs.core.windows.net/x", "a place in an object store"),
        ("wasbs://c@a/x", "a place in Azure's old storage, whose successor is abfss://"),
        ("s3:/x", "'s3:/x' names no bucket: one is s3://BUCKET/KEY"),
        ("hdfs:/x", "a place in HDFS"),
        ("hdfs://namenode:8020/x", "a place in HDFS"),
        ("dbfs:/x", "a place in the Databricks File System, which Databricks mounts at /dbfs"),
        ("https://host/x", "a place in another machine"),
        ("oss://b/x", "'oss://b/x' is a URL with a scheme that is not known, 'oss'"),
        ("file://host/x", "'file://host/x' names the host 'host'; a file on this machine is file:///PATH"),
        ("file:x", "'file:x' is not absolute"),
        ("", "an empty path is not a place"),
    ],
)
def test_what_is_not_local(text: str, said: str) -> None:
    """Each kind of place that is not reached is refused with its name, and with what is taken instead."""
    with pytest.raises(ValueError, match=r".") as caught:
        local(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("in/*.csv", "in/*.csv"),
        ("/in/x", "/in/x"),
        ("file:///in/a%20b?", "/in/a%20b?"),
        ("file:/in/x", "/in/x"),
        ("file://localhost/in/x", "/in/x"),
        ("FILE:///in/x", "/in/x"),
        ("~/x", "/home/of/us/x"),
        ("~", "/home/of/us"),
        ("a~/x", "a~/x"),
        ("12:30/x", "12:30/x"),
        ("day:monday/x", "day:monday/x"),
        ("./s3:/x", "./s3:/x"),
    ],
)
def test_what_is_local(monkeypatch: pytest.MonkeyPatch, text: str, path: str) -> None:
    """`file:` and `~` are what they are elsewhere, and a name with a colon is a name."""
    monkeypatch.setenv("HOME", "/home/of/us")
    assert local(text) == path


@pytest.mark.parametrize(
    ("text", "url", "spark_url"),
    [
        ("s3://b/k/*.csv", "s3://b/k/*.csv", "s3a://b/k/*.csv"),
        ("s3a://b/k/", "s3://b/k", "s3a://b/k"),
        ("S3N://b", "s3://b", "s3a://b"),
        ("gcs://b/a%20b?", "gs://b/a%20b?", "gs://b/a%20b?"),
        (
            "abfs://c@a.dfs.core.windows.net/x",
            "abfss://c@a.dfs.core.windows.net/x",
            "abfss://c@a.dfs.core.windows.net/x",
        ),
    ],
)
def test_what_is_in_a_store(text: str, url: str, spark_url: str) -> None:
    """An object has one text, however its scheme is spelled, and Spark is given the one that it knows."""
    place = place_of(text)
    assert (place.text, place.spark_url, place.is_local) == (url, spark_url, False)


def test_the_parts_of_a_place() -> None:
    """A bucket is one part, as `/` is; what lies below another place is told by parts, not by characters."""
    place = place_of("s3://b/k/a.csv.gz")
    assert (place.parts, place.name, place.suffix) == (("s3://b", "k", "a.csv.gz"), "a.csv.gz", ".gz")
    assert place.parent / "a.csv.gz" == place
    assert place.parent.parent.parent == Place("s3://b")
    assert place.is_below(Place("s3://b/k"))
    assert not Place("s3://bb/k").is_below(Place("s3://b"))
    assert Place("/a/b") / "c" == Place("/a/b/c")


def test_the_places_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output, the state, the dead letters and the lanes all take `~` and `file:`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in" / "acme").mkdir(parents=True)
    path = tmp_path / "p.toml"
    path.write_text(
        '[lanes.a]\ndirectories = "~/in/*"\nfiles = ["*", "file:///else/*"]\nformat = "text"\n[job]\nsql = "SELECT 1"\n'
        f'[output]\npath = "file://{tmp_path}/out"\ndead_letters = "~/dead"\n[state]\npath = "~/state/s.sqlite"\n'
    )
    config = load_config(path)
    (lane,) = config.lanes()
    assert (lane.name, lane.root, lane.globs) == ("acme", tmp_path / "in" / "acme", ("*", "/else/*"))
    assert (config.output, config.dead_letters.path) == (tmp_path / "out", tmp_path / "dead")
    assert config.state.path == tmp_path / "state" / "s.sqlite"


def test_two_sections_over_the_same_directories(tmp_path: Path) -> None:
    """Two formats in the same directories are two sections; what is said of their equal names says what to write."""
    (tmp_path / "inbox" / "acme").mkdir(parents=True)
    path = tmp_path / "p.toml"
    section = '[lanes.{0}]\ndirectories = "inbox/*"\nfiles = "*.{0}"\nformat = "{0}"\n'
    text = section.format("csv") + section.format("json") + '[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n'
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path).lanes()
    assert str(caught.value) == (
        f"lanes.json.directories: the directory '{tmp_path}/inbox/acme' makes a lane 'acme', a name that lanes.csv has "
        'already; give lanes.json other ones, name = "{directory}-json", or narrow its glob'
    )
    path.write_text(text.replace('files = "*.json"', 'files = "*.json"\nname = "{directory}-json"'))
    assert [(lane.name, lane.section) for lane in load_config(path).lanes()] == [("acme", "csv"), ("acme-json", "json")]


@pytest.mark.parametrize("first", ["acme", "by_customer"])
def test_a_directory_with_the_name_of_a_section(tmp_path: Path, first: str) -> None:
    """Whichever of the two stands first, the section with the directories is the one that is told to change."""
    (tmp_path / "inbox" / "acme").mkdir(parents=True)
    sections = {
        "acme": '[lanes.acme]\nfiles = "x/*"\nformat = "text"\n',
        "by_customer": '[lanes.by_customer]\ndirectories = "inbox/*"\nfiles = "*"\nformat = "text"\n',
    }
    path = tmp_path / "p.toml"
    both = sections.pop(first) + "".join(sections.values())
    path.write_text(both + '[job]\nsql = "SELECT 1"\n[output]\npath = "out"\n')
    with pytest.raises(ConfigError, match=r"lanes\.by_customer\.directories: .*'acme', a name that is that of the sec"):
        load_config(path).lanes()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('name = "x"', "3: lanes.a.name: must have {directory} in it"),
        ('name = "{directory}"', "1: lanes.a: name needs directories"),
    ],
)
def test_a_name_that_is_none(tmp_path: Path, line: str, said: str) -> None:
    """A name that would be that of every directory, or of a lane that has none, is an error."""
    path = tmp_path / "p.toml"
    text = configuration("lanes.a.files", "in/*").replace("format", f"{line}\nformat")
    path.write_text(text.replace('files = "in/*"', 'files = "in/*"', 1))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert said in str(caught.value)


def test_the_start_of_a_file(tmp_path: Path) -> None:
    """The first bytes are those that Spark reads: unpacked where the name says so, and None where only Spark can."""
    (tmp_path / "a.csv").write_bytes(b"head\nrow\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"head\nrow\n"))
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(b"head\nrow\n"))
    (tmp_path / "a.csv.zst").write_bytes(b"?")
    for name in ("a.csv", "a.csv.gz", "a.csv.bz2"):
        assert Storage().start_of(Place(f"{tmp_path}/{name}"), 4) == b"head"
    assert Storage().start_of(Place(f"{tmp_path}/a.csv.zst"), 4) is None
    for bad in (gzip.compress(os.urandom(100))[:12], b"no gzip"):
        (tmp_path / "a.csv.gz").write_bytes(bad)
        with pytest.raises(OSError, match=r"ended before|Not a gzipped file"):
            Storage().start_of(Place(f"{tmp_path}/a.csv.gz"), 4)
