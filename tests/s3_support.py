"""An S3 server in this process, for what lies in object stores."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

_NUMBERS = count(1)

KEYS = {"key": "access-of-the-tests", "secret": "secret-of-the-tests", "region": "us-east-1"}


@dataclass(frozen=True)
class Store:
    """A server that speaks S3's protocol."""

    endpoint: str
    client: Any
    """boto3's."""

    def bucket(self, objects: Mapping[str, bytes] | None = None) -> str:
        """A new bucket with these objects; its name."""
        name = f"bucket{next(_NUMBERS)}"
        self.client.create_bucket(Bucket=name)
        for key, body in (objects or {}).items():
            self.client.put_object(Bucket=name, Key=key, Body=body)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Every key in the bucket."""
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=bucket).get("Contents", ())]

    def section(self, bucket: str) -> dict[str, str]:
        """A section `[storage.NAME]` for the bucket."""
        return {"url": f"s3://{bucket}", "endpoint": self.endpoint, **KEYS}


@contextlib.contextmanager
def s3_server() -> Iterator[Store]:
    """The server, on a free port of the loopback."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.start()
        try:
            host, port = server.get_host_and_port()
            endpoint = f"http://{host}:{port}"
            client = boto3.client(
                "s3",
                endpoint_url=endpoint,
                aws_access_key_id=KEYS["key"],
                aws_secret_access_key=KEYS["secret"],
                region_name=KEYS["region"],
            )
            yield Store(endpoint, client)
            client.close()
        finally:
            server.stop()
