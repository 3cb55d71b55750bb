"""What a build does beyond copying files: links in the metadata, and the engine in C.

Links    Those of the metadata depend on the repository's address, and README.md's lead there. The release sets
         MULTIQUEUE_REPOSITORY (`https://HOST/OWNER/NAME`) to its own repository, so a fork's release links to the fork.
         Without it a build has no links, and README.md stays as it is.
Engine   `multiqueue/core/_engine.c` is compiled with the compiler that built the interpreter (`cl` on Windows), by one
         command, and so are the other SOURCES. Without a compiler, or Python's headers, the wheel is one of
         pure Python, and so is the engine: `multiqueue --version` says which one runs. MULTIQUEUE_PURE=1 asks for
         that; MULTIQUEUE_REQUIRE_ENGINE=1 fails instead.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
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


SOURCES = ("core/_engine.c", "store/_crc32.c", "_copier.c", "broker/_queue/_fair_runs.c", "amqp/_wire/_frames.c")


class CompiledEngine(BuildHookInterface[Any]):
    """Compiles the sources: into the wheel, or, for an editable install, beside them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("MULTIQUEUE_PURE", "") not in ("", "0"):
            return
        for each in SOURCES:
            source = Path(self.root, "multiqueue", each)
            name = f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"
            folder = source.parent if version == "editable" else Path(tempfile.mkdtemp(prefix="multiqueue-engine-"))
            problem = compile_engine(source, folder / name)
            if problem is not None:
                if os.environ.get("MULTIQUEUE_REQUIRE_ENGINE"):
                    raise RuntimeError(f"the engine in C was not built: {problem}")
                self.app.display_warning(f"{name} was not built, what is in Python will run: {problem}")
                return
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            if version != "editable":
                build_data["force_include"][str(folder / name)] = Path("multiqueue", each).with_name(name).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        for path in build_data["force_include"]:
            shutil.rmtree(Path(path).parent, ignore_errors=True)


def compile_engine(source: Path, target: Path, *flags: str) -> str | None:
    """Compile and link in one command; None, or what stood in the way. The same files give the same bytes."""
    command = command_to_compile(source, target, *flags)
    if command is None:
        return "this interpreter names no compiler"
    try:
        done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode:
        return (done.stderr or done.stdout).strip()[:2000]
    return None


def command_to_compile(source: Path, target: Path, *flags: str) -> list[str] | None:
    """The command, run in the folder of the source; None where the interpreter names no compiler.

    On Windows it is `cl`, which a prompt of Visual Studio's build tools finds; no header there says that the
    interpreter is free-threaded.
    """
    include = f"-I{sysconfig.get_path('include')}"
    if sys.platform == "win32":
        threads = ["/DPy_GIL_DISABLED=1"] if sysconfig.get_config_var("Py_GIL_DISABLED") else []
        command = ["cl", "/nologo", "/LD", "/O2", "/Brepro", *threads, *flags, include, source.name]
        command += [f"/Fo{target.with_suffix('.obj')}", f"/Fe{target}", "/link", "/Brepro"]
        return [*command, f"/LIBPATH:{Path(sys.base_prefix, 'libs')}"]
    link = os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED")  # with the flags of the platform
    if not link:
        return None
    if sys.platform == "darwin" and "dynamic_lookup" not in link:
        link += " -undefined dynamic_lookup"
    return [
        *shlex.split(link),
        "-O2",
        "-fPIC",
        "-fvisibility=hidden",
        *flags,
        include,
        source.name,
        "-o",
        str(target),
        "-lm",
    ]
