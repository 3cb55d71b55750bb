"""Files into batches, in the order they come: by count and by bytes. What time does to them, the scanner decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .items import FileSeen

Batch = list[FileSeen]


def cut(files: Iterable[FileSeen], most_files: int, most_bytes: int | None = None) -> tuple[list[Batch], Batch]:
    """The batches that are full, and the rest, which still has room.

    A batch is full with `most_files`, or when the next file would take it beyond `most_bytes`. A file that is larger
    than that is one batch.
    """
    full: list[Batch] = []
    batch: Batch = []
    size = 0
    for one in files:
        if batch and most_bytes is not None and size + one.size_bytes > most_bytes:
            full.append(batch)
            batch, size = [], 0
        batch.append(one)
        size += one.size_bytes
        if len(batch) == most_files or (most_bytes is not None and size >= most_bytes):
            full.append(batch)
            batch, size = [], 0
    return full, batch


def halves(files: Sequence[FileSeen]) -> tuple[Batch, Batch]:
    """Both halves of two or more files, in order."""
    middle = (len(files) + 1) // 2
    return list(files[:middle]), list(files[middle:])
