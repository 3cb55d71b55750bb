"""Small objects of stores, each by one request; of S3 at a third of the CPU that its library takes.

Promise     The bytes are those that the library gives. Of the CPU of a request by `s3fs`, most goes into what botocore
            makes of its words: the URL, the headers, the answer. Here the URL of a bucket is asked for once, botocore
            signs, and the library's own HTTP session sends. Every answer that is not the bytes is left to the library,
            which tries again and tells errors; a bucket that refuses or redirects is read by the library from then on.
Ships       By value to executors: this module imports the standard library alone.
Threads     Any; the library's loop has one thread.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import quote

_HAS_BYTES = (200, 206)

# One object may be missing, or the store be busy: others are asked for in the same way.
_OF_ONE_OBJECT = (404, 416, 429, 500, 502, 503, 504)


class SmallObjects:
    """The small objects that a file system of fsspec reads."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self._urls: dict[str, str] = {}
        """Of the buckets of S3 that are asked directly; empty for one that the library reads."""

    def start_of(self, path: str, most_bytes: int) -> bytes:
        """The first bytes of an object, at most so many. Raises what the library raises."""
        if hasattr(self.fs, "get_s3"):
            from fsspec.asyn import sync

            with contextlib.suppress(Exception):  # of whatever kind: the library asks again
                if (found := sync(self.fs.loop, self._asked, path, most_bytes)) is not None:
                    return bytes(found)
        return bytes(self.fs.cat_file(path, start=0, end=most_bytes))

    async def _asked(self, path: str, most_bytes: int) -> bytes | None:
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]

        bucket, key, _ = self.fs.split_path(path)
        await self.fs.set_session()
        client = await self.fs.get_s3(bucket)
        if bucket not in self._urls:
            self._urls[bucket] = await self._url(client, bucket)
        if not self._urls[bucket]:
            return None
        url = self._urls[bucket] + quote(key, safe="/~")
        request = AWSRequest("GET", url, headers={"Range": f"bytes=0-{most_bytes - 1}"}, stream_output=True)
        await client._request_signer.sign("GetObject", request)
        answer = await client._endpoint.http_session.send(request.prepare())
        content = await answer.content
        if answer.status_code in _HAS_BYTES:
            return bytes(content[:most_bytes])
        if answer.status_code not in _OF_ONE_OBJECT:
            self._urls[bucket] = ""
        return None

    async def _url(self, client: Any, bucket: str) -> str:
        """What the URLs of the bucket's objects begin with; empty where more than a URL is needed."""
        if self.fs.req_kw or self.fs.s3_additional_kwargs or ":" in bucket or bucket.endswith("--x-s3"):
            return ""
        signed = await client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "-"})
        return str(signed).partition("?")[0].removesuffix("-")
