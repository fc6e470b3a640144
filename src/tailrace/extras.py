"""Which extra of the package brings which optional module: the only table, and the error that names the command."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.errors import MissingExtra

EXTRA_OF: Mapping[str, str] = {
    "confluent_kafka": "kafka",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "redis": "redis",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
    "duckdb": "sql",
    "psycopg": "postgres",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
    "zstandard": "compression",
    "snappy": "compression",
    "trustme": "stand",
}


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
