"""A raw client inside TLS, for servers whose certificates the fixture `certificates` has made."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from amqp_raw_support import RawClient, opened


class TlsClient(RawClient):
    """A raw client inside TLS."""

    def __init__(self, url: str, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(url.replace("amqps", "amqp"), opens=False, **options)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        opened.append(self.socket)


def trusting(home: Path, certificate: str | None = None) -> ssl.SSLContext:
    """A client's context: it trusts the CA, and may have a certificate of its own."""
    context = ssl.create_default_context(cafile=str(home / "ca.pem"))
    if certificate is not None:
        context.load_cert_chain(home / f"{certificate}.pem", home / f"{certificate}.key")
    return context
