"""The parts of the metadata that depend on the repository's address: links, and README.md with links that lead there.

The release sets MULTIQUEUE_REPOSITORY (`https://HOST/OWNER/NAME`). Without it a build has no links, and README.md stays
as it is. docs/decisions/0004-links-come-with-the-release.md has the reason.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RepositoryLinks(MetadataHookInterface):
    """Adds `urls` and `readme`; pyproject.toml names both as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("MULTIQUEUE_REPOSITORY", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, repository)}
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """The links of a package's page, to the repository and the site that is made from it."""
    if not repository:
        return {}
    owner, name = repository.split("/")[-2:]
    site = os.environ.get("MULTIQUEUE_SITE") or f"https://{owner.lower()}.github.io/{name}/"
    return {
        "Homepage": site,
        "Documentation": site,
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def absolute_links(text: str, repository: str) -> str:
    """A page whose relative links lead to files of the repository."""
    if not repository:
        return text
    return re.sub(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)", rf"]({repository}/blob/main/\1)", text)
