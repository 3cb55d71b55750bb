"""What runs elsewhere runs here too: workflows are scripts of .ci, the image's entry point starts a broker."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from multiqueue import __version__

HOUSE = Path(__file__).parent.parent
WORKFLOWS = sorted((HOUSE / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_step_is_a_script_that_runs_locally(path: Path, need_module: Callable[[str, str], None]) -> None:
    """A step of a workflow that runs a command runs one script of .ci; the only other one makes the release's page."""
    need_module("yaml", "pyyaml is not installed: pip install -e '.[test]'")
    import yaml

    jobs = yaml.safe_load(path.read_text())["jobs"]
    for command in (step["run"] for job in jobs.values() for step in job.get("steps", ()) if "run" in step):
        script, _, _ = command.partition(" ")
        if script == "gh":
            continue
        assert script.startswith(".ci/"), command
        assert os.access(HOUSE / script, os.X_OK), f"{script} cannot be run"


def release(tree: Path, tag: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tree / ".ci" / "release", tag], capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As much of the repository as a release looks at, with a changelog of two versions."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "multiqueue").mkdir()
    shutil.copy(HOUSE / ".ci" / "release", tmp_path / ".ci")
    shutil.copy(HOUSE / "multiqueue" / "__init__.py", tmp_path / "multiqueue")
    changes = f"# Changelog\n\n## {__version__} (2026-12-01)\n\n### Added\n- a\n\n## 0.0.1\n- old\n"
    (tmp_path / "CHANGELOG.md").write_text(changes)
    return tmp_path


def test_a_release_has_the_notes_of_its_version(tree: Path) -> None:
    """The tag of this version prints its section of the changelog and no other."""
    done = release(tree, f"v{__version__}")
    assert (done.returncode, done.stdout.split()) == (0, ["###", "Added", "-", "a"])


def test_a_tag_of_another_version_is_no_release(tree: Path) -> None:
    """A tag that does not fit `__version__` is refused, with both."""
    done = release(tree, "v9.9.9")
    assert done.returncode == 1
    assert "v9.9.9" in done.stderr
    assert __version__ in done.stderr


def test_a_version_without_notes_is_no_release(tree: Path) -> None:
    """A version that the changelog does not have is refused."""
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n- a\n")
    done = release(tree, f"v{__version__}")
    assert done.returncode == 1
    assert f"no section '## {__version__}'" in done.stderr


@pytest.fixture
def entrypoint(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the image's entry point, with its data in a temporary directory and our `multiqueue` on PATH."""
    command = tmp_path / "bin" / "multiqueue"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m multiqueue "$@"\n')
    command.chmod(0o755)

    def start(**variables: str) -> subprocess.Popen[str]:
        path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
        mine = {
            "PATH": path,
            "MULTIQUEUE_DATA": str(tmp_path),
            "MULTIQUEUE_CONFIG": str(tmp_path / "none"),
            **variables,
        }
        return subprocess.Popen(
            ["sh", HOUSE / "deploy" / "entrypoint", "--port", "0", "--http", "0", "--host", "127.0.0.1"],
            env={**os.environ, **mine},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_the_image_wants_a_password(entrypoint: Callable[..., subprocess.Popen[str]]) -> None:
    """Without a configuration and without a password the container ends, and says which of them to give."""
    process = entrypoint()
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "set MULTIQUEUE_PASSWORD" in said


@pytest.mark.parametrize("name", ["guest", "anna", "DOMAIN\\user", 'the "first"', ""])
def test_the_image_has_one_user(
    entrypoint: Callable[..., subprocess.Popen[str]], tmp_path: Path, need_module: Callable[[str, str], None], name: str
) -> None:
    """The configuration that the image writes has the user that is named and no other, `guest` too, and its hosts."""
    need_module("pamqp", "pamqp is not installed")
    from amqp_parts_support import load_config

    hashed = "scrypt$16384$8$1$" + "A" * 24 + "$" + "A" * 86 + "=="
    (tmp_path / "bin" / "multiqueue").write_text(f"#!/bin/sh\n[ \"$2\" != hash-password ] || echo '{hashed}'\n")
    process = entrypoint(MULTIQUEUE_PASSWORD="secret", MULTIQUEUE_USER=name, MULTIQUEUE_HOSTS="mq broker.lan")
    assert process.communicate(timeout=60)[1] == ""
    config = load_config(tmp_path / "broker.toml")
    (user,) = config.users()
    assert (user.name, user.password_hash, user.loopback_only) == (name or "multiqueue", hashed, False)
    assert user.permissions_in("/") is not None
    assert config.file.http is not None
    assert config.file.http.hosts == ["mq", "broker.lan"]


@pytest.mark.slow(selected=True)
def test_the_image_starts_a_broker(
    entrypoint: Callable[..., subprocess.Popen[str]], tmp_path: Path, need_module: Callable[[str, str], None]
) -> None:
    """With a password the user logs in, the health check succeeds, and nobody else can read the configuration."""
    for module in ("pamqp", "uvicorn"):
        need_module(module, f"{module} is not installed")
    from multiqueue.client import connect

    process = entrypoint(MULTIQUEUE_PASSWORD="pass word", MULTIQUEUE_USER="anna")
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        port = next(found[1] for line in lines if (found := re.search(r"listening on \S*:(\d+)", line)))
        with connect(f"amqp://anna:pass%20word@127.0.0.1:{port}/") as connection, connection.channel() as channel:
            channel.queue_declare("orders")
        health = [sys.executable, "-m", "multiqueue", "broker", "health", "--url", f"amqp://127.0.0.1:{port}"]
        assert subprocess.run(health, capture_output=True, check=False, timeout=60).returncode == 0
    finally:
        process.terminate()
        process.communicate(timeout=60)
    config = tmp_path / "broker.toml"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert "pass word" not in config.read_text()
