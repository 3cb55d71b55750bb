"""The functions that run for every message: those of `_frames.c` where it was built of this source, else `plain`'s."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..._compiled import warn_of_older

NAMES = ["acks_in_a_row", "contents_in_a_row", "deliver_frames", "fill_body", "plain_properties", "whole_frames"]

if TYPE_CHECKING or os.environ.get("MULTIQUEUE_PURE", "") not in ("", "0"):
    from . import plain as chosen
else:
    try:
        from . import _frames as chosen
    except ImportError:
        from . import plain as chosen
    missing = [name for name in NAMES if not hasattr(chosen, name)]
    if missing:
        warn_of_older(chosen, missing)
        from . import plain as chosen

whole_frames = chosen.whole_frames
fill_body = chosen.fill_body
acks_in_a_row = chosen.acks_in_a_row
contents_in_a_row = chosen.contents_in_a_row
deliver_frames = chosen.deliver_frames
plain_properties = chosen.plain_properties
