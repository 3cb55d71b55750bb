"""Why a run could not start, or had to end: each error is one sentence for the user and an exit status."""

from __future__ import annotations

import errno
import sqlite3
from enum import IntEnum

from ...errors import MultiQueueError


class ExitStatus(IntEnum):
    """The exit status of the process."""

    DONE = 0
    """Every item that was found is done."""
    SET_ASIDE = 1
    """The run came to its end, and some items are set aside with their errors."""
    NOT_READY = 2
    """Wrong usage, configuration or environment: nothing was run, or all but the lanes whose input is missing."""
    BROKEN_OFF = 3
    """The run could not begin now or go on (another run has the state, a server does not answer, the Spark session
    ended, the disk is full): the same command goes on later."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM: the same command goes on later."""


class PipelineError(MultiQueueError):
    """The root of the pipeline's errors; `exit_status` is the command's exit status."""

    exit_status = ExitStatus.BROKEN_OFF


class ConfigError(PipelineError, ValueError):
    """The configuration is wrong; the message names each place. Change the file and run again."""

    exit_status = ExitStatus.NOT_READY


class Unprepared(PipelineError):
    """The machine lacks something (Java, an extra, a writable directory); the message says what to do."""

    exit_status = ExitStatus.NOT_READY


class Unreachable(Unprepared):
    """A server is not reached: Spark's, or the state's. Try again later."""

    exit_status = ExitStatus.BROKEN_OFF


class StateInUse(PipelineError):
    """Another process runs this pipeline. Wait for it, or give the second one another state and output."""


class StateMismatch(PipelineError):
    """The state and the output do not belong together. Nothing was changed."""

    exit_status = ExitStatus.NOT_READY


class StateDamaged(PipelineError):
    """The file of the state is damaged. Nothing was changed; the output is unchanged."""

    exit_status = ExitStatus.NOT_READY


class SessionLost(PipelineError):
    """The Spark session ended during the run. Its items are handed back; the same command continues."""


class JobError(PipelineError):
    """A lasting mistake of the configured job or of an item's input: trying again cannot help."""


class IllegalTransition(PipelineError, RuntimeError):
    """An item was told something its state does not allow. The state is unchanged; this is a bug of ours."""


def unwritten(what: str, error: OSError | sqlite3.Error, key: str) -> PipelineError:
    """The error for what cannot be written: a full disk may have room later, for all else there is another `key`."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return PipelineError(f"cannot write {what}: {reason}; make room and run again")
    return Unprepared(f"cannot write {what}: {reason}; choose another {key} path")
