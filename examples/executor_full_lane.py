"""Handle a full lane: it raises `Full`, a cancelled job makes room, and a paused lane waits.

python examples/executor_full_lane.py
"""

from __future__ import annotations

from queue import Full

from multiqueue import MultiQueueExecutor


def main() -> None:
    with MultiQueueExecutor(max_workers=2) as executor:
        mail = executor.lane("mail", capacity=2)
        mail.pause("the mail server is down")
        first, second = mail.submit(str.upper, "first"), mail.submit(str.upper, "second")
        try:
            mail.submit_nowait(str.upper, "third")
        except Full as error:
            print(error)
        first.cancel()
        third = mail.submit_within(1.0, str.upper, "third")
        mail.resume("the mail server is down")
        print(second.result(), third.result())


if __name__ == "__main__":
    main()
