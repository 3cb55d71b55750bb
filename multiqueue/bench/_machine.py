"""The conditions of a figure besides the code: the machine, the interpreter, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def describe_machine() -> dict[str, str | int | float | None]:
    """The facts of the machine and interpreter this process runs on."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "build": build_tag(),
        "switch_interval_ms": sys.getswitchinterval() * 1000,
        "load_average": load_average(),
    }


def load_average() -> float | None:
    """The load of the last minute, where the system tells: above the number of CPUs, others were at work."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def build_tag() -> str:
    """The interpreter in a file name: `3.11`, or `3.14t` for a free-threaded build."""
    free_threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{sys.version_info.major}.{sys.version_info.minor}{free_threaded}"


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The version of each distribution that is installed."""
    found = {}
    for name in sorted(set(distributions)):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # absence is the report's "missing"
    return found


def commit() -> str:
    """The commit this package's source is of, with `+changes` if it differs from it; or `unknown`."""
    package = Path(__file__).resolve().parent.parent
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    if not head or not _git(package, "ls-files", "--", "__init__.py"):
        return "unknown"
    return f"{head}+changes" if _git(package, "status", "--porcelain", "--", ".") else head


def _git(directory: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # no git, no commit: the report says "unknown"
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not a Linux; ask the platform module
    return platform.processor() or "unknown"
