"""The configuration file: what it means, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_parts_support import Places

from multiqueue.pipeline import ConfigError, load_config

GOOD = """\
[lanes.eu]
files = "eu/*.csv"
format = "csv"
[job]
sql = "SELECT * FROM input"
[output]
path = "out"
"""


def load(tmp_path: Path, text: str) -> str:
    """The complaint about this file, without its path."""
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).replace(f"{path}:", "").replace(str(path), "FILE")


def test_defaults(tmp_path: Path) -> None:
    """A short file is enough: one lane, a job, an output; the state lies in the output."""
    path = tmp_path / "p.toml"
    path.write_text(GOOD)
    config = load_config(path)
    (lane,) = config.lanes()
    assert (lane.name, lane.priority, lane.capacity, lane.weight, lane.target_s) == ("eu", 0, 16, 1, 10.0)
    assert config.output == tmp_path / "out"
    assert config.state.path == tmp_path / "out" / "_multiqueue" / "state.sqlite"
    assert config.settings.retry.attempts == 3


def test_a_lane_per_directory(tmp_path: Path) -> None:
    """`directories` makes a lane of each directory, named after it, with the section's settings."""
    for name in ("acme", "umbrella", "tmp"):
        (tmp_path / "tenants" / name).mkdir(parents=True)
    (tmp_path / "tenants" / "a file").touch()
    path = tmp_path / "p.toml"
    head = '[lanes.t]\ndirectories = "tenants/*"\nexclude = "tmp"\nweight = 3\n'
    path.write_text(GOOD.replace("[lanes.eu]\n", head))
    lanes = load_config(path).lanes()
    assert [(lane.name, lane.root, lane.weight) for lane in lanes] == [
        ("acme", tmp_path / "tenants" / "acme", 3),
        ("umbrella", tmp_path / "tenants" / "umbrella", 3),
    ]


def test_the_output_is_never_input(tmp_path: Path) -> None:
    """Wherever the output lies, also around the input, its own directories are not scanned."""
    (tmp_path / "here").mkdir()
    path = tmp_path / "here" / "p.toml"
    path.write_text(GOOD.replace('"out"', '"../x/../here"'))
    written = {place.path for place in load_config(path).written}
    assert written >= {tmp_path / "here" / "data", tmp_path / "here" / "_multiqueue"}


@pytest.mark.parametrize("glob", ["out/data/**/*.csv", "out/corrupt/x/*", "./in/../out/failed/*", "out/_multiqueue/*"])
def test_a_lane_over_the_own_output(tmp_path: Path, glob: str) -> None:
    """A glob that starts in what the pipeline writes is an error: a run would read what the last one has put out."""
    said = load(tmp_path, GOOD.replace("eu/*.csv", glob))
    assert said == f"2: lanes.eu.files: {glob!r} is what this pipeline writes; a step reads what lanes have put out"
    path = tmp_path / "p.toml"
    path.write_text(GOOD.replace("eu/*.csv", "out/eu/*.csv"))
    assert load_config(path)  # beside it there may be input, and below dead letters that are elsewhere
    path.write_text(GOOD + 'dead_letters = "."\n')
    assert load_config(path)


def test_two_lanes_of_one_name(tmp_path: Path) -> None:
    """A directory that would make a lane that exists already is an error that names both."""
    (tmp_path / "tenants" / "eu").mkdir(parents=True)
    path = tmp_path / "p.toml"
    path.write_text(GOOD + '[lanes.t]\ndirectories = "tenants/*"\nfiles = "*"\nformat = "text"\n')
    with pytest.raises(ConfigError, match=r"lanes\.t\.directories: the directory .*tenants/eu' makes a lane 'eu'"):
        load_config(path).lanes()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('format = "csv"', 'fromat = "csv"', "3: lanes.eu.fromat: unknown key; did you mean 'format'?"),
        ('format = "csv"', 'format = "cvs"', "not 'cvs'; did you mean 'csv'?"),
        ('format = "csv"', 'format = "csv"\ncapacity = 0', "4: lanes.eu.capacity: must be at least 1, not 0"),
        ('format = "csv"', 'format = "csv"\nweight = "2"', "4: lanes.eu.weight: must be a whole number, not '2'"),
        (
            'format = "csv"',
            'format = "csv"\nbatch = 99999',
            '4: lanes.eu.batch: must be "auto" or a number of files from 1 to 10000, not 99999',
        ),
        ('format = "csv"', 'format = "csv"\ndirectories = "**"', "4: lanes.eu.directories: `**` is not possible here"),
        ('files = "eu/*.csv"', "files = 7", "2: lanes.eu.files: must be a string or an array of strings, not 7"),
        ('files = "eu/*.csv"', "files = []", "2: lanes.eu.files: must not be empty"),
        ('files = "eu/*.csv"\n', "", "1: lanes.eu: give either files = "),
        ("[lanes.eu]", '[lanes."e.u"]\ncolor = 1', '2: lanes."e.u".color: unknown key; known are after, after_delay'),
        ('sql = "SELECT * FROM input"', "", "4: job: give either sql"),
        ('sql = "SELECT * FROM input"', 'python = "f.py"', "5: job.python: must be \"module:function\", not 'f.py'"),
        ('path = "out"', 'path = "s3://b/out"', "6: output: path 's3://b/out' is in a store, which cannot"),
        ("[output]", "[ouput]", "6: ouput: unknown key; did you mean 'output'?"),
        ("[output]", "[retry]\nbackoff = -1\n[output]", "7: retry.backoff: must be at least 0, not -1"),
        ("[output]", '[spark]\nmaster="a"\nremote="b"\n[output]', "6: spark: master and remote exclude each other"),
        ('sql = "SELECT * FROM input"', 'sql = ""', "5: job.sql: must not be empty"),
        ('format = "csv"', 'format = "csv"\nschema = ""', "4: lanes.eu.schema: must not be empty"),
        ('format = "csv"', 'format = "csv"\nexclude = "a/*"', "in which no '/' can be, not 'a/*'"),
        (
            'format = "csv"',
            'format = "csv"\nbatch = true',
            'must be "auto" or a number of files from 1 to 10000, not True',
        ),
        ('"out"', '"out"\npartition_by = ["x", "X"]', "8: output.partition_by: names 'x' twice"),
        (
            '"out"',
            '"out"\npartition_by = ["Lane"]',
            "6: output: partition_by: the rows are in directories by lane already",
        ),
        ('"out"', '"out"\ntable = "iceberg"\nname = "x"', "must be \"NAMESPACE.TABLE\", not 'x'"),
        ('"out"', '"out"\ndead_letters = "out/data"', "/out/data' is where the rows are; name a place beside them"),
        ("[output]", '[state]\npath = "out/steps/x"\n[output]', "/out/steps/x' is where the rows are; name a place"),
        ("[output]", '[state]\nschema = "x"\n[output]', "6: state: schema needs url; a file has none"),
        (
            "[output]",
            '[storage.a]\nurl = "s3://b"\n[storage.b]\nurl = "s3a://b/"\n[output]',
            "storage: a and b are both for 's3://b'; keep one",
        ),
        ('[job]\nsql = "SELECT * FROM input"\n', "", "job: missing; a [job] table has the keys sql, python"),
        ("[job]", "[job", "line 4, column 5: not TOML: expected"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    """Each mistake is told with its line, its key, and what would be right."""
    assert complaint in load(tmp_path, GOOD.replace(old, new))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Three mistakes are three lines, in the order of the file."""
    text = GOOD.replace("[job]", "capacity = 0\n[job]\nscala = 1").replace('path = "out"', "path = 3")
    assert [line.split(":")[0] for line in load(tmp_path, text).splitlines()] == ["4", "6", "9"]


def test_a_table_inside_a_string(tmp_path: Path) -> None:
    """A line `[x]` in a query over several lines is no table: mistakes below it keep their own lines."""
    query = 'sql = """\nSELECT *\n[output]\npath = 1\nFROM input"""'
    text = GOOD.replace('sql = "SELECT * FROM input"', query).replace('path = "out"', "path = 3")
    assert load(tmp_path, text).startswith("11: output.path: must be a string, not 3")


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """A file that an editor has begun with a byte order mark is read as one without."""
    path = tmp_path / "p.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert [lane.name for lane in load_config(path).lanes()] == ["eu"]


def test_a_name_in_another_script(tmp_path: Path) -> None:
    """A lane is named after a directory of any script; a name that fits into no directory of the output is refused."""
    section = '[lanes.t]\ndirectories = "tenants/*/*"\nfiles = "*"\nformat = "text"\n'
    (tmp_path / "tenants" / "x" / ("漢" * 80)).mkdir(parents=True)
    path = tmp_path / "p.toml"
    path.write_text(GOOD + section)
    config = load_config(path)
    (_, lane) = config.lanes()
    Places(tmp_path / "out").of_lane(lane.name).mkdir(parents=True)
    (tmp_path / "tenants" / ("漢" * 40) / ("漢" * 80)).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"lanes\.t: the lane '漢+/漢+' has too long a name .* 250 bytes; shorten it"):
        config.lanes()


def test_an_empty_array_leaves_nothing_out(tmp_path: Path) -> None:
    """A default can be written: `exclude = []` leaves no name out."""
    path = tmp_path / "p.toml"
    path.write_text(GOOD.replace('format = "csv"', 'format = "csv"\nexclude = []'))
    assert load_config(path).lanes()[0].exclude == ()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is one sentence."""
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file or directory"):
        load_config(tmp_path / "none.toml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """A file in another encoding is one sentence."""
    (tmp_path / "p.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8, as TOML must be"):
        load_config(tmp_path / "p.toml")
