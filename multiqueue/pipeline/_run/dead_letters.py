"""Where people read about items that were set aside: a JSON document of one line per item, there until the item is
done.

Promise     `lane=LANE/item=ID.json` exists as a whole, and exactly for the items that are set aside or that wait to
            be tried again after that: `spark.read.json` reads the directory.
State       Files or objects only; the runner's thread writes them, by a rename or a request each. `multiqueue pipeline
            retry` removes those of items that it forgets, while no run is under way.
Crash       A letter is written before the ledger says failed. Death in between leaves a letter of an item that runs
            again: it is written once more, or removed when the item is done.
"""

from __future__ import annotations

import base64
import json
import traceback
from datetime import UTC, datetime
from pathlib import Path

from .._base.errors import PipelineError
from .._base.items import Item, Payload
from .._base.place import Place, quoted
from .._base.storage import Storage
from .retry import describe

# The last lines of a traceback say most; a Java stack inside of one can be as long as it likes.
_MOST_CHARACTERS = 20_000


class DeadLetters:
    """The directory of items that were set aside."""

    def __init__(self, directory: Path | Place, storage: Storage | None = None) -> None:
        self.directory = Place(str(directory))
        self._storage = storage or Storage()

    def write(self, item: Item, error: BaseException) -> None:
        """Tell of an item that is set aside with this error.

        Raises:
            PipelineError: the file cannot be written.
        """
        place = self.place(item)
        try:
            self._storage.put(place, (json.dumps(_letter(item, error), ensure_ascii=False) + "\n").encode())
        except OSError as failure:
            raise PipelineError(
                f"cannot write the dead letter {place.text!r}: {failure.strerror}; run again to go on"
            ) from failure

    def remove(self, item: Item) -> None:
        """The item is done, or gone.

        Raises:
            PipelineError: the file cannot be removed.
        """
        place = self.place(item)
        try:
            self._storage.remove(place)
        except OSError as failure:
            raise PipelineError(
                f"cannot remove the dead letter {place.text!r}: {failure.strerror}; run again to go on"
            ) from failure

    def place(self, item: Item) -> Place:
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
