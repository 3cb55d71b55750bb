"""Which extra installs a module that is missing. docs/decisions/0002-extras.md has what is in each, and why."""

from __future__ import annotations

_EXTRAS = {
    "adlfs": "azure",
    "botocore": "s3",
    "click": "cli",
    "deltalake": "delta",
    "gcsfs": "gs",
    "opentelemetry": "otel",
    "psycopg": "postgresql",
    "pydantic": "cli",
    "rich": "cli",
    "pamqp": "amqp",
    "prometheus_client": "monitor",
    "pyarrow": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "s3fs": "s3",
    "starlette": "monitor",
    "uvicorn": "monitor",
}


def needs(who: str, module: str) -> str:
    """The error for a module that is needed and not there."""
    package = module.partition(".")[0]
    if package not in _EXTRAS:
        return f"{who} needs the module {package}, which is not installed"
    return f"{who} needs {package}: pip install 'blocking-multiqueue[{_EXTRAS[package]}]'"
