"""The contents of a store, and whether they are as its promises say. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ._bodies import body_files
from ._errors import StoreDamaged
from ._protocol import Level
from ._salvage import Salvage
from ._schema import DAMAGE, META, are_numbers

_MOST_PROBLEMS = 100  # of SQLite's own check; a file cut in half has thousands


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The figures of a store without reading its bodies. Sizes in bytes."""

    file: str
    format: int
    is_open_or_crashed: bool
    next_id: int
    redeliver_floor: int
    messages: int
    bytes: int
    transient: int
    levels: tuple[Level, ...]
    definitions: dict[str, int]  # kind -> how many
    queues_to_remove: int
    file_bytes: int
    log_bytes: int
    free_bytes: int
    bodies_bytes: int  # of the files beside it that have large bodies


def info(path: Path) -> StoreInfo:
    """Look at the store in the directory `path`; it may be open elsewhere.

    Raises:
        NoStore: the directory has no store.
        StoreDamaged: it cannot be read that far; `check` says more.
    """
    with Salvage(path) as store:
        try:
            return _info(store)
        except (*DAMAGE, TypeError) as error:
            raise StoreDamaged(
                f"{str(store.file)!r} is damaged: {error}; `multiqueue store check {path}` says more"
            ) from error


def _info(store: Salvage) -> StoreInfo:
    meta = store.meta()
    if not are_numbers([tuple(meta.get(key) for key in META)], *range(len(META))):
        raise TypeError(f"the table meta has {meta}")
    question = "SELECT queue, level, count(*), sum(size), min(id), max(id) FROM header GROUP BY queue, level"
    ask = store.connection.execute
    dropped = store.dropped()
    levels = [Level._make(row) for row in ask(question).fetchall()]
    if not are_numbers(levels, *range(6)):
        raise TypeError("headers have something else where queue, level, id or size should be")
    log = store.file.with_name(store.file.name + "-wal")
    return StoreInfo(
        file=str(store.file),
        format=store.version,
        is_open_or_crashed=not meta["clean"],
        next_id=meta["next_id"],
        redeliver_floor=meta["redeliver_floor"],
        messages=sum(level.messages for level in levels),
        bytes=sum(level.bytes for level in levels),
        transient=ask("SELECT count(*) FROM header WHERE transient = 1").fetchone()[0],
        levels=tuple(level for level in levels if level.queue not in dropped),
        definitions=dict(ask("SELECT kind, count(*) FROM definition GROUP BY kind ORDER BY kind").fetchall()),
        queues_to_remove=len(dropped),
        file_bytes=store.file.stat().st_size,
        log_bytes=log.stat().st_size if log.exists() else 0,
        free_bytes=_pragma(store, "freelist_count") * _pragma(store, "page_size"),
        bodies_bytes=sum(size for _, size in body_files(store.file.parent)),
    )


def problems(path: Path) -> Iterator[str]:
    """Everything in the store that is not as promised, a sentence each; nothing if it is sound.

    Checked: SQLite's own structures; that every header has its body and every body its header, with the size and the
    check sums that were stored; that ids are below the next one; that the file knows how it was closed.

    Raises:
        NoStore: the directory has no store.
        StoreDamaged: not even its tables can be found.
    """
    with Salvage(path) as store:
        yield from _structure(store)
        meta = store.meta()
        for key in META:
            if key not in meta:
                yield f"meta does not say {key}"
        yield from _take(store.damages)
        for message in store.messages():
            yield from _take(store.damages)
            if message.id >= meta.get("next_id", message.id + 1):
                yield f"message {message.id} has an id that was not given yet: the next one is {meta['next_id']}"
        for _ in store.definitions():
            pass
        yield from _take(store.damages)


def _structure(store: Salvage) -> Iterator[str]:
    """The faults that SQLite finds in its own pages."""
    try:
        rows = store.connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
    except DAMAGE as error:
        yield f"the structure cannot be checked: {error}"
        return
    for (said,) in rows:
        for line in said.splitlines()[:_MOST_PROBLEMS]:
            if line != "ok" and not line.startswith("***"):
                yield f"structure: {line}"


def _take(damages: list[str]) -> list[str]:
    """The faults that were found since, once."""
    found, damages[:] = list(damages), []
    return found


def _pragma(store: Salvage, name: str) -> int:
    return int(store.connection.execute(f"PRAGMA {name}").fetchone()[0])
