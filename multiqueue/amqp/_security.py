"""Who may come in, and what they may touch.

Promise     A password is kept as a scrypt hash, and compared in constant time. A name that is not known costs as much
            as a wrong password. What is not permitted is refused with RabbitMQ's words.
State       `Access` remembers passwords that were verified, as keyed hashes whose key this process made up: scrypt
            costs 50 ms by design, and a client that reconnects has paid them. `_lock` guards that set; a leaf.
            The users are one dictionary that is replaced, never changed. `_changing` is held by those who replace it,
            over the write of the users' file too: nobody else waits for it.
Who runs    `verify` takes its time and runs on a thread of its own; everything else is a look-up.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Final, Literal

from ._errors import ChannelFault, ConnectionFault, FixedUser

_N, _R, _P = 2**14, 8, 1  # 16 MiB and some 50 ms
RABBITMQ_HASH: Final = "rabbit_password_hashing_sha256"  # of its definitions: salted SHA-256, with a salt of 4 bytes
_SALT: Final = 4
_BYTES: Final = 64  # of what scrypt derives
_REMEMBERED: Final = 1024

Operation = Literal["configure", "write", "read"]


def hash_password(password: str) -> str:
    """A scrypt hash of the password, with a salt of its own, to be kept in a configuration."""
    salt = os.urandom(16)
    derived = hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P)
    return f"scrypt${_N}${_R}${_P}${_text(salt)}${_text(derived)}"


@cache
def _nobodys_hash() -> str:
    return hash_password("")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _matches(password: bytes, hashed: str) -> bool:
    scheme, _, rest = hashed.partition("$")
    if scheme == RABBITMQ_HASH:
        raw = base64.b64decode(rest)
        derived, expected = hashlib.sha256(raw[:_SALT] + password).digest(), raw[_SALT:]
        _matches(password, _nobodys_hash())  # or a fast answer would tell how the password is kept
        return hmac.compare_digest(derived, expected)
    _, n, r, p, salt, kept = hashed.split("$")
    derived = hashlib.scrypt(password, salt=base64.b64decode(salt), n=int(n), r=int(r), p=int(p), maxmem=2**27)
    return hmac.compare_digest(derived, base64.b64decode(kept))


def check_hash(hashed: str) -> str:
    """The hash itself.

    Raises:
        ValueError: it is none of `hash_password`, and none that RabbitMQ exported.
    """
    try:
        if hashed.startswith(f"{RABBITMQ_HASH}$"):
            if len(base64.b64decode(hashed.partition("$")[2], validate=True)) == _SALT + 32:
                return hashed
            raise ValueError("it is a salt of 4 bytes and 32 bytes, in Base64")
        scheme, n, r, p, salt, derived = hashed.split("$")
        is_power = int(n) > 1 and int(n).bit_count() == 1  # or scrypt itself refuses, when somebody logs in
        fits = scheme == "scrypt" and is_power and 1 <= int(r) <= 2**19 // int(n) and 1 <= int(p) <= 16
        if fits and base64.b64decode(salt, validate=True) and len(base64.b64decode(derived, validate=True)) == _BYTES:
            return hashed
    except ValueError as error:
        if hashed.startswith(RABBITMQ_HASH):
            raise ValueError(f"no {RABBITMQ_HASH}: {error}") from None
    raise ValueError("no scrypt hash; make one with `multiqueue broker hash-password`")


@dataclass(frozen=True)
class Permissions:
    """Regular expressions for the names that a user may configure, write to and read from in a virtual host.

    As in RabbitMQ an expression matches anywhere in a name, and an empty one matches nothing.
    """

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        for name in ("configure", "write", "read"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise ValueError(f"{name} = {getattr(self, name)!r} is no regular expression: {error}") from None

    @cached_property
    def _compiled(self) -> dict[str, re.Pattern[str]]:
        return {name: re.compile(getattr(self, name) or "^$") for name in ("configure", "write", "read")}

    def allow(self, operation: Operation, name: str) -> bool:
        """True when the operation is permitted on a queue or exchange of this name."""
        return self._compiled[operation].search(name) is not None


@dataclass(frozen=True)
class User:
    """A user: a password's hash (None: no password lets anybody in), and permissions by virtual host, `*` for all.

    `tags` say what the user may see and do over HTTP: `administrator`, `monitoring`, `policymaker`, `management`.
    """

    name: str
    password_hash: str | None = None
    permissions: Mapping[str, Permissions] = field(default_factory=dict)
    loopback_only: bool = False
    tags: frozenset[str] = frozenset()

    @classmethod
    def with_password(
        cls,
        name: str,
        password: str,
        permissions: Mapping[str, Permissions] | None = None,
        *,
        loopback_only: bool = False,
        tags: Iterable[str] = (),
    ) -> User:
        """A user with this password; without permissions, with all of them in every virtual host."""
        allowed = {"*": Permissions()} if permissions is None else permissions
        return cls(name, hash_password(password), allowed, loopback_only, frozenset(tags))

    def permissions_in(self, host: str) -> Permissions | None:
        """What the user may do in a virtual host; None where it has no business."""
        return self.permissions.get(host) or self.permissions.get("*")


@cache
def guest() -> User:
    """RabbitMQ's default user: `guest` with the password `guest`, all permissions, from loopback only."""
    return User.with_password("guest", "guest", loopback_only=True, tags=["administrator"])


def is_loopback(address: str) -> bool:
    """True for an address of this machine's loopback; False for what is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


class Access:
    """The users of a server."""

    def __init__(
        self, users: Iterable[User], *, fixed: Iterable[User] = (), keep: Callable[[list[User]], None] | None = None
    ) -> None:
        self._fixed = {user.name: user for user in fixed}
        self._users = {user.name: user for user in users} | self._fixed
        self._keep = keep
        self._changing = threading.Lock()
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._verified: dict[bytes, None] = {}

    def users(self) -> list[User]:
        """All users, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def put(self, user: User) -> None:
        """Let this user in from now on, in place of any of the same name.

        Raises:
            FixedUser: the configuration file names it.
            OSError: it cannot be kept; nothing was changed.
        """
        with self._changing:
            self._check_changeable(user.name)
            self._replace({**self._users, user.name: user})

    def remove(self, name: str) -> None:
        """Let nobody of this name in any more; connections that are open stay. Raises as `put`."""
        with self._changing:
            self._check_changeable(name)
            self._replace({each: user for each, user in self._users.items() if each != name})

    def permit(self, name: str, host: str, permissions: Permissions | None) -> None:
        """Say what a user may do in a virtual host from now on; None for nothing. Raises as `put`, and KeyError."""
        with self._changing:
            self._check_changeable(name)
            user = self._users[name]
            others = {each: allowed for each, allowed in user.permissions.items() if each != host}
            allowed = others if permissions is None else {**others, host: permissions}
            self._replace({**self._users, name: replace(user, permissions=allowed)})

    def _check_changeable(self, name: str) -> None:
        if name in self._fixed:
            raise FixedUser(f"user '{name}' is in the configuration of the server; change it there")

    def _replace(self, users: dict[str, User]) -> None:
        """Keep the users, then let everybody see them: what was answered survives."""
        if self._keep is not None:
            self._keep([users[name] for name in sorted(users) if name not in self._fixed])
        self._users = users

    def user(self, name: str) -> User | None:
        """The user of this name."""
        return self._users.get(name)

    def remembered(self, name: str, password: bytes) -> bool:
        """True when `verify` has said yes to these before. Costs microseconds."""
        user = self._users.get(name)
        if user is None or user.password_hash is None:
            return False
        mark = self._mark(user, password)
        with self._lock:
            return mark in self._verified

    def verify(self, name: str, password: bytes) -> bool:
        """Whether the password is the user's. Takes some 50 ms, known name or not."""
        user = self._users.get(name)
        hashed = _nobodys_hash() if user is None or user.password_hash is None else user.password_hash
        if not _matches(password, hashed) or user is None or user.password_hash is None:
            return False
        with self._lock:
            if len(self._verified) >= _REMEMBERED:
                self._verified.clear()
            self._verified[self._mark(user, password)] = None
        return True

    def _mark(self, user: User, password: bytes) -> bytes:
        """What is remembered: the hash is in it, so that another password makes it worthless."""
        texts = (user.name.encode(), str(user.password_hash).encode())
        parts = b"".join(len(text).to_bytes(4) + text for text in texts) + password
        return hashlib.blake2b(parts, key=self._key).digest()


class Rights:
    """What one user may do in one virtual host; answers are remembered. One thread uses it."""

    _MOST = 1000  # answers that are remembered

    def __init__(self, user: User, host: str) -> None:
        permissions = user.permissions_in(host)
        if permissions is None:
            raise ConnectionFault(530, f"access to vhost '{host}' refused for user '{user.name}'")
        self.user = user
        self._host = host
        self._permissions = permissions
        self._allowed: set[tuple[Operation, str]] = set()

    def check(self, operation: Operation, kind: Literal["queue", "exchange"], name: str) -> None:
        """Nothing, when it is permitted.

        Raises:
            ChannelFault: it is not.
        """
        asked = (operation, name)
        if asked in self._allowed:
            return
        called = name or "amq.default"  # RabbitMQ's name for the exchange that has none
        if not self._permissions.allow(operation, called):
            where = f"{kind} '{called}' in vhost '{self._host}'"
            raise ChannelFault(403, f"{operation} access to {where} refused for user '{self.user.name}'")
        if len(self._allowed) >= self._MOST:
            self._allowed.clear()
        self._allowed.add(asked)
