"""The demo."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ._errors import ExitStatus


def run_demo(directory: Path, console: Console, *, fresh: bool) -> ExitStatus:
    raise NotImplementedError
