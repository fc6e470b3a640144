"""The connectors that stream end to end with each release of pyspark, by their coordinates at Maven Central.

Kafka's connector for 4.1 asks for a token provider that was never published with it; that of 4.0 does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tailrace.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Connectors:
    """The jars for Kafka and Iceberg that fit one release."""

    packages: tuple[str, ...]
    overrides: tuple[str, ...]
    """Versions of what they depend on, in place of those that they ask for."""
    checksums: Path
    delta: tuple[str, ...] = ()
    """Delta Lake, for tables in that format: fetched only where they are. None is known to fit 4.1."""


_HERE: Final = Path(__file__).parent
_BY_RELEASE: Final[Mapping[tuple[int, int], Connectors]] = {
    (4, 0): Connectors(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
            "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        ),
        (),
        _HERE / "connectors.sha256",
        ("io.delta:delta-spark_2.13:4.0.1",),
    ),
    (4, 1): Connectors(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        ),
        ("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",),
        _HERE / "connectors-4.1.sha256",
    ),
}


def release_of(version: str) -> tuple[int, int]:
    """Give the release of a version: `4.1.3` is of 4.1."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def connectors_of(version: str, table_format: str = "iceberg") -> Connectors:
    """Give the connectors for a version of pyspark; refuse one for which none are known."""
    known = _BY_RELEASE.get(release_of(version))
    if known is None:
        names = " and ".join(f"{major}.{minor}" for major, minor in _BY_RELEASE)
        raise SettingsError(
            f"no connectors are known for pyspark {version}, only for {names}",
            hint="Install a pyspark of these releases, or name the jars yourself in spark.jars.",
        )
    if table_format == "delta" and not known.delta:
        raise SettingsError(
            f"no Delta Lake is known for pyspark {version}",
            hint='Install pyspark 4.0, or set warehouse.format to "iceberg".',
        )
    return known


RELEASE: Final = release_of(pyspark.__version__)
_INSTALLED: Final = _BY_RELEASE.get(RELEASE) or _BY_RELEASE[max(_BY_RELEASE)]
CONNECTORS: Final = _INSTALLED.packages
"""Those for the pyspark that is installed."""
CONNECTOR_CHECKSUMS: Final = _INSTALLED.checksums
DELTA: Final = _BY_RELEASE[4, 0].delta
DELTA_CHECKSUMS: Final = _HERE / "delta.sha256"
