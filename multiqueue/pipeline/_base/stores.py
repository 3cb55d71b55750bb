"""How places in stores are reached: `[storage.NAME]` of the configuration, and the variables in its values."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from .place import Place, place_of

_VARIABLE = re.compile(r"\$\{(\w+)\}")

# The names of a section's keys in fsspec's file systems, in deltalake and in pyiceberg; None where there is none.
FSSPEC, DELTA, ICEBERG = range(3)
_Words = dict[str, tuple[str | None, str | None, str | None]]
_S3: _Words = {
    "key": ("key", "aws_access_key_id", "s3.access-key-id"),
    "secret": ("secret", "aws_secret_access_key", "s3.secret-access-key"),
    "token": ("token", "aws_session_token", "s3.session-token"),
    "endpoint": ("endpoint_url", "aws_endpoint_url", "s3.endpoint"),
    "region": (None, "aws_region", "s3.region"),
    "anonymous": ("anon", "aws_skip_signature", None),
}
_GS: _Words = {
    "account": ("project", None, "gcs.project-id"),
    "token": ("token", "google_service_account", "gcs.oauth2.token"),
    "endpoint": ("endpoint_url", "google_base_url", "gcs.service.host"),
    "anonymous": (None, "google_skip_signature", None),
}
_AZURE: _Words = {
    "account": ("account_name", "azure_storage_account_name", "adls.account-name"),
    "secret": ("account_key", "azure_storage_account_key", "adls.account-key"),
    "token": ("sas_token", "azure_storage_sas_token", "adls.sas-token"),
    "endpoint": (None, "azure_storage_endpoint", None),
    "anonymous": ("anon", "azure_skip_signature", None),
}
_WORDS = {"s3": _S3, "gs": _GS, "abfss": _AZURE, "az": _AZURE}


class Section(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def from_the_environment(text: str) -> str:
    """The text with the values of the variables that it names as `${NAME}`.

    Raises:
        ValueError: there is no such variable.
    """
    return _VARIABLE.sub(_variable, text)


def _variable(found: re.Match[str]) -> str:
    if found[1] not in os.environ:
        raise ValueError(f"there is no environment variable {found[1]}")
    return os.environ[found[1]]


FromEnvironment = Annotated[str, AfterValidator(from_the_environment)]
"""A text with variables, as `from_the_environment` takes them."""


class StorageSection(Section):
    """`[storage.NAME]`: how the places below a URL are reached; the environment has the others."""

    url: str = Field(min_length=1)
    endpoint: FromEnvironment | None = None
    region: FromEnvironment | None = None
    account: FromEnvironment | None = Field(default=None, repr=False)
    key: FromEnvironment | None = Field(default=None, repr=False)
    secret: FromEnvironment | None = Field(default=None, repr=False)
    token: FromEnvironment | None = Field(default=None, repr=False)
    anonymous: bool = False
    options: dict[str, Any] = Field(default_factory=dict, repr=False)

    @field_validator("url")
    @classmethod
    def _is_in_a_store(cls, value: str) -> str:
        place = place_of(value)
        if place.is_local:
            raise ValueError(f'{value!r} is local; [storage] is for stores, as in url = "s3://BUCKET"')
        return place.text

    @model_validator(mode="after")
    def _fits_the_store(self) -> StorageSection:
        known = {*_WORDS[self.place.scheme], "url", "options"}
        if odd := sorted(name for name in self.model_fields_set if name not in known):
            raise ValueError(
                f"{odd[0]} means nothing to {self.place.scheme}://, which takes {', '.join(sorted(known))}"
            )
        return self

    @property
    def place(self) -> Place:
        """The subject of the sentence."""
        return Place(self.url)

    def words(self, library: int) -> dict[str, Any]:
        """These settings, in the words of this library."""
        names = {key: words[library] for key, words in _WORDS[self.place.scheme].items()}
        return {word: value for key, word in names.items() if word and (value := getattr(self, key))}

    def fsspec_arguments(self) -> dict[str, Any]:
        """The arguments of fsspec's file system, secrets among them."""
        values = self.words(FSSPEC)
        if connection := self.azure_connection():
            values = {"connection_string": connection}
        if self.region is not None:
            values["client_kwargs"] = {"region_name": self.region}
        if self.anonymous and self.place.scheme == "gs":
            values["token"] = "anon"
        return {**values, **self.options}

    def azure_connection(self) -> str | None:
        """The connection string for an endpoint that is not Azure's own, or None."""
        if self.place.scheme not in ("abfss", "az") or self.endpoint is None:
            return None
        scheme = self.endpoint.partition("://")[0]
        account = self.account or self.place.parts[0].rpartition("@")[2].partition(".")[0]
        parts = [f"DefaultEndpointsProtocol={scheme}", f"AccountName={account}", f"BlobEndpoint={self.endpoint}"]
        parts += [f"AccountKey={self.secret}"] if self.secret else []
        parts += [f"SharedAccessSignature={self.token}"] if self.token else []
        return ";".join(parts)

    def secrets(self) -> list[str]:
        """The values that are secret."""
        named = [one for one in (self.key, self.secret, self.token) if one]
        return named + [one for one in self.options.values() if isinstance(one, str) and len(one) >= 8]
