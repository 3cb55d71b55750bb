"""A place in the configuration: a local path, an object of a store, or something that is not reached.

Promise     `place_of` and `local` are asked for every place (files, directories, output, state, dead letters, paths in
            messages): all of them mean the same, and no URL is taken for a local name.
            `PATH` and `~/PATH` are as in a shell; `file:///PATH` and `file:/PATH` are taken literally, as Spark does:
            `%20` is no space. A store's URL is taken literally too, and one object has one text: `s3a://` and `s3n://`
            are `s3://`, `gcs://` is `gs://`, and a slash at the end is dropped.
            A name with a colon is local unless what stands before the colon is a scheme that is known or followed by
            `//`.
Beside      `_storage` has what lies at a place: sizes, bytes, listings.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)

_STORES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfss", "abfs"), "abfss"),
    "az": "az",
}
"""The schemes of stores, and how each is written here."""

_NOT_REACHED = {
    **dict.fromkeys(("wasb", "wasbs", "adl"), "Azure's old storage, whose successor is abfss://"),
    **dict.fromkeys(("hdfs", "viewfs", "webhdfs", "swebhdfs", "har"), "HDFS"),
    "dbfs": "the Databricks File System, which Databricks mounts at /dbfs",
    **dict.fromkeys(("http", "https", "ftp", "sftp"), "another machine"),
}

_LOCAL = "PATH, ~/PATH or file:///PATH"
_TAKEN = f"{_LOCAL}, s3://BUCKET/KEY, gs://BUCKET/KEY or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A local path, or the URL of an object or of what its keys begin with. Make one with `place_of`."""

    text: str
    """The path, or `SCHEME://BUCKET/KEY`."""

    def __str__(self) -> str:
        return self.text

    @property
    def scheme(self) -> str:
        """`s3`, `gs`, `abfss` or `az`; empty for a local path."""
        return scheme_of(self.text)

    @property
    def is_local(self) -> bool:
        return not self.scheme

    @property
    def path(self) -> Path:
        """The local path.

        Raises:
            ValueError: the place is an object of a store.
        """
        if not self.is_local:
            raise ValueError(f"{self.text!r} is not a local path")
        return Path(self.text)

    @property
    def name(self) -> str:
        """The last part."""
        return self.parts[-1] if len(self.parts) > 1 or self.is_local else ""

    @property
    def suffix(self) -> str:
        """The ending of the name with its dot, as of a `Path`."""
        return PurePosixPath(self.name).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The components; the first is `/` of a local path, and `SCHEME://BUCKET` of a store."""
        return parts_of(self.text)

    @property
    def parent(self) -> Place:
        """One component less; the bucket's is the bucket."""
        return Place(joined(self.parts[:-1])) if len(self.parts) > 1 else self

    def __truediv__(self, part: str) -> Place:
        """A place below this one."""
        if "/" not in part and part not in ("", ".", "..") and self.text != "/":  # a million names come this way
            return Place(f"{self.text}/{part}")
        return Place(joined((*self.parts, *PurePosixPath(part).parts)))

    def is_below(self, other: Place) -> bool:
        """Whether it is the other place, or lies below it."""
        return self.parts[: len(other.parts)] == other.parts

    @property
    def spark_url(self) -> str:
        """The place as Hadoop's file systems call it; Spark reads wildcards in it."""
        if self.is_local:
            return "file://" + self.text
        return "s3a" + self.text.removeprefix("s3") if self.scheme == "s3" else self.text


def place_of(text: str, base: Path | None = None) -> Place:
    """The place, or glob, that this text means; a local one becomes absolute with `base`.

    Raises:
        ValueError: it is empty, or a place that is not reached; the message says what it is and what is taken.
    """
    if url := _store_url(text):
        return Place(url)
    path = _local(text, _TAKEN)
    return Place(path if base is None else os.path.normpath(base / path))


def local(text: str) -> str:
    """The local path, or glob, that this text means; relative ones stay relative.

    Raises:
        ValueError: it is empty, or a place that is not local; the message says what it is and what is taken.
    """
    if _store_url(text):
        raise ValueError(f"{text!r} is a place in an object store, and a local one is needed here: {_LOCAL}")
    return _local(text, _LOCAL)


def scheme_of(text: str) -> str:
    """The scheme of a store's URL as `place_of` writes it; empty for any other text."""
    scheme, colon, _ = text.partition("://")
    return scheme if colon and scheme in _STORES else ""


def parts_of(text: str) -> tuple[str, ...]:
    """The components of a path or of a store's URL, whose first has scheme and bucket."""
    scheme = scheme_of(text)
    if not scheme:
        return Path(text).parts
    bucket, *keys = text.removeprefix(f"{scheme}://").split("/")
    return (f"{scheme}://{bucket}", *keys)


def joined(parts: tuple[str, ...]) -> str:
    """The path or URL with these components."""
    return "/".join(parts) if parts and scheme_of(parts[0]) else str(Path(*parts))


def _store_url(text: str) -> str | None:
    """The URL of a store as it is written here; None for what is none. Raises ValueError: it names no bucket."""
    found = _SCHEME.fullmatch(text)
    scheme = _STORES.get(found["scheme"].lower()) if found else None
    if found is None or scheme is None:
        return None
    rest = found["rest"].rstrip("/")
    if not rest.startswith("//") or not rest.strip("/") or rest.startswith("///"):
        raise ValueError(f"{text!r} names no bucket: one is {found['scheme']}://BUCKET/KEY")
    return f"{scheme}:{rest}"


def _local(text: str, taken: str) -> str:
    if not text:
        raise ValueError(f"an empty path is not a place; use {taken}")
    found = _SCHEME.fullmatch(text)
    if found is not None:
        scheme, rest = found["scheme"].lower(), found["rest"]
        if scheme == "file":
            return _of_file_url(text, rest)
        if scheme in _NOT_REACHED:
            raise ValueError(f"{text!r} is a place in {_NOT_REACHED[scheme]}, which is out of reach; use {taken}")
        if rest.startswith("//"):
            raise ValueError(f"{text!r} is a URL with a scheme that is not known, {scheme!r}; take {taken}")
    return os.path.expanduser(text)


def _of_file_url(text: str, rest: str) -> str:
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    if host not in ("", "localhost"):
        raise ValueError(f"{text!r} names the host {host!r}; a file on this machine is file:///PATH")
    if not path.startswith("/"):
        raise ValueError(f"{text!r} is not absolute; a file on this machine is file:///PATH")
    return path


MOST_BYTES = 255 - len("lane=")
"""Of a lane's name in a directory's: file systems take 255 bytes."""


def quoted(name: str) -> str:
    """The name of a lane as a directory's: characters that a path cannot have as `%XX`; of a short name all but
    ASCII.
    """
    escaped = quote(name, safe=" ")
    if len(escaped) <= MOST_BYTES:
        return escaped
    return "".join(one if one > "\x7f" else quote(one, safe=" ") for one in name)
