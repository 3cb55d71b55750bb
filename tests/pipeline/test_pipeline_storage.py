"""What lies at a place is asked for in the same words, whether it is a local file or an object of a store."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from emulators_support import bucket_maker
from pipeline_parts_support import Lane, Place, Storage, StorageSection, _executor_read, _scan, met, place_of, unchanged
from pipeline_parts_support import storage as storage_module
from s3_support import KEYS, Answer, Ask, Store, between

from multiqueue.pipeline import ConfigError, FileSeen, Item, JobError, PipelineError, Unprepared, parse_config

BODY = b"one\ntwo\r\nthree"


@pytest.fixture(params=["local", "s3", "gs", "abfss"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Storage, Place]]:
    """Somewhere with an object `in/a.txt`, a packed one, and an empty one."""
    objects = {"in/a.txt": BODY, "in/b.txt.gz": gzip.compress(BODY), "in/deep/c.txt": b""}
    if request.param == "local":
        for key, body in objects.items():
            (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / key).write_bytes(body)
        yield Storage(), Place(str(tmp_path))
    else:
        bucket = bucket_maker(request, request.param)(objects)
        yield Storage({"s": StorageSection(**bucket.section)}), Place(bucket.url)


def test_lines_of_pieces_of_files_and_objects(place: tuple[Storage, Place]) -> None:
    """A task finds the lines of its piece in an object of a store as in a file. (pipeline 33)"""
    pytest.importorskip("pyarrow")
    storage, root = place
    one = root / "in/a.txt"
    protocol, arguments, key = ("", {}, one.text) if one.is_local else storage.fsspec(one)
    file = _executor_read.File(None if one.is_local else "s", key, one.text, len(BODY))
    reading = _executor_read.Reading("lines", stores={"s": (protocol, arguments)})
    for cut in range(1, len(BODY)):
        pieces = [replace(file, end=cut), replace(file, start=cut)]
        batches = [batch for piece in pieces for batch in _executor_read._texts([piece], reading)]
        assert [text for batch in batches for text in batch.column("value").to_pylist()] == ["one", "two", "three"]


def test_bytes_of_files_and_objects(place: tuple[Storage, Place]) -> None:
    """Size, first bytes and lines are the same of a file and of an object, packed or empty."""
    storage, root = place
    assert storage.status(root / "in/a.txt").size_bytes == len(BODY)
    assert storage.start_of(root / "in/a.txt", 5) == storage.start_of(root / "in/b.txt.gz", 5) == b"one\nt"
    assert storage.start_of(root / "in/a.txt", 500) == BODY
    assert storage.start_of(root / "in/deep/c.txt", 5) == b""
    assert list(storage.lines_of(root / "in/b.txt.gz")) == [(0, b"one"), (4, b"two"), (9, b"three")]
    with storage.open(root / "in/a.txt") as stream:
        stream.seek(4)
        assert stream.read(3) == b"two"


@pytest.mark.parametrize("later", [BODY + b"four", b"", BODY.upper(), None], ids=["grown", "empty", "equal", "gone"])
def test_a_file_that_changes_during_a_run(place: tuple[Storage, Place], later: bytes | None) -> None:
    """A file is read as it is when its item begins; one that changes from then on is told, and read once more.

    One that is deleted counts as read if the job has ended well. (pipeline 13)
    """
    storage, root = place
    at = root / "in/a.txt"

    def change() -> None:
        if place[1].is_local:
            os.utime(at.text, ns=(1, 1))  # the clock of a disk may stand still between two writes
        storage.remove(at) if later is None else storage.put(at, later)

    status = storage.status(at)
    listed = Item("i", "lane", (FileSeen(at.text, status.size_bytes, status.mtime_ns),), Path("/"))
    begun = replace(listed, files=met(listed, storage))
    assert begun == listed
    unchanged(begun, storage)
    change()
    if later is None:
        unchanged(begun, storage)
        with pytest.raises(JobError, match="was deleted before it was read"):
            unchanged(begun, storage, was_read=False)
        with pytest.raises(JobError, match=r"cannot read .*: No such file or directory"):
            met(listed, storage)
        return
    for was_read in (True, False):
        with pytest.raises(PipelineError, match="has changed while it was read"):
            unchanged(begun, storage, was_read=was_read)
    (seen,) = met(listed, storage)
    assert seen.size_bytes == len(later)
    unchanged(replace(listed, files=(seen,)), storage)


def test_listings(place: tuple[Storage, Place]) -> None:
    """A listing has the files with their sizes, and directories without."""
    storage, root = place
    found = {one.name: one for page in storage.pages(root / "in") for one in page}
    assert {name: one.status and one.status.size_bytes for name, one in found.items()} == {
        "a.txt": len(BODY),
        "b.txt.gz": storage.status(root / "in/b.txt.gz").size_bytes,
        "deep": None,
    }
    assert found["a.txt"].place == root / "in/a.txt"
    assert found["a.txt"].status == storage.status(root / "in/a.txt")


def test_what_is_not_there(place: tuple[Storage, Place]) -> None:
    """A missing file or object is a FileNotFoundError, and does not exist; a directory does."""
    storage, root = place
    with pytest.raises(FileNotFoundError):
        storage.status(root / "in/x")
    with pytest.raises(FileNotFoundError):
        storage.start_of(root / "in/x", 1)
    assert not storage.exists(root / "in/x")
    assert storage.exists(root / "in/deep")
    assert storage.exists(root / "in/a.txt")


def test_written_and_removed(place: tuple[Storage, Place]) -> None:
    """What is put is there as a whole, replaces what was there, and can be removed twice."""
    storage, root = place
    letter = root / "out/lane=a/i.json"
    for body in (b"1", b"22"):
        storage.put(letter, body)
        assert storage.start_of(letter, 9) == body
    storage.remove(letter)
    storage.remove(letter)
    assert not storage.exists(letter)


def test_an_object_written_twice_within_a_second(s3_store: Store) -> None:
    """An object of the same size and second with another content has another version, and the same second."""
    bucket = s3_store.bucket({"a": b"1"})
    storage, place = Storage({"s": StorageSection(**s3_store.section(bucket))}), Place(f"s3://{bucket}/a")
    before = storage.status(place)
    s3_store.client.put_object(Bucket=bucket, Key="a", Body=b"2")
    after = storage.status(place)
    assert after.mtime_ns % 10**9 != before.mtime_ns % 10**9  # whichever second it was
    assert abs(after.mtime_ns - before.mtime_ns) < 60e9


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_objects_come_in_pages(request: pytest.FixtureRequest, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's listing is read page by page: no more than a page of it is in memory."""
    monkeypatch.setattr(storage_module, "_PAGE", 2)
    bucket = bucket_maker(request, scheme)({f"in/{name}": b"" for name in "abcdef"})
    storage = Storage({"s": StorageSection(**bucket.section)})
    pages = [[entry.name for entry in page] for page in storage.pages(Place(f"{bucket.url}/in"))]
    assert sorted(name for page in pages for name in page) == list("abcdef")
    assert len(pages) > 2
    assert max(map(len, pages)) <= 2


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
@pytest.mark.parametrize("after", ["", "b", "b.", "b/", "c", "e", "zz"])
def test_a_listing_begins_behind_a_key(
    request: pytest.FixtureRequest, scheme: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing has what is behind a key, in the order of keys: a directory is where its slash is."""
    monkeypatch.setattr(storage_module, "_PAGE", 2)
    keys = ["a", "b", "b-1", "b/x", "b0", "c", "d/y", "e"]
    bucket = bucket_maker(request, scheme)({f"in/{name}": b"" for name in keys})
    storage = Storage({"s": StorageSection(**bucket.section)})
    found = [one.key for page in storage.pages(Place(f"{bucket.url}/in"), after) for one in page]
    expected = [key for key in ("a", "b", "b-1", "b/", "b0", "c", "d/", "e") if key > after]
    if scheme == "gs":  # the pages of its emulator have an order of their own, and tell directories again
        found, expected = sorted(set(found)), sorted(expected)
    assert found == expected


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_many_objects_of_one_page_are_asked_for_by_a_listing(
    request: pytest.FixtureRequest, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the versions that a request for each gives; those that lie apart or are gone are asked for alone."""
    monkeypatch.setattr(storage_module, "_PAGE", 8)
    monkeypatch.setattr(storage_module, "_WORTH_A_PAGE", 4)
    numbers = range(30)
    objects = {f"in/{number:02}.txt": bytes(number) for number in numbers}
    objects |= {f"in/far-{number}/{other}.txt": b"" for number in range(3) for other in range(6)}
    bucket = bucket_maker(request, scheme)(objects)
    storage = Storage({"s": StorageSection(**bucket.section)})
    wanted = [Place(f"{bucket.url}/{key}") for key in (*reversed(objects), "in/07.txt.gone", "in/99.txt", "no/x")]
    alone = {place: storage.each(storage.status, [place], is_local=False)[0] for place in wanted}
    asked: list[Place] = []
    status = Storage.status
    monkeypatch.setattr(Storage, "status", lambda self, place: asked.append(place) or status(self, place))
    found = storage.statuses(wanted)
    assert list(map(repr, found)) == [repr(alone[place]) for place in wanted]
    assert all(isinstance(one, FileNotFoundError) for one in found[-3:])
    if scheme != "abfss":
        assert len(asked) < len(wanted) / 2


@pytest.mark.parametrize("answer", ["", "the same page"])
def test_an_answer_that_is_no_page_of_a_listing(s3_store: Store, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty answer is not the end of a listing, and a page that comes again is an error. (pipeline 14)"""
    monkeypatch.setattr(storage_module, "_PAGE", 2)
    bucket = s3_store.bucket({f"in/{number}": b"" for number in range(9)})
    pages: list[Answer] = []

    def wrong(ask: Ask) -> Ask:
        def asked(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            pages.append(ask(method, path, headers, body))
            return pages[-1] if len(pages) < 2 else pages[0] if answer else (200, [], b"")

        return asked

    with between(s3_store.endpoint, translated=wrong) as endpoint:
        storage = Storage({"s": StorageSection(**{**s3_store.section(bucket), "endpoint": endpoint})})
        passed_over = _scan.PassedOver()
        lane = Lane("a", Place(f"s3://{bucket}"), ("in/*",), format="paths")
        found = {seen.path for seen in _scan.scan(lane, Path("/"), passed_over, storage=storage)}
    assert found == {f"s3://{bucket}/in/{number}" for number in range(2)}
    why = "OSError: the answer is no page of a listing, or the same page again"
    assert passed_over.unread == f"'s3://{bucket}/in': directory not readable ({why})"


def test_a_key_that_is_read_as_another_is_told(s3_store: Store) -> None:
    """s3fs would read the object `a`: the other key is input that cannot be read, and not in an item. (pipeline 14)"""
    bucket = s3_store.bucket({"in/a": b"one", "in/a?versionId=1": b"two", "in/a?versionId=1/b": b"three"})
    storage = Storage({"s": StorageSection(**s3_store.section(bucket))})
    other = Place(f"s3://{bucket}/in/a?versionId=1")
    assert storage.start_of(other, 9) == b"one"
    passed_over = _scan.PassedOver()
    lane = Lane("a", Place(f"s3://{bucket}"), ("in/**",), format="paths")
    found = [seen.path for seen in _scan.scan(lane, Path("/"), passed_over, storage=storage)]
    assert found == [f"s3://{bucket}/in/a"]
    assert passed_over.unread is not None
    assert "keys with '?versionId=' are not read" in passed_over.unread
    assert not _scan.fits(lane, other)
    assert _scan.fits(replace(lane, root=Path("/")), Place("/in/a?versionId=1"))


def test_a_store_that_lists_nothing_is_asked_for_each(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where listings are not allowed, the versions of objects are asked for one by one."""

    def refused(self: Storage, place: Place, after: str = "") -> Iterator[list[object]]:
        raise PermissionError(13, "AccessDenied")

    bucket = s3_store.bucket({f"{number:02}": b"1" for number in range(30)})
    storage = Storage({"s": StorageSection(**s3_store.section(bucket))})
    places = [Place(f"s3://{bucket}/{number:02}") for number in range(30)]
    expected = storage.statuses(places)
    monkeypatch.setattr(Storage, "pages", refused)
    assert storage.statuses(places) == expected


def test_a_task_asks_once_for_a_small_object(s3_store: Store) -> None:
    """The executors' Python makes one request for each small object, and none for an empty one."""
    pytest.importorskip("pyarrow")
    bucket = s3_store.bucket({"a": BODY, "b": b"", "c": b"four"})
    sent: list[str] = []

    def noted(ask: Ask) -> Ask:
        def answer(*request: Any) -> Answer:
            sent.append(request[0])
            return ask(*request)

        return answer

    with between(s3_store.endpoint, translated=noted) as endpoint:
        storage = Storage({"s": StorageSection(**{**s3_store.section(bucket), "endpoint": endpoint})})
        sizes = {"a": len(BODY), "b": 0, "c": 4}
        files = [_executor_read.File("s", f"{bucket}/{key}", key, size) for key, size in sizes.items()]
        protocol, arguments, _ = storage.fsspec(Place(f"s3://{bucket}"))
        reading = _executor_read.Reading("lines", stores={"s": (protocol, arguments)})
        texts = [text for batch in _executor_read._texts(files, reading) for text in batch.column("value").to_pylist()]
    assert texts == ["one", "two", "three", "four"]
    assert sent == ["GET", "GET"]


def test_a_task_reads_little_behind_its_piece(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a large object are fetched about once, not each with all that comes after it."""
    pytest.importorskip("pyarrow")
    import s3fs.core

    monkeypatch.setattr(_executor_read, "_PIECE_BYTES", 1 << 16)
    line, count, size = b"x" * 63 + b"\n", 1 << 14, 1 << 20
    bucket = s3_store.bucket({"a": line * count})
    protocol, arguments, _ = Storage({"s": StorageSection(**s3_store.section(bucket))}).fsspec(Place(f"s3://{bucket}"))
    ends = [size // 4, size // 2, size // 4 * 3, None]
    files = [
        _executor_read.File("s", f"{bucket}/a", "a", size // 4, start=size // 4 * place, end=end)
        for place, end in enumerate(ends)
    ]
    fetched: list[int] = []
    fetch = s3fs.core._fetch_range

    def counted(fs: object, bucket: str, key: str, version: object, start: int, end: int, **more: object) -> bytes:
        fetched.append(end - start)
        return bytes(fetch(fs, bucket, key, version, start, end, **more))

    monkeypatch.setattr(s3fs.core, "_fetch_range", counted)
    reading = _executor_read.Reading("lines", encoding="utf-8", stores={"s": (protocol, arguments)})
    assert sum(batch.num_rows for batch in _executor_read._texts(files, reading)) == count
    assert sum(fetched) < 1.5 * size


def test_the_section_of_a_place() -> None:
    """The section with the longest URL above a place is its own; others have what the environment says."""
    sections = {
        "all": StorageSection(url="s3://b", key="1"),
        "part": StorageSection(url="s3a://b/part/", key="2"),
    }
    storage = Storage(sections)
    assert storage.section(Place("s3://b/x")) is sections["all"]
    assert storage.section(Place("s3://b/part/x")) is sections["part"]
    assert storage.section(Place("s3://bb/x")) is None
    assert storage.fsspec(Place("s3://b/part/x")) == ("s3", {"key": "2"}, "b/part/x")
    assert storage.fsspec(place_of("abfss://c@acc.dfs.core.windows.net/x")) == ("abfs", {"account_name": "acc"}, "c/x")


def config_of(storage: dict[str, object]) -> None:
    lanes = {"a": {"files": "*", "format": "text"}}
    values = {"lanes": lanes, "job": {"sql": "SELECT 1"}, "output": {"path": "out"}, "storage": {"lake": storage}}
    parse_config(values, Path("/"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"url": "in"}, "storage.lake.url: 'in' is local; [storage] is for stores"),
        ({"url": "s3://b", "account": "x"}, "storage.lake: account means nothing to s3://, which takes "),
        ({"url": "gs://b", "key": "x"}, "storage.lake: key means nothing to gs://"),
        (
            {"url": "s3://b", "key": "${NOT_SET_HERE}"},
            "storage.lake.key: there is no environment variable NOT_SET_HERE",
        ),
    ],
)
def test_a_section_that_is_wrong(section: dict[str, object], said: str) -> None:
    """What a section of a store cannot mean is refused by its name."""
    with pytest.raises(ConfigError) as caught:
        config_of(section)
    assert said in str(caught.value)


def test_an_endpoint_that_is_not_azures() -> None:
    """A section for abfss may name an endpoint, and the account is the one in the URL."""
    url = "abfss://lake@house.dfs.core.windows.net"
    section = StorageSection(url=url, endpoint="http://127.0.0.1:1/house", secret="c2VjcmV0")
    assert section.fsspec_arguments() == {
        "connection_string": "DefaultEndpointsProtocol=http;AccountName=house;BlobEndpoint=http://127.0.0.1:1/house;"
        "AccountKey=c2VjcmV0"
    }
    assert StorageSection(url=url, secret="c2VjcmV0").fsspec_arguments() == {"account_key": "c2VjcmV0"}


def test_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`${NAME}` stands for a variable of the environment."""
    monkeypatch.setenv("THE_SECRET", "x" * 20)
    assert StorageSection(url="s3://b", secret="${THE_SECRET}").secret == "x" * 20


def test_secrets_are_not_shown(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a section nor an error of its store shows a secret."""
    bucket = s3_store.bucket()
    section = StorageSection(**{**s3_store.section(bucket), "options": {"username_": "hidden-in-options"}})
    assert not any(secret in repr(section) for secret in (KEYS["key"], KEYS["secret"], "hidden-in-options"))
    storage = Storage({"s": section})

    def refuse(place: Place) -> None:
        raise RuntimeError(f"{KEYS['key']} with {KEYS['secret']} and hidden-in-options is not known")

    monkeypatch.setattr(storage, "filesystem", refuse)
    with pytest.raises(OSError, match=r"\*\*\* with \*\*\* and \*\*\* is not known"):
        storage.status(Place(f"s3://{bucket}/a"))


def test_a_store_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place in a store whose library is not installed is refused with the extra that has it."""
    found = import_module("fsspec.registry")._registry  # by another test, it may be
    monkeypatch.delitem(found, "gs", raising=False)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(Unprepared, match=r"a place in gs:// needs gcsfs: pip install 'blocking-multiqueue\[gs\]'"):
        Storage().status(Place("gs://b/x"))
