"""The tables of a state: written once, in the words of SQLite or of PostgreSQL.

`known_s`, `retry_s`, `started_s` and `ended_s` are seconds at work: a clock that stands still between runs.
`error` is the last one, kept while the item waits for its next try.
`ended_at` is when an item was done by the clock on the wall, NULL once its files leave, or stay for good.
`job` is the fingerprint of the job of the item's last attempt.
`number` is that of the commit to a table that is made for the item.
`redone` is 1 for an item that was done and waits to be done anew; its rows stay until then.
`messages` has the bodies of messages until their items are done.
`leaving` has the files that are no input any more and are to be moved or deleted.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 4

# Names are compared byte by byte, as SQLite does.
SQLITE = {
    "any": "",
    "blob": "BLOB",
    "integer": "INTEGER",
    "name": "TEXT",
    "number": "INTEGER PRIMARY KEY",
    "packed": " WITHOUT ROWID",
    "real": "REAL",
}
POSTGRES = {
    "any": "TEXT",
    "blob": "BYTEA",
    "integer": "BIGINT",
    "name": 'TEXT COLLATE "C"',
    "number": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "packed": "",
    "real": "DOUBLE PRECISION",
}

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value {any}){packed};
CREATE TABLE items (
    seq {number},
    id TEXT NOT NULL UNIQUE,
    lane {name} NOT NULL,
    path {name} NOT NULL,
    files {integer} NOT NULL,
    bytes {integer} NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    attempt {integer} NOT NULL DEFAULT 0,
    tries {integer} NOT NULL DEFAULT 0,
    known_s {real} NOT NULL,
    retry_s {real} NOT NULL DEFAULT 0,
    started_s {real},
    ended_s {real},
    ended_at {real},
    error TEXT,
    job TEXT,
    number TEXT,
    redone {integer} NOT NULL DEFAULT 0
);
CREATE TABLE files (
    lane {name} NOT NULL,
    path {name} NOT NULL,
    size {integer} NOT NULL,
    mtime_ns {integer} NOT NULL,
    item {integer} NOT NULL,
    place {integer} NOT NULL,
    PRIMARY KEY (lane, path)
){packed};
CREATE TABLE messages (
    lane {name} NOT NULL,
    path {name} NOT NULL,
    id TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    headers TEXT NOT NULL,
    body {blob} NOT NULL,
    PRIMARY KEY (lane, path)
);
CREATE TABLE leaving (
    item {integer} NOT NULL,
    lane {name} NOT NULL,
    path {name} NOT NULL,
    size {integer} NOT NULL,
    mtime_ns {integer} NOT NULL,
    PRIMARY KEY (item, path)
);
CREATE INDEX items_next ON items (lane, retry_s, seq) WHERE state = 'waiting';
CREATE INDEX items_submitted ON items (seq) WHERE state = 'submitted';
CREATE INDEX items_failed ON items (lane, seq) WHERE state = 'failed';
CREATE INDEX items_done ON items (lane, ended_at) WHERE state = 'done';
CREATE INDEX files_of_item ON files (item, place);
CREATE INDEX leaving_of_path ON leaving (lane, path);
"""


def tables_in(words: Mapping[str, str]) -> str:
    """The statements that make the tables, in these words."""
    return _TABLES.format(**words)
