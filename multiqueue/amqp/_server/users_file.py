"""Users that were made or changed while the server ran, kept in the data directory.

A change that was answered is in the file, whole, after any crash. A file that cannot be read is an error that names it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .._wire.errors import ServerError
from .access import Permissions, User, check_hash

NAME: Final = "users.json"
_VERSION: Final = 1


class UsersFile:
    """`users.json` in a data directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / NAME

    def load(self) -> list[User] | None:
        """The users in the file; None where there is no file. Raises ServerError: it cannot be read, or is no such
        file."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ServerError(f"cannot read users in {self.path}: {error}") from error
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                raise ServerError(f"{self.path} has version {found['version']}; this program reads version {_VERSION}")
            return [_user(each) for each in found["users"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerError(f"{self.path} is no file of users: {error}; restore it, or remove it") from error

    def save(self, users: Iterable[User]) -> None:
        """Replace what is in the file. Raises OSError: it cannot be written; the file is as it was."""
        text = json.dumps({"version": _VERSION, "users": [_view(user) for user in users]}, indent=1)
        beside = self.path.with_suffix(".json.new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        if os.name == "posix":
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def _view(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "tags": sorted(user.tags),
        "loopback_only": user.loopback_only,
        "permissions": {
            host: {"configure": each.configure, "write": each.write, "read": each.read}
            for host, each in user.permissions.items()
        },
    }


def _user(found: dict[str, Any]) -> User:
    hashed = found["password_hash"]
    permissions = {str(host): Permissions(**each) for host, each in found["permissions"].items()}
    return User(
        str(found["name"]),
        None if hashed is None else check_hash(hashed),
        permissions,
        bool(found["loopback_only"]),
        frozenset(map(str, found["tags"])),
    )
