"""A report kept: a Markdown page and the JSON of one run, beside each other in docs/measurements.

A second record of the same day and interpreter replaces the first; what was kept before is in the history.
"""

from __future__ import annotations

import json
from pathlib import Path

from ._report import Report
from ._table import as_markdown


def default_directory() -> Path | None:
    """docs/measurements of the checkout this package runs from; `None` where it is installed without one."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "docs").is_dir()
    return root / "docs" / "measurements" if is_checkout else None


def record(report: Report, directory: Path) -> tuple[Path, Path]:
    """Write `<date>-<suite>-<python>.md` and `.json` into the directory, made if need be; return their paths.

    Raises: `OSError` where a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{report.date[:10]}-{report.suite}-{report.machine['build']}"
    page, data = directory / f"{stem}.md", directory / f"{stem}.json"
    page.write_text(as_markdown(report), encoding="utf-8")
    data.write_text(json.dumps(report.as_json()) + "\n", encoding="utf-8")
    return page, data
