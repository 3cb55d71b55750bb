"""The site is built from the documents and the docstrings, and needs nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest
from test_doors import DOORS

HOUSE = Path(__file__).parent.parent
LINK = re.compile(r'(?:href|src)="([^"]+)"')


@pytest.mark.slow(selected=sys.version_info < (3, 12))  # one interpreter will do
def test_the_site(need_module: Callable[[str, str], None], tmp_path: Path) -> None:
    """The build is strict; each public name has its place; no link is dead; nothing is loaded from elsewhere; a search
    shows a guide first and no decision.
    """
    need_module("material", "mkdocs-material is not installed: pip install -e '.[docs]'")
    site = tmp_path / "site"
    done = subprocess.run(
        [HOUSE / ".ci" / "site", site],
        env={**os.environ, "SITE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}  # a server's page
    for door in DOORS:
        text = pages[site / "api" / f"multiqueue{door}.html"]
        missing = [name for name in public_names(door) if f'id="multiqueue{door}.{name}"' not in text]
        assert not missing, f"multiqueue{door}"
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts: dict[str, float] = {}
    for entry in entries:
        kind = entry["location"].partition("/")[0]
        boosts[kind] = max(boosts.get(kind, 0), entry["boost"])
    assert boosts["guides"] > max(boost for kind, boost in boosts.items() if kind != "guides")
    assert not {"decisions", "measurements"} & boosts.keys()
    for page, text in pages.items():
        for link in LINK.findall(text):
            target = unquote(link.partition("#")[0])
            if not target or re.match("(https?|mailto|data):", target):
                continue
            assert (page.parent / target).exists(), f"{page.relative_to(site)} leads to {link}"
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*src="(https?:[^"]+)"|<link[^>]*href="(https?:[^"]+)"', text)
        assert not [one for one in loaded if "canonical" not in one], page


def public_names(door: str) -> list[str]:
    """What a room's `__all__` has, but for what the page of another one shows."""
    module = import_module(f"multiqueue{door}")
    elsewhere = {"": ["SimpleQueue"], ".amqp": getattr(module, "wire", module).__all__}.get(door, [])
    return [name for name in module.__all__ if name not in elsewhere]
