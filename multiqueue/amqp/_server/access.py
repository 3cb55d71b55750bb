"""Users that may come in, and their rights.

Promise     A password is kept as a scrypt hash, and compared in constant time. A name that is not known goes the way of
            a wrong password: it is hashed in its turn, and remembered. A request without the right is refused with
            RabbitMQ's words.
Kept        Users that were made or changed while the server ran are in `users.json` in the data directory. A change
            that was answered is in the file, whole, after any crash. A file that cannot be read is an error.
State       `_lock`, a leaf, guards the passwords that were found right and wrong: docs/decisions/0881. The users are
            one dictionary that is replaced, never changed, under the lock of `Access`, the file of users too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from ..._carried import short_string
from ..._kinds import check_kind, checked_list
from ..._locks import Lock
from ..._patterns import Search, bounded_pattern
from ...broker import checked_limit
from .._session.effects import Operation
from .._wire.errors import ChannelFault, ConnectionFault, FixedUser, ServerError

_N, _R, _P = 2**14, 8, 1  # 16 MiB and some 50 ms
RABBITMQ_HASH: Final = "rabbit_password_hashing_sha256"  # of its definitions: salted SHA-256, with a salt of 4 bytes
_SALT: Final = 4
_BYTES: Final = 64  # of what scrypt derives
_REMEMBERED: Final = 4096  # right ones, and as many wrong ones
_KEY: Final = os.urandom(32)
_FILE_VERSION: Final = 2  # of `users.json`; in 1 the virtual host `*` stood for all
_lock = Lock()
_right: dict[str, bytes] = {}  # by hash, the digest of its password
_wrong: dict[bytes, bytes] = {}  # digests, as keys

_Key = TypeVar("_Key")


def hash_password(password: str) -> str:
    """A scrypt hash of the password with a new salt, for a configuration."""
    check_kind("a password", password, str, "a string")
    salt = os.urandom(16)
    derived = hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P)
    hashed = f"scrypt${_N}${_R}${_P}${_text(salt)}${_text(derived)}"
    _remember(_right, hashed, _digest(hashed, password.encode()))
    return hashed


def _digest(hashed: str, password: bytes) -> bytes:
    return hashlib.blake2b(hashed.encode() + b"\0" + password, key=_KEY).digest()


def _remember(table: dict[_Key, bytes], key: _Key, value: bytes) -> None:
    with _lock:
        if len(table) >= _REMEMBERED:
            del table[next(iter(table))]
        table[key] = value


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
    raise ValueError("not a scrypt hash; make one with `multiqueue broker hash-password`")


@dataclass(frozen=True)
class Permissions:
    """Regular expressions for the names that a user may configure, write to and read from in a virtual host.

    As in RabbitMQ an expression matches anywhere in a name, and an empty one matches nothing.

    Raises:
        ValueError: one is no expression, or could take any time (`bounded_pattern`).
    """

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        for name in ("configure", "write", "read"):
            check_kind(name, getattr(self, name), str, "a regular expression, as a string")
            try:
                bounded_pattern(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} = {getattr(self, name)!r} {error}") from None

    @cached_property
    def _compiled(self) -> dict[str, Search]:
        return {name: bounded_pattern(getattr(self, name) or "^$") for name in ("configure", "write", "read")}

    def allow(self, operation: Operation, name: str) -> bool:
        """True when the operation is permitted on a queue or exchange of this name."""
        return bool(self._compiled[operation](name))


@dataclass(frozen=True)
class TopicPermissions:
    """Regular expressions for the routing keys that a user may publish with to a topic exchange, and bind to it by.

    `{username}` and `{vhost}` in them stand for the user's name and the virtual host.

    Raises:
        ValueError: as `Permissions`.
    """

    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        for name in ("write", "read"):
            check_kind(name, getattr(self, name), str, "a regular expression, as a string")
            try:
                self.search(name, "", "")
            except ValueError as error:
                raise ValueError(f"{name} = {getattr(self, name)!r} {error}") from None

    def search(self, operation: str, user: str, host: str) -> Search:
        """The search of an operation's expression."""
        text: str = getattr(self, operation)
        for variable, value in (("{username}", user), ("{vhost}", host)):
            text = text.replace(variable, re.escape(value))
        return bounded_pattern(text or "^$")


USER_LIMITS: Final = ("max-connections", "max-channels")


@dataclass(frozen=True)
class User:
    """A user: a password's hash (None: no password is accepted), and permissions by virtual host.

    `everywhere` are the permissions in each virtual host that `permissions` does not name, None for none. Permissions
    that were taken away stay named, as None: `everywhere` does not give them back.
    `tags` say what the user may see and do over HTTP: `administrator`, `monitoring`, `policymaker`, `management`.
    `topics` are permissions by virtual host and topic exchange; where there are none, every routing key is permitted.
    `limits` are those of `USER_LIMITS`; a negative one is none.

    Raises:
        ValueError: a name that no login can carry.
    """

    name: str
    password_hash: str | None = None
    permissions: Mapping[str, Permissions | None] = field(default_factory=dict)
    loopback_only: bool = False
    tags: frozenset[str] = frozenset()
    everywhere: Permissions | None = None
    topics: Mapping[str, Mapping[str, TopicPermissions]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.limits.items():
            checked_limit(name, value, USER_LIMITS)
        for each in (self.name, *self.tags):
            if not short_string(each) or "\0" in each:
                raise ValueError(f"{each!r} is not a name of a user or a tag: it is empty, or contains a NUL")

    @classmethod
    def with_password(
        cls,
        name: str,
        password: str,
        permissions: Mapping[str, Permissions | None] | None = None,
        *,
        loopback_only: bool = False,
        tags: Iterable[str] = (),
    ) -> User:
        """A user with this password; without permissions, with all of them in every virtual host."""
        everywhere = Permissions() if permissions is None else None
        return cls(name, hash_password(password), permissions or {}, loopback_only, frozenset(tags), everywhere)

    def most(self, name: str) -> int | None:
        """A limit of the user; None for none."""
        value = self.limits.get(name, -1)
        return None if value < 0 else value

    def permissions_in(self, host: str) -> Permissions | None:
        """The rights of the user in a virtual host; None where it has none."""
        return self.permissions.get(host, self.everywhere)


def new_user(name: str) -> User:
    """A user without a password and permissions. One named `guest` is of loopback only, as RabbitMQ has it."""
    return User(name, loopback_only=name == "guest")


@cache
def guest() -> User:
    """RabbitMQ's default user: `guest` with the password `guest`, all permissions, from loopback only."""
    return User.with_password("guest", "guest", loopback_only=True, tags=["administrator"])


def is_loopback(address: str) -> bool:
    """True for an address of this machine's loopback; False for any other text."""
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
        self._fixed, known = (
            {user.name: user for user in checked_list("users", each, User, "a User, such as guest()")}
            for each in (fixed, users)
        )
        self._users = known | self._fixed
        self._keep = keep
        self._lock = Lock()

    def users(self) -> list[User]:
        """All users, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def put(self, user: User) -> None:
        """Let this user in from now on, in place of any of the same name.

        Raises:
            FixedUser: the configuration file names it.
            OSError: it cannot be kept; nothing was changed.
        """
        with self._changing(user.name) as users:
            users[user.name] = user

    def remove(self, name: str) -> None:
        """Refuse this name from now on; connections that are open stay. Raises as `put`."""
        with self._changing(name) as users:
            users.pop(name, None)

    def permit(self, name: str, host: str, permissions: Permissions | None) -> None:
        """Say what a user may do in a virtual host from now on; None for nothing. Raises as `put`, and KeyError."""
        with self._changing(name) as users:
            user = users[name]
            allowed = {**user.permissions, host: permissions}
            if permissions is None and user.everywhere is None:
                del allowed[host]
            users[name] = replace(user, permissions=allowed)

    def permit_topic(self, name: str, host: str, exchange: str | None, permissions: TopicPermissions | None) -> None:
        """Say with which routing keys a user may use a topic exchange; None for any, at all exchanges. Raises as
        `permit`."""
        with self._changing(name) as users:
            topics = {each: dict(by_exchange) for each, by_exchange in users[name].topics.items()}
            if exchange is not None and permissions is not None:
                topics.setdefault(host, {})[exchange] = permissions
            else:
                topics.pop(host, None)
            users[name] = replace(users[name], topics=topics)

    def limit(self, name: str, limit: str, value: int | None) -> None:
        """Set a limit of a user, None for none. Raises as `permit`, and as `User`."""
        with self._changing(name) as users:
            limits = {each: most for each, most in users[name].limits.items() if each != limit}
            if value is not None:
                limits[limit] = value
            users[name] = replace(users[name], limits=limits)

    def forget_virtual_host(self, host: str) -> None:
        """A virtual host is deleted: no user has permissions in it any more, but by the configuration, or by those that
        it has everywhere and that were not taken away here. Raises OSError, as `put`."""
        with self._changing() as users:
            for name in users.keys() - self._fixed.keys():
                left = {each: may for each, may in users[name].permissions.items() if each != host or may is None}
                topics = {each: of for each, of in users[name].topics.items() if each != host}
                users[name] = replace(users[name], permissions=left, topics=topics)

    @contextmanager
    def _changing(self, name: str | None = None) -> Iterator[dict[str, User]]:
        """The users, to be changed in the block; then they are kept, and everybody sees them. Raises as `put`."""
        if name in self._fixed:
            raise FixedUser(f"user '{name}' is in the configuration of the server; change it there")
        with self._lock:
            users = dict(self._users)
            yield users
            if self._keep is not None and users != self._users:
                self._keep([users[name] for name in sorted(users) if name not in self._fixed])
            self._users = users

    def user(self, name: str) -> User | None:
        """The user of this name."""
        return self._users.get(name)

    def look(self, name: str, password: bytes) -> bool | None:
        """Whether the password is the user's, where that is known; None where it has to be hashed. Microseconds.

        A wrong password has to be hashed once even where the right one is known: else names that are not known, which
        have no right one, would wait for turns that a known name does not need.
        """
        kept = self._kept(name)
        digest = _digest(kept, password)
        with _lock:
            right, is_wrong = _right.get(kept), digest in _wrong
        if right is not None and hmac.compare_digest(digest, right):
            return True
        return False if is_wrong else None

    def _kept(self, name: str) -> str:
        """The hash of a user's password. Of a name without one, what stands for it where answers are remembered."""
        user = self._users.get(name)
        return f"nobody${name}" if user is None or user.password_hash is None else user.password_hash

    def verify(self, name: str, password: bytes) -> bool:
        """Whether the password is the user's. Takes some 50 ms, known name or not; `look` knows it afterwards."""
        hashed = self._kept(name)
        is_nobody = hashed.startswith("nobody$")
        is_right = _matches(password, _nobodys_hash() if is_nobody else hashed) and not is_nobody
        digest = _digest(hashed, password)
        if is_right:
            _remember(_right, hashed, digest)
        else:
            _remember(_wrong, digest, b"")
        return is_right


class Rights:
    """The rights of one user in one virtual host; answers are remembered. One thread uses it."""

    _MOST = 1000  # answers that are remembered

    def __init__(self, user: User, host: str) -> None:
        permissions = user.permissions_in(host)
        if permissions is None:
            raise ConnectionFault(530, f"access to vhost '{host}' refused for user '{user.name}'")
        self.user = user
        self._host = host
        self._permissions = permissions
        self._allowed: set[tuple[Operation, str]] = set()
        self._topics = {
            (operation, exchange): each.search(operation, user.name, host)
            for exchange, each in user.topics.get(host, {}).items()
            for operation in ("write", "read")
        }
        self.has_topics: bool = bool(self._topics)

    def check(self, operation: Operation, kind: Literal["queue", "exchange"], name: str) -> None:
        """Nothing, when it is permitted. Raises ChannelFault: it is not."""
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

    def check_topic(self, operation: Operation, exchange: str, key: str) -> None:
        """Nothing, when a routing key is permitted at a topic exchange. Raises ChannelFault: it is not."""
        search = self._topics.get((operation, exchange))
        if search is not None and not search(key):
            where = f"exchange '{exchange}' in vhost '{self._host}'"
            refused = f"{operation} access to topic '{key}' in {where} refused for user '{self.user.name}'"
            raise ChannelFault(403, refused)


class UsersFile:
    """`users.json` in a data directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / "users.json"

    def load(self) -> list[User] | None:
        """The users in the file, or None. Raises ServerError: it cannot be read, or used."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ServerError(f"cannot read users in {self.path}: {error}") from error
        try:
            found = json.loads(text)
            if (version := found["version"]) not in (1, _FILE_VERSION):
                raise ServerError(f"{self.path} has version {version}; this program reads up to {_FILE_VERSION}")
            for each in found["users"] if version == 1 else ():
                each["everywhere"] = each["permissions"].pop("*", None)
            return [_user(each) for each in found["users"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerError(f"{self.path} is not a file of users: {error}; restore it, or remove it") from error

    def save(self, users: Iterable[User]) -> None:
        """Replace the contents of the file. Raises OSError: it cannot be written; the file is unchanged."""
        text = json.dumps({"version": _FILE_VERSION, "users": [_view(user) for user in users]}, indent=1)
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
    return {**asdict(user), "tags": sorted(user.tags)}


def _user(found: dict[str, Any]) -> User:
    hashed = None if found["password_hash"] is None else check_hash(found["password_hash"])
    permissions = {str(host): each and Permissions(**each) for host, each in found["permissions"].items()}
    everywhere = found["everywhere"] and Permissions(**found["everywhere"])
    tags = frozenset(map(str, found["tags"]))
    topics = {
        str(host): {str(exchange): TopicPermissions(**each) for exchange, each in by_exchange.items()}
        for host, by_exchange in found.get("topics", {}).items()
    }
    is_local, limits = bool(found["loopback_only"]), dict(found.get("limits", {}))
    return User(str(found["name"]), hashed, permissions, is_local, tags, everywhere, topics, limits)
