"""Which extra of the package brings which optional module: the only table, and the error that names the command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import unquote

from tailrace.errors import MissingExtra

EXTRA_OF: Mapping[str, str] = {
    "confluent_kafka": "kafka",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "numpy": "spark",
    "py4j": "spark",
    "pyroaring": "spark",
    "redis": "redis",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
    "deltalake": "delta",
    "duckdb": "sql",
    "psycopg": "postgres",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
    "zstandard": "compression",
    "snappy": "compression",
    "trustme": "stand",
    "opentelemetry": "otel",
    "pymongo_auth_aws": "aws",
    "aws_msk_iam_sasl_signer": "aws",
}
_CLIENT_OF: Mapping[str, str] = {
    "kafka": "confluent_kafka",
    "redis": "redis",
    "rediss": "redis",
    "postgresql": "psycopg",
    "postgres": "psycopg",
}
"""The client that a URL's scheme needs, for sinks and position stores alike."""
_LOGIN_OF: Mapping[str, str] = {"MONGODB-AWS": "pymongo_auth_aws", "AWS_MSK_IAM": "aws_msk_iam_sasl_signer"}
"""What a mechanism of authentication in a URL needs."""


def extra_of(module: str | None) -> str | None:
    """Give the extra that brings a module, or None for one that belongs to no extra."""
    return EXTRA_OF.get((module or "").partition(".")[0])


def missing_extra(error: ModuleNotFoundError, what: str = "this") -> MissingExtra:
    """Give our error for an import that failed; a module that no extra brings is a defect, and stays one."""
    extra = extra_of(error.name)
    if extra is None:
        raise error
    hint = f"Install it with: pip install 'tailrace[{extra}]'"
    return MissingExtra(f"{what} needs the Python package {error.name}", hint=hint, extra=extra)


def require_client(url: str, what: str) -> None:
    """Raise if the client library that a URL needs is not installed; no server is asked."""
    needed = [_CLIENT_OF.get(url.partition(":")[0])]
    needed += [
        module for mechanism, module in _LOGIN_OF.items() if f"mechanism={mechanism}".lower() in unquote(url).lower()
    ]
    for module in needed:
        if module is not None and find_spec(module) is None:
            raise missing_extra(ModuleNotFoundError(name=module), what)


def require_modules(what: str, *names: str) -> None:
    """Raise if modules are not installed, with one command for all of them: nobody installs them one by one."""
    absent = [name for name in names if find_spec(name) is None]
    if absent:
        extras = ",".join(dict.fromkeys(EXTRA_OF[name] for name in absent))
        packages = "packages" if len(absent) > 1 else "package"
        hint = f"Install {'them' if len(absent) > 1 else 'it'} with: pip install 'tailrace[{extras}]'"
        raise MissingExtra(f"{what} needs the Python {packages} {', '.join(absent)}", hint=hint)
