"""The outcome of a run: a sentence for people, one JSON document for programs.

Promise     A run with `--json` writes one document to standard output, at its end, however it ends: also when it could
            not begin or was broken off.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ..._words import counted, duration
from .._base.errors import ExitStatus
from .._config.config import PipelineConfig
from .._state.view import ledger_view
from .._tell.console import snapshot_values
from .run import RunResult

# A document that a scheduler keeps stays small; `status` has them all.
_MOST_SET_ASIDE = 100


def sentence(result: RunResult, file: str) -> str:
    """How the run ended, and which command follows."""
    total, shown = result.snapshot.total, shlex.quote(file)
    if result.status is ExitStatus.INTERRUPTED:
        return f"stopped with {counted(total.waiting, 'item')} waiting; `multiqueue pipeline run {shown}` goes on"
    if result.lost:
        aside = f", {counted(total.failed, 'item')} set aside" if total.failed else ""
        return f"not all input was read: {counted(total.done, 'item')} done{aside}; {'; '.join(result.lost)}"
    if result.status is ExitStatus.SET_ASIDE:
        which = "it" if total.failed == 1 else "them"
        return f"{counted(total.failed, 'item')} set aside; `multiqueue pipeline retry {shown}` puts {which} back"
    return f"all done: {counted(total.done, 'item')}, {duration(result.snapshot.elapsed_s)} of this run"


def result_document(config: PipelineConfig, result: RunResult, file: str) -> str:
    """The document of a run that came to its end, or was stopped."""
    with ledger_view(config.state) as view:
        failed = view.failures(_MOST_SET_ASIDE, lanes_of(config, result))
    values = snapshot_values(result.snapshot)
    return _document(
        result.status,
        sentence(result, file),
        seconds=values["seconds"],
        total=values["total"],
        lanes=values["lanes"],
        set_aside=list(map(asdict, failed)),
        missing=list(result.lost),
        made_by_others=result.made_by_others,
        tables=[{"table": place, "version": version} for place, version in result.tables.items()],
        output=str(config.rows_at / "data"),
        report=None if result.report is None else str(result.report),
    )


def lanes_of(config: PipelineConfig, result: RunResult) -> list[str] | None:
    """The lanes that the run was of; None for all that the state knows."""
    return [lane.lane for lane in result.snapshot.lanes] if config.chosen else None


@contextmanager
def told_as_document() -> Iterator[None]:
    """While inside, an error that ends the command is also written as a document, before it goes on."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        unsaid = ExitStatus.INTERRUPTED if interrupted else ExitStatus.BROKEN_OFF
        said = str(error) or ("interrupted" if interrupted else type(error).__name__)
        print(_document(getattr(error, "exit_status", unsaid), said), file=sys.stdout, flush=True)
        raise


def _document(status: ExitStatus, said: str, **values: Any) -> str:
    verdict = status.name.lower().replace("_", " ")
    return json.dumps({"verdict": verdict, "status": int(status), "sentence": said, **values}, ensure_ascii=False)
