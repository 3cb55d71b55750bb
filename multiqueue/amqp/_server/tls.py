"""TLS for a server: its certificate, and whether clients must have one too."""

from __future__ import annotations

import os
import ssl

from .._wire.errors import ServerError

PathLike = str | os.PathLike[str]


def server_tls(
    certificate: PathLike, key: PathLike | None = None, *, client_ca: PathLike | None = None, required: bool = True
) -> ssl.SSLContext:
    """What `serve(tls=...)` takes: TLS 1.2 or later with this certificate (PEM, with its chain).

    With `client_ca` clients are asked for a certificate that it signed, and refused without one unless `required` is
    False; a client that has one may log in as its common name, by the mechanism EXTERNAL.

    Raises:
        ServerError: a file cannot be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        where = f"{os.fspath(certificate)}" + (f" with key {os.fspath(key)}" if key is not None else "")
        raise ServerError(f"cannot use the certificate {where}: {_why(error)}") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ServerError(f"cannot use the client CA {os.fspath(client_ca)}: {_why(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "it is no PEM, or the key is another's"
    return error.strerror or str(error)
