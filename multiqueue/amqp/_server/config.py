"""The broker's configuration file: its sections as models, and the settings made of them.

Relative paths start at the directory of the file. Nothing unknown is accepted, and every complaint names the file,
the key and what would be right; docs/reference/broker-toml.md lists the keys, and a test compares the two.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from ..._carried import short_string
from ..._toml import Mistaken, placed_sentences, read_toml, validated
from ...broker import Compat, Policy
from .._wire.errors import ConfigError
from .access import Permissions, User, check_hash, guest
from .settings import MEBIBYTE, RANGES, ServerSettings, disk_bytes, memory_of_machine, server_tls

Text = Annotated[str, Field(min_length=1)]


def _name(text: str) -> str:
    short_string(text)
    return text


def _user_name(text: str) -> str:
    return User(text).name


Name = Annotated[Text, AfterValidator(_name)]
UserName = Annotated[Text, AfterValidator(_user_name)]


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"it is neither an address nor a network: {error}") from None


Network = Annotated[str, AfterValidator(_network)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def _limit(name: str, **options: Any) -> Any:
    """A key that is a setting of the server's, with its range, and its default unless told otherwise."""
    least, most = RANGES[name]
    known = {"default": ServerSettings.__dataclass_fields__[name].default, "ge": least, "le": most}
    return Field(**{**known, **options})


class ListenSection(_Section):
    """`[listen]`: where clients connect."""

    host: Text = "127.0.0.1"
    port: int = Field(default=5672, ge=0, le=65535)


class HttpSection(_Section):
    """`[http]`: where tools look in."""

    host: Text = "127.0.0.1"
    port: int = Field(default=15672, ge=0, le=65535)
    hosts: list[Text] = Field(default_factory=list)
    proxies: list[Network] = Field(default_factory=list)


class DataSection(_Section):
    """`[data]`: what survives, and how much memory messages may take."""

    directory: Text | None = None
    durability: Literal["sync", "relaxed", "memory"] = "sync"
    messages_in_memory_bytes: int | None = Field(default=None, ge=1024 * 1024)
    on_store_failure: Literal["reopen", "stop", "stay"] = "reopen"


class TlsSection(_Section):
    """`[tls]`: encryption, and who clients are by their certificates. Without a port every connection is TLS."""

    port: int | None = Field(default=None, ge=0, le=65535)
    certificate: Text
    key: Text | None = None
    client_ca: Text | None = None
    require_client_certificate: bool = True


class LimitsSection(_Section):
    """`[limits]`: what one client, and all of them, may take."""

    max_connections: int = _limit("max_connections")
    max_connections_per_user: int | None = _limit("max_connections_per_user")
    channel_max: int = _limit("channel_max")
    frame_max: int = _limit("frame_max")
    heartbeat: int = _limit("heartbeat")
    max_message_bytes: int | None = _limit("max_message_bytes")
    handshake_timeout: float = _limit("handshake_timeout", strict=False)
    write_buffer_bytes: int = _limit("write_buffer_bytes")
    memory_limit_bytes: int | None = _limit("memory_limit_bytes")
    disk_free_limit_bytes: int | None = _limit("disk_free_limit_bytes")
    io_threads: int = _limit("io_threads")


class DeprecatedSection(_Section):
    """`[deprecated_features]`: what RabbitMQ 4.3 will drop, as its file has it; `permit.NAME` for each."""

    permit: dict[Text, bool] = Field(default_factory=dict)


class PermissionsSection(_Section):
    """`[users.NAME.permissions."VHOST"]`, `[users.NAME.everywhere]`: regular expressions for queues and exchanges."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    @model_validator(mode="after")
    def _are_expressions(self) -> PermissionsSection:
        self.permissions()
        left_out = [name for name in type(self).model_fields if name not in self.model_fields_set]
        if left_out and self.model_fields_set:
            raise ValueError(f"{' and '.join(left_out)}: missing; name all three, or none to permit everything")
        return self

    def permissions(self) -> Permissions:
        return Permissions(self.configure, self.write, self.read)


class UserSection(_Section):
    """`[users.NAME]`: somebody who may come in. Without a password, only by certificate."""

    password_hash: str | None = None
    loopback_only: bool = False
    tags: list[Literal["administrator", "monitoring", "policymaker", "management"]] = Field(default_factory=list)
    permissions: dict[Name, PermissionsSection] = Field(default_factory=dict)
    everywhere: PermissionsSection | None = None

    @field_validator("password_hash")
    @classmethod
    def _is_hash(cls, value: str | None) -> str | None:
        return None if value is None else check_hash(value)

    def user(self, name: str) -> User:
        permissions = {host: each.permissions() for host, each in self.permissions.items()}
        everywhere = None if self.everywhere is None else self.everywhere.permissions()
        return User(name, self.password_hash, permissions, self.loopback_only, frozenset(self.tags), everywhere)


class PolicySection(_Section):
    """`[policies.NAME]`: what applies to queues and exchanges by their names. Set anew at each start."""

    pattern: Text
    definition: dict[Name, int | str]
    priority: int = 0
    apply_to: Literal["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"] = "all"
    operator: bool = False
    virtual_host: Name = "/"

    @model_validator(mode="after")
    def _can_be(self) -> PolicySection:
        self.policy("of the file")
        return self

    def policy(self, name: str) -> Policy:
        said = self.model_dump(exclude={"operator", "virtual_host"})
        try:
            return Policy(name=name, is_operators=self.operator, **said)
        except TypeError as error:
            raise ValueError(str(error)) from None


class ConfigFile(_Section):
    listen: ListenSection = Field(default_factory=ListenSection)
    http: HttpSection | None = None
    data: DataSection = Field(default_factory=DataSection)
    tls: TlsSection | None = None
    limits: LimitsSection = Field(default_factory=LimitsSection)
    virtual_hosts: list[Name] = Field(default_factory=list)
    compat: Literal["4.3", "3.10", "lenient"] = "4.3"
    consumer_timeout: float = Field(default=1800.0, gt=0, le=315_360_000, strict=False)
    deprecated_features: DeprecatedSection = Field(default_factory=DeprecatedSection)
    users: dict[UserName, UserSection] | None = None
    policies: dict[Name, PolicySection] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings that the file gives on this machine."""

    file: ConfigFile
    base: Path

    @property
    def data(self) -> Path | None:
        directory = self.file.data.directory
        return None if directory is None else self.base / directory

    def settings(self) -> ServerSettings:
        """The limits; without one for memory, 40 % of the machine's, as RabbitMQ has it. Without one for the disk,
        RabbitMQ's 50 MB, or an eighth of a small disk: it would be low for ever."""
        values = self.file.limits.model_dump()
        if values["memory_limit_bytes"] is None:
            values["memory_limit_bytes"] = memory_of_machine() * 2 // 5 or None
        if values["disk_free_limit_bytes"] is None and self.data is not None:
            values["disk_free_limit_bytes"] = min(50 * MEBIBYTE, disk_bytes(self.data) // 8) or None
        return ServerSettings(**values)

    def users(self) -> list[User]:
        if self.file.users is None:
            return [guest()]
        return [section.user(name) for name, section in self.file.users.items()]

    @property
    def tls_files(self) -> tuple[str, str | None] | None:
        """The certificate and its key, None without a section for them."""
        section = self.file.tls
        if section is None:
            return None
        return str(self.base / section.certificate), None if section.key is None else str(self.base / section.key)

    def tls(self) -> ssl.SSLContext | None:
        """The server's TLS, None without a section for it. Raises ServerError: a file cannot be used."""
        section, files = self.file.tls, self.tls_files
        if section is None or files is None:
            return None
        client_ca = None if section.client_ca is None else self.base / section.client_ca
        return server_tls(*files, client_ca=client_ca, required=section.require_client_certificate)


def load_config(path: Path | None) -> BrokerConfig:
    """Read a configuration; without a file, the defaults. Raises ConfigError: it cannot be read, is no TOML, or does
    not fit; a sentence per mistake."""
    if path is None:
        return BrokerConfig(ConfigFile(), Path.cwd())
    try:
        values, text = read_toml(path)
        file = validated(ConfigFile, values, str(path), text)
    except Mistaken as error:
        raise ConfigError(str(error)) from error
    mistakes = list(placed_sentences([*_missing_hosts(file), *_unknown_features(file)], str(path), text))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return BrokerConfig(file, path.resolve().parent)


def _missing_hosts(file: ConfigFile) -> Iterator[tuple[tuple[str, ...], str]]:
    """Permissions in a virtual host that the file does not make: most likely a slip of the pen."""
    known = {"/", *file.virtual_hosts}
    for name, user in (file.users or {}).items():
        for host in user.permissions:
            if host not in known:
                what = "there is no such virtual host; name it in virtual_hosts"
                if host == "*":
                    what += f", or write [users.{name}.everywhere] for all of them"
                yield ("users", name, "permissions", host), what
    for name, policy in file.policies.items():
        if policy.virtual_host not in known:
            yield ("policies", name, "virtual_host"), "there is no such virtual host; name it in virtual_hosts"


def _unknown_features(file: ConfigFile) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, is_permitted in file.deprecated_features.permit.items():
        try:
            Compat(file.compat, {name: is_permitted})
        except ValueError as error:
            yield ("deprecated_features", "permit", name), str(error)
