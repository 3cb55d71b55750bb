"""Small objects of S3, asked for without most of its library: the same bytes, and the library where that fails."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipeline_parts_support import (
    Inputs,
    Lane,
    Place,
    Reading,
    SmallObjects,
    SparkWork,
    Storage,
    StorageSection,
    _executor_read,
    contents_of,
)
from s3_support import KEYS, Answer, Ask, Store, between

from multiqueue.pipeline import FileSeen, Item, PipelineError

NAMES = ("plain.csv", "a b+c.csv", "100%41 é ~!*'().csv", "q=1&x#y?z.csv", "dt=2026-01-01/a:b.csv", "@;,$.csv")


class Asked:
    """A proxy's part: notes what is asked for, checks each signature, and may answer by itself."""

    def __init__(self, answer: Callable[[str], int | None] = lambda path: None) -> None:
        self.gets: list[str] = []
        self.signed: list[str] = []
        self.answer = answer

    def __call__(self, ask: Ask) -> Ask:
        def told(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            self.gets.append(path)
            if (status := self.answer(path)) is not None:
                return status, [], b""
            given = re.search("Signature=(.*)", headers["Authorization"])
            assert given is not None
            assert given[1] == signature(method, path, headers)
            self.signed = re.split("[=,;]", headers["Authorization"].partition("SignedHeaders=")[2])
            return ask(method, path, headers, body)

        return told


def signature(method: str, path: str, headers: dict[str, str]) -> str:
    """What botocore would sign such a request with."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signed = re.search("SignedHeaders=([^,]*)", headers["Authorization"])
    assert signed is not None
    kept = {name: value for name, value in headers.items() if name.lower() in signed[1].split(";")}
    auth = S3SigV4Auth(Credentials(KEYS["key"], KEYS["secret"]), "s3", KEYS["region"])
    request = AWSRequest(method, f"http://{headers['Host']}{path}", kept)
    request.context["timestamp"] = headers["X-Amz-Date"]
    return str(auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request))


def objects_of(store: Store, bucket: str, endpoint: str, **more: Any) -> SmallObjects:
    section = {**store.section(bucket), "endpoint": endpoint, **more}
    return Storage({"s": StorageSection(**section)})._objects(Place(f"s3://{bucket}"))[0]


def calls_of_library(objects: SmallObjects) -> list[str]:
    """The objects that are read by the library from now on."""
    calls: list[str] = []
    read = objects.fs.cat_file
    objects.fs.cat_file = lambda path, **more: calls.append(path) or read(path, **more)
    return calls


def test_names_of_objects(s3_store: Store) -> None:
    """An object of any name is read by one request, which is signed as botocore signs."""
    bucket = s3_store.bucket({name: name.encode() * 9 for name in NAMES})
    asked = Asked()
    with between(s3_store.endpoint, translated=asked) as endpoint:
        objects = objects_of(s3_store, bucket, endpoint)
        calls = calls_of_library(objects)
        for name in NAMES:
            assert objects.start_of(f"{bucket}/{name}", 10_000) == name.encode() * 9
            assert objects.start_of(f"{bucket}/{name}", 7) == (name.encode() * 9)[:7]
    assert calls == []
    assert len(asked.gets) == 2 * len(NAMES)


def test_an_object_that_is_gone(s3_store: Store) -> None:
    """The library says that there is no such object; others are read without it still."""
    bucket = s3_store.bucket({"a": b"one"})
    objects = objects_of(s3_store, bucket, s3_store.endpoint)
    calls = calls_of_library(objects)
    with pytest.raises(FileNotFoundError):
        objects.start_of(f"{bucket}/gone", 10)
    assert objects.start_of(f"{bucket}/a", 10) == b"one"
    assert calls == [f"{bucket}/gone"]


@pytest.mark.parametrize(("status", "by_library"), [(503, 1), (403, 2), (301, 2)])
def test_an_answer_that_is_no_object(s3_store: Store, status: int, by_library: int) -> None:
    """The library asks again; after a refusal or a redirection it reads the whole bucket."""
    bucket = s3_store.bucket({"a": b"one", "b": b"two"})
    asked = Asked(lambda path: status if len(asked.gets) == 1 else None)
    with between(s3_store.endpoint, translated=asked) as endpoint:
        objects = objects_of(s3_store, bucket, endpoint)
        calls = calls_of_library(objects)
        assert [objects.start_of(f"{bucket}/{name}", 10) for name in "ab"] == [b"one", b"two"]
    assert calls == [f"{bucket}/{name}" for name in "ab"][:by_library]


def test_settings_of_the_library(s3_store: Store) -> None:
    """What the library is told to send with each request is sent: it reads the objects then."""
    bucket = s3_store.bucket({"a": b"one"})
    objects = objects_of(s3_store, bucket, s3_store.endpoint, options={"requester_pays": True})
    calls = calls_of_library(objects)
    assert objects.start_of(f"{bucket}/a", 10) == b"one"
    assert calls == [f"{bucket}/a"]


def test_a_store_that_gives_whole_objects(s3_store: Store) -> None:
    """Only the start is taken of an answer that is more than was asked for, as where a store knows no ranges."""
    bucket = s3_store.bucket({"a": b"one and more", "empty": b""})

    def whole(ask: Ask) -> Ask:
        return lambda method, path, headers, body: ask(
            method, path, {name: value for name, value in headers.items() if name.lower() != "range"}, body
        )

    with between(s3_store.endpoint, translated=whole) as endpoint:
        objects = objects_of(s3_store, bucket, endpoint)
        calls = calls_of_library(objects)
        assert objects.start_of(f"{bucket}/a", 3) == b"one"
        assert objects.start_of(f"{bucket}/a", 0) == b""
        assert objects.start_of(f"{bucket}/empty", 3) == b""
    assert calls == []


def test_a_token_of_a_session(s3_store: Store) -> None:
    """Credentials that end with a session send its token, signed like the rest."""
    bucket = s3_store.bucket({"a": b"one"})
    asked = Asked()
    with between(s3_store.endpoint, translated=asked) as endpoint:
        objects = objects_of(s3_store, bucket, endpoint, options={"token": "of/a+session=="})
        calls = calls_of_library(objects)
        assert objects.start_of(f"{bucket}/a", 10) == b"one"
    assert calls == []
    assert "x-amz-security-token" in asked.signed


def test_objects_together(s3_store: Store) -> None:
    """Each has its own bytes or its own error, whatever becomes of the others, and no more are asked for twice."""
    objects = {f"{number:02}.csv": b"row\n" * number for number in range(1, 30)}
    bucket = s3_store.bucket({**objects, "empty.csv": b"", "b.csv.gz": gzip.compress(b"packed")})
    names = [*objects, "gone.csv", "empty.csv", "b.csv.gz"]
    asked = Asked(lambda path: 503 if path.endswith("/07.csv") and asked.gets.count(path) == 1 else None)
    with between(s3_store.endpoint, translated=asked) as endpoint:
        storage = Storage({"s": StorageSection(**{**s3_store.section(bucket), "endpoint": endpoint})})
        found = storage.starts_of([Place(f"s3://{bucket}/{name}") for name in names], 1_000)
    assert found[: len(objects)] == list(objects.values())
    assert isinstance(found[-3], FileNotFoundError)
    assert found[-2:] == [b"", b"packed"]
    assert [path for path in asked.gets if path.endswith(("01.csv", "29.csv"))] == [
        f"/{bucket}/01.csv",
        f"/{bucket}/29.csv",
    ]


def test_an_answer_that_is_cut_off(s3_store: Store) -> None:
    """Bytes that are fewer than the file's are no content: neither the driver nor a task reads half of its rows."""
    bucket = s3_store.bucket({"a.csv": b"id\n1\n2\n", "b.csv": b"id\n3\n"})

    def cut(ask: Ask) -> Ask:
        def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            status, more, content = ask(method, path, headers, body)
            return status, more, content[:5] if path.endswith("a.csv") else content

        return answer

    with between(s3_store.endpoint, translated=cut) as endpoint:
        storage = Storage({"s": StorageSection(**{**s3_store.section(bucket), "endpoint": endpoint})})
        lane = Lane("a", Place(f"s3://{bucket}"), ("*",), format="csv", options={"header": "true"})
        seen = [FileSeen(f"s3://{bucket}/{name}.csv", size, 0) for name, size in (("a", 7), ("b", 5))]
        spark: Any = None
        read = [
            contents_of(Reading(spark, lane, Item("i", "a", tuple(files), Path("/")), None, storage))
            for files in (seen, seen[1:])
        ]
        assert [list(one.values()) for one in read] == [[], [b"id\n3\n"]]
        protocol, arguments, _ = storage.fsspec(Place(f"s3://{bucket}"))
        reading = _executor_read.Reading("lines", stores={"s": (protocol, arguments)})
        with pytest.raises(OSError, match=r"^a\.csv: 5 of 7 bytes came$"):
            list(_executor_read._texts([_executor_read.File("s", f"{bucket}/a.csv", "a.csv", 7)], reading))


@pytest.mark.parametrize("told", ["ETag", "nothing"])
@pytest.mark.parametrize("written", ["before", "after", "never"])
def test_an_object_that_is_written_anew(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch, written: str, told: str
) -> None:
    """The answer with an object's bytes tells the version that the item has met: no listing does, before or afterwards.

    Written anew after its bytes came, the object has another version, for the next look; a store whose answers do not
    tell it is asked before and again. (pipeline 4, 13)
    """
    bucket = s3_store.bucket({"a.csv": b"id\n1\n", "b.csv": b"id\n2\n"})
    asked: list[int] = []
    statuses = Storage.statuses

    def silent(ask: Ask) -> Ask:
        def answer(*request: Any) -> Answer:
            status, headers, content = ask(*request)
            is_told = told == "ETag" or request[0] != "GET"
            return status, [one for one in headers if is_told or one[0].lower() != "etag"], content

        return answer

    def write_anew(when: str) -> None:
        if written == when:
            s3_store.client.put_object(Bucket=bucket, Key="b.csv", Body=b"id\n3\n")

    def of_files(work: SparkWork, reading: Reading, *rest: Any) -> bool:
        assert list(reading.contents.values()) == [b"id\n1\n", b"id\n3\n" if written == "before" else b"id\n2\n"]
        write_anew("after")
        return True

    with between(s3_store.endpoint, translated=silent) as endpoint:
        storage = Storage({"s": StorageSection(**{**s3_store.section(bucket), "endpoint": endpoint})})
        lane = Lane("a", Place(f"s3://{bucket}"), ("*",), format="csv", options={"header": "true"})
        files = tuple(FileSeen(f"s3://{bucket}/{name}.csv", 5, 0) for name in "ab")
        write_anew("before")
        monkeypatch.setattr(Storage, "statuses", lambda self, some: asked.append(len(some)) or statuses(self, some))
        monkeypatch.setattr(Inputs, "reading", lambda self, spark, *of: Reading(spark, *of, None, storage))
        monkeypatch.setattr(SparkWork, "_of_files", of_files)
        task: Any = SimpleNamespace(step=None, metadata=False, sees_files=False)
        work, spark = SparkWork({"": task}, {"a": lane}, inputs=Inputs(storage)), cast("Any", None)
        item = work.meet(spark, Item("i", "a", files, Path("/")))
        is_refused = written == "after" and told == "nothing"
        with pytest.raises(PipelineError, match="has changed while it was read") if is_refused else nullcontext():
            assert work(spark, item, Path("/"))
        assert asked == ([] if told == "ETag" else [2, 2])
        assert (storage.status(item.places[1]).mtime_ns != item.files[1].mtime_ns) == (written == "after")


def test_messages_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of messages, which are no files, is worked on like any other. (pipeline 10)"""
    monkeypatch.setattr("multiqueue.pipeline._run.work.read_messages", lambda spark, item: None)
    monkeypatch.setattr(SparkWork, "_put_out", lambda self, *arguments, **more: True)
    lane = Lane("a", Path("/"), (), format="message")
    task: Any = SimpleNamespace(step=None, metadata=False, sees_files=False)
    work = SparkWork({"": task}, {"a": lane}, schemas=SimpleNamespace(require=lambda *of, **more: None))  # type: ignore[arg-type]
    item = Item("i", "a", (FileSeen("message://1", 0, 0),), Path("/"))
    assert work(None, item, Path("/"))  # type: ignore[arg-type]
