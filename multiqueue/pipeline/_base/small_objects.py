"""Small objects of stores, each by one request; of S3 at a fifth of the CPU that its library takes.

Promise     The bytes are those that the library gives. Of the CPU of a request by `s3fs`, most goes into what botocore
            makes of its words: the URL, the headers, the signature, the answer. Here the URL of a bucket is asked for
            once, a request is signed in a few lines, and the library's own HTTP session sends it. Every answer that is
            not the bytes is left to the library, which tries again and tells errors; a bucket that refuses or
            redirects is read by the library from then on.
Ships       By value to executors: this module imports the standard library alone.
Threads     Any; the library's loop has one thread. Objects that are asked for together cost no thread each.
Source      Signature Version 4: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

_HAS_BYTES = (200, 206)

# One object may be missing, or the store be busy: others are asked for in the same way.
_OF_ONE_OBJECT = (404, 416, 429, 500, 502, 503, 504)

_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class _Bucket:
    """What the requests for the objects of a bucket of S3 have in common."""

    url: str
    """What the objects' URLs begin with; empty where the library reads them."""
    path: str = ""
    """Of that URL."""
    host: str = ""
    region: str | None = None
    """Of the signatures; None where botocore is to sign, or nobody."""


Start = tuple[bytes, Mapping[str, str]]
"""The first bytes of an object, and the headers that came with them, by their names in lower case: those of one
version, for an answer has one."""


class SmallObjects:
    """The small objects that a file system of fsspec reads."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self._buckets: dict[str, _Bucket] = {}
        """Those of S3."""
        self._making = asyncio.Lock()

    def start_of(self, path: str, most_bytes: int) -> bytes:
        """The first bytes of an object, at most so many. Raises what the library raises."""
        found = self.starts_of([path], most_bytes)[0]
        return found[0] if found is not None else bytes(self.fs.cat_file(path, start=0, end=most_bytes))

    def starts_of(self, paths: Sequence[str], most_bytes: int, at_once: int = 1) -> list[Start | None]:
        """The first bytes of each object, so many asked for at once; None for one that the library is to read."""
        found: list[Start | None] = [None] * len(paths)
        if not hasattr(self.fs, "get_s3"):
            return found
        from fsspec.asyn import sync

        rest = iter(enumerate(paths))

        async def ask() -> None:
            for place, path in rest:
                with contextlib.suppress(Exception):  # of whatever kind: the library asks again
                    found[place] = await self._asked(path, most_bytes)

        async def ask_all() -> None:
            await asyncio.gather(*(ask() for _ in range(min(at_once, len(paths)))))

        with contextlib.suppress(Exception):
            sync(self.fs.loop, ask_all)
        return found

    async def _asked(self, path: str, most_bytes: int) -> Start | None:
        from botocore.awsrequest import AWSPreparedRequest, AWSRequest  # type: ignore[import-untyped]

        name, key, _ = self.fs.split_path(path)
        await self.fs.set_session()
        client = await self.fs.get_s3(name)
        if name not in self._buckets:
            async with self._making:
                if name not in self._buckets:
                    self._buckets[name] = await self._bucket(client, name)
        bucket, key = self._buckets[name], quote(key, safe="/~")
        if not bucket.url:
            return None
        headers = {"Range": f"bytes=0-{most_bytes - 1}"}
        if bucket.region is None:
            made = AWSRequest("GET", bucket.url + key, headers, stream_output=True)
            await client._request_signer.sign("GetObject", made)
            request = made.prepare()
        else:
            credentials = await client._request_signer._credentials.get_frozen_credentials()
            headers = signed(headers, bucket.host, bucket.path + key, credentials, bucket.region)
            request = AWSPreparedRequest("GET", bucket.url + key, headers, None, True)
        answer = await client._endpoint.http_session.send(request)
        content = await answer.content
        if answer.status_code in _HAS_BYTES:
            told = {name.lower(): value for name, value in answer.headers.items()}
            return bytes(content[:most_bytes]), told
        if answer.status_code not in _OF_ONE_OBJECT:
            self._buckets[name] = _Bucket("")
        return None

    async def _bucket(self, client: Any, name: str) -> _Bucket:
        """What is asked of its objects; by the library where more than a URL is needed."""
        from botocore.auth import _host_from_url  # type: ignore[import-untyped]

        if self.fs.req_kw or self.fs.s3_additional_kwargs or ":" in name or name.endswith("--x-s3"):
            return _Bucket("")
        found = await client.generate_presigned_url("get_object", {"Bucket": name, "Key": "-"})
        url = str(found).partition("?")[0].removesuffix("-")
        signer = client._request_signer
        is_plain = await signer._choose_signer("GetObject", "standard", {}) == "s3v4" and signer.signing_name == "s3"
        return _Bucket(url, urlsplit(url).path, _host_from_url(url), signer.region_name if is_plain else None)


def signed(headers: dict[str, str], host: str, path: str, credentials: Any, region: str) -> dict[str, str]:
    """The headers of a GET without a body or a query; those given stand between `Host` and `X` in the alphabet."""
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    told = {"Host": host, **headers, "X-Amz-Content-SHA256": _NOTHING, "X-Amz-Date": when}
    if credentials.token:
        told["X-Amz-Security-Token"] = credentials.token
    lines, names = "".join(f"{name.lower()}:{value}\n" for name, value in told.items()), ";".join(told).lower()
    asked = hashlib.sha256(f"GET\n{path}\n\n{lines}\n{names}\n{_NOTHING}".encode()).hexdigest()
    scope = f"{when[:8]}/{region}/s3/aws4_request"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{asked}"):
        key = hmac.digest(key, part.encode(), "sha256")
    who = f"Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    del told["Host"]  # the HTTP session says it
    return {**told, "Authorization": f"AWS4-HMAC-SHA256 {who}"}
