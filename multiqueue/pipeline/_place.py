"""What a place in the configuration is: a local path, or one that this version does not reach.

Promise     `local` is asked for every place (files, directories, output, state, dead letters, paths in messages): all
            of them mean the same, and no URL is taken for a local name.
            `PATH` and `~/PATH` are as in a shell; `file:///PATH` and `file:/PATH` are taken literally, as Spark does:
            `%20` is no space.
            A name with a colon is local unless what stands before the colon is a scheme that is known or followed by
            `//`.
Reading     `start_of` gives the first bytes of a file, unpacked as Spark unpacks it: what checks look at.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)

_STORES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "S3"),
    **dict.fromkeys(("gs", "gcs"), "Google Cloud Storage"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "adl", "az"), "Azure Storage"),
    **dict.fromkeys(("hdfs", "viewfs", "webhdfs", "swebhdfs", "har"), "HDFS"),
    "dbfs": "the Databricks File System, which Databricks mounts at /dbfs",
    **dict.fromkeys(("http", "https", "ftp", "sftp"), "another machine"),
}

_SUPPORTED = "this version takes local or mounted paths: PATH, ~/PATH or file:///PATH"

# Spark unpacks these too; here is no codec for them.
_PACKED = (".deflate", ".snappy", ".lz4", ".zst")

# Packed in blocks of Hadoop's own: not as the programs do that have given the endings their names.
_IN_BLOCKS = (".snappy", ".lz4")


def local(text: str) -> str:
    """The local path, or glob, that this text means; relative ones stay relative.

    Raises:
        ValueError: it is empty, or a place that is not local; the message says what it is and what is taken.
    """
    if not text:
        raise ValueError(f"an empty path is no place; {_SUPPORTED}")
    found = _SCHEME.fullmatch(text)
    if found is not None:
        scheme, rest = found["scheme"].lower(), found["rest"]
        if scheme == "file":
            return _of_file_url(text, rest)
        if scheme in _STORES:
            raise ValueError(f"{text!r} is not a local path but a place in {_STORES[scheme]}; {_SUPPORTED}")
        if rest.startswith("//"):
            raise ValueError(f"{text!r} is a URL with a scheme that is not known, {scheme!r}; {_SUPPORTED}")
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


def start_of(path: Path, most_bytes: int) -> bytes | None:
    """The first bytes of a file, at most so many; None when it is packed in a way that is not known here.

    Raises:
        OSError: it cannot be read, or is not packed as its name says.
    """
    if path.suffix in _PACKED:
        return None
    with _unpacked(path) as stream:
        return stream.read(most_bytes)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, without their ends; none when it is packed in a way that is not known here.

    Raises:
        OSError: as `start_of`.
    """
    if path.suffix not in _PACKED:
        with _unpacked(path) as stream:
            for line in stream:
                yield line.rstrip(b"\r\n")


def is_in_blocks(path: Path) -> bool:
    """Whether a `.snappy` or `.lz4` file is packed as Hadoop reads it; others always are.

    Of any other Hadoop takes some bytes for the length of a block, and memory for it: that can end the whole session.

    Raises:
        OSError: it cannot be read.
    """
    if path.suffix not in _IN_BLOCKS:
        return True
    with open(path, "rb") as raw:
        start = raw.read(8)  # the length of the block as it was, and of its first piece as it is packed
        return not any(start) or 0 < int.from_bytes(start[4:]) <= os.fstat(raw.fileno()).st_size - 8


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile | bz2.BZ2File]:
    try:
        with open(path, "rb") as raw:
            if path.suffix == ".gz":
                yield gzip.GzipFile(fileobj=raw)
            elif path.suffix == ".bz2":
                yield bz2.BZ2File(raw)
            else:
                yield raw
    except (EOFError, zlib.error) as error:  # cut off, or no such data
        raise OSError(None, str(error)) from error
