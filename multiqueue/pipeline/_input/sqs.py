"""A queue of Amazon SQS, or of a server that speaks its protocol, with the events of a bucket.

Promise     A message is deleted once it was taken in. One that is not comes again after the queue's visibility timeout,
            and one that is no event too, until the queue's own redrive policy puts it aside.
How         botocore, which the extra `s3` brings. Threads ask and delete, ten messages a request, and wait a second for
            a message: a request takes ten milliseconds that the runner does not have.
State       `_came`, `_done` and `_is_empty`, each a deque or a slot that one side fills and the other empties.
Stopping    At the end of the stack the threads delete the messages taken in, and end within a second.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ..._extras import needs
from .._base.errors import PipelineError, Unprepared
from .broker_queue import Settle

_THREADS = 4
_AT_A_TIME = 10
_WAIT_S = 1
_PAUSE_S = 2.0
_MOST_TRIES = 5
_MOST_HELD = 500


class SqsQueue:
    """A queue of SQS, open until the end of the stack."""

    has_lost = False
    """A queue drops nothing."""

    def __init__(self, lane: str, url: str, stack: contextlib.ExitStack) -> None:
        """Raises Unprepared where botocore is missing, or the queue does not answer."""
        self._lane = lane
        self._url = url
        try:
            self._client = _client(url)
            waiting(url, self._client)
        except Unprepared:
            raise
        except Exception as error:
            raise Unprepared(f"lane {lane!r}: {url!r} does not answer: {error}") from error
        self._came: deque[tuple[str, str]] = deque()
        self._done: deque[str] = deque()
        self._is_empty = [False] * _THREADS
        self._error: Exception | None = None
        self._over = threading.Event()
        threads = [
            threading.Thread(target=self._work, args=(number,), name=f"multiqueue-sqs-{number}", daemon=True)
            for number in range(_THREADS)
        ]
        stack.callback(self._client.close)
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(self._over.set)

    @property
    def has_more(self) -> bool:
        return bool(self._came)

    @property
    def is_drained(self) -> bool:
        """Every thread has asked for a message since the last one came, and there was none."""
        return all(self._is_empty) and not self._came

    def events(self, room: int) -> list[tuple[bytes, Settle]]:
        """The messages that have come, at most so many.

        Raises:
            PipelineError: the queue does not answer any more.
        """
        if self._error is not None and not self._came:
            raise PipelineError(f"lane {self._lane!r}: {self._error}; run again to go on") from self._error
        came = [self._came.popleft() for _ in range(min(room, len(self._came)))]
        return [(body.encode(), partial(self._settle, receipt)) for body, receipt in came]

    def _settle(self, receipt: str, accept: bool) -> None:
        """Delete it, or leave it to come again."""
        if accept:
            self._done.append(receipt)

    def _work(self, number: int) -> None:
        failed = 0
        while not self._over.is_set() or self._done:
            try:
                self._delete()
                if not self._over.is_set():
                    self._receive(number)
                failed = 0
            except Exception as error:  # noqa: BLE001 - of botocore's many: the request is made again
                failed += 1
                if self._over.is_set():
                    return
                if failed == _MOST_TRIES:
                    self._error = error
                    return
                self._over.wait(_PAUSE_S)

    def _receive(self, number: int) -> None:
        if len(self._came) >= _MOST_HELD:
            self._over.wait(0.05)
            return
        said = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=_AT_A_TIME, WaitTimeSeconds=_WAIT_S)
        messages = said.get("Messages", [])
        if messages:
            self._is_empty[:] = [False] * _THREADS  # first: they may be taken at once
            self._came.extend((one["Body"], one["ReceiptHandle"]) for one in messages)
        else:
            self._is_empty[number] = True

    def _delete(self) -> None:
        receipts: list[str] = []
        with contextlib.suppress(IndexError):
            while len(receipts) < _AT_A_TIME:
                receipts.append(self._done.popleft())
        if receipts:
            entries = [{"Id": str(place), "ReceiptHandle": one} for place, one in enumerate(receipts)]
            self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)


def waiting(url: str, client: Any = None) -> int:
    """About how many messages wait in the queue. Raises what botocore raises."""
    client = client or _client(url)
    said = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(said["Attributes"]["ApproximateNumberOfMessages"])


def _client(url: str) -> Any:
    try:
        import botocore.session  # type: ignore[import-untyped]
    except ImportError as error:
        raise Unprepared(needs("events from SQS", "botocore")) from error
    where = urlsplit(url)
    host = where.hostname or ""
    region = host.split(".")[1] if host.startswith("sqs.") and host.count(".") >= 3 else None
    endpoint = None if region else f"{where.scheme}://{where.netloc}"
    return botocore.session.get_session().create_client("sqs", region_name=region, endpoint_url=endpoint)
