"""`python -m multiqueue`: the command line."""

from __future__ import annotations

from .cli import main

main(prog_name="python -m multiqueue")
