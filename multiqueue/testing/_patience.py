"""How long a test waits for what should come at once."""

from __future__ import annotations

# Seconds after which a wait counts as a hang, on a machine that does other things as well. Nothing takes as long.
PATIENCE = 60.0
