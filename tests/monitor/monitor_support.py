"""A client of the HTTP API: one request, and what came back."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A status, headers in lower case, and the body."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Client:
    """Asks a server over HTTP, as a user."""

    url: str
    user: str | None = "guest:guest"

    def as_user(self, user: str | None) -> Client:
        return Client(self.url, user)

    def __call__(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=dict(headers or {}))
        request.add_header("content-type", "application/json")
        if self.user is not None:
            request.add_header("authorization", "Basic " + base64.b64encode(self.user.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return Reply(found.status, {k.lower(): v for k, v in found.headers.items()}, found.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode())

    def get(self, path: str) -> Any:
        """The JSON of a GET that succeeds."""
        reply = self("GET", path)
        assert reply.status == 200, reply
        return reply.json
