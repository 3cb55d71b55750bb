"""The dashboard's files: read once, and answered to anybody, for nothing of the broker stands in them.

The page asks the API for all that it shows, with the user's password. It has no build step, names no other host, and
needs no style or script in its text, so that the policy `app` sends forbids both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "page"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_files() -> Mapping[str, tuple[str, bytes]]:
    """The content type and bytes of each file, by its path on the server."""
    files = {
        f"/page/{file.name}": (_KINDS[file.suffix], file.read_bytes())
        for file in _FOLDER.iterdir()
        if file.suffix in _KINDS
    }
    return {"/": files["/page/index.html"], **files}
