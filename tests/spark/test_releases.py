"""The source and both jobs with the releases of PySpark that pyproject.toml allows, each put before the locked one."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tailrace.errors import SettingsError
from tailrace.owned import run_guarded
from tailrace.spark.connectors import connectors_of
from tailrace.stand.cache import made_once
from tailrace.stand.maven import read_checksums
from waiting import SECONDS

ROOT = Path(__file__).parents[2]
NEWEST = {"4.0": "4.0.5", "4.1": "4.1.4"}
CORE = (
    "tests/spark/test_session.py",
    "tests/spark/test_source.py::test_a_snapshot_has_every_document_once_over_several_partitions",
    "tests/spark/test_source.py::test_a_stream_gives_what_happens_and_goes_on_after_a_restart",
    "tests/spark/test_source.py::test_a_schema_is_inferred_from_the_documents",
    "tests/spark/test_from_kafka.py::test_a_stream_has_typed_columns_and_ends",
    "tests/spark/test_plan_secrets.py",
    "tests/features/test_job.py::test_directly_from_mongodb_with_a_backfill_and_a_replay",
    "tests/features/test_job.py::test_topics_whose_records_the_driver_reads_itself",
    "tests/warehouse/test_job.py::test_deltas_duplicates_and_replays",
    "tests/warehouse/test_job.py::test_directly_from_mongodb",
    "tests/warehouse/test_job.py::test_marks_and_maintenance",
)
"""What each release has to do; CORE names others, such as whole folders."""


def release(version: str) -> Path:
    """The folder of a release of pyspark, fetched once, for the search path."""

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        assert run_guarded([*pip, "--target", str(folder), f"pyspark=={version}"], timeout=1800).returncode == 0

    return made_once(f"pyspark-{version}", install)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", NEWEST.values())
def test_the_core_of_spark_features_and_tables(version: str) -> None:
    searched = os.pathsep.join(filter(None, (str(release(version)), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": searched}
    asked = run_guarded(
        [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"],
        env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert asked.stdout.strip() == version
    chosen = os.environ.get("CORE", "").split() or CORE
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *chosen]
    done = run_guarded(tests, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=7000)
    assert done.returncode == 0, done.stdout[-8000:]


def test_every_release_that_may_be_installed_has_connectors_and_is_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    (needed,) = (one for one in extras if one.startswith("pyspark"))
    least, beyond = re.fullmatch(r"pyspark>=4\.(\d+)\.\d+,<4\.(\d+)", needed).groups()
    allowed = [f"4.{minor}" for minor in range(int(least), int(beyond))]
    assert allowed == list(NEWEST)
    for minor in allowed:
        known = connectors_of(f"{minor}.9")
        wanted = {f"{name}-{version}.jar" for _, name, version in (one.split(":") for one in known.packages)}
        assert wanted <= read_checksums(known.checksums).keys()
    with pytest.raises(SettingsError, match=rf"pyspark 4\.{beyond}\.0, only for 4\.0 and 4\.1"):
        connectors_of(f"4.{beyond}.0")
