"""Where what was set aside can be read: a JSON document of one line per item, there until the item is done.

Promise     `lane=LANE/item=ID.json` is there as a whole, and exactly for the items that are set aside or that wait to
            be tried again after that: `spark.read.json` reads the directory.
State       Files only; the runner's thread writes them, by a rename each. `multiqueue pipeline retry` removes those of
            items that it forgets, while no run is under way.
Crash       A letter is written before the ledger says failed. Death in between leaves a letter of an item that runs
            again: it is written once more, or removed when the item is done.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import traceback
from datetime import UTC, datetime
from pathlib import Path

from ._errors import PipelineError
from ._items import Item, Payload
from ._publish import quoted
from ._retry import describe

# The last lines of a traceback say most; a Java stack inside of one can be as long as it likes.
_MOST_CHARACTERS = 20_000


class DeadLetters:
    """The directory of what was set aside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, item: Item, error: BaseException) -> None:
        """Tell of an item that is set aside with this error.

        Raises:
            PipelineError: the file cannot be written.
        """
        path = self.place(item)
        draft = path.with_name(f".{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(_letter(item, error), ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(draft, path)
        except OSError as failure:
            raise PipelineError(
                f"cannot write the dead letter {str(path)!r}: {failure.strerror}; run again to go on"
            ) from failure

    def remove(self, item: Item) -> None:
        """The item is done, or gone."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.place(item))

    def place(self, item: Item) -> Path:
        return self.directory / f"lane={quoted(item.lane)}" / f"item={item.id}.json"


def _letter(item: Item, error: BaseException) -> dict[str, object]:
    trace = "".join(traceback.format_exception(error))
    return {
        "id": item.id,
        "lane_name": item.lane,
        "files": [seen.path for seen in item.files],
        "messages": [_message(payload) for payload in item.messages],
        "size_bytes": item.size_bytes,
        "error_type": type(error).__name__,
        "error": describe(error),
        "traceback": trace[-_MOST_CHARACTERS:],
        "attempt": item.attempt,
        "failures": item.tries + 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _message(payload: Payload) -> dict[str, object]:
    """A message; its body as text, or in base 64 where it is none."""
    values: dict[str, object] = {
        "message_id": payload.id,
        "routing_key": payload.routing_key,
        "headers": dict(payload.headers),
    }
    try:
        return {**values, "body": payload.body.decode()}
    except UnicodeDecodeError:
        return {**values, "body_base64": base64.b64encode(payload.body).decode()}
